"""What attends to what: the weights of every attention in a pass, however they are computed."""

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
"""Names of the torch functions that multiply weights with values."""
FEW = 2
"""Number of samples whose weights are kept."""


@dataclass(frozen=True)
class Attended:
    """The weights of one attention: (samples, heads, queries, keys), or the same without heads."""

    where: str
    weights: Tensor
    dimension: int
    """The dimension of the softmax, counted from the end: -1 is the keys."""
    weighs: bool = True
    """Whether it is used as a matrix in a product, so a softmax over classes does not count."""
    effect: tuple[float, ...] = ()
    """Per head: how strongly it affects the output, 0 for not at all; empty if not measured."""

    @property
    def is_square(self) -> bool:
        """Whether positions attend to each other."""
        square = self.weights.dim() > 2 and self.weights.shape[-1] == self.weights.shape[-2] > 1
        return square and self.weighs


class _Eye(TorchFunctionMode):
    """Intercepts calls of softmax and attention functions."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.seen: list[Attended] = []
        self.products: set[tuple[int, ...]] = set()
        """The last two dimensions of all tensors that took part in matrix products."""
        self.fused: set[int] = set()
        """Indexes in `seen` that torch's own attention computed."""
        self.effects: dict[int, Tensor] = {}
        """By index in `seen`: a tensor, heads in dimension 1, that is zero for a head that adds nothing."""

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
        if weights.grad_fn is not None and weights.dim() == 4:  # a view of the weights actually used
            self._listen(weights.grad_fn.next_functions[0][0], weights.shape)
        return output, (weights.mean(-3) if averaged else weights) if asked else None

    def attentions(self) -> list[Attended]:
        """What was seen, each with whether it weighs something."""
        return [
            replace(item, weighs=place in self.fused or tuple(item.weights.shape[-2:]) in self.products)
            for place, item in enumerate(self.seen)
        ]

    def _listen(self, node: Any, shape: torch.Size) -> None:
        """Keep the gradient of these weights: it is zero for a head whose values are zero."""
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
    """The attention weights, which fused attention does not return."""
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
    """Every attention in a pass in eval mode, in order; on a few samples unless `inputs` are given.

    With `effects`, a backward pass finds which heads affect the output.
    """
    part = subject.sized(min(FEW, subject.samples)) if inputs is None and subject.divisible else subject
    part.evaluate()
    names: list[str] = []
    # With gradients on: without them, torch's own encoder layers take a fused path that cannot be observed.
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
