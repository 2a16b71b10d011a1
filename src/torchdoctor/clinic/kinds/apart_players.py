"""Two players, policies and values of another make than `players`, sick and well."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.kinds.kind import SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward

PLACES = 8
"""Of the corridor; the prize is at its right end."""


def waves(count: int, scale: float = 0.8) -> Tensor:
    """Sixteen values of a wave of random phase and one of three speeds."""
    speed = 0.3 + 0.3 * torch.randint(3, (count, 1))
    return scale * (speed * torch.arange(16) + 6.3 * torch.rand(count, 1)).sin()


def forgers(loop: Loop, *, scale: float = 0.8, critic_learns: bool = True) -> None:
    """A generator of waves that ends in tanh, and a critic with the hinge loss."""

    def run(watch: Watch) -> None:
        generator = nn.Sequential(perceptron([12, 64, 64, 16]), nn.Tanh())
        critic = perceptron([16, 64, 64, 1], nn.LeakyReLU)
        makes = Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
        judged = critic if critic_learns else generator
        judges = Adam(judged.parameters(), lr=3e-3, betas=(0.5, 0.9))
        doctor = watch({"generator": generator, "critic": critic}, [makes, judges])
        for _ in range(loop.steps):
            for _ in range(2):
                d_loss = functional.relu(1 - critic(waves(48, scale))).mean()
                d_loss = d_loss + functional.relu(1 + critic(generator(torch.randn(48, 12)).detach())).mean()
                critic.zero_grad()
                backward(d_loss)
                judges.step()
            g_loss = -critic(generator(torch.randn(48, 12))).mean()
            makes.zero_grad()
            backward(g_loss)
            makes.step()
            loop.losses.append(d_loss.item())
            if doctor is not None:
                doctor.log_loss(d_loss, name="d_loss")
                doctor.log_loss(g_loss, name="g_loss")

    loop.steps = 400
    loop.run = run


def corridor(loop: Loop, *, entropy: float = 0.02, lr: float = 5e-3) -> None:
    """An actor and a critic in a corridor: some steps left or right, or a small sure prize at once for staying."""

    def run(watch: Watch) -> None:
        actor, critic = perceptron([PLACES, 32, 3], nn.Tanh), perceptron([PLACES, 32, 1], nn.Tanh)
        nets = nn.ModuleDict({"actor": actor, "critic": critic})
        optimizer = Adam(nets.parameters(), lr=lr)
        doctor = watch(nets, optimizer)
        eye, place = torch.eye(PLACES), torch.zeros(64, dtype=torch.long)
        for _ in range(loop.steps):
            seen = eye[place]
            choice = torch.distributions.Categorical(logits=actor(seen))
            move = choice.sample()  # type: ignore[no-untyped-call]
            turned = (move + place) % 3  # which action is which differs from place to place
            after = (place + torch.tensor([-1, 1, 0])[turned]).clamp(0, PLACES - 1)
            won = after == PLACES - 1
            reward = won.float() + 0.03 * (turned == 2) + 0.05 * torch.randn(64)
            value = critic(seen).squeeze(1)
            with torch.no_grad():
                target = reward + 0.9 * (~won).float() * critic(eye[after]).squeeze(1)
            value_loss = functional.mse_loss(value, target)
            chance: Tensor = choice.log_prob(move)  # type: ignore[no-untyped-call]
            spread = choice.entropy().mean()  # type: ignore[no-untyped-call]
            policy_loss = -(chance * (target - value).detach()).mean() - entropy * spread
            optimizer.zero_grad()
            backward(policy_loss + 0.5 * value_loss)
            optimizer.step()
            place = torch.where(won, 0, after)
            loop.losses.append(-reward.mean().item())
            if doctor is not None:
                doctor.log_loss(policy_loss, name="policy_loss")
                doctor.log_loss(value_loss, name="value_loss")
                doctor.log_loss(spread, name="entropy")
                doctor.log_loss(reward.mean(), name="reward")

    loop.steps = 500
    loop.run = run


def critic_never_moves(loop: Loop) -> None:
    """The critic's optimizer was given the generator's parameters."""
    forgers(loop, critic_learns=False)


def forgeries_out_of_reach(loop: Loop) -> None:
    """Real samples are not scaled to the reach of the generator's tanh, and any critic can tell."""
    forgers(loop, scale=6.0)


def forgers_even(loop: Loop) -> None:
    """A critic with the hinge loss and a generator that keep pace: both losses hover, neither falls."""
    forgers(loop)


def entropy_taken_off(loop: Loop) -> None:
    """The bonus for trying other things has the wrong sign: the policy is paid for being sure."""
    corridor(loop, entropy=-1.5)


def corridor_walked(loop: Loop) -> None:
    """An actor finds the prize at the end of a corridor; its losses are noise about zero, of either sign."""
    corridor(loop)


def discount_above_one(loop: Loop) -> None:
    """A value net chases its own estimate with a discount of 1.05, typed for 0.95: it has no ceiling."""

    def run(watch: Watch) -> None:
        net = perceptron([PLACES, 32, 2])
        optimizer = Adam(net.parameters(), lr=loop.dice.choice([5e-3, 1e-2]))
        doctor = watch(net, optimizer)
        eye = torch.eye(PLACES)
        for _ in range(loop.steps):
            place, move = torch.randint(PLACES, (64,)), torch.randint(2, (64,))
            after = (place + 2 * move - 1) % PLACES
            reward = (after == PLACES - 1).float()
            with torch.no_grad():
                target = reward + 1.05 * net(eye[after]).amax(1)
            loss = functional.mse_loss(net(eye[place])[torch.arange(64), move], target)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.losses.append(loss.item())
            if doctor is not None:
                doctor.log_loss(loss)

    loop.steps = 600
    loop.run = run


def views_agree(loop: Loop) -> None:
    """Two views are to agree by way of a predictor and a slow copy, without negatives; the loss soon lies near -1."""
    arena = loop.arena

    def run(watch: Watch) -> None:
        encoder = nn.Sequential(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
        predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
        slow = copy.deepcopy(encoder).requires_grad_(False)
        nets = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
        optimizer = Adam(nets.parameters(), lr=1e-3)
        doctor = watch(nets, optimizer)
        for (x, _), _ in zip(arena.batches(), range(loop.steps), strict=False):
            first, second = x[:, 0], x[:, 1]
            loss = -functional.cosine_similarity(predictor(encoder(first)), slow(second)).mean()
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            for mean, tensor in zip(slow.parameters(), encoder.parameters(), strict=True):
                mean.data.lerp_(tensor.data, 0.02)
            loop.losses.append(loss.item())
            if doctor is not None:
                doctor.log_loss(loss)

    loop.run = run


FAULTS = (
    Kind(
        "critic-never-moves",
        critic_never_moves,
        on=("metric",),
        right=(*UNMOVED, "parameters-not-in-optimizer", "adversarial-imbalance", "lopsided-losses", "mode-collapse"),
        cause=("parameters-not-in-optimizer",),
        secondary=(*STALLED, *SIGNAL, *UNSTABLE, "gradients-not-cleared"),
    ),
    Kind(
        "forgeries-out-of-reach",
        forgeries_out_of_reach,
        on=("metric",),
        right=("adversarial-imbalance", "lopsided-losses", "saturated-activations", "mode-collapse"),
        cause=("adversarial-imbalance", "unnormalized-inputs", "saturating-nonlinearity"),
        secondary=(*SIGNAL, *UNSTABLE, "input-anomaly", "unnormalized-inputs"),
    ),
    Kind(
        "entropy-taken-off",
        entropy_taken_off,
        on=("metric",),
        right=("entropy-collapse", "policy-collapse", "collapsed-output"),
        cause=("policy-collapse",),
        secondary=(*STALLED, *SIGNAL),
    ),
    Kind(
        "discount-above-one",
        discount_above_one,
        on=("metric",),
        right=("loss-divergence", "activation-explosion", "weight-growth", "gradient-explosion", "loss-spike"),
        secondary=(*UNSTABLE, *STALLED, "target-anomaly", "unnormalized-targets"),
        onset=50,
    ),
)
HEALTHY = (
    Kind("forgers-even", forgers_even, on=("metric",), learns=False),
    Kind("corridor-walked", corridor_walked, on=("metric",), learns=False),
    Kind("views-agree", views_agree, on=("metric",), learns=False),
)
