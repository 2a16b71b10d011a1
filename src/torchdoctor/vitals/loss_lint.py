"""Mistakes visible in the graph behind a loss: wrong inputs, wrong dimensions, wrong order.

Each is a code, such as "softmax-before-cross-entropy"; the findings and causes that read it put it into words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torchdoctor.vitals.graph_nodes import (
    HEAD,
    KINDS,
    LINEAR,
    REGRESSION,
    SHAPING,
    is_loss_node,
    node_name,
    parents_of,
    shape_of,
    softmax_dimension,
    source_of,
)

VIEWS = ("View", "UnsafeView", "Reshape", "ReshapeAlias")
OF_LOGITS = {"LogSoftmax": "cross-entropy", "BinaryCrossEntropyWithLogits": "bce-with-logits"}
"""Losses that expect raw scores."""
MANY = 8
"""Classes from which a softmax of unscaled cosines stays nearly uniform: at most e² to 1 against each other class."""


def shared_out(node: Any, name: str, rows: int) -> Iterator[str]:
    """Whether a softmax across all samples of the loss weights values: each sample then gets what the others leave."""
    for source in parents_of(node) if name == "Mul" and rows > 1 else ():
        source = source_of(source) if node_name(source) in SHAPING else source
        sizes = shape_of(source) if node_name(source) == "Softmax" else ()
        if len(sizes) == 2 and sizes[0] == rows and sizes[1] > 1 and softmax_dimension(source) == 0:
            yield "shared-among-samples"


def mistakes_at_the_end(root: Any, name: str) -> Iterator[str]:
    """Mistakes of the last node."""
    if name == "Neg" and is_loss_node(source_of(root)):
        yield "negated"
    if name in REGRESSION and _is_dropout(source_of(root)):
        yield "dropout-before-loss"
    if _cancels_out(root, name):
        yield "squared-after-the-mean"
    yield from _spread_out(root, name)


def _cancels_out(root: Any, name: str) -> bool:
    """Whether errors are averaged before they are made positive, so that they cancel: (output - target).mean() ** 2.

    The average may be over everything, or over the samples for each output; over one sample's outputs it may be
    intended.
    """
    if name in ("Mean", "Sum") and shape_of(root) == ():
        root = source_of(root)
        name = node_name(root)
    parents = [] if root is None else list(parents_of(root))
    square = name == "Pow" and getattr(root, "_saved_exponent", 1) in (2, 4)
    square = square or (name == "Mul" and len(parents) == 2 and parents[0] is parents[1])
    mean = source_of(root) if square or name in ("Abs", "Square") else None
    error = source_of(mean) if node_name(mean) in ("Mean", "Sum") else None
    if error is None or node_name(error) not in ("Sub", "Rsub") or sum(1 for _ in parents_of(error)) != 1:
        return False
    sizes = shape_of(error)
    if shape_of(mean) == ():
        return math.prod(sizes) > 1
    return sizes[:1] > (1,) and tuple(getattr(mean, "_saved_dim", ())) == (0,)


def mistakes(node: Any, name: str, *, in_head: bool) -> Iterator[str]:
    """Mistakes of one node; `in_head`: the node is near the loss."""
    source = source_of(node) if name in KINDS or name.startswith("NllLoss") else None
    fed_by = "" if source is None else node_name(source)
    if name in OF_LOGITS and fed_by in ("Softmax", "Sigmoid", "Relu"):
        yield f"{fed_by.lower()}-before-{OF_LOGITS[name]}"
    elif name in OF_LOGITS and _is_dropout(source):
        yield "dropout-before-loss"
    elif name == "LogSoftmax" and in_head and _has_one_class(node):
        yield "one-class"
    elif name == "LogSoftmax" and fed_by in ("Mm", "Bmm", "Mul") and _is_cosine(_unscaled(source)):
        yield "cosines-without-scale"
    elif name.startswith("NllLoss"):
        yield from _mistakes_of_nll(node, source, fed_by)
    elif (name in REGRESSION or (in_head and name in ("Sub", "Rsub"))) and _is_crossed(node, name):
        yield "broadcast"
    elif in_head and name in ("Sum", "Mean", "Xlogy"):
        yield from _mistakes_of_kl(node, name)
    elif name == "CtcLoss":
        yield from _mistakes_of_ctc(node)
    if (name in KINDS or name.startswith("NllLoss")) and _is_scrambled(node):
        yield "scrambled"
    yield from _mistakes_in_the_model(node, name, in_head=in_head)


def _has_one_class(node: Any) -> bool:
    shape = shape_of(node)
    return shape[softmax_dimension(node) :][:1] == (1,) and math.prod(shape) > 1


def _mistakes_of_nll(node: Any, source: Any, fed_by: str) -> Iterator[str]:
    softmax = _log_softmax(source)
    if fed_by in LINEAR or fed_by == "Relu" or _adds_a_bias(source, fed_by):
        yield "nll-without-log-softmax"
    elif fed_by in ("Softmax", "Sigmoid"):
        yield "nll-of-probabilities"
    elif softmax is not None and len(shape_of(softmax)) == 2 and softmax_dimension(softmax) == 0:
        yield "softmax-over-the-batch"
    elif softmax is not None and _misses_classes(node, softmax):
        yield "softmax-over-places"


def _mistakes_of_ctc(node: Any) -> Iterator[str]:
    source = source_of(node)
    if node_name(source) in LINEAR or _adds_a_bias(source, node_name(source)):
        yield "ctc-without-log-softmax"
    elif _is_too_short(node):
        yield "too-short-to-spell"


def _adds_a_bias(node: Any, name: str) -> bool:
    """Whether a node adds the bias of a linear layer: for non-contiguous inputs, the product is a separate node."""
    parents = list(parents_of(node)) if name == "Add" else []
    rest = [parent for parent in parents if node_name(parent) != "AccumulateGrad"]
    if len(parents) != 2 or len(rest) != 1:
        return False
    return node_name(rest[0] if node_name(rest[0]) not in SHAPING else source_of(rest[0])) in LINEAR


def _mistakes_in_the_model(node: Any, name: str, *, in_head: bool) -> Iterator[str]:
    if in_head and name in ("Softmax", "Sigmoid", "Exp") and node_name(source_of(node)) == name:
        yield f"{name.lower()}-twice"
    elif in_head and name == "Softmax" and len(shape_of(node)) == 2 and _has_one_class(node):
        yield "softmax-of-one"
    elif name in ("NativeLayerNorm", "NativeGroupNorm") and _normalizes_one(node, name):
        yield "norm-of-one"
    elif name == "Bmm" and _attends_wrongly(node):
        yield "attention-over-queries"
    elif name in VIEWS and _is_turned(node):
        yield "scrambled-inside"


def _normalizes_one(node: Any, name: str) -> bool:
    """Whether a normalization layer normalizes each value by itself: the result is its bias, whatever the input."""
    if name == "NativeLayerNorm":
        return math.prod(getattr(node, "_saved_normalized_shape", (2,))) == 1
    sizes = [int(getattr(node, f"_saved_{size}", 0)) for size in ("C", "HxW", "group")]
    return min(sizes) > 0 and sizes[0] * sizes[1] == sizes[2]


def _is_dropout(node: Any) -> bool:
    """Whether a node is dropout: its own node, or, on a CPU, a product with zeros and one other number."""
    if node_name(node) != "Mul" or sum(1 for _ in parents_of(node)) > 1:
        return node_name(node) == "NativeDropout"
    try:
        mask = node._saved_other
    except RuntimeError:  # backward has already run
        return False
    device = getattr(mask, "device", None)  # a number has none
    if device is None or device.type != "cpu" or tuple(mask.shape) != shape_of(node) or mask.numel() < 2:
        return False
    some = mask.detach().flatten()[:4096]
    kept = float(some.max())
    return kept > 1 and bool(((some == 0) | (some == kept)).all()) and bool((some == 0).any())


def _attends_wrongly(node: Any) -> bool:
    """Whether the softmax of attention runs over queries, heads or samples: a query's weights then do not sum to 1."""
    source = next(parents_of(node), None)
    while source is not None and (node_name(source) in (*VIEWS, "Expand") or _is_dropout(source)):
        source = next(parents_of(source), None)
    sizes = shape_of(source) if node_name(source) == "Softmax" else ()
    if len(sizes) < 3 or sizes[-1] != sizes[-2] or sizes[-1] < 2:
        return False
    return softmax_dimension(source) != len(sizes) - 1


def _is_too_short(node: Any) -> bool:
    """Whether a quarter or more of the sequences have fewer steps than their targets need, if lengths are known."""
    given, asked = (getattr(node, f"_saved_{name}_lengths", None) for name in ("input", "target"))
    if not isinstance(given, tuple) or not isinstance(asked, tuple) or not given:
        return False
    between = _doubles(node, asked)
    short = sum(steps < letters + more for steps, letters, more in zip(given, asked, between, strict=True))
    return bool(4 * short >= len(given))


def _doubles(node: Any, lengths: Sequence[int]) -> list[int]:
    """Number of repeated letters per target, each of which needs a blank in between; 0 if unknown."""
    targets: Any = getattr(node, "_saved_targets", None)
    if targets is None or targets.device.type != "cpu" or targets.dim() != 2:
        return [0] * len(lengths)
    return [int((row[1:length] == row[: length - 1]).sum()) for row, length in zip(targets, lengths, strict=True)]


def _is_turned(node: Any) -> bool:
    """Whether a view inside a model swaps dimensions, or merges attention heads without transposing them back.

    Sizes that differ by one are left out, because relative positions are shifted by such a view on purpose. So are
    sizes of which one is a multiple of the other: such views split off heads, or merge samples and heads.
    """
    before, after = tuple(getattr(node, "_saved_self_sym_sizes", ())), shape_of(node)
    old, new = [size for size in before if size > 1], [size for size in after if size > 1]
    if len(old) > 2 and sorted(old) == sorted(new) and old != new:
        moved = sorted({size for size, other in zip(old, new, strict=True) if size != other})
        apart = all(other - size > 1 and other % size for size, other in itertools.combinations(moved, 2))
        return apart and len(moved) > 1
    if len(before) != 4 or len(after) != 3 or min(before[1:3]) < 2 or before[1] == before[2]:
        return False
    joined = after == (before[0], before[2], before[1] * before[3])
    source = next(parents_of(node), None)
    while node_name(source) in (*VIEWS, "Clone"):
        source = next(parents_of(source), None)
    return bool(joined) and node_name(source).startswith(("Bmm", "ScaledDotProduct"))


def _log_softmax(node: Any) -> Any:
    """The softmax whose logarithm an NLL gets, as log_softmax or computed by hand; None if there is none."""
    if node_name(node) == "LogSoftmax":
        return node
    if node_name(node) != "Log":
        return None
    node = source_of(node)
    if node_name(node) in ("Add", "Clamp", "ClampMin"):
        node = source_of(node)
    return node if node_name(node) == "Softmax" else None


def _misses_classes(node: Any, softmax: Any) -> bool:
    """Whether the softmax before an NLL runs along a dimension other than the classes, although it has that one too.

    One class more than in the loss, such as a blank that is cut off, is not a mistake.
    """
    taken, sizes = next(parents_of(node), None), shape_of(softmax)
    classes = shape_of(taken)[1:2] or shape_of(taken)
    return bool(classes) and len(sizes) > 2 and sizes[softmax_dimension(softmax)] != classes[0] and classes[0] in sizes


def _mistakes_of_kl(node: Any, name: str) -> Iterator[str]:
    if name != "Xlogy" and _is_kl_of_probabilities(node):
        yield "kl-of-probabilities"
    elif name == "Xlogy" and node_name(source_of(node)) == "LogSoftmax":
        yield "kl-against-logarithms"


def _is_kl_of_probabilities(node: Any) -> bool:
    """Whether `kl_div`, t log t - t x, got probabilities as x, where it expects their logarithms."""
    for name in ("Sub", "Mul"):
        node = next(parents_of(node), None)
        if node is None or node_name(node) != name or node.next_functions[0][0] is not None:  # the target has no graph
            return False
    source = source_of(node)
    return source is not None and node_name(source) == "Softmax"


def _is_cosine(node: Any) -> bool:
    """Whether a matrix product is one of unit vectors, with so many classes that cosines cannot separate them."""
    operands = [parent if node_name(parent) not in SHAPING else source_of(parent) for parent in parents_of(node)]
    return shape_of(node)[-1:] >= (MANY,) and len(operands) == 2 and all(map(_is_unit, operands))


def _unscaled(node: Any) -> Any:
    """The input of a node that multiplies by a number of at most 1, which enlarges nothing; else the node itself."""
    if node_name(node) != "Mul" or sum(1 for _ in parents_of(node)) > 1:
        return node
    try:
        factor = node._saved_other if node._saved_other is not None else node._saved_self
    except RuntimeError:  # backward has already run
        return node
    number = factor is not None and factor.dim() == 0 and factor.device.type == "cpu" and abs(float(factor)) <= 1
    return source_of(node) if number else node


def _is_unit(node: Any) -> bool:
    """Whether a node divides something by its norm."""
    if node is None or node_name(node) != "Div":
        return False
    norm = next((source_of(parent) for parent in parents_of(node) if node_name(parent) == "Expand"), None)
    norm = source_of(norm) if norm is not None and node_name(norm) in ("ClampMin", "Clamp") else norm
    return norm is not None and node_name(norm) in ("LinalgVectorNorm", "Norm")


def _is_scrambled(node: Any) -> bool:
    """Whether a view on the way to a loss is used as a transpose: sizes swap, but values stay in place."""
    source = next(parents_of(node), None)
    for _ in range(HEAD):
        if source is None or node_name(source) not in SHAPING:
            return False
        if node_name(source) in VIEWS and exchanges(getattr(source, "_saved_self_sym_sizes", ()), shape_of(source)):
            return True
        source = next(parents_of(source), None)
    return False


def exchanges(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a view swaps dimensions, or makes rows that begin in the middle of others.

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
    """Whether broadcasting makes a mean error compare outputs with targets that do not belong to them."""
    node = root if name in REGRESSION else None
    if name in ("Mean", "Sum"):
        error = next(parents_of(root), None)
        node = next(parents_of(error), None) if node_name(error) in ("Pow", "Abs", "Mul") else None
    spread, parents = shape_of(next(parents_of(root), None)), [] if node is None else list(parents_of(node))
    if name in REGRESSION and node_name(parents[0] if parents else None) == "Expand":
        parents = list(parents_of(parents[0]))
    elif node_name(node) not in ("Sub", "Rsub"):
        return
    if len(parents) != 1:
        return
    given = shape_of(parents[0])
    if len(spread) == 3 and spread[0] == spread[1] > 1 and given in ((spread[0], 1, spread[2]), (1, *spread[1:])):
        yield "broadcast"
    elif len(spread) == 2 and given == (spread[0], 1) and 1 < spread[1] != spread[0] > 1:
        yield "one-for-all"


def _is_crossed(node: Any, name: str) -> bool:
    """Whether N predictions and N targets were broadcast to N × N differences."""
    parents = list(parents_of(node))
    if not parents or (name not in REGRESSION and len(parents) > 1):  # two operands with a graph: pairs on purpose
        return False
    operand, spread = parents[0], shape_of(node)
    if name in REGRESSION and node_name(operand) != "Expand":
        return False
    if node_name(operand) == "Expand":  # torch's loss functions expand their operands themselves
        spread, operand = shape_of(operand), next(parents_of(operand), None)
    if operand is None or len(spread) != 2 or spread[0] != spread[1] or spread[0] < 2:
        return False
    side = spread[0]
    return shape_of(operand) in ((side, 1), (side,), (1, side)) and node_name(operand) != "Unsqueeze"
