"""CK08 normalization-layers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

BATCH = nn.modules.batchnorm._BatchNorm
BUILT_IN = (BATCH, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm, nn.RMSNorm)
BY_HAND = re.compile(r"(layer|rms)_?norm", re.IGNORECASE)


@dataclass(frozen=True)
class NormalizationLayers(Check):
    """Normalization layers normalize: the scale of what comes in does not matter, and eps is small.

    ## What it checks
    Every norm that runs, torch's own and layer norms written by hand. Noise of the shape of its input, times ten, gives
    the same output as before; the output depends on the input at all (a norm over one number gives zero); weight and
    bias are finite; eps is above zero and below 0.1, and in float16 not below what that can hold; BatchNorm's running
    statistics are updated, and not those of quite other data than the batch.

    ## How it is told apart
    The layer is judged, not the signal: what comes in may have a variance below eps, in sound models too. A norm
    without weight and bias, and one whose weight begins at zero (the last of a residual branch), are chosen on
    purpose. Norms of other kinds that people write (adaptive, scale, weight norm) keep rules of their own. Running
    statistics may be fresh, or on their way from fresh to the batch's; elsewhere they may differ from the batch's
    thirtyfold. Channels that are constant in the batch tell nothing, and half of the others must be so far off.

    ## What to do
    By hand: `(x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + eps)`, or the layer
    of torch. `momentum=0.1` for BatchNorm: 0 never updates. Groups of more than one number for GroupNorm. Statistics of
    other data: scale inputs as they were scaled there, or `module.reset_running_stats()`.

    ## Example
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=1.0), nn.Linear(8, 1))
    >>> print(NormalizationLayers().run(Subject.of(model, None, torch.randn(4, 4))).message)
    eps of 1 is 1, expected 1e-12 to 0.01
    """

    code = "CK08"
    name = "normalization-layers"
    quick = True
    needs_loss = False
    suggests = ("add-normalization",)
    references = ("https://arxiv.org/abs/1607.06450",)

    most_eps: float = 0.1
    """Eps from which a norm no longer normalizes."""
    change: float = 0.5
    """Share of the output's size that may change when the input is ten times as large."""
    far: float = 30.0
    """How many times the batch's own spread running statistics may be, or how many of it away."""

    def applies(self, subject: Subject) -> str | None:
        """Models with such layers."""
        if subject.broken:
            return "the model does not run on the batch: see forward-shapes"
        return None if norms(subject) else "the model has no normalization layer"

    def run(self, subject: Subject) -> Outcome:
        """Settings first, then what they do in a pass."""
        layers = norms(subject)
        for name, module in layers.items():
            wrong = self._settings(name, module)
            if wrong is not None:
                return wrong
        running = _running(layers)
        inputs = _inputs(subject, layers)
        if not inputs:
            raise CannotTell("no normalization layer runs on the batch")
        wrong = self._statistics(layers, inputs, running) or self._constant(layers, inputs)
        wrong = wrong or self._scale(layers, inputs)
        if wrong is not None:
            return wrong
        affine = sum(getattr(layers[name], "weight", None) is not None for name in inputs)
        return self.passed(f"norms that keep their output whatever the scale: {len(inputs)}; with a weight: {affine}")

    def _settings(self, name: str, module: nn.Module) -> Outcome | None:
        eps = getattr(module, "eps", None)
        if isinstance(eps, int | float) and not 0 < eps < self.most_eps:
            return self.failed(
                f"eps of {name} is {number_text(eps)}, expected 1e-12 to 0.01",
                "Use 1e-5: a larger one keeps small signals from being normalized, zero divides by zero.",
                where=(name,),
                value=float(eps),
                limit=self.most_eps,
            )
        own = [item for item in module.parameters(recurse=False) if item.is_floating_point()]
        if isinstance(eps, float) and any(item.dtype == torch.float16 for item in own) and eps < 6e-8:
            return self.failed(
                f"eps of {name} is {number_text(eps)}, which is zero in float16",
                "Use 1e-5, or keep norms in float32.",
                where=(name,),
                value=eps,
                limit=6e-8,
            )
        if isinstance(module, BATCH) and module.track_running_stats and module.momentum == 0:
            return self.failed(
                f"momentum of {name} is 0: its running statistics stay what they are, and eval mode uses them",
                "Use momentum=0.1, which in torch is the share of the new batch.",
                where=(name,),
                value=0.0,
            )
        variance = getattr(module, "running_var", None)
        if isinstance(variance, Tensor) and bool((variance < 0).any()):
            return self.failed(
                f"running_var of {name} is negative", "Reset it: module.reset_running_stats().", where=(name,)
            )
        if any(not bool(torch.isfinite(item).all()) for item in own):
            return self.failed(f"weight or bias of {name} is not finite", "Initialize them anew.", where=(name,))
        return None

    def _statistics(
        self, layers: dict[str, nn.Module], inputs: dict[str, Tensor], running: dict[str, Running]
    ) -> Outcome | None:
        off = {name: _distance(running[name], inputs[name]) for name in inputs if name in running}
        wrong = [name for name, distance in off.items() if distance > self.far]
        if not wrong:
            return None
        return self.failed(
            f"running statistics of {names_text(wrong)} are those of other data: {number_text(off[wrong[0]])} times "
            "the batch's spread off, and eval mode uses them",
            "Scale inputs as they were scaled where the statistics come from, or call reset_running_stats().",
            where=tuple(wrong),
            value=off[wrong[0]],
            limit=self.far,
            severity="warning",
        )

    def _constant(self, layers: dict[str, nn.Module], inputs: dict[str, Tensor]) -> Outcome | None:
        dull = []
        for name, given in inputs.items():
            output = _with_weight_one(layers[name])(torch.randn_like(given))
            if output.numel() > 1 and float((output - output.mean()).abs().amax()) < 1e-6:
                dull.append(name)
        if not dull:
            return None
        return self.failed(
            f"the output of {names_text(dull)} is the same whatever comes in: it is normalized over one number",
            "Normalize over features, or over groups of more than one number.",
            where=tuple(dull),
        )

    def _scale(self, layers: dict[str, nn.Module], inputs: dict[str, Tensor]) -> Outcome | None:
        for name, given in inputs.items():
            module, noise = _with_weight_one(layers[name]), torch.randn_like(given)
            before, after = module(noise).double(), module(noise * 10).double()
            size = before.square().mean().sqrt()
            changed = float((after - before).square().mean().sqrt() / size.clamp_min(1e-12))
            if changed > self.change:
                return self.failed(
                    f"{name} does not normalize: with ten times the input, its output changes by "
                    f"{number_text(changed)} times its size",
                    "Divide by the root of the variance (or of the mean square), over the features.",
                    where=(name,),
                    value=changed,
                    limit=self.change,
                )
        return None


def norms(subject: Subject) -> dict[str, nn.Module]:
    """Normalization layers by name: torch's, and layer norms that people write."""
    return {
        name: module
        for name, module in subject.modules.items()
        if isinstance(module, BUILT_IN) or (BY_HAND.fullmatch(type(module).__name__) and not any(module.children()))
    }


class Running(NamedTuple):
    """Running statistics of a BatchNorm, by channel."""

    mean: Tensor
    variance: Tensor
    fresh: float
    """The share of what they were at first (0 and 1) that should still be in them."""


def _running(layers: dict[str, nn.Module]) -> dict[str, Running]:
    """Running statistics that are not fresh any more."""
    found = {}
    for name, module in layers.items():
        if not isinstance(module, BATCH) or module.running_mean is None or module.running_var is None:
            continue
        mean, variance = module.running_mean.double().clone(), module.running_var.double().clone()
        counted = module.num_batches_tracked
        steps = 0 if counted is None else int(counted)
        fresh = (1 - module.momentum) ** steps if module.momentum is not None else float(steps == 0)
        if bool(mean.any()) or bool((variance != 1).any()):
            found[name] = Running(mean, variance, fresh)
    return found


def _distance(running: Running, given: Tensor) -> float:
    """How far running statistics are from the batch's own, as a multiple of its spread: 1 where they agree."""
    values = given.double().movedim(1, 0).flatten(1) if given.dim() > 1 else given.double()[:, None]
    if values.shape[0] != running.mean.shape[0] or values.shape[1] < 8:
        return 1.0
    mean, variance = values.mean(1), values.var(1)
    telling = variance > 1e-8 * (mean.square() + 1e-4)
    if not bool(telling.any()) or float(telling.double().mean()) < 0.5:
        return 1.0
    # on their way from fresh to the batch's, they are between what they should be now and the batch's own
    between = torch.stack([variance, running.fresh + (1 - running.fresh) * variance])
    spread = running.variance.clamp_min(1e-12)
    ratio = torch.maximum(spread / between.amax(0), between.amin(0) / spread).clamp_min(1).sqrt()
    middle = torch.stack([mean, (1 - running.fresh) * mean])
    away = torch.maximum(running.mean - middle.amax(0), middle.amin(0) - running.mean).clamp_min(0)
    away = away / torch.maximum(spread, variance).sqrt()
    return float(torch.maximum(ratio, away)[telling].median())


def _inputs(subject: Subject, layers: dict[str, nn.Module]) -> dict[str, Tensor]:
    """What comes into each norm in a training pass, where it is one tensor."""
    found: dict[str, Tensor] = {}

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        one = len(args) == 1 and isinstance(args[0], Tensor) and args[0].is_floating_point()
        if name in layers and one and isinstance(output, Tensor) and name not in found:
            found[name] = args[0].detach().clone()

    with torch.no_grad(), subject.watched(see):
        subject.model.train()
        if subject.calling.loss == "whole":
            subject.loss()
        else:
            subject.forward()
    return {name: given for name, given in found.items() if bool(torch.isfinite(given).all())}


@torch.no_grad()
def _with_weight_one(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """The layer as a function of its input alone: in training mode, a weight that begins at zero put to one."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and not bool(weight.any()):
        weight.fill_(1.0)

    def run(given: Tensor) -> Tensor:
        with torch.no_grad():
            module.train()
            output: Tensor = module(given)
            return output

    return run
