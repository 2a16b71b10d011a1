"""Sound models of many families, as people write them: no check may fail on any of them.

Each entry of `SOUND` makes the arguments of `checkup`: a model, its loss, a batch, an optimizer, and more by keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from torchdoctor.checks.checkup import checkup


@dataclass
class Case:
    """What a check-up is given."""

    model: Any
    loss_fn: Any
    batch: Any
    optimizer: Any = None
    more: dict[str, Any] | None = None


def status(check: str, case: Case) -> str:
    """What one check says of a case."""
    given = checkup(case.model, case.loss_fn, case.batch, case.optimizer, select=[check], **(case.more or {}))
    print(given[check])
    return given[check].status


def adamw(model: nn.Module, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **more)


def text(samples: int = 8, length: int = 16, vocabulary: int = 29, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Windows of a text with structure: the next token mostly follows from the last two."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randint(vocabulary, (samples, length + 1), generator=draw)
    for place in range(2, length + 1):
        follows = (rows[:, place - 1] * 3 + rows[:, place - 2] * 7 + 1) % vocabulary
        known = torch.rand(samples, generator=draw) < 0.8
        rows[:, place] = torch.where(known, follows, rows[:, place])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def classes(features: tuple[int, ...], count: int, samples: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, *features), torch.arange(samples) % count


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        p = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """In the manner of nanoGPT: returns (logits, loss), head tied to the embedding."""

    def __init__(self, vocabulary: int = 29, width: int = 32, context: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.block_size = context
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialize)
        self.head.weight = self.token.weight

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.norm(self.blocks(x))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(self.hidden(tokens))
        if targets is None:
            return logits[:, [-1]], None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Output(dict[str, Any]):
    """What Hugging Face models return: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class HuggingFace(nn.Module):
    """A causal language model that shifts its labels itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        logits = self.gpt.head(self.gpt.hidden(input_ids))
        if labels is None:
            return Output(logits=logits)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss=loss, logits=logits)


class Bert(nn.Module):
    """A masked language model: sees both ways, is asked where tokens are hidden."""

    def __init__(self, vocabulary: int = 29, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary + 1, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary + 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Output:
        x = self.token(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        logits = self.head(self.encoder(x, src_key_padding_mask=attention_mask == 0))
        if labels is None:
            return Output(logits=logits)
        return Output(loss=functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


class Tagger(nn.Module):
    """A bidirectional LSTM that names every token."""

    def __init__(self, inputs: int = 29, tags: int = 5) -> None:
        super().__init__()
        self.token = nn.Embedding(inputs, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.token(tokens))[0])


class LSTMLanguageModel(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.token, self.lstm = nn.Embedding(29, 24), nn.LSTM(24, 32, 2, batch_first=batch_first, dropout=0.2)
        self.head = nn.Linear(32, 29)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.token(tokens))[0])


class TimeFirstClassifier(nn.Module):
    """Turns its input round itself, because its recurrent layer takes time first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x.transpose(0, 1))[0][-1])


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1, self.norm_1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv_2, self.norm_2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm_2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm_2(self.conv_2(functional.relu(self.norm_1(self.conv_1(x))))))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8),
        Residual(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 1)
        self.norm = nn.GroupNorm(2, 16)

    def forward(self, x: Tensor) -> Tensor:
        high = functional.relu(self.down(x))
        low = functional.relu(self.norm(self.middle(functional.max_pool2d(high, 2))))
        return self.head(torch.cat([high, self.up(low)], 1))


class VAE(nn.Module):
    """Samples in eval mode too, as most do."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(20, 32), nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 20))
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = functional.relu(self.encode(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decode(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


def elbo(output: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    made, mean, log_variance = output
    return functional.mse_loss(made, x) - 0.05 * (1 + log_variance - mean.square() - log_variance.exp()).mean()


class Clip(nn.Module):
    """Two towers whose output compares every sample with every other."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.Linear(10, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        a, b = functional.normalize(self.image(image), dim=-1), functional.normalize(self.text(text), dim=-1)
        return self.scale.exp() * a @ b.T


def contrast(logits: Tensor, targets: Tensor) -> Tensor:
    return (functional.cross_entropy(logits, targets) + functional.cross_entropy(logits.T, targets)) / 2


class GCN(nn.Module):
    """Samples are nodes that a graph links."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.second(adjacency @ functional.relu(self.first(adjacency @ x)))


class LoRA(nn.Module):
    """A frozen base with adapters that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(10, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.head = nn.Linear(64, 4)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.base[1](self.base[0](x) + self.up(self.down(x)))
        return self.base[4](self.base[3](self.base[2](hidden))) + self.head(hidden)


class Experts(nn.Module):
    """A mixture of which each sample takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], 1).mul(weights[..., None]).sum(1)


class StochasticDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x))
        for layer in self.layers:
            if not self.training or torch.rand(()) > 0.3:
                x = x + functional.relu(layer(x))
        return self.last(x)


def gan_step(models: dict[str, nn.Module], batch: Tensor) -> dict[str, Tensor]:
    made = models["generator"](torch.randn(len(batch), 4))
    judge = models["critic"]
    ones = torch.ones(len(batch), 1)
    critic = functional.binary_cross_entropy_with_logits(judge(batch), ones)
    critic = critic + functional.binary_cross_entropy_with_logits(judge(made.detach()), 0 * ones)
    return {"critic": critic, "generator": functional.binary_cross_entropy_with_logits(judge(made), ones)}


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return 2 - (self.tower(a) - self.tower(b)).square().sum(1)


class CausalConvolution(nn.Module):
    """Forecasts a series: numbers instead of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 16, 3), nn.Conv1d(16, 2, 3, dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(functional.pad(x.transpose(1, 2), (2, 0))))
        return self.second(functional.pad(x, (4, 0))).transpose(1, 2)


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    return Case(model, nn.CrossEntropyLoss(), classes((12,), 4), adamw(model))


def gpt() -> Case:
    model = GPT()
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)
    return Case(model, None, text(), optimizer, {"validation": text(seed=1)})


def hugging_face() -> Case:
    model = HuggingFace()
    tokens, _ = text()
    return Case(model, None, {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()})


def bert() -> Case:
    tokens, _ = text(length=24)
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(0)) < 0.2
    batch = {
        "input_ids": torch.where(hidden, 29, tokens),
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.where(hidden, tokens, -100),
    }
    model = Bert()
    return Case(model, None, batch, adamw(model))


def padded_tagger() -> Case:
    tokens, _ = text()
    tags = tokens % 5
    tags[::2, 10:] = -100
    return Case(Tagger(), lambda out, tags: functional.cross_entropy(out.flatten(0, 1), tags.flatten()), (tokens, tags))


def lstm() -> Case:
    model = LSTMLanguageModel()
    return Case(model, lambda out, y: functional.cross_entropy(out.transpose(1, 2), y), text(), adamw(model))


def time_first_lstm() -> Case:
    x, y = text(samples=6, length=14)
    loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten())  # noqa: E731
    return Case(LSTMLanguageModel(batch_first=False), loss, (x.T.contiguous(), y.T.contiguous()))


def images() -> Case:
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    x, y = classes((3, 8, 8), 4)
    return Case(model, nn.CrossEntropyLoss(label_smoothing=0.1), (x, y), optimizer)


def raw_images_with_norm() -> Case:
    model = nn.Sequential(nn.BatchNorm2d(3), resnet())
    x, y = classes((3, 8, 8), 4)
    return Case(model, nn.CrossEntropyLoss(), (127 + 60 * x, y))


def segmentation() -> Case:
    x = torch.randn(6, 1, 8, 8)
    masks = (x[:, 0] > 1.5).long()
    return Case(UNet(), nn.CrossEntropyLoss(), (x, masks))


def unbalanced() -> Case:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    x = torch.randn(64, 8)
    return Case(model, nn.CrossEntropyLoss(weight=torch.tensor([0.1, 5.0])), (x, (torch.arange(64) < 2).long()))


def binary() -> Case:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    x = torch.randn(32, 8)
    return Case(model, nn.BCEWithLogitsLoss(), (x, (x[:, 0] > 0).float()), adamw(model))


def probabilities() -> Case:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    x = torch.randn(32, 8)
    return Case(model, nn.BCELoss(), (x, (x[:, :1] > 0).float()), adamw(model))


def negative_log_likelihood() -> Case:
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 4), nn.LogSoftmax(-1))
    return Case(model, functional.nll_loss, classes((12,), 4))


def regression() -> Case:
    model = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))
    x = torch.randn(32, 6)
    return Case(model, nn.MSELoss(), (x, 3 + 2 * x[:, :1] + 0.1 * torch.randn(32, 1)), adamw(model))


def linear_regression() -> Case:
    model = nn.Linear(3, 1)
    x = torch.randn(32, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Case(model, nn.MSELoss(), (x, x.sum(1, keepdim=True) + torch.randn(32, 1)), optimizer)


def thousands_of_dollars() -> Case:
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(32, 5) * torch.tensor([1.0, 10.0, 100.0, 1000.0, 1.0])
    return Case(model, nn.SmoothL1Loss(), (x, 200 + 80 * torch.randn(32, 1)), adamw(model))


def xor() -> Case:
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).repeat(8, 1)
    return Case(model, nn.MSELoss(), (x, (x[:, :1] != x[:, 1:]).float()))


def one_hot_table() -> Case:
    model = nn.Sequential(nn.Linear(23, 32), nn.ReLU(), nn.Linear(32, 3))
    kinds = functional.one_hot(torch.arange(32) % 7, 20).float()
    return Case(model, nn.CrossEntropyLoss(), (torch.cat([torch.randn(32, 3), kinds], 1), torch.arange(32) % 3))


def autoencoder() -> Case:
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 20), nn.Sigmoid())
    return Case(model, nn.MSELoss(), torch.rand(16, 20))


def vae() -> Case:
    x = torch.randn(16, 20)
    return Case(VAE(), elbo, (x, x))


def clip() -> Case:
    return Case(Clip(), contrast, (torch.randn(12, 12), torch.randn(12, 10), torch.arange(12)))


def graph() -> Case:
    adjacency = (torch.rand(24, 24, generator=torch.Generator().manual_seed(0)) < 0.2).float() + torch.eye(24)
    adjacency = adjacency / adjacency.sum(1, keepdim=True)
    return Case(GCN(), nn.CrossEntropyLoss(), (torch.randn(24, 6), adjacency, torch.arange(24) % 3))


def lora() -> Case:
    model = LoRA()
    trainable = [p for p in model.parameters() if p.requires_grad]
    return Case(model, nn.CrossEntropyLoss(), classes((10,), 4), torch.optim.AdamW(trainable))


def frozen_trunk() -> Case:
    trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()).requires_grad_(False)
    model = nn.Sequential(trunk, nn.Linear(32, 3))
    return Case(model, nn.CrossEntropyLoss(), classes((10,), 3), adamw(model))


def zero_head() -> Case:
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    nn.init.zeros_(model[2].weight), nn.init.zeros_(model[2].bias)
    return Case(model, nn.CrossEntropyLoss(), classes((10,), 3), adamw(model))


def gan() -> Case:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    models = {"generator": generator, "critic": critic}
    return Case(models, gan_step, torch.randn(16, 6), [adamw(generator), adamw(critic)])


def siamese() -> Case:
    a, b = torch.randn(16, 10), torch.randn(16, 10)
    return Case(Siamese(), nn.BCEWithLogitsLoss(), (a, b, (torch.arange(16) % 2).float()))


def forecast() -> Case:
    series = torch.randn(8, 21, 2).cumsum(1)
    series = (series - series.mean()) / series.std()
    return Case(CausalConvolution(), nn.MSELoss(), (series[:, :-1], series[:, 1:]))


def with_loader() -> Case:
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
    x, y = classes((12,), 4, 256)
    loader = DataLoader(TensorDataset(x[:192], y[:192]), 32, shuffle=True)
    more = {"loader": loader, "validation": (x[192:], y[192:])}
    return Case(model, nn.CrossEntropyLoss(), (x[:32], y[:32]), adamw(model), more)


def learned_loss() -> Case:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(output * self.scale, target)

    model, loss = nn.Linear(12, 4), Temperature()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    return Case(model, loss, classes((12,), 4), optimizer)


def simple(make: Callable[[], nn.Module], features: tuple[int, ...], count: int) -> Callable[[], Case]:
    return lambda: Case(make(), nn.CrossEntropyLoss(), classes(features, count))


SOUND: dict[str, Callable[[], Case]] = {
    "mlp with dropout": mlp,
    "nanoGPT": gpt,
    "hugging face, labels shifted by the model": hugging_face,
    "masked language model": bert,
    "tagger with padding": padded_tagger,
    "lstm language model": lstm,
    "lstm language model, time first": time_first_lstm,
    "gru that turns time first itself": simple(TimeFirstClassifier, (9, 6), 3),
    "resnet, label smoothing": images,
    "raw images behind a norm": raw_images_with_norm,
    "segmentation": segmentation,
    "unbalanced with weights": unbalanced,
    "binary": binary,
    "binary of probabilities": probabilities,
    "log-softmax and nll": negative_log_likelihood,
    "regression": regression,
    "linear regression": linear_regression,
    "regression in thousands of dollars": thousands_of_dollars,
    "xor": xor,
    "one-hot columns": one_hot_table,
    "autoencoder": autoencoder,
    "vae": vae,
    "clip": clip,
    "graph network": graph,
    "lora": lora,
    "frozen trunk": frozen_trunk,
    "head that begins at zero": zero_head,
    "gan": gan,
    "siamese": siamese,
    "forecast by causal convolutions": forecast,
    "with loader and validation": with_loader,
    "loss with a parameter": learned_loss,
    "mixture of experts": simple(Experts, (8,), 4),
    "stochastic depth": simple(StochasticDepth, (8,), 3),
}
