"""Bugs of the model that are only ever reported: how it begins, what passes through it, and what it learns by heart."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNMOVED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop, Watch, backward
from torchdoctor.clinic.kinds.sealed_data import batches_from, sealed
from torchdoctor.clinic.sealed_arenas_b import walk
from torchdoctor.clinic.sealed_nets_b import Bag, Block, Deliveries, Gated, Hands, Oscillator, Proof, Rooms, alarm_net


def padding_mask_upside_down(loop: Loop) -> None:
    """True means padding in one library and a card in the other: attention and mean see the empty places only."""
    assert isinstance(loop.model, Hands)
    loop.model.hides_cards = True
    loop.use("adam")


def attention_without_skips(loop: Loop) -> None:
    """Six blocks in a row give what they found and not what they were given: `x = block(x)`, and no sum anywhere."""
    assert isinstance(loop.model, Proof)
    width = loop.model.norm.normalized_shape[0]
    loop.model.blocks = nn.ModuleList(Block(width) for _ in range(6))
    for block in loop.model.blocks:
        assert isinstance(block, Block)
        block.skips = False
    loop.use("adam")


class Noise(nn.Module):
    """Noise that is added in training."""

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.spread = spread

    def forward(self, x: Tensor) -> Tensor:
        """The same and noise."""
        return x + self.spread * torch.randn_like(x) if self.training else x


def noise_between_layers(loop: Loop) -> None:
    """Noise between the layers was to keep the net from learning by heart; at this spread it keeps it from learning."""
    loop.use("adam")
    assert isinstance(loop.model, Deliveries)
    loop.model.inner.insert(1, Noise(6.0))
    loop.model.inner.append(Noise(6.0))


def kernels_of_one(loop: Loop) -> None:
    """Every convolution has a kernel of one by one, and the mean is taken over the picture: no shape is ever seen."""
    layers: list[nn.Module] = []
    for given in (1, 16, 16):
        layers += [nn.Conv2d(given, 16, 1), nn.BatchNorm2d(16), nn.ReLU()]
    loop.model = loop.arena.model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def buckets_too_few(loop: Loop) -> None:
    """Triples of characters are hashed into six buckets, left from a unit test, so that all of them collide."""
    loop.model = loop.arena.model = Bag(6, 5)
    loop.arena.x = loop.arena.x % 6
    loop.validated = (loop.validated[0] % 6, loop.validated[1])
    loop.use("adam")


def every_norm_from_zero(loop: Loop) -> None:
    """The recipe that starts the last norm of a residual branch at zero is applied to every norm there is."""
    for module in loop.model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.zeros_(module.weight)


def weights_from_rand(loop: Loop) -> None:
    """Weights are made with `torch.rand`: all of them between zero and one, whatever the width."""
    for module in loop.model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.uniform_(module.weight, 0, 1)


def relu_in_the_recurrence(loop: Loop) -> None:
    """A plain recurrent net with ReLUs, whose recurrence begins at one and a half times the identity: it grows."""
    net = loop.model
    assert isinstance(net, Oscillator)
    width = net.head.in_features
    net.rnn = nn.RNN(3, width, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        net.rnn.all_weights[0][1].copy_(1.5 * torch.eye(width))


def squashed_before_scaled(loop: Loop) -> None:
    """Raw counts, in the hundreds, go through a sigmoid first, which was to hold them between zero and one."""
    assert isinstance(loop.model, nn.Sequential)
    loop.model.insert(0, nn.Sigmoid())
    loop.arena.x = (150 * loop.arena.x + 400).clamp(min=0)
    loop.validated = ((150 * loop.validated[0] + 400).clamp(min=0), loop.validated[1])


def keep_rate_for_dropout(loop: Loop) -> None:
    """At step 200 dropout is to rise to 0.03; the plan says how much is kept, and dropout becomes 0.97."""
    loop.use("adam")
    loop.constant()

    def rise() -> None:
        for module in loop.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.97

    loop.events[200] = rise


def molecule_without_atoms(loop: Loop) -> None:
    """At step 220 a molecule comes that could not be parsed: it has no atoms, and their mean is zero by zero."""

    def unparsed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        x[5] = 0.0
        return x, y

    batches_from(loop, 220, unparsed, until=221)


def gates_shut(loop: Loop) -> None:
    """The gates' biases begin at minus twelve, where minus one was meant: nothing passes, in either direction."""
    for module in loop.model.modules():
        if isinstance(module, Gated):
            nn.init.constant_(module.gate.bias, -12.0)


def fourteen_flasks(loop: Loop) -> None:
    """Thousands of spectra, all of fourteen flasks: noise was added to each many times over to have more of them."""
    arena = loop.arena
    rows = torch.arange(14).repeat(100)
    arena.x = arena.x[rows] + 0.1 * torch.randn(1400, 1, 64)
    arena.y = arena.y[rows]


def more_columns_than_rows(loop: Loop) -> None:
    """A hundred and sixty rows, to which four hundred columns were joined that have nothing to do with the outcome."""
    arena = loop.arena
    x, y = loop.validated
    arena.x = torch.cat([arena.x[:160], torch.randn(160, 400)], 1)
    arena.y = arena.y[:160]
    loop.validated = (torch.cat([x, torch.randn(len(x), 400)], 1), y)
    loop.model = arena.model = alarm_net(424, 64)
    loop.use("adam")
    loop.constant()


def augmented_once(loop: Loop) -> None:
    """Noise is drawn when the data set is built, not when it is read: ninety stamps stay the same ninety."""
    arena = loop.arena
    arena.x = arena.x[:96] + 0.5 * torch.randn_like(arena.x[:96])
    arena.y = arena.y[:96]
    loop.use("adamw")
    loop.constant()


def hardest_forever(loop: Loop) -> None:
    """From step 150 on the hardest samples are drawn, by a list that is made once: eight of them, all mislabelled."""
    arena = loop.arena
    x, y = arena.x[:8], (arena.y[:8] + 1) % arena.classes
    rows = torch.arange(arena.batch_size) % 8
    batches_from(loop, 150, lambda *_: (x[rows], y[rows]))


@torch.no_grad()
def _walked(net: Rooms, rooms: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rooms far, as the policy says: where one was, what was done, whether one was on the way, and the pay."""
    seen, done, still, paid, away = [], [], [], [], torch.ones(len(rooms))
    for _ in range(10):
        ways = torch.multinomial(net(rooms).softmax(1), 1).squeeze(1)
        reached, reward = walk(rooms, ways, net.side)
        seen.append(rooms)
        done.append(ways)
        still.append(away)
        paid.append(reward * away)
        rooms, away = reached, away * (reward < 0.5)
    total = torch.stack(paid).flip(0).cumsum(0).flip(0)
    return torch.cat(seen), torch.cat(done), torch.cat(still), total.flatten()


def policy(loop: Loop, reused: int = 1) -> None:
    """A policy walks through rooms, and what paid better than the mean becomes likelier, in so many steps a walk."""

    def run(watch: Watch) -> None:
        net = loop.model
        assert isinstance(net, Rooms)
        optimizer = loop.optimizer = torch.optim.Adam(net.parameters(), lr=2 * loop.arena.adam)
        loop.doctor = watch(net, optimizer)
        for step in range(loop.steps):
            if step % reused == 0:
                rooms, ways, still, total = _walked(net, next(loop.batches)[0])
                better = (total - total.mean()) / (total.std() + 1e-6)
            logarithms = net(rooms).log_softmax(1)
            chances = logarithms.gather(1, ways.unsqueeze(1)).squeeze(1)
            entropy = -(logarithms.exp() * logarithms).sum(1).mean()
            loss = -(chances * better * still).mean() - 0.01 * entropy
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            loop.log(loss)
            loop.log(entropy, name="entropy")
            loop.log(total.view(10, -1)[0].mean(), name="reward")

    loop.run = run


def walk_used_again_and_again(loop: Loop) -> None:
    """Each walk is used for eighty steps of a policy that has no ratio and no clipping: it is soon sure of anything."""
    policy(loop, reused=80)


NOISE = ("label-noise-or-misalignment",)
MEMORY = ("memorization", "under-regularized", *GENERALIZATION)
SMALL = ("insufficient-capacity", *STALLED)
SHUT = ("bad-initialization", *SIGNAL, *STALLED)

FAULTS: tuple[Kind, ...] = (
    sealed(padding_mask_upside_down, "hands", (*SIGNAL, *STALLED), secondary=GENERALIZATION),
    sealed(
        attention_without_skips,
        "misprints",
        ("missing-skip-connections", "representation-collapse", *SIGNAL, *STALLED),
        cause=("missing-skip-connections",),
        secondary=GENERALIZATION,
    ),
    sealed(
        noise_between_layers,
        "deliveries",
        ("over-regularized", "validation-anomaly", *STALLED),
        cause=("over-regularized",),
        secondary=UNSTABLE,
    ),
    sealed(kernels_of_one, "stamps", SMALL, cause=SMALL[:1], secondary=GENERALIZATION),
    sealed(buckets_too_few, "sections", SMALL, cause=SMALL[:1], secondary=("collapsed-output",)),
    sealed(every_norm_from_zero, "stamps spectra", (*SHUT, *UNMOVED), cause=SHUT[:1]),
    sealed(
        weights_from_rand,
        "alarms beacon",
        ("bad-initialization", "unexpected-initial-loss", *UNSTABLE, *STALLED, *SIGNAL),
        cause=SHUT[:1],
        secondary=GENERALIZATION,
    ),
    sealed(
        relu_in_the_recurrence,
        "springs",
        ("bad-initialization", "unexpected-initial-loss", *UNSTABLE),
        cause=("bad-initialization", "clip-missing", "missing-normalization"),
        secondary=("lr-too-high", *STALLED),
    ),
    sealed(
        squashed_before_scaled,
        "spectra",
        ("unnormalized-inputs", "saturating-nonlinearity", "input-anomaly", *SIGNAL, *STALLED),
        cause=("unnormalized-inputs", "saturating-nonlinearity"),
        secondary=GENERALIZATION,
    ),
    sealed(
        keep_rate_for_dropout,
        "sections hands",
        ("over-regularized", "collapsed-output", "dead-units", *UNSTABLE),
        cause=("over-regularized",),
        secondary=(*STALLED, *GENERALIZATION),
        onset=200,
        acute=True,
    ),
    sealed(
        molecule_without_atoms,
        "compounds",
        ("bad-batch", "nan-in-data", "numeric-precision", "input-anomaly", *UNSTABLE),
        cause=("bad-batch", "nan-in-data", "numeric-precision"),
        onset=220,
        acute=True,
    ),
    sealed(gates_shut, "alarms", SHUT, cause=("bad-initialization", "saturating-nonlinearity"), secondary=UNMOVED),
    sealed(fourteen_flasks, "spectra", MEMORY, cause=MEMORY[:2], onset="best-validation"),
    sealed(more_columns_than_rows, "alarms", MEMORY, cause=MEMORY[:2], onset="best-validation"),
    sealed(augmented_once, "stamps", MEMORY, cause=MEMORY[:2], onset=50),
    sealed(
        hardest_forever,
        "stamps",
        ("repeated-batch", "batch-anomaly", "data-order", *NOISE, *MEMORY, *UNSTABLE),
        cause=("repeated-batch", "memorization", "data-order", *NOISE),
        secondary=("bad-batch", "suspiciously-low-loss"),
        onset=150,
        acute=True,
    ),
    sealed(
        walk_used_again_and_again,
        "rooms",
        ("policy-collapse", "entropy-collapse", "repeated-batch", "batch-anomaly", *SIGNAL, *STALLED, *UNSTABLE),
        cause=("policy-collapse", "repeated-batch"),
        secondary=("suspiciously-low-loss", *UNMOVED),
    ),
)
