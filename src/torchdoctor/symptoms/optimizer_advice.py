"""OP03 optimizer-advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import (
    Progress,
    acts,
    goes_straight,
    is_hurt,
    median_ratio,
    outline_levels,
    trend_gain,
)

COUPLED = ("Adam", "NAdam", "RAdam", "Adamax")
"""Adaptive optimizers whose weight decay goes through the gradient, unless told otherwise."""
SCALED = ("RMSprop", "Adagrad", "Adadelta")
"""Others that divide the gradient, and the decay with it, by its size."""
OUTWEIGHS = "and it outweighs the loss"
"""How the advice on weight decay ends where it decides where steps go."""
SETTLED = 95
"""Losses after which one that has not fallen says something. The close look at step 98 must not be one too early."""


@dataclass(frozen=True)
class OptimizerAdvice(Detector):
    """A setting of the optimizer is unusual, and rarely meant.

    ## What it means
    Adam's `weight_decay` is added to the gradient and then divided by its size, so it hardly regularizes: AdamW is
    what papers mean. An `eps` above the gradients turns Adam into SGD with a tiny rate. Betas or a momentum of 0.99
    and more remember a hundred steps and overshoot, most of all with a short second memory, as when both betas are
    written in the wrong order; a `beta2` below 0.9 forgets the scale that it divides by. `maximize=True` climbs the
    loss. Weight decay times learning rate near a hundredth takes a hundredth of each weight at each step. SGD's
    `dampening` above its momentum leaves a tenth of each gradient or less, and Adadelta at Adam's rate takes a
    thousandth of the step that it has found.

    ## How it is told apart
    A setting alone is a note. It is a warning where its effect is measured: `eps` outweighs most of the gradients and
    weights hardly move, decay takes more of the weights at each step than learning gives or the loss stands still (a
    decay of 1 and more need only keep it from falling far), or what decay adds to the gradient is half of it and more;
    and where the first beta cannot be meant beside the second; or a memory of hundreds of steps (0.998) where the loss
    has stopped falling, far above nothing. What makes steps short is one where weights go straight on, or hardly move.

    ## What to do
    `AdamW(lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)` and `SGD(momentum=0.9)` are the places to start from.

    ## How to see that it is cured
    The note is gone; `adam_eps_share` is near 0 and update ratios are about 1e-3.

    ## Example
    >>> chart = Chart.of(lr=[1e-3] * 10)
    >>> chart.groups = [{"optimizer": "Adam", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}]
    >>> OptimizerAdvice().check(chart).message
    'Adam adds weight decay 0.01 to the gradient: AdamW is what is usually meant'
    """

    code = "OP03"
    name = "optimizer-advice"
    reads = ("tensors/grad_norm", "adam_eps_share")
    suggests = ("use-adamw", "change-eps", "change-betas", "set-momentum", "set-weight-decay")
    references = ("https://arxiv.org/abs/1711.05101", "https://arxiv.org/abs/1412.6980")
    closes_after = 2

    eps: float = 1e-4
    """Adam's eps from which it is unusual."""
    outweighed: float = 0.5
    """Share of elements whose gradients are smaller than eps: then it is felt."""
    memory: float = 0.99
    """Momentum or first beta from which it is unusual."""
    endless: float = 0.998
    """The same from which it reaches back over hundreds of steps, and a loss that has stopped falling is its doing."""
    shrinkage: float = 5e-3
    """Share of each weight that decay takes a step, from which nothing can grow."""
    decay: float = 0.05
    """Weight decay through the gradient from which it is compared with the gradient."""
    drowned: float = 0.5
    """Its size against the gradient's from which it decides where steps go."""
    ratio: float = 1e-4
    """Share of themselves by which weights move at the most where eps holds them back."""

    def check(self, chart: Chart) -> Symptom | None:
        """The gravest of the groups' oddities, the others in its words."""
        found: dict[str, Severity] = {}
        for number, group in enumerate(chart.groups):
            rate = chart[f"lr/{number}"] or chart["lr"]
            found.update((text, severity) for severity, text in self._oddities(chart, group, rate.latest))
        if not found:
            return None
        severity: Severity = "warning" if "warning" in found.values() else "info"
        return self.symptom(chart, severity, "; ".join(sorted(found, key=lambda text: found[text] != "warning")))

    def _oddities(self, chart: Chart, group: dict[str, Any], rate: float) -> Iterator[tuple[Severity, str]]:
        kind = str(group.get("optimizer", ""))
        if is_climbed(chart, group):
            yield "warning", f"maximize is on, and the optimizer climbs the loss: {chart.fact('loss.kind')} is to fall"
        decay, eps = _number(group.get("weight_decay")), _number(group.get("eps"))
        betas = group.get("betas")
        if kind in COUPLED + SCALED and decay > 0 and not group.get("decoupled_weight_decay"):
            yield from self._about_decay(chart, kind, decay)
        share, moved = chart["adam_eps_share"].latest, median_ratio(chart)
        if "Adam" in kind and eps >= self.eps:
            felt = share > self.outweighed and moved < self.ratio
            felt = felt or (share > 0.9 and eps >= 10 * self.eps and not acts(chart) and _is_held_up(chart, SETTLED))
            text = f"eps is {number_text(eps)}"
            text += (
                f" and outweighs {share:.0%} of the gradients: {kind} takes steps of SGD" if felt else ", 1e-8 is usual"
            )
            yield ("warning" if felt else "info"), text
        if "Adam" in kind and isinstance(betas, list) and len(betas) == 2:
            if betas[0] >= self.memory and betas[0] ** 2 > betas[1]:
                text = (
                    f"betas are {number_text(betas[0])} and {number_text(betas[1])}: as if written in the wrong order"
                )
                yield "warning", text
            elif betas[0] >= self.memory:
                felt = 1 - betas[0] < (1 - self.memory) / 1.5 and (is_hurt(chart) or _is_held_up(chart, SETTLED))
                felt = felt or (betas[0] >= self.endless and _has_stopped(chart))
                yield (
                    "warning" if felt else "info",
                    f"beta1 is {number_text(betas[0])}: steps go on in old directions, 0.9 is usual",
                )
            if betas[1] < 0.9:
                yield (
                    "info",
                    f"beta2 is {number_text(betas[1])}: the scale of steps is that of the last few, 0.999 is usual",
                )
        if kind == "SGD" and _number(group.get("momentum")) >= self.memory:
            text = f"momentum is {number_text(group['momentum'])}: it multiplies the rate by {_gain(group['momentum'])}"
            still = 1 - group["momentum"] < (1 - self.memory) / 2 and _stands_still(chart)
            still = still or (group["momentum"] >= self.endless and _has_stopped(chart))
            words = (
                ", and the loss is in trouble" if is_hurt(chart) else ", and the loss does not fall" if still else ""
            )
            yield ("warning" if words else "info"), text + words
        yield from self._about_short_steps(chart, group, rate)
        shrinks = decay * rate
        if shrinks >= self.shrinkage and kind not in COUPLED and not _rate_has_leapt(chart):
            text = f"weight decay takes {number_text(shrinks)} of each weight a step: "
            text += f"{number_text(decay)} times the rate of {number_text(rate)}"
            felt = _shrank(chart) or (decay >= self.decay and _stands_still(chart))  # else the rate is what is high
            felt = felt or (decay >= 1 and _is_held_up(chart))
            yield ("warning" if felt else "info"), text

    def _about_short_steps(self, chart: Chart, group: dict[str, Any], rate: float) -> Iterator[tuple[Severity, str]]:
        if text := shortened(group, rate):
            felt = goes_straight(chart) or (median_ratio(chart) < 5 * self.ratio and _is_held_up(chart, share=0.3))
            yield ("warning" if felt else "info"), text

    def _about_decay(self, chart: Chart, kind: str, decay: float) -> Iterator[tuple[Severity, str]]:
        text = f"{kind} adds weight decay {number_text(decay)} to the gradient"
        text += ": AdamW is what is usually meant" if kind in COUPLED else ""
        if decay >= self.decay and _decay_share(chart, decay) > self.drowned:
            yield "warning", f"{text}, {OUTWEIGHS}"
        elif kind in COUPLED:
            yield "info", text


def shortened(group: Mapping[str, Any], rate: float) -> str:
    """Which setting of a group makes its steps many times as short as they are meant to be; empty where none does.

    >>> shortened({"optimizer": "SGD", "momentum": 0.9, "dampening": 0.99}, 0.1)
    'dampening 0.99 is above momentum 0.9: a gradient counts for 0.1 of what it would without both'
    >>> shortened({"optimizer": "Adadelta"}, 1e-3)
    'Adadelta finds its own rate and takes 0.001 of it: 1 is usual'
    """
    kind = str(group.get("optimizer", ""))
    momentum, dampening = _number(group.get("momentum")), _number(group.get("dampening"))
    if kind == "SGD" and 0 < momentum < dampening <= 1 and (part := (1 - dampening) / (1 - momentum)) <= 0.3:
        text = f"dampening {number_text(dampening)} is above momentum {number_text(momentum)}"
        return f"{text}: a gradient counts for {number_text(round(part, 6))} of what it would without both"
    if kind == "Adadelta" and 0 < rate <= 0.02:
        return f"Adadelta finds its own rate and takes {number_text(rate)} of it: 1 is usual"
    if kind == "RMSprop" and (eps := _number(group.get("eps"))) >= 0.01:
        return f"RMSprop divides by at least its eps of {number_text(eps)}, above most gradients' size: 1e-8 is usual"
    heap, fades = _number(group.get("initial_accumulator_value")), _number(group.get("lr_decay"))
    if kind == "Adagrad" and fades >= 0.01:
        return f"Adagrad divides its rate by 1 + {number_text(fades)} times the steps taken, beside its own decay"
    if kind == "Adagrad" and heap >= 1:
        return f"Adagrad begins with {number_text(heap)} in its sums: steps are divided by at least {heap**0.5:.3g}"
    return ""


def is_climbed(chart: Chart, group: dict[str, Any], steps: int = 5) -> bool:
    """Whether a group goes up a loss that can only be meant to fall, and has made it worse.

    >>> chart = Chart.of(loss=[2.3, 2.3, 2.3, 2.3, 2.3, 2.4, 2.5, 2.7, 2.9, 3.1])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "cross-entropy"}})
    >>> is_climbed(chart, {"maximize": True}), is_climbed(chart, {"maximize": False})
    (True, False)
    """
    losses = chart["loss"]
    if group.get("maximize") is not True or not chart.fact("loss.kind") or losses.count < 2 * steps:
        return False
    if any(not other.get("maximize") for other in chart.groups):  # a game: one goes up what the other goes down
        return False
    gain, doubt = trend_gain(losses.last(64))
    return losses.first > 0 and (median(losses.last(steps)) > losses.first or gain < -2 * doubt)


def _decay_share(chart: Chart, decay: float) -> float:
    """The size of what weight decay adds to the gradient against the gradient's own, over the last samples."""
    weights, gradients = chart.tensors("weight_norm").matrix(4), chart.tensors("grad_norm").matrix(4)
    if len(weights) < 4 or weights.shape != gradients.shape:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.sqrt(np.nansum(weights**2, axis=1)), np.sqrt(np.nansum(gradients**2, axis=1))
        return median(decay * sizes[0] / np.maximum(sizes[1], 1e-30))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _gain(momentum: float) -> str:
    return number_text(1 / (1 - momentum)) if momentum < 1 else "infinity"


def _stands_still(chart: Chart, steps: int = SETTLED) -> bool:
    """Whether the later half of the losses has not fallen, far above nothing."""
    losses = chart["loss"]
    if losses.count < steps:
        return False
    levels = outline_levels(losses)
    half = levels[levels.size // 2 :]
    gain, doubt = trend_gain(half)
    return gain <= doubt and median(half) > 0.5 * Progress.of(losses).start > 0


def _has_stopped(chart: Chart, steps: int = 40, floor: float = 0.05) -> bool:
    """Whether the later half of the losses has not fallen for sure, and is not next to nothing."""
    losses = chart["loss"]
    if losses.count < steps or acts(chart):
        return False
    levels = outline_levels(losses)
    half = levels[levels.size // 2 :]
    gain, doubt = trend_gain(half)
    return gain <= 2 * doubt and float(half.mean()) > floor * Progress.of(losses).start > 0


def _rate_has_leapt(chart: Chart, times: float = 10.0) -> bool:
    """Whether the learning rate is far above what it was for most of the run: then decay is not what is wrong."""
    rates = outline_levels(chart["lr"])
    return rates.size > 0 and chart["lr"].latest > times * median(rates)


def _is_held_up(chart: Chart, steps: int = 50, share: float = 0.5) -> bool:
    """Whether the loss is still more than half, or another share, of what it was at the start."""
    losses = chart["loss"]
    return losses.count >= steps and losses.baseline(128).recent > share * Progress.of(losses).start > 0


def _shrank(chart: Chart) -> bool:
    """Whether most weights are less than half of what they were at the first sample."""
    rows = chart.tensors("weight_norm").matrix()
    if len(rows) < 4:
        return False
    known = (rows[0] > 0) & (rows[-1] >= 0)
    return bool(known.any()) and float((rows[-1][known] < 0.5 * rows[0][known]).mean()) > 0.5
