"""What should differ and is the same, what is left out, and what a loss cannot ask for."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor
from torchdoctor.chart import Chart
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss
from torchdoctor.symptoms.target_anomaly import TargetAnomaly

CLASSES = {"type": "facts", "step": 0, "facts": {"loss.classes": 10}}
SICK = {
    "each sample sixteen times": (BatchAnomaly, {"input_distinct": [0.06] * 5, "input_again": [0.0] * 5}),
    "equal views": (SuspiciousLoss, {"views_same": [1.0] * 3}),
    "a class left out": (
        SuspiciousLoss,
        {"label_ignored": [0.2] * 4, "loss": [0.1] * 60, "val_loss": [1.5]},
    ),
    "targets of -1": (TargetAnomaly, {"binary_outside": [0.3] * 3}),
}
HEALTHY = {
    "a few copies": (BatchAnomaly, {"input_distinct": [0.5] * 5, "input_again": [0.0] * 5}),
    "a few categories": (BatchAnomaly, {"input_distinct": [0.06] * 5, "input_again": [0.9] * 5}),
    "not known whether they come again": (BatchAnomaly, {"input_distinct": [0.06] * 5}),
    "equal once": (SuspiciousLoss, {"views_same": [1.0, 0.0, 1.0]}),
    "no such class": (SuspiciousLoss, {"label_ignored": [0.0] * 4, "loss": [0.1] * 60, "val_loss": [1.5]}),
    "left out, validation follows": (
        SuspiciousLoss,
        {"label_ignored": [0.2] * 4, "loss": [1.0] * 60, "val_loss": [1.1]},
    ),
    "targets from 0 to 1": (TargetAnomaly, {"binary_outside": [0.0] * 3}),
}


def found(kind, vitals):
    chart = Chart.of(**vitals)
    chart.add(CLASSES)
    return kind().check(chart)


@pytest.mark.parametrize(("kind", "vitals"), SICK.values(), ids=SICK)
def test_fires(kind, vitals):
    assert found(kind, vitals).severity == "warning"


@pytest.mark.parametrize(("kind", "vitals"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(kind, vitals):
    symptom = found(kind, vitals)
    assert symptom is None or symptom.severity == "info"


def test_copies_are_a_note_where_they_may_be_meant():
    chart = Chart.of(input_distinct=[0.06] * 5, input_again=[0.0] * 5)
    assert BatchAnomaly().check(chart).severity == "info"


def views(same):
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(10):
            data = torch.randn(8, 6)
            other = data.clone() if same else data + 0.1 * torch.randn(8, 6)
            one, two = (functional.normalize(model(view), dim=1) for view in (data, other))
            loss = functional.cross_entropy(one @ two.T / 0.1, torch.arange(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        return doctor.diagnose()


def batches(label, loss_fn, outputs=3, copies=1):
    torch.manual_seed(0)
    model = nn.Linear(12, outputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) as doctor:
        for _ in range(60):
            data = torch.randn(32 // copies, 12).repeat_interleave(copies, 0)
            loss = loss_fn(model(data), label(data))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        return doctor.diagnose()


def largest(data):
    return data[:, :3].argmax(1)


def named(report):
    return {symptom.name for symptom in report.symptoms}


def test_views_are_compared_as_they_enter_the_loss():
    assert "suspicious-loss" in named(views(same=True))
    assert "suspicious-loss" not in named(views(same=False))


def test_binary_targets_are_read_where_the_loss_reads_them():
    signs = batches(lambda data: data[:, :3].sign(), nn.BCEWithLogitsLoss())
    assert "target-anomaly" in named(signs)
    assert "target-anomaly" not in named(batches(lambda data: (data[:, :3] > 0).float(), nn.BCEWithLogitsLoss()))


def test_targets_that_are_one_number_are_told():
    rounded = batches(lambda data: data[:, :3].sigmoid().long().float(), nn.MSELoss())
    assert "target-anomaly" in named(rounded)
    assert "target-anomaly" not in named(batches(lambda data: data[:, :3].sigmoid(), nn.MSELoss()))


def test_a_class_that_the_loss_ignores_is_counted_by_sample():
    assert "suspicious-loss" in named(batches(largest, nn.CrossEntropyLoss(ignore_index=0)))
    assert "suspicious-loss" not in named(batches(largest, nn.CrossEntropyLoss(ignore_index=-100)))


def test_copies_in_a_batch_are_counted_and_give_no_label_away():
    assert "batch-anomaly" in named(batches(largest, nn.CrossEntropyLoss(), copies=8))
    report = batches(largest, nn.CrossEntropyLoss(), copies=1)
    assert not {"batch-anomaly", "target-anomaly"} & named(report)


class Decoder(nn.Module):
    def __init__(self, shifts):
        super().__init__()
        self.shifts = shifts
        self.given, self.asked, self.scores = nn.Embedding(9, 16), nn.Embedding(9, 16), nn.Linear(16, 9)

    def forward(self, given, asked):
        if self.shifts:
            asked = torch.cat([torch.zeros_like(asked[:, :1]), asked[:, :-1]], 1)
        return self.scores(self.asked(asked) + self.given(given)).flatten(0, 1)


def translated(shifts):
    torch.manual_seed(0)
    model, loss_fn = Decoder(shifts), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    with Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) as doctor:
        for _ in range(60):
            given = torch.randint(1, 9, (16, 10))
            asked = given % 8 + 1
            loss = loss_fn(model(given, asked), asked.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        return doctor.diagnose()


def test_a_decoder_that_is_fed_its_answers_is_told_from_one_that_shifts_them_itself():
    assert "target-anomaly" in named(translated(shifts=False))
    assert "target-anomaly" not in named(translated(shifts=True))


SOON_KNOWN = [0.5, 0.8, 0.95, *[1.0] * 8]
FEW = {
    "validation stands far above": ({}, True),
    "validation follows": ({"validation": [0.9, 0.3, 0.001]}, False),
    "validation is a little above": ({"validation": [0.004, 0.004, 0.004]}, False),
    "most samples are new": ({"again": [0.0, 0.1, 0.1, *[0.3] * 8]}, False),
    "one is new at times": ({"again": [*SOON_KNOWN, 0.95, 1.0]}, False),
    "too few looks": ({"again": SOON_KNOWN[:6]}, False),
    "a method that needs one set": ({"optimizer": "LBFGS"}, False),
}


@pytest.mark.parametrize(("given", "fires"), FEW.values(), ids=FEW)
def test_a_few_samples_in_ever_new_batches(given, fires):
    again = given.get("again", SOON_KNOWN)
    sums = [float(number + 1) for number in range(len(again))]
    chart = Chart.of(loss=[1.6] * 10 + [0.0005] * 90, input_again=again, input_checksum=sums)
    chart.context |= {"batch_size": 16, "optimizer": [{"class": given.get("optimizer", "Adam")}]}
    for step, value in zip((59, 79, 99), given.get("validation", [0.96, 0.97, 0.99]), strict=True):
        chart.put(step, "val_loss", value)
    symptom = BatchAnomaly().check(chart)
    assert bool(symptom and symptom.severity == "warning") == fires


@pytest.mark.parametrize("same", [True, False])
def test_texts_that_are_all_one_unknown_token(same):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(8 * 12, 3))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(80):
            tokens, labels = torch.randint(2, 50, (16, 12)), torch.randint(0, 3, (16,))
            loss = functional.cross_entropy(model(torch.ones_like(tokens) if same else tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
    warned = {symptom.name for symptom in doctor.diagnose().symptoms if symptom.severity != "info"}
    assert ("input-anomaly" in warned) == same
    assert "batch-anomaly" not in warned


ENDS = {
    "numbers of both signs": (functional.relu, 0.0, True),
    "counts": (functional.relu, 4.0, False),
    "wide numbers": (torch.tanh, 4.0, True),
    "no activation at the end": (lambda score: score, 0.0, False),
    "what comes after it": (lambda score: 3 * torch.tanh(score), 0.0, False),
}


@pytest.mark.parametrize(("ending", "mean", "fires"), ENDS.values(), ids=ENDS)
def test_a_function_at_the_end_that_cannot_give_the_targets(ending, mean, fires):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(60):
            data = torch.randn(32, 6)
            loss = functional.mse_loss(ending(model(data)), data[:, :1] * 0.9 + mean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
    assert ("target-anomaly" in named(doctor.diagnose())) == fires
