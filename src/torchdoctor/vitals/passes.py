"""What the gauges of forward passes have in common: hooks that are on for one sampled step, and numbers about a tensor.

Everything here is a reduction on the device of a tensor that the loop has made anyway, or of a part of it where it is
large. Nothing is waited for, nothing is kept but the result, and no number leaves that a sample could be read from.
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
"""Elements of a tensor that are looked at: of a larger one, the first samples of the batch."""
TOLERATED_FAILURES = 3


class PassHook(Hook):
    """Calls a gauge's method in eager passes, and never changes what passes through."""

    def __init__(self, gauge: PassGauge, method: str) -> None:
        super().__init__(gauge, method)
        self.fired = False

    def __call__(self, *args: Any) -> None:
        """What torch calls; a traced call and one under capture would be repeated for ever, so they do nothing."""
        if torch.compiler.is_compiling():
            return
        self.fired = True
        gauge = self._target()
        if gauge is None or torch._C._current_graph_task_id() != -1:  # a checkpoint is being computed again
            return
        if (
            torch._C._len_torch_dispatch_stack()
        ):  # selective checkpoints count operations: ours would be cached for theirs
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        gauge.see(self._method, args)  # type: ignore[attr-defined]


class PassGauge(Gauge):
    """Puts hooks on when it is armed and takes them off when it is not; its own mistakes stay with it.

    A hook that has not fired may have been traced by a compiler, which would compile again if it went: it stays where
    it is, and does nothing, until it fires or the gauge is gone.
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
        """Whether the pass that a hook has fired in makes a graph: validation does not."""
        self._practising = False
        """Whether what was measured came from a pass in training mode."""
        self.spent = 0.0
        """Seconds taken inside the loop's forward passes, so far."""

    def arm(self) -> None:
        """A sampled step comes."""
        self._armed = True
        self._practising = False

    def begins(self, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """A model's forward pass begins: one in training mode counts more than a validation that makes a graph."""
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
        """The loop calls backward; a loss that is recorded into a CUDA graph is left alone."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self.see("_backward", (loss,))

    def _backward(self, loss: Tensor) -> None:
        """A loss from which backward is about to run."""

    def see(self, method: str, args: tuple[Any, ...]) -> None:
        """One hook has fired."""
        if not self._armed or self._failures >= TOLERATED_FAILURES:
            return
        began = time.perf_counter()
        self.learns = torch.is_grad_enabled()
        try:
            # What is made in inference mode cannot be kept: it has no version, and nobody may write to it later.
            with torch.inference_mode(False), torch.no_grad(), full_precision():
                getattr(self, method)(*args)
        except Exception as error:  # noqa: BLE001  an odd module is not worth a run
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
        """Take the hooks off that have done their work."""
        self._armed = False
        self.forget()
        roots.leave(self)
        done = {key: pair for key, pair in self._on.items() if pair[0].fired}
        for key in done:
            del self._on[key]
        _take_off(done)


def full_precision() -> contextlib.AbstractContextManager[Any]:
    """Hooks fire under the loop's autocast, which would make our sums of products in half precision."""
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
    """What a loop calls: the models; of one that has no forward pass of its own, the parts that have one.

    >>> [type(part).__name__ for part in entrances({"": nn.ModuleDict({"actor": nn.Linear(4, 2), "old": nn.ReLU()})})]
    ['Linear', 'ReLU']
    """
    found: list[nn.Module] = []
    for model in models.values():
        called = type(model).forward is not nn.Module.forward or is_compiled(model)
        found += [model] if called else entrances(dict(model.named_children()))
    return found


def is_plain(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is an ordinary dense tensor with something in it, on which a reduction is cheap and local."""
    return (
        type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and value.numel() > 0
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def plain_tensors(value: Any) -> Iterator[Tensor]:
    """The ordinary tensors of nested arguments, in order."""
    if is_plain(value):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from plain_tensors(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from plain_tensors(part)


def part_of(tensor: Tensor) -> Tensor:
    """The tensor without its graph, cut to its first samples where it is large."""
    tensor = tensor.detach()
    if tensor.numel() <= LARGEST or tensor.dim() == 0:
        return tensor
    return tensor[: max(1, tensor.shape[0] * LARGEST // tensor.numel())]


def rms(tensor: Tensor) -> Tensor:
    """Root mean square."""
    size: Tensor = torch.linalg.vector_norm(tensor) / math.sqrt(tensor.numel())
    return size


def deviation(tensor: Tensor) -> Tensor:
    """How far a tensor is from its mean over the batch, exactly 0 where all samples are the same.

    On a CPU, `var` takes ten times as long.
    """
    apart = tensor - tensor[:1]
    return rms(apart - apart.mean(0))


def spread(tensor: Tensor, size: Tensor) -> Tensor:
    """How much of a tensor varies with the sample: the deviation over the batch relative to the root mean square."""
    return deviation(tensor) / size.clamp_min(1e-30)


def largest(tensor: Tensor) -> Tensor:
    """The largest absolute value, NaN where there is a NaN."""
    if not tensor.is_cpu:
        size: Tensor = torch.linalg.vector_norm(tensor, math.inf)  # one kernel, but twenty times as long on a CPU
        return size
    low, high = tensor.aminmax()
    return torch.maximum(-low, high)


def share_of_zeros(tensor: Tensor) -> Tensor:
    """How much of a tensor of numbers is exactly zero."""
    return torch.eq(tensor, 0, out=torch.empty_like(tensor)).mean()


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones: a cast would drop half of each, and warn of it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def checksum(tensor: Tensor) -> Tensor:
    """A number that another batch will not have: a sum with weights that depend on the place."""
    flat = real(part_of(tensor)).flatten()
    places = torch.arange(flat.numel(), device=flat.device, dtype=torch.float32)
    weights = torch.frac(places * 0.7548777) + 1
    return torch.sum(flat.float() * weights)


def content(batch: Tensor) -> Tensor:
    """A number that another set of samples will not have, whatever their order: a mean of squared sums by sample."""
    rows = real(batch.detach()).flatten(1).float()
    weights = torch.frac(torch.arange(rows.shape[1], device=rows.device, dtype=torch.float32) * 0.7548777) - 0.5
    return torch.mv(rows, weights).square().mean()
