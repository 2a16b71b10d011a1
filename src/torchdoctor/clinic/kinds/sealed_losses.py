"""Bugs of the loss that are only ever reported: what is ignored, clamped, paired, rewarded and scaled wrongly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward
from torchdoctor.clinic.kinds.sealed_data import sealed
from torchdoctor.clinic.sealed_arenas_b import walk
from torchdoctor.clinic.sealed_nets_b import Agreement, Duel, Rooms


def first_class_ignored(loop: Loop) -> None:
    """`ignore_index=0`, from a text where zero was padding; here it is the ground, which most of a field is."""
    loop.loss_fn = nn.CrossEntropyLoss(ignore_index=0)
    whole = loop.arena.loss_fn
    loop.forward = lambda x, y: (loop.loss_fn if loop.model.training else whole)(loop.model(x), y)


def positive_is_the_neighbour(loop: Loop) -> None:
    """The labels of a contrastive loss are off by one: each tune is to find the rendering of the next one."""

    class Shifted(Agreement):
        def forward(self, codes: Tensor, y: Tensor) -> Tensor:
            return super().forward(torch.stack([codes[:, 0], codes[:, 1].roll(-1, 0)], 1), y)

    loop.loss_fn = Shifted()


def divergence_rewarded(loop: Loop) -> None:
    """The distance of the code from a normal one has the wrong sign: the further, the better."""

    def bound(made: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        scores, mean, log_variance = made
        distance = 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        return functional.binary_cross_entropy_with_logits(scores, x, reduction="none").sum(1).mean() + distance

    loop.loss_fn = bound


def targets_outside_zero_one(loop: Loop) -> None:
    """Pictures are standardised, as for a classifier, and then are the targets of a cross-entropy of pixels."""
    arena = loop.arena
    mean, spread = arena.x.mean(), arena.x.std()
    arena.x = arena.y = (arena.x - mean) / spread
    pictures = (loop.validated[0] - mean) / spread
    loop.validated = (pictures, pictures)


def time_first_and_batch_first(loop: Loop) -> None:
    """Scores are turned to have time first, for a function that is gone, and flattened; the targets are not."""
    loop.forward = lambda x, y: loop.loss_fn(loop.model(x).transpose(0, 1).flatten(0, 1), y.flatten())


def squared_error_of_probabilities(loop: Loop) -> None:
    """Squared error between probabilities and ones and zeros, averaged over a hundred characters too, with SGD."""

    def squared(scores: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(scores.softmax(-1), functional.one_hot(y, scores.shape[-1]).float())

    loop.loss_fn = squared
    loop.use("sgd")


def loss_clamped(loop: Loop) -> None:
    """The loss is cut at one, against outliers, and begins well above it."""
    inner = loop.forward
    loop.forward = lambda x, y: inner(x, y).clamp(max=1.0)


def temperature_reaches_zero(loop: Loop) -> None:
    """The temperature falls by a tenth every 40 steps, from a half; nobody thought of step 200, where it is zero."""
    agreement = loop.arena.loss_fn
    assert isinstance(agreement, Agreement)

    def colder(epoch: int) -> None:
        agreement.temperature = max(0.5 - 0.1 * epoch, 0.0)

    for epoch in range(6):
        loop.events[40 * epoch] = partial(colder, epoch)


# ── players ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def duel(
    loop: Loop,
    *,
    forged: float = 0.0,
    noise: Callable[[int], Tensor] = lambda count: torch.randn(count, 4),
    wasserstein: bool = False,
    penalty: float = 0.0,
    rounds: int = 3,
) -> None:
    """A forger and a critic, who takes several steps for one of the other's; ``forged`` is his label for forgeries."""

    def judge(scores: Tensor, label: float) -> Tensor:
        if wasserstein:
            return scores.mean() * (1 - 2 * label)
        return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))

    def slope(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        steep: Tensor = (gradient.norm(dim=1) - 1).square().mean()
        return steep

    def run(watch: Watch) -> None:
        both = loop.model
        assert isinstance(both, Duel)
        critics = torch.optim.Adam(both.critic.parameters(), lr=loop.arena.adam, betas=(0.5, 0.9))
        forgers = torch.optim.Adam(both.forger.parameters(), lr=loop.arena.adam, betas=(0.5, 0.9))
        loop.doctor = watch(both, [critics, forgers])
        for _ in range(loop.steps):
            for _ in range(rounds):
                real, _ = next(loop.batches)
                fake = both.forger(noise(len(real)))
                critics.zero_grad()
                told = judge(both.critic(real), 1.0) + judge(both.critic(fake.detach()), forged)
                if penalty:
                    told = told + penalty * slope(both.critic, real, fake.detach())
                backward(told)
                critics.step()
            forgers.zero_grad()
            fooled = judge(both.critic(fake), 1.0)
            backward(fooled)
            forgers.step()
            loop.log(told, name="critic")
            loop.log(fooled, name="generator")
            loop.losses.append(float(fooled.detach()))

    loop.run = run


def forged_called_real(loop: Loop) -> None:
    """Both halves of the critic's batch are labelled real: it says yes to everything, and teaches nothing."""
    duel(loop, forged=1.0)


def critic_without_limit(loop: Loop) -> None:
    """A Wasserstein critic without its penalty or any clipping: its scores grow without end."""
    duel(loop, wasserstein=True)


def noise_drawn_once(loop: Loop) -> None:
    """What the forger is to start from is drawn once and expanded over the batch: all that it forges is one point."""
    once = torch.randn(1, 4)
    duel(loop, noise=lambda count: once.expand(count, 4))


def values(loop: Loop, pay: float = 1.0) -> None:
    """A net learns what each way out of each room is worth, from its own slow copy's view of the next room."""

    def run(watch: Watch) -> None:
        net = loop.model
        assert isinstance(net, Rooms)
        slow = copy.deepcopy(net)
        optimizer = loop.optimizer = torch.optim.Adam(net.parameters(), lr=loop.arena.adam)
        loop.doctor = watch(net, optimizer, loss_fn=loop.loss_fn)
        for step in range(loop.steps):
            rooms, _ = next(loop.batches)
            ways = torch.randint(4, rooms.shape)
            reached, paid = walk(rooms, ways, net.side)
            with torch.no_grad():
                later = torch.where(paid > 0.5, 0.0, slow(reached).amax(1))
            told = net(rooms).gather(1, ways.unsqueeze(1))
            loss = loop.loss_fn(told, (pay * paid + 0.9 * later).unsqueeze(1))
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.log(loss)
            if step % 25 == 24:
                slow.load_state_dict(net.state_dict())

    loop.run = run


def rewards_in_cents(loop: Loop) -> None:
    """What is paid is counted in hundredths of a cent, and goes into the targets of a value net as it is."""
    values(loop, pay=10_000.0)


MISUSED = ("loss-misuse", "suspicious-loss")
NOISE = ("label-noise-or-misalignment",)
ENDLESS = ("suspiciously-low-loss", *UNSTABLE)

FAULTS: tuple[Kind, ...] = (
    sealed(
        first_class_ignored,
        "roofs",
        ("target-anomaly", "class-imbalance", "train-val-mismatch", *MISUSED, *GENERALIZATION),
        cause=("loss-misuse", "train-val-mismatch", "class-imbalance"),
        secondary=("suspiciously-low-loss", "collapsed-output"),
    ),
    sealed(
        positive_is_the_neighbour,
        "melodies",
        ("representation-collapse", "collapsed-output", *MISUSED, *NOISE, *STALLED),
        cause=("loss-misuse", *NOISE),
        secondary=("gradient-vanishing", *GENERALIZATION),
    ),
    sealed(
        divergence_rewarded,
        "rings",
        (*MISUSED, *ENDLESS),
        cause=("loss-misuse",),
        secondary=("numeric-precision", *GENERALIZATION),
    ),
    sealed(
        targets_outside_zero_one,
        "rings",
        ("target-anomaly", "unnormalized-targets", *MISUSED, *ENDLESS),
        cause=("loss-misuse", "unnormalized-targets"),
        secondary=GENERALIZATION,
    ),
    sealed(
        time_first_and_batch_first,
        "lines",
        (*MISUSED, *NOISE, *STALLED),
        cause=("loss-misuse", *NOISE),
        secondary=("collapsed-output", *GENERALIZATION),
    ),
    sealed(
        squared_error_of_probabilities,
        "lines",
        ("gradient-vanishing", "lr-too-low", *MISUSED, *STALLED),
        cause=("loss-misuse", "lr-too-low"),
        secondary=("collapsed-output", "suspiciously-low-loss"),
    ),
    sealed(
        loss_clamped,
        "stamps lines",
        ("detached-graph", "gradient-vanishing", *MISUSED, *UNMOVED, *STALLED),
        cause=("loss-misuse", "detached-graph"),
        secondary=GENERALIZATION,
    ),
    sealed(
        temperature_reaches_zero,
        "melodies",
        ("numeric-precision", *MISUSED, *UNSTABLE),
        cause=("numeric-precision", "loss-misuse", "schedule-error"),
        onset=200,
        acute=True,
    ),
    sealed(
        forged_called_real,
        "islands",
        (
            "adversarial-imbalance",
            "mode-collapse",
            "lopsided-losses",
            "collapsed-output",
            "suspiciously-low-loss",
            "gradient-vanishing",
            "target-anomaly",
            *MISUSED,
        ),
        cause=("loss-misuse", "adversarial-imbalance"),
        secondary=("saturated-activations", *STALLED),
    ),
    sealed(
        critic_without_limit,
        "islands",
        ("adversarial-imbalance", "lopsided-losses", "clip-missing", *ENDLESS),
        cause=("adversarial-imbalance", "clip-missing", "under-regularized", "loss-misuse"),
        secondary=("mode-collapse",),
    ),
    sealed(
        noise_drawn_once,
        "islands",
        (
            "mode-collapse",
            "collapsed-output",
            "input-anomaly",
            "repeated-batch",
            "batch-anomaly",
            "adversarial-imbalance",
        ),
        cause=("mode-collapse", "adversarial-imbalance", "repeated-batch"),
        secondary=("lopsided-losses", *UNSTABLE),
    ),
    sealed(
        rewards_in_cents,
        "rooms",
        ("unnormalized-targets", "target-anomaly", "unexpected-initial-loss", *STALLED, *UNSTABLE),
        cause=("unnormalized-targets", "lr-too-low"),
        secondary=SIGNAL,
    ),
)
