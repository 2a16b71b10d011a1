"""How checks ask a model: other inputs for some samples or positions, and what of the output changes with them."""

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
"""Share of the outputs' size up to which two of them are the same: kernels may add in another order."""
SLEEPING = 0.02
"""Scale of the numbers that wake up weights that are exactly zero."""


def seed(number: int = 0) -> None:
    """Seed every random state."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


@torch.no_grad()
def awaken(subject: Subject) -> None:
    """Fill trainable weights that are all zero (a gate, a last layer), so that what they switch off can be seen.

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
    """The prediction, with the same random numbers every time; in eval mode unless told otherwise."""
    subject.model.train(training)
    seed(number)
    found = subject.prediction(subject.forward(inputs, targets))
    if found is None or not found.dim():
        raise CannotTell("the model's output holds no tensor with one entry a sample")
    return found.detach().clone()


def moved_by(before: Tensor, after: Tensor) -> float:
    """How far outputs moved, relative to their size: 0 where they are the same."""
    before, after = before.double(), after.double()
    size = before.square().mean().sqrt().clamp_min(1e-30)
    return float((before - after).abs().amax() / size) if before.numel() else 0.0


def altered(subject: Subject, where: Tensor) -> Any:
    """The inputs with other contents in some samples (`where` of shape (samples,)) or positions (samples, length).

    Numbers get noise of their own scale, tokens become other tokens of the batch. Masks and lengths stay as they are.

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
    """The inputs with other contents in one of them: what an encoder reads, beside a decoder's tokens."""
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
        # The next of the numbers between the least and the most where the draw gave the old one again.
        other = torch.where(other == tensor, (tensor - least + 1) % max(1, most - least + 1) + least, other)
    shape = (*where.shape, *[1] * (tensor.dim() - where.dim()))
    return torch.where(where.view(shape), other, tensor.detach())


def _has_numbers(thing: Any) -> bool:
    if isinstance(thing, Tensor):
        return thing.is_floating_point()
    items = thing.items() if isinstance(thing, Mapping) else enumerate(thing) if isinstance(thing, tuple | list) else ()
    return any("mask" not in str(key) and _has_numbers(item) for key, item in items)


def cut(subject: Subject, places: Sequence[int]) -> Subject:
    """The same with some of the samples.

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
    """An output as one row a sample."""
    samples = subject.samples
    if output.shape[0] == samples:
        return output.reshape(samples, -1)
    if output.shape[0] % samples == 0 and output.dim() > 1:  # positions as one long batch
        return output.reshape(samples, -1)
    if output.dim() > 1 and output.shape[1] == samples:
        return output.transpose(0, 1).reshape(samples, -1)
    raise CannotTell(
        f"no dimension of the output, {tuple(output.shape)}, belongs to the {samples} samples of the batch"
    )


def next_along(subject: Subject, dimension: int) -> bool:
    """Whether the targets are the inputs, one place on along a dimension: what comes next is to be told."""
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
    """Why a model's output cannot be had, where only its loss can."""
    if len(subject.models) > 1 or subject.calling.loss == "whole":
        return "the loss runs the model itself, so that its output is not seen"
    return None


def compared(loss: Tensor) -> Compared | None:
    """What the loss compares, where it consists of one comparison of outputs with targets and nothing else."""
    found = what_is_compared(loss)
    if found is None or found.between_outputs:
        return None
    value = found.module.to(found.output.device)(found.output, found.target)
    value = value.mean() if value.dim() else value  # without reduction: the mean is taken, or something else is done
    alone = bool((value - loss.detach()).abs() <= 1e-3 * loss.detach().abs() + 1e-6)
    return found if alone else None


def guess(found: Compared) -> float | None:
    """What the best answer that knows nothing of the inputs would cost on these targets, by the loss's own measure."""
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
    """The mean loss of an answer that is as unsure as can be: ln C; None where the loss has no such thing."""
    if isinstance(found.module, nn.NLLLoss):
        return math.log(found.output.shape[1])
    if isinstance(found.module, nn.BCEWithLogitsLoss | nn.BCELoss):
        return math.log(2.0)
    return None


def mean_of(found: Compared) -> float:
    """The mean of a comparison over all that is compared, whatever weights and reduction it has itself."""
    output, target = found.output.float(), found.target
    if isinstance(found.module, nn.NLLLoss):
        return float(functional.nll_loss(output, target, ignore_index=found.module.ignore_index))
    if isinstance(found.module, nn.BCEWithLogitsLoss):
        return float(functional.binary_cross_entropy_with_logits(output, target.float()))
    plain = type(found.module)()
    return float(plain(output, target.float()))
