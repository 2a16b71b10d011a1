"""Inputs and targets of validation compared with training: scale, mode, batch statistics, and shared samples."""

from __future__ import annotations

import math

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import Array, Series, median
from torchdoctor.symptoms.input_drift import LEAP, leap_of_scale

ONE_TOKEN = 0.9
"""Share of one single token in all tokens, above which whole samples are equal by chance."""
LIKE = 0.5
"""Shift in standard deviations, or doublings of them, below which inputs in validation are like those in training."""


def first_statistics(chart: Chart) -> float:
    """Weight of the initial values in BatchNorm's running statistics at the latest evaluation; NaN if unknown."""
    momentum = chart.fact("mode.batchnorm_momentum")
    known = isinstance(momentum, int | float) and 0 <= momentum <= 1 and chart["val_loss"]
    return float((1 - momentum) ** (chart["val_loss"].step + 1)) if known else math.nan


def input_sizes(chart: Chart) -> tuple[float, float]:
    """The size of inputs in passes without gradients and in training; NaN if either is unknown."""
    idle, train = (
        [math.hypot(*pair) for pair in zip(chart[f"{kind}_mean"].last(5), chart[f"{kind}_std"].last(5), strict=False)]
        for kind in ("idle_input", "input")
    )
    return (median(np.array(idle)), median(np.array(train))) if idle and train and min(train) > 0 else (math.nan,) * 2


def only_training_changed(chart: Chart, before: int = 6, near: float = 1.5) -> bool:
    """Whether training inputs leapt in mid-run, and validation inputs are as large as they were before.

    >>> told = {"idle_input_mean": [0.0] * 2, "idle_input_std": [1.0] * 2, "entry_rms": [1.0] * 6 + [90.0] * 2}
    >>> only_training_changed(Chart.of(input_mean=[0.0] * 8, input_std=[1.0] * 6 + [90.0] * 2, **told))
    True
    """
    if not leap_of_scale(chart)[0] > LEAP:
        return False
    usual = median(np.hypot(chart["input_mean"].values[:before], chart["input_std"].values[:before]))
    size, _ = input_sizes(chart)
    return 1 / near < size / usual < near if usual > 0 else False


def inputs_apart(chart: Chart) -> float:
    """How far validation inputs differ from training: shift of the mean in SDs, or doublings of the SD.

    A smaller SD counts only if samples come without augmentation, which widens training inputs on purpose. NaN if
    unknown.
    """
    (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
    if not deviation > 0 or not spread > 0:
        return math.nan
    doublings = math.log2(spread / deviation)
    return max(abs(found - mean) / deviation, abs(doublings) if comes_unchanged(chart) else doublings)


def standardized_in_training_only(chart: Chart) -> bool:
    """Whether training inputs have mean 0 and standard deviation 1, and validation inputs clearly not.

    >>> told = {"idle_input_mean": [0.29] * 3, "idle_input_std": [0.35] * 3}
    >>> standardized_in_training_only(Chart.of(input_mean=[0.02] * 3, input_std=[0.98] * 3, **told))
    True
    """
    (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_input", "input"))
    return abs(mean) < 0.1 and 0.85 < deviation < 1.2 and abs(found) > 0.2 and not 0.6 < spread < 1.8


def targets_apart(chart: Chart) -> float:
    """How far validation targets differ from training: shift of the mean in SDs, or doublings of the SD; or NaN."""
    (found, spread), (mean, deviation) = (moments(chart, kind) for kind in ("idle_target", "target"))
    if not deviation > 0 or not spread > 0:
        return math.nan
    return max(abs(found - mean) / deviation, abs(math.log2(spread / deviation)))


def rounded_in_training(chart: Chart, evaluations: int = 2) -> bool:
    """Whether all training targets are whole numbers, of more than two values, but not all validation targets.

    >>> rounded_in_training(Chart.of(target_whole=[1.0, 1.0], idle_target_whole=[0.0, 0.0]))
    True
    """
    trained, pairs, judged = (chart[name] for name in ("target_whole", "target_two_valued", "idle_target_whole"))
    whole = bool(trained) and bool(trained.values.all()) and not pairs.latest > 0  # 0 and 1 may be shares in validation
    return whole and len(judged) >= evaluations and not judged.last(evaluations).any()


def comes_unchanged(chart: Chart, samples: int = 4) -> bool:
    """Whether training samples repeat unchanged, without augmentation, and not because most are equal anyway."""
    again = chart["input_again"]
    return again.count > samples and again.first == 0 and int((again.last(samples) > 0).sum()) > 1


def times_seen(chart: Chart, most: int = 64) -> float:
    """How many epochs training has done, estimated from how often samples repeat; NaN if unknown.

    If samples are drawn from N, a batch shares M / N of its samples with M remembered ones.

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
    """The smallest recent share of samples in passes without gradients that training had too; NaN if not meaningful.

    It means nothing if samples repeat from the second batch on (one batch, one graph, few distinct samples), or if
    nearly all tokens are the same.
    """
    known, again = chart["idle_known"].last(evaluations), chart["input_again"]
    if chart["token_top_share"].latest > ONE_TOKEN:
        return math.nan
    if not known.size or not again or again.first > 0 or chart.fact("loop.acts"):
        return math.nan
    return float(known.min())


def moments(chart: Chart, kind: str) -> tuple[float, float]:
    """Mean and standard deviation of data; for training over many batches, because data may be sorted.

    Medians and quartiles over batches, so that one batch with an outlier does not matter.
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
    """The last values of a series at evenly spaced steps: the first steps are sampled more often.

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
    """Whether validation inputs have the mean and spread of training inputs: no other time or source."""
    return inputs_apart(chart) < LIKE


def validates_in_training_mode(chart: Chart) -> bool:
    """Whether all passes without gradients are in training mode, for a model where that makes a difference."""
    modes = chart.fact("mode.idle", {})
    return bool(chart.fact("mode.depends", False)) and modes.get("train", 0) > 1 and not modes.get("eval", 0)


def scores_are_probabilities(chart: Chart, evaluations: int = 2, beyond: float = 2.0) -> bool:
    """Whether a loss that takes scores gets numbers between 0 and 1 in validation but not in training.

    >>> chart = Chart.of(output_absmax=[3.0, 5.0], idle_output_low=[0.0, 0.0], idle_output_high=[0.9, 1.0])
    >>> scores_are_probabilities(chart)
    True
    """
    low, high = (chart[f"idle_output_{end}"].last(evaluations) for end in ("low", "high"))
    trained = chart["output_absmax"].last(evaluations)
    if not low.size == high.size == trained.size == evaluations:
        return False
    return float(low.min()) >= 0 and float(high.max()) <= 1 and float(trained.min()) > beyond
