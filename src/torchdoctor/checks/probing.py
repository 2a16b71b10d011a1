"""How checks probe a model: change the inputs of some samples or positions, and measure how the output changes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.checks.check import CannotTell
from torchdoctor.checks.nested import leading
from torchdoctor.checks.subject import Subject
from torchdoctor.vitals.batch_numbers import is_whole
from torchdoctor.vitals.loss_inputs import Compared, what_is_compared

SAME = 1e-5
"""Largest change, as a share of the outputs' size, that counts as no change: kernels may sum in another order."""
SLEEPING = 0.02
"""Standard deviation of the random numbers that replace weights of exactly zero."""


def seed(number: int = 0) -> None:
    """Seed every random state."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@torch.no_grad()
def awaken(subject: Subject) -> None:
    """Fill trainable weights that are all zero (a gate, a last layer), so that the paths behind them become visible.

    >>> subject = Subject.of(nn.Linear(2, 1), None, torch.ones(1, 2))
    >>> _ = nn.init.zeros_(subject.model.weight)
    >>> awaken(subject)
    >>> bool(subject.model.weight.any())
    True
    """
    for parameter in subject.parameters.values():
        if parameter.requires_grad and parameter.is_floating_point() and not parameter.any():
            parameter.normal_(0.0, SLEEPING)


@torch.no_grad()
def answer(
    subject: Subject, inputs: Any = None, targets: Any = None, *, training: bool = False, number: int = 0
) -> Tensor:
    """The prediction, with the same random numbers every time; in eval mode unless `training`."""
    subject.model.train(training)
    seed(number)
    found = subject.prediction(subject.forward(inputs, targets))
    if found is None or not found.dim():
        raise CannotTell("the model's output has no tensor with one entry per sample")
    return found.detach().clone()


def moved_by(before: Tensor, after: Tensor) -> float:
    """How much the outputs changed, relative to their size: 0 if they are the same."""
    before, after = before.double(), after.double()
    size = before.square().mean().sqrt().clamp_min(1e-30)
    return float((before - after).abs().amax() / size) if before.numel() else 0.0


def altered(subject: Subject, where: Tensor) -> Any:
    """The inputs with other content in some samples (`where` of shape (samples,)) or positions (samples, length).

    Numbers get noise of their own scale, tokens become other tokens of the batch. Masks and lengths do not change.

    >>> subject = Subject.of(nn.Linear(2, 1), None, torch.ones(3, 2))
    >>> (altered(subject, torch.tensor([False, True, False])) != subject.inputs).any(1)
    tensor([False,  True, False])
    """
    tokens = subject.tokens
    if tokens is not None:
        made, read = subject.with_tokens(_altered_tensor(tokens, where)), subject.read_tokens
        return made if read is None or read is tokens or where.dim() > 1 else _replaced(made, read, where)
    return _altered(subject.inputs, where, _has_numbers(subject.inputs))


def _replaced(inputs: Any, old: Tensor, where: Tensor) -> Any:
    """The inputs with other content in one of them: an encoder's input next to a decoder's tokens."""
    pairs = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    made = {key: _altered_tensor(item, where) if item is old else item for key, item in pairs}
    return made if isinstance(inputs, Mapping) else tuple(made.values())


def _altered(thing: Any, where: Tensor, numbers: bool) -> Any:
    if isinstance(thing, Tensor):
        wanted = thing.is_floating_point() if numbers else is_whole(thing)
        fits = thing.dim() >= where.dim() and thing.shape[: where.dim()] == where.shape
        return _altered_tensor(thing, where) if wanted and fits else thing
    if isinstance(thing, Mapping):
        return {key: item if "mask" in str(key) else _altered(item, where, numbers) for key, item in thing.items()}
    if isinstance(thing, tuple | list) and not hasattr(thing, "_fields"):
        return type(thing)(_altered(item, where, numbers) for item in thing)
    return thing


def _altered_tensor(tensor: Tensor, where: Tensor) -> Tensor:
    if tensor.is_floating_point():
        finite = torch.nan_to_num(tensor.detach().float(), 0.0, 0.0, 0.0)
        scale = float(finite.std(correction=0)) or float(finite.abs().amax()) or 1.0
        other = tensor.detach() + scale * torch.randn_like(tensor)
    else:
        flat = tensor.flatten()
        other = flat[torch.randperm(flat.numel(), device=flat.device)].view_as(tensor)
        least, most = int(flat.amin()), int(flat.amax())
        # Where the draw gave the old number again, take the next one between the least and the most.
        other = torch.where(other == tensor, (tensor - least + 1) % max(1, most - least + 1) + least, other)
    shape = (*where.shape, *[1] * (tensor.dim() - where.dim()))
    return torch.where(where.view(shape), other, tensor.detach())


def _has_numbers(thing: Any) -> bool:
    if isinstance(thing, Tensor):
        return thing.is_floating_point()
    items = thing.items() if isinstance(thing, Mapping) else enumerate(thing) if isinstance(thing, tuple | list) else ()
    return any("mask" not in str(key) and _has_numbers(item) for key, item in items)


def cut(subject: Subject, places: Sequence[int]) -> Subject:
    """The subject with only some of the samples.

    >>> subject = Subject.of(nn.Linear(1, 1), None, torch.arange(6.0)[:, None])
    >>> cut(subject, [0, 3]).inputs.flatten()
    tensor([0., 3.])
    """
    samples = subject.samples
    inputs, targets = (_cut(thing, list(places), samples) for thing in (subject.inputs, subject.targets))
    return replace(subject, inputs=inputs, targets=targets)


def _cut(thing: Any, places: list[int], samples: int) -> Any:
    if isinstance(thing, Tensor):
        return thing[places] if thing.dim() and thing.shape[0] == samples else thing
    if isinstance(thing, Mapping):
        return {key: _cut(item, places, samples) for key, item in thing.items()}
    if isinstance(thing, tuple) and not hasattr(thing, "_fields"):
        return tuple(_cut(item, places, samples) for item in thing)
    if isinstance(thing, list):
        chosen = [thing[place] for place in places] if len(thing) == samples else thing
        return [_cut(item, places, samples) for item in chosen] if chosen is thing else chosen
    return thing


def by_sample(subject: Subject, output: Tensor) -> Tensor:
    """An output as one row per sample."""
    samples = subject.samples
    if output.shape[0] == samples:
        return output.reshape(samples, -1)
    if output.shape[0] % samples == 0 and output.dim() > 1:  # positions flattened into one long batch
        return output.reshape(samples, -1)
    if output.dim() > 1 and output.shape[1] == samples:
        return output.transpose(0, 1).reshape(samples, -1)
    raise CannotTell(f"no dimension of the output, {tuple(output.shape)}, matches the {samples} samples of the batch")


def next_along(subject: Subject, dimension: int) -> bool:
    """Whether the targets are the inputs shifted by one along a dimension, as in next-token prediction."""
    inputs, targets = leading(subject.inputs), subject.targets
    if inputs is None or not isinstance(targets, Tensor) or inputs.dim() < 2 or min(inputs.shape[:2]) < 2:
        return False
    if targets.shape != inputs.shape:
        if targets.numel() != inputs.numel():
            return False
        targets = targets.reshape(inputs.shape)
    length = inputs.shape[dimension]
    following, asked = inputs.narrow(dimension, 1, length - 1), targets.narrow(dimension, 0, length - 1)
    counted = asked >= 0 if is_whole(targets) else torch.ones_like(asked, dtype=torch.bool)
    same = (following == asked) & counted
    return bool(counted.float().mean() > 0.1) and bool(same.sum() > 0.95 * counted.sum())


def whole_loss(subject: Subject) -> str | None:
    """Why the model's output cannot be seen, if only its loss can be computed."""
    if len(subject.models) > 1 or subject.calling.loss == "whole":
        return "the loss runs the model itself, so its output cannot be seen"
    return None


def compared(loss: Tensor) -> Compared | None:
    """What the loss compares, if it is a single comparison of outputs with targets and nothing else."""
    found = what_is_compared(loss)
    if found is None or found.between_outputs:
        return None
    value = found.module.to(found.output.device)(found.output, found.target)
    value = value.mean() if value.dim() else value  # without reduction, the caller probably takes the mean
    alone = bool((value - loss.detach()).abs() <= 1e-3 * loss.detach().abs() + 1e-6)
    return found if alone else None


def guess(found: Compared) -> float | None:
    """The loss on these targets of the best constant guess, by the loss's own measure."""
    module, output, target = found.module, found.output, found.target
    if isinstance(module, nn.NLLLoss):
        labels = target.flatten()
        labels = labels[labels != module.ignore_index]
        if not labels.numel():
            return None
        shares = torch.bincount(labels).float() / labels.numel()
        cost = -float((shares * shares.clamp_min(1e-30).log()).sum())
        return cost * (labels.numel() if module.reduction == "sum" else 1)
    if target.shape != output.shape or not target.is_floating_point():
        return None
    known = target.float()
    mean = known.mean(0, keepdim=True)
    if isinstance(module, nn.BCEWithLogitsLoss):
        mean = torch.logit(mean, 1e-4)
    return float(module(mean.expand_as(known), known))


def uncertain(found: Compared) -> float | None:
    """The mean loss of a uniform guess, such as ln C; None if the loss has no such value."""
    if isinstance(found.module, nn.NLLLoss):
        return math.log(found.output.shape[1])
    if isinstance(found.module, nn.BCEWithLogitsLoss | nn.BCELoss):
        return math.log(2.0)
    return None


def mean_of(found: Compared) -> float:
    """The mean over everything compared, regardless of the loss's own weights and reduction."""
    output, target = found.output.float(), found.target
    if isinstance(found.module, nn.NLLLoss):
        return float(functional.nll_loss(output, target, ignore_index=found.module.ignore_index))
    if isinstance(found.module, nn.BCEWithLogitsLoss):
        return float(functional.binary_cross_entropy_with_logits(output, target.float()))
    plain = type(found.module)()
    return float(plain(output, target.float()))
