"""What is computed from one layer: from its input, its output, or its weights.

Dead units, saturated functions and gates, the entropy of attention, and equal rows of weights. Results stay on the
device; None means that these tensors do not tell.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from torchdoctor.vitals.passes import is_plain, plain_tensors

SPAN = 3
"""Samples in which a unit must be zero before it can be called dead."""
ROWS = 128
"""Inputs in which it must be zero: small batches need more samples."""
MOST_SAMPLES = 64
"""Maximum number of samples kept for that."""
TOKENS = 128
"""Tokens of a sample for which attention is computed."""
FLAT = 3.5
"""Absolute input beyond which a sigmoid is outside 0.03 to 0.97; a tanh is even flatter there."""


class Units:
    """The largest value of each unit at the last few samples: as many as are needed to cover enough inputs."""

    def __init__(self) -> None:
        self._largest: deque[tuple[Tensor, int]] = deque(maxlen=MOST_SAMPLES)

    def dead(self, largest: Tensor, rows: int) -> Tensor | None:
        """Share of units that were zero in everything that is remembered; None while that is too little."""
        kept = self._largest
        if kept and kept[-1][0].shape != largest.shape:
            kept.clear()
        kept.append((largest, rows))
        seen = sum(count for _, count in kept)
        while len(kept) > SPAN and seen - kept[0][1] >= ROWS:
            seen -= kept.popleft()[1]
        if len(kept) < SPAN or seen < ROWS:
            return None
        return (torch.stack([values for values, _ in kept]).amax(0) == 0).float().mean()


def rows_are_equal(weight: Tensor) -> Tensor | None:
    """1 if all rows of a matrix are the same, otherwise 0; None if there are too few to tell.

    >>> rows_are_equal(torch.ones(3, 2)), rows_are_equal(torch.eye(3)), rows_are_equal(torch.ones(1, 2))
    (tensor(1.), tensor(0.), None)
    """
    if weight.dim() > 1 and weight.shape[0] > 1 and is_plain(weight):
        rows = weight.detach().flatten(1)
        if rows.shape[1] > 1 or rows.shape[0] > 2:
            return ((rows - rows[:1]).abs().amax() == 0).float()
    return None


def share_at_extremes(value: Tensor, kind: str) -> Tensor:
    """Share of a tanh's or sigmoid's values that are at one of its two extremes."""
    return ((value.abs() > 0.97) if kind == "Tanh" else ((value - 0.5).abs() > 0.47)).float().mean()


def _gates(module: nn.RNNBase, inputs: Any, output: Any) -> Tensor | None:
    """Input of the gates of a recurrent layer's last level, for one sample; None if it cannot be computed.

    It is recomputed from the layer's input and its own outputs. With several levels, the input of the last one is
    unknown and left out. So are biases: some recipes initialize them with large values to make a layer remember.
    """
    given, made = next(plain_tensors(inputs), None), next(plain_tensors(output), None)
    last = module.num_layers - 1
    hidden, entering = (module._parameters.get(f"weight_{kind}_l{last}") for kind in ("hh", "ih"))
    if given is None or made is None or module.mode == "RNN_RELU":
        return None
    plain = given.dim() == made.dim() == 3 and not module.bidirectional and not module.proj_size
    if not plain or not is_plain(hidden) or hidden.dtype != made.dtype:
        return None
    one, states = (item.detach()[0 if module.batch_first else slice(None)][:TOKENS] for item in (given, made))
    if not module.batch_first:
        one, states = one[:, 0], states[:, 0]
    gates = nn.functional.linear(states[:-1], hidden.detach())
    if last == 0 and entering is not None:
        gates = gates + nn.functional.linear(one[1:].to(gates.dtype), entering.detach())
    return gates.float() if gates.numel() else None


def saturated_gates(module: nn.RNNBase, inputs: Any, output: Any) -> Tensor | None:
    """Share of a recurrent layer's gates that are at their extremes; None if they cannot be computed."""
    gates = _gates(module, inputs, output)
    return None if gates is None else (gates.abs() > FLAT).float().mean()


def attention_logits(module: nn.MultiheadAttention, inputs: Any) -> Tensor | None:
    """Logits of attention, which are rarely returned: computed again for the first tokens of one sample, unmasked."""
    if len(inputs) < 2 or not module._qkv_same_embed_dim or not all(is_plain(item) for item in inputs[:2]):
        return None
    query, key = (item.detach() for item in inputs[:2])
    if query.dim() != 3 or key.dim() != 3 or query.dtype != module.in_proj_weight.dtype:
        return None
    width, heads = module.embed_dim, module.num_heads
    projections = []
    for place, tokens in enumerate((query, key)):
        rows = slice(place * width, (place + 1) * width)
        bias = None if module.in_proj_bias is None else module.in_proj_bias[rows]
        one = (tokens[0] if module.batch_first else tokens[:, 0])[:TOKENS]
        made = nn.functional.linear(one, module.in_proj_weight[rows], bias)
        projections.append(made.float().view(-1, heads, width // heads).transpose(0, 1))
    return projections[0] @ projections[1].transpose(1, 2) / math.sqrt(width // heads)


def relative_entropy(weights: Tensor, dimension: int | None) -> Tensor:
    """Mean entropy of distributions relative to uniform ones: 1 is uniform, as is a single choice, and 0 is one-hot.

    >>> relative_entropy(torch.eye(4), -1).item(), relative_entropy(torch.ones(4, 1), -1).item()
    (0.0, 1.0)
    """
    dimension = -1 if dimension is None else dimension
    if weights.shape[dimension] < 2:
        return weights.new_ones(())
    entropy: Tensor = -(weights * weights.clamp_min(1e-30).log()).sum(dimension)
    return entropy.mean() / math.log(weights.shape[dimension])
