"""Verdicts on real public logs whose outcome is known, side by side with the package runmedic.

    python benchmarks/real_logs.py                              # $TORCHDOCTOR_DATA/real_logs
    python benchmarks/real_logs.py --logs FOLDER --half development

The folder holds LABELS.csv with the columns ``file`` and ``expected``: *healthy*, *sick:* with the slugs that are
right, or *arguable*. A healthy log is right when nothing is raised at warning or above; a sick one when a right slug is
among the symptoms of warning or above or leads a problem of theirs; an arguable one is shown, not counted. runmedic
knows fewer names: its finding is right on a sick log when it is one that could mean the same. Prints a line a log, then
the shares with their intervals.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torchdoctor import diagnose
from torchdoctor.clinic.scoring import share
from torchdoctor.clinic.tables import share_text
from torchdoctor.errors import TorchDoctorError
from torchdoctor.records import INFORMATIVE
from torchdoctor.reports.report import Report
from torchdoctor.sources import read_all

RUNMEDIC = {
    "non_finite": {"nan-or-inf", "numeric-precision"},
    "divergence": {"loss-divergence", "lr-too-high", "not-learning", "loss-plateau"},
    "loss_spikes": {"loss-spike", "loss-oscillation", "gradient-explosion"},
    "no_learning": {"not-learning", "loss-plateau", "underfitting", "slow-learning", "lr-too-low"},
    "overfitting": {"overfitting", "memorization", "validation-anomaly", "train-val-mismatch"},
    "grad_spikes": {"gradient-explosion"},
    "constant_lr_plateau": {"schedule-error", "loss-plateau"},
}
"""What a check of runmedic may mean in our words."""


class Label(NamedTuple):
    """One line of LABELS.csv."""

    file: str
    expected: str
    right: frozenset[str]


class Verdict(NamedTuple):
    """What was said of a log."""

    raised: tuple[str, ...]
    """At warning or above."""
    meant: frozenset[str]
    """Every slug by which it may be right."""
    noted: tuple[str, ...] = ()
    error: str = ""

    def is_right(self, label: Label) -> bool:
        """Whether a healthy log was left in peace, or a sick one was found."""
        if label.expected == "healthy":
            return not self.raised and not self.error
        return bool(self.meant & label.right)


def main() -> None:
    """Judge every labelled log and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path(os.environ.get("TORCHDOCTOR_DATA", "data")) / "real_logs")
    parser.add_argument("--half", default="", help="only lines whose column 'half' says this")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--quiet", action="store_true", help="only what is wrong or arguable, and the shares")
    arguments = parser.parse_args()
    right: dict[str, list[bool]] = {"healthy": [], "sick": []}
    theirs: dict[str, list[bool]] = {"healthy": [], "sick": []}
    seconds = 0.0
    for label in labels(arguments.logs, arguments.half, arguments.only):
        began = time.perf_counter()
        ours = judge(arguments.logs / label.file)
        seconds += time.perf_counter() - began
        other = runmedic(arguments.logs / label.file)
        counted = label.expected in right
        if counted:
            right[label.expected].append(ours.is_right(label))
            theirs[label.expected].append(other.is_right(label))
        mark = ("right" if ours.is_right(label) else "WRONG") if counted else "  -  "
        if not arguments.quiet or mark != "right":
            said = ours.error or ", ".join(ours.raised) or "nothing"
            noted = f"   ({', '.join(ours.noted)})" if ours.noted else ""
            print(f"{mark}  {label.expected:<8} {label.file[-64:]:<64} {said}{noted}")
            print(f"{'':79} runmedic: {other.error or ', '.join(other.raised) or 'nothing'}", flush=True)
    print()
    installed = find_spec("runmedic") is not None
    for name, scores in (("torchdoctor", right), ("runmedic", theirs))[: 1 + installed]:
        both = [*scores["healthy"], *scores["sick"]]
        print(f"{name}: verdict right on {share_text(share(sum(both), len(both)))}   [goal 95 %]")
        for kind, judged in scores.items():
            print(f"    {kind}: {share_text(share(sum(judged), len(judged)))}")
    print(("" if installed else "runmedic is not installed. ") + f"Reading and judging took {seconds:.1f} s")


def labels(folder: Path, half: str = "", only: str = "") -> Iterator[Label]:
    """The lines of LABELS.csv that are asked for."""
    with (folder / "LABELS.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            if (half and line.get("half") != half) or only not in line["file"]:
                continue
            kind, _, slugs = line["expected"].partition(":")
            yield Label(line["file"], kind.strip(), frozenset(slugs.split()))


def judge(path: Path) -> Verdict:
    """What this package says; a log that holds several runs is as sick as the worst of them."""
    try:
        reports = [diagnose(run) for run in read_all(path)]
    except TorchDoctorError as error:
        return Verdict((), frozenset(), (), f"unreadable: {error}")
    raised = {item.name: None for report in reports for item in grave(report)}
    noted = {item.name: None for report in reports for item in report.symptoms if item.severity == "info"}
    causes = {item.cause for report in reports for item in leading(report)}
    return Verdict(tuple(raised), frozenset({*raised, *causes}), tuple(name for name in noted if name not in raised))


def grave(report: Report) -> list[Any]:
    """The symptoms of warning or above that say something of the run's health."""
    return [item for item in report.symptoms if item.severity != "info" and item.name not in INFORMATIVE]


def leading(report: Report) -> Iterator[Any]:
    """The first cause of every problem that holds a symptom of warning or above."""
    names = {item.name for item in grave(report)}
    seen: set[int] = set()
    for item in report.diagnoses:
        if item.problem not in seen and names.intersection(item.symptoms):
            yield item
        seen.add(item.problem)


def runmedic(path: Path) -> Verdict:
    """What runmedic says, where it is installed."""
    try:
        loaders, roles, checks = (import_module(f"runmedic.{name}") for name in ("loaders", "roles", "checks"))
    except ImportError:
        return Verdict((), frozenset(), (), "not installed")
    try:
        found = [item for run in loaders.load(str(path)) for item in checks.run_checks(run, roles.detect(run))]
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever it stumbles over
        return Verdict((), frozenset(), (), f"failed: {type(error).__name__}")
    raised = tuple(dict.fromkeys(item.check for item in found if item.severity != "info"))
    return Verdict(raised, frozenset(slug for name in raised for slug in RUNMEDIC.get(name, ())))


if __name__ == "__main__":
    main()
