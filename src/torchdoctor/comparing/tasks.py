"""Whether runs can share one task: scores of different tasks cannot be ranked.

>>> from torchdoctor.comparing.summary import Curve
>>> def run(name, *losses):
...     return Summary(name, name, 3, curves={"loss": Curve(np.arange(1, 1 + len(losses)), np.array(losses))})
>>> unlike([run("a", 2.31, 1.9), run("b", 2.30, 2.1)])
''
>>> unlike([run("cifar", 2.31, 1.9), run("wmt", 11.6, 9.0)])
'training begins at a loss of 2.31 in cifar and of 11.6 in wmt'
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from torchdoctor.comparing.summary import Summary
from torchdoctor.records import names_text, number_text

DATA = re.compile(r"(^|[._/ -])(task|tasks|dataset|datasets|data|corpus|benchmark)($|[._/ -])", re.IGNORECASE)
"""Settings that name the task or its data."""
AT_ONCE, LATER = 2.0, 4.0
"""Ratio of first losses that no setting explains: for untrained models, and for logs that begin later."""
PADDED = 1.1
"""Ratio up to which numbers of classes count as the same task: vocabularies may be padded."""
UNTRAINED = 1
"""The last step whose loss is that of the untrained model."""
EARLY, NOISE = 50, 3.0
"""Number of first losses used to measure noise, and how many times the noise the first loss may be off."""


def unlike(summaries: Sequence[Summary]) -> str:
    """Why the runs seem to have different tasks; empty if nothing suggests it."""
    return _by_name(summaries) or _by_facts(summaries) or _by_metrics(summaries) or _by_first_loss(summaries)


def _by_facts(summaries: Sequence[Summary]) -> str:
    """Different facts about the loss or the data, as watched runs record them."""
    for name in dict.fromkeys(name for summary in summaries for name in summary.task):
        known = [(summary.run, summary.task[name]) for summary in summaries if name in summary.task]
        first, value = known[0]
        for run, other in known[1:]:
            if isinstance(value, int) and isinstance(other, int):
                apart = max(value, other) > PADDED * min(value, other)
            else:
                apart = value != other
            if apart:
                return f"the {name} is {value} in {first} and {other} in {run}"
    return ""


def _by_name(summaries: Sequence[Summary]) -> str:
    names = dict.fromkeys(name for summary in summaries for name in summary.settings if DATA.search(name))
    for name in names:
        values = [summary.settings.get(name) for summary in summaries]
        words = list(dict.fromkeys(value for value in values if isinstance(value, str)))
        if len(words) > 1 and all(isinstance(value, str) for value in values):
            return f"their {name} differs: {names_text(words, 4)}"
    return ""


def _by_metrics(summaries: Sequence[Summary]) -> str:
    """Validation metrics of two runs that have nothing in common."""
    measured = [(summary, {name for name in summary.curves if _is_metric(name)}) for summary in summaries]
    known = [(summary, names) for summary, names in measured if names]
    for summary, names in known[1:]:
        first, others = known[0]
        if not names & others:
            here, there = (sorted(name.removeprefix("val_") for name in found)[0] for found in (others, names))
            return f"{first.run} is measured by {here}, {summary.run} by {there}"
    return ""


def _is_metric(name: str) -> bool:
    return name.startswith("val_") and not name.endswith("loss")


def _by_first_loss(summaries: Sequence[Summary]) -> str:
    """A gap between the first losses of two groups of runs: settings change first losses, but leave no gap."""
    firsts = sorted(
        (found for summary in summaries if (found := _first(summary)) is not None), key=lambda item: item[0]
    )
    untrained = all(summary.clock == "step" and step <= UNTRAINED for _, step, _, summary in firsts)
    limit = math.log(AT_ONCE if untrained else LATER)
    for (lower, _, calm, low), (higher, _, rough, high) in pairwise(firsts):
        if higher - lower > limit + NOISE * (calm + rough):
            levels = f"{number_text(math.exp(lower))} in {low.run} and of {number_text(math.exp(higher))} in {high.run}"
            return f"training begins at a loss of {levels}"
    return ""


def _first(summary: Summary) -> tuple[float, int, float, Summary] | None:
    """The log of the first loss, its step, the typical change between losses, and the run; None without a loss."""
    curve = summary.curve("loss")
    if curve is None or not 0 < curve.values[0] < math.inf:
        return None
    early = curve.values[:EARLY]
    levels = np.log(early[np.isfinite(early) & (early > 0)])
    jitter = float(np.median(np.abs(np.diff(levels)))) if levels.size > 2 else 0.0
    return float(levels[0]), int(curve.steps[0]), jitter, summary
