"""Base class for gauges of forward passes, with hooks that are on for one sampled step; and statistics of tensors.

Everything here reduces, on the device, a tensor that the loop has made anyway, or a part of a large one. Nothing waits,
only results are kept, and no number leaves that a sample could be reconstructed from.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from torchdoctor.vitals import roots
from torchdoctor.vitals.gauge import Gauge, Tell
from torchdoctor.vitals.hooks import Handle, Hook
from torchdoctor.vitals.transfer import Slot

LARGEST = 1 << 20
"""Maximum elements of a tensor that are looked at: for a larger one, the first samples of the batch."""
TOLERATED_FAILURES = 3


class PassHook(Hook):
    """Calls a gauge's method in eager passes, and never changes what passes through."""

    def __init__(self, gauge: PassGauge, method: str) -> None:
        super().__init__(gauge, method)
        self.fired = False

    def __call__(self, *args: Any) -> None:
        """What torch calls; it does nothing while a compiler traces or a CUDA graph records, which would repeat it."""
        if torch.compiler.is_compiling():
            return
        self.fired = True
        gauge = self._target()
        if gauge is None or torch._C._current_graph_task_id() != -1:  # a checkpoint is being recomputed
            return
        if (
            torch._C._len_torch_dispatch_stack()
        ):  # selective checkpointing counts operations: ours would be cached in place of the model's
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        gauge.see(self._method, args)  # type: ignore[attr-defined]


class PassGauge(Gauge):
    """Puts hooks on when armed and takes them off when disarmed; its errors do not reach the loop.

    A compiler may have traced a hook that has not fired, and would recompile if it were removed. Such a hook stays and
    does nothing until it fires or the gauge is gone.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self._on: dict[tuple[int, str], tuple[PassHook, Handle]] = {}
        weakref.finalize(self, _take_off, self._on).atexit = False
        self._armed = False
        self._failures = 0
        self._scalars: dict[str, Tensor] = {}
        """What was measured in this step, by vital."""
        self.learns = False
        """Whether the current pass records a graph: validation passes do not."""
        self._practising = False
        """Whether the measurements come from a pass in training mode."""
        self.spent = 0.0
        """Seconds taken inside the loop's forward passes so far."""

    def arm(self) -> None:
        """A sampled step comes next."""
        self._armed = True
        self._practising = False

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A forward pass begins: one in training mode replaces measurements from a validation with a graph."""
        if self.learns and module.training and not self._practising:
            self._practising = True
            self.forget()

    def forget(self) -> None:
        """Drop what was measured in this step."""
        self._scalars = {}

    def before(self, module: nn.Module, method: str) -> None:
        """Have a method called with module, arguments and keywords before each of the module's forward passes."""
        if (id(module), method) not in self._on:
            hook = PassHook(self, method)
            self._on[id(module), method] = hook, module.register_forward_pre_hook(hook, with_kwargs=True)

    def after(self, module: nn.Module, method: str) -> None:
        """Have a method called with module, arguments and output after each of the module's forward passes."""
        if (id(module), method) not in self._on:
            hook = PassHook(self, method)
            self._on[id(module), method] = hook, module.register_forward_hook(hook)

    def at_backward(self) -> None:
        """Have `_backward` called with the loss before each backward of this sample."""
        roots.watch(self)

    def backward_begins(self, loss: Tensor) -> None:
        """The loop calls backward; ignored while a CUDA graph is recorded."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self.see("_backward", (loss,))

    def _backward(self, loss: Tensor) -> None:
        """Backward is about to run from this loss."""

    def see(self, method: str, args: tuple[Any, ...]) -> None:
        """Run the method for a hook that has fired."""
        if not self._armed or self._failures >= TOLERATED_FAILURES:
            return
        began = time.perf_counter()
        self.learns = torch.is_grad_enabled()
        try:
            # Tensors made in inference mode cannot be kept: they have no version, and nothing may write to them later.
            with torch.inference_mode(False), torch.no_grad(), full_precision():
                getattr(self, method)(*args)
        except Exception as error:  # noqa: BLE001  an unusual module must not stop the run
            self._failures += 1
            if self._failures == TOLERATED_FAILURES:
                self.tell({f"gauges.{type(self).__name__}": f"switched off: {type(error).__name__}: {error}"})
        self.spent += time.perf_counter() - began

    def before_step(self, index: int, slot: Slot) -> None:
        """Hand over what was measured."""
        for vital, scalar in self._scalars.items():
            slot.keep(vital, scalar)
        self._scalars = {}

    def disarm(self) -> None:
        """Take off the hooks that have fired."""
        self._armed = False
        self.forget()
        roots.leave(self)
        done = {key: pair for key, pair in self._on.items() if pair[0].fired}
        for key in done:
            del self._on[key]
        _take_off(done)


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """Disable the loop's autocast, under which our sums of products would be in half precision."""
    kind = next((kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)), None)
    return contextlib.nullcontext() if kind is None else torch.autocast(kind, enabled=False)


def _take_off(hooks: dict[tuple[int, str], tuple[PassHook, Handle]]) -> None:
    for _, handle in hooks.values():
        handle.remove()
    hooks.clear()


def is_compiled(module: nn.Module) -> bool:
    """Whether a module's calls run as compiled code: a hook inside would break its graph."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def entrances(models: Mapping[str, nn.Module]) -> list[nn.Module]:
    """What a loop calls: the models, or, for a model without a forward pass of its own, its parts that have one.

    >>> [type(part).__name__ for part in entrances({"": nn.ModuleDict({"actor": nn.Linear(4, 2), "old": nn.ReLU()})})]
    ['Linear', 'ReLU']
    """
    found: list[nn.Module] = []
    for model in models.values():
        called = type(model).forward is not nn.Module.forward or is_compiled(model)
        found += [model] if called else entrances(dict(model.named_children()))
    return found


def is_plain(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is an ordinary, dense, non-empty tensor, so that reducing it is cheap and local."""
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and value.numel() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def plain_tensors(value: Any) -> Iterator[Tensor]:
    """The ordinary tensors in nested arguments, in order."""
    if is_plain(value):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from plain_tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from plain_tensors(part)


def part_of(tensor: Tensor) -> Tensor:
    """The detached tensor, cut to its first samples if it is large."""
    tensor = tensor.detach()
    if tensor.numel() <= LARGEST or tensor.dim() == 0:
        return tensor
    return tensor[: max(1, tensor.shape[0] * LARGEST // tensor.numel())]


def rms(tensor: Tensor) -> Tensor:
    """Root mean square."""
    size: Tensor = torch.linalg.vector_norm(tensor) / math.sqrt(tensor.numel())
    return size


def deviation(tensor: Tensor) -> Tensor:
    """How far a tensor is from its mean over the batch; exactly 0 if all samples are equal.

    On a CPU, `var` takes ten times as long.
    """
    apart = tensor - tensor[:1]
    return rms(apart - apart.mean(0))


def spread(tensor: Tensor, size: Tensor) -> Tensor:
    """How much of a tensor varies between samples: the deviation over the batch relative to the root mean square."""
    return deviation(tensor) / size.clamp_min(1e-30)


def largest(tensor: Tensor) -> Tensor:
    """The largest absolute value; NaN if there is a NaN."""
    if not tensor.is_cpu:
        size: Tensor = torch.linalg.vector_norm(tensor, math.inf)  # one kernel, but 20 times slower on a CPU
        return size
    low, high = tensor.aminmax()
    return torch.maximum(-low, high)


def share_of_zeros(tensor: Tensor) -> Tensor:
    """Share of a tensor's elements that are exactly zero."""
    return torch.eq(tensor, 0, out=torch.empty_like(tensor)).mean()


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones: a cast would drop half of each and warn about it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def checksum(tensor: Tensor) -> Tensor:
    """A number that another batch does not have: a sum with weights that depend on the position."""
    flat = real(part_of(tensor)).flatten()
    places = torch.arange(flat.numel(), device=flat.device, dtype=torch.float32)
    weights = torch.frac(places * 0.7548777) + 1
    return torch.sum(flat.float() * weights)


def content(batch: Tensor) -> Tensor:
    """A number that another set of samples does not have, in any order: a mean of squared sums by sample."""
    rows = real(batch.detach()).flatten(1).float()
    weights = torch.frac(torch.arange(rows.shape[1], device=rows.device, dtype=torch.float32) * 0.7548777) - 0.5
    return torch.mv(rows, weights).square().mean()
