"""Sound models of many families, as people write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torchdoctor.clinic.candidates.candidate import Candidate, Visit
from torchdoctor.clinic.candidates.parts import (
    CLASSES,
    CONTEXT,
    FEATURES,
    GPT,
    VOCABULARY,
    Attention,
    Block,
    mlp,
    next_token_loss,
    pictures,
    rows,
    sequences,
    targets,
    tokens,
)


def classifier() -> Visit:
    """An MLP that tells classes apart, with Adam."""
    net = mlp(FEATURES, 32, 32, CLASSES)
    return Visit(net, nn.CrossEntropyLoss(), rows(), torch.optim.Adam(net.parameters(), 1e-3))


def logistic() -> Visit:
    """Logistic regression: one layer, two classes, one score."""
    x, _ = rows()
    net = nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0))
    return Visit(net, nn.BCEWithLogitsLoss(), (x, (x[:, 0] > 0).float()), torch.optim.SGD(net.parameters(), 0.1))


def regression() -> Visit:
    """An MLP with tanh units for a regression."""
    net = mlp(FEATURES, 32, 32, 1, activation=nn.Tanh)
    return Visit(net, nn.MSELoss(), targets(), torch.optim.Adam(net.parameters(), 1e-3))


def robust_regression() -> Visit:
    """A regression of three numbers with a Huber loss, and layers that are normalized."""
    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 3))
    return Visit(net, nn.HuberLoss(), targets(wide=3), torch.optim.RMSprop(net.parameters(), 1e-3))


def convolutions() -> Visit:
    """A small CNN without normalization."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip
    return Visit(net, nn.CrossEntropyLoss(), pictures(), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9))


def convolutions_normalized() -> Visit:
    """A CNN with BatchNorm and dropout, and weight decay on matrices only."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, CLASSES),
    )  # fmt: skip
    matrices = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return Visit(net, nn.CrossEntropyLoss(), pictures(32), torch.optim.AdamW(groups, 1e-3))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(x + self.path(x))


def residual() -> Visit:
    """A small residual net with GroupNorm."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(_Residual(16) for _ in range(3)), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(256, CLASSES),
    )  # fmt: skip
    return Visit(net, nn.CrossEntropyLoss(label_smoothing=0.1), pictures(), torch.optim.Adam(net.parameters(), 1e-3))


def segmentation() -> Visit:
    """A net that labels every pixel, with a path around its bottleneck."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            early = nn.functional.relu(self.down(x))
            late = nn.functional.relu(self.up(nn.functional.relu(self.middle(early))))
            labels: Tensor = self.head(torch.cat([early, late], dim=1))
            return labels

    x, _ = pictures(8)
    net = Net()
    return Visit(net, nn.CrossEntropyLoss(), (x, (x.mean(1) > 0.5).long()), torch.optim.Adam(net.parameters(), 1e-3))


def autoencoder() -> Visit:
    """An autoencoder: its target is its input."""
    x, _ = rows()
    net = mlp(FEATURES, 24, 8, 24, FEATURES)
    return Visit(net, nn.MSELoss(), (x, x.clone()), torch.optim.Adam(net.parameters(), 1e-3))


def variational() -> Visit:
    """A variational autoencoder whose loss takes the model and the batch."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(FEATURES, 32, 8), mlp(4, 32, FEATURES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, spread = self.encoder(x).chunk(2, dim=1)
            return self.decoder(mean + torch.randn_like(mean) * (spread / 2).exp()), mean, spread

    def loss(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        made, mean, spread = outputs
        apart = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return nn.functional.mse_loss(made, x, reduction="sum") / len(x) + 0.1 * apart

    x, _ = rows()
    net = Net()
    return Visit(net, loss, (x, x.clone()), torch.optim.Adam(net.parameters(), 1e-3))


class _Recurrent(nn.Module):
    def __init__(self, recurrent: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        outputs: Tensor = self.head(states[:, -1])
        return outputs


def long_memory() -> Visit:
    """An LSTM that classifies series."""
    net = _Recurrent(nn.LSTM(4, 32, batch_first=True), 3)
    return Visit(net, nn.CrossEntropyLoss(), sequences(), torch.optim.Adam(net.parameters(), 3e-3))


def forecast() -> Visit:
    """A GRU that forecasts the next value of a series."""
    x, _ = sequences()
    net = _Recurrent(nn.GRU(4, 32, batch_first=True), 4)
    return Visit(net, nn.L1Loss(), (x[:, :-1], x[:, -1]), torch.optim.Adam(net.parameters(), 3e-3))


def recurrent_language_model() -> Visit:
    """A language model with an LSTM."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
            self.recurrent = nn.LSTM(32, 32, batch_first=True)

        def forward(self, idx: Tensor) -> Tensor:
            states, _ = self.recurrent(self.token(idx))
            scores: Tensor = self.head(states)
            return scores

    net = Net()
    return Visit(net, next_token_loss, tokens(), torch.optim.Adam(net.parameters(), 3e-3))


def language_model() -> Visit:
    """A small GPT, its loss outside."""
    net = GPT()
    return Visit(net, next_token_loss, tokens(), torch.optim.Adam(net.parameters(), 1e-3))


def language_model_with_loss() -> Visit:
    """A small GPT that returns scores and loss, with tied weights and decay on matrices only."""

    class Net(GPT):
        def __init__(self) -> None:
            super().__init__()
            self.head.weight = self.token.weight

        def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
            scores = super().forward(idx)
            return scores, None if targets is None else next_token_loss(scores, targets)

    net = Net()
    matrices, others = ([p for p in net.parameters() if (p.dim() > 1) is flat] for flat in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return Visit(net, None, tokens(), torch.optim.AdamW(groups, 1e-3))


def masked_language_model() -> Visit:
    """An encoder that fills gaps; positions without a gap do not count."""

    class Both(Attention):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__(width, heads, causal=False)

    idx, _ = tokens()
    hidden = torch.rand(idx.shape) < 0.3
    wanted = torch.where(hidden, idx, torch.full_like(idx, -100))
    net = GPT(Both)
    batch = torch.where(hidden, torch.zeros_like(idx), idx), wanted
    return Visit(net, next_token_loss, batch, torch.optim.Adam(net.parameters(), 1e-3))


def encoder_classifier() -> Visit:
    """torch's own transformer encoder with a class token."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.place = nn.Embedding(VOCABULARY, 32), nn.Parameter(0.02 * torch.randn(CONTEXT, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 2)

        def forward(self, idx: Tensor) -> Tensor:
            x = self.encoder(self.token(idx) + self.place[: idx.shape[1]])
            scores: Tensor = self.head(x.mean(1))
            return scores

    idx, _ = tokens(16)
    net = Net()
    return Visit(net, nn.CrossEntropyLoss(), (idx, idx[:, 0] % 2), torch.optim.Adam(net.parameters(), 1e-3))


def vision_transformer() -> Visit:
    """Patches, positions and attention that is not causal."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.place = nn.Conv2d(3, 32, 4, stride=4), nn.Parameter(0.02 * torch.randn(16, 32))
            self.blocks = nn.Sequential(*(Block(32, Attention(32, 4, causal=False)) for _ in range(2)))
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.patch(x).flatten(2).transpose(1, 2) + self.place
            scores: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
            return scores

    net = Net()
    return Visit(net, nn.CrossEntropyLoss(), pictures(), torch.optim.Adam(net.parameters(), 1e-3))


def bag_of_words() -> Visit:
    """Averaged embeddings: the order of words is not meant to matter."""
    idx, _ = tokens(16)
    net = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 16, mode="mean"), nn.Linear(16, 3))
    return Visit(net, nn.CrossEntropyLoss(), (idx, idx[:, 0] % 3), torch.optim.Adam(net.parameters(), 1e-2))


def recommender() -> Visit:
    """Matrix factorisation: two embeddings and their product."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.things = nn.Embedding(20, 8), nn.Embedding(30, 8)

        def forward(self, user: Tensor, thing: Tensor) -> Tensor:
            liked: Tensor = (self.users(user) * self.things(thing)).sum(1)
            return liked

    users, things = torch.randint(20, (64,)), torch.randint(30, (64,))
    net = Net()
    batch = {"user": users, "thing": things, "labels": ((users + things) % 5).float() - 2}
    return Visit(net, nn.MSELoss(), batch, torch.optim.Adam(net.parameters(), 1e-2))


def many_labels() -> Visit:
    """Several labels at once, each yes or no."""
    x, _ = rows()
    net = mlp(FEATURES, 32, 4)
    return Visit(net, nn.BCEWithLogitsLoss(), (x, (x[:, :4] > 0).float()), torch.optim.Adam(net.parameters(), 1e-3))


def with_dropout() -> Visit:
    """An MLP with dropout, and a loader with validation data of its own."""
    net = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES))
    x, y = rows(256)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    return Visit(
        net, nn.CrossEntropyLoss(), (x[:32], y[:32]), torch.optim.Adam(net.parameters(), 1e-3), loader, rows(32)
    )


def contrastive() -> Visit:
    """Two views of each sample; the others of the batch are the wrong answers."""

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        left, right = (nn.functional.normalize(model(view), dim=1) for view in batch)
        return nn.functional.cross_entropy(left @ right.T / 0.2, torch.arange(len(left)))

    x, _ = rows()
    net = mlp(FEATURES, 64, 32)
    views = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    return Visit(net, loss, views, torch.optim.Adam(net.parameters(), 1e-3))


def adversaries() -> Visit:
    """A generator and a discriminator."""

    def loss(model: dict[str, nn.Module], batch: tuple[Tensor, Tensor]) -> Tensor:
        real, noise = batch
        judge, made = model["discriminator"], model["generator"](noise)
        told = nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(made.detach())).mean()
        return told + nn.functional.softplus(-judge(made)).mean()

    nets = {"generator": mlp(4, 32, 2), "discriminator": mlp(2, 32, 1)}
    batch = torch.randn(32, 2) * 0.3 + 1, torch.randn(32, 4)
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3, betas=(0.5, 0.999)) for net in nets.values()]
    return Visit(nets, loss, batch, optimizers)


def adapted() -> Visit:
    """A frozen trunk with small matrices beside its layers, which alone are trained."""

    class Adapter(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down, self.up = (
                nn.Linear(layer.in_features, 4, bias=False),
                nn.Linear(4, layer.out_features, bias=False),
            )
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            both: Tensor = self.layer(x) + self.up(self.down(x))
            return both

    net = nn.Sequential(
        Adapter(nn.Linear(FEATURES, 64)), nn.ReLU(), Adapter(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, CLASSES)
    )
    trained = [p for p in net.parameters() if p.requires_grad]
    return Visit(net, nn.CrossEntropyLoss(), rows(), torch.optim.Adam(trained, 1e-2))


def causal_convolutions() -> Visit:
    """A language model made of convolutions that look back only."""

    class Back(nn.Conv1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(nn.functional.pad(x, ((self.kernel_size[0] - 1) * self.dilation[0], 0)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
            self.layers = nn.Sequential(Back(32, 32, 3), nn.ReLU(), Back(32, 32, 3, dilation=2), nn.ReLU())

        def forward(self, idx: Tensor) -> Tensor:
            scores: Tensor = self.head(self.layers(self.token(idx).transpose(1, 2)).transpose(1, 2))
            return scores

    net = Net()
    return Visit(net, next_token_loss, tokens(), torch.optim.Adam(net.parameters(), 3e-3))


def graph() -> Visit:
    """A graph net over all nodes of one graph: nodes are meant to see their neighbours."""

    class Net(nn.Module):
        def __init__(self, neighbours: Tensor) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, 32), nn.Linear(32, 3)
            self.register_buffer("neighbours", neighbours)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.neighbours @ self.second(nn.functional.relu(self.neighbours @ self.first(x)))
            return scores

    x, y = rows(24, classes=3)
    links = (torch.rand(24, 24) < 0.1).float() + torch.eye(24)
    net = Net(links / links.sum(1, keepdim=True))
    return Visit(net, nn.CrossEntropyLoss(), (x, y), torch.optim.Adam(net.parameters(), 1e-2))


def denoiser() -> Visit:
    """A diffusion model's net: the noise of a point, from the point and the time."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.net = nn.Linear(1, 32), mlp(34, 64, 64, 2, activation=nn.SiLU)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            noise: Tensor = self.net(torch.cat([x, torch.sin(self.time(t))], dim=1))
            return noise

    clean, t, noise = torch.randn(64, 2) * 0.1 + 1, torch.rand(64, 1), torch.randn(64, 2)
    net = Net()
    batch = {"x": clean * (1 - t) + noise * t, "t": t, "labels": noise}
    return Visit(net, nn.MSELoss(), batch, torch.optim.Adam(net.parameters(), 1e-3))


SOUND = tuple(
    Candidate(build.__name__.replace("_", "-"), build)
    for build in (
        classifier, logistic, regression, robust_regression, convolutions, convolutions_normalized, residual,
        segmentation, autoencoder, variational, long_memory, forecast, recurrent_language_model, language_model,
        language_model_with_loss, masked_language_model, encoder_classifier, vision_transformer, bag_of_words,
        recommender, many_labels, with_dropout, contrastive, adversaries, adapted, causal_convolutions, graph, denoiser,
    )
)  # fmt: skip
