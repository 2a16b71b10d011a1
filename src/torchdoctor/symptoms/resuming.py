"""What was not restored when a run was resumed: the optimizer state, or the position in the schedule."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import number_text

LEAP = 3.0
"""Factor by which the learning rate must rise when a run is resumed for its schedule to count as restarted."""
OLD = 0.3
"""Share of layers that look as if never trained below which the model counts as trained before."""
SAME = 0.02
"""Relative difference up to which a learning rate equals the first one of the run."""


class Resume(NamedTuple):
    """Where a run was resumed, and what was not restored."""

    step: int
    lost: bool
    """Whether the optimizer state was empty."""
    leap: tuple[float, float] | None
    """The learning rate before and after, if it jumped."""
    same: bool
    """Whether the resumed run starts with the first learning rate of the whole run: the schedule starts again."""

    @property
    def text(self) -> str:
        """What was not restored, as the beginning of a sentence."""
        parts = ["the optimizer state is empty"] if self.lost else []
        if self.leap is not None:
            before, now = map(number_text, self.leap)
            parts.append(f"the learning rate went from {before} back to {now}")
        return f"the run was resumed before step {self.step}, and {' and '.join(parts)}"


def resume(chart: Chart) -> Resume | None:
    """The last place where the run was resumed, if something was not restored there; otherwise None.

    Only a run that continues its step count is resumed; a second run in the same journal counts from zero.

    >>> chart = Chart.of(lr=[1e-3 * 0.95**step for step in range(100)])
    >>> chart.resumed.append(99)
    >>> chart.put(100, "lr", 1e-3)
    >>> resume(chart).text
    'the run was resumed before step 100, and the learning rate went from 6.23e-06 back to 0.001'
    """
    rates = chart["lr"]
    if not chart.resumed or not rates or rates.step <= chart.resumed[-1]:
        return None
    border = chart.resumed[-1]
    before, after = rates.values[rates.steps <= border], rates.values[rates.steps > border]
    lost = chart.fact("state.at_start") == 0 and any(map(_remembers, chart.groups))
    if not before.size or not after.size:
        return None
    leap = (float(before[-1]), float(np.max(after[:5])))
    leapt = leap[1] > LEAP * leap[0] and leap[1] > 0.3 * rates.outline.highest
    same = abs(float(after[0]) - rates.first) <= SAME * rates.first
    found = Resume(border + 1, lost, leap if leapt else None, same)
    return found if lost or leapt else None


def begins_late(chart: Chart, strides: int = 50) -> int | None:
    """The first step of a run whose step count starts late, as if resumed, with an empty optimizer state; else None.

    A count of samples or tokens starts at one stride, which is not late.

    >>> chart = Chart.of(step=500, loss=[1.0] * 20)
    >>> chart.groups = [{"betas": [0.9, 0.999]}]
    >>> chart.add({"type": "facts", "step": 500, "facts": {"state.at_start": 0}})
    >>> begins_late(chart)
    500
    """
    losses = chart["loss"]
    if chart.resumed or chart.fact("state.at_start") != 0 or len(losses) < 2 or len(losses) != losses.count:
        return None
    first, stride = int(losses.steps[0]), int(losses.steps[1] - losses.steps[0])
    return first if first >= strides * max(stride, 1) and any(map(_remembers, chart.groups)) else None


def knows_already(chart: Chart) -> bool:
    """Whether trained weights, with a first loss far below chance level, start with an empty optimizer state."""
    first, plain = chart["loss"].first, chart["criterion"].first
    guess = float(chart.fact("loss.chance") or chart["guess_loss"].first)
    trained = chart["weights_fresh"].first < OLD and chart.fact("state.at_start") == 0 and not chart.resumed
    same = abs(plain - first) < 0.05 * abs(first)  # the logged loss is the one that has the chance level
    return trained and same and 0 < first < 0.5 * guess and any(map(_remembers, chart.groups))


def _remembers(group: dict[str, Any]) -> bool:
    """Whether an optimizer with these settings keeps state from earlier steps."""
    momentum = group.get("momentum")
    return "betas" in group or "alpha" in group or (isinstance(momentum, float) and momentum > 0)
