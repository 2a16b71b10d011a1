"""Whether self-attention is one-hot, read from the graph behind a loss: for attention that is not a torch module.

A softmax over attention scores keeps its result for backward; a fused attention keeps queries and keys. They are read
before backward runs, for the heads of the first samples.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchdoctor.vitals.graph_nodes import node_name, nodes_behind, parents_of, shape_of, softmax_dimension
from torchdoctor.vitals.loss_graph import MOST_NODES
from torchdoctor.vitals.loss_inputs import kept

MOST_LAYERS = 8
"""Number of attention nodes that are looked at, those nearest to the loss."""
FEWEST, TOKENS = 8, 64
"""Tokens from which attention is judged, and those of fused attention for which it is computed."""
REST = 1e-6
"""Weight of the second token, below which attention is one-hot: its scores get no gradient."""
HEADS = 16
"""Heads, of several samples, that are looked at."""
BETWEEN = ("View", "UnsafeView", "Reshape", "ReshapeAlias", "Expand", "Clone", "ToCopy", "Mul", "NativeDropout")
"""Nodes between the softmax of attention and the product with the values."""


def share_of_fixed(loss: Tensor) -> Tensor | None:
    """Share of queries with one-hot attention, in the median layer; None if there is no self-attention.

    >>> scores = torch.randn(2, 16, 16, requires_grad=True)
    >>> made = [(by * scores).softmax(-1) @ torch.randn(2, 16, 4) for by in (1.0, 1e4)]
    >>> [round(float(share_of_fixed(value.sum()))) for value in made]
    [0, 1]
    """
    shares: list[Tensor] = []
    for node in nodes_behind(loss.grad_fn, MOST_NODES):
        weights = _weights(node)
        if weights is not None:
            second = weights.topk(2, dim=-1).values[..., 1]
            shares.append((second < REST).float().mean())
        if len(shares) == MOST_LAYERS:
            break
    return torch.stack(shares).median() if shares else None


def _weights(node: Any) -> Tensor | None:
    """The attention of the first heads that this node applies; None if it is not self-attention."""
    name = node_name(node)
    weights = _of_product(node) if name == "Bmm" else _of_fused(node) if name.startswith("ScaledDotProduct") else None
    square = weights is not None and weights.shape[-1] == weights.shape[-2]
    return weights if square and weights is not None and weights.shape[-1] >= FEWEST else None


def _of_product(node: Any) -> Tensor | None:
    source = next(parents_of(node), None)
    while source is not None and node_name(source) in BETWEEN:
        source = next(parents_of(source), None)
    if node_name(source) not in ("Softmax", "SafeSoftmax") or len(shape_of(source)) < 3:
        return None
    made = kept(source, "result") if softmax_dimension(source) == len(shape_of(source)) - 1 else None
    return None if made is None else made.detach().flatten(0, -3)[:HEADS]


def _of_fused(node: Any) -> Tensor | None:
    query, key = kept(node, "query"), kept(node, "key")
    if query is None or key is None or query.dim() != 4 or query.shape != key.shape:
        return None
    if any(kept(node, name) is not None for name in ("attn_mask", "attn_bias")):
        return None
    one, other = (item.detach()[:, :, :TOKENS].flatten(0, 1)[:HEADS].float() for item in (query, key))
    scale = getattr(node, "_saved_scale", None)
    scores = one @ other.transpose(1, 2) * (scale if isinstance(scale, float) else 1 / math.sqrt(query.shape[-1]))
    if getattr(node, "_saved_is_causal", False):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1)
