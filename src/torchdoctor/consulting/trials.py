"""The exact commands that test a change: train with and without it for a while, then compare."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

SPANS = {"step": (100, 1000), "epoch": (5, 100), "row": (20, 1000)}
"""By unit of the run: the shortest and the longest test of a fix."""
UNKNOWN_ONSET = {"step": 200, "epoch": 10, "row": 50}
"""By unit of the run: the assumed onset of the trouble if nobody knows it, to choose the length of a test."""
MARGIN = 1.5
"""Multiple of the onset step that a test must reach."""


@dataclass(frozen=True)
class Test:
    """A comparison of two short runs that differ in one change."""

    steps: int
    """Length of each run, in the run's own unit."""
    onset: int
    """The step at which the trouble began."""
    clock: str = "step"
    """The unit of the run: a log with one row per epoch shows nothing within 100 steps."""
    script: str = "train.py"
    before: str = "runs/before"
    after: str = "runs/after"
    patch: str = ""
    """The patch file; empty if the change is made by hand or by settings."""
    settings: str = ""
    """The settings file."""

    @property
    def from_checkpoint(self) -> bool:
        """Whether the trouble begins too late for a test that starts from scratch."""
        return self.onset > SPANS[self.clock][1]

    @property
    def length(self) -> str:
        """The length of each run, in words."""
        return f"{self.steps} {self.clock}s" + (" of the log" if self.clock == "row" else "")


def plan_test(onset: int | None, clock: str = "step", **known: str) -> Test:
    """How long to train: beyond the onset, but within 100 to 1,000 steps, or 5 to 100 epochs.

    >>> plan_test(300).steps, plan_test(2).steps, plan_test(50_000).steps, plan_test(16, "epoch").length
    (450, 100, 1000, '24 epochs')
    """
    began = UNKNOWN_ONSET[clock] if onset is None else onset
    shortest, longest = SPANS[clock]
    return Test(steps=int(min(max(MARGIN * began, shortest), longest)), onset=began, clock=clock, **known)


def commands(test: Test, code: str) -> tuple[tuple[str, str], ...]:
    """The commands in order, each with its purpose; `code` is the change, if it is made by hand."""
    script = shlex.quote(test.script)
    start = f"from a checkpoint before {test.clock} {test.onset}, " if test.from_checkpoint else ""
    watch = "recorded with Doctor(model, optimizer, journal={!r}) or by your script's own log"
    found = [
        (
            f"python {script}  # {test.length}",
            f"Train without the change: {start}{test.length} with a fixed seed, {watch.format(test.before)}.",
        )
    ]
    if test.patch:
        name = shlex.quote(test.patch)
        found.append((f"git apply {name}", f"The change: read the patch, then apply it (or: patch -p1 < {name})."))
    elif test.settings:
        found.append((f"cat {shlex.quote(test.settings)}", "The change: give these settings to your script."))
    else:
        found.append((code.splitlines()[0], "Make the change by hand, and change nothing else."))
    found += [
        (
            f"python {script}  # {test.length}",
            f"Train with the change: the same {test.clock}s, seed and data, {watch.format(test.after)}.",
        ),
        (f"torchdoctor compare {test.before} {test.after}", "See what differs."),
        (
            f"torchdoctor consult --before {test.before} --after {test.after}",
            "See whether it helped; this closes the case of the change if one is open.",
        ),
    ]
    return tuple(found)
