"""Runs that ended while they were still learning as fast as before: nothing is broken, what is missing is steps.

>>> chart = Chart.of(loss=[4.0 - 0.01 * step for step in range(200)], lr=[1e-3] * 200)
>>> chart.ended = True
>>> print(next(unfinished(chart)).message)
the run ended while the loss fell: by 0.5 in its last quarter, 0.5 in the one before
"""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.progress import Progress, is_game, outline_levels, trend_gain
from torchdoctor.symptoms.slow_learning import SlowLearning

ENDED = "the run ended while the loss fell"
"""How it is told."""
FEWEST = 64
"""Levels of a loss in which quarters can be told apart."""
PACE = 0.6
"""Share of what the two quarters before it gained on average that the last one must have gained,"""
PART = 0.1
"""and share of all that the run has gained."""
SURE = 2.0
"""Times the doubt about it; twice that over the last half."""


def unfinished(chart: Chart) -> Iterator[Symptom]:
    """A run that was closed in good order, at its full learning rate, while its loss fell as it had before.

    A run that is under way has no end yet, and one whose schedule ran out has used what it was given.
    """
    levels, rates = outline_levels(chart["loss"]), chart["lr"]
    if not chart.ended or levels.size < FEWEST or is_game(chart) or rates.latest < 0.3 * rates.outline.highest:
        return
    quarter = levels.size // 4
    parts = [levels[-nth * quarter : levels.size - (nth - 1) * quarter] for nth in (1, 2, 3)]
    (last, doubt), (before, _), (earlier, _) = map(trend_gain, parts)
    half, unsure = trend_gain(levels[-2 * quarter :])
    whole = Progress.of(chart["loss"]).descent
    if not (half > 2 * SURE * unsure and last > max(SURE * doubt, PART * whole, PACE * (before + earlier) / 2, 0.0)):
        return
    message = f"{ENDED}: by {number_text(last)} in its last quarter, "
    message += f"{number_text(before)} in the one before"
    since = chart["loss"].outline.buckets()[levels.size - quarter][0]
    yield SlowLearning().symptom(chart, "info", message, value=last, confidence=0.7, since=since)
