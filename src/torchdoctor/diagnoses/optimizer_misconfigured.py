"""optimizer-misconfigured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step, highest
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.precursors import about_staleness
from torchdoctor.records import number_text, share_text
from torchdoctor.symptoms.optimizer_advice import OUTWEIGHS, is_climbed, shortened
from torchdoctor.symptoms.underfitting import shrinkage
from torchdoctor.symptoms.weight_growth import WeightGrowth, multiplied

STILL = ("update-ratio-abnormal", "slow-learning", "not-learning", "loss-plateau", "underfitting")
WILD = (
    "loss-oscillation",
    "gradient-instability",
    "gradient-explosion",
    "loss-spike",
    "loss-divergence",
    "activation-explosion",
    "dead-units",
)

USUAL_EPS = 1e-7


class OptimizerMisconfigured(Cause):
    """An unsuitable optimizer setting stalls or destabilizes the run.

    ## What it is
    - `eps` far above the gradients: Adam becomes SGD with a tiny learning rate.
    - `beta1` or momentum of 0.99 or more: steps continue in old directions and overshoot, with a period of about
      1/(1 - beta).
    - `beta2` too low: the last few gradients alone set the scale of steps.
    - Weight decay times learning rate near 0.01: weights shrink faster than they learn.
    - `Adam` with `weight_decay`: this is not the decay of AdamW.

    ## How to confirm it
    Print `optimizer.param_groups[0]` without its tensors, and compare with the usual betas (0.9, 0.999), eps 1e-8 and
    momentum 0.9.

    ## What to change
    Return to the defaults, one setting at a time, from a checkpoint before the problem.

    ## How to see it cured
    Update ratios are about 1e-3, and swings of the loss shrink.
    """

    name = "optimizer-misconfigured"
    explains = ("optimizer-advice", "weight-growth", *STILL, *WILD)
    prior = -2.2
    suggests = ("change-eps", "change-betas", "set-momentum", "set-weight-decay", "use-adamw", "switch-optimizer")
    references = ("https://arxiv.org/abs/1412.6980", "https://arxiv.org/abs/1711.05101")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The settings of each parameter group, compared with what the run shows."""
        advice, alone = problem.get("optimizer-advice"), problem.names == ("optimizer-advice",)
        if advice is not None and (alone or advice.severity != "info"):  # info next to other findings is not the cause
            strength = 3.0 if is_told_of_decay(chart, problem) else CERTAIN  # effective decay is over-regularization
            yield Evidence(strength, advice.message or "a setting is unusual")
            return
        share = multiplied(chart)
        told = share > WeightGrowth.outside
        if told:
            yield Evidence(
                CERTAIN - 1, f"code outside the optimizer makes the weights {share_text(share, 2)} larger at each step"
            )
        for number, group in enumerate(chart.groups[:4]):
            rates = chart[f"lr/{number}"] or chart["lr"]
            rate = highest(rates, problem.first_step, problem.last_step)  # later rates do not matter
            for item in _odd(chart, group, problem, rate if rate == rate else rates.first):
                told = True
                yield item
        if chart.groups and not told:
            yield Evidence(-1.5, "betas, eps, momentum and weight decay have usual values")


def is_told_of_decay(chart: Chart, problem: Problem) -> bool:
    """Whether the first item of the advice says that weight decay has shrunk the weights."""
    advice = problem.get("optimizer-advice")
    if advice is None or advice.severity == "info":
        return False
    first = advice.message.partition(";")[0]
    return first.startswith("weight decay takes") or (first.endswith(OUTWEIGHS) and shrinkage(chart) < 0.5)


def _odd(chart: Chart, group: dict[str, Any], problem: Problem, rate: float) -> Iterator[Evidence]:
    adaptive, betas = "Adam" in str(group.get("optimizer", "")), group.get("betas")
    yield from _about_the_way(chart, group, problem)
    if problem.has(*STILL):
        if group.get("optimizer") == "Rprop" and np.unique(chart["input_checksum"].last(8)).size > 1:
            text = "Rprop shortens its steps where gradients change sign, as they do from batch to batch"
            yield Evidence(6.0, f"{text}: it is made for full batches")
        yield from _about_short_steps(chart, group, rate)
    if problem.has(*WILD):
        if adaptive and isinstance(betas, list) and len(betas) == 2:
            if betas[0] >= 0.99:
                strength = 4.0 if betas[0] >= 0.998 else 2.5
                yield Evidence(strength, f"beta1 is {betas[0]:g}, 0.9 is usual")
            if betas[1] < betas[0] ** 2:
                both = f"beta1 is {betas[0]:g} and beta2 {betas[1]:g}"
                yield Evidence(6.0, f"{both}: if beta2 is below beta1 squared, Adam's steps are unbounded")
            elif betas[1] < 0.9:
                yield Evidence(2.5, f"beta2 is {betas[1]:g}, 0.95 to 0.999 is usual")
            else:
                yield from about_staleness(chart, breaking_step(problem), betas[1])
        momentum = _number(group.get("momentum"))
        if momentum >= 0.99:
            yield Evidence(4.0, f"momentum is {momentum:g}, 0.9 is usual")
    shrinks = _number(group.get("weight_decay")) * rate
    if shrinks >= 5e-3:
        yield Evidence(3.0, f"weight decay removes {number_text(shrinks)} of each weight per step")


def _about_the_way(chart: Chart, group: dict[str, Any], problem: Problem) -> Iterator[Evidence]:
    if is_climbed(chart, group):
        yield Evidence(CERTAIN, "maximize is on: each step increases the loss")
    elif goes_up(chart) and problem.grave("loss-divergence", "not-learning"):
        yield Evidence(6.0, "maximize is on: each step increases the logged loss")


def goes_up(chart: Chart) -> bool:
    """Whether all parameter groups maximize the loss: if only some do, two players train against each other."""
    return bool(chart.groups) and all(group.get("maximize") is True for group in chart.groups)


def has_unbounded_steps(chart: Chart) -> bool:
    """Whether beta2 is below beta1 squared in some group: Adam can diverge then."""
    pairs = (group.get("betas") for group in chart.groups if "Adam" in str(group.get("optimizer", "")))
    return any(isinstance(betas, list) and len(betas) == 2 and betas[1] < betas[0] ** 2 for betas in pairs)


def _about_short_steps(chart: Chart, group: dict[str, Any], rate: float) -> Iterator[Evidence]:
    """Settings that make steps short: eps, or one that leaves little of each gradient."""
    share, eps = chart["adam_eps_share"].latest, _number(group.get("eps"))
    if text := shortened(group, rate):
        yield Evidence(6.0, text)
    if eps <= USUAL_EPS or "Adam" not in str(group.get("optimizer", "")):
        return  # gradients below even this eps are too small themselves
    if share > 0.5:
        yield Evidence(
            5.0, f"eps of {number_text(eps)} is larger than {share_text(share)} of the gradients that it is added to"
        )
    elif eps >= 1e-4:
        yield Evidence(1.5, f"eps is {number_text(eps)}, 1e-8 is usual")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
