"""Fits the constants of `diagnoses/calibration.py`, and says what that gains.

    torchdoctor clinic bench --results RESULTS.jsonl
    python benchmarks/calibrate.py RESULTS.jsonl            # prints the constants, and the error before and after
    python benchmarks/calibrate.py RESULTS.jsonl --write    # and puts them into the source
    python benchmarks/calibrate.py RESULTS.jsonl --first FIRST.jsonl ... --write    # fitted on those runs instead

Causes were written beside the clinic's development kinds, and find them easier than others. The honest measure is a
*first run*: a run whose cause was declared beforehand, by somebody who wrote no cause for it, diagnosed once. A file of
them has one line a run: `run`, `sick`, `first` (whether a right cause leads), `lead` and `p` (the leading cause and its
probability), and, where known, `ranked` (pairs of cause and probability), `cause` (the right ones), `certain`, and
`temperature` and `unknown` (the constants of that time). Where there are such files, they alone are fitted.

Only development runs with a known cause count, and of each the problem that its report puts first; a kind counts as
much as another, however many runs it has. Where the right cause is not among those that were weighed, `unknown` is the
honest answer. Problems with a certain cause are left alone.

What is fitted must carry over to kinds that nobody has seen. So every claim is judged with constants that were fitted
without its kind; a shift of `unknown`, and then shifts of all causes, are kept only if they clearly help there; and the
temperature stays above a floor.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdoctor.clinic.kinds import KINDS
from torchdoctor.diagnoses import CAUSES, calibration

Array = NDArray[np.float64]
NAMES = tuple(cause.name for cause in CAUSES)
NOTHING, EVERYTHING = np.zeros(len(NAMES)), np.ones(len(NAMES))
UNKNOWN = np.array([float(name == "unknown") for name in NAMES])
"""Which shifts are fitted."""
SURE = 0.99
"""A probability that only definite facts have; they are not fitted."""
SPREAD = 0.7
"""The standard deviation of the shifts that are expected before any run is seen."""
FLOOR = 0.8
"""The lowest temperature. Development kinds alone would justify less, 0.6; a hundred first runs ask for 1.2 to 1.5."""
FOLDS = 10
BINS = 10


class Run(NamedTuple):
    """The first problem of one run: a score for each cause (-inf where it was not weighed), and which are right."""

    scores: Array
    right: NDArray[np.bool_]
    kind: str = ""


def read(path: Path) -> list[Run]:
    """The development runs of a results file whose cause is known and is not a definite fact."""
    runs = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        kind = KINDS.get(line["kind"])
        if kind is None or kind.split != "development" or not kind.cause or line["preset"] != "default":
            continue
        ranked = line.get("report", {}).get("diagnoses", [])
        first = [item for item in ranked if item["problem"] == ranked[0]["problem"]]
        if first and not _is_certain(first):
            runs.append(_run(first, kind.cause, kind.slug))
    return runs


def read_first(path: Path) -> list[Run]:
    """The sick runs of a file of first runs whose leading cause is not a definite fact."""
    runs = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if not line["sick"] or line["first"] is None or line["p"] is None or line.get("certain", line["p"] >= SURE):
            continue
        ranked, right = line.get("ranked"), line.get("cause")
        if ranked is None or right is None:
            if line["lead"] == "unknown":
                continue  # nothing is known of what came next
            ranked = [(line["lead"], line["p"]), ("unknown", 1 - line["p"])]
            right = [line["lead"]] if line["first"] else []
        then = line.get("temperature", calibration.TEMPERATURE), {"unknown": line.get("unknown", 0.0)}
        pairs = [{"cause": cause, "probability": probability} for cause, probability in ranked]
        runs.append(_run(pairs, right, f"{path}:{line['run']}", *then))
    return runs


def _is_certain(ranked: Sequence[dict[str, Any]]) -> bool:
    return any(text.startswith("certain: ") for text in ranked[0]["evidence"])


def _run(
    ranked: Iterable[dict[str, Any]],
    right: Iterable[str],
    kind: str,
    temperature: float = calibration.TEMPERATURE,
    shifts: Mapping[str, float] = calibration.SHIFTS,
) -> Run:
    """Probabilities are turned back into the scores that they were made of."""
    scores = np.full(len(NAMES), -np.inf)
    for item in ranked:
        if item["cause"] in NAMES:
            raw = temperature * np.log(max(item["probability"], 1e-12))
            scores[NAMES.index(item["cause"])] = raw - shifts.get(item["cause"], 0.0)
    truth = np.array([name in set(right) for name in NAMES]) & np.isfinite(scores)
    if not truth.any():
        truth = np.array([name == "unknown" for name in NAMES])
    return Run(scores, truth, kind)


def probabilities(runs: Sequence[Run], temperature: float, shifts: Array) -> Array:
    """The calibrated probabilities, a row a run."""
    scores = (np.stack([run.scores for run in runs]) + shifts) / temperature
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def weights(runs: Sequence[Run]) -> Array:
    """What each run counts, so that kinds count alike; their sum is the number of runs."""
    counts = Counter(run.kind for run in runs)
    shares = np.array([1 / counts[run.kind] for run in runs])
    return np.asarray(shares * len(runs) / shares.sum())


def fit(runs: Sequence[Run], moving: Array, steps: int = 2000, rate: float = 0.02) -> tuple[float, Array]:
    """Temperature and shifts that make the right causes likeliest, by gradient descent on what they were given."""
    log_temperature, shifts = 0.0, np.zeros(len(NAMES))
    counts = weights(runs)[:, None]
    scores = np.stack([run.scores for run in runs])
    weighed = np.isfinite(scores)
    right = np.stack([run.right for run in runs])
    for _ in range(steps):
        temperature = np.exp(log_temperature)
        given = probabilities(runs, float(temperature), shifts)
        among = np.where(right, given, 0.0)
        among /= np.maximum(among.sum(axis=1, keepdims=True), 1e-12)
        pull = counts * (among - given) / temperature  # the gradient of the log-likelihood by score
        shifts = shifts + moving * rate * (pull.sum(axis=0) - shifts / SPREAD**2) / len(runs) ** 0.5
        moved = np.where(weighed, scores, 0.0) + shifts
        log_temperature -= rate * float((pull * moved).sum() / len(runs) + log_temperature / len(runs))
        log_temperature = min(max(log_temperature, math.log(FLOOR)), 1.5)
    return float(np.exp(log_temperature)), shifts


def elsewhere(runs: Sequence[Run], moving: Array) -> Array:
    """The probabilities of each run with constants that were fitted on other kinds."""
    kinds = sorted({run.kind for run in runs})
    given = np.zeros((len(runs), len(NAMES)))
    for fold in range(min(FOLDS, len(kinds))):
        left_out = set(kinds[fold::FOLDS])
        temperature, shifts = fit([run for run in runs if run.kind not in left_out], moving, steps=1000)
        places = [place for place, run in enumerate(runs) if run.kind in left_out]
        given[places] = probabilities([runs[place] for place in places], temperature, shifts)
    return given


def surprises(runs: Sequence[Run], given: Array) -> Array:
    """For each run, -log of what its right causes were given."""
    right = np.stack([run.right for run in runs])
    return np.asarray(-np.log(np.maximum(np.where(right, given, 0.0).sum(axis=1), 1e-3)))


def surprise(runs: Sequence[Run], given: Array) -> float:
    """Their mean over kinds."""
    return float(np.average(surprises(runs, given), weights=weights(runs)))


def helps(runs: Sequence[Run], plain: Array, moved: Array) -> bool:
    """Whether the second is the better one by more than the standard error of the difference over kinds."""
    gains = surprises(runs, plain) - surprises(runs, moved)
    kinds = sorted({run.kind for run in runs})
    by_kind = [gains[[run.kind == kind for run in runs]].mean() for kind in kinds]
    return bool(np.mean(by_kind) > np.std(by_kind, ddof=1) / math.sqrt(len(kinds)))


def reliability(runs: Sequence[Run], given: Array) -> tuple[float, list[tuple[float, float, int]]]:
    """The expected calibration error of the leading cause, and (claimed, true, runs) by bin of what was claimed."""
    known = np.where(np.array(NAMES) == "unknown", 0.0, given)
    top, claimed = known.argmax(axis=1), known.max(axis=1)
    true = np.array([run.right[place] for run, place in zip(runs, top, strict=True)])
    rows, error = [], 0.0
    for low in np.linspace(0, 1, BINS, endpoint=False):
        inside = (claimed >= low) & ((claimed < low + 1 / BINS) | (low + 1 / BINS >= 1))
        if inside.any():
            said, held = float(claimed[inside].mean()), float(true[inside].mean())
            rows.append((said, held, int(inside.sum())))
            error += abs(said - held) * inside.sum() / len(runs)
    return error, rows


def show(title: str, runs: Sequence[Run], given: Array) -> None:
    """The error and the table of one set of constants."""
    error, rows = reliability(runs, given)
    print(f"{title}: calibration error {error:.3f}, surprise {surprise(runs, given):.3f}, {len(runs)} runs")
    print("  claimed   true   runs")
    for said, held, count in rows:
        print(f"   {said:6.0%} {held:6.0%} {count:6d}")


def written(source: str, temperature: float, shifts: dict[str, float]) -> str:
    """The source of `calibration.py` with new constants.

    >>> print(written('TEMPERATURE: float = 1.0\\nSHIFTS: Mapping[str, float] = {}\\n', 1.25, {"bad-batch": 0.5}))
    TEMPERATURE: float = 1.25
    SHIFTS: Mapping[str, float] = {
        "bad-batch": 0.5,
    }
    <BLANKLINE>
    """
    table = "".join(f'    "{name}": {shift},\n' for name, shift in shifts.items())
    body = "{\n" + table + "}" if table else "{}"
    source = re.sub(r"(?m)^TEMPERATURE: float = .*$", f"TEMPERATURE: float = {temperature}", source)
    return re.sub(
        r"(?ms)^SHIFTS: Mapping\[str, float\] = \{.*?\}$", lambda _: f"SHIFTS: Mapping[str, float] = {body}", source
    )


def main() -> None:
    """Fit, compare, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "--first", type=Path, nargs="+", default=[], help="files of first runs: they are fitted instead"
    )
    parser.add_argument("--write", action="store_true", help="put the constants into diagnoses/calibration.py")
    options = parser.parse_args()
    known = read(options.results)
    runs = [run for path in options.first for run in read_first(path)] or known
    if len(runs) < 20:
        raise SystemExit(f"{len(runs)} runs with a known, uncertain cause are too few: 20 are needed.")
    before = np.array([calibration.SHIFTS.get(name, 0.0) for name in NAMES])
    show("before", runs, probabilities(runs, calibration.TEMPERATURE, before))
    moving, given = NOTHING, elsewhere(runs, NOTHING)
    show("temperature, on kinds left out", runs, given)
    # A hundred first runs are too few for a number a cause.
    for title, more in (("unknown", UNKNOWN), ("all causes", EVERYTHING))[: 1 if options.first else 2]:
        moved = elsewhere(runs, more)
        show(f"temperature and shifts of {title}, on kinds left out", runs, moved)
        if helps(runs, given, moved):
            moving, given = more, moved
    temperature, shifts = fit(runs, moving)
    show("as kept", runs, probabilities(runs, temperature, shifts))
    if known and options.first:
        show("as kept, on development runs", known, probabilities(known, temperature, shifts))
    table = {name: round(float(shift), 2) for name, shift in zip(NAMES, shifts, strict=True) if abs(shift) >= 0.1}
    print(f"TEMPERATURE = {temperature:.2f}\nSHIFTS = {json.dumps(table, indent=4)}")
    if options.write:
        path = Path(calibration.__file__)
        path.write_text(written(path.read_text(encoding="utf-8"), round(temperature, 2), table), encoding="utf-8")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
