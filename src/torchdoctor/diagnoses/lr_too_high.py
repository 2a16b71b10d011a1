"""lr-too-high."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import (
    LEAP,
    breaking_step,
    highest,
    is_brief,
    is_over,
    loss_leap,
    loss_moved_at,
    lr_leap,
    lr_rise,
    ran_away,
    update_level,
)
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import (
    has_attention,
    has_tiny_batches,
    last_level,
    optimizer_names,
    still_multiplied,
    summed_passes,
    swing_period,
    thrown_at_first,
)
from torchdoctor.diagnoses.lasting_leaps import broke_later
from torchdoctor.diagnoses.optimizer_misconfigured import goes_up, has_unbounded_steps
from torchdoctor.diagnoses.precursors import about_growth, about_the_step
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.target_values import is_summed
from torchdoctor.symptoms.underfitting import penalized, shrinkage

ACUTE = ("gradient-explosion", "loss-spike", "loss-divergence", "gradient-instability", "nan-or-inf", "skipped-steps")
"""Findings with a sharp onset: the learning rate just before it can be examined."""
LASTING = (
    "not-learning",
    "loss-oscillation",
    "update-ratio-abnormal",
    "dead-units",
    "saturated-activations",
    "activation-explosion",
    "weight-growth",
)
"""Findings that describe a lasting state."""
STATES = ("not-learning", "loss-oscillation", "dead-units", "saturated-activations")
"""Lasting findings that may be present long before anything breaks."""
BEFORE = (
    "unexpected-initial-loss",
    "activation-explosion",
    "saturated-activations",
    "gradient-vanishing",
    "nan-or-inf",
)
"""Findings that may be present before the learning rate has had any effect."""
LONG = 0.99
"""Momentum from which the momentum, rather than the learning rate, is blamed for long steps: few runs use so much."""
USUAL_ADAM, USUAL_SGD, USUAL_ATTENTION = 2e-2, 1.0, 5e-3
"""Learning rates above which few runs learn: with Adam, with SGD, and with Adam on a model with attention."""


class LrTooHigh(Cause):
    """The learning rate is too high for this model, batch size and optimizer.

    ## What it is
    Each update overshoots: it moves the weights farther than the gradient is valid.

    ## How to confirm it
    - The trouble begins when the learning rate rises or peaks.
    - Each step changes the weights by more than 1 % of their norm.
    - From a checkpoint before the onset, the run passes this point without trouble at a tenth of the learning rate.

    ## What to change
    Halve the learning rate, go back to a checkpoint from before the onset, and clip gradients.

    ## How to see it cured
    The loss falls below its level before the onset, without new explosions.

    ## When to stop
    If a tenth and a hundredth of the learning rate show the same trouble, the learning rate is not the cause.
    """

    name = "lr-too-high"
    explains = (*ACUTE, *LASTING)
    prior = -1.0
    suggests = ("scale-lr", "set-clip-norm", "roll-back", "reinitialize-dead-units")
    references = ("https://arxiv.org/abs/1506.01186",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The learning rate around the onset, the size of updates, and whether the loss recovered."""
        broke, onset = problem.has(*ACUTE), broke_later(chart, problem)[1] or breaking_step(problem)
        lasting = problem.has(*LASTING)
        yield from about_the_step(chart, onset if broke else chart.step + 1)
        thrown = thrown_at_first(chart, problem)
        if thrown > 0:
            text = (
                f"the first steps changed the weights by {number_text(thrown)} of their norm each, and the outputs soon"
            )
            yield Evidence(2.5, f"{text} were the same for every input")
        elif broke:  # if the outputs collapsed first, the collapse explains what came later
            yield from _about_an_onset(chart, problem, onset, lasting)
            yield from about_growth(chart, onset)
        yield from _about_the_loss(chart, problem)
        early = [item for item in problem.symptoms if item.name in BEFORE and item.first_step == 0]
        if early:
            yield Evidence(-2.0, f"{early[0].name} was already there before the first update")
        backwards = summed_passes(chart)
        if backwards > 1 and not chart["loss_weight"]:
            yield Evidence(
                -1.0, f"each step sums {backwards} backward passes: the learning rate may be right for a single one"
            )
        if has_unbounded_steps(chart):
            yield Evidence(-3.0, "Adam's betas alone would explain it")
        if goes_up(chart):
            yield Evidence(-3.0, "maximize is on: shorter steps would increase the loss as well")
        momentum = max(
            (item for group in chart.groups if isinstance(item := group.get("momentum"), float)), default=0.0
        )
        if LONG <= momentum < 1:
            text = f"momentum of {momentum:g} multiplies the step length by {number_text(1 / (1 - momentum))}"
            yield Evidence(-2.5, text)
        yield from _about_its_height(chart, problem)
        if lasting:
            yield from _about_a_standstill(chart, problem, broke)


def _about_the_loss(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """What makes gradients larger than those of a mean loss."""
    size, adaptive = chart.context.get("batch_size"), "Adam" in optimizer_names(chart)
    if is_summed(chart) and not adaptive and isinstance(size, int) and size > 4 and not times_usual(chart, problem) > 1:
        rate = number_text(_rate_then(chart, problem))
        text = f"the loss is a sum, so gradients are about {size} times those of a mean"
        yield Evidence(-1.5, f"{text}, for which a learning rate of {rate} may be right")
    elif is_summed(chart):
        yield Evidence(1.0, "the loss is a sum, so gradients grow with the batch size")
    times = still_multiplied(chart)
    if times and not adaptive:  # the scale of gradients does not change its steps
        text = f"the loss is multiplied by {number_text(times)} before backward(), and nothing divides gradients by it"
        yield Evidence(3.0, f"{text} again: scaler.step(optimizer) would, optimizer.step() does not")


def times_usual(chart: Chart, problem: Problem) -> float:
    """The learning rate as a multiple of the one above which few runs with this optimizer learn; 0 if unknown."""
    names = optimizer_names(chart)
    adaptive = USUAL_ATTENTION if has_attention(chart) else USUAL_ADAM
    return _rate_then(chart, problem) / (adaptive if "Adam" in names else USUAL_SGD) if names else 0.0


def _rate_then(chart: Chart, problem: Problem) -> float:
    """The highest learning rate during the problem; later values do not matter."""
    rate = highest(chart["lr"], problem.first_step, problem.last_step)
    return rate if rate > 0 else chart["lr"].latest


def _about_its_height(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    times, names = times_usual(chart, problem), optimizer_names(chart)
    if times > 1:
        what = f"{names} on a model with attention" if has_attention(chart) and "Adam" in names else names
        rate = number_text(_rate_then(chart, problem))
        yield Evidence(3.5 if times > 10 else 2.0, f"a learning rate of {rate} is high for {what}")
    if not names and "source" in chart.context:
        yield from _about_a_written_rate(chart)


def _about_a_written_rate(chart: Chart) -> Iterator[Evidence]:
    """The learning rate of a log that does not name the optimizer: Hugging Face's trainer uses AdamW by default."""
    rates = chart["lr"].values
    adam = chart.context.get("source") == "Hugging Face"
    rate, usual = float(rates.max()) if rates.size else 0.0, USUAL_ADAM if adam else USUAL_SGD
    if rate > usual:
        what = "AdamW, the trainer's default" if adam else "any optimizer"
        yield Evidence(3.5 if rate > 3 * usual else 2.0, f"a learning rate of {number_text(rate)} is high for {what}")


def _about_an_onset(chart: Chart, problem: Problem, onset: int, lasting: bool) -> Iterator[Evidence]:
    rise, leap = lr_rise(chart, onset), lr_leap(chart, onset)
    yield from _about_the_rate(chart, onset, rise, leap)
    yield from _about_the_updates(update_level(chart, onset))
    if not leap > 2 and loss_moved_at(chart, onset) and not loss_moved_at(chart, onset - 1):
        against = -2.5 if loss_leap(chart, onset) > LEAP else -1.0
        yield Evidence(against, f"the loss was already unusual at step {onset}, before that step's update")
    if _loss_diverged(chart, problem):
        back = " for a while" if _came_back(chart, problem) else " and did not come back"
        yield Evidence(1.7, f"the loss rose above its earlier level{back}")
    if problem.has("gradient-instability") and not has_tiny_batches(chart):  # their norms swing at any learning rate
        yield Evidence(1.0, "the gradient norm swings widely for a long time")
    if not lasting and not problem.grave("loss-divergence", "gradient-instability") and is_brief(problem):
        yield Evidence(-1.0, "it lasted only a few steps")
        if is_over(chart, problem) and not leap > 2 and not times_usual(chart, problem) > 1:
            yield Evidence(-1.5, "the run went on as before, at the same learning rate")
    told = problem.has("gradient-explosion", "loss-spike", "loss-divergence")
    if problem.has("nan-or-inf") and not told and ran_away(chart, onset):
        yield Evidence(2.0, "the loss or the gradient norm had grown far above its level in the steps before")
    elif problem.has("nan-or-inf") and not told and not lasting:
        yield Evidence(-1.0, "neither gradient norm nor loss had risen before the first non-finite value")


def _loss_diverged(chart: Chart, problem: Problem) -> bool:
    """Whether a loss rose for good: a reward or a metric of validation that was lost goes by the same name.

    >>> from torchdoctor.records import Symptom
    >>> said = "map fell from 0.5 to 0.1", "loss is about 10.4 at the end"
    >>> found = [Symptom("loss-divergence", "LO02", "warning", 0.8, 40, 59, message=text) for text in said]
    >>> [_loss_diverged(Chart.of(context={"better": {"val_map": "higher"}}), Problem((item,))) for item in found]
    [False, True]
    """
    better = (name.removeprefix("train_").removeprefix("val_") for name in chart.context.get("better") or {})
    metrics = ("reward", *(name.replace("_", " ") for name in better))
    found = (item for item in problem.symptoms if item.name == "loss-divergence" and item.severity != "info")
    return any("loss" in item.message or not item.message.startswith(metrics) for item in found)


def _came_back(chart: Chart, problem: Problem) -> bool:
    """Whether a loss that had diverged is finite and low again; other findings of the problem may go on."""
    losses, limit = chart["loss"], next(item.limit for item in problem.symptoms[::-1] if item.name == "loss-divergence")
    diverged = Problem(tuple(item for item in problem.symptoms if item.name == "loss-divergence"))
    broken = losses.nonfinite > 0 and max(losses.nonfinite_steps, default=chart.step) >= losses.step
    return is_over(chart, diverged) and not broken and not (limit is not None and last_level(losses) > limit)


def _about_a_standstill(chart: Chart, problem: Problem, broke: bool) -> Iterator[Evidence]:
    """How far the weights move or moved, how the loss swings, and whether it is above its start."""
    onset = breaking_step(problem) if broke else chart.step + 1
    # Updates after a break do not show what caused it; those just before it are already reported.
    first = not broke or any(item.name in STATES and item.first_step < onset - 10 for item in problem.symptoms)
    told = thrown_at_first(chart, problem) > 0
    ratio = _first_updates(chart, onset) if first and not told else math.nan
    if shrinkage(chart) < 0.5 or penalized(chart):
        yield Evidence(-1.5, "the weights move because weight decay or a penalty shrinks them")
    elif ratio > 0.1:
        yield Evidence(
            3.0 if ratio > 0.3 else 1.5, f"each step changed the weights by {number_text(ratio)} of their norm"
        )
    elif ratio <= 0.03:
        yield Evidence(
            -2.0 if ratio < 3e-3 else -0.7,
            f"each step changed the weights by at most {number_text(ratio)} of their norm",
        )
    yield from _about_the_swings(chart, problem)
    losses = chart["loss"]
    if problem.has("not-learning") and losses and losses.baseline(128).recent > 1.2 * losses.first > 0:
        now = number_text(losses.baseline(128).recent)
        yield Evidence(1.5, f"the loss is at {now}, above the {number_text(losses.first)} of the first step")


def _first_updates(chart: Chart, before: int) -> float:
    """The largest median update ratio of any sample from step 4 on: a broken model hardly moves later."""
    rows = [row[np.isfinite(row)] for step, row in chart.tensors("update_ratio").rows if 4 <= step < before]
    return max((median(row) for row in rows if row.size), default=math.nan)


def _about_the_swings(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    swing = problem.get("loss-oscillation")
    steps, records = swing_period(chart, problem)
    if steps == 2 and chart.context.get("clock") != "epoch":
        yield Evidence(2.0, "the loss goes up and down every 2 steps: each update overshoots")
    elif records == 2:
        yield Evidence(1.5, "the loss goes up and down from record to record: this log can show no faster swing")
    elif swing is not None:
        yield Evidence(-0.7, "the loss swings more slowly than overshooting steps would make it")
    cosine = chart["momentum_cosine"].last(8)
    if cosine.size >= 4 and median(cosine) < -0.5:
        yield Evidence(1.0, f"gradients point against the recent steps: cosine {median(cosine):.2f}")


def _about_the_rate(chart: Chart, onset: int, rise: float, leap: float) -> Iterator[Evidence]:
    if leap > 2:
        names = ("lr", *(f"lr/{number}" for number in range(1, len(chart.groups))))
        then = [rate for name in names if (rate := highest(chart[name], onset - 30, onset)) > 0]
        reached = number_text(max(then, default=chart["lr"].latest))
        text = f"the learning rate had just jumped to {reached}, {number_text(leap)} times its highest value before"
        yield Evidence(4.0, text)
    elif rise > 1.001:
        yield Evidence(1.5 if rise > 3 else 1.0, "the learning rate was the highest so far at the onset")
    elif rise <= 1.001:
        yield Evidence(-0.5, "just before the onset, the learning rate was not higher than earlier")


def _about_the_updates(ratio: float) -> Iterator[Evidence]:
    if ratio > 1e-2:
        yield Evidence(
            3.0 if ratio > 0.1 else 2.0,
            f"just before the onset, a step changed the weights by {number_text(ratio)} of their norm",
        )
    elif ratio < 1e-3:
        yield Evidence(
            -1.0, f"just before the onset, a step changed the weights by only {number_text(ratio)} of their norm"
        )
