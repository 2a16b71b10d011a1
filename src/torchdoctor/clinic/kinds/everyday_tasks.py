"""Ordinary projects that go well, some of which look as if they did not; and players and codes that collapse."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import MultiStepLR

from torchdoctor.clinic.everyday_nets_b import Factors, PixelBound, Players, SmallLeNet
from torchdoctor.clinic.kinds.everyday_data import fault
from torchdoctor.clinic.kinds.kind import SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward, cosine

# ── players and codes ────────────────────────────────────────────────────────────────────────────────────────────────


def play(loop: Loop, generator: float, critic: float, rounds: int = 1, *, saturating: bool = False) -> None:
    """A generator against a critic, with their learning rates and how often the critic moves."""
    players = loop.model
    assert isinstance(players, Players)
    score = functional.binary_cross_entropy_with_logits

    def run(watch: Watch) -> None:
        makes = torch.optim.Adam(players.generator.parameters(), lr=generator, betas=(0.5, 0.999))
        judges = torch.optim.Adam(players.critic.parameters(), lr=critic, betas=(0.5, 0.999))
        loop.doctor = watch({"generator": players.generator, "critic": players.critic}, [makes, judges])
        for _ in range(loop.steps):
            for _ in range(rounds):
                x, real = next(loop.batches)
                made = players.generator(torch.randn(len(x), players.noise)).detach()
                judged = score(players.critic(x), real) + score(players.critic(made), torch.zeros_like(real))
                judges.zero_grad()
                backward(judged)
                judges.step()
            verdict = players.critic(players.generator(torch.randn(len(x), players.noise)))
            fooled = -score(verdict, torch.zeros_like(real)) if saturating else score(verdict, real)
            makes.zero_grad()
            backward(fooled)
            makes.step()
            loop.losses.append(fooled.item())
            loop.log(judged, "critic")
            loop.log(fooled, "generator")

    loop.run = run


def critic_overwhelms(loop: Loop) -> None:
    """The critic learns ten times as fast and five times as often as the generator, which gets no gradient."""
    play(loop, 2e-4, 5e-3, 5, saturating=True)


def one_blob(loop: Loop) -> None:
    """The generator outruns its critic, and makes the same thing from any noise."""
    play(loop, 2e-2, 2e-4)


def players_in_balance(loop: Loop) -> None:
    """A generator and a critic of equal strength: neither loss falls, and neither should."""
    loop.steps = 1000
    play(loop, 1e-3, 1e-3)


def choose(loop: Loop, bonus: float, factor: float = 1.0, *, baseline: bool = True) -> None:
    """Offers are chosen by chance, and the choice is made likelier that was paid well."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        odds: Tensor = loop.model(x).log_softmax(1)
        chosen = odds.exp().multinomial(1) if loop.model.training else odds.argmax(1, keepdim=True)
        paid = (chosen.squeeze(1) == y).float() + 0.2 * torch.randn(len(y))
        if not loop.model.training:
            return -paid.mean()
        gain = paid - paid.mean() if baseline else paid + 2
        entropy = -(odds * odds.exp()).sum(1).mean()
        policy = -(gain * odds.gather(1, chosen).squeeze(1)).mean()
        if loop.doctor is not None:
            loop.doctor.log_loss(policy, name="policy")
            loop.doctor.log_loss(entropy, name="entropy")
        return policy - bonus * entropy

    loop.forward = forward
    loop.shows_loss_fn = False
    loop.use("adam", factor)
    loop.constant()


def offers_with_entropy(loop: Loop) -> None:
    """A policy gradient with a baseline and a bonus for entropy: all noise, and it learns."""
    choose(loop, 0.02)


def bonus_with_wrong_sign(loop: Loop) -> None:
    """The bonus for entropy has the wrong sign: the policy is driven to certainty before it knows who wants what."""
    choose(loop, -1.2)


def first_offer_wins(loop: Loop) -> None:
    """No baseline, all rewards positive and a large rate: what was tried first is made certain."""
    choose(loop, 0.0, 8.0, baseline=False)


def positives_only(loop: Loop) -> None:
    """Two views of the same digit are to be alike, and nothing keeps different digits apart."""
    loop.loss_fn = lambda codes, y: 1 - functional.cosine_similarity(codes[:, 0], codes[:, 1]).mean()
    loop.use("adam")


def hardest_negatives(loop: Loop) -> None:
    """The hardest negative of the batch at a large rate: all codes fall together, and the loss stays at the margin."""

    def hardest(codes: Tensor, y: Tensor) -> Tensor:
        anchor, positive = codes[:, 0], codes[:, 1]
        apart = (anchor.unsqueeze(1) - codes[:, 2].unsqueeze(0)).square().sum(2)
        apart = apart.masked_fill(torch.eye(len(codes), dtype=torch.bool), float("inf")).amin(1)
        return ((anchor - positive).square().sum(1) - apart + 1).clamp(min=0).mean()

    loop.loss_fn = hardest
    loop.use("adam", 5.0)
    loop.constant()


# ── recipes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def ordinary(loop: Loop) -> None:
    """An ordinary run, in whatever style the seed has drawn."""


def sparse_ratings(loop: Loop) -> None:
    """Embeddings with sparse gradients and the optimizer for them: most rows rest at each step."""
    loop.model = Factors(150, 100, 5, sparse=True)
    loop.make_optimizer = lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.02)
    loop.constant()


def decoder_recipe(loop: Loop) -> None:
    """AdamW with betas 0.9 and 0.95, a decay of 0.1, a warm-up, a cosine to a tenth, clipping at 1."""
    loop.use("adamw", weight_decay=0.1, betas=(0.9, 0.95))
    loop.schedule, loop.clip = cosine(loop.steps, 30, floor=0.1), 1.0


def resnet_recipe(loop: Loop) -> None:
    """SGD with Nesterov's momentum, a small decay and two drops of the rate."""
    loop.use("sgd", nesterov=True, weight_decay=5e-4)
    marks = [loop.steps // 2, 4 * loop.steps // 5]
    loop.schedule, loop.clip = lambda optimizer: MultiStepLR(optimizer, marks, gamma=0.1), None


def light_augmentation(loop: Loop) -> None:
    """Pictures are moved a little and dimmed a little in training only."""

    def changed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.roll((loop.dice.randint(-1, 1), loop.dice.randint(-1, 1)), (2, 3))
        return x * (0.9 + 0.2 * torch.rand(len(x), 1, 1, 1)), y

    loop.replace_batches(changed)


def rare(loop: Loop) -> None:
    """Keep few positives, in training as in validation."""

    def thin(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        kept = (y.flatten() == 0) | (torch.rand(len(y)) < 0.2)
        return x[kept], y[kept]

    loop.arena.x, loop.arena.y = thin(loop.arena.x, loop.arena.y)
    loop.validated = thin(*loop.validated)


def weighted_positives(loop: Loop) -> None:
    """Few positives, each of which weighs as much as there are negatives for it."""
    rare(loop)
    share = loop.arena.y.mean()
    loop.loss_fn = nn.BCEWithLogitsLoss(pos_weight=(1 - share) / share)


def mixed_up(loop: Loop) -> None:
    """Pictures are mixed in pairs, and so are their labels: the training loss stays above that of validation."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        if not loop.model.training:
            return loop.loss_of(loop.model(x), y)
        share, other = loop.dice.betavariate(0.3, 0.3), torch.randperm(len(x))
        scores = loop.model(share * x + (1 - share) * x[other])
        return share * loop.loss_fn(scores, y) + (1 - share) * loop.loss_fn(scores, y[other])

    loop.forward = forward


def divergence_comes_in(loop: Loop) -> None:
    """The divergence's weight rises from 0.1 to 1 over the first 200 steps."""
    bound = loop.loss_fn
    assert isinstance(bound, PixelBound)
    bound.beta = 0.1
    for step in range(200):
        loop.events[step] = lambda step=step: setattr(bound, "beta", 0.1 + 0.9 * step / 199)  # type: ignore[misc]
    loop.use("adam")


def overlap(loop: Loop) -> None:
    """A soft Dice loss on the cells, beside the cross-entropy."""

    def dice(scores: Tensor, y: Tensor) -> Tensor:
        p, truth = scores.softmax(1)[:, 1], (y == 1).float()
        shared = 2 * (p * truth).sum((1, 2)) + 1
        return (1 - shared / ((p + truth).sum((1, 2)) + 1)).mean() + 0.5 * functional.cross_entropy(scores, y)

    loop.loss_fn = dice


def robust(loop: Loop) -> None:
    """One target in fifty is far off, as in any log of a meter, and the loss is Huber's."""

    def spoil(y: Tensor) -> Tensor:
        return torch.where(torch.rand_like(y) < 0.02, 8 * torch.randn_like(y), y)

    loop.arena.y = spoil(loop.arena.y)
    loop.validated = (loop.validated[0], spoil(loop.validated[1]))
    loop.loss_fn = nn.SmoothL1Loss()


# ── sound, and looks sick ────────────────────────────────────────────────────────────────────────────────────────────


def half_dropped(loop: Loop) -> None:
    """Half of the units of the last hidden layer are dropped: training looks worse than validation."""
    assert isinstance(loop.model, SmallLeNet)
    loop.model.drop = nn.Dropout(0.5)


def noise_above_all(loop: Loop) -> None:
    """The targets are mostly noise: the loss falls a little and rests at the variance of the noise."""
    loop.arena.y = loop.arena.y + 1.5 * torch.randn_like(loop.arena.y)
    loop.validated = (loop.validated[0], loop.validated[1] + 1.5 * torch.randn_like(loop.validated[1]))
    loop.use("adam", 0.3)


def trunk_at_rest(loop: Loop) -> None:
    """A pretrained trunk is frozen on purpose, and a new head is trained for half of the classes."""
    model = loop.model
    assert isinstance(model, SmallLeNet)
    batches, ahead = copy.copy(loop.arena).batches(), torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(250):
        ahead.zero_grad()
        backward(loop.forward(*next(batches)))
        ahead.step()
    model.zero_grad()
    model.requires_grad_(False)
    model.fc2 = nn.Linear(model.fc2.in_features, 5)
    loop.arena.classes, loop.arena.y = 5, loop.arena.y // 2
    loop.validated = (loop.validated[0], loop.validated[1] // 2)
    loop.parameters = lambda: model.fc2.parameters()


def longer_and_longer(loop: Loop) -> None:
    """Texts of eight characters at first, of sixteen later, and of full length in the end."""
    seen = iter(range(100_000))

    def cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        step = next(seen)
        length = 8 if step < 100 else 16 if step < 200 else x.shape[1]
        return x[:, :length], y[:, :length]

    loop.replace_batches(cut)


def loss_in_dollars(loop: Loop) -> None:
    """Standardised prices are learned, and the loss is that of dollars, in the billions."""
    loop.loss_fn = lambda outputs, y: (80_000 * (outputs - y)).square().mean()
    loop.use("adam")
    loop.clip = None


def learned_long_ago(loop: Loop) -> None:
    """All is learned before half of the run, and nobody stops it."""
    loop.steps *= 2
    loop.use("adam", 0.7)
    loop.constant()


def four_at_a_time(loop: Loop) -> None:
    """Batches of four with a small rate: noise, and progress beneath it."""
    loop.arena.batch_size = 4
    loop.use("adam", 0.25)
    loop.constant()
    loop.steps = 800


def sound(slug: str, change: Callable[[Loop], None], on: str, *, learns: bool = True) -> Kind:
    """A healthy kind on arenas that are named in one line."""
    arenas = tuple(f"everyday-{name}" for name in on.split())
    return Kind(f"everyday-{slug}", change, arenas, learns=learns, held_out=True)


COLLAPSED = ("representation-collapse", "collapsed-output")
POLICY = ("policy-collapse", "entropy-collapse", "collapsed-output", *STALLED)
LOPSIDED = ("adversarial-imbalance", "lopsided-losses")
OTHERS = (*SIGNAL, *STALLED, *UNSTABLE)

FAULTS: tuple[Kind, ...] = (
    fault("critic-overwhelms", critic_overwhelms, "blobs", (*LOPSIDED, "gradient-vanishing"), LOPSIDED[:1], OTHERS),
    fault(
        "one-blob",
        one_blob,
        "blobs",
        ("mode-collapse", "collapsed-output", *LOPSIDED),
        ("mode-collapse", LOPSIDED[0]),
        OTHERS,
    ),
    fault("bonus-with-wrong-sign", bonus_with_wrong_sign, "offers", POLICY, ("policy-collapse",), OTHERS),
    fault("first-offer-wins", first_offer_wins, "offers", POLICY, ("policy-collapse", "lr-too-high"), OTHERS),
    fault("positives-only", positives_only, "view-pairs", (*COLLAPSED, "suspiciously-low-loss"), COLLAPSED[:1], OTHERS),
    fault("hardest-negatives", hardest_negatives, "view-triplets", (*COLLAPSED, *STALLED), COLLAPSED[:1], OTHERS),
)

HEALTHY: tuple[Kind, ...] = (
    sound("tables", ordinary, "churn house-prices topic-tags"),
    sound("pictures", ordinary, "pocket-digits patch-digits photos"),
    sound("texts", ordinary, "reviews novel"),
    sound("signals", ordinary, "power-demand motion"),
    sound("makers", ordinary, "denoise digit-vae"),
    sound("codes", ordinary, "view-pairs view-triplets"),
    sound("sparse-ratings", sparse_ratings, "film-ratings"),
    sound("decoder-recipe", decoder_recipe, "novel"),
    sound("resnet-recipe", resnet_recipe, "photos"),
    sound("light-augmentation", light_augmentation, "photos pocket-digits"),
    sound("weighted-positives", weighted_positives, "churn"),
    sound("mixed-up", mixed_up, "pocket-digits"),
    sound("divergence-comes-in", divergence_comes_in, "digit-vae"),
    sound("overlap", overlap, "cells"),
    sound("robust", robust, "power-demand house-prices"),
    sound("players-in-balance", players_in_balance, "blobs", learns=False),
    sound("offers-with-entropy", offers_with_entropy, "offers", learns=False),
    sound("half-dropped", half_dropped, "pocket-digits"),
    sound("rare-positives", rare, "churn"),
    sound("noise-above-all", noise_above_all, "house-prices"),
    sound("trunk-at-rest", trunk_at_rest, "pocket-digits"),
    sound("longer-and-longer", longer_and_longer, "novel"),
    sound("loss-in-dollars", loss_in_dollars, "house-prices"),
    sound("learned-long-ago", learned_long_ago, "recall word-tagger"),
    sound("four-at-a-time", four_at_a_time, "motion"),
)
