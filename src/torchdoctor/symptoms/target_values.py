"""Targets by value: their size, range and placeholders, compared with what the loss expects and the model outputs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import median
from torchdoctor.symptoms.progress import is_game

SIGNED = ("SoftMarginLoss", "HingeEmbeddingLoss", "CosineEmbeddingLoss", "MarginRankingLoss")
"""Losses that expect labels of -1 and 1."""
ASKS_FOR_NUMBERS = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
RANGES = {
    "ReLU": (0.0, math.inf),
    "ReLU6": (0.0, 6.0),
    "Softplus": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""The range of the outputs of bounded activations."""


def are_compared(chart: Chart, classes: int) -> bool:
    """Whether the classes are not outputs of the model, as in contrastive losses, whose label is always the first."""
    widths = dict(zip(chart.module_names, chart.fact("modules.widths", ()), strict=False))
    given = [widths.get(name) for name in chart.fact("modules.outputs", ())]
    return bool(given) and all(width and width not in (1, classes) for width in given)


def is_lost(chart: Chart, size: float, samples: int = 3) -> bool:
    """Whether outputs are ten times as large as non-binary targets, with a far higher loss than the targets' mean."""
    outputs = chart["output_rms"].last(samples)
    if not size > 0 or outputs.size < samples or chart.fact("loss.kind") == "bce":
        return False
    return float(outputs.min()) > 10 * size and costs_more_than_a_guess(chart)


def is_summed(chart: Chart) -> bool:
    """Whether the loss is a sum over the batch, which nothing divides by a count before backward.

    >>> chart = Chart.of(loss=[2.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum"}})
    >>> is_summed(chart)
    True
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.divided": True}})
    >>> is_summed(chart)
    False
    """
    return chart.fact("loss.reduction") == "sum" and not chart.fact("loss.divided")


class Leap(NamedTuple):
    """Targets that are of another size from some step on."""

    before: float
    now: float
    last: int
    """The last step checked with targets of the old size,"""
    since: int
    """and the first with targets of the new one."""


def leap_of_size(chart: Chart, samples: int = 2, before: int = 6, steady: float = 3.0, times: float = 10.0) -> Leap:
    """How targets became far larger in the middle of the run, all at once; NaN if they did not.

    Those that a model makes itself grow from look to look.

    >>> sizes = [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 950.0, 1020.0]
    >>> leap_of_size(Chart.of(target_mean=[0.0] * 8, target_std=sizes))
    Leap(before=1.0, now=985.0, last=5, since=6)
    """
    means, spreads = chart["target_mean"], chart["target_std"]
    none = Leap(math.nan, math.nan, -1, -1)
    if len(means) != len(spreads) or len(means) < before + samples:
        return none
    sizes, steps = np.hypot(means.values, spreads.values), means.steps
    border = int(np.argmax(sizes > steady * median(sizes[:before])))
    early, late = sizes[:border], sizes[border:]
    if border < before or late.size < samples or not 0 < float(early.max()) < steady**2 * float(early.min()):
        return none
    if not times * float(early.max()) < float(late.max()) < steady**2 * float(late.min()):
        return none
    return Leap(median(early), median(late), int(steps[border - 1]), int(steps[border]))


def climbs_from_zero(chart: Chart, least: int = 8) -> bool:
    """Whether the means of targets move one way from about 0, as values that a model learns from its own estimates.

    >>> climbs_from_zero(Chart.of(target_mean=[0.1, 0.3, 0.8, 1.4, 2.0, 2.7, 3.1, 3.8, 4.0], target_std=[0.2] * 9))
    True
    >>> climbs_from_zero(Chart.of(target_mean=[-2.0, -1.5, -1.1, -0.6, 0.0, 0.4, 0.9, 1.6, 2.0], target_std=[0.2] * 9))
    False
    """
    moves = np.diff(chart["target_mean"].values)
    one_way = moves.size >= least and abs(float(moves.sum())) > 0.8 * float(np.abs(moves).sum())
    return one_way and abs(chart["target_mean"].first) < 2 * median(chart["target_std"].values)


def counts_nothing(chart: Chart) -> bool:
    """Whether all labels of the last batch are ignored, so that the mean loss is NaN.

    Trainers log 0 for a loss that is not a number: then the gradients tell.
    """
    classes, losses = chart["target_classes"], chart["loss"]
    mean = chart.fact("loss.reduction", "mean") == "mean" or bool(chart.fact("loss.divided"))
    return classes.latest == 0 and mean and (losses.nonfinite > 0 or sums_nothing(chart))


def sums_nothing(chart: Chart, samples: int = 3) -> bool:
    """Whether all labels of the last samples are ignored, and loss and gradients are exactly zero."""
    silent = [chart[name].last(samples) for name in ("target_classes", "loss", "grad_norm")]
    return all(values.size == samples and not values.any() for values in silent)


def averaged_nothing(chart: Chart, step: int) -> bool:
    """Whether the loss of a step was NaN and its gradients exactly zero: a mean over labels that are all ignored.

    Torch's cross-entropy leaves ignored samples out of its gradient. Any other NaN spreads to the gradients.
    """
    losses, norms = chart["loss"], chart["grad_norm"]
    if chart.fact("loss.kind") not in ("cross-entropy", "nll") or step not in losses.nonfinite_steps:
        return False
    known = norms.values[norms.steps == step]
    return known.size == 1 and float(known[0]) == 0 and norms.outline.highest > 0


def stands_for_missing(chart: Chart, far: float = 100.0, least: int = 2) -> float:
    """A placeholder for missing values: the farthest target of several batches, exactly the same each time; else NaN.

    It must be a hundred times as large as all targets of other batches, or all nines and far from the rest.
    """
    means, spreads = chart["target_mean"].values, chart["target_std"].values
    for name in ("target_min", "target_max"):
        values = chart[name].values
        if values.size < least + 2 or not values.size == means.size == spreads.size or not np.isfinite(values).all():
            continue
        value = float(values[np.argmax(np.abs(values))])
        here = values == value
        if np.count_nonzero(here) < least or not abs(value) >= far - 1:
            continue
        usual = np.abs(means[~here]) + spreads[~here]
        apart = usual.size >= least and bool((abs(value) > far * usual).all())
        nines = value == round(value) and set(str(abs(int(value)))) == {"9"}
        if apart or (nines and bool((np.abs(value - means[here]) > 3 * spreads[here]).all())):
            return value
    return math.nan


def part_off_at_times(chart: Chart, far: float = 100.0, least: int = 2) -> float:
    """The size of the targets of one part of a loss, if it is 100 times the median in some batches; otherwise 0."""
    sizes = chart["part_target_size"].values
    high = sizes[sizes > far * max(median(sizes), 0.01)] if sizes.size >= 3 * least else sizes[:0]
    return median(high) if high.size >= least else 0.0


def costs_more_than_a_guess(chart: Chart, times: float = 10.0, samples: int = 3) -> bool:
    """Whether the loss is still far above that of a constant guess (the mean of the targets)."""
    losses, guesses = chart["criterion"].last(samples), chart["guess_loss"].last(samples)
    return losses.size == guesses.size == samples and bool((losses > times * guesses).all())


def is_no_distance(chart: Chart, size: float) -> bool:
    """Whether the loss is too low for the distance between outputs and targets, as one of logarithms or ranks is.

    Outputs far below the targets cost about as much as the first ones did. A likelihood that widens instead costs at
    least the logarithm of the distance.

    >>> chart = Chart.of(criterion=[0.27, 0.05, 0.006])
    >>> is_no_distance(chart, 3e5), is_no_distance(Chart.of(criterion=[9e10, 50.0, 13.1]), 3e5)
    (True, False)
    """
    losses = chart["criterion"]
    return losses.latest < min(0.5 * losses.first, math.log(size))


def cost_nothing(chart: Chart, share: float = 0.01) -> int:
    """The number of latest consecutive steps with a loss of practically zero compared with chance level.

    >>> chart = Chart.of(loss=[1.4, 0.7, 0.001, 0.9, 0.002, 0.001, 0.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 1.386}})
    >>> cost_nothing(chart)
    3
    """
    losses, chance = chart["loss"].values, chart.fact("loss.chance", 0.0)
    dear = np.flatnonzero(np.abs(losses) > share * chance) if chance > 0 else np.arange(losses.size)
    return losses.size - int(dear[-1]) - 1 if dear.size else losses.size


def is_faint(chart: Chart, samples: int = 5) -> bool:
    """Whether all targets of a binary loss are 0 or one single number close to 0."""
    high, low = chart["target_max"].last(samples), chart["target_min"].last(samples)
    pairs = chart["target_two_valued"].last(samples)
    if chart.fact("loss.kind") != "bce" or not high.size == low.size == pairs.size == samples:
        return False
    return bool((pairs > 0).all() and (low == 0).all() and (high == high[0]).all()) and 0 < float(high[0]) < 0.05


def is_one_number(chart: Chart, samples: int = 5, fitting: float = 0.01) -> bool:
    """Whether all targets of a regression are the same number, and its error is the whole loss.

    A target of 0 is healthy for the residual of an equation, and for a distance that the loop computes itself.
    """
    spreads, whole, part = chart["pooled_std"].last(samples), chart["loss"], chart["criterion"]
    if spreads.size < samples or spreads.any() or chart.fact("loss.function") not in ASKS_FOR_NUMBERS:
        return False
    if chart.fact("data.differentiated") or chart.fact("loop.acts") or is_game(chart):
        return False
    _, mine, theirs = np.intersect1d(whole.steps, part.steps, assume_unique=True, return_indices=True)
    same = np.abs(whole.values[mine] - part.values[theirs]) <= fitting * np.abs(part.values[theirs])
    given = chart["output_rms"].first
    return same.size >= samples and bool(same.all()) and given > 0


def is_outside(chart: Chart, samples: int = 3) -> bool:
    """Whether a binary loss had targets below 0 or above 1 in all of the last samples."""
    shares = chart["binary_outside"].last(samples)
    return shares.size == samples and float(shares.min()) > 0


def is_unsigned(chart: Chart, samples: int = 3) -> bool:
    """Whether a loss that expects labels of -1 and 1 gets 0 and 1."""
    low, high = chart["target_min"].last(samples), chart["target_max"].last(samples)
    pairs = chart["target_two_valued"].last(samples)
    if chart.fact("loss.function") not in SIGNED or not low.size == high.size == pairs.size == samples:
        return False
    return bool((low == 0).all() and (high == 1).all() and (pairs > 0).all())


def asks_for_class_numbers(chart: Chart, samples: int = 3) -> bool:
    """Whether a model with outputs between 0 and 1 has targets 0, 1, 2, 3, ...: class numbers used as quantities."""
    whole, low, high = (chart[f"target_{name}"].last(samples) for name in ("whole", "min", "max"))
    if output_range(chart)[0] not in ("Sigmoid", "Softmax") or not whole.size == low.size == high.size == samples:
        return False
    return bool((whole > 0).all() and (low >= 0).all() and (high >= 2).all())


def is_beyond(chart: Chart, width: float, samples: int = 3) -> bool:
    """Whether even the lowest loss so far shows that targets lie outside the range of a bounded last layer."""
    power = {"l1": 1, "mse": 2}.get(chart.fact("loss.kind", ""), 0)
    if not power or chart.fact("loss.reduction") != "mean" or chart["output_rms"].count < samples:
        return False
    return chart["loss"].lowest > 2 * width**power


def output_range(chart: Chart) -> tuple[str, float, float]:
    """The last activation of the model, and its smallest and largest possible output; empty if it is unbounded."""
    if (ending := chart.fact("loss.ending", "")) in RANGES:  # a function, not a module of the model
        return (ending, *RANGES[ending])
    outputs, kinds = chart.fact("modules.outputs", ()), chart.fact("modules.kinds", ())
    size, row = chart["output_rms"].latest, chart.modules("act_rms").latest
    if len(outputs) != 1 or outputs[0] not in chart.module_names or row.size != len(kinds):
        return "", 0.0, 0.0
    index = chart.module_names.index(outputs[0])
    if kinds[index] not in RANGES or not abs(row[index] - size) <= 1e-2 * size:  # the loss gets another tensor
        return "", 0.0, 0.0
    return (kinds[index], *RANGES[kinds[index]])
