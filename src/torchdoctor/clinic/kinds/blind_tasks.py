"""Nothing is wrong, and nobody looks: ordinary runs, and sound ones that look sick."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import PolynomialLR

from torchdoctor.clinic.blind_arenas_b import WORDS, WordWriter
from torchdoctor.clinic.kinds.blind_losses import duel, guess
from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, cosine


def ordinary(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def as_language_models_are(loop: Loop) -> None:
    """AdamW with beta2 0.95 and a decay of 0.1, a warm-up, a cosine to a tenth, and clipping at 1."""
    loop.use("adamw", betas=(0.9, 0.95), weight_decay=0.1)
    loop.schedule, loop.clip = cosine(loop.steps, 30, floor=0.1), 1.0


def nesterov_and_adam(loop: Loop) -> None:
    """NAdam at a constant rate."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.NAdam, lr=0.5 * loop.arena.adam)


def adagrad(loop: Loop) -> None:
    """Adagrad, whose steps shrink by themselves, as texts with rare words call for."""
    loop.constant()
    loop.make_optimizer = partial(torch.optim.Adagrad, lr=0.03)


def straight_to_nothing(loop: Loop) -> None:
    """SGD with Nesterov's momentum, and a rate that falls in a straight line to nothing."""
    loop.use("sgd", nesterov=True)
    loop.schedule = lambda optimizer: PolynomialLR(optimizer, total_iters=loop.steps)


def hardest_counted(loop: Loop) -> None:
    """Only the harder half of each batch counts, so that the training loss is well above the validation's."""

    def harder(scores: Tensor, y: Tensor) -> Tensor:
        each = functional.cross_entropy(scores, y, reduction="none")
        return each.topk(len(each) // 2).values.mean() if loop.model.training else each.mean()

    loop.loss_fn = harder


def missing_left_out(loop: Loop) -> None:
    """A third of the targets is missing and stands as NaN; the loss leaves them out."""

    def known(outputs: Tensor, y: Tensor) -> Tensor:
        there = ~y.isnan()
        return functional.smooth_l1_loss(outputs[there], y[there])

    gone = torch.rand(loop.arena.y.shape, generator=torch.Generator("cpu").manual_seed(loop.seed)) < 0.33
    loop.arena.y = loop.arena.y.masked_fill(gone.to(loop.arena.y.device), float("nan"))
    loop.loss_fn = known


def vectors_given(loop: Loop) -> None:
    """Word vectors come from elsewhere and are not trained, on purpose; the optimizer holds all the rest."""
    assert isinstance(loop.model, WordWriter)
    loop.model.embed.weight.requires_grad_(False)
    loop.parameters = lambda: [p for p in loop.model.parameters() if p.requires_grad]


def rest_of_the_epoch(loop: Loop) -> None:
    """The rest of each epoch is kept: every so often a batch has four samples only."""
    inner, every = loop.batches, loop.arena.epoch // 3

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for index, (x, y) in enumerate(inner):
            yield (x[:4], y[:4]) if index % every == every - 1 else (x, y)

    loop.batches = batches()


def rare_and_weighted(loop: Loop) -> None:
    """One in twelve is positive, in validation too, and each weighs six times as much."""

    def rare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        bad = y.squeeze(1) > 0.5
        kept = torch.cat([(~bad).nonzero().squeeze(1), bad.nonzero().squeeze(1)[: int((~bad).sum()) // 11]])
        return x[kept], y[kept]

    loop.arena.x, loop.arena.y = rare(loop.arena.x, loop.arena.y)
    loop.validated = rare(*loop.validated)
    loop.loss_fn = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(6.0))


def some_places_counted(loop: Loop) -> None:
    """A quarter of the places of each text is to be predicted; the others are marked to be ignored."""

    def marked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.masked_fill(torch.rand(y.shape, device=y.device) > 0.25, -100)

    loop.replace_batches(marked)


def longer_in_stages(loop: Loop) -> None:
    """Texts are of eight characters at first, then of sixteen, then of their full length."""
    count = iter(range(10**6))

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        length = (8, 16, x.shape[1])[min(3 * next(count) // loop.steps, 2)]
        return x[:, :length], y[:, :length]

    loop.replace_batches(cut)


def flat_for_most_of_the_run(loop: Loop) -> None:
    """The floor that the noise sets is reached in a tenth of the run, and the rate falls slowly to nothing."""
    loop.steps *= 2
    loop.use("adam")
    loop.schedule = cosine(loop.steps, 20)


class Reversed(torch.autograd.Function):
    """What goes through as it is, and comes back with the other sign."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        """Its gradient, reversed and weakened."""
        return -0.1 * gradients[0]


def _reverse(features: Tensor) -> Tensor:
    reversed_: Tensor = Reversed.apply(features)  # type: ignore[no-untyped-call]
    return reversed_


def site_not_to_be_told(loop: Loop) -> None:
    """A second head is to tell from which site a recording is, and the trunk learns to keep it from that."""
    assert isinstance(loop.model, nn.Sequential)
    trunk, head = loop.model[:-1], loop.model[-1]
    assert isinstance(head, nn.Linear)
    site = nn.Linear(head.in_features, 1)
    loop.model.append(nn.Identity())
    loop.model[-1].add_module("site", site)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        features, which = trunk(x), (y % 2).float().unsqueeze(1)
        which = torch.where(torch.rand_like(which) < 0.45, 1 - which, which)
        told = functional.binary_cross_entropy_with_logits(site(_reverse(features)), which)
        if loop.model.training:
            loop.log(told, name="site")
        return loop.loss_fn(head(features), y) + 0.3 * told

    loop.forward = forward


def begins_at_the_mean(loop: Loop) -> None:
    """Targets lie about sixty, with a spread of one; the last bias begins there, so that all goes as usual."""

    def raised(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y + 60

    last = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.add_(60.0)
    loop.replace_batches(raised)
    loop.validated = raised(*loop.validated)


def columns_kept_free(loop: Loop) -> None:
    """A third of the columns is kept free for later use and holds zeros."""

    def emptied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([x, torch.zeros(len(x), 7, device=x.device)], 1), y

    assert isinstance(loop.model, nn.Sequential)
    first = loop.model[0]
    assert isinstance(first, nn.Linear)
    loop.model[0] = nn.Linear(first.in_features + 7, first.out_features)
    loop.replace_batches(emptied)
    loop.validated = emptied(*loop.validated)


def words_left_out(loop: Loop) -> None:
    """A fifth of the words read, drawn anew each time, is replaced by the sign for rare ones, in training only."""

    def left_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.masked_fill(torch.rand(x.shape, device=x.device) < 0.2, WORDS - 1), y

    loop.replace_batches(left_out)


def pairs_soon_apart(loop: Loop) -> None:
    """Pairs that are easy to tell apart, with a small margin: many batches have next to no loss left."""
    loop.arena.x = loop.arena.x + 0.3 * torch.randn_like(loop.arena.x)
    loop.steps = 700
    loop.loss_fn = lambda distance, same: (
        same * functional.relu(distance - 0.3).pow(2) + (1 - same) * functional.relu(0.9 - distance).pow(2)
    ).mean()


def likelihood_above_one(loop: Loop) -> None:
    """Points lie so close together that their density is above one: the loss goes through zero and on."""
    loop.arena.x = 0.2 * loop.arena.x
    x, y = loop.validated
    loop.validated = (0.2 * x, y)


def even_duel(loop: Loop) -> None:
    """A forger and a critic that keep each other busy: neither loss goes anywhere for long."""
    duel(loop)


def paid_for_the_largest(loop: Loop) -> None:
    """A policy learns which answer is paid; its loss is noise about zero, and its entropy falls as it should."""
    guess(loop)


HEALTHY = (
    Kind("ordinary-pictures", ordinary, on=("glyphs", "ink")),
    Kind("ordinary-texts", ordinary, on=("words", "gaps", "bytes")),
    Kind("ordinary-signals", ordinary, on=("speech", "sensors")),
    Kind("ordinary-sets-and-pairs", ordinary, on=("points", "pairs")),
    Kind("ordinary-tables", ordinary, on=("loans", "demand")),
    Kind("ordinary-rows-and-places", ordinary, on=("sorting", "coordinates")),
    Kind("ordinary-tastes-and-flows", ordinary, on=("towers", "flow")),
    Kind("as-language-models-are", as_language_models_are, on=("words", "sorting")),
    Kind("nesterov-and-adam", nesterov_and_adam, on=("gaps", "ink")),
    Kind("adagrad", adagrad, on=("words",)),
    Kind("straight-to-nothing", straight_to_nothing, on=("speech", "points")),
    Kind("hardest-counted", hardest_counted, on=("points",)),
    Kind("missing-left-out", missing_left_out, on=("sensors",)),
    Kind("vectors-given", vectors_given, on=("words",)),
    Kind("rest-of-the-epoch", rest_of_the_epoch, on=("points", "demand")),
    Kind("rare-and-weighted", rare_and_weighted, on=("loans",)),
    Kind("some-places-counted", some_places_counted, on=("bytes",)),
    Kind("longer-in-stages", longer_in_stages, on=("bytes",)),
    Kind("flat-for-most-of-the-run", flat_for_most_of_the_run, on=("coordinates",)),
    Kind("site-not-to-be-told", site_not_to_be_told, on=("speech",)),
    Kind("begins-at-the-mean", begins_at_the_mean, on=("demand",)),
    Kind("columns-kept-free", columns_kept_free, on=("loans",)),
    Kind("words-left-out", words_left_out, on=("words",)),
    Kind("pairs-soon-apart", pairs_soon_apart, on=("pairs",)),
    Kind("likelihood-above-one", likelihood_above_one, on=("flow",)),
    Kind("even-duel", even_duel, on=("flow",), learns=False),
    Kind("paid-for-the-largest", paid_for_the_largest, on=("loans",), learns=False),
)
