"""OP03 optimizer-advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
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
"""Adaptive optimizers that add weight decay to the gradient by default."""
SCALED = ("RMSprop", "Adagrad", "Adadelta")
"""Others that divide the gradient, and the decay added to it, by the gradient's size."""
OUTWEIGHS = "and the decay outweighs the loss"
"""How the advice on weight decay ends if the decay is larger than the gradient of the loss."""
SETTLED = 95
"""Losses after which a loss that has not fallen counts. It must be below 98, for the close look at step 98."""


@dataclass(frozen=True)
class OptimizerAdvice(Detector):
    """An optimizer setting is unusual and probably not intended.

    ## What it means
    - Adam's `weight_decay` is added to the gradient and then divided by its size, so it hardly regularizes. Papers
      usually mean AdamW.
    - An `eps` larger than the gradients turns Adam into SGD with a tiny learning rate.
    - Betas or a momentum of 0.99 and more average over a hundred steps and overshoot, most of all if beta2 is
      smaller, as when both betas are swapped. A `beta2` below 0.9 makes the scale of the steps noisy.
    - `maximize=True` increases the loss.
    - If weight decay times learning rate is near 0.01, each step removes 1 % of every weight.
    - SGD's `dampening` above its momentum scales every step down, and Adadelta at Adam's learning rate takes a
      thousandth of the step that it computes.

    ## How it is told apart
    A setting alone is reported as info. It is a warning if

    - `eps` outweighs most of the gradients, and weights hardly move or the loss hardly falls;
    - decay shrinks most weights to less than half, or the loss stands still (with a decay of 1 and more, it is enough
      that the loss has not fallen by half);
    - what decay adds to the gradient is at least half as large as the gradient;
    - beta1 squared is larger than beta2, or `maximize` makes the loss worse;
    - beta1 or the momentum is above 0.99, and the loss is in trouble or has stopped falling far above zero;
    - a setting shortens the steps, and weights keep moving in one direction, or hardly move.

    ## What to do
    Start from `AdamW(lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)` or `SGD(momentum=0.9)`.

    ## How to see that it is cured
    The finding is gone; `adam_eps_share` is near 0 and update ratios are about 1e-3.

    ## Example
    >>> chart = Chart.of(lr=[1e-3] * 10)
    >>> chart.groups = [{"optimizer": "Adam", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}]
    >>> OptimizerAdvice().check(chart).message
    'Adam adds weight decay 0.01 to the gradient: AdamW is usually intended'
    """

    code = "OP03"
    name = "optimizer-advice"
    reads = ("tensors/grad_norm", "adam_eps_share")
    suggests = ("use-adamw", "change-eps", "change-betas", "set-momentum", "set-weight-decay")
    references = ("https://arxiv.org/abs/1711.05101", "https://arxiv.org/abs/1412.6980")
    closes_after = 2

    eps: float = 1e-4
    """Adam's eps from which it counts as unusual."""
    outweighed: float = 0.5
    """Share of elements with gradients smaller than eps above which eps has an effect."""
    memory: float = 0.99
    """Momentum or beta1 from which it counts as unusual."""
    endless: float = 0.998
    """Momentum or beta1 that averages over hundreds of steps: a warning if the loss has stopped falling."""
    shrinkage: float = 5e-3
    """Share of each weight removed by decay per step, from which it is reported."""
    decay: float = 0.05
    """Weight decay added to the gradient from which it is compared with the gradient."""
    drowned: float = 0.5
    """Size of the added decay as a share of the gradient above which it is a warning."""
    ratio: float = 1e-4
    """Update ratio below which weights hardly move, so that a large eps is a warning."""

    def check(self, chart: Chart) -> Symptom | None:
        """All unusual settings in one message, warnings first."""
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
            yield "warning", f"maximize is on: the optimizer increases the {chart.fact('loss.kind')} loss"
        decay, eps = _number(group.get("weight_decay")), _number(group.get("eps"))
        betas = group.get("betas")
        if kind in COUPLED + SCALED and decay > 0 and not group.get("decoupled_weight_decay"):
            yield from self._about_decay(chart, kind, decay)
        share, moved = chart["adam_eps_share"].latest, median_ratio(chart)
        if "Adam" in kind and eps >= self.eps:
            felt = share > self.outweighed and moved < self.ratio
            felt = felt or (share > 0.9 and eps >= 10 * self.eps and not acts(chart) and _is_held_up(chart, SETTLED))
            text = f"eps is {number_text(eps)}"
            told = f" and outweighs {share_text(share)} of the gradients: {kind} behaves like SGD"
            text += told if felt else ", 1e-8 is usual"
            yield ("warning" if felt else "info"), text
        if "Adam" in kind and isinstance(betas, list) and len(betas) == 2:
            if betas[0] >= self.memory and betas[0] ** 2 > betas[1]:
                text = f"betas are {betas[0]:g} and {betas[1]:g}: they may be swapped"
                yield "warning", text
            elif betas[0] >= self.memory:
                felt = 1 - betas[0] < (1 - self.memory) / 1.5 and (is_hurt(chart) or _is_held_up(chart, SETTLED))
                felt = felt or (betas[0] >= self.endless and _has_stopped(chart))
                yield (
                    "warning" if felt else "info",
                    f"beta1 is {betas[0]:g}: steps keep following old gradients, 0.9 is usual",
                )
            if betas[1] < 0.9:
                yield (
                    "info",
                    f"beta2 is {betas[1]:g}: only the last few gradients scale the step, 0.999 is usual",
                )
        if kind == "SGD" and _number(group.get("momentum")) >= self.memory:
            text = f"momentum is {group['momentum']:g}: it multiplies steps by {_gain(group['momentum'])}"
            still = 1 - group["momentum"] < (1 - self.memory) / 2 and _stands_still(chart)
            still = still or (group["momentum"] >= self.endless and _has_stopped(chart))
            words = (
                ", and the loss is in trouble" if is_hurt(chart) else ", and the loss does not fall" if still else ""
            )
            yield ("warning" if words else "info"), text + words
        yield from self._about_short_steps(chart, group, rate)
        shrinks = decay * rate
        if shrinks >= self.shrinkage and kind not in COUPLED and not _rate_has_leapt(chart):
            text = f"weight decay takes {number_text(shrinks)} of each weight per step: "
            text += f"{number_text(decay)} times the learning rate of {number_text(rate)}"
            felt = _shrank(chart) or (decay >= self.decay and _stands_still(chart))  # else the learning rate is high
            felt = felt or (decay >= 1 and _is_held_up(chart))
            yield ("warning" if felt else "info"), text

    def _about_short_steps(self, chart: Chart, group: dict[str, Any], rate: float) -> Iterator[tuple[Severity, str]]:
        if text := shortened(group, rate):
            felt = goes_straight(chart) or (median_ratio(chart) < 5 * self.ratio and _is_held_up(chart, share=0.3))
            yield ("warning" if felt else "info"), text

    def _about_decay(self, chart: Chart, kind: str, decay: float) -> Iterator[tuple[Severity, str]]:
        text = f"{kind} adds weight decay {number_text(decay)} to the gradient"
        text += ": AdamW is usually intended" if kind in COUPLED else ""
        if decay >= self.decay and _decay_share(chart, decay) > self.drowned:
            yield "warning", f"{text}, {OUTWEIGHS}"
        elif kind in COUPLED:
            yield "info", text


def shortened(group: Mapping[str, Any], rate: float) -> str:
    """Which setting of a group makes its steps far shorter than intended; empty if none does.

    >>> shortened({"optimizer": "SGD", "momentum": 0.9, "dampening": 0.99}, 0.1)
    'dampening 0.99 is above momentum 0.9: steps are 0.1 times as long as without both'
    >>> shortened({"optimizer": "Adadelta"}, 1e-3)
    'Adadelta adapts its own step size, and lr multiplies it by 0.001: 1 is usual'
    """
    kind = str(group.get("optimizer", ""))
    momentum, dampening = _number(group.get("momentum")), _number(group.get("dampening"))
    if kind == "SGD" and 0 < momentum < dampening <= 1 and (part := (1 - dampening) / (1 - momentum)) <= 0.3:
        text = f"dampening {number_text(dampening)} is above momentum {number_text(momentum)}"
        return f"{text}: steps are {number_text(round(part, 6))} times as long as without both"
    if kind == "Adadelta" and 0 < rate <= 0.02:
        return f"Adadelta adapts its own step size, and lr multiplies it by {number_text(rate)}: 1 is usual"
    if kind == "RMSprop" and (eps := _number(group.get("eps"))) >= 0.01:
        return f"RMSprop divides by at least its eps of {number_text(eps)}, larger than most gradients: 1e-8 is usual"
    heap, fades = _number(group.get("initial_accumulator_value")), _number(group.get("lr_decay"))
    if kind == "Adagrad" and fades >= 0.01:
        return f"Adagrad's lr_decay divides steps by 1 + {number_text(fades)} times the step count, on top of its sums"
    if kind == "Adagrad" and heap >= 1:
        return f"Adagrad's sums start at {number_text(heap)}, so steps are divided by at least {heap**0.5:.3g}"
    return ""


def is_climbed(chart: Chart, group: dict[str, Any], steps: int = 5) -> bool:
    """Whether a group maximizes a loss that should fall, and the loss has got worse.

    >>> chart = Chart.of(loss=[2.3, 2.3, 2.3, 2.3, 2.3, 2.4, 2.5, 2.7, 2.9, 3.1])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "cross-entropy"}})
    >>> is_climbed(chart, {"maximize": True}), is_climbed(chart, {"maximize": False})
    (True, False)
    """
    losses = chart["loss"]
    if group.get("maximize") is not True or not chart.fact("loss.kind") or losses.count < 2 * steps:
        return False
    if any(not other.get("maximize") for other in chart.groups):  # a game: one maximizes what the other minimizes
        return False
    gain, doubt = trend_gain(losses.last(64))
    return losses.first > 0 and (median(losses.last(steps)) > losses.first or gain < -2 * doubt)


def _decay_share(chart: Chart, decay: float) -> float:
    """The size of what weight decay adds, divided by the size of the gradient, over the last four samples."""
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
    """Whether the loss has not fallen over the later half of the run and is still above half of its start."""
    losses = chart["loss"]
    if losses.count < steps:
        return False
    levels = outline_levels(losses)
    half = levels[levels.size // 2 :]
    gain, doubt = trend_gain(half)
    return gain <= doubt and median(half) > 0.5 * Progress.of(losses).start > 0


def _has_stopped(chart: Chart, steps: int = 40, floor: float = 0.05) -> bool:
    """Whether the loss has not clearly fallen over the later half of the run and is not close to zero."""
    losses = chart["loss"]
    if losses.count < steps or acts(chart):
        return False
    levels = outline_levels(losses)
    half = levels[levels.size // 2 :]
    gain, doubt = trend_gain(half)
    return gain <= 2 * doubt and float(half.mean()) > floor * Progress.of(losses).start > 0


def _rate_has_leapt(chart: Chart, times: float = 10.0) -> bool:
    """Whether the learning rate is far above its median over the run: then the decay is not to blame."""
    rates = outline_levels(chart["lr"])
    return rates.size > 0 and chart["lr"].latest > times * median(rates)


def _is_held_up(chart: Chart, steps: int = 50, share: float = 0.5) -> bool:
    """Whether the loss is still above this share of its start."""
    losses = chart["loss"]
    return losses.count >= steps and losses.baseline(128).recent > share * Progress.of(losses).start > 0


def _shrank(chart: Chart) -> bool:
    """Whether more than half of the tensors have less than half the norm of their first sample."""
    rows = chart.tensors("weight_norm").matrix()
    if len(rows) < 4:
        return False
    known = (rows[0] > 0) & (rows[-1] >= 0)
    return bool(known.any()) and float((rows[-1][known] < 0.5 * rows[0][known]).mean()) > 0.5
