"""The rank gauge: how long each rank needs for its own part of a step, and how the ranks compare.

If several processes train together and write journals, each measures its forward pass, in which no rank waits for
another. The first rank reads all journals in a separate thread: see `torchdoctor.ranks`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchdoctor.ranks import Ranks
from torchdoctor.vitals.context import rank, world_size
from torchdoctor.vitals.gauge import Tell
from torchdoctor.vitals.passes import PassGauge, entrances
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.transfer import Slot

SECONDS = 1.0
"""Time between two readings of the other journals."""
WRAPPERS = ("DistributedDataParallel", "DataParallel")
"""Wrappers whose own forward pass may wait for other ranks."""


class RankGauge(PassGauge):
    """Times the forward passes of sampled steps; on the first rank, it also hands over the comparison's results."""

    def __init__(self, setup: Setup, tell: Tell) -> None:
        super().__init__(tell)
        self._entrances = [_inside(module) for module in entrances(setup.models)]
        self._began: Any = None
        self._passed: list[tuple[Any, Any]] = []
        """Start and end of each forward pass of this step."""
        self._waiting: list[tuple[Any, Any]] = []
        """Those of an earlier step whose end the device has not reached yet."""
        self._reader = None
        if rank() == 0 and setup.folder is not None:
            self._reader = _Reader(Ranks(_journal(setup.folder), world_size(), kind_of(setup.models.values())))
            weakref.finalize(self, self._reader.stop).atexit = False

    @staticmethod
    def wanted(setup: Setup) -> bool:
        """Whether several processes train and write journals."""
        return setup.folder is not None and world_size() > 1

    def arm(self) -> None:
        """Time the next forward passes."""
        super().arm()
        self._passed, self._began = [], None
        for module in self._entrances:
            self.before(module, "_begins")
            self.after(module, "_ends")

    def _begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.learns:
            self._began = _now(module)

    def _ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.learns and self._began is not None:
            self._passed.append((self._began, _now(module)))
            self._began = None

    def after_step(self, index: int, slot: Slot) -> None:
        """Hand over what this rank's passes took, and what is known about all ranks."""
        waiting, self._waiting, self._passed = self._waiting or self._passed, self._passed, []
        taken = [_between(*pair) for pair in (waiting if _is_device(waiting) else self._waiting)]
        if taken and None not in taken:
            slot.add("forward_seconds", sum(second for second in taken if second is not None))
        if self._reader is not None:
            for name, value in self._reader.news().items():
                slot.add(name, value)


class _Reader:
    """Reads the journals of all ranks at intervals, in a thread that nothing waits for."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._found: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchdoctor-ranks", daemon=True)
        self._thread.start()

    def news(self) -> dict[str, float]:
        """What was found since the last call."""
        found, self._found = self._found, {}
        return found

    def stop(self) -> None:
        """Stop reading."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            try:
                self._found = self._ranks.compare()
            except Exception:  # noqa: BLE001  a journal may contain anything
                return


def kind_of(models: Iterable[nn.Module]) -> str:
    """What each rank holds: "replicas" of a model, "shards" of it, or "" if the model does not show it.

    >>> kind_of([nn.Linear(2, 2)])
    ''
    """
    kinds = {type(part).__name__ for model in models for part in model.modules()}
    sharded = any(hasattr(tensor, "to_local") for model in models for tensor in model.parameters())
    if sharded or any(name.startswith(("FullySharded", "FSDP", "Pipeline")) for name in kinds):
        return "shards"
    if any(name.endswith("ParallelLinear") or "ParallelEmbedding" in name for name in kinds):
        return "shards"
    return "replicas" if "DistributedDataParallel" in kinds else ""


def _inside(module: nn.Module) -> nn.Module:
    while type(module).__name__ in WRAPPERS and isinstance(module.module, nn.Module):
        module = module.module
    return module


def _journal(folder: Path) -> Path:
    return folder if folder.suffix == ".jsonl" else folder / "journal.jsonl"


def _now(module: nn.Module) -> Any:
    """The time on the module's device: an event that nothing waits for, or the host's clock."""
    tensor = next(module.parameters(), None)
    if tensor is None or tensor.device.type != "cuda":
        return time.perf_counter()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _is_device(pairs: list[tuple[Any, Any]]) -> bool:
    return bool(pairs) and not isinstance(pairs[0][0], float)


def _between(began: Any, ended: Any) -> float | None:
    """Seconds between two times; None if the device has not got there yet."""
    if isinstance(began, float):
        return float(ended) - began
    return float(began.elapsed_time(ended)) / 1000 if ended.query() else None
