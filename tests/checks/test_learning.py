"""Checks of what a model can learn: first loss, one batch by heart, use of the input, the loss itself, both modes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.checks.sound import SOUND, Case, classes, status, text
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.checks import CHECKS
from torchdoctor.checks.checkup import checkup

SLOW = ("train-eval-difference", "overfit-one-batch", "compile-agrees", "loader-speed")
FROM_HERE = "CK09"
"""The first code of the checks that experts do by hand; the component tests have tables of their own."""


def net(outputs: int = 4, *last: nn.Module, inputs: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs), *last)


class Wrapped(nn.Module):
    """A net, and what is done before and after it."""

    def __init__(self, net: nn.Module, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(self, x) if self.before else x
        x = self.net(x)
        return self.after(self, x) if self.after else x


def classifier(model: nn.Module, loss: Any = None, scale: float = 1.0) -> Case:
    x, y = classes((8,), 4, 16)
    return Case(model, loss or nn.CrossEntropyLoss(), (scale * x, y))


def regression(model: nn.Module, loss: Any = None, targets: Any = None, shape: tuple[int, ...] = (16, 1)) -> Case:
    x = torch.randn(16, 8)
    y = x[:, :1] + 0.3 * torch.randn(16, 1)
    return Case(model, loss or nn.MSELoss(), (x, (y if targets is None else targets(y)).reshape(shape)))


def binary(model: nn.Module, loss: Any) -> Case:
    x = torch.randn(16, 8)
    return Case(model, loss, (x, (x[:, :1] > 0).float()))


def large_head() -> nn.Module:
    model = net()
    nn.init.normal_(model[2].weight, std=10.0)
    return model


def dead() -> nn.Module:
    model = net()
    nn.init.constant_(model[0].bias, -100.0)
    return model


def norm_model(momentum: float | None = 0.1) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(), nn.Linear(32, 4))


def dropping(dropout: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), dropout, nn.Linear(64, 4))


class Attends(nn.Module):
    """Attention whose dropout does not know of modes, as in many copies of a famous file."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.out(functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1)[:, 0])


def detached(model: Wrapped, x: Tensor) -> Tensor:
    return x.argmax(-1, keepdim=True) + 0.0


def only_in_training(model: Wrapped, x: Tensor) -> Tensor:
    return 5 * x - 1 if model.training else x


BROKEN: dict[str, tuple[str, Callable[[], Case]]] = {
    "large head": ("initial-loss", lambda: classifier(large_head())),
    "raw pixels": ("initial-loss", lambda: classifier(net(), scale=300.0)),
    "not a number": ("initial-loss", lambda: regression(net(1), lambda out, y: (out - 100).log().mean())),
    "prices in dollars": ("initial-loss", lambda: regression(net(1), targets=lambda y: 250_000 + 80_000 * y)),
    "years": ("initial-loss", lambda: regression(net(1), targets=lambda y: 2000 + y)),
    "outputs far too large": ("initial-loss", lambda: regression(Wrapped(net(1), after=lambda m, x: 1000 * x))),
    "softmax before cross-entropy, learnt": ("overfit-one-batch", lambda: classifier(net(4, nn.Softmax(-1)))),
    "relu at the end": ("overfit-one-batch", lambda: regression(net(1, nn.ReLU()), targets=lambda y: -y.abs())),
    "adapter that learns nothing": ("overfit-one-batch", lambda: classifier(Adapted(learns=False))),
    "input that is not used, learnt": (
        "overfit-one-batch",
        lambda: classifier(Wrapped(net(), before=lambda m, x: torch.zeros_like(x))),
    ),
    "zeroed input": ("uses-its-input", lambda: classifier(Wrapped(net(), before=lambda m, x: 0 * x))),
    "fresh noise for input": (
        "uses-its-input",
        lambda: classifier(Wrapped(net(), before=lambda m, x: torch.ones_like(x))),
    ),
    "dead units": ("uses-its-input", lambda: classifier(dead())),
    "tokens that are overwritten": (
        "uses-its-input",
        lambda: Case(
            Wrapped(nn.Sequential(nn.Embedding(29, 8), nn.Linear(8, 29)), before=lambda m, x: x * 0),
            lambda out, y: functional.cross_entropy(out.transpose(1, 2), y),
            text(),
        ),
    ),
    "one input in the place of another": ("uses-its-input", lambda: two_inputs(lambda m, a, b: m.one(a) + m.two(a))),
    "tanh before cross-entropy": ("loss-misuse", lambda: classifier(net(4, nn.Tanh()))),
    "noise on the inputs": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), before=lambda m, x: x + 0.5 * torch.randn_like(x))),
    ),
    "dropout by hand": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), after=lambda m, x: x * (torch.rand(x.shape) > 0.2))),
    ),
    "softmax before cross-entropy": ("loss-misuse", lambda: classifier(net(4, nn.Softmax(-1)))),
    "softmax by hand": (
        "loss-misuse",
        lambda: classifier(Wrapped(net(), after=lambda m, x: x.exp() / x.exp().sum(-1, keepdim=True))),
    ),
    "sigmoid before bce with logits": ("loss-misuse", lambda: binary(net(1, nn.Sigmoid()), nn.BCEWithLogitsLoss())),
    "log-softmax before bce with logits": (
        "loss-misuse",
        lambda: Case(net(4, nn.LogSoftmax(-1)), nn.BCEWithLogitsLoss(), (torch.randn(8, 8), torch.eye(4).repeat(2, 1))),
    ),
    "nll of scores": ("loss-misuse", lambda: classifier(net(), functional.nll_loss)),
    "nll of probabilities": ("loss-misuse", lambda: classifier(net(4, nn.Softmax(-1)), functional.nll_loss)),
    "kl of probabilities": (
        "loss-misuse",
        lambda: Case(
            net(4, nn.Softmax(-1)),
            nn.KLDivLoss(reduction="batchmean"),
            (torch.randn(8, 8), torch.randn(8, 4).softmax(-1)),
        ),
    ),
    "softmax over the samples": ("loss-misuse", lambda: classifier(net(4, nn.LogSoftmax(0)), functional.nll_loss)),
    "targets without their dimension": ("loss-misuse", lambda: regression(net(1), shape=(16,))),
    "bce is broadcast": (
        "loss-misuse",
        lambda: regression(net(1), lambda out, y: (out - y).abs().mean(), shape=(16,)),
    ),
    "one class": (
        "loss-misuse",
        lambda: Case(net(1), nn.CrossEntropyLoss(), (torch.randn(8, 8), torch.zeros(8, dtype=torch.long))),
    ),
    "argmax on the way": ("loss-misuse", lambda: regression(Wrapped(net(4), after=detached))),
    "dropout that does not know of modes": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), before=lambda m, x: functional.dropout(x, 0.2))),
    ),
    "dropout in attention": ("train-eval-difference", lambda: classifier(Attends())),
    "scaled in training only": ("train-eval-difference", lambda: classifier(Wrapped(net(), before=only_in_training))),
    "negated in eval mode": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), after=lambda m, x: x if m.training else -x)),
    ),
    "dropout of nearly all": ("train-eval-difference", lambda: classifier(dropping(nn.Dropout(0.98)))),
    "share to keep for share to drop": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), before=lambda m, x: functional.dropout(x, 0.9, m.training))),
    ),
    "momentum of another framework": ("train-eval-difference", lambda: classifier(norm_model(0.99))),
}


class TwoInputs(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.one, self.two, self.function = nn.Linear(8, 4), nn.Linear(8, 4), function

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return self.function(self, one, two)


def two_inputs(function: Any) -> Case:
    one, labels = classes((8,), 4, 16)
    case = Case(TwoInputs(function), nn.CrossEntropyLoss(), (one, torch.randn(16, 8), labels))
    nn.init.zeros_(case.model.two.weight)
    return case


class Drawn(nn.Linear):
    """Weights that are drawn anew for each pass, with a spread that is learnt."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.spread = nn.Parameter(torch.full((4, 8), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight + self.spread * torch.randn_like(self.weight)
        return functional.linear(x, weight, self.bias)


def unscaled() -> Case:
    """Columns of other scales, which a norm takes up as soon as it learns."""
    x = torch.randn(32, 3) * torch.tensor([1.0, 50.0, 3000.0])
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    return Case(model, nn.MSELoss(), (x, torch.randn(32, 1)))


LOOK_ALIKES: dict[str, tuple[str, Callable[[], Case]]] = {
    "columns of other scales into a norm": ("initial-loss", unscaled),
    "second input behind a gate at zero": ("uses-its-input", lambda: two_inputs(lambda m, a, b: m.one(a) + m.two(b))),
    "second input in training only": (
        "uses-its-input",
        lambda: two_inputs(lambda m, a, b: m.one(a) + (b[:, :4] if m.training else 0)),
    ),
    "tanh that is scaled": ("loss-misuse", lambda: classifier(Wrapped(net(4, nn.Tanh()), after=lambda m, x: 10 * x))),
    "weights that are drawn": ("train-eval-difference", lambda: classifier(Drawn())),
    "noise in training": (
        "train-eval-difference",
        lambda: classifier(Wrapped(net(), before=lambda m, x: x + 0.1 * torch.randn_like(x) if m.training else x)),
    ),
    "a model that has learnt": ("initial-loss", lambda: classifier(trained())),
    "summed loss": ("initial-loss", lambda: classifier(net(), nn.CrossEntropyLoss(reduction="sum"))),
    "temperatures in kelvin": ("initial-loss", lambda: regression(net(1), targets=lambda y: 290 + 10 * y)),
    "mean that is taken outside": (
        "initial-loss",
        lambda: classifier(net(), lambda out, y: functional.cross_entropy(out, y, reduction="none").mean()),
    ),
    "loss of several terms": (
        "initial-loss",
        lambda: classifier(net(), lambda out, y: functional.cross_entropy(out, y) + 50 + out.square().mean()),
    ),
    "equal inputs, different labels": ("overfit-one-batch", lambda: contradictory()),
    "dropout": ("overfit-one-batch", lambda: classifier(net(4, nn.Identity()).append(nn.Dropout(0.2)))),
    "batch norm": ("overfit-one-batch", lambda: classifier(norm_model())),
    "a head on layers that know nothing": ("overfit-one-batch", lambda: classifier(Adapted(learns=True))),
    "too few weights": ("overfit-one-batch", lambda: regression(nn.Linear(8, 1))),
    "softmax before squared error": (
        "loss-misuse",
        lambda: Case(net(4, nn.Softmax(-1)), nn.MSELoss(), (torch.randn(8, 8), torch.eye(4).repeat(2, 1))),
    ),
    "log-softmax twice": ("loss-misuse", lambda: classifier(net(4, nn.LogSoftmax(-1)))),
    "log-softmax and kl": (
        "loss-misuse",
        lambda: Case(
            net(4, nn.LogSoftmax(-1)),
            nn.KLDivLoss(reduction="batchmean"),
            (torch.randn(8, 8), torch.randn(8, 4).softmax(-1)),
        ),
    ),
    "targets as shares of classes": (
        "loss-misuse",
        lambda: Case(net(), nn.CrossEntropyLoss(), (torch.randn(8, 8), torch.rand(8, 4).softmax(-1))),
    ),
    "batch norm in both modes": ("train-eval-difference", lambda: classifier(norm_model())),
    "strong dropout": ("train-eval-difference", lambda: classifier(dropping(nn.Dropout(0.7)))),
    "batch norm, mean of all": ("train-eval-difference", lambda: classifier(norm_model(None))),
    "probabilities in eval mode": (
        "train-eval-difference",
        lambda: classifier(net(4).append(nn.Dropout(0.5))),
    ),
    "auxiliary head in training": ("train-eval-difference", lambda: classifier(TwoHeads(), two_losses)),
}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.trunk(x).relu()
        return (self.one(x), self.two(x)) if self.training else self.one(x)


def two_losses(outputs: Any, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs[0], y) + 0.4 * functional.cross_entropy(outputs[1], y)


def trained() -> nn.Module:
    model = net()
    x, y = classes((8,), 4, 16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


class Adapted(nn.Module):
    """A small change of frozen layers: too small for all samples, and none at all where it is rounded."""

    def __init__(self, learns: bool) -> None:
        super().__init__()
        self.frozen, self.adapter, self.learns = net().requires_grad_(False), nn.Linear(8, 4), learns

    def forward(self, x: Tensor) -> Tensor:
        change = self.adapter(x).tanh()
        return self.frozen(x) + 0.5 * (change if self.learns else change.round())


def contradictory() -> Case:
    x = torch.randn(2, 8).repeat_interleave(2, 0)
    return Case(net(), nn.CrossEntropyLoss(), (x, torch.tensor([0, 1, 2, 2])))


@pytest.mark.parametrize(("check", "make"), BROKEN.values(), ids=BROKEN)
def test_broken_fails(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) == "failed"


@pytest.mark.parametrize(("check", "make"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_look_alike_does_not_fail(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    case = make()
    given = checkup(case.model, case.loss_fn, case.batch, case.optimizer, select=[check])[check]
    assert given.status != "failed", given
    assert "could not be done" not in given.message


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_sound_does_not_fail(make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    case = make()
    names = [kind.name for kind in CHECKS if kind.code >= FROM_HERE and kind.name not in SLOW]
    given = checkup(case.model, case.loss_fn, case.batch, case.optimizer, select=names, **(case.more or {}))
    assert [str(result) for result in given.results if result.status == "failed"] == []
    assert [str(result) for result in given.results if "could not be done" in result.message] == []


@pytest.mark.parametrize("check", SLOW[:2])
@pytest.mark.parametrize("name", ["mlp with dropout", "nanoGPT", "resnet, label smoothing", "autoencoder"])
def test_sound_learns(name: str, check: str) -> None:
    torch.manual_seed(0)
    assert status(check, SOUND[name]()) != "failed"


@pytest.mark.parametrize(
    ("vocabulary", "tokens"),
    [(29, 16), (65, 17)],  # as many scores as classes would look like those of each sample against each
)
def test_long_sequences_are_cut_where_time_is_short(vocabulary: int, tokens: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocabulary, 32), nn.Linear(32, vocabulary))
    batch = text(4, 48, vocabulary)
    loss = lambda scores, targets: functional.cross_entropy(scores.flatten(0, 1), targets.flatten())  # noqa: E731
    name = "overfit-one-batch"
    given = checkup(model, loss, batch, select=[name], thresholds={name: {"seconds": 1e-6}})[name]
    assert f"on 4 samples of {tokens} tokens" in given.message, given


def _with_state(x: Tensor, state: Tensor) -> Tensor:
    return x + 0 * state


def _with_prototypes(x: Tensor, prototypes: Tensor) -> Tensor:
    return x + 0 * prototypes


def _with_hidden_state(x: Tensor, hidden_state: Tensor) -> Tensor:
    return x + 0 * hidden_state


@pytest.mark.parametrize(
    ("mix", "seen"), [(_with_state, "failed"), (_with_prototypes, "failed"), (_with_hidden_state, "passed")]
)
def test_an_input_may_be_without_effect_if_its_name_says_so(mix: Callable[..., Tensor], seen: str) -> None:
    one, labels = classes((8,), 8, 16)
    model = nn.Sequential(nn.Linear(8, 8))
    model.forward = lambda *given: nn.Sequential.forward(model, mix(*given))  # type: ignore[method-assign]
    model.forward.__signature__ = inspect.signature(mix)  # type: ignore[attr-defined]
    given = (one, torch.randn(16, 8)), labels
    assert checkup(model, nn.CrossEntropyLoss(), given, select=["uses-its-input"])["uses-its-input"].status == seen
