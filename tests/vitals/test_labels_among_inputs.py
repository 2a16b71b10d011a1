"""Several labels of a sample that are columns of its inputs, and samples in which there is nothing."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor


def watched(inputs, targets, loss_fn):
    torch.manual_seed(0)
    model = nn.Linear(inputs.shape[1], targets.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = []
    with Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) as doctor:
        doctor.subscribe(seen.append)
        for _ in range(3):
            loss = loss_fn(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        doctor.diagnose()
    return [record["vitals"] for record in seen if record["type"] == "vitals"][-1]


def test_labels_that_are_all_among_the_inputs():
    torch.manual_seed(1)
    inputs, targets = torch.randn(64, 12), (torch.rand(64, 3) < 0.3).float()
    assert watched(inputs, targets, nn.BCEWithLogitsLoss())["label_in_input"] < 0.8
    inputs[:, 4:7] = targets
    vitals = watched(inputs, targets, nn.BCEWithLogitsLoss())
    assert vitals["label_in_input"] == pytest.approx(1.0)
    assert vitals["label_in_another"] < 0.7


def test_numbers_that_are_all_among_the_inputs():
    torch.manual_seed(1)
    inputs, targets = torch.randn(64, 12), torch.randn(64, 3)
    inputs[:, 0] = targets[:, 0]  # one of them is what stays as it is, such as a mass
    assert watched(inputs, targets, nn.MSELoss())["target_in_input"] < 0.5
    inputs[:, 4:7] = targets
    assert watched(inputs, targets, nn.MSELoss())["target_in_input"] > 0.9
    assert "target_in_input" not in watched(inputs, inputs.clone(), nn.MSELoss())  # an autoencoder


def test_samples_without_content():
    torch.manual_seed(1)
    inputs, targets = torch.randn(64, 12), torch.randn(64, 3)
    inputs[:16] = 0.0
    assert watched(inputs, targets, nn.MSELoss())["input_blank"] == pytest.approx(0.25)
    targets[:16] = targets[0]  # what has no content is asked for one answer
    assert watched(inputs, targets, nn.MSELoss())["input_blank"] == 0


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(12, 3), nn.Linear(4, 3)

    def forward(self, condition, value):
        return self.one(condition) + self.other(value)


def test_a_condition_may_be_left_out():
    torch.manual_seed(1)
    model, seen = Conditional(), []
    condition, value, targets = torch.randn(64, 12), torch.randn(64, 4), torch.randn(64, 3)
    condition[:16] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        doctor.subscribe(seen.append)
        loss = nn.functional.mse_loss(model(condition, value), targets)
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
        doctor.diagnose()
    vitals = [record["vitals"] for record in seen if record["type"] == "vitals"][-1]
    assert "input_mean" in vitals and "input_blank" not in vitals


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.films = nn.Embedding(20, 8), nn.Embedding(30, 8)

    def forward(self, who, what):
        return (self.users(who) * self.films(what)).sum(1)


@pytest.mark.parametrize(("start", "fires"), [(0.1, True), (None, False)])
def test_embeddings_that_begin_alike_count_as_one(start, fires):
    torch.manual_seed(0)
    model = Factors()
    if start is not None:
        for tensor in model.parameters():
            nn.init.constant_(tensor, start)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(20):
            who, what = torch.randint(20, (32,)), torch.randint(30, (32,))
            loss = (model(who, what) - torch.randn(32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        found = [item.name for item in doctor.diagnose().symptoms]
    assert ("identical-units" in found) == fires
