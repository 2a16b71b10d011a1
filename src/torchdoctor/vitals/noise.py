"""The noise gauge: how much of a batch's gradient is signal, from the gradients of single samples.

A linear layer's gradient is a sum over the batch of its input times the gradient of its output; both exist anyway. For
a part of the weights of a few layers, the single terms are computed at sampled steps. Their spread relative to their
sum gives the gradient noise scale (McCandlish et al. 2018) without a second batch. Transformers need no more layers
than that (Gray et al. 2024).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.guard import guarded
from torchdoctor.vitals.context import world_size
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.passes import PassGauge, is_compiled, is_plain, plain_tensors
from torchdoctor.vitals.patient import Setup, optimizer_tensors
from torchdoctor.vitals.transfer import Slot

LAYERS = 4
"""Layers that are looked at, spread over the model."""
SIDE, CHANNELS = 32, 4
"""Rows and columns of a weight that are looked at, and input channels of a convolution."""
ELEMENTS = 1 << 22
"""Maximum numbers in the gradients of all samples of one layer."""
BATCH_NORMS = nn.modules.batchnorm._BatchNorm
WIDEST = 8192
"""Outputs above which a layer is taken as a vocabulary: most of its rows are rarely used."""


@dataclass
class _Layer:
    """What one layer has collected in a sampled step."""

    weight: float = 0.0
    """Elements of its weight per element that is looked at."""
    samples: int = 0
    total: Tensor | None = None
    """The sum of the samples' gradients."""
    squares: Any = 0.0
    """The sum of their squared norms."""
    passes: int = 0
    """The pass in which it last ran: if it runs twice in one pass, a sample's gradient comes in several parts."""
    usable: bool = True


class _Arrival:
    """Waits at a layer's output for its gradient; holds the gauge weakly, and a part of the layer's input."""

    def __init__(self, gauge: NoiseGauge, module: nn.Module, entered: Tensor, rows: int) -> None:
        self._gauge, self._module = weakref.ref(gauge), weakref.ref(module)
        self._entered: Tensor | None = entered
        self._rows = rows

    def failed(self, call: str, error: Exception) -> None:
        """A layer that fails is dropped."""
        self._entered = None

    @guarded
    def arrived(self, grad: Tensor) -> None:
        """Backward has reached the output."""
        gauge, module = self._gauge(), self._module()
        entered, self._entered = self._entered, None
        if gauge is None or module is None:
            return
        if entered is None or not is_plain(grad):  # a second backward through the same graph
            gauge.spoil(module)
            return
        began = time.perf_counter()
        with torch.no_grad():
            gauge.add(module, _by_sample(module, entered, grad.detach(), self._rows))
        gauge.spent += time.perf_counter() - began


class NoiseGauge(PassGauge):
    """Keeps `gradient_snr` and `gradient_samples`, for a single model with a single optimizer."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        alone = len(setup.models) == len(setup.optimizers) == 1 == world_size()  # ranks average over a larger batch
        self._model = next(iter(setup.models.values())) if alone else None
        self._watched: list[nn.Module] = []
        self._coupling: list[nn.Module] = []
        """Layers that normalize by the batch: in training mode, they couple its samples."""
        self._time_first = False
        """Whether a layer takes sequences time first: then only rows of plain features count as samples."""
        if self._model is not None and not any(is_compiled(module) for module in self._model.modules()):
            held = {id(tensor) for tensor in optimizer_tensors(setup.optimizers[0])}
            found = [
                module for module in self._model.modules() if _is_linear(module) and id(_weight_of(module)) in held
            ]
            self._watched = [found[len(found) * place // LAYERS] for place in range(LAYERS)] if found else []
            self._watched = list(dict.fromkeys(self._watched))
            self._time_first = any(getattr(module, "batch_first", True) is False for module in self._model.modules())
            self._coupling = [module for module in self._model.modules() if isinstance(module, BATCH_NORMS)]
        self._layers: dict[nn.Module, _Layer] = {}
        self._arrivals: list[_Arrival] = []
        """Kept alive during the sampled step, because a torch hook does not do that."""
        self._pass = 0
        self._size = 0
        """Samples in the current pass."""

    def arm(self) -> None:
        """Put hooks on the model, to know the batch size, and on the layers."""
        super().arm()
        if self._model is not None and self._watched:
            self.before(self._model, "begins")
            for module in self._watched:
                self.after(module, "_ran")

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A batch enters the model."""
        super().begins(module, args, kwargs)
        tensor = next((item for item in plain_tensors((args, kwargs)) if item.dim()), None)
        coupled = any(item.training for item in self._coupling)
        self._size = 0 if tensor is None or coupled or not self.learns else tensor.shape[0]
        self._pass += 1

    def _ran(self, module: nn.Module, inputs: Any, output: Any) -> None:
        entered = inputs[0] if inputs else None
        if not (self.learns and is_plain(entered) and is_plain(output) and output.requires_grad):
            return
        if not self._fits(module, entered):
            return
        layer = self._layers.setdefault(module, _Layer())
        layer.usable = layer.usable and layer.passes != self._pass
        layer.passes = self._pass
        rows = min(SIDE, max(1, int((ELEMENTS / entered.shape[0]) ** 0.5)))
        arrival = _Arrival(self, module, _part(module, entered.detach(), rows), rows)
        self._arrivals.append(arrival)
        register: Callable[[Hook], Handle] = output.register_hook
        register(Hook(arrival, "arrived"))

    def _fits(self, module: nn.Module, entered: Tensor) -> bool:
        """Whether the first dimension of a layer's input is the batch."""
        if not entered.is_floating_point() or entered.shape[0] != self._size:
            return False
        if isinstance(module, nn.Conv2d):
            return entered.dim() == 4
        return entered.dim() == 2 or (entered.dim() > 2 and not self._time_first)

    def spoil(self, module: nn.Module) -> None:
        """A layer's samples cannot be separated in this step."""
        self._layers.setdefault(module, _Layer()).usable = False

    def add(self, module: nn.Module, gradients: Tensor) -> None:
        """Add the gradients of one pass's samples, one per row."""
        layer = self._layers.get(module)
        if layer is None:
            return
        weight = _weight_of(module)
        assert weight is not None
        layer.weight = weight.numel() / gradients.shape[1]
        layer.samples += gradients.shape[0]
        total = gradients.sum(0)
        layer.total = total if layer.total is None else layer.total + total
        layer.squares = layer.squares + gradients.square().sum()

    def forget(self) -> None:
        """Drop what was measured in this step."""
        super().forget()
        self._layers, self._arrivals = {}, []

    def before_step(self, index: int, slot: Slot) -> None:
        """Compute signal and noise of all layers together."""
        usable = [layer for layer in self._layers.values() if layer.usable and layer.total is not None]
        size = max((layer.samples for layer in usable), default=0)
        if size < 2:
            return
        with torch.no_grad():
            power: Any = 0.0
            squares: Any = 0.0
            device = None
            for layer in usable:
                assert layer.total is not None
                device = device or layer.total.device
                if layer.samples == size and layer.total.device == device:
                    power = power + layer.weight * layer.total.square().sum()
                    squares = squares + layer.weight * layer.squares
            # The sum of n samples has n times the variance of one, which their spread estimates without bias.
            noise = (size * squares - power) / (size - 1)
            signal = power - noise
            slot.keep("gradient_snr", signal / noise.clamp_min(1e-6 * signal.abs() + 1e-30))
        slot.add("gradient_samples", float(size))


def _weight_of(module: nn.Module) -> Tensor | None:
    """A layer's own weight; accessing a parametrized one recomputes it, which may change the run."""
    return module._parameters.get("weight")


def _is_linear(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and isinstance(module.padding, tuple)
    return isinstance(module, nn.Linear) and module.out_features <= WIDEST


def _spread(tensor: Tensor, dimension: int, count: int) -> Tensor:
    """Evenly spaced places of a dimension: a view, because indices would have to be copied to the device."""
    stride = max(1, tensor.shape[dimension] // count)
    return tensor.movedim(dimension, -1)[..., ::stride][..., :count].movedim(-1, dimension)


def _part(module: nn.Module, entered: Tensor, columns: int) -> Tensor:
    """The part of a layer's input that meets the part of its weight: samples, places, columns."""
    if isinstance(module, nn.Conv2d):
        sizes: Any = module.kernel_size, module.dilation, module.padding, module.stride
        return nn.functional.unfold(_spread(entered, 1, CHANNELS).float(), *sizes).transpose(1, 2)
    return _in_places(_spread(entered, entered.dim() - 1, columns))


def _by_sample(module: nn.Module, entered: Tensor, grad: Tensor, rows: int) -> Tensor:
    """The gradient of each sample, one per row."""
    if isinstance(module, nn.Conv2d):
        returned = _spread(grad, 1, rows).float().flatten(2)
    else:
        returned = _in_places(_spread(grad, grad.dim() - 1, rows)).transpose(1, 2)
    return torch.bmm(returned, entered).flatten(1)


def _in_places(tensor: Tensor) -> Tensor:
    """Samples, places, features: a row of plain features is a sample with one place."""
    return tensor.float().reshape(tensor.shape[0], -1, tensor.shape[-1])
