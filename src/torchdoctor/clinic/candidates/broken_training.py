"""Broken training: what cannot be learnt, losses, data, optimizers and state."""

from __future__ import annotations

import time
import types

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from torchdoctor.clinic.candidates.breaking import CROSS_ENTROPY, LEARNING, Through, classifier, language_model, wrong
from torchdoctor.clinic.candidates.candidate import Visit
from torchdoctor.clinic.candidates.parts import (
    CLASSES,
    FEATURES,
    GPT,
    VOCABULARY,
    mlp,
    rows,
    sequences,
    targets,
)

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
