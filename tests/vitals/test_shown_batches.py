"""A batch that the loop shows by itself: what the model is given of it, and what the loss then makes of it."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.vitals.loops import adam, chart_of, found, sgd, stack
from torch import nn

from torchdoctor.doctor import Doctor


def shown(model, loss_of, batches, steps=12, optimizer=None):
    """Train with `log_batch` before the forward pass, and return the doctor, detached."""
    optimizer = optimizer or sgd(model, 0.01)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(steps):
        batch = batches()
        doctor.log_batch(*batch)
        loss = loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    return doctor


def windows():
    return (torch.randn(64, 13).cumsum(1),)


def table():
    labels = torch.randint(0, 2, (64,))
    return torch.cat([labels[:, None].float(), torch.randn(64, 8)], 1), labels


def classes():
    labels = torch.randint(0, 5, (64,))
    return torch.randn(64, 8) + labels[:, None], labels


def test_the_end_of_a_window_is_no_answer_that_was_given():
    doctor = shown(stack(12, 16, 1), lambda model, w: F.mse_loss(model(w[:, :-1])[:, 0], w[:, -1]), windows)
    assert "target-anomaly" not in found(doctor)


def test_a_label_that_is_cut_off_is_no_answer_that_was_given():
    doctor = shown(stack(8, 16, 2), lambda model, x, y: F.cross_entropy(model(x[:, 1:]), y), table)
    assert "target-anomaly" not in found(doctor)


@pytest.mark.parametrize("flat", [False, True])
def test_a_label_that_goes_in_is_one(flat):
    model = nn.Sequential(nn.Flatten(), *stack(9, 16, 2)) if flat else stack(9, 16, 2)
    doctor = shown(model, lambda model, x, y: F.cross_entropy(model(x), y), table)
    assert "target-anomaly" in found(doctor)


def test_a_window_with_its_end_is_one():
    doctor = shown(stack(13, 16, 1), lambda model, w: F.mse_loss(model(w)[:, 0], w[:, -1]), windows)
    assert "target-anomaly" in found(doctor)


def test_what_a_guess_costs_is_known_where_labels_are_shown():
    doctor = shown(stack(8, 16, 5), lambda model, x, y: F.cross_entropy(model(x), y), classes)
    assert chart_of(doctor)["guess_loss"].latest == pytest.approx(1.6, abs=0.1)


def test_labels_that_the_loss_does_not_ask_for_are_no_guess():
    doctor = shown(stack(8, 16, 1), lambda model, x, y: F.mse_loss(model(x[:32]), x[:32, :1] + 1), classes)
    assert "guess_loss" not in chart_of(doctor).vitals


def test_labels_are_counted_once_where_they_become_numbers():
    def loss_of(model, x, y):
        return F.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())

    doctor = shown(stack(9, 16, 1), loss_of, table)
    assert chart_of(doctor)["pooled_top_share"].latest < 0.6
    assert "guess_loss" not in chart_of(doctor).vitals


class Clicks(nn.Module):
    """Numbers beside what was learnt of categories."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        layers = [nn.Linear(12, 32), nn.LayerNorm(32)] if norm else [nn.Linear(12, 32)]
        self.rest = nn.Sequential(*layers, nn.ReLU(), nn.Linear(32, 1))

    def forward(self, category, numbers):
        return self.rest(torch.cat([self.table(category), numbers], 1))[:, 0]


@pytest.mark.parametrize(
    ("size", "norm", "loud"), [(1e6, False, True), (1.0, False, False), (30.0, False, False), (1e6, True, False)]
)
def test_numbers_beside_embeddings(size, norm, loud):
    torch.manual_seed(0)
    model = Clicks(norm)
    optimizer = adam(model)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(30):
        numbers = torch.randn(64, 4)
        target = (numbers[:, 0] > 0).float()
        loss = F.binary_cross_entropy_with_logits(
            model(torch.randint(0, 20, (64,)), numbers * torch.tensor([1.0, 1.0, 1.0, size])), target
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    doctor.detach()
    assert ("input-anomaly" in found(doctor)) == loud
