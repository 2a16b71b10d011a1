"""Fits the constants of `diagnoses/calibration.py`, and says what that gains.

    torchdoctor clinic bench --results RESULTS.jsonl
    python benchmarks/calibrate.py RESULTS.jsonl                           # prints the constants, before and after
    python benchmarks/calibrate.py RESULTS.jsonl --write                   # and puts them into the source
    python benchmarks/calibrate.py RESULTS.jsonl --labels LABELS.jsonl     # with journals whose cause is known
    python benchmarks/calibrate.py RESULTS.jsonl --labels LABELS.jsonl --keep 8    # the first sight of an eighth round

Causes were written beside the clinic's development kinds, and find them easier than others. The honest measure is a
*first run*: one whose cause was declared beforehand, by somebody who wrote no cause for it, as it was diagnosed at
first sight. `first_runs.jsonl`, beside this file, holds those of seven rounds: `run`, `author`, `round`, `cause` (the
right ones; none where the run was healthy and something was raised), `spoke` (whether anything was raised at warning
or above), `certain`, and `evidence`: by cause, of the problem that its report put first, the prior and the weight of
each piece of evidence. Of rounds one to three only their sums are known. Evidence is as it was then, priors of the
first four rounds as they were after the fourth. What they taught was built in after each round. So a round counts two
thirds of the next one, and what is replayed now (the clinic's runs, and labelled journals) a quarter of a first run.

A file of labels has one line a run: `run`, `journal` (its path), `sick`, `cause` (or `right`, of which the causes are
taken) and, if known, `author`. With `--keep`, what the present version says of these journals is added to
`first_runs.jsonl`; that is honest only before anything is repaired for their sake.

A claim is the leading cause of the first problem, `unknown` left out, with its probability; on a healthy run it is
wrong. Four numbers are fitted, by the claims' likelihood. One stays as it is in the package unless moving it clearly
helps on authors, and kinds, that it was not fitted on. Problems with a certain cause are left alone.
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

from torchdoctor.clinic.kinds import KINDS
from torchdoctor.diagnoses import CAUSES, calibration
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.ranking import rank_causes
from torchdoctor.offline import examine
from torchdoctor.settings import Settings
from torchdoctor.sources import read

Array = NDArray[np.float64]
FIRST_RUNS = Path(__file__).with_name("first_runs.jsonl")
NAMES = frozenset(cause.name for cause in CAUSES)
OLDER, REPLAYED = 0.67, 0.25
"""What a claim counts: of a round against the next one, and of a run that was repaired for against a first run."""
FOLDS, BINS, PER_BIN, RESAMPLES = 5, 10, 15, 500
KEPT = 8
"""Causes of a first run that are kept: what comes after them has no share to speak of."""


class Constants(NamedTuple):
    """What is fitted; the defaults leave scores as they are."""

    unknown: float = 0.0
    reserve: float = 0.0
    echo: float = 1.0
    temperature: float = 1.0


GRID: Mapping[str, Array] = {
    "unknown": np.round(np.arange(-2.0, 1.01, 0.25), 2),
    "reserve": np.round(np.arange(0.0, 0.21, 0.02), 2),
    "echo": np.round(np.arange(0.0, 1.01, 0.1), 2),
    "temperature": np.round(np.arange(0.6, 1.61, 0.1), 2),
}
NONE = Constants()
LEANING = Constants(unknown=1.0, reserve=0.1, echo=0.5, temperature=0.2)
"""By how much they are expected to move before any run is seen, as standard deviations."""


class Run(NamedTuple):
    """The first problem of one run: prior and evidence of each cause, and which causes are right."""

    name: str
    evidence: Mapping[str, Sequence[float]]
    cause: frozenset[str]
    source: str
    fold: str
    weight: float = 1.0
    certain: bool = False
    spoke: bool = True

    def ranked(self, constants: Constants) -> list[tuple[str, float]]:
        """Its causes, likeliest first, with their probabilities; those of a certain one as they are."""
        unknown, reserve, echo, temperature = Constants() if self.certain else constants
        names = list(self.evidence)
        if not names:
            return []
        parts = parts_of([self])
        scores = (parts.firm[0] + echo * parts.echoes[0] + unknown * parts.unknown[0]) / temperature
        shares = np.exp(scores - scores.max())
        shares = (1 - reserve) * shares / shares.sum() + reserve * parts.unknown[0]
        return sorted(zip(names, shares.tolist(), strict=True), key=lambda pair: -pair[1])


class Claim(NamedTuple):
    """The leading cause of one run, and whether it is right."""

    run: Run
    said: float
    first: bool
    three: bool


def claim(run: Run, constants: Constants) -> Claim:
    """What is said of a run with these constants."""
    known = [pair for pair in run.ranked(constants) if pair[0] != "unknown"]
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
            runs.append(_told(name, line["report"], kind.cause, folds[line["kind"]]))
    return runs


def of_first_runs(path: Path) -> list[Run]:
    """The first runs that are kept; a fold is an author."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    newest = max((line["round"] for line in lines), default=0)
    return [
        Run(
            name=line["run"],
            evidence=line["evidence"],
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
        sick = line.get("sick", not line.get("healthy", False))
        cause = [name for name in line.get("cause") or line.get("right") or () if name in NAMES] if sick else []
        if (cause or not sick) and Path(line.get("journal", "")).exists():
            author = str(line.get("author") or path.parent.name)
            run = _seen(str(line["run"]), Path(line["journal"]), cause, author)
            if sick or run.spoke:
                yield run


def _seen(name: str, journal: Path, cause: Iterable[str], author: str) -> Run:
    """The first problem of a journal, with all that was weighed."""
    examination = examine(read(journal), Settings.load(None))
    spoke = any(item.severity != "info" for item in examination.report().symptoms)
    chart = examination.judged()
    every = [item() for item in CAUSES]
    ranked = rank_causes(chart, every)
    certain = bool(ranked) and any(text.startswith("certain: ") for text in ranked[0].evidence)
    evidence: dict[str, list[float]] = {}
    if certain:  # nothing of it is calibrated
        evidence = {item.cause: [math.log(max(item.probability, 1e-12))] for item in ranked if item.problem == 1}
    elif ranked:
        problem = Problem(tuple(chart.episodes[place] for place in ranked[0].episodes))
        causes = [item for item in every if problem.has(*item.explains)]
        evidence = {item.name: [item.prior, *(one.weight for one in item.weigh(chart, problem))] for item in causes}
    return Run(name, evidence, frozenset(cause), "labels", author, REPLAYED, certain, spoke)


def _told(name: str, report: Mapping[str, Any], cause: Iterable[str], fold: str) -> Run:
    """The first problem of a report; its probabilities are turned back into the scores that they were made of."""
    ranked = report.get("diagnoses", ())
    first = [item for item in ranked if item["problem"] == ranked[0]["problem"]]
    certain = bool(first) and any(text.startswith("certain: ") for text in first[0]["evidence"])
    constants = Constants() if certain else Constants(*now()[:2], temperature=now().temperature)
    evidence = {}
    for item in first:
        extra = constants.reserve if item["cause"] == "unknown" else 0.0
        shift = constants.unknown if item["cause"] == "unknown" else 0.0
        score = constants.temperature * math.log(max(item["probability"] - extra, 1e-12)) - shift
        evidence[item["cause"]] = [score]
    spoke = any(item["severity"] != "info" for item in report.get("symptoms", ()))
    return Run(name, evidence, frozenset(cause), "clinic", fold, REPLAYED, certain, spoke)


def now() -> Constants:
    """The constants of the package."""
    unknown = calibration.SHIFTS.get("unknown", 0.0)
    return Constants(unknown, calibration.RESERVE, calibration.ECHO, calibration.TEMPERATURE)


def kept(run: Run, number: int) -> str:
    """The line of `first_runs.jsonl` for a run that is seen for the first time."""
    best = sorted(run.evidence, key=lambda name: -sum(run.evidence[name]))
    names = [name for place, name in enumerate(best) if place < KEPT or name == "unknown"]
    evidence = {name: [round(weight, 2) for weight in run.evidence[name]] for name in names}
    line = {"run": run.name, "author": run.fold, "round": number, "cause": sorted(run.cause)}
    return json.dumps({**line, "spoke": run.spoke, "certain": run.certain, "evidence": evidence})


# ── the fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Parts(NamedTuple):
    """By run and cause: prior, strongest evidence and what speaks against; what else speaks for it; and who is who."""

    firm: Array
    echoes: Array
    unknown: Array
    right: Array
    weight: Array


def parts_of(runs: Sequence[Run]) -> Parts:
    """The runs as columns."""
    widest = max(len(run.evidence) for run in runs)
    firm = np.full((len(runs), widest), -np.inf)
    echoes, unknown, right = (np.zeros(firm.shape) for _ in range(3))
    for row, run in enumerate(runs):
        for column, (name, (prior, *weights)) in enumerate(run.evidence.items()):
            strongest = max([*weights, 0.0])
            firm[row, column] = prior + strongest + sum(weight for weight in weights if weight < 0)
            echoes[row, column] = sum(weight for weight in weights if weight > 0) - strongest
            unknown[row, column], right[row, column] = name == "unknown", name in run.cause
    return Parts(firm, echoes, unknown, right, np.array([run.weight for run in runs]))


def losses(parts: Parts, constants: Constants) -> Array:
    """By run, -log of how likely the claim made its outcome."""
    scores = (parts.firm + constants.echo * parts.echoes + constants.unknown * parts.unknown) / constants.temperature
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares *= (1 - constants.reserve) / shares.sum(axis=1, keepdims=True)
    shares[parts.unknown > 0] = 0
    rows, leader = np.arange(len(shares)), shares.argmax(axis=1)
    said = np.clip(shares[rows, leader], 0.005, 0.995)
    made: Array = -np.log(np.where(parts.right[rows, leader] > 0, said, 1 - said))
    return made


def fit(parts: Parts, weights: Array, moving: Sequence[str], start: Constants = NONE) -> Constants:
    """The best constants, one after the other until none moves; those that are not to move stay where they start."""
    best, lowest = start, float((losses(parts, start) * weights).sum())
    while True:
        before = best
        for name in moving:
            for value in GRID[name]:
                tried = best._replace(**{name: float(value)})
                found = float((losses(parts, tried) * weights).sum()) + _strangeness(tried, start)
                if found < lowest:
                    best, lowest = tried, found
        if best == before:
            return best


def _strangeness(constants: Constants, start: Constants) -> float:
    away = [here - there for here, there in zip(constants, start, strict=True)]
    return sum((item / usual) ** 2 / 2 for item, usual in zip(away, LEANING, strict=True))


def elsewhere(runs: Sequence[Run], parts: Parts, moving: Sequence[str], start: Constants = NONE) -> list[Constants]:
    """For each run, the constants that are fitted without its fold."""
    folds = np.array([run.fold for run in runs])
    found = {
        fold: fit(parts, np.where(folds == fold, 0.0, parts.weight), moving, start)
        for fold in dict.fromkeys(folds.tolist())
    }
    return [found[run.fold] for run in runs]


def abroad(runs: Sequence[Run], parts: Parts, moving: Sequence[str], start: Constants = NONE) -> Array:
    """By run, what its claim loses with constants that are fitted elsewhere."""
    constants = elsewhere(runs, parts, moving, start)
    table = {item: losses(parts, item) for item in set(constants)}
    return np.array([table[item][place] for place, item in enumerate(constants)])


def gain(before: Array, after: Array, weights: Array) -> tuple[float, float]:
    """By how much claims are likelier than before, and the standard error of that."""
    gains = weights * (before - after) / weights.mean()
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


def show(title: str, runs: Sequence[Run], constants: Sequence[Constants]) -> None:
    """Root causes and calibration of one set of runs, by how sure the claims were."""
    made = [claim(run, item) for run, item in zip(runs, constants, strict=True)]
    spoken = [(item.said, item.first) for item in made if item.run.spoke and item.run.evidence]
    if not spoken:
        return
    low, high, luck = interval(spoken)
    sick = [item for item in made if item.run.cause]
    first, three = (sum(getattr(item, name) for item in sick) for name in ("first", "three"))
    print(f"{title}: {len(sick)} sick runs, {len(spoken)} claims; cause first {first}, among three {three}")
    text = f"{error(spoken):.3f} ({low:.3f} .. {high:.3f}), {error(spoken, even=True):.3f} in even bins"
    print(f"  calibration error {text}, {luck:.3f} by luck alone")
    cells = []
    for place in range(BINS // 2):
        inside = [item for item in spoken if min(int(item[0] * BINS / 2), BINS // 2 - 1) == place]
        if inside:
            said, right = (sum(column) / len(inside) for column in zip(*inside, strict=True))
            cells.append(f"{said:.0%} -> {right:.0%} ({len(inside)})")
    print("  said -> right: " + ", ".join(cells))


def written(source: str, constants: Constants) -> str:
    """The source of `calibration.py` with new constants.

    >>> print(written('ECHO: float = 1.0\\nSHIFTS: Mapping[str, float] = {}\\n', Constants(-1.5, 0.1, 0.5)))
    ECHO: float = 0.5
    SHIFTS: Mapping[str, float] = {"unknown": -1.5}
    <BLANKLINE>
    """
    for name in ("temperature", "echo", "reserve"):
        line = f"{name.upper()}: float = "
        source = re.sub(f"(?m)^{line}.*$", f"{line}{getattr(constants, name)}", source)
    body = f'{{"unknown": {constants.unknown}}}' if constants.unknown else "{}"
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
    runs = [run for run in everything if run.spoke and not run.certain and run.evidence]
    parts = parts_of(runs)
    moving: list[str] = []
    level = losses(parts, now())
    for name in Constants._fields:  # one after the other: each has to earn its place beside those before it
        lost = abroad(runs, parts, [*moving, name], now())
        better, doubt = gain(level, lost, parts.weight)
        print(f"{name}: {better:+.4f} nats a claim, on folds left out (standard error {doubt:.4f})")
        if better > doubt:
            moving, level = [*moving, name], lost
    chosen = fit(parts, parts.weight, moving, now())
    by_fold = dict(zip([run.fold for run in runs], elsewhere(runs, parts, moving, now()), strict=True))
    for source in dict.fromkeys(run.source for run in everything):
        own = [run for run in everything if run.source == source]
        print()
        show(f"{source}, uncalibrated", own, [NONE] * len(own))
        show(f"{source}, as it is", own, [now()] * len(own))
        show(f"{source}, fitted elsewhere", own, [by_fold.get(run.fold, chosen) for run in own])
    print(f"\n{chosen}")
    if options.write:
        path = Path(calibration.__file__)
        path.write_text(written(path.read_text(encoding="utf-8"), chosen), encoding="utf-8")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
