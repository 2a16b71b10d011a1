"""Samples that come again: in training, with the same answer or another, and in a validation."""

import math

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.vitals.recall import codes

SAMPLES, SIZE = 64, 16


def series(train, held_out=None, loss_fn=None, steps=26, fresh=None, tested=None):
    """The vitals of a run over `train`, in epochs; `held_out` is looked at before each step from the tenth on."""
    torch.manual_seed(0)
    inputs, targets = train
    model, loss_fn = nn.Linear(inputs.shape[1], 3), loss_fn or nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = []
    with Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) as doctor:
        doctor.subscribe(seen.append)
        if tested is not None:
            model(tested)
        for step in range(steps):
            chosen = torch.arange(step * SIZE, (step + 1) * SIZE) % len(inputs)
            given, asked = inputs[chosen], targets[chosen]
            if fresh is not None:
                given, asked = fresh(given, asked, step)
            if held_out is not None and step > 9:
                with torch.no_grad():
                    for part in held_out:
                        model(part)
            loss = loss_fn(model(given), asked)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        doctor.diagnose()
    records = [record["vitals"] for record in seen if record["type"] == "vitals"]
    names = ("input_again", "answer_changed", "answer_moved", "idle_known")
    return {name: [row[name] for row in records if name in row and not math.isnan(row[name])] for name in names}


def data(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SAMPLES, 12, generator=generator), torch.arange(SAMPLES) % 3


def test_samples_that_come_again_are_known():
    found = series(data())
    assert found["input_again"][0] == 0.0  # step 1 after step 0: nothing has come twice
    assert max(found["input_again"]) == 1.0
    assert max(found["answer_changed"]) == 0.0


def test_augmented_samples_are_new():
    assert max(series(data(), fresh=lambda x, y, step: (x + 0.01 * step, y))["input_again"]) == 0.0


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), nn.functional.cross_entropy], ids=["module", "function"])
def test_answers_that_change(loss_fn):
    found = series(data(), loss_fn=loss_fn, fresh=lambda x, y, step: (x, (y + step // 4) % 3))
    assert max(found["answer_changed"]) > 0.5


@pytest.mark.parametrize(("noise", "least", "most"), [(0.05, 0.0, 0.01), (3.0, 0.5, 1.0)])
def test_numbers_that_are_measured_again_differ_by_little(noise, least, most):
    generator = torch.Generator().manual_seed(3)
    inputs, _ = data()
    numbers = torch.randn(SAMPLES, 1, generator=generator)

    def measured(x, y, step):
        return x, y + noise * torch.randn(y.shape, generator=generator)

    def loss_fn(output, y):
        return nn.functional.mse_loss(output[:, :1], y)

    found = series((inputs, numbers), loss_fn=loss_fn, fresh=measured)
    assert max(found["answer_changed"]) == 1.0
    assert least <= max(found["answer_moved"]) <= most


def test_a_validation_on_training_samples():
    inputs, _ = data()
    unseen, _ = data(2)
    assert series(data(), [inputs[:32]])["idle_known"][-1] > 0.9
    assert series(data(), [unseen[:32]])["idle_known"][-1] == 0.0
    assert series(data(), [inputs[:32], unseen[:32]])["idle_known"][-1] == 0.0  # it looks at both


def test_samples_of_a_test_that_makes_a_graph_are_not_learnt_from():
    others = data(2)[0]
    assert max(series(data(), held_out=[others], tested=others)["idle_known"]) == 0


def test_codes_do_not_depend_on_the_batch():
    rows = torch.randn(40, 3, 20)
    assert torch.equal(codes([rows], 64)[9:], codes([rows[9:]], 64))
    bits = torch.unique((torch.rand(200, 20) < 0.5).float(), dim=0)
    assert len(torch.unique(codes([bits], 256))) == len(bits)
    assert int(codes([torch.ones(8, 20)], 64).abs().max()) == 0  # nothing is on them
    assert codes([torch.randn(40, 4)], 64) is None  # so few values come again by chance
