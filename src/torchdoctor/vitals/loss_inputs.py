"""What a loss compares, read from the node that computed it: for loops that call a function and not a module.

A node keeps what its backward needs, including output and target. It is read before backward runs, and nothing of it is
kept. Tensors that were packed away (offloaded, or to be recomputed) are left alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchdoctor.vitals.graph_nodes import ARITHMETIC, HEAD, SHAPING
from torchdoctor.vitals.passes import is_plain, part_of, rms

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
MODULES: dict[str, type[nn.Module]] = {
    "NllLoss": nn.NLLLoss,
    "NllLoss2D": nn.NLLLoss,
    "MseLoss": nn.MSELoss,
    "SmoothL1Loss": nn.SmoothL1Loss,
    "HuberLoss": nn.HuberLoss,
    "BinaryCrossEntropyWithLogits": nn.BCEWithLogitsLoss,
    "BinaryCrossEntropy": nn.BCELoss,
}


class Compared(NamedTuple):
    """A loss as the module that would compute it, with its output and target."""

    module: nn.Module
    output: Tensor
    target: Tensor
    between_outputs: bool
    """Whether the target is not data but an output that also gets gradients."""
    skipped: int | None
    """The first position of an output sequence that is compared; None if unknown."""
    weight: float = 1.0
    """The constant factor of this comparison in the loss."""


def what_is_compared(loss: Tensor) -> Compared | None:
    """The only comparison that a loss consists of; None if there is none or more than one."""
    found = _comparisons(loss)
    return _compared(*found[0][:2]) if len(found) == 1 else None


def parts_compared(loss: Tensor) -> list[Compared]:
    """The comparisons of a loss that is a sum of several, such as for boxes and classes; else empty."""
    found = _comparisons(loss, (*MODULES, "Abs"))
    parts = [(_compared(name, node), weight) for name, node, weight in found] if len(found) > 1 else []
    known = [part._replace(weight=weight) for part, weight in parts if part is not None]
    return known if len(known) == len(found) and not any(part.between_outputs for part in known) else []


def part_numbers(parts: Sequence[Compared]) -> dict[str, Tensor]:
    """For a loss that is a sum: the size of its largest targets, and the ratio of its largest part to its smallest.

    >>> output, labels = torch.ones(4, requires_grad=True) * 1, torch.ones(4, dtype=torch.long)
    >>> loss = 1e-4 * nn.functional.mse_loss(output, torch.full((4,), 101.0))
    >>> loss = loss + nn.functional.cross_entropy(output[:, None] * torch.zeros(2), labels)
    >>> round(float(part_numbers(parts_compared(loss))["part_loss_ratio"]), 2)
    1.44
    """
    sizes = [rms(part_of(part.target).float()) for part in parts if part.target.is_floating_point()]
    if not sizes or any(getattr(part.module, "reduction", "") != "mean" for part in parts):
        return {}
    losses = torch.stack([part.module.forward(part.output, part.target).float() * abs(part.weight) for part in parts])
    return {
        "part_target_size": torch.stack(sizes).amax(),
        "part_loss_ratio": losses.amax() / losses.amin().clamp_min(1e-12),
    }


def _comparisons(loss: Tensor, names: Container[str] = MODULES) -> list[tuple[str, Any, float]]:
    """The nodes of torch's losses near the end of the graph, each with the constant factor in front of it."""
    found: list[tuple[str, Any, float]] = []
    seen, waiting = {loss.grad_fn}, deque([(loss.grad_fn, 1.0)])
    for _ in range(HEAD):
        node, weight = waiting.popleft() if waiting else (None, 1.0)
        if node is None:
            break
        name = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        if name in names:
            found.append((name, node, weight))
            continue  # everything behind it is the model
        if name in ("Mul", "Div"):
            number = _number(node)
            weight = weight * number if name == "Mul" else weight / (number or 1.0)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append((parent, weight))
    return found


def _number(node: Any) -> float:
    """The constant of a product or quotient; 1 if it is a device scalar or a tensor with dimensions.

    A Python number is stored on the host, so reading it needs no waiting.
    """
    other = kept(node, "other")
    return float(other) if other is not None and not other.dim() and other.device.type == "cpu" else 1.0


def _compared(name: str, node: Any) -> Compared | None:
    if name == "Abs":
        return _distance(node)
    output, target = kept(node, "self"), kept(node, "target")
    if output is None or target is None or not target.dim():
        return None
    if name == "NllLoss" and output.dim() == 2 and abs(output.shape[0] - output.shape[1]) <= 1:
        return None  # scores of each sample against each: labels are positions in the batch
    settings: dict[str, Any] = {"reduction": REDUCTIONS.get(node._saved_reduction, "none")}
    if name == "HuberLoss":
        settings["delta"] = node._saved_delta
    elif name == "SmoothL1Loss":
        settings["beta"] = node._saved_beta
    elif name != "MseLoss":
        settings["weight"] = node._saved_weight
    if name.startswith("NllLoss"):
        ignored = int(node._saved_ignore_index)
        settings["ignore_index"] = ignored - (1 << 64) if ignored >= 1 << 63 else ignored  # torch stores it unsigned
    if name == "BinaryCrossEntropyWithLogits":
        settings["pos_weight"] = node._saved_pos_weight
    return Compared(MODULES[name](**settings), output.detach(), target.detach(), target.requires_grad, skipped(node))


def _distance(node: Any) -> Compared | None:
    """The mean absolute error has no node of its own: it is the size of a difference whose two sides are not kept."""
    before, difference = node.next_functions[0][0], kept(node, "self")
    if difference is None or not difference.dim() or not type(before).__name__.startswith("SubBackward"):
        return None
    difference = difference.detach()
    return Compared(nn.L1Loss(), difference.new_zeros(()).expand_as(difference), difference, False, None)


def difference_of(loss: Tensor) -> Tensor | None:
    """The single difference whose absolute value or power a loss takes, by hand or in `l1_loss`; else None.

    >>> import torch
    >>> output, target = torch.ones(3, 2, requires_grad=True) * 2, torch.ones(3, 2)
    >>> difference_of((output - target).square().mean()).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    """
    found = _comparisons(loss, (*MODULES, "Abs", "Pow"))
    if len(found) != 1 or found[0][0] in MODULES:
        return None
    before, difference = found[0][1].next_functions[0][0], kept(found[0][1], "self")
    if difference is None or not type(before).__name__.startswith(("SubBackward", "RsubBackward")):
        return None
    return difference.detach()


def sides_of(loss: Tensor) -> tuple[Tensor, Tensor] | None:
    """Two separately computed sets of outputs that a loss compares all with all; None if there are none.

    >>> import torch
    >>> one, other = torch.eye(3, requires_grad=True) * 2, torch.eye(3, requires_grad=True) * 1
    >>> [side.diag().tolist() for side in sides_of((one @ other.T).logsumexp(1).mean())]
    [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]
    >>> sides_of((one @ one.T).logsumexp(1).mean())
    """
    found = _comparisons(loss, ("Mm",))
    if not found:
        return None
    node = found[0][1]
    sources = [_unturned(parent) for parent, _ in node.next_functions]
    one, other = kept(node, "self"), kept(node, "mat2")
    if one is None or other is None or None in sources or sources[0] is sources[1]:
        return None
    return (one.detach(), other.detach().T) if one.shape == other.T.shape and len(one) > 1 else None


def looked_up(loss: Tensor, most: int = 4000) -> list[Tensor]:
    """The tokens looked up in embedding tables on the way to a loss.

    >>> import torch
    >>> table = nn.Embedding(5, 2)
    >>> [tokens.tolist() for tokens in looked_up(table(torch.tensor([3, 1])).sum())]
    [[3, 1]]
    """
    found: list[Tensor] = []
    seen: set[Any] = {loss.grad_fn}
    waiting: deque[Any] = deque(seen - {None})
    while waiting and len(seen) < most:
        node = waiting.popleft()
        if _name(node) == "Embedding" and (tokens := kept(node, "indices")) is not None:
            found.append(tokens)
        fresh = [parent for parent, _ in node.next_functions if parent is not None and parent not in seen]
        seen.update(fresh)
        waiting += fresh
    return found


def _unturned(node: Any) -> Any:
    """The node behind nodes that only transpose a matrix."""
    while node is not None and _name(node) in ("T", "Transpose", "Permute"):
        node = node.next_functions[0][0]
    return node


def is_attraction(loss: Tensor) -> bool:
    """Whether a loss consists only of cosines or differences of which both sides get gradients.

    Such a loss is smallest if all outputs are equal. A term that is subtracted from another pushes something apart.

    >>> import torch
    >>> one, other = torch.ones(3, 2, requires_grad=True) * 2, torch.ones(3, 2, requires_grad=True) * 1
    >>> cosine = nn.functional.cosine_similarity
    >>> is_attraction(1 - cosine(one, other).mean()), is_attraction(-cosine(one, other.detach()).mean())
    (True, False)
    >>> is_attraction((one - other).pow(2).mean() + nn.functional.mse_loss(other, one))
    True
    >>> is_attraction((one - other).pow(2).mean() + one.pow(2).mean())
    False
    """
    waiting, found = deque([loss.grad_fn]), 0
    for _ in range(HEAD):
        node = waiting.popleft() if waiting else None
        if node is None:
            return found > 0
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        name = _name(node)
        if _is_distance(node, name, parents):
            found += 1
        elif name == "Mul" and len(parents) == 2:
            if not all(map(_is_unit, parents)):
                return False
            found += 1
        elif name in ARITHMETIC and not (name in ("Sub", "Rsub") and len(parents) == 2):
            waiting += parents
        else:
            return False
    return False


def _is_distance(node: Any, name: str, parents: Sequence[Any]) -> bool:
    """Whether a node is the size of a difference of which both sides get gradients."""
    if name in ("MseLoss", "SmoothL1Loss", "HuberLoss"):
        return len(parents) == 2
    squared = name == "Pow" and getattr(node, "_saved_exponent", 0) == 2
    squared = squared or (name == "Mul" and len(parents) == 2 and parents[0] is parents[1])
    if not parents or not (squared or name == "Abs"):
        return False
    return _name(parents[0]) in ("Sub", "Rsub") and sum(item is not None for item, _ in parents[0].next_functions) == 2


def _is_unit(node: Any) -> bool:
    """Whether a node divides something that gets gradients by its norm."""
    if _name(node) != "Div" or any(parent is None for parent, _ in node.next_functions):
        return False
    norm = node.next_functions[1][0]
    while norm is not None and (_name(norm) in SHAPING or _name(norm).startswith("Clamp")):
        norm = next((parent for parent, _ in norm.next_functions if parent is not None), None)
    return norm is not None and "Norm" in _name(norm)


def _name(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def skipped(node: Any) -> int | None:
    """The position of its sequence at which an output begins that was sliced between the model and a loss.

    >>> import torch
    >>> scores = torch.zeros(2, 5, 3, requires_grad=True) * 1
    >>> skipped(scores[:, 2:].reshape(-1, 3).grad_fn)
    2
    """
    first = 0
    for _ in range(HEAD):
        name = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        if name in ("Index", "Select"):
            return None
        if name == "Slice" and node._saved_dim == 1 and len(node._saved_self_sym_sizes) == 3:
            first += int(node._saved_start)
        elif name not in SHAPING and name != "LogSoftmax" and name not in MODULES:
            return first
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
    return None


def kept(node: Any, name: str) -> Tensor | None:
    """A tensor that a node saved, unless reading it would run a user's hook."""
    saved = getattr(node, f"_raw_saved_{name}", None)
    if saved is None or getattr(saved, "unpack_hook", saved) is not None:  # older torch cannot tell, so it is not read
        return None
    tensor = getattr(node, f"_saved_{name}")
    return tensor if is_plain(tensor) else None
