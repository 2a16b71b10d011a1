"""A leap of the loss that stays: whether an update made it, or what is learnt from is no longer what it was."""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.findings import loss_moved_at, lr_leap
from torchdoctor.series import median
from torchdoctor.symptoms.leaps import is_held

HELD = 0.4
"""Share of a leap that the losses after it keep where it was not one batch's."""
BREAKING = 30.0
"""Times its level of a gradient norm from which one plain step may have broken the weights."""


def lasts_from(chart: Chart, step: int, losses: int = 4) -> bool:
    """Whether the losses right after a step that leapt are nearly as far above the level before as its own.

    >>> back, up = ([1.0, 1.1] * 10 + [5.0, *after] for after in ([1.2, 1.0, 1.1, 1.0], [4.9, 5.2, 4.6, 4.8]))
    >>> lasts_from(Chart.of(loss=back), 20), lasts_from(Chart.of(loss=up), 20)
    (False, True)
    """
    series = chart["loss"]
    before = series.values[(series.steps < step) & (series.steps >= step - 24)]
    since = series.values[series.steps >= step][: losses + 1]
    if before.size < 8 or since.size <= losses:
        return False
    heights = since - median(before)
    return bool(heights[1:].min() > HELD * heights[0] > 0)


def is_not_one_batch(chart: Chart, step: int) -> bool:
    """Whether the loss leapt at a step and stays there, and that step's own update was too short to have done it."""
    norms = chart["grad_norm"]
    earlier, at = norms.values[(norms.steps < step) & (norms.steps >= step - 48)], norms.values[norms.steps == step]
    if not loss_moved_at(chart, step) or not lasts_from(chart, step):
        return False
    known = at.size > 0 and earlier.size > 0
    return is_held(chart) or not known or not float(at[0]) > BREAKING * median(earlier)


def is_other_since(chart: Chart, step: int, unusual: float = 3.0) -> bool:
    """The same, where neither an unusual step before it nor a new rate brought it about, either.

    Then it is not an update: samples, labels, weights or the loss itself are others since then.
    """
    norms = chart["grad_norm"]
    earlier = norms.values[(norms.steps < step) & (norms.steps >= step - 48)]
    if earlier.size < 8 or not is_not_one_batch(chart, step) or lr_leap(chart, step) > 2:
        return False
    return float(earlier[-3:].max()) < unusual * median(earlier)
