"""Runs that ended while they were still learning as fast as before: nothing is wrong, they only need more steps.

>>> chart = Chart.of(loss=[4.0 - 0.01 * step for step in range(200)], lr=[1e-3] * 200)
>>> chart.ended = True
>>> print(next(unfinished(chart)).message)
the run ended while the loss was still falling: by 0.5 in the last quarter, 0.5 in the quarter before
"""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.symptoms.progress import Progress, is_game, outline_levels, trend_gain
from torchdoctor.symptoms.slow_learning import SlowLearning

ENDED = "the run ended while the loss was still falling"
"""Beginning of the message."""
FEWEST = 64
"""Fewest levels of the loss for a comparison of quarters."""
PACE = 0.6
"""Share of the mean fall of the two quarters before that the last quarter must exceed."""
PART = 0.1
"""Share of the whole fall that the last quarter must exceed."""
SURE = 2.0
"""Multiple of its error that the last fall must exceed; twice as much over the last half."""


def unfinished(chart: Chart) -> Iterator[Symptom]:
    """A run that was closed properly at a high learning rate while its loss fell as fast as before.

    A live run has no end yet, and a run with a decayed learning rate was meant to end.
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
    message = f"{ENDED}: by {number_text(last)} in the last quarter, "
    message += f"{number_text(before)} in the quarter before"
    since = chart["loss"].outline.buckets()[levels.size - quarter][0]
    yield SlowLearning().symptom(chart, "info", message, value=last, confidence=0.7, since=since)
