"""unnormalized-inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.input_anomaly import (
    UNEVEN,
    InputAnomaly,
    drowned_spread,
    normalizes_each,
    removes_offsets,
)
from torchdoctor.symptoms.input_drift import leap_of_scale

LOUD, QUIET = 10.0, 0.01
"""Root mean square above which inputs are too large, and largest value below which they are too small."""
OFFSET = 0.5
"""Share of the root mean square that the mean must exceed to be called an offset."""


class UnnormalizedInputs(Cause):
    """The scale of the inputs is wrong for the first layer.

    ## What it is
    Initialization and learning rates assume inputs with mean 0 and standard deviation 1. Raw pixels, prices, counts or
    years make the first layer's output and gradient too large, and tiny inputs make them too small.

    ## How to confirm it
    Print ``x.mean(), x.std()`` of a batch as the model receives it, by column for tables. Divide the inputs by their
    standard deviation and repeat the first 100 steps: the problem is gone.

    ## What to change
    ``x = (x - mean) / std`` with mean and std of the training set, also for validation and inference; or a
    normalization as the first layer.

    ## How to see it cured
    Inputs have a root mean square near 1, and the first loss is at chance level.

    ## When to stop
    If the root mean square is near 1 and the problem remains, the inputs were not the cause.
    """

    name = "unnormalized-inputs"
    explains = (
        "input-anomaly",
        "unexpected-initial-loss",
        "saturated-activations",
        "activation-explosion",
        "dead-units",
        "collapsed-output",
        "gradient-explosion",
        "gradient-instability",
        "loss-divergence",
        "nan-or-inf",
        "not-learning",
        "slow-learning",
        "gradient-vanishing",
        "update-ratio-abnormal",
        "loss-oscillation",
        "loss-spike",
        "loss-plateau",
        "underfitting",
    )
    prior = -2.6
    suggests = ("normalize-inputs", "add-normalization", "scale-lr")
    references = ("https://link.springer.com/chapter/10.1007/978-3-642-35289-8_3",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The scale of the first layer's inputs, and whether a normalization corrects it."""
        times, since = leap_of_scale(chart)
        told = times > InputAnomaly.leap or (times > 1 and problem.grave("input-anomaly"))
        if told and problem.last_step >= since:
            yield Evidence(6.0, f"the scale of the inputs changed by a factor of {number_text(times)} by step {since}")
        elif _are_looked_up(chart) and not chart["side_entry_rms"]:
            yield Evidence(-4.0, "inputs are token ids for an embedding, so their size does not matter")
        else:
            yield from _about_the_size(chart, problem)


def _about_the_size(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    size, largest = input_size(chart)
    side = last_level(chart["side_entry_rms"], 3)
    if side > 3 * LOUD:
        text = f"an input that enters at a later layer has a root mean square of {number_text(side)}"
        yield Evidence(CERTAIN if side > 10 * LOUD else 7.0, text)
        return
    if problem.has("input-anomaly") and drowned_spread(chart) < InputAnomaly.offset:
        spread = number_text(drowned_spread(chart))
        yield Evidence(
            CERTAIN, f"samples differ by only {spread} of their size: a common offset hides their differences"
        )
        return
    if problem.grave("input-anomaly") and size > 3 * LOUD and not removes_offsets(chart):
        yield Evidence(CERTAIN, f"inputs have a root mean square of {number_text(size)}{_about_their_offset(chart)}")
        return
    # An input may have size zero by right, such as a boundary point at the origin.
    if math.isnan(size) or (not largest and not problem.has("input-anomaly")):
        return
    text = f"inputs of the first layer have a root mean square of {number_text(size)}"
    uneven = last_level(chart["entry_ratio"]) > UNEVEN and not normalizes_each(chart)
    if chart.fact("data.normalized_first") and not uneven and not _is_drowned_by_a_bias(chart, largest):
        yield Evidence(-3.0, f"{text}, but a normalization corrects it")
    elif size > 3 * LOUD:
        yield Evidence(CERTAIN if size > 10 * LOUD else 7.0, text)
        ratio = last_level(chart["entry_ratio"])
        if ratio > 100:
            yield Evidence(0.5, f"one feature is {number_text(ratio)} times as large as a typical one")
    elif size > LOUD:
        yield Evidence(6.0 if uneven else 4.0, text)
    elif largest < QUIET:
        yield Evidence(
            CERTAIN if largest < 0.1 * QUIET else 7.0, f"{text}, and the largest value is {number_text(largest)}"
        )
    else:
        yield Evidence(-4.0, text)


def _about_their_offset(chart: Chart) -> str:
    """The end of a sentence about large inputs, which names their offset only if it is much of their size."""
    mean, spread = (last_level(chart[f"input_{part}"], 3) for part in ("mean", "std"))
    if abs(mean) > OFFSET * math.hypot(mean, spread):
        return f" and a mean of {number_text(mean)}, and no normalization removes this common offset"
    return ", and no normalization comes before the first layer"


def input_size(chart: Chart) -> tuple[float, float]:
    """Root mean square and largest value of the first layer's inputs; NaN if unknown."""
    return last_level(chart["entry_rms"], 3), last_level(chart["entry_absmax"], 3)


def inputs_are_fine(chart: Chart) -> bool:
    """Whether the inputs are known to have a usual size, or are normalized to it.

    For a compiled model, or one without layers, the model's own inputs count.
    """
    size, largest = input_size(chart)
    if math.isnan(size) and chart["input_std"]:
        size = math.hypot(last_level(chart["input_mean"], 3), last_level(chart["input_std"], 3))
        largest = last_level(chart["input_absmax"], 3)
    if last_level(chart["side_entry_rms"], 3) > LOUD:
        return False
    if _are_looked_up(chart):
        return True
    tamed = bool(chart.fact("data.normalized_first")) and (removes_offsets(chart) or not size > 3 * LOUD)
    tamed = tamed and not _is_drowned_by_a_bias(chart, largest)
    return tamed or (size < LOUD and largest > QUIET)


def _are_looked_up(chart: Chart) -> bool:
    """Whether all inputs seen are integer ids for an embedding."""
    return bool(chart["token_top_share"]) and not chart["input_std"]


def _is_drowned_by_a_bias(chart: Chart, largest: float) -> bool:
    """Whether inputs are so small that the first layer's bias hides them from the normalization after it."""
    return 0 < largest < QUIET and not removes_offsets(chart)
