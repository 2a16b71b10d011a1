"""Whether attention looks ahead, which a causal mask forbids, read from the graph behind a loss.

A softmax over attention scores keeps its result for backward; a fused attention keeps whether it was causal. They are
read before backward runs, for one head of one sample, in the first few samples of a run, because a mask does not change
later.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdoctor.vitals.graph_nodes import node_name, nodes_behind
from torchdoctor.vitals.loss_graph import MOST_NODES
from torchdoctor.vitals.loss_inputs import kept

MOST_LAYERS = 4
"""Number of attention nodes that are looked at, those nearest to the loss."""
SOFTMAX = ("Softmax", "SafeSoftmax")
"""Nodes of attention written by hand."""
MASKED = -1e3
"""Adding a score below this removes a position from attention."""


def look_ahead(loss: Tensor, length: int) -> Tensor | None:
    """Share of the attention over `length` tokens that goes to later ones, in the layer with the least; else None.

    If attention with another query length reads these tokens, they belong to an encoder, which may look at all of them.
    """
    shares: list[Tensor] = []
    for node in nodes_behind(loss.grad_fn, MOST_NODES):
        name = node_name(node)
        sides = _sides(node, name)
        if sides == (length, length):
            shares.append(_of_softmax(node, length) if name in SOFTMAX else _of_fused(node, length, loss))
        elif sides is not None and sides[1] == length:
            return None
        if len(shares) == MOST_LAYERS:
            break
    return torch.stack(shares).amin() if shares else None


def _sides(node: Any, name: str) -> tuple[int, int] | None:
    """Number of queries and keys, if this node is attention."""
    if name.startswith("ScaledDotProduct"):
        query, key = kept(node, "query"), kept(node, "key")
        return None if query is None or key is None else (query.shape[-2], key.shape[-2])
    weights = kept(node, "result") if name in SOFTMAX else None
    return None if weights is None or weights.dim() < 3 else (weights.shape[-2], weights.shape[-1])


def _of_softmax(node: Any, length: int) -> Tensor:
    return _later(node._saved_result.detach().reshape(-1, length, length)[0].float())


def _of_fused(node: Any, length: int, loss: Tensor) -> Tensor:
    masks = [mask for name in ("attn_mask", "attn_bias") if (mask := kept(node, name)) is not None]
    if getattr(node, "_saved_is_causal", True) or any(mask.shape[-2:] != (length, length) for mask in masks):
        return loss.new_zeros((), dtype=torch.float32)
    scores = torch.zeros(length, length, device=loss.device)
    for mask in masks:
        one = mask.detach().reshape(-1, length, length)[0]
        allowed = one if one.dtype == torch.bool else one > MASKED
        scores = scores.masked_fill(~allowed, -torch.inf)
    return _later(scores.softmax(-1).nan_to_num())


def _later(weights: Tensor) -> Tensor:
    return weights.triu(1).sum() / weights.sum().clamp_min(1e-12)
