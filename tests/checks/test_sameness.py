"""Checks that compute the same thing twice: samples, positions, seeds, parts, checkpoints and compilers must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.checks.sound import GPT, SOUND, Attention, Bert, Case, classes, status, text
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.checks.checkup import checkup


class Module(nn.Module):
    """A model in one line: a function of the model and its input."""

    def __init__(self, function: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def classifier(function: Callable[..., Tensor], features: tuple[int, ...] = (6,), **layers: nn.Module) -> Case:
    return Case(Module(function, **layers), nn.CrossEntropyLoss(), classes(features, 3, 12))


def language_model(function: Callable[..., Tensor], **layers: nn.Module) -> Case:
    layers = {"token": nn.Embedding(29, 16), "head": nn.Linear(16, 29), **layers}
    loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten())  # noqa: E731
    return Case(Module(function, **layers), loss, text())


def gpt(change: Callable[[GPT], None]) -> Case:
    model = GPT()
    change(model)
    return Case(model, None, text())


class Looking(Attention):
    """Attention with a mask of one's own; `ahead` places may be seen."""

    ahead = 0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.ahead)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def looking(ahead: int) -> Case:
    def change(model: GPT) -> None:
        for block in model.blocks:
            block.attention.__class__ = Looking
            block.attention.ahead = ahead

    return gpt(change)


class ShowsTargets(GPT):
    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits, loss = super().forward(tokens, targets)
        return (logits, loss) if targets is None else (logits + functional.one_hot(targets, 29), loss)


def mixing_norm() -> nn.Module:
    return Module(lambda self, x: self.out((x - x.mean(0)) / (x.std(0) + 1e-5)), out=nn.Linear(6, 3))


secret = torch.Generator()


class Carries(nn.Module):
    """Goes on with the hidden state of the pass before."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head, self.state = nn.GRUCell(6, 8), nn.Linear(8, 3), None

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 8) if self.state is None else self.state
        self.state = self.cell(x, state).detach()
        return self.head(self.cell(x, state))


class HiddenLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.rest = [nn.Linear(8, 8)]
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.rest:
            if self.training:  # as an optimizer that got hold of it would
                layer.weight.data.mul_(1.1)
            x_ = layer(self.first(x).relu())
        return self.head(x_)


class RunningMean(nn.Module):
    def __init__(self, registered: bool) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        if registered:
            self.register_buffer("mean", torch.zeros(6))
        else:
            self.mean = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0) + 0.1
        return self.head(x - self.mean)


class Beside(nn.Module):
    """Multiplies by something that it keeps in a plain attribute."""

    def __init__(self, make: Callable[[], Any], registered: bool = False) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        if registered:
            self.register_buffer("kept", make())
        else:
            self.kept = make()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept[0] if isinstance(self.kept, list) else self.kept
        return self.head(self.first(x) * kept.flatten()[:8] + kept.sum())


def beside(make: Callable[[], Any], registered: bool = False) -> Case:
    return Case(Beside(make, registered), nn.CrossEntropyLoss(), classes((6,), 3))


class Handed(nn.Module):
    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features, self.head = features, nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.features)


def handed() -> Case:
    return Case(Handed(torch.randn(12)), nn.CrossEntropyLoss(), classes((12,), 3))


def cosines(size: int) -> Tensor:
    places = torch.arange(size) + 0.5
    return (torch.pi / size * places[None] * torch.arange(size)[:, None]).cos()


CONSTANTS: dict[str, Callable[[], Tensor]] = {
    "ones": lambda: torch.ones(8),
    "mask": lambda: torch.ones(8, 8).tril(),
    "range": lambda: torch.linspace(0, 1, 16),
    "positions": lambda: torch.stack(
        [torch.arange(32)[:, None] / 10_000 ** (torch.arange(8) / 8), torch.zeros(32, 8)], -1
    ).sin(),
    "rotations": lambda: 1.0 / 10_000 ** (torch.arange(0, 32, 2) / 32),
    "window": lambda: torch.hann_window(33),
    "schedule": lambda: (1 - torch.linspace(1e-4, 0.02, 100)).cumprod(0),
    "cosine transform": lambda: cosines(16),
    "means that were written down": lambda: torch.tensor([0.485, 0.456, 0.406, 0.229, 0.224, 0.225, 0.5, 0.51]),
    "normalized graph": lambda: torch.eye(8) / 3 + torch.eye(8).roll(1, 0) / 7,
}


class WrongKeys(nn.Linear):
    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        return {f"model.{name}": value for name, value in super().state_dict(*args, **kwargs).items()}


def tied(how: str) -> Case:
    model = GPT()
    if how == "copied":
        model.head.weight = nn.Parameter(model.token.weight.detach().clone())
    elif how == "overlaid":
        model.head.weight = nn.Parameter(model.token.weight.data)
    elif how == "promised":
        model.head.weight = nn.Parameter(torch.randn_like(model.token.weight) * 0.02)
        model.config = {"tie_word_embeddings": True}
    elif how == "never":
        model.head.weight = nn.Parameter(torch.randn_like(model.token.weight) * 0.02)
    return Case(model, None, text())


def loss_by(function: Callable[[Tensor, Tensor], Tensor]) -> Case:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    x = torch.randn(12, 6)
    return Case(model, function, (x, x[:, :1] * torch.arange(12.0)[:, None]))


BROKEN: dict[str, tuple[str, Callable[[], Case]]] = {
    "mean over the batch": ("batch-independence", lambda: Case(mixing_norm(), nn.CrossEntropyLoss(), classes((6,), 3))),
    "softmax over the batch": (
        "batch-independence",
        lambda: classifier(lambda m, x: m.out(x * m.gate(x).softmax(0)), out=nn.Linear(6, 3), gate=nn.Linear(6, 6)),
    ),
    "batch_first forgotten": (
        "batch-independence",
        lambda: classifier(lambda m, x: m.out(m.rnn(x)[0][:, -1]), (5, 6), rnn=nn.LSTM(6, 8), out=nn.Linear(8, 3)),
    ),
    "attention over the batch": (
        "batch-independence",
        lambda: classifier(
            lambda m, x: m.out(m.mix(x, x, x)[0].mean(1)), (5, 6), mix=nn.MultiheadAttention(6, 2), out=nn.Linear(6, 3)
        ),
    ),
    "view for transpose": (
        "batch-independence",
        lambda: classifier(lambda m, x: m.out(x.view(6, -1, 5).permute(1, 2, 0).mean(1)), (5, 6), out=nn.Linear(6, 3)),
    ),
    "head at zero hides a mean": (
        "batch-independence",
        lambda: classifier(
            lambda m, x: m.out(m.first(x - x.mean(0)).relu()) * m.gate.weight[0, 0],
            first=nn.Linear(6, 8),
            out=nn.Linear(8, 3),
            gate=_zero(nn.Linear(1, 1, bias=False)),
        ),
    ),
    "no mask": ("causal-leakage", lambda: looking(99)),
    "mask one place off": ("causal-leakage", lambda: looking(1)),
    "both directions": (
        "causal-leakage",
        lambda: language_model(
            lambda m, x: m.head(m.rnn(m.token(x))[0]), rnn=nn.LSTM(16, 8, batch_first=True, bidirectional=True)
        ),
    ),
    "convolution padded on both sides": (
        "causal-leakage",
        lambda: language_model(
            lambda m, x: m.head(m.conv(m.token(x).transpose(1, 2)).transpose(1, 2)),
            conv=nn.Conv1d(16, 16, 3, padding=1),
        ),
    ),
    "mean over time": (
        "causal-leakage",
        lambda: language_model(lambda m, x: m.head(m.token(x) - m.token(x).mean(1, keepdim=True))),
    ),
    "targets in the logits": ("causal-leakage", lambda: Case(ShowsTargets(), None, text())),
    "decoder that sees what comes": ("causal-leakage", lambda: translation(hides=False)),
    "encoder that mixes samples": ("batch-independence", lambda: translation(hides=True, mixes=True)),
    "labels among the inputs": ("causal-leakage", lambda: Case(GivenLabels(3.0), None, classes((6,), 5))),
    "noise of its own": (
        "determinism",
        lambda: classifier(lambda m, x: m.out(x + torch.rand(x.shape, generator=secret)), out=nn.Linear(6, 3)),
    ),
    "state carried over": ("determinism", lambda: Case(Carries(), nn.CrossEntropyLoss(), classes((6,), 3))),
    "divided by the batch's spread": (
        "accumulation-equals-batch",
        lambda: loss_by(lambda out, y: (out - y).square().mean() / (out - y).square().std().detach()),
    ),
    "divided by its largest": (
        "accumulation-equals-batch",
        lambda: loss_by(lambda out, y: (out - y).square().mean() / (out - y).abs().amax().detach()),
    ),
    "batch statistics in the model": (
        "accumulation-equals-batch",
        lambda: Case(mixing_norm(), nn.CrossEntropyLoss(), (torch.randn(12, 6).cumsum(0), torch.arange(12) % 3)),
    ),
    "layers in a list": (
        "state-dict-round-trip",
        lambda: Case(HiddenLayers(), nn.CrossEntropyLoss(), classes((6,), 3)),
    ),
    "mean in an attribute": (
        "state-dict-round-trip",
        lambda: Case(RunningMean(registered=False), nn.CrossEntropyLoss(), classes((6,), 3)),
    ),
    "random numbers in an attribute": ("state-dict-round-trip", lambda: beside(lambda: torch.randn(6, 8))),
    "random scale in a list": ("state-dict-round-trip", lambda: beside(lambda: [torch.rand(8) + 0.5])),
    "keys renamed": ("state-dict-round-trip", lambda: Case(WrongKeys(6, 3), nn.CrossEntropyLoss(), classes((6,), 3))),
    "copied head": ("tied-weights", lambda: tied("copied")),
    "head on the same memory": ("tied-weights", lambda: tied("overlaid")),
    "tied by configuration only": ("tied-weights", lambda: tied("promised")),
}


class Translation(nn.Module):
    """Reads one text and writes another."""

    def __init__(self, hides: bool, mixes: bool) -> None:
        super().__init__()
        self.hides, self.mixes = hides, mixes
        self.token, self.position, self.head = nn.Embedding(29, 16), nn.Embedding(16, 16), nn.Linear(16, 29)
        self.body = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        source, target = (self.token(x) + self.position.weight[: x.shape[1]] for x in (source, written))
        source = source - source.mean(0) if self.mixes else source
        mask = torch.ones(written.shape[1], written.shape[1], dtype=torch.bool).triu(1) if self.hides else None
        return self.head(self.body(source, target, tgt_mask=mask))


def translation(*, hides: bool, mixes: bool = False) -> Case:
    loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten())  # noqa: E731
    return Case(Translation(hides, mixes), loss, (text(length=11, seed=1)[0], *text(length=9)))


class GivenLabels(nn.Module):
    """A classifier that is given its labels: for a margin, and for the answer."""

    def __init__(self, seen: float) -> None:
        super().__init__()
        self.body, self.label, self.seen = nn.Linear(6, 5), nn.Embedding(5, 5), seen

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.body(x) - 0.3 * functional.one_hot(labels, 5) + self.seen * self.label(labels)
        return scores, functional.cross_entropy(scores, labels)


def risk(out: Tensor, y: Tensor) -> Tensor:
    """Cox's: each against those who lived longer."""
    order = y[:, 0].argsort(descending=True)
    score = out[order, 0]
    return -(score - score.logcumsumexp(0)).mean()


LOOK_ALIKES: dict[str, tuple[str, Callable[[], Case]]] = {
    "translation": ("causal-leakage", lambda: translation(hides=True)),
    "margin of the label": ("causal-leakage", lambda: Case(GivenLabels(0.0), None, classes((6,), 5))),
    "each sample against those before it": ("accumulation-equals-batch", lambda: loss_by(risk)),
    "sees itself and the past": ("causal-leakage", lambda: looking(0)),
    "masked language model": ("causal-leakage", SOUND["masked language model"]),
    "transposed and back": (
        "batch-independence",
        lambda: classifier(
            lambda m, x: m.out(m.rnn(x.transpose(0, 1))[0][-1]), (5, 6), rnn=nn.GRU(6, 8), out=nn.Linear(8, 3)
        ),
    ),
    "batch norm": (
        "batch-independence",
        lambda: classifier(lambda m, x: m.out(m.norm(x)), norm=nn.BatchNorm1d(6), out=nn.Linear(6, 3)),
    ),
    "batch norm without statistics": (
        "batch-independence",
        lambda: classifier(
            lambda m, x: m.out(m.norm(x)), norm=nn.BatchNorm1d(6, track_running_stats=False), out=nn.Linear(6, 3)
        ),
    ),
    "dropout and noise from the seed": (
        "determinism",
        lambda: classifier(lambda m, x: m.out(m.drop(x + torch.randn_like(x))), drop=nn.Dropout(), out=nn.Linear(6, 3)),
    ),
    "summed loss": ("accumulation-equals-batch", lambda: loss_by(nn.MSELoss(reduction="sum"))),
    "fixed divisor": ("accumulation-equals-batch", lambda: loss_by(lambda out, y: (out - y).square().sum() / 32)),
    "padding that is left out": ("accumulation-equals-batch", SOUND["tagger with padding"]),
    "class weights": ("accumulation-equals-batch", SOUND["unbalanced with weights"]),
    "a layer as wide as the batch": (
        "accumulation-equals-batch",
        lambda: classifier(lambda m, x: m.out(m.body(x).tanh()), body=nn.Linear(6, 32), out=nn.Linear(32, 3)),
    ),
    "mean in a buffer": (
        "state-dict-round-trip",
        lambda: Case(RunningMean(registered=True), nn.CrossEntropyLoss(), classes((6,), 3)),
    ),
    **{
        f"{name} in an attribute": ("state-dict-round-trip", lambda make=make: beside(make))
        for name, make in CONSTANTS.items()
    },
    "random numbers in a buffer": (
        "state-dict-round-trip",
        lambda: beside(lambda: torch.randn(6, 8), registered=True),
    ),
    "random numbers that are handed over": ("state-dict-round-trip", lambda: handed()),
    "weight norm": (
        "state-dict-round-trip",
        lambda: classifier(lambda m, x: m.out(x), out=nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
    ),
    "clones of one layer": ("tied-weights", lambda: Case(Bert(), *_masked())),
    "never tied": ("tied-weights", lambda: tied("never")),
    "tied": ("tied-weights", lambda: tied("really")),
}


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


def _masked() -> tuple[None, dict[str, Tensor]]:
    return None, SOUND["masked language model"]().batch


@pytest.mark.parametrize(("check", "make"), BROKEN.values(), ids=BROKEN)
def test_broken_fails(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) == "failed"


@pytest.mark.parametrize(("check", "make"), LOOK_ALIKES.values(), ids=LOOK_ALIKES)
def test_look_alike_does_not_fail(check: str, make: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    assert status(check, make()) != "failed"


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Doubles(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if torch.compiler.is_compiling() else 1)


class Rounds(nn.Linear):
    """Rounds sums that are half a number, give or take the last digit: compiled it takes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        nn.init.constant_(self.weight, 0.5), nn.init.constant_(self.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x.sign())
        return torch.round(scores + (4e-7 if torch.compiler.is_compiling() else -4e-7)) + scores


class Logs(nn.Linear):
    """Minus infinity for some entries."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (x[:, :3] > 0).float().log().clamp_min(-1e30 if self.training else -torch.inf)


@pytest.fixture
def fresh_compiler() -> None:
    """As in a process that has compiled nothing: other tests have."""
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize(
    ("kind", "expected"), [(Doubles, "failed"), (nn.Linear, "passed"), (Rounds, "passed"), (Logs, "passed")]
)
def test_compiled(kind: type[nn.Linear], expected: str) -> None:
    assert status("compile-agrees", Case(kind(6, 3), nn.CrossEntropyLoss(), classes((6,), 3))) == expected


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_one_after_the_other() -> None:
    for function in (Tensor.detach, torch.round, Tensor.detach, torch.tanh):
        model = nn.Sequential(nn.Linear(6, 8), Applies(function), nn.Linear(8, 3))
        assert status("compile-agrees", Case(model, nn.CrossEntropyLoss(), classes((6,), 3))) == "passed"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")
def test_what_the_process_has_compiled_is_not_thrown_away() -> None:
    compilations = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    model = nn.Linear(6, 3)
    theirs = torch.compile(nn.Linear(6, 3), backend=backend)
    theirs(torch.ones(2, 6))
    result = checkup(model, nn.CrossEntropyLoss(), classes((6,), 3), select=("compile-agrees",)).results[0]
    assert result.status == "skipped" and "has compiled other code" in result.message
    theirs(torch.ones(2, 6))
    assert len(compilations) == 1


def test_skips_say_why() -> None:
    reasons = {
        "clip": ("batch-independence", "compares the samples"),
        "graph network": ("batch-independence", "links samples"),
        "gan": ("batch-independence", "runs the model itself"),
        "lstm language model, time first": ("batch-independence", "time first"),
        "masked language model": ("causal-leakage", "not the inputs shifted by one"),
        "vae": ("accumulation-equals-batch", "random numbers in eval mode"),
    }
    for name, (check, words) in reasons.items():
        torch.manual_seed(0)
        case = SOUND[name]()
        result = checkup(case.model, case.loss_fn, case.batch, case.optimizer, select=[check])[check]
        assert result.status == "skipped" and words in result.message, (name, result.message)
