"""Optimizers that take over from the one given to the doctor, or step beside it."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import CosineAnnealingLR

import torchdoctor
from torchdoctor.doctor import Doctor

QUIET = {"quiet": True}
Adam, SGD = torch.optim.Adam, torch.optim.SGD


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def loss_of(model, seed):
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(seed))
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train(model, doctor, steps, *optimizers, clip=None, step=None):
    for seed in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = loss_of(model, seed)
        loss.backward()
        if clip is not None:
            clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            step() if step else optimizer.step()
        doctor.log_loss(loss)


def records_of(doctor):
    records: list[dict] = []
    doctor.subscribe(records.append)
    return records


def vitals(doctor, records):
    report = doctor.diagnose()
    assert not [note for note in report.notes if "failed inside" in note], report.notes
    steps: dict[int, dict[str, float]] = {}
    for record in records:
        if record["type"] == "vitals":
            steps.setdefault(record["step"], {}).update(record["vitals"])
    return report, steps


@pytest.mark.parametrize("before", [3, 100])
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_successor_is_watched_from_its_first_step(net, before, older, clip, tmp_path):
    first = Adam(net.parameters(), lr=1e-2)
    second = SGD(net.parameters(), lr=1e-3) if older else None
    doctor = Doctor(net, first, settings=QUIET, journal=tmp_path)
    records = records_of(doctor)
    train(net, doctor, range(before), first, clip=clip)
    second = second or SGD(net.parameters(), lr=1e-3)
    train(net, doctor, range(before, before + 80), second, clip=clip)
    report, steps = vitals(doctor, records)
    if not older:  # an older one is searched for only after some losses without a step
        assert list(steps) == list(range(before + 80))
        assert steps[before]["lr"] == 1e-3 and steps[before - 1]["lr"] == 1e-2
        assert all(math.isfinite(vital[name]) for vital in steps.values() for name in ("loss", "grad_norm"))
    assert report.step >= before + 60 and report.health == "healthy", report
    (note,) = report.notes
    assert note.endswith(
        "another optimizer (SGD, 4 tensors) took over from the Adam given to Doctor, and is watched since."
    )
    assert report.context["optimizer"][0]["class"] == "SGD"
    doctor.detach()
    assert doctor.diagnose().to_dict() == torchdoctor.diagnose(tmp_path).to_dict()
    assert not second._optimizer_step_pre_hooks and not first._optimizer_step_post_hooks


def test_the_numbers_are_those_of_a_doctor_that_is_given_the_successor(net):
    twin = copy.deepcopy(net)
    both = []
    for model, given in ((net, False), (twin, True)):
        first = Adam(model.parameters(), lr=1e-2)
        doctor = Doctor(model, first, settings=QUIET)
        train(model, doctor, range(50), first)
        second = SGD(model.parameters(), lr=1e-3, momentum=0.9)
        if given:
            doctor = Doctor(model, second, settings=QUIET)
        records = records_of(doctor)
        train(model, doctor, range(50, 120), second)
        both.append([(vital["loss"], vital["grad_norm"]) for vital in vitals(doctor, records)[1].values()])
    assert np.allclose(both[0][-70:], both[1][-70:], rtol=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))


def test_both_are_watched_if_both_step(net):
    first = Adam(net[0].parameters(), lr=1e-2)
    other = SGD(net[2].parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    records = records_of(doctor)
    train(net, doctor, range(90), first, other)
    report, steps = vitals(doctor, records)
    assert list(steps) == list(range(90)) and report.health == "healthy"
    norms = [record for record in records if record["type"] == "tensors" and "update_ratio" in record["vitals"]]
    assert all(ratio > 0 for ratio in norms[-1]["vitals"]["update_ratio"])
    assert "stepped parameters of the model" in report.notes[0]


def test_an_optimizer_that_returns_is_watched_again(net):
    adam = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, adam, settings=QUIET)
    records = records_of(doctor)
    sgd = SGD(net.parameters(), lr=1e-3)
    for epoch in range(8):
        train(net, doctor, range(20 * epoch, 20 * epoch + 20), (adam, sgd)[epoch % 2])
    report, steps = vitals(doctor, records)
    assert list(steps) == list(range(160)) and report.health == "healthy"
    assert "an earlier optimizer (Adam, 4 tensors) took over from the SGD" in report.notes[1]


def test_two_optimizers_of_the_same_tensors_that_step_in_turn_are_watched_together(net):
    adam = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, adam, settings=QUIET)
    records = records_of(doctor)
    train(net, doctor, range(20), adam)
    sgd = SGD(net.parameters(), lr=1e-3)
    for seed in range(20, 100):
        train(net, doctor, [seed], adam)
        train(net, doctor, [seed], sgd)
    report, steps = vitals(doctor, records)
    assert 98 <= len(steps) <= 102 and report.health == "healthy"
    assert len(report.notes) == 2 and "an earlier optimizer (Adam, 4 tensors) stepped again" in report.notes[1]


def test_optimizers_of_other_models_and_of_copies_are_left_alone(net):
    ours, average = Adam(net.parameters(), lr=1e-2), torch.optim.swa_utils.AveragedModel(net)
    doctor = Doctor(net, ours, settings=QUIET)
    train(net, doctor, range(40), ours)
    for model in (nn.Linear(8, 1), copy.deepcopy(net), average):
        other = SGD(model.parameters(), lr=1e-2)
        loss_of(model, 0).backward()
        other.step()
        assert not other._optimizer_step_pre_hooks
    report = doctor.diagnose()
    assert not report.notes and report.step == 39


def test_a_rebuilt_optimizer_is_followed_each_time_and_freed(net):
    optimizer = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, optimizer, settings=QUIET)
    records = records_of(doctor)
    for epoch in range(30):
        optimizer = Adam(net.parameters(), lr=1e-2)
        train(net, doctor, range(5 * epoch, 5 * epoch + 5), optimizer)
    report, steps = vitals(doctor, records)
    assert list(steps) == list(range(150)) and len(report.notes) == 4
    assert "what its state had averaged is lost" in report.notes[-1]
    gc.collect()
    assert len(doctor._monitor.successors._hooks) <= 2


def test_layers_that_were_added_are_named(net):
    optimizer = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, optimizer, settings=QUIET)
    train(net, doctor, range(30), optimizer)
    net.append(nn.Linear(1, 1))
    optimizer = Adam(net.parameters(), lr=1e-2)
    train(net, doctor, range(30, 60), optimizer)
    assert doctor._monitor.names[-2:] == ("3.weight", "3.bias")
    assert doctor.diagnose().step == 59


class Inside(torch.optim.Optimizer):
    """A wrapper whose step is that of an inner optimizer of its own, as with sharded states."""

    def __init__(self, params, kind, **kwargs):
        super().__init__(params, kwargs)
        self.optim = kind([item for group in self.param_groups for item in group["params"]], **kwargs)

    @torch.no_grad()
    def step(self, closure=None):
        self.optim.step()


def test_a_step_inside_a_step_is_one(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    train(net, doctor, range(20), first)
    train(net, doctor, range(20, 60), Inside(net.parameters(), SGD, lr=1e-3))
    report = doctor.diagnose()
    assert report.step == 59 and len(report.notes) == 1 and "(Inside, 4 tensors)" in report.notes[0]


def test_closures(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    train(net, doctor, range(20), first)
    second = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    for seed in range(20, 50):

        def closure(seed=seed):
            second.zero_grad()
            loss = loss_of(net, seed)
            loss.backward()
            return loss

        doctor.log_loss(second.step(closure))
    assert doctor.diagnose().step == 49 and doctor.diagnose().health != "critical"


@pytest.mark.filterwarnings("ignore")
def test_compiled_steps(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    records = records_of(doctor)
    train(net, doctor, range(10), first)
    second = SGD(net.parameters(), lr=1e-3)
    compiled = torch.compile(second.step, backend="eager")
    train(net, doctor, range(10, 40), second, step=compiled)
    report, steps = vitals(doctor, records)
    assert list(steps) == list(range(40)), report


def test_scaled_steps(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    train(net, doctor, range(10), first)
    second, scaler = SGD(net.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")
    for seed in range(10, 60):
        second.zero_grad()
        loss = loss_of(net, seed)
        scaler.scale(loss).backward()
        scaler.step(second)
        scaler.update()
        doctor.log_loss(loss)
    report = doctor.diagnose()
    assert report.step == 59 and report.health == "healthy"


def test_an_optimizer_with_a_doctor_of_its_own_is_left_to_it(net):
    first = Adam(net.parameters(), lr=1e-2)
    before = Doctor(net, first, settings=QUIET)
    train(net, before, range(20), first)
    second = SGD(net.parameters(), lr=1e-3)
    after = Doctor(net, second, settings=QUIET)
    train(net, after, range(20, 50), second)
    assert (before.diagnose().step, after.diagnose().step) == (19, 29)
    assert not before.diagnose().notes


def test_two_doctors_do_not_mind_each_other(net):
    twin = copy.deepcopy(net)
    optimizers = [Adam(model.parameters(), lr=1e-2) for model in (net, twin)]
    doctors = [Doctor(model, item, settings=QUIET) for model, item in zip((net, twin), optimizers, strict=True)]
    for begin in (0, 20):
        for model, doctor, item in zip((net, twin), doctors, optimizers, strict=True):
            train(model, doctor, range(begin, begin + 20), item)
        optimizers = [SGD(model.parameters(), lr=1e-3) for model in (net, twin)]
    assert [doctor.diagnose().step for doctor in doctors] == [39, 39]
    assert [len(doctor.diagnose().notes) for doctor in doctors] == [1, 1]


def test_another_thread_that_steps_the_same_model_is_left_alone(net):
    ours = SGD(net.parameters(), lr=1e-3)
    doctor = Doctor(net, ours, settings=QUIET)
    train(net, doctor, range(20), ours)

    def work():
        theirs = SGD(net.parameters(), lr=1e-3)
        for seed in range(20):
            loss_of(net, seed).backward()
            theirs.step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    train(net, doctor, range(20, 40), ours)
    report = doctor.diagnose()
    assert report.step == 39 and not report.notes


def test_successors_can_be_copied_and_pickled(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    second = SGD(net.parameters(), lr=1e-3)
    train(net, doctor, range(5), second)
    assert not pickle.loads(pickle.dumps(second))._optimizer_step_pre_hooks
    assert not copy.deepcopy(second)._optimizer_step_pre_hooks


def test_a_scheduler_that_stays_with_the_old_optimizer_is_a_warning(net):
    first = Adam(net.parameters(), lr=1e-2)
    schedule = CosineAnnealingLR(first, 400)
    doctor = Doctor(net, first, scheduler=schedule, settings=QUIET)
    for begin, optimizer in ((0, first), (100, SGD(net.parameters(), lr=1e-3))):
        for seed in range(begin, begin + (100 if not begin else 300)):
            train(net, doctor, [seed], optimizer)
            schedule.step()
    found = {symptom.name: symptom for symptom in doctor.diagnose().symptoms}
    assert found["schedule-anomaly"].severity == "warning"
    assert "the Adam that no longer steps" in found["schedule-anomaly"].message


def test_a_scheduler_of_the_successor_is_silent(net):
    first = Adam(net.parameters(), lr=1e-2)
    schedule = CosineAnnealingLR(first, 100)
    doctor = Doctor(net, first, scheduler=schedule, settings=QUIET)
    for optimizer in (first, SGD(net.parameters(), lr=1e-2)):
        schedule = CosineAnnealingLR(optimizer, 100) if optimizer is not first else schedule
        for seed in range(150):
            train(net, doctor, [seed], optimizer)
            if seed < 100:
                schedule.step()
    assert "schedule-anomaly" not in {symptom.name for symptom in doctor.diagnose().symptoms}


def test_an_optimizer_that_was_built_and_never_steps_is_named(net):
    first = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, first, settings=QUIET)
    train(net, doctor, range(60), first)
    net[2] = nn.Linear(16, 1)
    unused = SGD(net.parameters(), lr=1e-3)
    train(net, doctor, range(60, 260), first)
    found = {symptom.name: symptom.message for symptom in doctor.diagnose().symptoms}
    assert "no optimizer holds them; the SGD that was built at step 60 has not stepped" in found["frozen-weights"]
    del unused


def test_one_optimizer_for_each_tensor_is_not_followed_without_end():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(5)], nn.Linear(8, 1))
    single = {tensor: SGD([tensor], lr=1e-4) for tensor in model.parameters()}
    doctor = Doctor(model, next(iter(single.values())), settings=QUIET)

    def step_at_once(tensor):
        single[tensor].step()
        single[tensor].zero_grad()

    for tensor in single:
        tensor.register_post_accumulate_grad_hook(step_at_once)
    for seed in range(40):
        loss = loss_of(model, seed)
        loss.backward()
        doctor.log_loss(loss)
    report = doctor.diagnose()
    assert len(doctor._monitor._optimizers) == 8 and 38 <= report.step <= 47
    assert report.health in ("healthy", "watch"), report


def test_more_losses_than_ever_before_are_no_takeover(net):
    """A search in memory finds nothing, and the numbers stay as they are."""
    optimizer = Adam(net.parameters(), lr=1e-2)
    doctor = Doctor(net, optimizer, settings=QUIET)
    records = records_of(doctor)
    train(net, doctor, range(40), optimizer)
    for seed in range(40, 60):
        optimizer.zero_grad()
        for part in range(12):
            loss = loss_of(net, 100 * seed + part) / 12
            loss.backward()
            doctor.log_loss(loss)
        optimizer.step()
    report, steps = vitals(doctor, records)
    assert list(steps) == list(range(60)) and not report.notes
