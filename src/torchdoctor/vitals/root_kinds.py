"""What kind of loss backward begins from: a mean of its own or a share of one, and the same as before or another.

Only the arithmetic nearest to the root is read, which takes microseconds; nothing here waits for the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from torchdoctor.vitals.graph_nodes import ARITHMETIC, HEAD, is_loss_node, node_name, parents_of
from torchdoctor.vitals.loss_graph import COUNTED, shares_of
from torchdoctor.vitals.loss_inputs import kept

MEAN = 1
"""The code that torch's losses use for a mean."""
OWN = 1.5
"""Divisor of a sum, as a multiple of its own samples, below which it is a mean of its own and not a share."""


def is_whole(root: Any) -> bool:
    """Whether backward begins at a mean that nothing has divided further; a loss scale does not divide it.

    >>> mean, total = (nn.functional.mse_loss(_zeros(), _zeros(), reduction=how) for how in ("mean", "sum"))
    >>> [is_whole(loss.grad_fn) for loss in (mean, mean + 1, mean * 1024.0, mean / 4, mean * 0.25)]
    [True, True, True, False, False]
    >>> [is_whole(loss.grad_fn) for loss in (total / 2, total / 8)]
    [True, False]
    """
    known = shares_of(root)
    if known is not None:
        return COUNTED * known[1] <= known[0] < OWN * known[1]
    return any(name == "Mean" or (is_loss_node(node) and _is_mean(node)) for node, name in _head(root, _is_undivided))


def kinds_of(root: Any) -> frozenset[str]:
    """The operations whose results are combined into a loss; a weight or another term does not change them all.

    >>> squared, absolute = nn.functional.mse_loss(_zeros(), _zeros()), nn.functional.l1_loss(_zeros(), _zeros())
    >>> sorted(kinds_of((squared + 0.1 * absolute).grad_fn)), *kinds_of((squared / 2).grad_fn)
    (['Abs', 'MseLoss'], 'MseLoss')
    """
    return frozenset(name for _, name in _head(root, lambda node, name: True) if name not in ARITHMETIC)


def _head(root: Any, passes: Callable[[Any, str], bool]) -> Iterator[tuple[Any, str]]:
    """The nodes of a loss's own arithmetic, as far as it passes through them, and those on which it works."""
    waiting = deque([root])
    for _ in range(HEAD):
        if not waiting:
            return
        node = waiting.popleft()
        name = node_name(node)
        yield node, name
        if name in ARITHMETIC and passes(node, name):
            waiting += parents_of(node)


def _is_mean(node: Any) -> bool:
    return bool(getattr(node, "_saved_reduction", 0) == MEAN)


def _is_undivided(node: Any, name: str) -> bool:
    """Whether a node does not make its input smaller, as far as can be known without waiting."""
    if name not in ("Div", "Mul"):
        return True
    other = kept(node, "other")
    if other is None or other.numel() != 1 or other.device.type != "cpu":
        return name == "Mul"  # a factor on the device is the loss scale
    return abs(float(other)) >= 1 if name == "Mul" else abs(float(other)) <= 1


def _zeros() -> Tensor:
    return nn.Parameter(Tensor([0.0, 0.0]))
