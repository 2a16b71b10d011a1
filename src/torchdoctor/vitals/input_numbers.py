"""Statistics of one batch's inputs: scale, non-finite values, constant features and duplicates."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdoctor.vitals.batch_numbers import class_counts, different_rows, is_whole
from torchdoctor.vitals.passes import LARGEST, checksum, content, largest, part_of, share_of_zeros

LEAST_VALUES = 8
"""Minimum values per sample for it not to be constant by chance."""
LEAST_SAMPLES = 8
"""Minimum samples per batch for them not to share a value by chance."""


class InputNumbers(NamedTuple):
    """Numbers about a batch and its samples."""

    vitals: dict[str, Tensor]
    distinct: Tensor | None = None
    """Number of distinct samples."""
    blank: Tensor | None = None
    """Which samples have no content."""


def input_numbers(tensor: Tensor) -> InputNumbers:
    """Measure everything that depends on the inputs alone; integers are treated as tokens.

    >>> numbers = input_numbers(torch.tensor([[1.0, -1.0], [3.0, 1.0]]))
    >>> round(numbers.vitals["input_mean"].item(), 2), round(numbers.vitals["input_absmax"].item(), 2)
    (1.0, 3.0)
    """
    value = part_of(tensor)
    vitals = {"input_checksum": checksum(value)}
    if value.dim() > 1 and value.shape[0] > 1 and value.shape[0] == tensor.shape[0]:
        vitals["input_content"] = content(value)
    if tensor.is_floating_point():
        return _of_floats(value.float(), vitals)
    if is_whole(tensor):
        if value.dim() > 1 and value.shape[0] >= LEAST_SAMPLES and value[0].numel() >= LEAST_VALUES:
            vitals["input_constant"] = constant_share(value)
        counts = class_counts(value, 0)
        vitals["token_top_share"] = counts.amax() / counts.sum().clamp_min(1)
    return InputNumbers(vitals)


def _of_floats(value: Tensor, vitals: dict[str, Tensor]) -> InputNumbers:
    vitals["input_mean"] = value.mean()
    vitals["input_std"] = value.std(correction=0)
    vitals["input_zero"] = share_of_zeros(value)
    vitals["input_absmax"] = largest(value)
    vitals["input_nonfinite"] = (~torch.isfinite(value)).sum()
    if value.dim() < 2 or value.shape[0] < LEAST_SAMPLES:
        return InputNumbers(vitals)
    vitals["input_constant"] = constant_share(value)
    rows = value.flatten(1)
    distinct = different_rows(rows)
    vitals["input_distinct"] = distinct / len(rows)
    if rows.shape[1] < LEAST_VALUES:
        return InputNumbers(vitals, distinct)
    blank = rows.amax(1) == rows.amin(1)
    vitals["input_blank"] = blank.float().mean()
    return InputNumbers(vitals, distinct, blank)


def constant_share(batch: Tensor) -> Tensor:
    """Share of positions at which all samples have the same value."""
    return (batch.amax(0) == batch.amin(0)).float().mean()


def blanks_that_matter(share: Tensor, blank: Tensor, target: Tensor) -> Tensor:
    """Share of blank samples; 0 if all of those have the same target (a slice outside the body, an empty message).

    >>> blank, share = torch.tensor([True, False, True]), torch.tensor(0.5)
    >>> [blanks_that_matter(share, blank, torch.tensor(labels)).item() for labels in ([1, 0, 1], [1, 1, 0])]
    [0.0, 0.5]
    """
    if target.shape[:1] != blank.shape or target.numel() > LARGEST:
        return share
    asked, mask = target.detach().reshape(blank.numel(), -1).float(), blank.unsqueeze(1)
    lowest, highest = asked.masked_fill(~mask, math.inf).amin(0), asked.masked_fill(~mask, -math.inf).amax(0)
    return share * (highest > lowest).any()
