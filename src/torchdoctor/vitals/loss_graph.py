"""What the graph behind a loss says of it: its leaves, its kind, and mistakes that show in the order of its nodes.

Names and numbers only: a node that is kept keeps every activation behind it alive. The graph can be walked before and
after backward; a compiled function hides what is inside it, but keeps the parameters as its leaves.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MOST_NODES = 20_000
"""Nodes that are looked at: some ten milliseconds at the most."""
HEAD = 24
"""Nodes nearest to the loss: arithmetic there is the loss's own, further away it is the model's."""
# fmt: off
SHAPING = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "Permute", "T", "Slice", "Select", "Squeeze",
    "Unsqueeze", "Index", "Clone", "ToCopy", "Contiguous", "Alias", "Expand",
})
"""Nodes that move values about and leave them as they are."""
# fmt: on
VIEWS = ("View", "UnsafeView", "Reshape", "ReshapeAlias")
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
# fmt: off
FRAGILE = {
    "Log": "log", "Log1P": "log", "Log2": "log", "Log10": "log", "Sqrt": "sqrt", "Rsqrt": "sqrt", "Pow": "root",
    "Cdist": "norm", "Norm": "norm", "LinalgVectorNorm": "norm", "Div": "division", "Reciprocal": "division",
    "Acos": "acos", "Asin": "asin", "Atan2": "atan2",
}
"""Operations that are not finite, or whose derivative is not, at some finite number."""
# fmt: on
OF_LOGITS = {"LogSoftmax": "cross-entropy", "BinaryCrossEntropyWithLogits": "bce-with-logits"}
"""What takes raw scores."""
REDUCTIONS = {1: "mean", 2: "sum"}
MANY = 8
"""Classes from which a softmax of plain cosines stays near even: at best e² to 1 for each of the others."""


@dataclass(frozen=True)
class LossGraph:
    """What was read off a graph."""

    leaves: frozenset[int]
    """The ids of the tensors that it ends in: parameters, mostly."""
    kind: str | None
    """"cross-entropy", "nll", "mse", "l1", "bce" and so on; None where the nodes do not say."""
    reduction: str | None
    """"mean" or "sum", where the loss's own node says it."""
    lint: tuple[str, ...]
    """Codes of mistakes, such as "softmax-before-cross-entropy"."""
    fragile: tuple[str, ...]
    """Operations next to the loss that may be undefined: "log", "sqrt", "norm" ..."""
    hidden: bool
    """Whether a compiled function is part of it."""
    complete: bool
    """Whether all of it was looked at."""
    newest: int
    """The sequence number of the last node that was made of a parameter itself; -1 where there is none."""


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
        name = _name(node)
        if name == "AccumulateGrad":
            leaves.add(id(node.variable))
            continue
        if node is root:
            lint.update((code, None) for code in _mistakes_at_the_end(node, name))
        lint.update((code, None) for code in _mistakes(node, name, in_head=count <= HEAD))
        if count <= HEAD and name in FRAGILE and _can_fail(node, name):
            fragile[FRAGILE[name]] = None
        hidden = hidden or name.startswith("CompiledFunction")
        layers += name in LINEAR
        bends = bends or not _is_straight(node, name)
        if kind is None:
            kind = _kind(node, name, in_head=count <= HEAD)
            reduction = _reduction(node, root) if kind else None
            rows = next(iter(_shape(next(_parents(node), None))), 0) if kind else 0
        lint.update((code, None) for code in _shared_out(node, name, rows))
        for parent in _parents(node):
            if type(parent).__name__ == "AccumulateGrad":
                newest = max(newest, node._sequence_nr())
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    lint.update((code, None) for code in ("only-linear",) if layers > 1 and not bends and not waiting)
    return LossGraph(frozenset(leaves), kind, reduction, tuple(lint), tuple(fragile), hidden, not waiting, newest)


def leaf_tensors(root: Any) -> list[Any]:
    """The tensors that a graph ends in: for a look at once, not to be kept."""
    seen, waiting, leaves = {root}, [root], []
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        fresh = [parent for parent in _parents(node) if parent not in seen]
        seen.update(fresh)
        waiting += fresh
    return leaves


def _is_straight(node: Any, name: str) -> bool:
    """Whether a node bends nothing: a layer with weights of its own, a sum, what moves values about, the loss."""
    if name in ("Addmm", "Mm", "Linear", "Convolution"):
        return any(type(parent).__name__ == "AccumulateGrad" or _is_leaf(parent) for parent in _parents(node))
    return name in SHAPING or name in ("Add", "Mean", "Sum") or name in KINDS or name.startswith("NllLoss")


def _shared_out(node: Any, name: str, rows: int) -> Iterator[str]:
    """Whether values are weighted by a softmax over as many samples as the loss counts: each gets what others leave."""
    for source in _parents(node) if name == "Mul" and rows > 1 else ():
        source = _source(source) if _name(source) in SHAPING else source
        sizes = _shape(source) if _name_of(source) == "Softmax" else ()
        if len(sizes) == 2 and sizes[0] == rows and sizes[1] > 1 and _along(source) == 0:
            yield "shared-among-samples"


def _is_leaf(node: Any) -> bool:
    """Whether a node does nothing but turn a parameter round."""
    return _name(node) == "T" and _name_of(next(_parents(node), None)) == "AccumulateGrad"


def _can_fail(node: Any, name: str) -> bool:
    """Whether it can: a square cannot, nor a division by a number or by something that has no graph."""
    if name == "Pow":
        exponent = getattr(node, "_saved_exponent", 2)
        return isinstance(exponent, int | float) and exponent < 1
    return name != "Div" or sum(1 for _ in _parents(node)) > 1


def is_loss_node(node: Any) -> bool:
    """Whether a node is that of one of torch's own losses."""
    return node is not None and (_name(node).startswith("NllLoss") or _name(node) in KINDS.keys() - {"LogSoftmax"})


def _name(node: Any) -> str:
    """A node's name without the ending that autograd gives it: LogSoftmaxBackward0 is LogSoftmax."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def _parents(node: Any) -> Iterator[Any]:
    return (parent for parent, _ in node.next_functions if parent is not None)


def _source(node: Any) -> Any:
    """What a node is fed with first, past nodes that only move values about; None at a constant."""
    source = next(_parents(node), None)
    for _ in range(HEAD):
        if source is None or _name(source) not in SHAPING:
            break
        source = next(_parents(source), None)
    return source


def _kind(node: Any, name: str, *, in_head: bool) -> str | None:
    if name.startswith("NllLoss"):
        source = _source(node)
        return "cross-entropy" if source is not None and _name(source) == "LogSoftmax" else "nll"
    if name in KINDS:
        return KINDS[name]
    if in_head and name in ("Pow", "Abs"):
        source = _source(node)
        if source is not None and _name(source) in ("Sub", "Rsub"):
            return "mse" if name == "Pow" else "l1"
    return None


def _reduction(node: Any, root: Any) -> str | None:
    """How a loss is reduced: its own node says it, or, of one that is put together, the last node of all."""
    if hasattr(node, "_saved_reduction"):
        return REDUCTIONS.get(node._saved_reduction)
    return _name(root).lower() if _name(root) in ("Mean", "Sum") and _source(root) is node else None


def _mistakes_at_the_end(root: Any, name: str) -> Iterator[str]:
    if name == "Neg" and is_loss_node(_source(root)):
        yield "negated"
    if name in REGRESSION and _is_dropout(_source(root)):
        yield "dropout-before-loss"
    if _cancels_out(root, name):
        yield "squared-after-the-mean"
    yield from _spread_out(root, name)


def _cancels_out(root: Any, name: str) -> bool:
    """Whether errors are averaged first, so that they cancel, and made positive then: (output - target).mean() ** 2."""
    parents = list(_parents(root))
    square = name == "Pow" and getattr(root, "_saved_exponent", 1) in (2, 4)
    square = square or (name == "Mul" and len(parents) == 2 and parents[0] is parents[1])
    mean = _source(root) if square or name in ("Abs", "Square") else None
    if _name_of(mean) not in ("Mean", "Sum") or _shape(mean) != ():
        return False
    error = _source(mean)
    whole = math.prod(_shape(error)) > 1 and sum(1 for _ in _parents(error)) == 1 if error is not None else False
    return whole and _name(error) in ("Sub", "Rsub")


def _mistakes(node: Any, name: str, *, in_head: bool) -> Iterator[str]:
    source = _source(node) if name in KINDS or name.startswith("NllLoss") else None
    fed_by = "" if source is None else _name(source)
    if name in OF_LOGITS and fed_by in ("Softmax", "Sigmoid", "Relu"):
        yield f"{fed_by.lower()}-before-{OF_LOGITS[name]}"
    elif name in OF_LOGITS and _is_dropout(source):
        yield "dropout-before-loss"
    elif name == "LogSoftmax" and in_head and _shape(node)[_along(node) :][:1] == (1,) and math.prod(_shape(node)) > 1:
        yield "one-class"
    elif name == "LogSoftmax" and fed_by in ("Mm", "Bmm") and _is_cosine(source):
        yield "cosines-without-scale"
    elif name.startswith("NllLoss"):
        yield from _mistakes_of_nll(node, source, fed_by)
    elif (name in REGRESSION or (in_head and name in ("Sub", "Rsub"))) and _is_crossed(node, name):
        yield "broadcast"
    elif in_head and name in ("Sum", "Mean") and _is_kl_of_probabilities(node):
        yield "kl-of-probabilities"
    elif name == "CtcLoss" and _is_too_short(node):
        yield "too-short-to-spell"
    if (name in KINDS or name.startswith("NllLoss")) and _is_scrambled(node):
        yield "scrambled"
    yield from _mistakes_in_the_model(node, name, in_head=in_head)


def _mistakes_of_nll(node: Any, source: Any, fed_by: str) -> Iterator[str]:
    softmax = _log_softmax(source)
    if fed_by in LINEAR or fed_by == "Relu":
        yield "nll-without-log-softmax"
    elif fed_by in ("Softmax", "Sigmoid"):
        yield "nll-of-probabilities"
    elif softmax is not None and len(_shape(softmax)) == 2 and _along(softmax) == 0:
        yield "softmax-over-the-batch"
    elif softmax is not None and _misses_classes(node, softmax):
        yield "softmax-over-places"


def _mistakes_in_the_model(node: Any, name: str, *, in_head: bool) -> Iterator[str]:
    if in_head and name in ("Softmax", "Sigmoid", "Exp") and _name_of(_source(node)) == name:
        yield f"{name.lower()}-twice"
    elif name == "Bmm" and _attends_wrongly(node):
        yield "attention-over-queries"
    elif name in VIEWS and _is_turned(node):
        yield "scrambled-inside"


def _name_of(node: Any) -> str:
    return "" if node is None else _name(node)


def _is_dropout(node: Any) -> bool:
    """Whether a node is a dropout: a node of its own, or, on a CPU, a product with zeros and one other number."""
    if _name_of(node) != "Mul" or sum(1 for _ in _parents(node)) > 1:
        return _name_of(node) == "NativeDropout"
    try:
        mask = node._saved_other
    except RuntimeError:  # backward has been there
        return False
    device = getattr(mask, "device", None)  # a number has none
    if device is None or device.type != "cpu" or tuple(mask.shape) != _shape(node) or mask.numel() < 2:
        return False
    some = mask.detach().flatten()[:4096]
    kept = float(some.max())
    return kept > 1 and bool(((some == 0) | (some == kept)).all()) and bool((some == 0).any())


def _attends_wrongly(node: Any) -> bool:
    """Whether attention takes its softmax over queries, heads or samples: what one query gets does not sum to 1."""
    source = next(_parents(node), None)
    while source is not None and (_name(source) in (*VIEWS, "Expand") or _is_dropout(source)):
        source = next(_parents(source), None)
    sizes = _shape(source) if _name_of(source) == "Softmax" else ()
    if len(sizes) < 3 or sizes[-1] != sizes[-2] or sizes[-1] < 2:
        return False
    return _along(source) != len(sizes) - 1


def _is_too_short(node: Any) -> bool:
    """Whether sequences have fewer steps than their targets have letters, as far as the host knows their lengths."""
    given, asked = (getattr(node, f"_saved_{name}_lengths", None) for name in ("input", "target"))
    if not isinstance(given, tuple) or not isinstance(asked, tuple) or not given:
        return False
    between = _doubles(node, asked)
    short = sum(steps < letters + more for steps, letters, more in zip(given, asked, between, strict=True))
    return bool(4 * short >= len(given))


def _doubles(node: Any, lengths: Sequence[int]) -> list[int]:
    """How many letters of each target are the same as the one before, and need a blank between; 0 where unknown."""
    targets: Any = getattr(node, "_saved_targets", None)
    if targets is None or targets.device.type != "cpu" or targets.dim() != 2:
        return [0] * len(lengths)
    return [int((row[1:length] == row[: length - 1]).sum()) for row, length in zip(targets, lengths, strict=True)]


def _is_turned(node: Any) -> bool:
    """Whether a view inside of a model exchanges sizes, or puts heads of attention together without turning them back.

    Sizes that differ by one are left out: relative positions are shifted by such a view, on purpose. So are those of
    which one is a multiple of the other: heads are split off, and samples and heads put together, by such views.
    """
    before, after = tuple(getattr(node, "_saved_self_sym_sizes", ())), _shape(node)
    old, new = [size for size in before if size > 1], [size for size in after if size > 1]
    if len(old) > 2 and sorted(old) == sorted(new) and old != new:
        moved = sorted({size for size, other in zip(old, new, strict=True) if size != other})
        apart = all(other - size > 1 and other % size for size, other in itertools.combinations(moved, 2))
        return apart and len(moved) > 1
    if len(before) != 4 or len(after) != 3 or min(before[1:3]) < 2 or before[1] == before[2]:
        return False
    joined = after == (before[0], before[2], before[1] * before[3])
    source = next(_parents(node), None)
    while _name_of(source) in (*VIEWS, "Clone"):
        source = next(_parents(source), None)
    return bool(joined) and _name_of(source).startswith(("Bmm", "ScaledDotProduct"))


def _along(node: Any) -> int:
    """The dimension of a softmax, counted from the first."""
    dimension = int(getattr(node, "_saved_dim", -1))
    dimension = dimension - 2**64 if dimension >= 2**63 else dimension  # kept without a sign
    return dimension % max(1, len(_shape(node)))


def _log_softmax(node: Any) -> Any:
    """The softmax of which an NLL is given the logarithm, taken in one or by hand; None where there is none."""
    if _name_of(node) == "LogSoftmax":
        return node
    if _name_of(node) != "Log":
        return None
    node = _source(node)
    if _name_of(node) in ("Add", "Clamp", "ClampMin"):
        node = _source(node)
    return node if _name_of(node) == "Softmax" else None


def _misses_classes(node: Any, softmax: Any) -> bool:
    """Whether the softmax before an NLL runs along something else than the classes, which it has as well.

    A class more than is asked for, such as a blank that is cut off, is no mistake.
    """
    taken, sizes = next(_parents(node), None), _shape(softmax)
    classes = _shape(taken)[1:2] or _shape(taken)
    return bool(classes) and len(sizes) > 2 and sizes[_along(softmax)] != classes[0] and classes[0] in sizes


def _is_kl_of_probabilities(node: Any) -> bool:
    """Whether `kl_div`, t log t - t x, was given probabilities as x, which it takes for their logarithms."""
    for name in ("Sub", "Mul"):
        node = next(_parents(node), None)
        if node is None or _name(node) != name or node.next_functions[0][0] is not None:  # the target has no graph
            return False
    source = _source(node)
    return source is not None and _name(source) == "Softmax"


def _is_cosine(node: Any) -> bool:
    """Whether a product of matrices is one of unit vectors, for so many classes that cosines cannot tell them apart."""
    operands = [parent if _name(parent) not in SHAPING else _source(parent) for parent in _parents(node)]
    return _shape(node)[-1:] >= (MANY,) and len(operands) == 2 and all(map(_is_unit, operands))


def _is_unit(node: Any) -> bool:
    """Whether a node divides something by its norm."""
    if node is None or _name(node) != "Div":
        return False
    norm = next((_source(parent) for parent in _parents(node) if _name(parent) == "Expand"), None)
    norm = _source(norm) if norm is not None and _name(norm) in ("ClampMin", "Clamp") else norm
    return norm is not None and _name(norm) in ("LinalgVectorNorm", "Norm")


def _is_scrambled(node: Any) -> bool:
    """Whether a view on the way to a loss stands for a transpose: sizes change places, values stay where they are."""
    source = next(_parents(node), None)
    for _ in range(HEAD):
        if source is None or _name(source) not in SHAPING:
            return False
        if _name(source) in VIEWS and exchanges(getattr(source, "_saved_self_sym_sizes", ()), _shape(source)):
            return True
        source = next(_parents(source), None)
    return False


def exchanges(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a view exchanges dimensions, or makes rows that begin in the middle of others.

    >>> exchanges((12, 24, 65), (12, 65, 24)), exchanges((4, 10, 6, 6), (144, 10))
    (True, True)
    >>> exchanges((12, 24, 65), (288, 65)), exchanges((12, 1, 65), (12, 65, 1)), exchanges((8, 12), (24, 4))
    (False, False, False)
    """
    old, new = [size for size in before if size > 1], [size for size in after if size > 1]
    if not old or not new or old == new:
        return False
    if sorted(old) == sorted(new):
        return True
    row = 1
    for size in reversed(old):
        row *= size
        if row >= new[-1]:
            break
    return row % new[-1] != 0


def _spread_out(root: Any, name: str) -> Iterator[str]:
    """Whether a mean error is one of differences between what does not belong together: outputs that were broadcast."""
    node = root if name in REGRESSION else None
    if name in ("Mean", "Sum"):
        error = next(_parents(root), None)
        node = next(_parents(error), None) if _name_of(error) in ("Pow", "Abs", "Mul") else None
    spread, parents = _shape(next(_parents(root), None)), [] if node is None else list(_parents(node))
    if name in REGRESSION and _name_of(parents[0] if parents else None) == "Expand":
        parents = list(_parents(parents[0]))
    elif _name_of(node) not in ("Sub", "Rsub"):
        return
    if len(parents) != 1:
        return
    given = _shape(parents[0])
    if len(spread) == 3 and spread[0] == spread[1] > 1 and given in ((spread[0], 1, spread[2]), (1, *spread[1:])):
        yield "broadcast"
    elif len(spread) == 2 and given == (spread[0], 1) and 1 < spread[1] != spread[0] > 1:
        yield "one-for-all"


def _is_crossed(node: Any, name: str) -> bool:
    """Whether N predictions and N targets were spread out against each other, to N × N differences."""
    parents = list(_parents(node))
    if not parents or (name not in REGRESSION and len(parents) > 1):  # two operands with a graph: pairs on purpose
        return False
    operand, spread = parents[0], _shape(node)
    if name in REGRESSION and _name(operand) != "Expand":
        return False
    if _name(operand) == "Expand":  # the functions of torch spread their operands out themselves
        spread, operand = _shape(operand), next(_parents(operand), None)
    if operand is None or len(spread) != 2 or spread[0] != spread[1] or spread[0] < 2:
        return False
    side = spread[0]
    return _shape(operand) in ((side, 1), (side,), (1, side)) and _name(operand) != "Unsqueeze"


def _shape(node: Any) -> tuple[int, ...]:
    """The shape of what a node computed."""
    known = getattr(node, "_input_metadata", ())
    return tuple(known[0].shape) if known else ()
