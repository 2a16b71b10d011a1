"""What validation is fed, beside what training is: scale, mode, statistics, and samples that are known already."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import Array, Series, median

ONE_TOKEN = 0.9
"""Share of the tokens that are one from which whole samples are alike by chance."""
LIKE = 0.5
"""Deviations, or doublings of them, by which inputs in validation are no others than in training."""


def first_statistics(chart: Chart) -> float:
    """The share of their first values in BatchNorm's running statistics at the latest evaluation; NaN if unknown."""
    momentum = chart.fact("mode.batchnorm_momentum")
    known = isinstance(momentum, int | float) and 0 <= momentum <= 1 and chart["val_loss"]
    return float((1 - momentum) ** (chart["val_loss"].step + 1)) if known else math.nan


def input_sizes(chart: Chart) -> tuple[float, float]:
    """The size of inputs in passes without gradients, and in training; NaN where either is not known."""
    idle, train = (
        [math.hypot(*pair) for pair in zip(chart[f"{kind}_mean"].last(5), chart[f"{kind}_std"].last(5), strict=False)]
        for kind in ("idle_input", "input")
    )
    return (median(np.array(idle)), median(np.array(train))) if idle and train and min(train) > 0 else (math.nan,) * 2


def inputs_apart(chart: Chart) -> float:
    """How far inputs in validation are from those in training: by mean, in deviations, or by deviation, in doublings.

    Smaller ones are none of it, unless samples come unchanged: noise and erased parts are in training alone on purpose.
    NaN where unknown.
    """
    (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
    if not deviation > 0 or not spread > 0:
        return math.nan
    doublings = math.log2(spread / deviation)
    return max(abs(found - mean) / deviation, abs(doublings) if comes_unchanged(chart) else doublings)


def targets_apart(chart: Chart) -> float:
    """How far what validation asks for is from what training does: in deviations, or in doublings of them; or NaN."""
    (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_target", "target"))
    if not deviation > 0 or not spread > 0:
        return math.nan
    return max(abs(found - mean) / deviation, abs(math.log2(spread / deviation)))


def rounded_in_training(chart: Chart, evaluations: int = 2) -> bool:
    """Whether training asks for whole numbers only, and more than two of them, and validation for others too.

    >>> rounded_in_training(Chart.of(target_whole=[1.0, 1.0], idle_target_whole=[0.0, 0.0]))
    True
    """
    trained, pairs, judged = (chart[name] for name in ("target_whole", "target_two_valued", "idle_target_whole"))
    whole = bool(trained) and bool(trained.values.all()) and not pairs.latest > 0  # yes or no may be a share elsewhere
    return whole and len(judged) >= evaluations and not judged.last(evaluations).any()


def comes_unchanged(chart: Chart, samples: int = 4) -> bool:
    """Whether training samples come again as they were, without augmentation, and not because few differ at all."""
    again = chart["input_again"]
    return again.count > samples and again.first == 0 and int((again.last(samples) > 0).sum()) > 1


def times_seen(chart: Chart, most: int = 64) -> float:
    """How often training has gone through its samples, from how soon they come again; NaN where that is unknown.

    Of samples drawn from N, those that a batch has in common with M others are M / N of it.

    >>> chart = Chart.of(input_again=[0.0, 0.5, 0.75, 0.8])
    >>> chart.context["batch_size"] = 10
    >>> round(times_seen(chart), 1)
    0.7
    """
    again, size = chart["input_again"], chart.context.get("batch_size")
    shares = again.values
    if not isinstance(size, int) or size < 1 or shares.size < 4 or shares.size != again.count:
        return math.nan
    fresh = min(size, most) * np.concatenate([[1.0], 1.0 - shares[:-1]])
    remembered = np.minimum(np.cumsum(fresh), 2048)
    return chart.step * size * float(shares.sum()) / float(remembered.sum())


def known_before(chart: Chart, evaluations: int = 5) -> float:
    """The least share of samples in passes without gradients that training had before; NaN where it says nothing.

    Nothing is said where samples repeat themselves from the second batch on: one batch, one graph, or few that differ;
    nor where nearly all tokens are one and the same.
    """
    known, again = chart["idle_known"].last(evaluations), chart["input_again"]
    if chart["token_top_share"].latest > ONE_TOKEN:
        return math.nan
    if not known.size or not again or again.first > 0 or chart.fact("loop.acts"):
        return math.nan
    return float(known.min())


def moments(chart: Chart, kind: str) -> tuple[float, float]:
    """Mean and deviation of data; that of training over many batches, which may come in order, each a part of all.

    By medians and quartiles: one batch with an outlier moves neither.
    """
    idle = kind.startswith("idle")
    if idle:
        means, deviations = chart[f"{kind}_mean"].last(5), chart[f"{kind}_std"].last(5)
    else:
        means, deviations = evenly(chart[f"{kind}_mean"]), evenly(chart[f"{kind}_std"])
    if not means.size or not deviations.size:
        return math.nan, math.nan
    low, middle, high = np.percentile(means, (25, 50, 75))
    between = 0.0 if idle else float(high - low) / 1.35
    return float(middle), math.hypot(median(deviations), between)


def evenly(series: Series, samples: int = 32) -> Array:
    """The last values of a series, at steps that are all equally far apart: the first steps are looked at more often.

    >>> chart = Chart.of()
    >>> for step in (0, 1, 2, 12):
    ...     chart.put(step, "input_mean", float(step))
    >>> evenly(chart["input_mean"], 4).tolist()
    [0.0, 12.0, 12.0, 12.0]
    """
    values, steps = series.last(samples), series.steps[-samples:]
    if values.size < 2:
        return values
    wanted = np.linspace(float(steps[0]), float(steps[-1]), samples)
    return values[np.searchsorted(steps, wanted)]


def is_like_training(chart: Chart) -> bool:
    """Whether inputs in validation are what training has, taken together: no later time, no other source."""
    return inputs_apart(chart) < LIKE


def validates_in_training_mode(chart: Chart) -> bool:
    """Whether passes without gradients are all in training mode, of a model for which that makes a difference."""
    modes = chart.fact("mode.idle", {})
    return bool(chart.fact("mode.depends", False)) and modes.get("train", 0) > 1 and not modes.get("eval", 0)


def scores_are_probabilities(chart: Chart, evaluations: int = 2, beyond: float = 2.0) -> bool:
    """Whether a loss that wants scores is given numbers between 0 and 1 in validation, and others in training.

    >>> chart = Chart.of(output_absmax=[3.0, 5.0], idle_output_low=[0.0, 0.0], idle_output_high=[0.9, 1.0])
    >>> scores_are_probabilities(chart)
    True
    """
    low, high = (chart[f"idle_output_{end}"].last(evaluations) for end in ("low", "high"))
    trained = chart["output_absmax"].last(evaluations)
    if not low.size == high.size == trained.size == evaluations:
        return False
    return float(low.min()) >= 0 and float(high.max()) <= 1 and float(trained.min()) > beyond
