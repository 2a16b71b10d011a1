"""Nodes of an autograd graph: their names, their inputs, and the shapes of their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

HEAD = 24
"""Number of nodes nearest to the loss: arithmetic there belongs to the loss, further away to the model."""
# fmt: off
SHAPING = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "T", "Slice", "Select", "Squeeze",
    "Unsqueeze", "Index", "Clone", "ToCopy", "Contiguous", "Alias", "Expand",
})
"""Nodes that only reshape, move or copy values."""
# fmt: on
ARITHMETIC = frozenset({"Neg", "Mean", "Sum", "Add", "Sub", "Rsub", "Mul", "Div", *SHAPING})
"""Nodes that combine the terms of a loss."""
LINEAR = frozenset({"Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution"})
REGRESSION = {"MseLoss": "mse", "L1Loss": "l1", "SmoothL1Loss": "smooth-l1", "HuberLoss": "huber"}
KINDS = {
    **REGRESSION,
    "BinaryCrossEntropyWithLogits": "bce",
    "BinaryCrossEntropy": "bce",
    "LogSoftmax": "cross-entropy",
    "KlDiv": "kl-divergence",
    "CtcLoss": "ctc",
}


def node_name(node: Any) -> str:
    """A node's name without autograd's suffix: LogSoftmaxBackward0 is LogSoftmax; "" if there is no node."""
    return "" if node is None else _plain(type(node).__name__)


@lru_cache(256)
def _plain(name: str) -> str:
    return name.rstrip("0123456789").removesuffix("Backward")


def parents_of(node: Any) -> Iterator[Any]:
    """The nodes that feed this one; constants have none."""
    return (parent for parent, _ in node.next_functions if parent is not None)


def nodes_behind(root: Any, most: int) -> Iterator[Any]:
    """A node and those that it was made from, the nearest first, up to a number of nodes.

    >>> import torch
    >>> loss = (2 * torch.ones(3, requires_grad=True)).exp().mean()
    >>> [node_name(node) for node in nodes_behind(loss.grad_fn, 3)], list(nodes_behind(None, 3))
    (['Mean', 'Exp', 'Mul'], [])
    """
    seen, waiting = {root}, deque([] if root is None else [root])
    for _ in range(most):
        if not waiting:
            return
        node = waiting.popleft()
        yield node
        for parent in parents_of(node):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)


def source_of(node: Any) -> Any:
    """The first input of a node, skipping nodes that only reshape; None if it is a constant."""
    source = next(parents_of(node), None)
    for _ in range(HEAD):
        if source is None or node_name(source) not in SHAPING:
            break
        source = next(parents_of(source), None)
    return source


def is_loss_node(node: Any) -> bool:
    """Whether a node belongs to one of torch's own losses."""
    name = node_name(node)
    return name.startswith("NllLoss") or name in KINDS.keys() - {"LogSoftmax"}


def shape_of(node: Any) -> tuple[int, ...]:
    """The shape of a node's result."""
    known = getattr(node, "_input_metadata", ())
    return tuple(known[0].shape) if known else ()


def softmax_dimension(node: Any) -> int:
    """The dimension of a softmax, counted from the first."""
    dimension = int(getattr(node, "_saved_dim", -1))
    dimension = dimension - 2**64 if dimension >= 2**63 else dimension  # stored as unsigned
    return dimension % max(1, len(shape_of(node)))


def is_made_of_older(node: Any, mark: int) -> bool:
    """Whether a node is only arithmetic on values computed before a mark, such as `4 * loss` after the step.

    >>> import torch
    >>> loss = torch.ones(3, requires_grad=True).exp().mean()
    >>> mark = torch.autograd._get_sequence_nr()
    >>> is_made_of_older((4 * loss + 1).grad_fn, mark), is_made_of_older((4 * loss.exp()).grad_fn, mark)
    (True, False)
    """
    for _ in range(HEAD):
        if node_name(node) not in ARITHMETIC:
            return False
        parents = list(parents_of(node))
        if parents and all(hasattr(parent, "_sequence_nr") and parent._sequence_nr() < mark for parent in parents):
            return True
        if len(parents) != 1:
            return False
        node = parents[0]
    return False
