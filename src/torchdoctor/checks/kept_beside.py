"""Random numbers that a model keeps outside its parameters and buffers, where checkpoints do not include them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchdoctor.checks.probing import answer, moved_by
from torchdoctor.checks.subject import Subject
from torchdoctor.vitals.census import hidden_tensors

FEWEST = 8
"""Fewest numbers for telling random ones from others."""
MOST = 4096
"""Most numbers that are examined."""
SMOOTH = 0.25
"""Mean squared step between neighbors, as a share of what random numbers would have, below which they are smooth."""


def kept_beside(subject: Subject, most: float) -> list[str]:
    """Attributes with random numbers that, when changed, change the outputs by more than `most` of their size."""
    candidates = dict(_constants(subject))
    if not candidates:
        return []
    before = answer(subject)
    found = []
    for name, tensor in candidates.items():
        with subject.fresh(), torch.no_grad():
            tensor.data.add_(tensor.float().std() * torch.randn_like(tensor))
            if moved_by(before, answer(subject)) > most:
                found.append(name)
    return found


def _constants(subject: Subject) -> Iterator[tuple[str, Tensor]]:
    """Tensors in plain attributes that look random and that a pass in train mode does not change."""
    known = {
        item.untyped_storage().data_ptr()
        for module in subject.modules.values()
        for item in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }
    found = {
        (name, attribute): (tensor, tensor.detach().clone())
        for name, module in subject.modules.items()
        for attribute, tensor in hidden_tensors(module)
        if not isinstance(tensor, nn.Parameter)
        and tensor.is_floating_point()
        and tensor.is_leaf
        and tensor.untyped_storage().data_ptr() not in known
        and not _is_handed(module, attribute)
        and looks_random(tensor)
    }
    if not found:
        return
    with subject.fresh(), torch.no_grad():
        subject.model.train()
        subject.forward()
        kept = {
            id(tensor): tensor.detach().clone()
            for module in subject.modules.values()
            for _, tensor in hidden_tensors(module)
        }
    for (name, attribute), (tensor, values) in found.items():
        if id(tensor) in kept and torch.equal(kept[id(tensor)], values):
            yield f"{name}.{attribute}".removeprefix("model."), tensor


def _is_handed(module: nn.Module, attribute: str) -> bool:
    """Whether the constructor takes a parameter of that name, so that rebuilding the model restores it."""
    try:
        taken = inspect.signature(type(module).__init__).parameters
    except (TypeError, ValueError):
        return True
    return attribute.strip("_") in {name.strip("_") for name in taken}


def looks_random(tensor: Tensor) -> bool:
    """Whether numbers look random: many, all different, with many digits, and each unlike its neighbors.

    >>> generator = torch.Generator().manual_seed(0)
    >>> looks_random(torch.randn(16, generator=generator)), looks_random(torch.linspace(0, 1, 17))
    (True, False)
    """
    values = tensor.detach().double().cpu()
    if values.numel() < FEWEST or not bool(torch.isfinite(values).all()):
        return False
    some = values.flatten()[:MOST]
    written = (some * 1e4 - (some * 1e4).round()).abs() < 1e-3 * some.abs().clamp_min(1e-3)
    if float(written.double().mean()) > 0.5:
        return False
    if len(set(some.float().abs().tolist())) < 0.98 * some.numel():
        return False
    return not any(_is_smooth(values, axis) for axis in range(values.dim()))


def _is_smooth(values: Tensor, axis: int) -> bool:
    """Whether a fifth of the lines along an axis (half if short) change in small steps or alternate."""
    lines = values.movedim(axis, -1).flatten(0, -2) if values.dim() > 1 else values[None]
    if lines.shape[-1] < 5:
        return False
    spread = (lines - lines.mean(-1, keepdim=True)).square().mean(-1).clamp_min(1e-30)
    steps = lines.diff(dim=-1).square().mean(-1) / (2 * spread)
    ordered = (steps < SMOOTH) | (steps > 2 - SMOOTH)
    return float(ordered.double().mean()) > (0.2 if lines.shape[-1] >= FEWEST else 0.5)
