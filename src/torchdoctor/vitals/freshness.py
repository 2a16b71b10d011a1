"""Whether a weight looks untrained: its entries look independently drawn, as after an initialization.

Training changes a weight along few directions, so some rows, some columns and one direction of it begin to stand out.
In independently drawn numbers, rows and columns are about equally long, and no direction is longer than chance allows;
orthogonal matrices are even more uniform. Also, initial weights are uniform up to a bound or normal, and trained ones
are neither. Biases start at zero or within a bound and leave it at once; gains of normalization layers start at exactly
one. This takes a few kernels per weight and no waiting, once per run, for some layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST_ROWS = 256
"""Rows that are looked at, and an eighth of the columns: a full copy would take memory."""
ROUNDS = 6
"""Steps of the power method: enough for a direction that stands out."""
UNEVEN = 0.35
"""Standard deviation of rows' or columns' relative squared lengths, beyond chance, that shows a trained weight."""
LONGEST = 1.25
"""The longest direction as a multiple of what chance allows, above which the weight is trained."""


def is_new(layer: nn.Module) -> Tensor:
    """Whether a layer looks untrained: one with a weight, a recurrent layer, or a normalization layer.

    >>> bool(is_new(nn.Linear(64, 64))), bool(is_new(nn.LayerNorm(8)))
    (True, True)
    """
    if isinstance(layer, nn.RNNBase):
        return torch.stack([is_fresh(part.detach()) for part in layer.parameters() if part.dim() > 1]).all()
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    assert weight is not None
    plain = weight.dim() < 2
    new = weight.detach().eq(1).all() if plain else is_fresh(weight.detach())
    if bias is None:
        return new
    largest, bound = bias.detach().abs().amax(), weight[0].numel() ** -0.5
    drawn = torch.le(largest, 1.001 * bound) & torch.gt(largest, 0.75 * bound) & (not plain)
    drawn = drawn & torch.lt((3 * bias.detach().square().mean() / largest.square() - 1).abs(), 0.35 + 2 / bias.numel())
    return new & (largest.eq(0) | drawn)


def is_fresh(weight: Tensor) -> Tensor:
    """Whether the entries of a weight look independently drawn, around zero, with a single spread.

    >>> fresh = torch.nn.init.kaiming_normal_(torch.empty(64, 48))
    >>> trained = fresh + 0.5 * torch.randn(64, 1) @ torch.randn(1, 48)
    >>> bool(is_fresh(fresh)), bool(is_fresh(trained)), bool(is_fresh(torch.nn.Linear(64, 64).weight.detach()))
    (True, False, True)
    """
    sheet = weight.flatten(1)[:MOST_ROWS, : 8 * MOST_ROWS].float()
    rows, columns = sheet.shape
    squares = sheet.square()
    size = squares.mean().clamp_min(1e-30)
    tails = (squares.square().mean() / size.square() - 1).clamp_min(0)  # relative variance of a squared entry
    worst = sheet.mean().abs() / size.sqrt() * (rows * columns) ** 0.5 / 4
    for lengths, count in ((squares.mean(1), columns), (squares.mean(0), rows)):
        beyond = (lengths / size).var(correction=0) - tails / count
        worst = torch.maximum(worst, beyond.clamp_min(0).sqrt() / UNEVEN)
    vector = sheet[0].clone()
    for _ in range(ROUNDS):
        vector = sheet.T @ (sheet @ (vector / vector.norm().clamp_min(1e-30)))
    longest = vector.norm().sqrt() / (size.sqrt() * (rows**0.5 + columns**0.5))
    chance = 1 / sheet.numel() ** 0.5
    even = torch.lt(sheet.abs().amax() / size.sqrt(), 3**0.5 * (1 + 1.5 * chance)) & torch.lt((tails - 0.8).abs(), 0.2)
    normal = torch.lt((tails - 2).abs(), 18 * chance)
    return torch.lt(torch.maximum(worst, longest / LONGEST), 1.0) & (even | normal) & torch.gt(size, 1e-20)
