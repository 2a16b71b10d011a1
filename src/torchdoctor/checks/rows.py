"""Hashes and entropy of samples, to find equal ones without storing their contents."""

from __future__ import annotations

import hashlib
import itertools
import time
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks import calling
from torchdoctor.checks.check import CannotTell
from torchdoctor.checks.nested import leading
from torchdoctor.checks.subject import Subject

ENOUGH = 24.0
"""Bits per sample from which two equal samples cannot be chance."""
LOOKED_AT = 1 << 17
"""Most numbers used to estimate the information in a sample."""


def hashes(tensor: Tensor) -> list[bytes]:
    """One hash per sample.

    >>> one, other, again = hashes(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> one == again, one == other
    (True, False)
    """
    rows = tensor.detach().cpu().contiguous().reshape(tensor.shape[0], -1)
    raw = rows.view(torch.uint8).numpy() if rows.shape[1] else rows.to(torch.uint8).numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in raw]


def information(tensor: Tensor) -> float:
    """Upper bound of the bits in a sample, estimated from the values of the batch: two bits in two switches.

    >>> information(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]))
    2.0
    """
    rows = tensor.detach().reshape(tensor.shape[0], -1)
    values = rows[: max(1, LOOKED_AT // max(1, rows.shape[1]))].flatten()[:LOOKED_AT]
    _, counts = torch.unique(values.cpu(), return_counts=True)
    shares = counts.double() / max(1, int(counts.sum()))
    return float(-(shares * shares.log2()).sum()) * rows.shape[1]


def training_inputs(subject: Subject, *, batches: int, seconds: float) -> list[Tensor]:
    """The inputs of the batch, and of some batches of the loader if there is one."""
    found = leading(subject.inputs)
    kept = [] if found is None else [found]
    if subject.loader is not None and not is_one_shot(subject.loader):
        kept += inputs_of(subject.loader, batches=batches, seconds=seconds)
    return [item.detach().cpu() for item in kept if kept[0].shape[1:] == item.shape[1:]]


def inputs_of(loader: Any, *, batches: int, seconds: float) -> list[Tensor]:
    """The inputs of some batches of a loader, or of one batch."""
    if isinstance(loader, Tensor | tuple | list | dict):
        loader = [loader]
    elif is_one_shot(loader):
        raise CannotTell("the loader can be read only once, and training needs it")
    end = time.monotonic() + seconds
    kept: list[Tensor] = []
    for batch in itertools.islice(iter(loader), batches):
        found = leading(calling.split(batch)[0])
        if found is not None:
            kept.append(found)
        if time.monotonic() > end:
            break
    return kept


def is_one_shot(loader: Any) -> bool:
    """Whether reading it would use up batches: a generator, or any object that is its own iterator."""
    return hasattr(loader, "__next__") or not hasattr(loader, "__iter__")
