"""CK04 memory-use."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.subject import Subject

GIGABYTE = 1024**3


@dataclass(frozen=True)
class MemoryUse(Check):
    """A forward and backward pass fits in memory, and frees it afterwards.

    ## What it checks
    What autograd keeps for the backward pass, module by module, plus the gradients; on CUDA also the allocator's peak.
    Further passes must not need more than the first: a model that stores its outputs, losses or hidden states also
    keeps the graphs behind them.

    ## How it is told apart
    The limit is 1 GB, or 10 % of the device's memory if that is more, for the pass as it runs here. If the batch was
    reduced, the need of the whole batch is estimated, and the check fails if the device does not have that much. An
    explicit limit (`memory=`) applies to the whole batch. A model may store its latest output, for instance for a
    plot: it then keeps one graph, not one more per pass.

    ## What to do
    Use smaller batches with accumulation, activation checkpointing in the named modules, bfloat16, or fused attention.
    If memory grows: `self.hidden = hidden.detach()`, `losses.append(loss.item())`.

    ## Example
    >>> subject = Subject.of(nn.Linear(1000, 1000), nn.MSELoss(), (torch.ones(4, 1000), torch.ones(4, 1000)))
    >>> print(MemoryUse().run(subject).message)
    a pass over 4 samples takes 3.9 MB: 3.8 MB of gradients and 0.1 MB kept for backward, most in the loss, model
    """

    code = "CK04"
    name = "memory-use"
    quick = True
    suggests = ("free-memory", "change-batch-size")
    references = ("https://pytorch.org/docs/stable/checkpoint.html",)

    limit: int = GIGABYTE
    """Bytes that a pass may take if no limit is given."""
    share: float = 0.1
    """Share of the device's memory that a pass may take if that is more."""
    more: int = 3
    """Further passes, to see whether memory grows."""

    def run(self, subject: Subject) -> Outcome:
        """Run several passes: measure what they keep, and what remains of them."""
        subject.model.train()
        kept, gradients = Kept(), sum(p.numel() * p.element_size() for p in _trainable(subject))
        peak = _pass(subject, kept)
        with _new_objects():
            held = [_held()]
            for number in range(2, 2 + self.more):
                try:
                    subject.gradients()
                except RuntimeError as error:
                    if "second time" not in str(error):
                        raise
                    return self.failed(
                        f"pass number {number} goes back into the graph of the pass before, which is already freed",
                        "Detach what the model keeps between batches: self.hidden = self.hidden.detach().",
                    )
                held.append(_held())
        if all(after > before for before, after in pairwise(held)):
            return self.failed(
                f"memory grows with each pass: {held[-1] - held[0]} tensors of {self.more} passes, with the graphs "
                "behind them, are still held",
                "Keep numbers, not tensors with a graph: loss.item(), hidden.detach().",
                value=float(held[-1] - held[0]),
            )
        return self._judged(subject, kept, gradients, peak)

    def _judged(self, subject: Subject, kept: Kept, gradients: int, peak: int | None) -> Outcome:
        activations = kept.total
        used = max(activations + gradients, peak or 0)
        whole = used + round(activations * (subject.whole_size / max(1, subject.size) - 1))
        most = [name for name, _ in kept.by_module.most_common(3)]
        where = f", most in {', '.join(most)}" if most else ""
        samples = f"{subject.samples} sample{'s' if subject.samples > 1 else ''}"
        message = (
            f"a pass over {samples} takes {_megabytes(used)}: {_megabytes(gradients)} of gradients and "
            f"{_megabytes(activations)} kept for backward{where}"
        )
        if subject.whole_size > subject.size:
            message += f"; the whole batch of {subject.whole} will take about {_megabytes(whole)}"
        details = {"bytes": used, "bytes_whole_batch": whole, "by_module": dict(kept.by_module.most_common(20))}
        device = _capacity(subject.device)
        limit = max(self.limit, round(self.share * (device or 0))) if subject.memory is None else subject.memory
        judged = used if subject.memory is None else whole
        if device is not None and whole > device:
            message += f", and {subject.device} has {_megabytes(device)}"
        elif judged > limit:
            message += f", above the limit of {_megabytes(limit)}"
        else:
            return self.passed(message, value=float(used), limit=float(limit), **details)
        lacking = device is not None and whole > device
        return self.failed(
            message,
            "Use smaller batches with accumulation, checkpoint the named modules, or use bfloat16; "
            "or set a higher limit with memory=.",
            where=tuple(most),
            value=float(whole if lacking else judged),
            limit=float(device if lacking and device is not None else limit),
            severity="critical" if lacking else "warning",
            **details,
        )


class Kept:
    """What autograd keeps in a pass: each storage is counted once, for the module that was running."""

    def __init__(self) -> None:
        self.by_module: Counter[str] = Counter()
        self.total = 0
        self.running: list[str] = []
        self._seen: set[int] = set()

    def skip(self, tensors: Iterator[Tensor]) -> None:
        """Do not count these: they exist anyway."""
        self._seen.update(_storage(tensor)[0] for tensor in tensors)

    def pack(self, tensor: Tensor) -> Tensor:
        """Called when autograd keeps a tensor."""
        place, size = _storage(tensor)
        size = 0 if place in self._seen else size
        self._seen.add(place)
        self.total += size
        if size:
            self.by_module[self.running[-1] if self.running else "the loss"] += size
        # Not the tensor itself: an output kept by its own node would keep the graph alive forever.
        return tensor.detach()


@contextmanager
def _new_objects() -> Iterator[None]:
    """Limit the collector to new objects, which is quick, unless the user has already called gc.freeze."""
    mine = gc.get_freeze_count() == 0
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()


def _held() -> int:
    """How many tensors with a graph are alive."""
    gc.collect()
    found = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
    return sum(item.grad_fn is not None for item in found)


def _storage(tensor: Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):  # sparse, or a subclass without storage
        return id(tensor), tensor.numel() * tensor.element_size()


def _trainable(subject: Subject) -> Iterator[nn.Parameter]:
    return (item for item in subject.parameters.values() if item.requires_grad)


def _pass(subject: Subject, kept: Kept) -> int | None:
    """Run a forward and backward pass; returns the allocator's peak on CUDA."""
    kept.skip(iter(subject.parameters.values()))
    cuda = subject.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(subject.device)
        torch.cuda.reset_peak_memory_stats(subject.device)
        before = torch.cuda.memory_allocated(subject.device)
    with subject.running(kept.running):
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
            loss = subject.loss()
        subject.gradients(loss)
    if cuda:
        torch.cuda.synchronize(subject.device)
        return torch.cuda.max_memory_allocated(subject.device) - before
    return None


def _capacity(device: torch.device) -> int | None:
    """The total memory of a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if device.type == "cpu" else None
    except (AttributeError, ValueError, OSError):
        return None


def _megabytes(count: int) -> str:
    """A size in readable form.

    >>> _megabytes(5 * GIGABYTE), _megabytes(3_000_000)
    ('5.0 GB', '2.9 MB')
    """
    return f"{count / GIGABYTE:.1f} GB" if count >= GIGABYTE else f"{max(count / 1024**2, 0.1 * (count > 0)):.1f} MB"
