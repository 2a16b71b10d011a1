"""Models gone wrong, never looked at: how they begin, what they normalise, forget, saturate, see and learn by heart."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchdoctor.clinic.arenas import perceptron
from torchdoctor.clinic.blind_arenas_b import WORDS, Reader, Sines, Sorter
from torchdoctor.clinic.kinds.kind import GENERALIZATION, SIGNAL, STALLED, UNSTABLE, Kind
from torchdoctor.clinic.kinds.loop import Loop


def normal_of_unit_spread(loop: Loop) -> None:
    """All matrices begin as `nn.init.normal_` makes them when it is told nothing: with a spread of one."""
    for parameter in loop.model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter)


def bias_of_the_wrong_gate(loop: Loop) -> None:
    """The recipe for an LSTM's biases is applied to a GRU, where the same rows say: keep all, take nothing."""
    reader = loop.model
    assert isinstance(reader, Reader)
    width = reader.rnn.hidden_size
    with torch.no_grad():
        for name, bias in reader.rnn.named_parameters():
            if name.startswith("bias"):
                bias[width : 2 * width] = 6.0


def normalised_to_nothing(loop: Loop) -> None:
    """Each channel is averaged to one number and then normalised by itself: nothing but zero is left."""
    assert isinstance(loop.model, nn.Sequential)
    trunk, head = list(loop.model)[:4], loop.model[-1]
    assert isinstance(head, nn.Linear)
    width = head.in_features // 16
    own = [nn.AdaptiveAvgPool2d(1), nn.GroupNorm(width, width), nn.Flatten()]
    loop.model = nn.Sequential(*trunk, *own, nn.Linear(width, loop.arena.classes))


def twenty_convolutions(loop: Loop) -> None:
    """Twenty convolutions one after another, with nothing around them and nothing between them but ReLUs."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()]
    for _ in range(19):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    loop.model = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 16, loop.arena.classes))


class Branch(nn.Module):
    """Adds to what it is given, with nothing to hold its scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = perceptron([width, width, width])
        for layer in self.inner:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x and as much again."""
        more: Tensor = self.inner(x)
        return x + more


def residuals_undamped(loop: Loop) -> None:
    """Twenty-four residual blocks begin at full scale, without normalisation: each makes its input larger."""
    given = loop.arena.x.shape[1]
    loop.model = nn.Sequential(nn.Linear(given, 32), *(Branch(32) for _ in range(24)), nn.Linear(32, 1))


def dropout_on_the_answer(loop: Loop) -> None:
    """Dropout was added after each layer, the last one too: two answers of three are zero."""
    loop.model = nn.Sequential(loop.model, nn.Dropout(0.67))


def characters_as_one_number(loop: Loop) -> None:
    """Each character is embedded as a single number, and two units read them all."""
    table = nn.Embedding(int(loop.arena.x.max()) + 1, 1)
    loop.model = nn.Sequential(table, nn.Flatten(), perceptron([12, 2, loop.arena.classes]))


def handful_by_heart(loop: Loop) -> None:
    """A net with far more weights than there is data reads the same hundred samples until it knows them."""
    count = 3 * loop.arena.batch_size
    loop.arena.x, loop.arena.y = loop.arena.x[:count], loop.arena.y[:count]
    loop.use("adam")
    loop.constant()


def places_drown_the_numbers(loop: Loop) -> None:
    """Places are added as they are counted, in hundreds, to embeddings of unit scale."""
    assert isinstance(loop.model, Sorter)
    length, width = loop.model.place.shape
    with torch.no_grad():
        loop.model.place.copy_(100.0 * (1 + torch.arange(length)).unsqueeze(1) * torch.randn(width).sign())


class BothWays(nn.Module):
    """Predicts the next word, after reading the text from both ends."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next word at each place."""
        scores: Tensor = self.head(self.rnn(self.embed(x))[0])
        return scores


def read_in_both_directions(loop: Loop) -> None:
    """The net that is to predict the next word reads backwards as well: it has seen it."""
    loop.model = BothWays(WORDS, 96)


def sines_too_fast(loop: Loop) -> None:
    """The first sines are so fast that neighbours have nothing in common: the net learns places by heart."""
    loop.arena.x, loop.arena.y = loop.arena.x[:256], loop.arena.y[:256]
    loop.model = Sines(256, omega=300.0)
    loop.use("adam")
    loop.constant()


def layer_scaled_on_the_way(loop: Loop) -> None:
    """At step 200 a tool that balances layers makes one of them a hundred times larger, and no other smaller."""

    def scale() -> None:
        matrices = [p for p in loop.model.parameters() if p.dim() > 1]
        with torch.no_grad():
            matrices[-2].mul_(100.0)

    loop.events[200] = scale


def pruned_on_the_way(loop: Loop) -> None:
    """At step 220 the weights are pruned, two of a hundred where ninety-eight should have stayed."""
    masks: dict[nn.Parameter, Tensor] = {}

    def prune() -> None:
        for parameter in loop.model.parameters():
            if parameter.dim() > 1:
                size = parameter.detach().abs()
                masks[parameter] = (size > size.flatten().quantile(0.98)).float()
        cut()

    def cut() -> None:
        with torch.no_grad():
            for parameter, mask in masks.items():
                parameter.mul_(mask)

    def apply(optimizer: Optimizer) -> None:
        optimizer.step()
        cut()

    loop.events[220] = prune
    loop.apply = apply


def sigmoid_on_the_answer(loop: Loop) -> None:
    """The last layer is followed by a sigmoid, and half of the targets are below zero."""
    loop.model = nn.Sequential(loop.model, nn.Sigmoid())


def softmax_between_layers(loop: Loop) -> None:
    """The hidden layers have a softmax for their activation: a hundred units share a sum of one."""
    assert isinstance(loop.model, nn.Sequential)
    loop.model = nn.Sequential(*(nn.Softmax(-1) if isinstance(m, nn.ReLU | nn.SELU) else m for m in loop.model))


def two_rows_at_a_time(loop: Loop) -> None:
    """BatchNorm over batches of two rows: each unit says only which of the two is the larger."""
    given = loop.arena.x.shape[1]
    blocks: list[nn.Module] = []
    for size in (given, 64):
        blocks += [nn.Linear(size, 64), nn.BatchNorm1d(64), nn.ReLU()]
    loop.model = nn.Sequential(*blocks, nn.Linear(64, 1))
    loop.arena.batch_size = 2


FLAT = (*STALLED, *SIGNAL)


FAULTS = (
    Kind(
        "normal-of-unit-spread",
        normal_of_unit_spread,
        on=("points", "gaps"),
        right=("bad-initialization", "unexpected-initial-loss", "activation-explosion", *UNSTABLE),
        cause=("bad-initialization",),
        secondary=(*FLAT, "lr-too-high"),
    ),
    Kind(
        "bias-of-the-wrong-gate",
        bias_of_the_wrong_gate,
        on=("sensors",),
        right=("bad-initialization", "saturating-nonlinearity", *FLAT),
        cause=("bad-initialization", "saturating-nonlinearity"),
        secondary=("frozen-weights",),
    ),
    Kind(
        "normalised-to-nothing",
        normalised_to_nothing,
        on=("glyphs",),
        right=("frozen-weights", "batchnorm-misuse", *FLAT),
        cause=("batchnorm-misuse",),
        secondary=("validation-anomaly",),
    ),
    Kind(
        "twenty-convolutions",
        twenty_convolutions,
        on=("glyphs",),
        right=("missing-skip-connections", "missing-normalization", "bad-initialization", *FLAT),
        cause=("missing-skip-connections", "missing-normalization", "bad-initialization"),
    ),
    Kind(
        "residuals-undamped",
        residuals_undamped,
        on=("demand",),
        right=("missing-normalization", "bad-initialization", "unexpected-initial-loss", *UNSTABLE),
        cause=("missing-normalization", "bad-initialization"),
        secondary=(*FLAT, "lr-too-high", "validation-anomaly"),
    ),
    Kind(
        "dropout-on-the-answer",
        dropout_on_the_answer,
        on=("sensors",),
        right=("over-regularized", "validation-anomaly", "underfitting", "loss-plateau", "slow-learning"),
        cause=("over-regularized",),
        secondary=("gradient-instability", "collapsed-output", "not-learning", "dead-units"),
    ),
    Kind(
        "characters-as-one-number",
        characters_as_one_number,
        on=("gaps",),
        right=("insufficient-capacity", *FLAT),
        cause=("insufficient-capacity",),
        secondary=("label-noise-or-misalignment", "lr-too-low"),
    ),
    Kind(
        "handful-by-heart",
        handful_by_heart,
        on=("gaps", "speech"),
        right=(*GENERALIZATION, "memorization", "under-regularized"),
        cause=("memorization", "under-regularized"),
        secondary=("suspiciously-low-loss", "repeated-batch", "batch-anomaly"),
        onset="best-validation",
    ),
    Kind(
        "places-drown-the-numbers",
        places_drown_the_numbers,
        on=("sorting",),
        right=("bad-initialization", "activation-explosion", *FLAT),
        cause=("bad-initialization",),
        secondary=("unnormalized-inputs",),
    ),
    Kind(
        "read-in-both-directions",
        read_in_both_directions,
        on=("words",),
        right=("information-leak", "suspiciously-low-loss", "uneven-position-loss"),
        cause=("information-leak",),
    ),
    Kind(
        "sines-too-fast",
        sines_too_fast,
        on=("coordinates",),
        right=(*GENERALIZATION, "memorization", "under-regularized", "bad-initialization"),
        cause=("memorization", "under-regularized", "bad-initialization"),
        secondary=("suspiciously-low-loss", "repeated-batch"),
    ),
    Kind(
        "layer-scaled-on-the-way",
        layer_scaled_on_the_way,
        on=("gaps",),
        right=("state-overwritten", *UNSTABLE),
        secondary=(*FLAT, *GENERALIZATION, "hardware-fault", "resume-error"),
        onset=200,
        acute=True,
    ),
    Kind(
        "pruned-on-the-way",
        pruned_on_the_way,
        on=("gaps", "points"),
        right=("state-overwritten", "frozen-weights", *UNSTABLE, *FLAT),
        secondary=(*GENERALIZATION, "insufficient-capacity", "resume-error"),
        onset=220,
        acute=True,
    ),
    Kind(
        "sigmoid-on-the-answer",
        sigmoid_on_the_answer,
        on=("demand",),
        right=("saturating-nonlinearity", "target-anomaly", "loss-misuse", "suspicious-loss", *FLAT),
        cause=("saturating-nonlinearity", "loss-misuse", "unnormalized-targets"),
    ),
    Kind(
        "softmax-between-layers",
        softmax_between_layers,
        on=("gaps",),
        right=("saturating-nonlinearity", *FLAT),
        cause=("saturating-nonlinearity",),
        secondary=("lr-too-low", "bad-initialization"),
    ),
    Kind(
        "two-rows-at-a-time",
        two_rows_at_a_time,
        on=("demand",),
        right=("batchnorm-misuse", "small-normalization-batch", "batch-size-unsuited", *GENERALIZATION),
        cause=("batchnorm-misuse", "batch-size-unsuited"),
        secondary=(*STALLED, "gradient-instability", "batch-size-advice", "loss-oscillation"),
    ),
)
