"""The noise gauge against the gradients of single samples, computed one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchdoctor.doctor import Doctor

SIZE = 8


class Sequence(nn.Module):
    """Features by place, averaged at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 9), nn.Linear(9, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).mean(1)


class Shared(nn.Module):
    """One layer that runs twice in a pass, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.once = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.once(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def images() -> nn.Module:
    convolution = nn.Conv2d(2, 5, 3, stride=2, padding=1, dilation=2)
    return nn.Sequential(convolution, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(20, 3))


EXACT = {
    "features": (dense, (SIZE, 6), ("0.weight", "2.weight")),
    "sequences": (Sequence, (SIZE, 4, 6), ("first.weight", "second.weight")),
    "images": (images, (SIZE, 2, 6, 6), ("0.weight", "3.weight")),
    "a layer that runs twice is left out": (Shared, (SIZE, 6), ("once.weight",)),
}


def by_hand(model, x, y, names) -> float:
    """Batch size over noise scale, without bias, from one backward pass a sample."""
    tensors = [dict(model.named_parameters())[name] for name in names]
    rows = []
    for sample, target in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), target[None], reduction="sum")
        rows.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, tensors)]))
    gradients = torch.stack(rows)
    mean = gradients.mean(0)
    variance = (gradients - mean).square().sum() / (len(x) - 1)
    return float((mean.square().sum() - variance / len(x)) / (variance / len(x)))


def snr(doctor: Doctor) -> list[float]:
    doctor.detach()
    assert not [key for key in doctor._examination.chart.facts if key.startswith("gauges.")]
    return doctor._examination.chart["gradient_snr"].values.tolist()


@pytest.mark.parametrize(("build", "shape", "names"), EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_is_what_single_samples_say(build, shape, names, parts, reduction):
    torch.manual_seed(0)
    model = build()
    x, y = torch.randn(shape), torch.randint(0, 3, (SIZE,))
    expected = by_hand(model, x, y, names)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for some, answers in zip(x.chunk(parts), y.chunk(parts), strict=True):
        loss = nn.functional.cross_entropy(model(some), answers, reduction=reduction)
        loss.backward()
        doctor.log_loss(loss)
    optimizer.step()
    assert snr(doctor)[0] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert doctor._examination.chart["gradient_samples"].latest == SIZE


def test_parts_of_wide_layers_are_within_a_factor_of_two_of_the_noise_scale_of_all():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 5))
    data = torch.randn(512, 40)
    labels = (data @ torch.randn(40, 5)).argmax(1)
    gradients = []
    for sample, label in zip(data, labels, strict=True):
        loss = nn.functional.cross_entropy(model(sample[None]), label[None])
        gradients.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))]))
    exact = torch.stack(gradients).var(0).sum() / torch.stack(gradients).mean(0).square().sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that every step has the same noise scale
    doctor = Doctor(model, optimizer, settings={"quiet": True, "sample_every": 2})
    for _ in range(120):
        places = torch.randint(0, 512, (32,))
        loss = nn.functional.cross_entropy(model(data[places]), labels[places])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    values = snr(doctor)
    assert len(values) > 50
    assert 0.5 < 32 / (sum(values) / len(values)) / float(exact) < 2


class TimeFirst(nn.Module):
    """Takes sequences with time before the batch: its first dimension is not one of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.cells(x)[0]).mean(0)


UNSEEN = {
    "statistics of the batch": (lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 3)), (SIZE, 6)),
    "time first": (TimeFirst, (SIZE, SIZE, 6)),
    "one sample": (dense, (1, 6)),
}


@pytest.mark.parametrize(("build", "shape"), UNSEEN.values(), ids=UNSEEN)
def test_it_says_nothing_where_samples_cannot_be_told_apart(build, shape):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(3):
        model(torch.randn(shape)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert snr(doctor) == []


def test_two_losses_of_one_output_are_not_counted_twice():
    model = dense()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    outputs = model(torch.randn(SIZE, 6))
    outputs.square().mean().backward(retain_graph=True)
    outputs.abs().mean().backward()
    optimizer.step()
    assert snr(doctor) == []
