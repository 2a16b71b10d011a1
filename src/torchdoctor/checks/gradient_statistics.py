"""Gradients of a model on some batches, tensor by tensor, with remarks: `torchdoctor gradients`.

The model is left as it was found, its gradients included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks import calling
from torchdoctor.checks.loading import as_batch, drawn_from, usual_loss
from torchdoctor.checks.nested import moved
from torchdoctor.checks.subject import Subject
from torchdoctor.checks.untouched import untouched
from torchdoctor.errors import PatientError, SourceError
from torchdoctor.records import Severity, number_text, worst
from torchdoctor.sources import read
from torchdoctor.symptoms.gradient_vanishing import NOT_MATRICES

BATCHES = 8
"""Most batches whose gradients are averaged, as in one step over all of them."""
DECADES = 3.0
"""Powers of ten that gradients may shrink or grow through depth."""
FEWEST = 4
"""Weights needed to judge a trend through depth."""
LARGE = 100.0
"""Largest norm of one tensor at a loss of up to 1; it grows with the loss, so that a summed loss is not reported."""
SUMMED = 1000.0
"""The limit above stops growing at this loss."""
SPARSE = 0.5
"""Share of exact zeros above which a tensor is remarked on."""


@dataclass(frozen=True)
class LayerGradient:
    """The gradient of one tensor."""

    name: str
    norm: float
    mean: float
    std: float
    max: float
    min: float
    zeros: int
    size: int
    nonfinite: int = 0
    is_matrix: bool = True
    """Whether it is a weight matrix that shows a trend through depth: no bias, gain or embedding."""

    @property
    def zero_share(self) -> float:
        """Share of elements that are exactly zero."""
        return self.zeros / self.size if self.size else 0.0


@dataclass(frozen=True)
class Remark:
    """One remark on the numbers."""

    severity: Severity
    name: str
    """The catalogue's finding for the same problem in a run."""
    message: str
    advice: str
    where: tuple[str, ...] = ()


class Remarked:
    """Statistics with remarks, worst first, their severity and their verdict."""

    remarks: tuple[Remark, ...]

    @property
    def praise(self) -> str:
        """The verdict if there are no remarks."""
        return "nothing is wrong"

    @property
    def severity(self) -> Severity | None:
        """The worst severity of the remarks; None if there are none."""
        return worst([remark.severity for remark in self.remarks])

    @property
    def verdict(self) -> str:
        """One sentence."""
        return self.remarks[0].message if self.remarks else self.praise


@dataclass(frozen=True)
class GradientStatistics(Remarked):
    """All tensors from input to output, and the verdict."""

    layers: tuple[LayerGradient, ...]
    missing: tuple[str, ...]
    """Trainable tensors that the loss does not depend on."""
    loss: float
    batches: int
    remarks: tuple[Remark, ...]

    @property
    def total_norm(self) -> float:
        """The norm that clipping would see."""
        return math.sqrt(sum(layer.norm**2 for layer in self.layers))

    @property
    def ratio(self) -> float | None:
        """Norm of the first weights divided by that of the last; None if there are too few weights."""
        return first_over_last(self.layers)

    @property
    def praise(self) -> str:
        """The verdict if there are no remarks."""
        return f"gradients reach all {len(self.layers)} tensors, total norm {number_text(self.total_norm)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        layers = [asdict(layer) | {"zero_share": layer.zero_share} for layer in self.layers]
        facts = {"verdict": self.verdict, "severity": self.severity, "loss": self.loss, "batches": self.batches}
        measured = {"total_norm": self.total_norm, "ratio_first_last": self.ratio, "missing": list(self.missing)}
        return facts | measured | {"remarks": [asdict(item) for item in self.remarks], "layers": layers}

    def save(self, path: str | Path) -> Path:
        """Draw the gradient flow: .png (needs matplotlib) or .html."""
        from torchdoctor.reports.plots import gradient_figure, save

        return save(gradient_figure(self.to_dict()), Path(path))


def gradient_statistics(model: Any, loss_fn: Any = None, batches: Any = None) -> GradientStatistics:
    """The gradient of the mean loss over one batch, or over the first of several, by tensor.

    >>> _ = torch.manual_seed(0)
    >>> deep = [layer for _ in range(8) for layer in (torch.nn.Linear(8, 8), torch.nn.Sigmoid())]
    >>> batch = torch.randn(9, 8), torch.zeros(9, 8)
    >>> found = gradient_statistics(torch.nn.Sequential(*deep), torch.nn.MSELoss(), batch)
    >>> found.remarks[0].name, found.ratio < 1e-3
    ('gradient-vanishing', True)
    """
    with untouched(*drawn_from(batches)):
        if loss_fn is None and batches is not None:
            loss_fn = usual_loss(model, as_batch(batches, "batches")[0])
        subject, samples = prepared(model, loss_fn, batches)
    if subject.no_loss:
        raise PatientError(f"the loss cannot be computed: {subject.no_loss}.")
    with subject.fresh():
        subject.model.train()
        sums: dict[str, Tensor] = {}
        losses = []
        for inputs, targets in samples:
            loss = subject.loss(inputs, targets)
            if not loss.requires_grad:
                raise PatientError("the loss does not depend on any trainable parameter: its graph is cut.")
            losses.append(float(loss.detach()))
            for name, grad in subject.gradients(loss).items():
                if grad is not None:
                    dense = (grad.to_dense() if grad.is_sparse else grad).detach().float()
                    sums[name] = sums[name] + dense if name in sums else dense.clone()
        trainable = [name for name, parameter in subject.parameters.items() if parameter.requires_grad]
        layers = tuple(_layer(name, sums[name] / len(losses)) for name in trainable if name in sums)
        missing = tuple(name for name in trainable if name not in sums)
        loss_value = sum(losses) / len(losses)
    return GradientStatistics(layers, missing, loss_value, len(losses), tuple(judge(layers, missing, loss_value)))


def prepared(model: Any, loss_fn: Any, batches: Any, most: int = BATCHES) -> tuple[Subject, list[tuple[Any, Any]]]:
    """The model with a way to call it, and the first few batches as (inputs, targets)."""
    if batches is None:
        raise PatientError("there is no data: give a batch, a list of batches or a loader.")
    batch, loader = as_batch(batches, "batches")
    subject = Subject.of(model, loss_fn, batch)
    subject.find_calling()
    if subject.broken:
        raise PatientError(f"the model does not run on the batch: {subject.broken}.")
    given: Iterable[Any] = [batch] if loader is None else loader
    samples = []
    for _, item in zip(range(most), given, strict=False):
        inputs, targets, _ = calling.split(moved(as_batch(item, "batches")[0], subject.device))
        samples.append((inputs, targets))
    return subject, samples


def _layer(name: str, grad: Tensor) -> LayerGradient:
    known = grad[torch.isfinite(grad)]
    std = float(grad.std()) if grad.numel() > 1 else 0.0
    return LayerGradient(
        name,
        norm=float(grad.norm()),
        mean=float(grad.mean()),
        std=std,
        max=float(grad.max()),
        min=float(grad.min()),
        zeros=int((grad == 0).sum()),
        size=grad.numel(),
        nonfinite=grad.numel() - known.numel(),
        is_matrix=grad.dim() > 1 and not any(word in name.lower() for word in NOT_MATRICES),
    )


def first_over_last(layers: Sequence[LayerGradient]) -> float | None:
    """Norm of the first weights divided by that of the last; None if there are too few."""
    norms = _norms(layers)
    return norms[0] / norms[-1] if len(norms) > 1 else None


def decades_through_depth(layers: Sequence[LayerGradient]) -> float:
    """Powers of ten by which a robust line (Theil-Sen) through the norms rises from the first weight to the last.

    A single unusual layer, such as a head behind branches that start at zero, does not tilt it.
    """
    logs = [math.log10(norm) for norm in _norms(layers)]
    slopes = [(logs[j] - logs[i]) / (j - i) for i in range(len(logs)) for j in range(i + 1, len(logs))]
    return median(slopes) * (len(logs) - 1) if len(logs) >= FEWEST else 0.0


def _norms(layers: Sequence[LayerGradient]) -> list[float]:
    return [layer.norm for layer in layers if layer.is_matrix and not layer.nonfinite and layer.norm > 0]


def judge(layers: Sequence[LayerGradient], missing: Sequence[str] = (), loss: float = math.nan) -> list[Remark]:
    """Remarks on the gradients, worst first. Limits are relative, so a summed loss or a large model is not reported."""
    remarks = [*_broken(layers, missing), *_through_depth(layers), *_large(layers, loss)]
    order: Mapping[str, int] = {"critical": 0, "warning": 1, "info": 2}
    return sorted(remarks, key=lambda remark: order[remark.severity])


def _broken(layers: Sequence[LayerGradient], missing: Sequence[str]) -> list[Remark]:
    remarks = []
    if bad := tuple(layer.name for layer in layers if layer.nonfinite):
        text = f"{len(bad)} of {len(layers)} tensors have non-finite gradients"
        advice = "Look for log(0), 0/0 and sqrt at 0 in the loss, NaN in the batch, and overflow in 16 bits."
        remarks.append(Remark("critical", "nan-or-inf", text, advice, bad))
    if missing:
        text = f"{len(missing)} of {len(layers) + len(missing)} trainable tensors get no gradient"
        advice = "Look for detach(), .data, no_grad and modules unused in forward; freeze what should not be trained."
        remarks.append(Remark("warning", "no-gradient", text, advice, tuple(missing)))
    if silent := tuple(layer.name for layer in layers if layer.norm == 0):
        # Weights multiplied by others that start at zero (LoRA, LayerScale) have no gradient at first: that is normal.
        gated = all(any(word in name.lower() for word in NOT_MATRICES) for name in silent)
        text = f"the gradients of {len(silent)} of {len(layers)} tensors are exactly zero"
        advice = "Dead ReLUs, a factor of zero, or a clamp cut them off: `torchdoctor activations` shows where."
        remarks.append(Remark("info" if gated else "warning", "no-gradient", text, advice, silent))
    sparse = [layer for layer in layers if layer.zero_share > SPARSE and layer.norm > 0 and layer.is_matrix]
    if sparse:
        top = max(sparse, key=lambda layer: layer.zero_share)
        text = f"{100 * top.zero_share:.0f} % of the gradient of {top.name} is exactly zero"
        advice = "Units never fire, or a batch uses few rows of a table: `torchdoctor activations` shows which."
        remarks.append(Remark("info", "dead-units", text, advice, tuple(layer.name for layer in sparse)))
    return remarks


def _large(layers: Sequence[LayerGradient], loss: float) -> list[Remark]:
    """Norms that are large; if the loss is large too, they are only info, because the loss may be a sum."""
    known = math.isfinite(loss)
    limit = LARGE * min(max(1.0, abs(loss)), SUMMED) if known else LARGE
    large = [layer for layer in layers if layer.norm > LARGE and not layer.nonfinite]
    if not large:
        return []
    top = max(large, key=lambda layer: layer.norm)
    text = f"the gradient of {top.name} has norm {number_text(top.norm)}"
    text += f" at a loss of {number_text(loss)}" if known else ""
    if top.norm > limit:
        advice = "Clip gradients (clip_grad_norm_ at 1.0), normalize the inputs, and check the initialization."
        where = tuple(layer.name for layer in large if layer.norm > limit)
        return [Remark("warning", "gradient-explosion", text, advice, where)]
    advice = "Normal for a summed loss; for a mean, `torchdoctor check` compares the loss with a constant guess."
    return [Remark("info", "gradient-explosion", text, advice, tuple(layer.name for layer in large))]


def _through_depth(layers: Sequence[LayerGradient]) -> list[Remark]:
    decades = decades_through_depth(layers)
    matrices = [layer.name for layer in layers if layer.is_matrix]
    where = tuple(matrices[: max(1, len(matrices) // 3)])
    if decades > DECADES:
        text = f"gradients shrink by {decades:.1f} powers of ten from the last of {len(matrices)} weights to the first"
        advice = "Use ReLU-family activations, normalization, residual connections, He or Xavier initialization."
        return [Remark("warning", "gradient-vanishing", text, advice, where)]
    if decades < -DECADES:
        text = f"gradients grow by {-decades:.1f} powers of ten from the last of {len(matrices)} weights to the first"
        advice = "Use He or Xavier initialization, normalization, and clip_grad_norm_ at 1.0."
        return [Remark("warning", "gradient-explosion", text, advice, where)]
    return []


def recorded_gradients(run: str | Path, weights: Mapping[str, Tensor] | None = None) -> GradientStatistics:
    """The latest gradient norms by tensor that a run recorded, for use without the model.

    Weights saved by the run are searched for non-finite values.
    """
    names: Sequence[str] = ()
    norms: Sequence[float | None] = ()
    loss = math.nan
    found = read(run)
    for record in found:
        if record["type"] in ("header", "context"):
            names = record.get("tensors") or names
        elif record["type"] == "tensors" and "grad_norm" in record["vitals"]:
            norms = record["vitals"]["grad_norm"]
        elif record["type"] == "vitals":
            loss = record["vitals"].get("loss", loss)
    if not norms or len(norms) != len(names):
        raise SourceError(f"{found.path} holds no gradients by layer. Give --model and --data to compute them.")
    nothing = math.nan
    layers = tuple(
        LayerGradient(
            name,
            norm,
            nothing,
            nothing,
            nothing,
            nothing,
            0,
            0,
            nonfinite=int(not math.isfinite(norm)),
            is_matrix="weight" in name and not any(word in name.lower() for word in NOT_MATRICES),
        )
        for name, norm in zip(names, norms, strict=True)
        if norm is not None
    )
    missing = tuple(name for name, norm in zip(names, norms, strict=True) if norm is None)
    remarks = [*_spoilt(weights or {}), *judge(layers, missing, loss)]
    return GradientStatistics(layers, missing, loss, 1, tuple(remarks))


def _spoilt(weights: Mapping[str, Tensor]) -> list[Remark]:
    bad = tuple(name for name, item in weights.items() if item.is_floating_point() and not item.isfinite().all())
    if not bad:
        return []
    text = f"{len(bad)} of {len(weights)} tensors of the checkpoint hold non-finite values"
    return [Remark("critical", "nan-or-inf", text, "Go back to an earlier checkpoint: this one is unusable.", bad)]
