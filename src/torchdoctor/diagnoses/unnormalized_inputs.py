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
"""Root mean square above which inputs are too large, largest value under which they are too small."""


class UnnormalizedInputs(Cause):
    """The inputs are on a scale that the first layer was not made for.

    ## What it is
    Initialization and learning rates assume inputs of mean 0 and deviation 1. Raw pixels, prices, counts or years
    multiply the first layer's output, and its gradient, by their size; tiny inputs silence it.

    ## How to confirm it
    ``x.mean(), x.std()`` of a batch as the model gets it; by column for tables. Divide the inputs by their deviation
    and repeat the first hundred steps: the trouble is gone.

    ## What to change
    ``x = (x - mean) / std`` with numbers from the training set, kept for validation and for later use; or a
    normalization as first layer.

    ## How to see it cured
    Inputs have a root mean square near 1, and the first loss is that of a guess.

    ## When to stop
    When inputs are near 1 and the trouble stays: it was not the inputs.
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
        """The scale at the door of the first layer, and whether a normalization takes care of it."""
        times, since = leap_of_scale(chart)
        told = times > InputAnomaly.leap or (times > 1 and problem.grave("input-anomaly"))
        if told and problem.last_step >= since:
            yield Evidence(6.0, f"inputs are {number_text(times)} times larger or smaller since step {since}")
        elif _are_looked_up(chart) and not chart["side_entry_rms"]:
            yield Evidence(-4.0, "inputs are whole numbers that are looked up, and have no size")
        else:
            yield from _about_the_size(chart, problem)


def _about_the_size(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    size, largest = input_size(chart)
    side = last_level(chart["side_entry_rms"], 3)
    if side > 3 * LOUD:
        text = f"what enters a later layer, and nothing that learns has made, is of size {number_text(side)}"
        yield Evidence(CERTAIN if side > 10 * LOUD else 7.0, text)
        return
    if problem.has("input-anomaly") and drowned_spread(chart) < InputAnomaly.offset:
        spread = number_text(drowned_spread(chart))
        yield Evidence(CERTAIN, f"samples differ by {spread} of their size where they enter: an offset drowns them")
        return
    if problem.grave("input-anomaly") and size > 3 * LOUD and not removes_offsets(chart):
        words = f"inputs of size {number_text(size)} enter, and no normalization takes off what they share"
        yield Evidence(CERTAIN, words)
        return
    if math.isnan(size) or (not largest and not problem.has("input-anomaly")):  # a boundary point at the origin
        return
    text = f"what enters the first layer has a root mean square of {number_text(size)}"
    uneven = last_level(chart["entry_ratio"]) > UNEVEN and not normalizes_each(chart)
    if chart.fact("data.normalized_first") and not uneven and not _is_drowned_by_a_bias(chart, largest):
        yield Evidence(-3.0, f"{text}, and a normalization follows")
    elif size > 3 * LOUD:
        yield Evidence(CERTAIN if size > 10 * LOUD else 7.0, text)
        ratio = last_level(chart["entry_ratio"])
        if ratio > 100:
            yield Evidence(0.5, f"one feature is {number_text(ratio)} times as large as the usual one")
    elif size > LOUD:
        yield Evidence(6.0 if uneven else 4.0, text)
    elif largest < QUIET:
        yield Evidence(
            CERTAIN if largest < 0.1 * QUIET else 7.0, f"{text}, its largest value is {number_text(largest)}"
        )
    else:
        yield Evidence(-4.0, text)


def input_size(chart: Chart) -> tuple[float, float]:
    """Root mean square and largest value of what enters the first layer; NaN where it was not seen."""
    return last_level(chart["entry_rms"], 3), last_level(chart["entry_absmax"], 3)


def inputs_are_fine(chart: Chart) -> bool:
    """Whether the inputs are known to be of a usual size, or are made so.

    What enters a model that is compiled, or has no layers, is what it was given.
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
    """Whether all that was seen of the inputs are whole numbers for an embedding."""
    return bool(chart["token_top_share"]) and not chart["input_std"]


def _is_drowned_by_a_bias(chart: Chart, largest: float) -> bool:
    """Whether inputs are so small that the first layer's bias hides them from a normalization that comes after it."""
    return 0 < largest < QUIET and not removes_offsets(chart)
