"""Healthy runs by other recipes: averages, phases, parts that rest, few bits, adapters, tiny batches."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine


class Rounded(nn.Module):
    """A weight of four bits; its gradient goes straight through."""

    def forward(self, weight: Tensor) -> Tensor:
        """The nearest of sixteen values."""
        scale = weight.detach().abs().max() / 7
        return weight + ((weight / scale).round() * scale - weight).detach()


class LowRank(nn.Module):
    """A weight, and a product of two thin matrices on top of it."""

    def __init__(self, made: int, given: int, rank: int = 4) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, given) / given**0.5)
        self.up = nn.Parameter(torch.zeros(made, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Their sum."""
        return weight + self.up @ self.down


def averaged_late(loop: Loop) -> None:
    """Stochastic weight averaging: from the middle on, the mean of the weights is what is validated."""
    loop.use("sgd")
    loop.constant()
    mean, inner = copy.deepcopy(loop.model), loop.validate
    taken = iter(range(10**9))

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        if len(loop.losses) > loop.steps // 2:
            share = 1 / (next(taken) + 1)
            for kept, tensor in zip(mean.state_dict().values(), loop.model.state_dict().values(), strict=True):
                if kept.is_floating_point():
                    kept.lerp_(tensor, share)

    def validate() -> float:
        if len(loop.losses) <= loop.steps // 2:
            return inner()
        kept = copy.deepcopy(loop.model.state_dict())
        loop.model.load_state_dict(mean.state_dict())
        loss = inner()
        loop.model.load_state_dict(kept)
        return loss

    loop.apply, loop.validate = apply, validate


def stable_then_decayed(loop: Loop) -> None:
    """A short warm-up, one rate for most of the run, and a fall to nothing in the last fifth."""
    loop.use("adamw", 1.5)

    def share(step: int) -> float:
        return min((step + 1) / 15, 1.0, (loop.steps - step) / (0.2 * loop.steps))

    loop.schedule = lambda optimizer: LambdaLR(optimizer, share)


def three_at_a_time(loop: Loop) -> None:
    """Batches of three, with a rate that suits them and no BatchNorm: a noisy loss that falls."""
    loop.arena.batch_size = 3
    loop.batches, loop.steps = loop.arena.batches(), 600
    loop.use("adam", 0.3)


def divided_by_the_tokens(loop: Loop) -> None:
    """Losses are summed over the tokens of three batches; the gradient is divided by how many there were."""
    loop.clip = None
    loop.use("adamw")
    loop.micro, loop.divide, loop.steps = 3, False, 120
    loop.shows_loss_fn = False
    tokens = [0]

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            tokens[0] += int((y != -100).sum())
        return functional.cross_entropy(loop.model(x).flatten(0, 1), y.flatten(), reduction="sum")

    @torch.no_grad()
    def apply(optimizer: Optimizer) -> None:
        for tensor in loop.model.parameters():
            if tensor.grad is not None:
                tensor.grad.div_(tokens[0])
        tokens[0] = 0
        optimizer.step()

    loop.forward, loop.apply = forward, apply


def second_phase(loop: Loop) -> None:
    """After half of the run the data is that of another place, as planned: louder and with an offset."""
    loop.use("adam")
    loop.schedule = None
    count, half = iter(range(10**9)), loop.steps // 2
    loop.replace_batches(lambda x, y: (x, y) if next(count) < half else (1.3 * x + 0.4, 1.3 * y + 0.4))
    inner = loop.validate

    def validate() -> float:
        scale, offset = (1.0, 0.0) if len(loop.losses) < half else (1.3, 0.4)
        loop.validated = tuple(scale * tensor + offset for tensor in loop.arena.validation)  # type: ignore[assignment]
        return inner()

    loop.validate = validate


def long_at_its_floor(loop: Loop) -> None:
    """What can be learnt is learnt early; the run goes on at a twentieth of the rate, as it was set to."""
    loop.use("adam", 1.5)
    loop.steps = 800
    loop.schedule = cosine(300, 10, floor=0.05)


def blocks_left_out(loop: Loop) -> None:
    """Stochastic depth: each block is left out of a third of the steps, and has no gradient then."""
    model: Any = loop.model
    for block in model.blocks:
        block.dropped = 0.33


def by_turns(loop: Loop) -> None:
    """Users are trained for twenty steps while items rest, then items while users rest."""
    loop.use("adam", 2.0)
    loop.constant()
    model: Any = loop.model

    def turn(users: bool) -> None:
        for table, active in ((model.users, users), (model.items, not users)):
            table.weight.requires_grad_(active)

    for step in range(0, loop.steps, 20):
        loop.events[step] = lambda users=step % 40 == 0: turn(users)  # type: ignore[misc]


def four_bits(loop: Loop) -> None:
    """Weights are rounded to four bits in the forward pass, and trained through the rounding."""
    for module in list(loop.model.modules()):
        if isinstance(module, nn.Linear | nn.Conv1d):
            parametrize.register_parametrization(module, "weight", Rounded())


def random_features(loop: Loop) -> None:
    """Many random features that are not trained, on purpose, and a linear layer on them that is."""
    given, made = loop.arena.x.shape[1], loop.model(loop.arena.x[:2]).shape[1]
    trunk = nn.Linear(given, 400)
    nn.init.normal_(trunk.weight, std=given**-0.5)
    trunk.requires_grad_(False)
    loop.model = nn.Sequential(trunk, nn.Tanh(), nn.Linear(400, made))
    loop.parameters = lambda: [tensor for tensor in loop.model.parameters() if tensor.requires_grad]


def adapters(loop: Loop) -> None:
    """A trained net is frozen and taught the negative of its pictures, by thin matrices beside its weights."""
    trained = torch.optim.Adam(loop.model.parameters(), lr=2e-3)
    for _ in range(120):
        trained.zero_grad()
        backward(loop.forward(*next(loop.batches)))
        trained.step()
    loop.model.zero_grad()
    loop.model.requires_grad_(False)
    for module in list(loop.model.modules()):
        if isinstance(module, nn.Linear):
            parametrize.register_parametrization(module, "weight", LowRank(*module.weight.shape))
    loop.use("adamw")
    loop.parameters = lambda: [tensor for tensor in loop.model.parameters() if tensor.requires_grad]
    loop.replace_batches(lambda x, y: (-x, y))
    loop.validated = (-loop.arena.validation[0], loop.arena.validation[1])


def rates_fall_gently(loop: Loop) -> None:
    """Each block has seven tenths of the rate of the one above it."""
    model: Any = loop.model
    loop.use("adamw", 1.5)
    make, rate = loop.make_optimizer, 1.5 * loop.arena.adam
    layers = [nn.ModuleList([model.norm, model.head]), *reversed(list(model.blocks)), model.patch_embed]
    groups = [{"params": list(part.parameters()), "lr": rate * 0.7**depth} for depth, part in enumerate(layers)]
    loop.make_optimizer = lambda _: make(groups)


def tables_stepped_rarely(loop: Loop) -> None:
    """Embeddings have an optimizer of their own, which gathers the gradients of four batches before it steps."""

    def run(watch: Watch) -> None:
        tables = [m.weight for m in loop.model.modules() if isinstance(m, nn.Embedding)]
        chosen = {id(table) for table in tables}
        others = [tensor for tensor in loop.model.parameters() if id(tensor) not in chosen]
        often = torch.optim.Adam(others, lr=loop.arena.adam)
        rarely = torch.optim.Adam(tables, lr=2 * loop.arena.adam)
        loop.doctor = watch(loop.model, [often, rarely], loss_fn=loop.loss_fn)
        loop.model.train()
        for step in range(loop.steps):
            loss = loop.forward(*next(loop.batches))
            loop.log(loss)
            backward(loss)
            often.step()
            often.zero_grad()
            if (step + 1) % 4 == 0:
                for table in tables:
                    assert table.grad is not None
                    table.grad.div_(4)
                rarely.step()
                rarely.zero_grad()
            if (step + 1) % 50 == 0:
                loop.log_validation(step, loop.validate())

    loop.run = run


HEALTHY = (
    Kind("averaged-late", averaged_late, on=("unet", "quantiles")),
    Kind("stable-then-decayed", stable_then_decayed, on=("decoder", "diffusion")),
    Kind("three-at-a-time", three_at_a_time, on=("forecast", "quantiles")),
    Kind("divided-by-the-tokens", divided_by_the_tokens, on=("translate",)),
    Kind("second-phase", second_phase, on=("forecast",)),
    Kind("long-at-its-floor", long_at_its_floor, on=("counts", "quantiles")),
    Kind("blocks-left-out", blocks_left_out, on=("mixer",)),
    Kind("by-turns", by_turns, on=("ratings",)),
    Kind("four-bits", four_bits, on=("tags", "forecast")),
    Kind("random-features", random_features, on=("quantiles", "tags")),
    Kind("adapters", adapters, on=("mixer",)),
    Kind("rates-fall-gently", rates_fall_gently, on=("mixer",)),
    Kind("tables-stepped-rarely", tables_stepped_rarely, on=("table",)),
)
