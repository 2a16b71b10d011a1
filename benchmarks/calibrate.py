"""Fits the constants of `diagnoses/calibration.py`, and says what that gains.

    torchdoctor clinic bench --results RESULTS.jsonl
    python benchmarks/calibrate.py RESULTS.jsonl                           # prints the constants, before and after
    python benchmarks/calibrate.py RESULTS.jsonl --write                   # and puts them into the source
    python benchmarks/calibrate.py RESULTS.jsonl --labels LABELS.jsonl     # with journals whose cause is known
    python benchmarks/calibrate.py RESULTS.jsonl --labels LABELS.jsonl --keep 6    # the first sight of a sixth round

Causes were written beside the clinic's development kinds, and find them easier than others. The honest measure is a
*first run*: one whose cause was declared beforehand, by somebody who wrote no cause for it, as it was diagnosed at
first sight. `first_runs.jsonl`, beside this file, holds those of five rounds: `run`, `author`, `round`, `cause` (the
right ones), `spoke` (whether anything was raised at warning or above), `certain`, and `scores`, by cause, of the
problem that its report put first, before calibration: evidence as it was then, priors as they were after the fourth
round. What they taught was built in after each round. So a round counts half of the next one, and what is replayed now
(the clinic's runs, and labelled journals) a quarter of a first run.

A file of labels has one line a run: `run`, `journal` (its path), `cause` (or `right`, of which the causes are taken)
and, if known, `author`. With `--keep`, what the present version says of these journals is added to `first_runs.jsonl`;
that is honest only before anything is repaired for their sake.

A claim is the leading cause of the first problem, `unknown` left out, with its probability. Two numbers are fitted, by
the claims' likelihood: a temperature, and what `unknown` gains. Each is kept at nothing unless it clearly helps on
authors, and kinds, that it was not fitted on. Problems with a certain cause are left alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import torchdoctor
from torchdoctor.clinic.kinds import KINDS
from torchdoctor.diagnoses import CAUSES, calibration

Array = NDArray[np.float64]
FIRST_RUNS = Path(__file__).with_name("first_runs.jsonl")
NAMES = frozenset(cause.name for cause in CAUSES)
TEMPERATURES = np.round(np.arange(0.6, 1.61, 0.1), 2)
UNKNOWNS = np.round(np.arange(-3.0, 1.01, 0.25), 2)
LEANING = (0.15, 1.0)
"""The standard deviations of log temperature and of `unknown`'s gain that are expected before any run is seen."""
OLDER, REPLAYED = 0.5, 0.25
"""What a claim counts: of a round against the next one, and of a run that was repaired for against a first run."""
FOLDS, BINS, PER_BIN, RESAMPLES = 10, 10, 15, 500


class Run(NamedTuple):
    """The first problem of one run: the score of each cause before calibration, and which causes are right."""

    name: str
    scores: Mapping[str, float]
    cause: frozenset[str]
    source: str
    fold: str
    weight: float = 1.0
    certain: bool = False
    spoke: bool = True

    def ranked(self, temperature: float, unknown: float) -> list[tuple[str, float]]:
        """Its causes, likeliest first, with their probabilities; those of a certain one as they are."""
        if self.certain:
            temperature, unknown = 1.0, 0.0
        names = list(self.scores)
        if not names:
            return []
        scores = np.array([self.scores[name] + unknown * (name == "unknown") for name in names]) / temperature
        shares = np.exp(scores - scores.max())
        return sorted(zip(names, (shares / shares.sum()).tolist(), strict=True), key=lambda pair: -pair[1])


class Claim(NamedTuple):
    """The leading cause of one run, and whether it is right."""

    run: Run
    said: float
    first: bool
    three: bool


def claim(run: Run, temperature: float, unknown: float) -> Claim:
    """What is said of a run with these constants."""
    known = [pair for pair in run.ranked(temperature, unknown) if pair[0] != "unknown"]
    right = [name in run.cause for name, _ in known[:3]]
    return Claim(run, known[0][1] if known else 0.0, right[:1] == [True], any(right))


# ── where runs come from ─────────────────────────────────────────────────────────────────────────────────────────────


def of_the_clinic(path: Path) -> list[Run]:
    """The development runs of a results file whose cause is known; a fold is a share of the kinds."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    kinds = {line["kind"]: KINDS.get(line["kind"]) for line in lines if line["preset"] == "default"}
    known = [slug for slug, kind in kinds.items() if kind is not None and kind.split == "development" and kind.cause]
    folds = {slug: f"clinic {place % FOLDS}" for place, slug in enumerate(sorted(known))}
    runs = []
    for line in lines:
        kind = kinds.get(line["kind"])
        if line["preset"] == "default" and kind is not None and line["kind"] in folds and "report" in line:
            name = f"{line['kind']}/{line.get('arena', '')}"
            runs.append(_run(name, line["report"], kind.cause, "clinic", folds[line["kind"]], REPLAYED))
    return runs


def of_first_runs(path: Path) -> list[Run]:
    """The first runs that are kept; a fold is an author."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    newest = max((line["round"] for line in lines), default=0)
    return [
        Run(
            name=line["run"],
            scores=line["scores"],
            cause=frozenset(line["cause"]),
            source=f"first runs, round {line['round']}",
            fold=line["author"],
            weight=OLDER ** (newest - line["round"]),
            certain=line["certain"],
            spoke=line["spoke"],
        )
        for line in lines
    ]


def of_labels(path: Path) -> Iterator[Run]:
    """What the present version says of the labelled journals of a file."""
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        cause = [name for name in line.get("cause") or line.get("right") or () if name in NAMES]
        if cause and line.get("sick", True) and Path(line.get("journal", "")).exists():
            report = torchdoctor.diagnose(torchdoctor.read(line["journal"])).to_dict()
            author = str(line.get("author") or path.parent.name)
            yield _run(str(line["run"]), report, cause, "labels", author, REPLAYED)


def _run(
    name: str, report: Mapping[str, Any], cause: Iterable[str], source: str, fold: str, weight: float = 1.0
) -> Run:
    """The first problem of a report; its probabilities are turned back into the scores that they were made of."""
    ranked = report.get("diagnoses", ())
    first = [item for item in ranked if item["problem"] == ranked[0]["problem"]]
    certain = bool(first) and any(text.startswith("certain: ") for text in first[0]["evidence"])
    temperature, shifts = (1.0, {}) if certain else (calibration.TEMPERATURE, calibration.SHIFTS)
    scores = {
        item["cause"]: temperature * math.log(max(item["probability"], 1e-12)) - shifts.get(item["cause"], 0.0)
        for item in first
    }
    spoke = any(item["severity"] != "info" for item in report.get("symptoms", ()))
    return Run(name, scores, frozenset(cause), source, fold, weight, certain, spoke)


def kept(run: Run, number: int) -> str:
    """The line of `first_runs.jsonl` for a run that is seen for the first time."""
    scores = {name: round(score, 2) for name, score in sorted(run.scores.items(), key=lambda pair: -pair[1])}
    line = {"run": run.name, "author": run.fold, "round": number, "cause": sorted(run.cause)}
    return json.dumps({**line, "spoke": run.spoke, "certain": run.certain, "scores": scores})


# ── the fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def losses(runs: Sequence[Run]) -> Array:
    """By temperature, gain of `unknown` and run: -log of how likely the claim made its outcome."""
    table = np.zeros((len(TEMPERATURES), len(UNKNOWNS), len(runs)))
    for row, temperature in enumerate(TEMPERATURES):
        for column, unknown in enumerate(UNKNOWNS):
            made = [claim(run, float(temperature), float(unknown)) for run in runs]
            said = np.clip([item.said for item in made], 0.005, 0.995)
            table[row, column] = -np.log(np.where([item.first for item in made], said, 1 - said))
    return table


def fit(table: Array, weights: Array, moving: tuple[bool, bool]) -> tuple[float, float]:
    """The best temperature and gain of `unknown`; one that is not moving stays at nothing."""
    total = (table * weights).sum(axis=2)
    strange = [(np.log(TEMPERATURES) / LEANING[0]) ** 2 / 2, (UNKNOWNS / LEANING[1]) ** 2 / 2]
    total = total + strange[0][:, None] + strange[1][None, :]
    if not moving[0]:
        total[TEMPERATURES != 1.0] = np.inf
    if not moving[1]:
        total[:, UNKNOWNS != 0.0] = np.inf
    row, column = np.unravel_index(int(total.argmin()), total.shape)
    return float(TEMPERATURES[row]), float(UNKNOWNS[column])


def elsewhere(runs: Sequence[Run], table: Array, moving: tuple[bool, bool]) -> list[tuple[float, float]]:
    """For each run, the constants that are fitted without its fold."""
    folds, weights = np.array([run.fold for run in runs]), np.array([run.weight for run in runs])
    found = {fold: fit(table, np.where(folds == fold, 0.0, weights), moving) for fold in dict.fromkeys(folds.tolist())}
    return [found[run.fold] for run in runs]


def gain(runs: Sequence[Run], table: Array, moving: tuple[bool, bool]) -> tuple[float, float]:
    """By how much constants that are fitted elsewhere better the claims' likelihood, and the standard error of that."""
    plain = table[TEMPERATURES == 1.0, UNKNOWNS == 0.0][0]
    moved = np.array(
        [
            table[temperature == TEMPERATURES, unknown == UNKNOWNS][0][place]
            for place, (temperature, unknown) in enumerate(elsewhere(runs, table, moving))
        ]
    )
    weights = np.array([run.weight for run in runs])
    gains = weights * (plain - moved) / weights.mean()
    return float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(len(gains)))


# ── what is printed ──────────────────────────────────────────────────────────────────────────────────────────────────


def error(claims: Sequence[tuple[float, bool]], *, even: bool = False) -> float:
    """The expected calibration error over ten bins of what was said, or over bins of about as many claims each."""
    said, right = np.array([item[0] for item in claims]), np.array([item[1] for item in claims], dtype=float)
    if even:
        bins = np.argsort(np.argsort(said)) * max(len(claims) // PER_BIN, 1) // len(claims)
    else:
        bins = np.minimum((said * BINS).astype(int), BINS - 1)
    off = [abs(float((said - right)[bins == number].sum())) for number in set(bins.tolist())]
    return sum(off) / len(claims)


def interval(claims: Sequence[tuple[float, bool]]) -> tuple[float, float, float]:
    """The error's 95 % interval over resampled claims, and what luck makes of it were each as likely as it says."""
    dice = random.Random(0)
    drawn = sorted(error(dice.choices(claims, k=len(claims))) for _ in range(RESAMPLES))
    luck = [error([(said, dice.random() < said) for said, _ in claims]) for _ in range(RESAMPLES)]
    return drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1], sum(luck) / RESAMPLES


def show(title: str, runs: Sequence[Run], constants: Sequence[tuple[float, float]]) -> None:
    """Root causes and calibration of one set of runs, by how sure the claims were."""
    made = [claim(run, *pair) for run, pair in zip(runs, constants, strict=True)]
    spoken = [(item.said, item.first) for item in made if item.run.spoke and item.run.scores]
    if not spoken:
        return
    low, high, luck = interval(spoken)
    first, three = (sum(item) for item in zip(*((item.first, item.three) for item in made), strict=True))
    print(f"{title}: {len(made)} runs, {len(spoken)} claims; cause first {first}, among three {three}")
    text = f"{error(spoken):.3f} ({low:.3f} .. {high:.3f}), {error(spoken, even=True):.3f} in even bins"
    print(f"  calibration error {text}, {luck:.3f} by luck alone")
    cells = []
    for place in range(BINS // 2):
        inside = [item for item in spoken if min(int(item[0] * BINS / 2), BINS // 2 - 1) == place]
        if inside:
            said, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            cells.append(f"{said:.0%} -> {right:.0%} ({len(inside)})")
    print("  said -> right: " + ", ".join(cells))


def written(source: str, temperature: float, unknown: float) -> str:
    """The source of `calibration.py` with new constants.

    >>> print(written('TEMPERATURE: float = 1.0\\nSHIFTS: Mapping[str, float] = {}\\n', 1.1, -1.5))
    TEMPERATURE: float = 1.1
    SHIFTS: Mapping[str, float] = {"unknown": -1.5}
    <BLANKLINE>
    """
    body = f'{{"unknown": {unknown}}}' if unknown else "{}"
    source = re.sub(r"(?m)^TEMPERATURE: float = .*$", f"TEMPERATURE: float = {temperature}", source)
    return re.sub(r"(?ms)^SHIFTS: Mapping\[str, float\] = \{.*?\}$", f"SHIFTS: Mapping[str, float] = {body}", source)


def main() -> None:
    """Fit, compare, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what `torchdoctor clinic bench` wrote")
    parser.add_argument("--labels", type=Path, nargs="+", default=[], help="files of labelled journals")
    parser.add_argument("--keep", type=int, metavar="ROUND", help="add the labelled journals to the first runs")
    parser.add_argument("--write", action="store_true", help="put the constants into diagnoses/calibration.py")
    options = parser.parse_args()
    labelled = [run for path in options.labels for run in of_labels(path)]
    if options.keep is not None:
        with FIRST_RUNS.open("a", encoding="utf-8") as file:
            file.writelines(kept(run, options.keep) + "\n" for run in labelled)
        labelled = []
    everything = [*of_first_runs(FIRST_RUNS), *labelled, *of_the_clinic(options.results)]
    runs = [run for run in everything if run.spoke and not run.certain and run.scores]
    table = losses(runs)
    moving = (False, False)
    for title, more in (("unknown", (False, True)), ("temperature", (True, False)), ("both", (True, True))):
        better, doubt = gain(runs, table, more)
        print(f"{title}: {better:+.4f} nats a claim, on folds left out (standard error {doubt:.4f})")
        # A second number has to earn its place beside the first.
        if better > doubt and better > (gain(runs, table, moving)[0] + doubt if any(moving) else 0.0):
            moving = more
    chosen = fit(table, np.array([run.weight for run in runs]), moving)
    now = calibration.TEMPERATURE, calibration.SHIFTS.get("unknown", 0.0)
    by_fold = dict(zip([run.fold for run in runs], elsewhere(runs, table, moving), strict=True))
    for source in dict.fromkeys(run.source for run in everything):
        own = [run for run in everything if run.source == source]
        print()
        show(f"{source}, uncalibrated", own, [(1.0, 0.0)] * len(own))
        show(f"{source}, as it is", own, [now] * len(own))
        show(f"{source}, fitted elsewhere", own, [by_fold.get(run.fold, chosen) for run in own])
    print(f"\nTEMPERATURE = {chosen[0]}\nSHIFTS = {{'unknown': {chosen[1]}}}")
    if options.write:
        path = Path(calibration.__file__)
        path.write_text(written(path.read_text(encoding="utf-8"), *chosen), encoding="utf-8")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
