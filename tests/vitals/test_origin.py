"""Where a value that is not finite began: in the data, in a weight, in a module, or between two of them."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.vitals.origin import OriginSearch


class Divides(nn.Module):
    def __init__(self, by=1.0):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.inner = nn.Linear(3, 2)
        self.by = by

    def forward(self, x):
        return self.inner((x + self.shift) / self.by)


def broken(shift=0.0):
    model = Divides()
    with torch.no_grad():
        model.shift += shift
    return model


BATCH, SPOILT = torch.zeros(4, 3), torch.full((4, 3), torch.nan)


@pytest.mark.parametrize(
    ("model", "batch", "kind"),
    [
        pytest.param(Divides(by=0.0), BATCH, "between", id="zero by zero"),
        pytest.param(Divides(), SPOILT, "input", id="data"),
        pytest.param(broken(torch.nan), BATCH, "weights", id="a weight beside the layers"),
    ],
)
def test_kind(model, batch, kind):
    search = OriginSearch({"": model})
    search.arm()
    model(batch)
    assert search.disarm()["kind"] == kind


def test_all_is_finite():
    search = OriginSearch({"": (model := Divides())})
    search.arm()
    model(BATCH)
    assert search.disarm() is None


def test_a_gauge_that_does_not_apply_starts_no_search():
    """Padding at the end of every text: of the last position nothing can be said, and all is well."""
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_fn = nn.CrossEntropyLoss()
    doctor = Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True})
    seen = []
    doctor.subscribe(lambda record: seen.append(record.get("vitals", {}).get("last_position_loss", 0.0)))
    for _ in range(6):
        texts = torch.randint(1, 9, (32, 7))
        texts[:, -1] = 0
        loss = loss_fn(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
    doctor.diagnose()
    assert any(value != value for value in seen)
    assert doctor._monitor._origin_searches == 0


def broken_by_hand(frozen=False):
    """What is found of a run in which somebody writes to a bias at step 20."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))
    if frozen:
        model[2].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for step in range(40):
        if step == 20:
            with torch.no_grad():
                (model[2] if frozen else model[4]).bias.fill_(torch.nan)
        inputs = torch.randn(32, 8)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        doctor.log_loss(loss)
        optimizer.step()
    report = doctor.diagnose()
    doctor.detach()
    return next(item for item in report.symptoms if item.name == "nan-or-inf")


def test_a_broken_weight_that_does_not_learn_is_named():
    assert broken_by_hand(frozen=True).where == ("2.bias",)


def test_an_update_that_breaks_all_weights_blames_none_of_them():
    found = broken_by_hand()
    assert found.where == () and found.first_step == 20
    assert "the loss of step 20 was the first non-finite value" in found.message


def test_weights_are_told_by_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model[1].bias[0] = torch.inf
    search = OriginSearch({"": model})
    search.arm()
    model(BATCH)
    assert search.disarm() == {"module": "1", "kind": "weights", "tensors": ["1.bias"], "broken": 1, "resting": 0}


@pytest.mark.parametrize("ragged", [False, True])
def test_labels_that_a_functional_loss_leaves_out_are_not_known(ragged):
    """Padding counts neither with a loss module nor with a function that is told to leave it out."""

    def probability(compare, **given):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        doctor = Doctor(model, optimizer, settings={"quiet": True}, **given)
        seen = []
        doctor.subscribe(lambda record: seen.append(record.get("vitals", {}).get("target_probability")))
        texts = torch.randint(1, 9, (32, 7))
        texts[:, 4:] = torch.where(torch.rand(32, 3) < 0.5, 0, texts[:, 4:]) if ragged else 0
        loss = compare(model(texts[:, :-1]).transpose(1, 2), texts[:, 1:])
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
        doctor.detach()
        return next(value for value in seen if value is not None)

    module = nn.CrossEntropyLoss(ignore_index=0)
    by_function = probability(lambda output, target: nn.functional.cross_entropy(output, target, ignore_index=0))
    assert by_function == pytest.approx(probability(module, loss_fn=module), rel=1e-5)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(self.gate * x)


def run(begin, sick_at=0, steps=12):
    """The finding of a run with zeros before a logarithm from a step on; nothing guards its steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), Log(), nn.Linear(8, 2))
    begin(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for step in range(steps):
        model[2].gate = float(step < sick_at)
        loss = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.randint(2, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    report = doctor.diagnose()
    doctor.detach()
    (found,) = [item for item in report.symptoms if item.name == "nan-or-inf"]
    return found, report.diagnoses[0]


def spoil(model):
    with torch.no_grad():
        model[3].weight[0, 0] = torch.nan


@pytest.mark.parametrize(
    ("begin", "sick_at", "where", "words", "cause"),
    [
        (lambda model: None, 0, ("2",), "the output of Log 2 was the first", "numeric-precision"),
        (lambda model: None, 2, ("2",), "the output of Log 2 was the first", "numeric-precision"),
        (lambda model: None, 5, (), "what enters Log 2, whose log is undefined for some inputs", "numeric-precision"),
        (spoil, 99, ("3.weight",), "3.weight was not finite before the first watched step", "bad-initialization"),
    ],
    ids=["at the first step", "at a sampled step", "between samples", "a broken checkpoint"],
)
def test_the_place_is_named_although_an_update_has_broken_all_weights(begin, sick_at, where, words, cause):
    found, diagnosis = run(begin, sick_at)
    assert (found.first_step, found.where) == (sick_at if sick_at < 99 else 0, where)
    assert words in found.message and diagnosis.cause == cause
