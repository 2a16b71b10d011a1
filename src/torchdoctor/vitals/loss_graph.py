"""What the graph behind a loss shows: its leaves, its kind, and mistakes visible in the order of its nodes.

Only names and numbers are kept: a node would keep every activation behind it alive. The graph can be walked before and
after backward; a compiled function hides what is inside it, but keeps the parameters as its leaves.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from torchdoctor.vitals.graph_nodes import (
    ARITHMETIC,
    HEAD,
    KINDS,
    LINEAR,
    REGRESSION,
    SHAPING,
    is_loss_node,
    node_name,
    parents_of,
    shape_of,
    source_of,
)
from torchdoctor.vitals.loss_inputs import kept
from torchdoctor.vitals.loss_lint import mistakes, mistakes_at_the_end, shared_out

MOST_NODES = 20_000
"""Maximum number of nodes that are visited: about ten milliseconds at most."""
# fmt: off
FRAGILE = {
    "Log": "log", "Log1P": "log", "Log2": "log", "Log10": "log", "Sqrt": "sqrt", "Rsqrt": "sqrt", "Pow": "root",
    "Cdist": "norm", "Norm": "norm", "LinalgVectorNorm": "norm", "Div": "division", "Reciprocal": "division",
    "Acos": "acos", "Asin": "asin", "Atan2": "atan2",
}
"""Operations whose value or derivative is not finite at some finite input."""
# fmt: on
REDUCTIONS = {1: "mean", 2: "sum"}
COUNTED = 0.5
"""Smallest share of the samples that a divisor is a count of; a half, or a number of micro-batches, is less."""
BOUNDED = {"Relu": "ReLU", "Softplus": "Softplus", "Sigmoid": "Sigmoid", "Softmax": "Softmax", "Tanh": "Tanh"}
"""Bounded operations, and the modules that compute the same."""


@dataclass(frozen=True)
class LossGraph:
    """What was read from a graph."""

    leaves: frozenset[int]
    """The ids of its leaf tensors, mostly parameters."""
    kind: str | None
    """"cross-entropy", "nll", "mse", "l1", "bce" and so on; None if the nodes do not show it."""
    reduction: str | None
    """"mean" or "sum", if the loss's own node shows it."""
    lint: tuple[str, ...]
    """Codes of mistakes, such as "softmax-before-cross-entropy"."""
    fragile: tuple[str, ...]
    """Operations near the loss that may be undefined: "log", "sqrt", "norm" ..."""
    hidden: bool
    """Whether a compiled function is part of it."""
    complete: bool
    """Whether the whole graph was visited."""
    newest: int
    """The largest sequence number of a node that uses a parameter directly; -1 if there is none."""
    ending: str = ""
    """The bounded activation whose output the loss compares directly with targets; "" if there is none."""


def read_graph(root: Any) -> LossGraph:
    """Walk from the root node of a loss to its leaves, nearest nodes first."""
    seen = {root}
    waiting = deque([root])
    leaves: set[int] = set()
    lint: dict[str, None] = {}
    kind = reduction = None
    fragile: dict[str, None] = {}
    hidden = False
    count, newest = 0, -1
    layers, bends, rows = 0, False, 0
    while waiting and count < MOST_NODES:
        node = waiting.popleft()
        count += 1
        name = node_name(node)
        if name == "AccumulateGrad":
            leaves.add(id(node.variable))
            continue
        if node is root:
            lint.update((code, None) for code in mistakes_at_the_end(node, name))
        lint.update((code, None) for code in mistakes(node, name, in_head=count <= HEAD))
        if count <= HEAD and (operation := undefined_operation(node)):
            fragile[operation] = None
        hidden = hidden or name.startswith("CompiledFunction")
        layers += name in LINEAR
        bends = bends or not _is_straight(node, name)
        if kind is None:
            kind = _kind(node, name, in_head=count <= HEAD)
            reduction = _reduction(node, root) if kind else None
            rows = next(iter(shape_of(next(parents_of(node), None))), 0) if kind else 0
        lint.update((code, None) for code in shared_out(node, name, rows))
        for parent in parents_of(node):
            if type(parent).__name__ == "AccumulateGrad":
                newest = max(newest, node._sequence_nr())
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    lint.update((code, None) for code in ("only-linear",) if layers > 1 and not bends and not waiting)
    return LossGraph(
        frozenset(leaves), kind, reduction, tuple(lint), tuple(fragile), hidden, not waiting, newest, _ending(root)
    )


def leaf_tensors(root: Any) -> list[Any]:
    """The leaf tensors of a graph, for immediate use: do not keep them."""
    seen, waiting, leaves = {root}, [root], []
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        fresh = [parent for parent in parents_of(node) if parent not in seen]
        seen.update(fresh)
        waiting += fresh
    return leaves


def _is_straight(node: Any, name: str) -> bool:
    """Whether a node is linear: a layer with its own weights, a sum, a reshape, or the loss itself."""
    if name in ("Addmm", "Mm", "Linear", "Convolution"):
        return any(type(parent).__name__ == "AccumulateGrad" or _is_leaf(parent) for parent in parents_of(node))
    return name in SHAPING or name in ("Add", "Mean", "Sum") or name in KINDS or name.startswith("NllLoss")


def _is_leaf(node: Any) -> bool:
    """Whether a node only transposes a parameter."""
    return node_name(node) == "T" and node_name(next(parents_of(node), None)) == "AccumulateGrad"


def undefined_operation(node: Any) -> str:
    """The operation of a node if its value or derivative is not finite at some finite input; "" otherwise."""
    name = node_name(node)
    return FRAGILE[name] if name in FRAGILE and _can_fail(node, name) else ""


def _can_fail(node: Any, name: str) -> bool:
    """Whether it can fail: a square cannot, nor can a division by a constant."""
    if name == "Pow":
        exponent = getattr(node, "_saved_exponent", 2)
        return isinstance(exponent, int | float) and exponent < 1
    return name != "Div" or sum(1 for _ in parents_of(node)) > 1


def _kind(node: Any, name: str, *, in_head: bool) -> str | None:
    if name.startswith("NllLoss"):
        source = source_of(node)
        return "cross-entropy" if source is not None and node_name(source) == "LogSoftmax" else "nll"
    if name in KINDS:
        return KINDS[name]
    if in_head and name in ("Pow", "Abs"):
        source = source_of(node)
        if source is not None and node_name(source) in ("Sub", "Rsub"):
            return "mse" if name == "Pow" else "l1"
    return None


def _ending(root: Any) -> str:
    """Only for a loss that is a single error of outputs against something without a graph."""
    if node_name(root) not in REGRESSION or sum(1 for _ in parents_of(root)) != 1:
        return ""
    return BOUNDED.get(node_name(source_of(root)), "")


def is_shared_out(root: Any) -> bool | None:
    """Whether backward begins at a sum that was divided by a count, which makes it a mean; None if there is no sum.

    >>> import torch
    >>> scores, labels = torch.zeros(8, 3, requires_grad=True) * 1, torch.zeros(8, dtype=torch.long)
    >>> total = torch.nn.functional.cross_entropy(scores, labels, reduction="sum")
    >>> is_shared_out((total / 8).grad_fn), is_shared_out((total / 2).grad_fn), is_shared_out(total.grad_fn)
    (True, False, False)
    """
    known = shares_of(root)
    return None if known is None else known[0] > 1 and known[0] >= COUNTED * known[1]


def shares_of(root: Any) -> tuple[float, float] | None:
    """What the sum at which backward begins was divided by, and how many samples it is of; None if there is no sum."""
    waiting = deque([(root, 1.0)])
    for _ in range(HEAD):
        node, divisor = waiting.popleft() if waiting else (None, 1.0)
        if node is None:
            break
        name = node_name(node)
        if (is_loss_node(node) and getattr(node, "_saved_reduction", 0) == 2) or (name == "Sum" and not shape_of(node)):
            return divisor, _samples(node)
        if name in ARITHMETIC and name != "Mean":
            waiting += [(parent, divisor * _divisor(node, name)) for parent in parents_of(node)]
    return None


def _divisor(node: Any, name: str) -> float:
    """What a node divides its input by; infinite if that is on the device, where reading it would wait, or is gone."""
    if name not in ("Div", "Mul") or sum(1 for _ in parents_of(node)) > 1:
        return 1.0
    other = _on_the_host(node, "other")
    if other is None:
        return math.inf if name == "Div" else 1.0  # a factor on the device is the loss scale
    number = abs(other)
    return max((number or math.inf) if name == "Div" else 1 / (number or math.inf), 1.0)


def _on_the_host(node: Any, name: str) -> float | None:
    """A number that a node saved, if reading it needs no waiting; None after backward, which frees it."""
    try:
        number = kept(node, name)
    except RuntimeError:
        return None
    return float(number) if number is not None and number.numel() == 1 and number.device.type == "cpu" else None


def _samples(node: Any) -> float:
    """The number of samples that a loss sums: the smallest first size on the way to it, before samples were joined."""
    counted = _on_the_host(node, "total_weight")  # without ignored labels
    counts: list[float] = [] if counted is None else [counted]
    before = next(parents_of(node), None)
    for _ in range(HEAD):
        counts += [size for size in shape_of(before)[:1] if size > 1]
        if before is None or node_name(before) not in (*SHAPING, "LogSoftmax"):
            break
        before = next(parents_of(before), None)
    return min(counts, default=1.0)


def _reduction(node: Any, root: Any) -> str | None:
    """How a loss is reduced: its own node says so, or the last node, if the loss is composed of several operations."""
    if hasattr(node, "_saved_reduction"):
        return REDUCTIONS.get(node._saved_reduction)
    return node_name(root).lower() if node_name(root) in ("Mean", "Sum") and source_of(root) is node else None
