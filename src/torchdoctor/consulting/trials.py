"""The exact commands that test a change: train both for a while, then compare.

This is the place of the command that will do it by itself: what it needs is in `Test`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

SPANS = {"step": (100, 1000), "epoch": (5, 100), "row": (20, 1000)}
"""By what a run counts: the shortest and the longest stretch that a fix is judged over."""
UNKNOWN_ONSET = {"step": 200, "epoch": 10, "row": 50}
"""Where the trouble is taken to have begun, for the length of a test, if nobody knows."""
MARGIN = 1.5
"""How far beyond the onset of the trouble a test must go."""


@dataclass(frozen=True)
class Test:
    """A comparison of two short runs that differ in one change."""

    steps: int
    """How long each of them is, in the run's own unit."""
    onset: int
    """Where the trouble began."""
    clock: str = "step"
    """What the run counts: a log that has one row an epoch shows nothing within 100 steps."""
    script: str = "train.py"
    before: str = "runs/before"
    after: str = "runs/after"
    patch: str = ""
    """The file of the patch; empty where the change is made by hand or by settings."""
    settings: str = ""
    """The file of the settings."""

    @property
    def from_checkpoint(self) -> bool:
        """Whether the trouble begins too late to be reached from the start."""
        return self.onset > SPANS[self.clock][1]

    @property
    def length(self) -> str:
        """How long each run is, in words."""
        return f"{self.steps} {self.clock}s" + (" of the log" if self.clock == "row" else "")


def plan_test(onset: int | None, clock: str = "step", **known: str) -> Test:
    """How long to train: beyond the onset, within 100 to 1,000 steps, or 5 to 100 epochs.

    >>> plan_test(300).steps, plan_test(2).steps, plan_test(50_000).steps, plan_test(16, "epoch").length
    (450, 100, 1000, '24 epochs')
    """
    began = UNKNOWN_ONSET[clock] if onset is None else onset
    shortest, longest = SPANS[clock]
    return Test(steps=int(min(max(MARGIN * began, shortest), longest)), onset=began, clock=clock, **known)


def commands(test: Test, code: str) -> tuple[tuple[str, str], ...]:
    """The commands in order, each with what it is for; `code` is the change, where it is made by hand."""
    script = shlex.quote(test.script)
    start = f"from a checkpoint before {test.clock} {test.onset}, " if test.from_checkpoint else ""
    watch = "Doctor(model, optimizer, journal={!r}), or the log that your script writes"
    found = [
        (
            f"python {script}  # {test.length}",
            f"Before, as it is: {start}{test.length} with a fixed seed and {watch.format(test.before)}.",
        )
    ]
    if test.patch:
        name = shlex.quote(test.patch)
        found.append((f"git apply {name}", f"The change: read it, then apply it (or: patch -p1 < {name})."))
    elif test.settings:
        found.append((f"cat {shlex.quote(test.settings)}", "The change: give these settings to your script."))
    else:
        found.append((code.splitlines()[0], "The change, by hand; nothing else."))
    found += [
        (
            f"python {script}  # {test.length}",
            f"After: the same {test.clock}s, seed and data, {watch.format(test.after)}.",
        ),
        (f"torchdoctor compare {test.before} {test.after}", "What is different."),
        (f"torchdoctor consult --before {test.before} --after {test.after}", "Whether it helped, for the casebook."),
    ]
    return tuple(found)
