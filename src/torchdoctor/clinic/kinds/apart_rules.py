"""Healthy runs whose steps are made by hand: signs, trust ratios, noise, two passes, slow weights, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine


class Signs(Optimizer):
    """Lion: the sign of a mean of gradients, and decay."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                mean = self.state[tensor].setdefault("mean", torch.zeros_like(tensor))
                tensor.mul_(1 - group["lr"] * group["weight_decay"])
                tensor.sub_(group["lr"] * torch.sign(0.9 * mean + 0.1 * tensor.grad))
                mean.lerp_(tensor.grad, 0.01)


class Trust(Optimizer):
    """LARS: each tensor moves by a share of its own length."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                ratio = tensor.norm() / (tensor.grad.norm() + 1e-9) if tensor.dim() > 1 else torch.tensor(0.5)
                mean = self.state[tensor].setdefault("mean", torch.zeros_like(tensor))
                mean.mul_(0.9).add_(tensor.grad * ratio)
                tensor.sub_(group["lr"] * mean)


def _steps(loop: Loop, before: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Do something to gradients before each step, and to weights after it."""

    def apply(optimizer: Optimizer) -> None:
        with torch.no_grad():
            before()
        optimizer.step()
        with torch.no_grad():
            after()

    loop.apply = apply


def _gradients(loop: Loop) -> list[tuple[Tensor, Tensor]]:
    return [(tensor, tensor.grad) for tensor in loop.model.parameters() if tensor.grad is not None]


def signs_by_hand(loop: Loop) -> None:
    """Lion, written by hand, at half of Adam's rate."""
    loop.clip = None
    loop.make_optimizer = lambda params: Signs(params, lr=loop.arena.adam / 2)
    loop.schedule = lambda optimizer: cosine(loop.steps, 20, floor=0.05)(optimizer)


def trust_ratios(loop: Loop) -> None:
    """A large batch, and LARS written by hand with warm-up and decay."""
    loop.clip = None
    loop.arena.batch_size = 512
    loop.batches, loop.steps = loop.arena.batches(), 250
    loop.make_optimizer = lambda params: Trust(params, lr=0.01)
    loop.schedule = lambda optimizer: cosine(loop.steps, 25)(optimizer)


def steps_of_one_length(loop: Loop) -> None:
    """The gradient is divided by its own length at each step, and the rate falls in a line to nothing."""
    loop.clip = None
    loop.use("plain-sgd", lr=0.15)
    loop.schedule = lambda optimizer: LambdaLR(optimizer, lambda step: 1 - step / loop.steps)

    def divide() -> None:
        pairs = _gradients(loop)
        length = torch.stack([gradient.norm() for _, gradient in pairs]).norm() + 1e-12
        for _, gradient in pairs:
            gradient.div_(length)

    _steps(loop, divide)


def clipped_by_their_weights(loop: Loop) -> None:
    """Adaptive clipping: no tensor's gradient is longer than a share of the tensor."""
    loop.clip = None
    loop.use("sgd", 2.0)

    def clip() -> None:
        for tensor, gradient in _gradients(loop):
            gradient.mul_((0.04 * tensor.norm().clamp_min(0.05) / (gradient.norm() + 1e-9)).clamp_max(1.0))

    _steps(loop, clip)


def noise_that_fades(loop: Loop) -> None:
    """Noise is added to every gradient by design, less and less of it."""
    loop.use("sgd")
    count = iter(range(1, 10**9))

    def add() -> None:
        step = next(count)
        for _, gradient in _gradients(loop):
            gradient.add_(torch.randn_like(gradient), alpha=0.1 / step**0.55)

    _steps(loop, add)


def looks_for_flat_ground(loop: Loop) -> None:
    """SAM: the gradient is taken a little uphill, in a second pass over the same batch."""
    loop.clip = None
    seen: list[tuple[Tensor, Tensor]] = []
    loop.replace_batches(lambda x, y: seen.append((x, y)) or (x, y))  # type: ignore[func-returns-value]

    def apply(optimizer: Optimizer) -> None:
        x, y = seen[-1]
        seen.clear()
        with torch.no_grad():
            pairs = _gradients(loop)
            length = torch.stack([gradient.norm() for _, gradient in pairs]).norm() + 1e-12
            moves = [(tensor, 0.05 * gradient / length) for tensor, gradient in pairs]
            for tensor, move in moves:
                tensor.add_(move)
        optimizer.zero_grad()
        backward(loop.forward(x, y))
        with torch.no_grad():
            for tensor, move in moves:
                tensor.sub_(move)
        optimizer.step()

    loop.apply = apply


def slow_weights(loop: Loop) -> None:
    """Lookahead: every six steps the weights are put halfway back to slow ones."""
    slow = [tensor.detach().clone() for tensor in loop.model.parameters()]
    count = iter(range(1, 10**9))

    def pull() -> None:
        if next(count) % 6 == 0:
            for kept, tensor in zip(slow, loop.model.parameters(), strict=True):
                kept.lerp_(tensor, 0.5)
                tensor.copy_(kept)

    _steps(loop, lambda: None, pull)


def scaled_by_hand(loop: Loop) -> None:
    """The loss is multiplied by 1024 before the backward pass, the gradients divided by it before the step."""
    loop.clip = None
    loop.backward = lambda loss: backward(loss * 1024)

    def divide() -> None:
        for _, gradient in _gradients(loop):
            gradient.div_(1024)

    _steps(loop, divide)


def rows_held_short(loop: Loop) -> None:
    """After each step no row of an embedding is longer than a limit."""

    def hold() -> None:
        for tensor in loop.model.parameters():
            if tensor.dim() == 2:
                tensor.copy_(tensor.renorm(2, 0, 3.0))

    _steps(loop, lambda: None, hold)


HEALTHY = (
    Kind("signs-by-hand", signs_by_hand, on=("decoder", "mixer")),
    Kind("trust-ratios", trust_ratios, on=("tags", "table")),
    Kind("steps-of-one-length", steps_of_one_length, on=("forecast", "tags")),
    Kind("clipped-by-their-weights", clipped_by_their_weights, on=("unet", "graph")),
    Kind("noise-that-fades", noise_that_fades, on=("two-heads", "forecast")),
    Kind("looks-for-flat-ground", looks_for_flat_ground, on=("triplet", "tags")),
    Kind("slow-weights", slow_weights, on=("decoder", "two-heads")),
    Kind("scaled-by-hand", scaled_by_hand, on=("patches",)),
    Kind("rows-held-short", rows_held_short, on=("ratings",)),
)
