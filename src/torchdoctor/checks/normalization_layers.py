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
    """Normalization layers normalize: the scale of their input does not matter, and eps is small.

    ## What it checks
    Every normalization layer that runs, torch's own and layer norms written by hand:

    - noise of the shape of its input gives the same output when multiplied by ten;
    - the output depends on the input (a norm over a single number gives zero);
    - weight and bias are finite;
    - eps is above zero and below 0.1, and in float16 large enough for float16;
    - BatchNorm updates its running statistics, and these fit the batch.

    ## How it is told apart
    - The layer is judged, not the signal: its input may have a variance below eps in sound models too.
    - A norm without weight and bias, and one whose weight starts at zero (the last of a residual branch), are chosen on
      purpose. Other custom norms (adaptive, scale, weight norm) are not checked.
    - Running statistics may be fresh, or between fresh and the batch's. Otherwise they may differ from the batch's by
      up to thirty times its spread. Channels that are constant in the batch are ignored, and half of the others must be
      off this far.

    ## What to do
    By hand: `(x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + eps)`, or torch's
    layer. Use `momentum=0.1` for BatchNorm (0 never updates) and groups of more than one number for GroupNorm. If the
    running statistics come from other data, scale the inputs as that data was scaled, or call
    `module.reset_running_stats()`.

    ## Example
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8, eps=1.0), nn.Linear(8, 1))
    >>> print(NormalizationLayers().run(Subject.of(model, None, torch.randn(4, 4))).message)
    eps of 1 is 1: it must be above 0 and below 0.1
    """

    code = "CK08"
    name = "normalization-layers"
    quick = True
    needs_loss = False
    suggests = ("add-normalization",)
    references = ("https://arxiv.org/abs/1607.06450",)

    most_eps: float = 0.1
    """Eps from which a norm counts as no longer normalizing."""
    change: float = 0.5
    """Relative change of the output, when the input is ten times as large, above which it fails."""
    far: float = 30.0
    """Limit for running statistics: their spread relative to the batch's, or their distance in spreads."""

    def applies(self, subject: Subject) -> str | None:
        """Models with normalization layers."""
        if subject.broken:
            return "the model does not run on the batch: see forward-shapes"
        return None if norms(subject) else "the model has no normalization layer"

    def run(self, subject: Subject) -> Outcome:
        """Check the settings first, then their effect in a pass."""
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
        return self.passed(f"norms whose output does not depend on scale: {len(inputs)}; with a weight: {affine}")

    def _settings(self, name: str, module: nn.Module) -> Outcome | None:
        eps = getattr(module, "eps", None)
        if isinstance(eps, int | float) and not 0 < eps < self.most_eps:
            return self.failed(
                f"eps of {name} is {number_text(eps)}: it must be above 0 and below {number_text(self.most_eps)}",
                "Use 1e-5: a larger eps keeps small signals from being normalized, and zero divides by zero.",
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
                f"momentum of {name} is 0: its running statistics are never updated, and eval mode uses them",
                "Use momentum=0.1: in torch it is the weight of the new batch.",
                where=(name,),
                value=0.0,
            )
        variance = getattr(module, "running_var", None)
        if isinstance(variance, Tensor) and bool((variance < 0).any()):
            return self.failed(
                f"running_var of {name} is negative", "Reset it: module.reset_running_stats().", where=(name,)
            )
        if any(not bool(torch.isfinite(item).all()) for item in own):
            return self.failed(f"weight or bias of {name} is not finite", "Initialize them again.", where=(name,))
        return None

    def _statistics(
        self, layers: dict[str, nn.Module], inputs: dict[str, Tensor], running: dict[str, Running]
    ) -> Outcome | None:
        off = {name: _distance(running[name], inputs[name]) for name in inputs if name in running}
        wrong = [name for name, distance in off.items() if distance > self.far]
        if not wrong:
            return None
        return self.failed(
            f"running statistics of {names_text(wrong)} come from other data: they are off by "
            f"{number_text(off[wrong[0]])} times the batch's spread, and eval mode uses them",
            "Scale inputs as for the data that the statistics come from, or call reset_running_stats().",
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
            f"the output of {names_text(dull)} is the same for any input: it is normalized over a single number",
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
                    "Divide by the square root of the variance (or of the mean square) over the features.",
                    where=(name,),
                    value=changed,
                    limit=self.change,
                )
        return None


def norms(subject: Subject) -> dict[str, nn.Module]:
    """Normalization layers by name: torch's, and layer norms written by hand."""
    return {
        name: module
        for name, module in subject.modules.items()
        if isinstance(module, BUILT_IN) or (BY_HAND.fullmatch(type(module).__name__) and not any(module.children()))
    }


class Running(NamedTuple):
    """Running statistics of a BatchNorm, per channel."""

    mean: Tensor
    variance: Tensor
    fresh: float
    """The share of their initial values (0 and 1) that should still be in them."""


def _running(layers: dict[str, nn.Module]) -> dict[str, Running]:
    """Running statistics that are no longer fresh."""
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
    """How far running statistics are from the batch's own, as a multiple of its spread: 1 if they agree."""
    values = given.double().movedim(1, 0).flatten(1) if given.dim() > 1 else given.double()[:, None]
    if values.shape[0] != running.mean.shape[0] or values.shape[1] < 8:
        return 1.0
    mean, variance = values.mean(1), values.var(1)
    telling = variance > 1e-8 * (mean.square() + 1e-4)
    if not bool(telling.any()) or float(telling.double().mean()) < 0.5:
        return 1.0
    # statistics that are still converging lie between their expected value by now and the batch's own
    between = torch.stack([variance, running.fresh + (1 - running.fresh) * variance])
    spread = running.variance.clamp_min(1e-12)
    ratio = torch.maximum(spread / between.amax(0), between.amin(0) / spread).clamp_min(1).sqrt()
    middle = torch.stack([mean, (1 - running.fresh) * mean])
    away = torch.maximum(running.mean - middle.amax(0), middle.amin(0) - running.mean).clamp_min(0)
    away = away / torch.maximum(spread, variance).sqrt()
    return float(torch.maximum(ratio, away)[telling].median())


def _inputs(subject: Subject, layers: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The input of each norm in a training pass, if it is a single tensor."""
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
    """The layer as a function of its input alone, in training mode; a weight of all zeros is set to one."""
    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and not bool(weight.any()):
        weight.fill_(1.0)

    def run(given: Tensor) -> Tensor:
        with torch.no_grad():
            module.train()
            output: Tensor = module(given)
            return output

    return run
