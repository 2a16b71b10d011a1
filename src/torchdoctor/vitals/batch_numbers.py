"""Numbers that describe a batch: columns that follow the labels, padding, repeated tokens, class counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.passes import LARGEST, is_plain, part_of

IGNORED = -100
"""The label that torch's losses ignore."""
MOST_CLASSES = 4096
BINARY = (nn.BCEWithLogitsLoss, nn.BCELoss)
ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, *BINARY)
USUAL = 0.1
"""Share of the labels elsewhere from which the label at the edge of a sequence is common, and not padding."""
ROWS = 16
"""Minimum rows of a table for a column that follows the label not to be chance."""
FEW_CLASSES = 3
"""Minimum number of classes for class weights to follow the counts visibly."""
MOST_LABELS = 64
"""Maximum number of labels per sample, or of classes, that are searched for in the inputs."""
OF_A_CLASS = 3
"""Minimum samples of a class in a batch for a column that singles it out not to be chance."""


def column_by_class(columns: Tensor, labels: Tensor) -> Tensor:
    """How closely a single column follows each class, for the class that is followed least.

    Classes with only one or two samples are left out, and so is a batch with fewer than two other classes: a feature
    that only one sample has says nothing. The columns come with their means subtracted.

    >>> labels = torch.arange(4).repeat(4)
    >>> told = torch.nn.functional.one_hot(labels).float()
    >>> round(column_by_class(told - told.mean(0), labels).item(), 3)
    1.0
    """
    known = torch.arange(MOST_LABELS, device=labels.device).unsqueeze(1) == labels
    counts = known.sum(1)
    said = known.float() - known.float().mean(1, keepdim=True)
    sizes = columns.square().sum(0).sqrt() * said.square().sum(1).sqrt().unsqueeze(1)
    closest = ((said @ columns).abs() / sizes.clamp_min(1e-12)).amax(1)
    counted = counts >= OF_A_CLASS
    return torch.where(counted, closest, torch.ones_like(closest)).amin() * (counted.sum() > 1)


def different_rows(rows: Tensor) -> Tensor:
    """The number of distinct samples, compared by a weighted sum of each.

    >>> different_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [2.0, 1.0]]))
    tensor(3)
    """
    weights = torch.frac(torch.arange(1, rows.shape[1] + 1, device=rows.device) * 0.7548777) - 0.5
    return 1 + ((rows * weights).sum(1).sort().values.diff() > 0).sum()


def slope_by_count(counts: Tensor, weights: Tensor) -> Tensor:
    """How weights grow with class frequency: 1 if they are counts, -1 if they are inverse counts.

    It is 0 if classes are about equally common or weights do not follow the counts.

    >>> counts = torch.tensor([400.0, 90.0, 30.0, 4.0])
    >>> [round(slope_by_count(counts, weights).item(), 3) for weights in (counts / 9, 9 / counts, torch.ones(4))]
    [1.0, -1.0, 0.0]
    """
    seen = counts > 0
    number = seen.sum().clamp_min(1)
    common, weight = (torch.where(seen, value.float().clamp_min(1e-12).log(), 0.0) for value in (counts, weights))
    common, weight = (torch.where(seen, value - value.sum() / number, 0.0) for value in (common, weight))
    spread, product = common.square().sum(), (common * weight).sum()
    close = product.abs() > 0.9 * (spread * weight.square().sum()).sqrt()
    uneven = (spread / number > 0.5) & (number >= FEW_CLASSES)
    return product / spread.clamp_min(1e-12) * close * uneven


def one_in_place_of(given: Tensor, asked: Tensor) -> Tensor:
    """Of the tokens that differ from the target, the share that is one single token: a mask.

    >>> one_in_place_of(torch.tensor([7, 9, 9, 3, 9, 4]), torch.tensor([7, 2, 5, 3, 6, 1]))
    tensor(0.7500)
    """
    differs = given != asked
    alone = -1 - torch.arange(given.numel(), device=given.device)  # unchanged tokens never form a group
    most = torch.where(differs, given.long(), alone).mode().values
    return (differs & (given == most)).sum() / differs.sum().clamp_min(1)


def padding(tokens: Tensor, ignored: int) -> Tensor:
    """Share of labels that belong to a run of one label at the end, or at the beginning, of a sequence.

    A sequence with the same label everywhere has a constant target and no padding, and neither has one whose label at
    the edge is common elsewhere, such as that of words that are no name. Places at the edge that are ignored
    in all sequences are passed over, such as the last one if the model shifts the labels: nothing comes after it.

    >>> padding(torch.tensor([[5, 3, 7, 0, 0, 0, 0, 0], [5, 3, 3, 3, 1, 0, 0, 0]]), -100)
    tensor(0.5000)
    >>> padding(torch.tensor([[4, 4, 4, 4], [7, 7, 7, 7]]), -100)
    tensor(0.)
    >>> padding(torch.tensor([[5, 3, 7, 0, 0, 0, 0, -100], [5, 3, 0, 0, 0, 0, 0, -100]]), -100)
    tensor(0.5625)
    >>> padding(torch.tensor([[0, 0, 0, 0, 3, 0, 0, 5, 0, 2], [0, 0, 0, 1, 0, 0, 4, 0, 0, 0]]), -100)
    tensor(0.)
    """
    shares = []
    width = tokens.shape[1]
    for ordered in (tokens.flip(1), tokens):
        passed = (ordered == ignored).all(0).cumprod(0)
        first = passed.sum()
        edge = ordered.gather(1, first.clamp(max=width - 1).expand(len(ordered), 1))
        runs = ((ordered == edge) | (passed > 0)).cumprod(1).sum(1) - first
        runs = runs * (edge[:, 0] != ignored)
        inside = ((ordered == edge) & (passed == 0)).sum() - runs.sum()
        usual = inside > USUAL * (tokens.numel() - runs.sum())
        shares.append((runs * (runs > 2) * (runs < width - first)).sum() / tokens.numel() * ~usual)
    return torch.maximum(*shares)


def agreement(tokens: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Share of labels that equal the tokens at the same positions, as far as both exist.

    >>> agreement(torch.tensor([[3, 7, 9]]), torch.tensor([[3, 7, -100, 5]]), -100)
    tensor(1.)
    """
    width = min(tokens.shape[1], labels.shape[1])
    counted = labels[:, :width] != ignored
    same = (tokens[:, :width] == labels[:, :width]) & counted
    return same.sum() / counted.sum().clamp_min(1)


def beyond_given(given: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """Of the labels that differ from the tokens at their positions, the share that is larger than all tokens.

    >>> beyond_given(torch.tensor([[3, 5, 5, 1]]), torch.tensor([[3, 9, 7, 1]]), -100)
    tensor(1.)
    """
    width = min(given.shape[1], labels.shape[1])
    asked = labels[:, :width]
    differs = (given[:, :width] != asked) & (asked != ignored)
    return (differs & (asked > given.amax())).sum() / differs.sum().clamp_min(1)


def output_and_target(args: Any, kwargs: Mapping[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """What a loss compares: its first argument, and its second if that is data and not another output."""
    output: Any = args[0] if args else kwargs.get("input")
    target: Any = args[1] if len(args) > 1 else kwargs.get("target")
    good = is_plain(output) and output.is_floating_point() and output.dim() > 0
    known = is_plain(target) and not target.requires_grad and target.dim() > 0
    return (output if good else None), (target if known else None)


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor holds integers: tokens or labels."""
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def class_dimension(loss_fn: nn.Module, output: Tensor | None, target: Tensor) -> int:
    """The output dimension that holds the class scores for these labels; 0 if there is none."""
    if output is None or not is_whole(target) or output.dim() != target.dim() + 1:
        return 0
    last = output.dim() - 1  # the usual class dimension, except in torch's own losses
    for dimension in (1, last) if isinstance(loss_fn, nn.CrossEntropyLoss | nn.NLLLoss) else (last, 1):
        others = [size for index, size in enumerate(output.shape) if index != dimension]
        if others == list(target.shape) and output.shape[dimension] > 1:
            return dimension
    return 0


def class_counts(labels: Tensor, classes: int) -> Tensor:
    """How often each class occurs, as floats; labels out of range, such as the ignored one, do not count."""
    classes = classes or 1024
    flat = labels.detach().flatten()[: max(64, LARGEST // classes)]
    return (flat[:, None] == torch.arange(classes, device=flat.device)).sum(0).float()


def binary_counts(target: Tensor) -> Tensor:
    """Number of zeros and ones; NaN if there are other targets.

    >>> binary_counts(torch.tensor([0.0, 1.0, 0.0])), binary_counts(torch.tensor([0.0, 0.5]))
    (tensor([2., 1.]), tensor([nan, nan]))
    """
    value = part_of(target).float()
    ones, zeros = (value == 1).sum(), (value == 0).sum()
    return torch.where(ones + zeros == value.numel(), torch.stack([zeros, ones]).float(), torch.nan)
