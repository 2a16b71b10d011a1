"""What attends to what: the weights of every attention in a pass, whichever way they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from torchdoctor.checks.nested import tensors
from torchdoctor.checks.subject import Subject

SOFTMAXES = (torch.softmax, functional.softmax, Tensor.softmax)
PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")
"""How weights meet values, by the names of torch's functions."""
FEW = 2
"""Samples whose weights are kept."""


@dataclass(frozen=True)
class Attended:
    """The weights of one attention: (samples, heads, queries, keys), or without heads."""

    where: str
    weights: Tensor
    dimension: int
    """The dimension that the softmax was taken over, counted from the end: -1 is the keys."""
    weighs: bool = True
    """Whether something is multiplied by it as by a matrix, or of its shape: a softmax over classes weighs nothing."""
    effect: tuple[float, ...] = ()
    """By head: how much of it arrives in the output, 0 for nothing at all; empty where it was not asked."""

    @property
    def is_square(self) -> bool:
        """Whether positions attend to one another."""
        square = self.weights.dim() > 2 and self.weights.shape[-1] == self.weights.shape[-2] > 1
        return square and self.weighs


class _Eye(TorchFunctionMode):
    """Sees calls of softmax and of attention on their way into torch."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.seen: list[Attended] = []
        self.products: set[tuple[int, ...]] = set()
        """The last two dimensions of all that matrices were multiplied by, or with."""
        self.fused: set[int] = set()
        """Places among the seen that torch's own attention computed."""
        self.effects: dict[int, Tensor] = {}
        """By place among the seen: what is zero for a head that adds nothing, heads in the second dimension."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is functional.multi_head_attention_forward:
            return self._multi_head(func, args, named)
        result = func(*args, **named)
        if getattr(func, "__name__", "") in PRODUCTS:
            self.products |= {tuple(item.shape[-2:]) for item in tensors((args, named))}
        if func in SOFTMAXES and isinstance(result, Tensor) and result.dim() > 2:
            dimension = named.get("dim", args[1] if len(args) > 1 else -1)
            if isinstance(dimension, int):
                self._keep(result, dimension if dimension < 0 else dimension - result.dim())
                self._listen(result.grad_fn, result.shape)
        elif func is functional.scaled_dot_product_attention:
            self.fused.add(len(self.seen))
            self._keep(_weights_of(*args, **named), -1)
            self.effects[len(self.seen) - 1] = result.detach()
        return result

    def _multi_head(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        asked, averaged = named.get("need_weights", True), named.get("average_attn_weights", True)
        output, weights = func(*args, **{**named, "need_weights": True, "average_attn_weights": False})
        self.fused.add(len(self.seen))
        self._keep(weights, -1)
        if weights.grad_fn is not None and weights.dim() == 4:  # a view of the weights that are used
            self._listen(weights.grad_fn.next_functions[0][0], weights.shape)
        return output, (weights.mean(-3) if averaged else weights) if asked else None

    def attentions(self) -> list[Attended]:
        """What was seen, and whether it weighs something."""
        return [
            replace(item, weighs=place in self.fused or tuple(item.weights.shape[-2:]) in self.products)
            for place, item in enumerate(self.seen)
        ]

    def _listen(self, node: Any, shape: torch.Size) -> None:
        """Have the gradient of these weights kept, which is zero for a head whose values are."""
        place = len(self.seen) - 1

        def hear(gradients: tuple[Tensor | None, ...]) -> None:
            if gradients[0] is not None and gradients[0].numel() == shape.numel():
                self.effects[place] = gradients[0].detach().reshape(shape)

        if node is not None:
            node.register_prehook(hear)

    def _keep(self, weights: Tensor, dimension: int) -> None:
        self.seen.append(Attended(self.names[-1] if self.names else "model", weights.detach(), dimension))


def _weights_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The weights that fused attention does not return."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
        logits = logits.masked_fill(hidden, -math.inf)
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return logits.softmax(-1)


def attended(subject: Subject, inputs: Any = None, *, effects: bool = False) -> list[Attended]:
    """Every attention in a pass in eval mode, in order; a few samples where no other inputs are given.

    `effects` asks, by a backward pass, which heads arrive in the output.
    """
    part = subject.sized(min(FEW, subject.samples)) if inputs is None and subject.divisible else subject
    part.evaluate()
    names: list[str] = []
    # With gradients: the fused path of torch's own encoder layers, which nothing can look into, is for passes without.
    eye = _Eye(names)
    with part.running(names), eye:
        torch.manual_seed(0)
        output = part.prediction(part.forward(inputs))
    if not effects:
        return eye.attentions()
    learns = [p for p in part.parameters.values() if p.requires_grad]
    if output is not None and output.requires_grad and learns:
        torch.autograd.grad(output, learns, torch.randn_like(output), allow_unused=True)
    return [replace(item, effect=_by_head(eye.effects.get(place))) for place, item in enumerate(eye.attentions())]


def _by_head(effect: Tensor | None) -> tuple[float, ...]:
    if effect is None or effect.dim() != 4:
        return ()
    return tuple(float(head.abs().amax()) for head in effect.unbind(1))
