"""An ordinary training loop, with every part of it in reach of a kind that wants to write it wrongly.

How it is written varies with the seed, as loops do from one person to the next: the optimizer, its learning rate, a
schedule or none, clipping or none, where the loss is logged, where gradients are cleared, whether the doctor is shown
the loss function.

>>> loop = Loop("mlp", seed=1)
>>> loop.steps = 3
>>> loop.train(lambda *args, **kwargs: None)  # nobody watches
>>> len(loop.losses)
3
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from torchdoctor.clinic import arenas

Watch = Callable[..., Any]
"""Called as `Doctor` is, and returns one; or None, where nobody watches."""
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "plain-sgd": (torch.optim.SGD, {}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {}),
}
SCALES = {"sgd": ("sgd", 1.0), "plain-sgd": ("sgd", 5.0), "rmsprop": ("adam", 0.3)}
"""Which of an arena's two learning rates an optimizer takes, and how many times; else Adam's."""
EVALUATED = 256
"""Samples of a validation."""


def backward(loss: Tensor, **options: Any) -> None:
    """The backward pass."""
    loss.backward(**options)  # type: ignore[no-untyped-call]


def _apply(optimizer: Optimizer) -> None:
    optimizer.step()


def _advance(scheduler: Any, step: int) -> None:
    scheduler.step()


def warmup(steps: int) -> Callable[[Optimizer], LRScheduler]:
    """Linear warm-up, then constant."""
    return lambda optimizer: LambdaLR(optimizer, lambda step: min((step + 1) / steps, 1.0))


def cosine(steps: int, warmup: int = 1, floor: float = 0.0) -> Callable[[Optimizer], LRScheduler]:
    """Linear warm-up, then half a cosine down to a share of the rate."""

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        done = min((step - warmup) / max(steps - warmup, 1), 1.0)
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return lambda optimizer: LambdaLR(optimizer, share)


class Loop:
    """One run: what it trains, how, and what became of it."""

    def __init__(self, arena: str, seed: int) -> None:
        self.arena = arenas.build(arena, seed)
        self.name = arena
        self.seed = seed
        self.dice = random.Random(f"change {seed}")
        """For what a kind varies from seed to seed."""
        self.model: nn.Module = self.arena.model
        self.loss_fn: Callable[..., Tensor] = self.arena.loss_fn
        self.steps = self.arena.steps
        self.batches: Iterator[tuple[Tensor, Tensor]] = self.arena.batches()
        self.losses: list[float] = []
        self.validations: list[tuple[int, float]] = []
        self.events: dict[int, Callable[[], None]] = {}
        """What happens just before a step."""
        self.optimizer: Optimizer | None = None
        self.doctor: Any = None
        self.run: Callable[[Watch], None] | None = None
        """A loop of the kind's own, in place of this one."""
        self.parameters: Callable[[], Iterable[Any]] = lambda: self.model.parameters()
        self.built: Callable[[], None] = lambda: None
        """What is done between building the optimizer and the first step."""
        self.zero_grad = True
        self.micro = 1
        self.divide = True
        self.after_micro: Callable[[], None] = lambda: None
        self.clip: float | None = None
        self.clip_late = False
        self.validated: tuple[Tensor, Tensor] = self.arena.validation
        self.stays_in_eval = False
        self.log_batches = False
        self.autocast: torch.dtype | None = None
        self.forward: Callable[[Tensor, Tensor], Tensor] = self._forward
        self.backward: Callable[[Tensor], None] = backward
        self.apply: Callable[[Optimizer], None] = _apply
        self.advance: Callable[[Any, int], None] = _advance
        """What is done with the schedule after each step."""
        self.log: Callable[..., None] = self._log
        self.validate: Callable[[], float] = self._validate
        self._style(random.Random(f"style {arena} {seed}"))

    def _style(self, dice: random.Random) -> None:
        """What differs from one author to the next, all of it fine."""
        self.use(dice.choice(["sgd", "adam", "adam", "adamw", "adamw"]), 2 ** dice.uniform(-1, 0.5))
        schedules: list[Callable[[Optimizer], Any] | None] = [
            None,
            None,
            warmup(20),
            lambda optimizer: cosine(self.steps, 20)(optimizer),  # of the steps that a kind may have changed by then
            lambda optimizer: cosine(self.steps, 10, floor=0.1)(optimizer),
        ]
        self.schedule = dice.choice(schedules)
        if dice.random() < 0.4:
            self.clip = 1.0
        self.log_first = dice.random() < 0.5
        self.zero_first = dice.random() < 0.5
        self.shows_loss_fn = dice.random() < 0.7
        self.validate_every = dice.choice([25, 50, 50])
        self.log_batches = dice.random() < 0.2

    def use(self, name: str, factor: float = 1.0, /, **options: Any) -> None:
        """Train with this optimizer, at the arena's learning rate for it times a factor, unless one is given."""
        maker, usual = OPTIMIZERS[name]
        scale, times = SCALES.get(name, ("adam", 1.0))
        rate = getattr(self.arena, scale) * times * factor
        self.make_optimizer: Callable[[Iterable[Any]], Optimizer] = partial(maker, **{"lr": rate, **usual, **options})

    def constant(self) -> None:
        """No schedule and no clipping: what happens is the fault's doing."""
        self.schedule = self.clip = None

    def _forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        return self.loss_of(self.model(x), y)

    def loss_of(self, outputs: Any, y: Tensor) -> Tensor:
        """The loss of outputs; those at each place of a text are made one long batch."""
        if isinstance(outputs, Tensor) and outputs.dim() == 3 and y.dim() == 2:
            outputs, y = outputs.flatten(0, 1), y.flatten()
        return self.loss_fn(outputs, y)

    def replace_batches(self, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        """Have every batch go through a function."""
        inner = self.batches
        self.batches = (change(x, y) for x, y in inner)

    # ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────

    def train(self, watch: Watch) -> None:
        """Train to the end, watched."""
        torch.manual_seed(self.seed)
        if self.run is not None:
            self.run(watch)
            return
        optimizer = self.optimizer = self.make_optimizer(self.parameters())
        scheduler = None if self.schedule is None else self.schedule(optimizer)
        self.built()
        self.doctor = watch(
            self.model, optimizer, loss_fn=self.loss_fn if self.shows_loss_fn else None, scheduler=scheduler
        )
        self.model.train()
        for step in range(self.steps):
            self.events.get(step, _nothing)()
            self._step(optimizer)
            if scheduler is not None:
                self.advance(scheduler, step)
            if self.validate_every and (step + 1) % self.validate_every == 0:
                self.log_validation(step, self.validate())

    def _step(self, optimizer: Optimizer) -> None:
        if self.zero_grad and self.zero_first:
            optimizer.zero_grad()
        for _ in range(self.micro):
            x, y = next(self.batches)
            if self.log_batches and self.doctor is not None:
                self.doctor.log_batch(x, y)
            with torch.autocast(x.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                loss = self.forward(x, y)
            if self.log_first:
                self.log(loss)
            self.backward(loss / self.micro if self.divide and self.micro > 1 else loss)
            if not self.log_first:
                self.log(loss)
            self.after_micro()
        if self.clip is not None and not self.clip_late:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.apply(optimizer)
        if self.clip is not None and self.clip_late:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.zero_grad and not self.zero_first:
            optimizer.zero_grad()

    def _log(self, loss: Tensor, name: str = "loss") -> None:
        """Tell the doctor, and keep it for the comparison with the healthy twin."""
        if name == "loss":
            self.losses.append(float(loss.detach()))
        if self.doctor is not None:
            self.doctor.log_loss(loss, name=name)

    def log_validation(self, step: int, loss: float) -> None:
        """Tell the doctor, and keep it."""
        self.validations.append((step, loss))
        if self.doctor is not None:
            self.doctor.log_validation(loss)

    @torch.no_grad()
    def _validate(self) -> float:
        """The loss on held-out samples, in eval mode; training mode comes back, unless somebody forgot it."""
        x, y = (tensor[:EVALUATED] for tensor in self.validated)
        self.model.eval()
        loss = self.forward(x, y)
        if not self.stays_in_eval:
            self.model.train()
        return float(loss)


def _nothing() -> None:
    pass
