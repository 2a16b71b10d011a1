"""Models with one thing wrong each, as people break them. `right`: checks of which any one counts as finding it."""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torchdoctor.clinic.candidates.candidate import Candidate, Visit
from torchdoctor.clinic.candidates.parts import (
    CLASSES,
    CONTEXT,
    FEATURES,
    GPT,
    VOCABULARY,
    Attention,
    mlp,
    next_token_loss,
    pictures,
    rows,
    sequences,
    targets,
    tokens,
)

CROSS_ENTROPY = nn.CrossEntropyLoss()
BROKEN: list[Candidate] = []
LEARNING = ("initial-loss", "overfit-one-batch", "uses-its-input")
"""What may fail as well where nothing can be learnt."""


def wrong(*right: str, secondary: tuple[str, ...] = ()) -> Callable[[Callable[[], Visit]], Callable[[], Visit]]:
    """Declare what counts as right, and what may fail as well."""

    def declared(build: Callable[[], Visit]) -> Callable[[], Visit]:
        BROKEN.append(Candidate(build.__name__.replace("_", "-"), build, right, secondary))
        return build

    return declared


def classifier(net: nn.Module) -> Visit:
    """Rows, classes and Adam for a net."""
    return Visit(net, CROSS_ENTROPY, rows(), torch.optim.Adam(net.parameters(), 1e-3))


def language_model(net: nn.Module) -> Visit:
    """Tokens and Adam for a net."""
    return Visit(net, next_token_loss, tokens(), torch.optim.Adam(net.parameters(), 1e-3))


class Through(nn.Module):
    """A module out of a function, for what has no parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


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


# ── attention and positions ──────────────────────────────────────────────────────────────────────────────────────────


@wrong("attention-behaviour", "causal-leakage")
def no_mask() -> Visit:
    """A language model whose attention has no mask."""

    class Open(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device)

    return language_model(GPT(Open))


@wrong("attention-behaviour", "causal-leakage")
def mask_off_by_one() -> Visit:
    """The mask lets each position see the next one: its answer."""

    class Ahead(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device).tril(1)

    return language_model(GPT(Ahead))


@wrong("attention-behaviour", "causal-leakage", secondary=("numerical-stability",))
def mask_upside_down() -> Visit:
    """The mask is transposed: positions see the future only."""

    class Future(Attention):
        def mask(self, length: int, device: torch.device) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool, device=device).triu()

    return language_model(GPT(Future))


@wrong("attention-behaviour", "causal-leakage", secondary=("numerical-stability",))
def softmax_over_queries() -> Visit:
    """The weights of a key sum to one over the queries, not those of a query over the keys."""

    class Columns(Attention):
        def weigh(self, scores: Tensor) -> Tensor:
            return scores.softmax(-2)

    return language_model(GPT(Columns))


@wrong("attention-behaviour")
def dead_heads() -> Visit:
    """Two of four heads have no values: they add nothing."""
    net = GPT()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if name.endswith(("qkv.weight", "qkv.bias")):
                p[2 * 32 : 2 * 32 + 16] = 0
    return language_model(net)


@wrong("causal-leakage", "attention-behaviour")
def looks_ahead_by_convolution() -> Visit:
    """A convolution with padding on both sides in a language model: it sees the next token."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.mix = nn.Embedding(VOCABULARY, 32), nn.Conv1d(32, 32, 3, padding=1)
            self.head = nn.Linear(32, VOCABULARY)

        def forward(self, idx: Tensor) -> Tensor:
            scores: Tensor = self.head(nn.functional.relu(self.mix(self.token(idx).transpose(1, 2))).transpose(1, 2))
            return scores

    return language_model(Net())


@wrong("position-embeddings")
def without_positions() -> Visit:
    """The positions are computed and never added; attention sees a bag of tokens."""

    class Net(GPT):
        def embedded(self, idx: Tensor) -> Tensor:
            words: Tensor = self.token(idx) + 0 * self.position(torch.arange(idx.shape[1], device=idx.device))
            return words

    class Both(Attention):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__(width, heads, causal=False)

    idx, _ = tokens()
    net = Net(Both)
    hidden = torch.rand(idx.shape) < 0.3
    wanted = torch.where(hidden, idx, torch.full_like(idx, -100))
    return Visit(net, next_token_loss, (torch.where(hidden, 0, idx), wanted), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("position-embeddings", secondary=("parameter-initialization",))
def positions_alike() -> Visit:
    """All positions have the same embedding, and it is frozen."""
    net = GPT()
    with torch.no_grad():
        net.position.weight[:] = net.position.weight[0].clone()
    net.position.requires_grad_(False)
    return Visit(
        net, next_token_loss, tokens(), torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-3)
    )


# ── normalization and modes ──────────────────────────────────────────────────────────────────────────────────────────


@wrong("normalization-layers")
def epsilon_of_one() -> Visit:
    """Normalization with an epsilon of 10: it hardly normalizes."""
    return classifier(
        nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32, eps=10.0), nn.ReLU(), nn.Linear(32, CLASSES))
    )


@wrong("normalization-layers", "gradient-flow", "parameter-initialization", secondary=LEARNING)
def scale_of_zero() -> Visit:
    """A LayerNorm in the trunk whose scale starts at zero: nothing passes."""
    norm = nn.LayerNorm(32)
    nn.init.zeros_(norm.weight)
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), norm, nn.ReLU(), nn.Linear(32, CLASSES)))


@wrong("train-eval-difference", "normalization-layers")
def statistics_of_another() -> Visit:
    """BatchNorm's running statistics come from data a thousand times larger."""
    norm = nn.BatchNorm1d(32, momentum=0.001)
    norm.load_state_dict({"running_var": torch.full((32,), 1e6), "running_mean": torch.full((32,), 1e3)}, strict=False)
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), norm, nn.ReLU(), nn.Linear(32, CLASSES)))


@wrong("train-eval-difference", "determinism")
def dropout_in_evaluation() -> Visit:
    """Functional dropout that does not ask for the mode: evaluation is random."""
    drop = Through(lambda x: nn.functional.dropout(x, 0.3))
    return classifier(nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), drop, nn.Linear(32, CLASSES)))


@wrong("determinism")
def entropy_of_the_system() -> Visit:
    """Noise from the operating system: no seed holds it."""

    def noisy(x: Tensor) -> Tensor:
        return x + 0.5 * torch.tensor(list(os.urandom(x.shape[1])), dtype=x.dtype) / 255

    return classifier(nn.Sequential(Through(noisy), *mlp(FEATURES, 32, CLASSES)))


# ── learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("uses-its-input", "overfit-one-batch", secondary=("gradient-flow",))
def input_thrown_away() -> Visit:
    """The input is multiplied by zero on its way in."""
    return classifier(nn.Sequential(Through(lambda x: x * 0), *mlp(FEATURES, 32, CLASSES)))


@wrong("uses-its-input", "overfit-one-batch", secondary=("gradient-flow", "unused-parameters"))
def input_forgotten() -> Visit:
    """The net is run on ones instead of its input."""
    return classifier(nn.Sequential(Through(torch.ones_like), *mlp(FEATURES, 32, CLASSES)))


@wrong("overfit-one-batch", "initial-loss", "loss-misuse", "gradient-flow")
def only_positive() -> Visit:
    """A ReLU on the output of a regression whose targets are mostly negative."""
    x, y = targets()
    net = nn.Sequential(*mlp(FEATURES, 32, 1), nn.ReLU())
    return Visit(net, nn.MSELoss(), (x, y - 2), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("overfit-one-batch", "train-eval-difference", secondary=("initial-loss",))
def dropout_of_nearly_all() -> Visit:
    """Dropout of 98 % before the head."""
    return classifier(nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.98), nn.Linear(64, CLASSES)))


@wrong(
    "batch-independence",
    secondary=("accumulation-equals-batch", "train-eval-difference", "forward-shapes", "numerical-stability"),
)
def centred_by_the_batch() -> Visit:
    """The mean over the batch is taken off by hand, in evaluation too."""
    return classifier(nn.Sequential(Through(lambda x: x - x.mean(0)), *mlp(FEATURES, 32, CLASSES)))


@wrong(
    "batch-independence",
    secondary=("accumulation-equals-batch", "forward-shapes", "uses-its-input", "overfit-one-batch"),
)
def dimensions_mixed_up() -> Visit:
    """`view` where `transpose` was meant: samples flow into each other."""
    mix = Through(lambda x: x.view(FEATURES, -1).t().contiguous())
    return classifier(nn.Sequential(mix, *mlp(FEATURES, 32, CLASSES)))


@wrong("batch-independence", secondary=("accumulation-equals-batch", "forward-shapes"))
def recurrent_over_the_batch() -> Visit:
    """An LSTM without `batch_first`: it walks over the batch instead of over time."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.LSTM(4, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.recurrent(x)
            scores: Tensor = self.head(states[:, -1])
            return scores

    net = Net()
    return Visit(net, CROSS_ENTROPY, sequences(), torch.optim.Adam(net.parameters(), 3e-3))


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("loss-misuse", secondary=("initial-loss", "overfit-one-batch"))
def softmax_twice() -> Visit:
    """Probabilities go into cross-entropy, which takes scores."""
    return classifier(nn.Sequential(*mlp(FEATURES, 32, CLASSES), nn.Softmax(dim=1)))


@wrong("loss-misuse", secondary=("initial-loss", "overfit-one-batch"))
def sigmoid_twice() -> Visit:
    """Probabilities go into a loss that applies a sigmoid itself."""
    x, _ = rows()
    net = nn.Sequential(*mlp(FEATURES, 32, 1), nn.Sigmoid(), nn.Flatten(0))
    return Visit(net, nn.BCEWithLogitsLoss(), (x, (x[:, 0] > 0).float()), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("loss-misuse", "overfit-one-batch", secondary=("initial-loss",))
def column_against_row() -> Visit:
    """Outputs of shape (N, 1) against targets of shape (N,): every output is compared with every target."""
    x, y = targets()
    net = mlp(FEATURES, 32, 1)
    return Visit(net, nn.functional.mse_loss, (x, y.squeeze(1)), torch.optim.Adam(net.parameters(), 1e-3))


@wrong("loss-misuse", "initial-loss", secondary=("overfit-one-batch",))
def scores_as_logarithms() -> Visit:
    """NLLLoss is given scores; it takes logarithms of probabilities."""
    return classifier(mlp(FEATURES, 32, CLASSES))._replace(loss_fn=nn.NLLLoss())


@wrong("accumulation-equals-batch", secondary=("loss-misuse", "initial-loss"))
def summed_and_divided_by_32() -> Visit:
    """A summed loss that is divided by the batch size of the author's machine."""

    def loss(scores: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores, wanted, reduction="sum") / 32

    return classifier(mlp(FEATURES, 32, CLASSES))._replace(loss_fn=loss)


# ── data ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@wrong("labels-in-range", secondary=("forward-shapes", *LEARNING))
def counted_from_one() -> Visit:
    """Labels from 1 to N where 0 to N - 1 are meant."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    return visit._replace(batch=(visit.batch[0], visit.batch[1] + 1))


@wrong("labels-in-range", secondary=("forward-shapes", *LEARNING))
def token_beyond_the_vocabulary() -> Visit:
    """A token that the embedding does not have."""
    visit = language_model(GPT())
    visit.batch[0][0, 3] = VOCABULARY
    return visit


@wrong("data-quality", secondary=("numerical-stability", "forward-shapes", "gradient-flow", *LEARNING))
def missing_values() -> Visit:
    """A column with missing values."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    visit.batch[0][::4, 2] = float("nan")
    return visit


@wrong("data-quality")
def column_that_never_changes() -> Visit:
    """Two columns are the same for every sample."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    visit.batch[0][:, 5:7] = 3.0
    return visit


@wrong("data-quality", secondary=("overfit-one-batch", "uses-its-input"))
def one_sample_again_and_again() -> Visit:
    """A loader's bug: half of the batch is one and the same sample."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    visit.batch[0][8:24], visit.batch[1][8:24] = visit.batch[0][8].clone(), visit.batch[1][8].clone()
    return visit


@wrong("train-validation-overlap")
def validated_on_what_was_learnt() -> Visit:
    """Most of the validation batch is in the training batch."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    x, y = visit.batch
    return visit._replace(validation=(x[4:28].clone(), y[4:28].clone()))


class _Slow(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.x, self.y = rows(256)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.01)
        return self.x[index], self.y[index]


@wrong("loader-speed")
def slow_files() -> Visit:
    """A data set that opens a file a sample, without workers."""
    visit = classifier(mlp(FEATURES, 32, CLASSES))
    return visit._replace(loader=DataLoader(_Slow(), batch_size=32, shuffle=True))


# ── optimizer and state ──────────────────────────────────────────────────────────────────────────────────────────────


@wrong("optimizer-coverage")
def head_left_out() -> Visit:
    """The optimizer was made before the head was replaced."""
    net = mlp(FEATURES, 32, CLASSES)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    net[2] = nn.Linear(32, CLASSES)
    return Visit(net, CROSS_ENTROPY, rows(), optimizer)


@wrong("optimizer-coverage")
def layer_left_out() -> Visit:
    """Parameters are sorted into groups by name, and one layer falls through."""
    net = mlp(FEATURES, 32, 32, CLASSES)
    chosen = [p for name, p in net.named_parameters() if not name.startswith("2.")]
    return Visit(net, CROSS_ENTROPY, rows(), torch.optim.Adam(chosen, 1e-3))


@wrong("decay-on-norms-and-biases")
def decay_on_everything() -> Visit:
    """A decay of 0.1 on biases and on the scales of norms too."""
    net = GPT()
    return language_model(net)._replace(optimizer=torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.1))


@wrong("tied-weights")
def tied_in_name_only() -> Visit:
    """The configuration says that head and embedding are one; a deep copy has parted them."""
    net = GPT()
    net.config = types.SimpleNamespace(tie_word_embeddings=True)  # type: ignore[assignment]
    net.head.weight = nn.Parameter(net.token.weight.detach().clone())
    return language_model(net)


@wrong("state-dict-round-trip", secondary=("optimizer-coverage", "gradient-flow"))
def kept_beside() -> Visit:
    """A scale that the forward pass uses is a plain attribute: no checkpoint has it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = mlp(FEATURES, 32, CLASSES), torch.randn(FEATURES)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.net(x * self.scale)
            return scores

    return classifier(Net())


@wrong("optimizer-coverage", "state-dict-round-trip", "gradient-flow")
def layers_in_a_list() -> Visit:
    """Hidden layers in a plain list: neither optimizer nor checkpoint knows them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [nn.Linear(FEATURES, 32), nn.Linear(32, 32)]
            self.head = nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.hidden:
                x = nn.functional.relu(layer(x))
            scores: Tensor = self.head(x)
            return scores

    return classifier(Net())
