"""Activations of a model on some batches, module by module, with remarks: `torchdoctor activations`.

An activation called as a function (`F.relu`) is measured at the input of the next layer. The model is left as it was
found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.gradient_statistics import Remark, Remarked, prepared
from torchdoctor.checks.loading import drawn_from
from torchdoctor.checks.nested import leading, tensors
from torchdoctor.checks.untouched import untouched
from torchdoctor.errors import PatientError
from torchdoctor.records import Severity, number_text
from torchdoctor.symptoms.activation_explosion import ActivationExplosion
from torchdoctor.symptoms.dead_units import DeadUnits
from torchdoctor.symptoms.saturated_activations import SaturatedActivations
from torchdoctor.vitals.activations import SILENT, WEIGHTED, ZEROING

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
VALUES = 2**16
"""Number of a module's values that the quantiles are computed from."""
ROWS = 100
"""Number of inputs below which a unit that is zero for all of them may just fire rarely."""
FEWEST = 4
"""Weighted layers needed to judge a trend through depth."""


@dataclass(frozen=True)
class LayerActivation:
    """The output of one module."""

    name: str
    kind: str
    shape: tuple[int, ...]
    mean: float
    std: float
    rms: float
    absmax: float
    quantiles: tuple[float, ...]
    """At 5, 25, 50, 75 and 95 %."""
    zeros: float
    """Share of values that are exactly zero."""
    dead: float | None
    """Share of units that are zero for every input; None if that is not known for this module."""
    saturated: float | None
    """Share of values close to the limits of sigmoid or tanh; None for other modules."""
    nonfinite: int = 0
    is_output: bool = False
    is_weighted: bool = False


@dataclass(frozen=True)
class ActivationStatistics(Remarked):
    """All modules in execution order, and the verdict."""

    layers: tuple[LayerActivation, ...]
    inputs: int
    """Number of samples."""
    remarks: tuple[Remark, ...]

    @property
    def praise(self) -> str:
        """The verdict if there are no remarks."""
        return f"{len(self.layers)} modules have sound outputs over {self.inputs} inputs"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        layers = [asdict(layer) for layer in self.layers]
        facts = {"verdict": self.verdict, "severity": self.severity, "inputs": self.inputs}
        return facts | {"remarks": [asdict(item) for item in self.remarks], "layers": layers}

    def save(self, path: str | Path) -> Path:
        """Draw the distributions by depth: .png (needs matplotlib) or .html."""
        from torchdoctor.reports.plots import activation_figure, save

        return save(activation_figure(self.to_dict()), Path(path))


def activation_statistics(model: Any, batches: Any, *, training: bool = True) -> ActivationStatistics:
    """The outputs of each module on one batch or the first of several; `training=False` uses eval mode.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> _ = nn.init.constant_(net[0].bias, -100.0)
    >>> print(activation_statistics(net, torch.randn(128, 4)).verdict)
    100 % of the units of 1 are zero for all 128 inputs
    """
    with untouched(*drawn_from(batches)):
        subject, samples = prepared(model, None, batches)
    functional = not any(isinstance(module, ZEROING) for module in subject.modules.values())
    seen: dict[str, _Seen] = {}
    inputs = 0

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not isinstance(module, SILENT) and (
            not list(module.children()) or isinstance(module, nn.MultiheadAttention)
        ):
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                seen.setdefault(name, _Seen(name, module)).take(tensor.detach(), args, functional and len(seen) > 1)

    with subject.fresh(), torch.no_grad():
        subject.model.train(training)
        for given, targets in samples:
            with subject.watched(see):
                output = subject.forward(given, targets)
            inputs += _count(given)
        places = {item.data_ptr() for item in tensors(output)}
    if not seen:
        raise PatientError("no module of the model returned a floating-point tensor: there is nothing to measure.")
    layers = tuple(item.summary(item.place in places) for item in seen.values())
    return ActivationStatistics(layers, inputs, tuple(judge(layers, inputs)))


def _count(given: Any) -> int:
    found = leading(given)
    return 1 if found is None else int(found.shape[0])


@dataclass
class _Seen:
    """One module over several batches."""

    name: str
    module: nn.Module
    values: list[Tensor] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    zeros: int = 0
    size: int = 0
    nonfinite: int = 0
    total: float = 0.0
    squares: float = 0.0
    absmax: float = 0.0
    extreme: int = 0
    alive: Tensor | None = None
    place: int = 0

    def take(self, tensor: Tensor, args: Any, functional: bool) -> None:
        """Add the values of one batch."""
        value = tensor.float()
        known = value[torch.isfinite(value)]
        self.shape, self.place = tuple(tensor.shape), tensor.data_ptr()
        self.size += value.numel()
        self.nonfinite += value.numel() - known.numel()
        self.zeros += int((known == 0).sum())
        self.total += float(known.double().sum())
        self.squares += float(known.double().square().sum())
        self.absmax = max(self.absmax, float(known.abs().max()) if known.numel() else 0.0)
        self.values.append(known[:: max(1, known.numel() // VALUES)].cpu())
        if isinstance(self.module, nn.Tanh):
            self.extreme += int((value.abs() > 0.97).sum())
        elif isinstance(self.module, nn.Sigmoid):
            self.extreme += int(((value - 0.5).abs() > 0.47).sum())
        if isinstance(self.module, ZEROING):
            self._count_alive(value, 1 if value.dim() > 3 else value.dim() - 1)
        elif functional and isinstance(self.module, WEIGHTED) and args and isinstance(args[0], Tensor):
            entering = args[0].float()
            self._count_alive(entering, entering.dim() - 1 if isinstance(self.module, nn.Linear) else 1)

    def _count_alive(self, value: Tensor, dimension: int) -> None:
        if value.dim() < 2:
            return
        fired = (value != 0).movedim(dimension, -1).flatten(0, -2).any(0)
        self.alive = fired if self.alive is None or self.alive.shape != fired.shape else self.alive | fired

    def summary(self, is_output: bool) -> LayerActivation:
        """All batches together."""
        count = max(1, self.size - self.nonfinite)
        mean, rms = self.total / count, math.sqrt(self.squares / count)
        values = torch.cat(self.values)
        found = torch.quantile(values, values.new_tensor(QUANTILES)).tolist() if values.numel() else [math.nan] * 5
        bounded = isinstance(self.module, nn.Tanh | nn.Sigmoid)
        return LayerActivation(
            self.name,
            type(self.module).__name__,
            self.shape,
            mean,
            math.sqrt(max(rms**2 - mean**2, 0.0)),
            rms,
            self.absmax,
            tuple(found),
            self.zeros / max(1, self.size),
            None if self.alive is None else 1 - float(self.alive.float().mean()),
            self.extreme / self.size if bounded and self.size else None,
            self.nonfinite,
            is_output,
            isinstance(self.module, WEIGHTED),
        )


def judge(layers: Sequence[LayerActivation], inputs: int) -> list[Remark]:
    """Remarks on the activations, worst first, with the thresholds of the findings of the same names."""
    hidden = [layer for layer in layers if not layer.is_output]
    remarks = []
    if bad := tuple(layer.name for layer in layers if layer.nonfinite):
        text = f"{bad[0]} is the first of {len(bad)} modules with non-finite outputs"
        remarks.append(Remark("critical", "nan-or-inf", text, "Check its inputs, and log, sqrt and 0/0 in it.", bad))
    remarks += _dead(hidden, inputs) + _saturated(hidden) + _scale(layers)
    order: Mapping[str, int] = {"critical": 0, "warning": 1, "info": 2}
    return sorted(remarks, key=lambda remark: order[remark.severity])


def _dead(hidden: Sequence[LayerActivation], inputs: int) -> list[Remark]:
    rules = DeadUnits()
    dead = sorted((layer for layer in hidden if (layer.dead or 0) > rules.notice), key=lambda layer: -(layer.dead or 0))
    if not dead:
        return []
    share = dead[0].dead or 0.0
    enough = inputs >= ROWS or math.prod(dead[0].shape[:-1]) >= ROWS
    entering = "entering " if dead[0].kind in ("Linear", "Conv1d", "Conv2d", "Conv3d") else "of "
    text = f"{100 * share:.0f} % of the units {entering}{dead[0].name} are zero for all {inputs} inputs"
    text += "" if enough else ", too few inputs to call them dead"
    advice = "Use He initialization with zero biases, inputs of std 1, a lower learning rate, or LeakyReLU or GELU."
    severity: Severity = "warning" if share > rules.most and enough else "info"
    return [Remark(severity, "dead-units", text, advice, tuple(layer.name for layer in dead))]


def _saturated(hidden: Sequence[LayerActivation]) -> list[Remark]:
    limit = SaturatedActivations().share
    found = sorted((item for item in hidden if (item.saturated or 0) > limit), key=lambda item: -(item.saturated or 0))
    if not found:
        return []
    text = f"{100 * (found[0].saturated or 0):.0f} % of the values of {found[0].name} are at its limits"
    advice = "Scale the inputs, use Xavier initialization, normalize before it, or use ReLU if no bound is needed."
    return [Remark("warning", "saturated-activations", text, advice, tuple(layer.name for layer in found))]


def _scale(layers: Sequence[LayerActivation]) -> list[Remark]:
    rules = ActivationExplosion()
    scales = [layer for layer in layers if layer.is_weighted and layer.rms > 0 and not layer.nonfinite]
    if len(scales) < FEWEST:
        return []
    first, last = scales[0].rms, scales[-1].rms
    steps = sorted(later.rms / earlier.rms for earlier, later in zip(scales, scales[1:], strict=False))
    typical = steps[len(steps) // 2]
    told = f"from an RMS of {number_text(first)} in {scales[0].name} to {number_text(last)} in {scales[-1].name}"
    where = tuple(layer.name for layer in scales[-3:])
    if last / first > rules.depth and typical > rules.factor:
        advice = "Use He or Xavier initialization, normalization layers, and inputs of std 1."
        return [Remark("warning", "activation-explosion", f"activations grow with depth: {told}", advice, where)]
    if first / last > rules.depth and typical < 1 / rules.factor:
        advice = "Use larger initial weights (He, Xavier), normalization layers, or residual connections."
        return [Remark("warning", "gradient-vanishing", f"activations shrink with depth: {told}", advice, where)]
    return []
