"""CK01 parameter-initialization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text

WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True)
class ParameterInitialization(Check):
    """Weights are finite, units differ from each other, and the scale of the weights is usual.

    ## What it checks
    - No parameter and no running statistic holds NaN or infinity.
    - The units of a layer are not all the same: they would get the same gradients and stay the same.
    - Each layer's gain is usual. The gain is the spread of its weights times the square root of its fan-in, which is
      how much the layer amplifies its input. He initialization gives 1.4, Xavier about 1, torch's default 0.6, GPT-2's
      N(0, 0.02²) 0.1 to 1.

    ## How it is told apart
    Zeros are fine if something else makes the units differ: the last layer of a residual branch, LoRA's B, an output
    layer. So a layer whose rows are equal is trained for a few steps, and passes if its units then differ. A few layers
    with small weights are intended (a head that starts near zero), most of the layers are not. Frozen weights,
    embeddings, biases and norms have scales of their own, and their gain is not judged.

    ## What to do
    Use `torch.nn.init.kaiming_normal_(layer.weight)` before ReLU, `xavier_uniform_` before tanh, `normal_(std=0.02)` in
    transformers. Divide a weight made with `torch.randn(inputs, outputs)` by `inputs ** 0.5`.

    ## Example
    >>> layer = nn.Linear(100, 10)
    >>> _ = nn.init.orthogonal_(layer.weight, gain=30.0)
    >>> subject = Subject.of(layer, None, torch.randn(4, 100))
    >>> print(ParameterInitialization().run(subject).message)
    the weights of 1 layer are too large, most of all model.weight: it amplifies 30 times, a usual layer 0.1 to 2 times
    """

    code = "CK01"
    name = "parameter-initialization"
    quick = True
    needs_loss = False
    suggests = ("initialize",)
    references = (
        "https://arxiv.org/abs/1502.01852",
        "https://proceedings.mlr.press/v9/glorot10a.html",
    )

    high: float = 10.0
    """Gain above which a layer's weights are too large."""
    low: float = 0.01
    """Median gain below which the weights are too small."""
    steps: int = 8
    """Steps after which units that started equal must differ."""

    def run(self, subject: Subject) -> Outcome:
        """Check every parameter, and the running statistics."""
        for problem in (_not_finite(subject), self._too_large(subject), self._too_small(subject)):
            if problem is not None:
                return self.failed(**problem)
        twins = same_rows(subject)
        if twins and not (subject.broken or subject.no_loss):
            twins = self._still_same(subject, twins)
            if twins:
                names = names_text(twins)
                return self.failed(
                    f"all units of {names} have the same weights, even after {self.steps} steps of training",
                    "Initialize the weights at random; only biases may start at zero.",
                    where=tuple(twins[:4]),
                    value=float(len(twins)),
                )
        found = [gain for _, gain in gains(subject)]
        told = f"; gains from {number_text(min(found))} to {number_text(max(found))}" if found else ""
        return self.passed(f"{len(subject.parameters)} parameters are finite, and units differ in every layer{told}")

    def _too_large(self, subject: Subject) -> dict[str, Any] | None:
        large = [(name, gain) for name, gain in [*gains(subject), *_amplifying(subject)] if gain > self.high]
        if not large:
            return None
        name, gain = max(large, key=lambda item: item[1])
        count = f"{len(large)} layer{'s' if len(large) > 1 else ''}"
        return {
            "message": f"the weights of {count} are too large, most of all {name}: "
            f"it amplifies {number_text(gain)} times, a usual layer 0.1 to 2 times",
            "advice": "Initialize with a std of about 1/sqrt(fan-in): nn.init.kaiming_normal_ or xavier_uniform_.",
            "where": tuple(item for item, _ in large[:4]),
            "value": gain,
            "limit": self.high,
        }

    def _too_small(self, subject: Subject) -> dict[str, Any] | None:
        found = [(name, gain) for name, gain in gains(subject) if gain > 0]
        if not found or median([gain for _, gain in found]) >= self.low:
            return None
        small = [name for name, gain in found if gain < self.low]
        gain = median([gain for _, gain in found])
        return {
            "message": f"the weights of {len(small)} of {len(found)} layers are too small: they scale the signal by "
            f"{number_text(gain)}, a usual layer by 0.1 to 2",
            "advice": "Initialize with a std of about 1/sqrt(fan-in): nn.init.kaiming_normal_ or xavier_uniform_.",
            "where": tuple(small[:4]),
            "value": gain,
            "limit": self.low,
        }

    def _still_same(self, subject: Subject, twins: list[str]) -> list[str]:
        with subject.fresh():
            Practice(subject, 1e-3).go_on(self.steps)
            return [name for name in same_rows(subject) if name in twins]


def _not_finite(subject: Subject) -> dict[str, Any] | None:
    bad = [name for name, item in subject.parameters.items() if item.is_floating_point() and not _all_finite(item)]
    for name, module in subject.modules.items():
        for key in ("running_mean", "running_var"):
            value = getattr(module, key, None)
            if isinstance(value, Tensor) and not _all_finite(value):
                bad.append(f"{name}.{key}")
    if not bad:
        return None
    return {
        "message": f"{names_text(bad)} {'holds' if len(bad) == 1 else 'hold'} NaN or infinity",
        "advice": "Find where it is set: a checkpoint of a diverged run, torch.empty, or a division by zero.",
        "where": tuple(bad[:4]),
        "value": float(len(bad)),
    }


def _all_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


def gains(subject: Subject) -> list[tuple[str, float]]:
    """The gain of each trainable linear or convolutional layer: RMS of the weights times the root of the fan-in."""
    found = []
    for name, module in subject.of_type(*WEIGHTED):
        weight = module.weight
        if not weight.requires_grad or not weight.is_floating_point() or weight.numel() < 2:
            continue
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            fan_in = weight.shape[0] * weight[0, 0].numel() // math.prod(module.stride)
        else:
            fan_in = weight[0].numel()
        size = float(weight.detach().double().square().mean().sqrt())
        if fan_in > 1:
            found.append((f"{name}.weight", size * math.sqrt(fan_in)))
    return found


def _amplifying(subject: Subject) -> list[tuple[str, float]]:
    """Custom layers with their own matrices: how much larger their output is than their input."""
    if subject.broken or len(subject.models) > 1:
        return []
    owners = {
        name: [key for key, item in module._parameters.items() if item is not None and item.dim() == 2]
        for name, module in subject.modules.items()
        if type(module).__module__.partition(".")[0] != "torch"
    }
    found: dict[str, float] = {}

    def see(name: str, module: nn.Module, args: Any, output: Any) -> None:
        given = next((item for item in args if isinstance(item, Tensor)), None)
        if owners.get(name) and given is not None and given.is_floating_point() and isinstance(output, Tensor):
            for key in owners[name]:
                weight = module._parameters[key]
                # Only matrices that multiply the input; a table of positions or tokens is added.
                if weight is None or not weight.requires_grad or given.shape[-1] not in weight.shape:
                    continue
                if output.shape[-1] not in weight.shape or output.shape[-1] == given.shape[-1] != weight.shape[0]:
                    continue
                size = float(given.detach().double().square().mean().sqrt())
                spread = float(weight.detach().double().square().mean().sqrt()) * math.sqrt(given.shape[-1])
                if size > 0:
                    found[f"{name}.{key}"] = min(spread, float(output.detach().double().square().mean().sqrt()) / size)

    if any(owners.values()):
        with subject.fresh(), torch.no_grad(), subject.watched(see):
            subject.evaluate()
            subject.forward()
    return list(found.items())


def same_rows(subject: Subject) -> list[str]:
    """Trainable weights of layers with several units that are all exactly the same."""
    found = []
    for name, module in subject.modules.items():
        if not isinstance(module, (*WEIGHTED, *RECURRENT)):
            continue
        for key, weight in module._parameters.items():
            if weight is None or weight.dim() < 2 or not weight.requires_grad:
                continue
            # A recurrent layer stacks its gates in one matrix; units must differ within each gate.
            units = int(module.hidden_size) if isinstance(module, RECURRENT) else weight.shape[0]
            if weight.shape[0] % units or units < 2 or weight[0].numel() < 2:
                continue
            rows = weight.detach().reshape(-1, units, weight[0].numel())
            if bool((rows == rows[:, :1]).all()):
                found.append(f"{name}.{key}")
    return found
