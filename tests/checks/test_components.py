"""The eight component tests: silent on sound models, and each finds what it is for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.checks import attending, sound
from tests.checks.attending import ByHand, Decoder, RMSNorm, decoder, encoder, positionwise, vit
from tests.checks.sound import GPT, Case, classes, text
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.checks.checkup import Checkup, checkup
from torchdoctor.checks.nested import first
from torchdoctor.clinic.data import Corpus
from torchdoctor.clinic.patient import Patient, Recipe

EIGHT = tuple(f"CK0{number}" for number in range(1, 9))
SOUND = {**sound.SOUND, **attending.SOUND}


def examined(make: Callable[[], Case], *, select: tuple[str, ...] = EIGHT) -> Checkup:
    torch.manual_seed(0)
    case = make()
    return checkup(case.model, case.loss_fn, case.batch, case.optimizer, select=select, **(case.more or {}))


@pytest.mark.parametrize("name", SOUND)
def test_sound_models_pass(name):
    result = examined(SOUND[name])
    assert not result.failed, result
    assert not [item for item in result.skipped if "could not be done" in item.message], result


def test_the_patient_passes_all_eight():
    corpus = Corpus("To be, or not to be, that is the question. " * 200)
    patient = Patient(Recipe.named("tiny"), corpus)
    result = checkup(patient.model, None, patient._draw(), patient.optimizer, select=EIGHT)
    assert [item.status for item in result.results] == ["passed"] * 8, result


# ── broken ones ──────────────────────────────────────────────────────────────────────────────────────────────────


def classifier(*layers: nn.Module, features: tuple[int, ...] = (12,), count: int = 4) -> Case:
    return Case(nn.Sequential(*layers), nn.CrossEntropyLoss(), classes(features, count))


def initialized(fill: Callable[[Tensor], object], *, only: int | None = None) -> Callable[[], Case]:
    """A plain network whose weights are filled in some way."""

    def make() -> Case:
        layers = [nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
        for place in (0, 2, 4) if only is None else (only,):
            fill(layers[place].weight)
            nn.init.zeros_(layers[place].bias)
        return classifier(*layers)

    return make


class OwnMatrix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(400, 32))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def poisoned() -> Case:
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[1].running_var[3] = math.nan
    return Case(model, nn.CrossEntropyLoss(), classes((12,), 4))


class ConstantLSTM(nn.Module):
    """Gates differ, units do not."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


INITIALIZATION = {
    "constant recurrent layer": lambda: Case(ConstantLSTM(), nn.CrossEntropyLoss(), classes((5, 6), 3)),
    "NaN": initialized(lambda weight: nn.init.constant_(weight, math.nan), only=2),
    "infinite": initialized(lambda weight: weight.data[0].fill_(math.inf), only=2),
    "NaN in a running statistic": poisoned,
    "zeros": initialized(nn.init.zeros_),
    "a constant": initialized(lambda weight: nn.init.constant_(weight, 0.1)),
    "one constant layer among constant neighbours": initialized(lambda weight: nn.init.ones_(weight)),
    "standard normal": initialized(lambda weight: nn.init.normal_(weight, std=5.0)),
    "tiny": initialized(lambda weight: nn.init.normal_(weight, std=1e-4)),
    "a matrix of torch.randn": lambda: classifier(OwnMatrix(), nn.ReLU(), nn.Linear(32, 4), features=(400,)),
}


class Squeezed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(8, -1))


class FixedMask(Decoder):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + torch.zeros(1, 16, 1).expand(tokens.shape[0], 16, 1)


class Flat(Decoder):
    """Returns all positions in one row, whatever their number, for one sample."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).squeeze(0)


SHAPES = {
    "wrong width": lambda: classifier(nn.Linear(11, 4)),
    "loss of other shapes": lambda: Case(nn.Linear(12, 4), nn.NLLLoss(), (torch.randn(8, 12), torch.randn(8, 5))),
    "bare squeeze": lambda: Case(Squeezed(nn.Linear(12, 1)), nn.MSELoss(), (torch.randn(8, 12), torch.randn(8))),
    "a fixed number of samples in view": lambda: Case(
        FixedBatch(), nn.CrossEntropyLoss(), (torch.randn(8, 1, 6, 6), torch.arange(8) % 3)
    ),
    "a fixed length": lambda: Case(FixedMask(), positionwise, text()),
    "squeezed samples": lambda: Case(Flat(), positionwise, text()),
    "table shorter than the context": lambda: decoder(rows=20),
}


class Cut(nn.Module):
    """Something between two layers through which no gradient comes."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(12, 16), nn.Linear(16, 4), between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(x)))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.forgotten = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.first(x)))


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = functional.relu(self.body(x))
        return self.head(x)


class DeadUnits(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        nn.init.constant_(self[0].bias, -100.0)


def root(x: Tensor) -> Tensor:
    return x + (x - x.detach()).abs().sqrt()


def frozen() -> Case:
    case = classifier(nn.Linear(12, 4))
    case.model.requires_grad_(False)
    return case


def deep(activation: type[nn.Module], depth: int) -> Callable[[], Case]:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), activation())]
    return lambda: classifier(nn.Linear(12, 16), activation(), *layers, nn.Linear(16, 4))


def in_place(x: Tensor) -> Tensor:
    gate = x.sigmoid()
    x = x * gate
    gate += 0.1
    return x * gate


FLOW = {
    "in place before it is needed": lambda: Case(Cut(in_place), nn.CrossEntropyLoss(), classes((12,), 4)),
    "state with its graph": lambda: Case(Stateful(), nn.CrossEntropyLoss(), classes((5, 6), 3, 8)),
    "detach": lambda: Case(Cut(Tensor.detach), nn.CrossEntropyLoss(), classes((12,), 4)),
    "numpy": lambda: Case(
        Cut(lambda x: torch.from_numpy(x.detach().numpy())), nn.CrossEntropyLoss(), classes((12,), 4)
    ),
    "round": lambda: Case(Cut(torch.round), nn.CrossEntropyLoss(), classes((12,), 4)),
    "no_grad around the body": lambda: Case(NoGrad(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "forgotten layer": lambda: Case(Unused(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "loss without graph": lambda: Case(
        nn.Linear(12, 4), lambda out, y: functional.cross_entropy(out.detach(), y), classes((12,), 4)
    ),
    "all frozen": frozen,
    "dead units": lambda: Case(DeadUnits(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "root at zero": lambda: Case(Cut(root), nn.CrossEntropyLoss(), classes((12,), 4)),
    "twelve sigmoids": deep(nn.Sigmoid, 12),
    "thirty plain layers": deep(nn.ReLU, 30),
}


class Hoarder(nn.Module):
    """Keeps every output, for a picture that nobody draws."""

    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self.body, self.kept, self.most = nn.Linear(12, 4), [], most

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        self.kept = [*self.kept, out][-self.most :] if self.most else [*self.kept, out]
        return out


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head, self.state = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 3), None

    def forward(self, x: Tensor) -> Tensor:
        out, self.state = self.rnn(x, self.state)
        return self.head(out[:, -1])


MEMORY = {
    "keeps every output": lambda: Case(Hoarder(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "hidden state with its graph": lambda: Case(Stateful(), nn.CrossEntropyLoss(), classes((5, 6), 3, 8)),
    "more than was allowed": lambda: Case(
        nn.Linear(300, 300), nn.MSELoss(), (torch.ones(8, 300), torch.ones(8, 300)), None, {"memory": 100_000}
    ),
}


class Through(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], inputs: int = 12) -> None:
        super().__init__()
        self.body, self.function = nn.Linear(inputs, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body(x))


class Standardized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))


def naive_softmax(x: Tensor) -> Tensor:
    return (x.exp() / x.exp().sum(-1, keepdim=True) + 1e-9).log()


def bad_batch() -> Case:
    case = classifier(nn.Linear(12, 4))
    case.batch[0][3, 2] = math.nan
    return case


class Steep(torch.autograd.Function):
    """A derivative that grows on the way back, and shrinks again."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * 1e30 / 1e30


def ladder() -> Case:
    layers = [nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 4)]
    for layer, scale in zip(layers, (1e3, 1e3, 1e-6), strict=True):
        layer.weight.data.mul_(scale)
    return classifier(*layers)


def cost_by_hand(scores: Tensor, labels: Tensor) -> Tensor:
    shares = scores.exp() / scores.exp().sum(1, keepdim=True)
    return -shares.gather(1, labels[:, None]).log().mean()


STABILITY = {
    "softmax by hand in the loss": lambda: Case(nn.Linear(12, 4), cost_by_hand, classes((12,), 4)),
    "beyond float16": lambda: Case(Through(lambda x: x * 3e5 / 3e5), nn.CrossEntropyLoss(), classes((12,), 4)),
    "layers beyond float16": ladder,
    "gradients beyond float16": lambda: Case(Through(Steep.apply), nn.CrossEntropyLoss(), classes((12,), 4)),
    "division by the spread of zeros": lambda: Case(Standardized(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "softmax by hand": lambda: Case(Through(naive_softmax), nn.NLLLoss(), classes((12,), 4)),
    "NaN in the batch": bad_batch,
    "log of what may be negative": lambda: Case(Through(torch.log), nn.CrossEntropyLoss(), classes((12,), 4)),
    "variance by cancellation": lambda: Case(
        Through(lambda x: 1e4 * (((x + 1e3) ** 2) - (x + 1e3).mean(1, keepdim=True) ** 2) ** 0.5),
        nn.CrossEntropyLoss(),
        classes((12,), 4),
    ),
}

ATTENTION = {
    "no mask": lambda: decoder(mask="none"),
    "mask one off": lambda: decoder(mask="off by one"),
    "mask upside down": lambda: decoder(mask="the past"),
    "everything hidden": lambda: decoder(mask="all"),
    "mask after the softmax": lambda: decoder(late_mask=True),
    "softmax over the queries": lambda: decoder(dim=-2),
    "softmax over the heads": lambda: decoder(dim=1),
    "scores too large": lambda: decoder(loud=True, layers=2),
    "dead head": lambda: decoder(dead_head=True),
    "head without values": lambda: decoder(silent_head=True),
    "head without values, torch's own": lambda: vit(silent=8),
    "head without values, fused": lambda: silent_gpt(),
    "padding in the attention": lambda: encoder(masks=False),
    "padding in the mean": lambda: encoder(pools_padding=True),
}

POSITIONS = {
    "encoder without": lambda: encoder(positions=False),
    "decoder without": lambda: decoder("none"),
    "table that is not used": lambda: decoder("unused"),
    "sinusoids that are not added": lambda: decoder("forgotten sinusoids"),
    "sinusoids of one position": lambda: decoder("flat sinusoids"),
    "constant table": lambda: decoder("constant"),
    "table shorter than the context": lambda: decoder(rows=20),
}


class LayerNorm(nn.Module):
    """By hand, and without the root."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5) + self.bias


def normed(*norm: nn.Module) -> Callable[[], Case]:
    return lambda: classifier(nn.Linear(12, 16), *norm, nn.ReLU(), nn.Linear(16, 4))


def silent_gpt() -> Case:
    model = GPT()
    for name, parameter in model.named_parameters():
        if "qkv" in name:
            parameter.data[-parameter.shape[0] // 6 :] = 0
    return Case(model, None, text())


def statistics(mean: float, variance: float, *, momentum: float = 0.1, steps: int = 1000) -> Callable[[], Case]:
    """A BatchNorm that comes with running statistics; those of the batch are about 0 and 0.3."""

    def make() -> Case:
        norm = nn.BatchNorm1d(16, momentum=momentum)
        norm.running_mean.fill_(mean), norm.running_var.fill_(variance), norm.num_batches_tracked.fill_(steps)
        return normed(norm)()

    return make


NORMS = {
    "statistics of larger data": statistics(1e3, 1e6, momentum=0.001, steps=0),
    "statistics of smaller data": statistics(0.0, 1e-6),
    "statistics around another mean": statistics(300.0, 1.0),
    "eps of one": normed(nn.LayerNorm(16, eps=1.0)),
    "eps of zero": normed(nn.LayerNorm(16, eps=0.0)),
    "BatchNorm that never updates": normed(nn.BatchNorm1d(16, momentum=0.0)),
    "groups of one": normed(nn.GroupNorm(16, 16)),
    "norm over one number": normed(nn.Unflatten(1, (16, 1)), nn.LayerNorm(1), nn.Flatten()),
    "layer norm without the root": normed(LayerNorm(16)),
    "rms norm without the root": normed(RMSNorm(16, power=1.0)),
}

BROKEN = {
    **{("CK01", name): make for name, make in INITIALIZATION.items()},
    **{("CK02", name): make for name, make in SHAPES.items()},
    **{("CK03", name): make for name, make in FLOW.items()},
    **{("CK04", name): make for name, make in MEMORY.items()},
    **{("CK05", name): make for name, make in STABILITY.items()},
    **{("CK06", name): make for name, make in ATTENTION.items()},
    **{("CK07", name): make for name, make in POSITIONS.items()},
    **{("CK08", name): make for name, make in NORMS.items()},
}


@pytest.mark.parametrize(("code", "name"), BROKEN, ids=lambda value: value)
def test_broken_models_are_found(code, name):
    found = examined(BROKEN[code, name], select=(code,))[code]
    assert found.status == "failed", found
    assert found.advice and found.severity


# ── look-alikes ──────────────────────────────────────────────────────────────────────────────────────────────────


class Gated(nn.Module):
    """Residual branches behind gates that begin at zero, or nearly so."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 16), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.gates = nn.ParameterList(nn.Parameter(torch.full((16,), gate)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            x = x + gate * functional.relu(layer(x))
        return self.last(x)


class Modulated(nn.Module):
    """A norm without weights of its own, whose scale, shift and gate come from layers that begin at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.norm = nn.LayerNorm(16, elementwise_affine=False)
        self.scale, self.shift, self.gate = (nn.Linear(12, 16) for _ in range(3))
        for layer in (self.scale, self.shift, self.gate):
            nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        changed = self.body(self.norm(hidden) * (1 + self.scale(x)) + self.shift(x))
        return self.last(hidden + self.gate(x) * changed)


class Teacher(nn.Module):
    """A copy that follows by averaging, and that nobody froze."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            target = self.teacher(x)
        return self.student(x), target


class Quantized(nn.Module):
    """A codebook: one part of its loss goes back to the codes, another to the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.code, self.decode = nn.Linear(10, 4), nn.Embedding(16, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x)
        q = self.code(torch.cdist(z, self.code.weight).argmin(1))
        pull = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
        return self.decode(z + (q - z).detach()), pull


def faint() -> nn.Module:
    """A signal whose variance is below the eps of the norm that it enters, as in some networks for phones."""
    layer = nn.Linear(12, 16)
    nn.init.normal_(layer.weight, std=0.003)
    return nn.Sequential(layer, nn.BatchNorm1d(16, eps=1e-3), nn.ReLU(), nn.Linear(16, 4))


def warmed(scale: float, steps: int) -> Case:
    """Running statistics after a few steps, still on their way from 0 and 1 to those of the data."""
    x, y = classes((12,), 4)
    model = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 4))
    for _ in range(steps):
        model(x * scale + scale)
    return Case(model, nn.CrossEntropyLoss(), (x * scale + scale, y))


class Shares(nn.Module):
    """Probabilities for each place of a square picture, which no attention looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).softmax(1)


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 1)

    def forward(self, users: Tensor) -> Tensor:
        return self.head(self.users(users))


ALIKE = {
    "softmax over classes": lambda: Case(
        Shares(),
        lambda out, y: functional.nll_loss((out + 1e-7).log(), y),
        (torch.randn(4, 1, 8, 8), torch.randint(3, (4, 8, 8))),
    ),
    "sparse gradients": lambda: Case(Sparse(), nn.MSELoss(), (torch.arange(16), torch.randn(16, 1))),
    "statistics of similar data": statistics(1.0, 3.0),
    "statistics of a first step, small data": lambda: warmed(1e-3, 1),
    "statistics of a few steps, large data": lambda: warmed(300.0, 3),
    "power of large numbers": lambda: Case(
        Through(lambda x: (1e3 * x) * ((1e3 * x) ** 2).mean(-1, keepdim=True).rsqrt()),
        nn.CrossEntropyLoss(),
        classes((12,), 4),
    ),
    "inputs beyond float16": lambda: Case(
        nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 4)),
        nn.CrossEntropyLoss(),
        (1e6 * classes((12,), 4)[0], classes((12,), 4)[1]),
    ),
    "layers of attention at zero": lambda: vit(silent=16),
    "codebook": lambda: Case(
        Quantized(), lambda out, y: functional.mse_loss(out[0], y) + out[1], (torch.randn(16, 10),) * 2
    ),
    "faint signal into a norm": lambda: Case(faint(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "gates at zero": lambda: Case(Gated(0.0), nn.CrossEntropyLoss(), classes((12,), 4)),
    "gates near zero": lambda: Case(Gated(1e-6), nn.CrossEntropyLoss(), classes((12,), 4)),
    "modulation from zero": lambda: Case(Modulated(), nn.CrossEntropyLoss(), classes((12,), 4)),
    "teacher": lambda: Case(
        Teacher(), lambda out, y: functional.mse_loss(*out) + functional.cross_entropy(out[0], y), classes((12,), 4)
    ),
    "keeps its latest output": lambda: Case(Hoarder(1), nn.CrossEntropyLoss(), classes((12,), 4)),
    "ten plain layers": deep(nn.ReLU, 10),
    "a few sigmoids": deep(nn.Sigmoid, 3),
    "small head": initialized(lambda weight: nn.init.normal_(weight, std=1e-5), only=4),
    "encoder that sees both ways": lambda: Case(ByHandTagger(), positionwise, (text()[0], text()[0] % 5)),
    "fixed features": lambda: classifier(fixed_features(), nn.ReLU(), nn.Linear(64, 4)),
    "noise that is other in bfloat16": lambda: shortened(sound.SOUND["vae"](), 8),
}


def shortened(case: Case, samples: int) -> Case:
    case.batch = first(case.batch, samples, 32)
    return case


class ByHandTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position, self.head = nn.Embedding(29, 16), nn.Embedding(16, 16), nn.Linear(16, 5)
        self.attention = ByHand(mask="none")

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attention(self.token(tokens) + self.position(torch.arange(tokens.shape[1]))))


def fixed_features() -> nn.Module:
    """Random features of a large scale, which are not trained."""
    layer = nn.Linear(12, 64)
    nn.init.normal_(layer.weight, std=10.0)
    return layer.requires_grad_(False)


@pytest.mark.parametrize("name", ALIKE)
def test_look_alikes_pass(name):
    result = examined(ALIKE[name])
    assert not result.failed, result
    assert not [item for item in result.results if "could not be done" in item.message], result


def test_what_one_check_found_keeps_others_from_guessing():
    result = examined(FLOW["in place before it is needed"], select=("CK03", "CK04", "CK05"))
    assert result["CK03"].status == "failed"
    assert "see gradient-flow" in result["CK05"].message


class InAList(nn.Module):
    """Layers that no `.to(device)` finds; a batch on another device meets them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 4)
        self.blocks = [nn.Linear(12, 12, device="meta")]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[0](x))


def test_what_stayed_behind_on_another_device_is_named():
    result = examined(lambda: Case(InAList(), nn.CrossEntropyLoss(), classes((12,), 4)), select=("forward-shapes",))
    found = result["forward-shapes"]
    assert found.status == "failed" and found.where == ("blocks",) and "ModuleList" in found.advice


class Graph(nn.Module):
    """A net on one graph, whose edges it keeps: some of the nodes are no batch."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(nodes))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.edges @ x)


def test_the_nodes_of_a_graph_are_not_samples():
    batch = classes((12,), 4)
    result = examined(lambda: Case(Graph(len(batch[1])), nn.CrossEntropyLoss(), batch), select=("forward-shapes",))
    assert result["forward-shapes"].status == "passed", result
