"""Broken from the start: weights, shapes, gradients, memory and numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchdoctor.clinic.candidates.breaking import CROSS_ENTROPY, LEARNING, Through, classifier, language_model, wrong
from torchdoctor.clinic.candidates.candidate import Visit
from torchdoctor.clinic.candidates.parts import (
    CLASSES,
    CONTEXT,
    FEATURES,
    GPT,
    mlp,
    next_token_loss,
    pictures,
    tokens,
)

# ── how it begins ────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("parameter-initialization", secondary=("numerical-stability", "gradient-flow", "forward-shapes", *LEARNING))
def weight_not_a_number() -> Visit:
    """One weight is NaN, from a checkpoint that was saved too late."""
    net = mlp(FEATURES, 32, CLASSES)
    with torch.no_grad():
        next(net.parameters())[3, 2] = float("nan")
    return classifier(net)


@wrong("parameter-initialization", "gradient-flow", secondary=LEARNING)
def all_zero() -> Visit:
    """All weights of the hidden layers start at zero."""
    net = mlp(FEATURES, 32, 32, CLASSES)
    for p in net.parameters():
        nn.init.zeros_(p)
    return classifier(net)


@wrong("parameter-initialization", secondary=LEARNING)
def all_alike() -> Visit:
    """All weights start with the same number, so all units learn the same."""
    net = mlp(FEATURES, 32, 32, CLASSES)
    for p in net.parameters():
        nn.init.constant_(p, 0.05)
    return classifier(net)


@wrong("parameter-initialization", "initial-loss", secondary=("numerical-stability", "overfit-one-batch"))
def normal_of_one() -> Visit:
    """A language model whose weights were drawn from N(0, 1)."""
    net = GPT()
    for p in net.parameters():
        if p.dim() > 1:
            nn.init.normal_(p)
    return language_model(net)


@wrong("parameter-initialization", "gradient-flow", secondary=LEARNING)
def hardly_anything() -> Visit:
    """Weights of a deep net start a thousand times too small."""
    net = mlp(FEATURES, 32, 32, 32, 32, CLASSES)
    for p in net.parameters():
        if p.dim() > 1:
            nn.init.normal_(p, std=1e-5)
    return classifier(net)


@wrong("initial-loss", "parameter-initialization")
def prejudiced_bias() -> Visit:
    """The last bias comes from another data set, and is sure of one class."""
    net = mlp(FEATURES, 32, CLASSES)
    with torch.no_grad():
        list(net.parameters())[-1][0] = 15.0
    return classifier(net)


@wrong("initial-loss", "parameter-initialization", secondary=("overfit-one-batch",))
def loud_head() -> Visit:
    """The last layer's weights are fifty times too large."""
    net = mlp(FEATURES, 32, CLASSES)
    with torch.no_grad():
        list(net.parameters())[-2].mul_(50)
    return classifier(net)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("forward-shapes", secondary=("accumulation-equals-batch", "batch-independence"))
def batch_size_written_down() -> Visit:
    """The batch size is part of a `view`."""
    return classifier(nn.Sequential(Through(lambda x: x.reshape(32, FEATURES)), *mlp(FEATURES, 32, CLASSES)))


@wrong("forward-shapes", secondary=("accumulation-equals-batch", "batch-independence", "loss-misuse"))
def squeezed() -> Visit:
    """`squeeze()` drops the batch dimension where the batch has one sample."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), Through(torch.squeeze), nn.Linear(8, CLASSES)
    )
    return Visit(net, CROSS_ENTROPY, pictures(), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("position-embeddings", "forward-shapes")
def too_few_positions() -> Visit:
    """Half as many positions as the context is long."""
    net = GPT()
    net.position = nn.Embedding(CONTEXT // 2, 32)
    idx, wanted = tokens(length=CONTEXT // 2)
    return Visit(net, next_token_loss, (idx, wanted), torch.optim.Adam(net.parameters(), 1e-3))


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("gradient-flow", "unused-parameters", secondary=LEARNING)
def detached_encoder() -> Visit:
    """The encoder's output is detached before the head."""
    return classifier(
        nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), Through(torch.Tensor.detach), nn.Linear(32, CLASSES))
    )


@wrong("gradient-flow", "unused-parameters")
def never_called() -> Visit:
    """A layer is defined and never called."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra, self.head = nn.Linear(FEATURES, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(nn.functional.relu(self.first(x)))
            return scores

    return classifier(Net())


@wrong("gradient-flow", "unused-parameters", secondary=LEARNING)
def rounded() -> Visit:
    """Activations are rounded: no gradient passes."""
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), Through(torch.round), nn.Linear(32, CLASSES)))


@wrong("gradient-flow", "parameter-initialization", secondary=("normalization-layers", *LEARNING))
def dead_from_the_start() -> Visit:
    """A bias of -20 before each ReLU: no unit is ever on."""
    net = mlp(FEATURES, 32, 32, CLASSES)
    with torch.no_grad():
        for layer in list(net)[:-1]:
            if isinstance(layer, nn.Linear):
                layer.bias.fill_(-20)
    return classifier(net)


@wrong("gradient-flow", secondary=("parameter-initialization", *LEARNING))
def thirty_sigmoids() -> Visit:
    """Thirty layers with sigmoids: the first learns nothing."""
    return classifier(mlp(FEATURES, *[16] * 30, CLASSES, activation=nn.Sigmoid))


# ── memory and numbers ───────────────────────────────────────────────────────────────────────────────────────────────


@wrong("memory-use")
def every_pair() -> Visit:
    """All pairs of features of all samples are held at once: far more than the memory that is allowed."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.head = nn.Linear(FEATURES, 400), nn.Linear(400, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            wide = self.wide(x)
            pairs = torch.tanh(wide[:, :, None] * wide[:, None, :])
            scores: Tensor = self.head(pairs.mean(2))
            return scores

    visit = classifier(Net())
    return visit._replace(memory=10_000_000)


@wrong("numerical-stability")
def logarithm_of_nothing() -> Visit:
    """The logarithm of a sum of squares: minus infinity for an input of zeros."""
    scale = Through(lambda x: x * x.square().sum(1, keepdim=True).log())
    return classifier(nn.Sequential(scale, *mlp(FEATURES, 32, CLASSES)))


@wrong("numerical-stability")
def division_by_spread() -> Visit:
    """Rows are divided by their own spread, without an epsilon."""
    scale = Through(lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))
    return classifier(nn.Sequential(scale, *mlp(FEATURES, 32, CLASSES)))


@wrong("numerical-stability", secondary=("loss-misuse",))
def softmax_by_hand() -> Visit:
    """Weights by exp(x) / sum exp(x): large inputs overflow."""
    weigh = Through(lambda x: x * x.exp() / x.exp().sum(1, keepdim=True))
    return classifier(nn.Sequential(weigh, *mlp(FEATURES, 32, CLASSES)))


@wrong("numerical-stability")
def root_of_zero() -> Visit:
    """The root of a sum of squares has no gradient at zero."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(FEATURES, 16, bias=False), nn.Linear(17, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            inner = self.embed(x)
            scores: Tensor = self.head(torch.cat([inner, inner.square().sum(1, keepdim=True).sqrt()], 1))
            return scores

    return classifier(Net())


@wrong("numerical-stability")
def beyond_half_precision() -> Visit:
    """A product that is fine in float32 and overflows in float16."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            inner = self.first(x)
            scores: Tensor = self.head((inner * 3e5) / 3e5)
            return scores

    return classifier(Net())
