"""Nothing is wrong, and it is only ever reported: ordinary runs of further tasks, and sound ones that look sick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import ExponentialLR

from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine
from torchdoctor.clinic.kinds.sealed_losses import duel, values
from torchdoctor.clinic.kinds.sealed_models import policy
from torchdoctor.clinic.sealed_nets_b import Deliveries, Pair, Sketcher


def usual(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def with_adamw(loop: Loop) -> None:
    """An ordinary run with AdamW, at the rate that suits it."""
    loop.use("adamw")


def warmed_and_cooled(loop: Loop) -> None:
    """AdamW with beta2 0.95 and a decay of 0.1, a short warm-up, a cosine to a tenth, and clipping at 1."""
    loop.use("adamw", betas=(0.9, 0.95), weight_decay=0.1)
    loop.schedule, loop.clip = cosine(loop.steps, 25, floor=0.1), 1.0


def by_the_largest(loop: Loop) -> None:
    """Adamax at a constant rate."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.Adamax, lr=2 * loop.arena.adam)


def warms_by_itself(loop: Loop) -> None:
    """RAdam, which warms up by itself."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.RAdam, lr=1.5 * loop.arena.adam)


def decays_a_little_each_step(loop: Loop) -> None:
    """The rate loses 0.7 percent at each step, as it was meant to: it ends at a sixteenth."""
    loop.use("adam", 1.5)
    loop.schedule = lambda optimizer: ExponentialLR(optimizer, 0.993)


def nats_of_a_line(loop: Loop) -> None:
    """The loss is that of a whole line: the sum over its characters, and the mean over lines."""
    inner = loop.forward
    loop.forward = lambda x, y: inner(x, y) * x.shape[1]
    loop.use("adam")


def critic_with_penalty(loop: Loop) -> None:
    """A Wasserstein critic held by its penalty: losses go below zero, wander and end nowhere in particular."""
    duel(loop, wasserstein=True, penalty=1.0)


def rooms_valued(loop: Loop) -> None:
    """What rooms are worth is learnt from a slow copy: the loss jumps up whenever the copy is renewed."""
    values(loop)


def rooms_walked(loop: Loop) -> None:
    """A policy finds its way through the rooms: its loss is noise about zero, and its entropy falls as it is paid."""
    policy(loop)


def fields_grow(loop: Loop) -> None:
    """Small cuttings of the fields at first, larger ones later, whole ones at the end, as planned."""
    inner = loop.batches

    def grown() -> Iterator[tuple[Tensor, Tensor]]:
        for count, (x, y) in enumerate(inner):
            side = 8 if count < 100 else 12 if count < 200 else 16
            yield x[..., :side, :side], y[..., :side, :side]

    loop.batches = grown()


class Probe(nn.Module):
    """A linear layer on a trained encoder, which is frozen and left in eval mode."""

    def __init__(self, trained: Pair) -> None:
        super().__init__()
        self.trained = trained.requires_grad_(False).eval()
        self.head = nn.Linear(16, 2)

    def train(self, mode: bool = True) -> Probe:
        """The head alone changes its mode."""
        self.training = mode
        self.head.train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Scores of what is asked of a tune."""
        scores: Tensor = self.head(functional.normalize(self.trained(x)[:, 0], dim=-1) * 4)
        return scores


def probed(loop: Loop) -> None:
    """An encoder was trained by contrast before; now a linear layer alone learns on it, as probes do."""
    trained = loop.model
    assert isinstance(trained, Pair)
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-3)
    for _ in range(250):
        optimizer.zero_grad()
        backward(loop.loss_fn(trained(next(loop.batches)[0]), torch.zeros(())))
        optimizer.step()

    def rises(x: Tensor) -> Tensor:
        return (x[:, :, 16:].mean((1, 2)) > x[:, :, :16].mean((1, 2))).long()

    loop.arena.y = rises(loop.arena.x)
    loop.validated = (loop.validated[0], rises(loop.validated[0]))
    probe = loop.model = loop.arena.model = Probe(trained)
    loop.loss_fn, loop.parameters = nn.CrossEntropyLoss(), probe.head.parameters
    loop.use("adam", 5.0)


def consistency_ramped(loop: Loop) -> None:
    """Two noisy passes are to agree, and the price of that rises over the first half: the loss goes up a little."""
    taken = iter(range(1_000_000))

    def forward(x: Tensor, y: Tensor) -> Tensor:
        scores = loop.model(x)
        if not loop.model.training:
            return loop.loss_fn(scores, y)
        price = 4 * min(next(taken) / 250, 1.0)
        other = loop.model(x + 0.3 * torch.randn_like(x))
        apart: Tensor = (scores.sigmoid() - other.sigmoid()).square().mean()
        return loop.loss_fn(scores, y) + price * apart

    loop.forward = forward
    loop.use("adam")


def coins_in_the_labels(loop: Loop) -> None:
    """A quarter of the outcomes was decided by a coin, here and in validation: the floor is high and soon reached."""

    def tossed(y: Tensor) -> Tensor:
        return torch.where(torch.rand(y.shape) < 0.25, (torch.rand(y.shape) < 0.5).float(), y)

    loop.arena.y = tossed(loop.arena.y)
    loop.validated = (loop.validated[0], tossed(loop.validated[1]))
    loop.use("adam", 0.5)


class Codebook(nn.Module):
    """Four words for each picture, out of a book of 24, through which gradients go straight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(196, width), nn.ReLU(), nn.Linear(width, 32))
        self.book = nn.Embedding(24, 8)
        self.decoder = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 196))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the pixels, and how far the words are from what was to be said."""
        meant = functional.layer_norm(self.encoder(x).view(-1, 4, 8), (8,))
        said = self.book(torch.cdist(meant, self.book.weight).argmin(-1))
        apart = functional.mse_loss(said, meant.detach()) + 0.25 * functional.mse_loss(meant, said.detach())
        return self.decoder((meant + (said - meant).detach()).flatten(1)), apart


def words_for_pictures(loop: Loop) -> None:
    """A picture is said in four words of a learnt book, some of which go unused and have no gradient."""
    assert isinstance(loop.model, Sketcher)
    loop.model = loop.arena.model = Codebook(64)

    def bound(made: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        pixels = functional.binary_cross_entropy_with_logits(made[0], x, reduction="none").sum(1).mean()
        return pixels + 10 * made[1]

    loop.loss_fn = bound
    loop.use("adam")


class Four(nn.Module):
    """Four nets side by side."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(make() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """What each of them says."""
        return torch.cat([member(x) for member in self.members], dim=1)


def four_at_once(loop: Loop) -> None:
    """Four nets are trained side by side on the same batches, and the loss is the mean of theirs."""
    loop.model = loop.arena.model = Four(lambda: Deliveries(32))
    loop.loss_fn = lambda outputs, y: functional.mse_loss(outputs, y.expand_as(outputs))


def focal(loop: Loop) -> None:
    """A focal loss: what is already right counts for little, and the loss is small throughout."""

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(scores, y, reduction="none")
        return ((1 - torch.exp(-each)).square() * each).mean()

    loop.loss_fn = loss
    loop.use("adam", 0.5)


def outliers_borne(loop: Loop) -> None:
    """Three targets in a hundred are far off, here and in validation; Huber's loss bears them."""

    def spoilt(y: Tensor) -> Tensor:
        return torch.where(torch.rand(y.shape) < 0.03, 10 * torch.randn(y.shape), y)

    loop.arena.y = spoilt(loop.arena.y)
    loop.validated = (loop.validated[0], spoilt(loop.validated[1]))
    loop.loss_fn = nn.HuberLoss()


def large_batches(loop: Loop) -> None:
    """Batches of 256, and a rate to match: a smooth loss that falls at once."""
    loop.arena.batch_size = 256
    loop.steps = 200
    loop.use("adamw", 1.5)
    loop.schedule = cosine(loop.steps, 10, floor=0.05)


def two_sources_in_turn(loop: Loop) -> None:
    """Quiet and noisy recordings take turns, one batch each: every other loss is higher, and both fall."""
    count = iter(range(1_000_000))

    def turn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loud = 0.35 * (next(count) % 2)
        return x + loud * torch.randn_like(x), y + loud * torch.randn_like(y)

    loop.replace_batches(turn)
    x, y = loop.validated
    loud = 0.35 * (torch.arange(len(x)) % 2).view(-1, 1, 1)
    loop.validated = (x + loud * torch.randn_like(x), y + loud * torch.randn_like(y))


def _sound(slug: str, change: Callable[[Loop], None], on: str, *, learns: bool = True) -> Kind:
    return Kind(slug, change, tuple(on.split()), learns=learns, held_out=True)


HEALTHY: tuple[Kind, ...] = (
    _sound("usual-pictures", usual, "stamps roofs"),
    _sound("usual-signals", usual, "spectra beacon"),
    _sound("usual-tables", usual, "deliveries alarms"),
    _sound("usual-motions", usual, "springs compounds"),
    _sound("usual-codes", usual, "rings melodies"),
    _sound("usual-lines", usual, "lines"),
    _sound("with-adamw", with_adamw, "misprints hands"),
    _sound("warmed-and-cooled", warmed_and_cooled, "sections lines"),
    _sound("by-the-largest", by_the_largest, "springs roofs"),
    _sound("warms-by-itself", warms_by_itself, "beacon rings"),
    _sound("decays-a-little-each-step", decays_a_little_each_step, "deliveries compounds"),
    _sound("nats-of-a-line", nats_of_a_line, "lines"),
    _sound("critic-with-penalty", critic_with_penalty, "islands", learns=False),
    _sound("rooms-valued", rooms_valued, "rooms", learns=False),
    _sound("rooms-walked", rooms_walked, "rooms", learns=False),
    _sound("fields-grow", fields_grow, "roofs"),
    _sound("probed", probed, "melodies"),
    _sound("consistency-ramped", consistency_ramped, "alarms"),
    _sound("coins-in-the-labels", coins_in_the_labels, "alarms"),
    _sound("words-for-pictures", words_for_pictures, "rings"),
    _sound("four-at-once", four_at_once, "deliveries"),
    _sound("focal", focal, "alarms"),
    _sound("outliers-borne", outliers_borne, "deliveries"),
    _sound("large-batches", large_batches, "spectra"),
    _sound("two-sources-in-turn", two_sources_in_turn, "springs"),
)
