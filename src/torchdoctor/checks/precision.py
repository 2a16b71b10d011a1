"""Autocast for checks: on the CPU it keeps the same operations in float32 as a GPU's autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PRODUCTS = frozenset(
    (
        *("__matmul__", "__rmatmul__", "addbmm", "addmm", "baddbmm", "bmm", "einsum", "linear", "matmul", "mm", "mv"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("gru", "lstm", "rnn_relu", "rnn_tanh", "multi_head_attention_forward", "scaled_dot_product_attention"),
    )
)
"""Operations computed in float16."""
POWERS = (
    "__pow__",
    "__rpow__",
    "pow",
    "reciprocal",
    "rsqrt",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "softplus",
)
ANGLES = ("acos", "asin", "cosh", "erfinv", "sinh", "tan")
SUMS = (
    "cumprod",
    "cumsum",
    "prod",
    "sum",
    "softmax",
    "softmin",
    "log_softmax",
    "norm",
    "renorm",
    "dist",
    "cdist",
    "pdist",
    "cosine_similarity",
    "group_norm",
    "layer_norm",
    "rms_norm",
)
LOSSES = (
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "multi_margin_loss",
    "nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
CAREFUL = frozenset((*POWERS, *ANGLES, *SUMS, *LOSSES))
"""Operations that a GPU's autocast computes in float32."""


@contextmanager
def in_precision(device: str, precision: torch.dtype | None) -> Iterator[None]:
    """Autocast to a precision; None: no change.

    >>> with in_precision("cpu", torch.float16):
    ...     product = torch.ones(2, 2) @ torch.ones(2, 2)
    ...     print(product.dtype, product.exp().dtype)
    torch.float16 torch.float32
    """
    if precision is None:
        yield
    elif device == "cpu" and precision == torch.float16:
        with torch.autocast(device, dtype=precision), _Careful():
            yield
    else:
        with torch.autocast(device, dtype=precision):
            yield


class _Careful(TorchFunctionMode):
    """Emulates float16 on a processor without it: products in float32 of values rounded to float16, then rounded."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if not torch.is_autocast_enabled("cpu"):  # the model disables autocast here
            return func(*args, **named)
        if name in CAREFUL:
            return func(*_each(_wide, args), **_each(_wide, named))
        if name in PRODUCTS:
            with torch.autocast("cpu", enabled=False):
                return _each(_narrow, func(*_each(_rounded, args), **_each(_rounded, named)))
        return func(*args, **named)


def _each(change: Callable[[Tensor], Tensor], thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, dict):
        return {key: _each(change, item) for key, item in thing.items()}
    if isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        return type(thing)(_each(change, item) for item in thing)
    return thing


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float16 else tensor


def _narrow(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.dtype == torch.float32 else tensor


def _rounded(tensor: Tensor) -> Tensor:
    return _wide(_narrow(tensor))
