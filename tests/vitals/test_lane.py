"""The short way gives the same records as the long one, whatever the loop does in between."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from torchdoctor import Doctor
from torchdoctor.vitals import transfer
from torchdoctor.vitals.monitor import Monitor

STEPS = 140


def train(disturb, *, log="after", clip=True, short, monkeypatch):
    """The records of a loop of many ordinary steps, and how many of them went the short way."""
    monkeypatch.setattr(Monitor, "ordinary", Monitor.ordinary if short else lambda self: None)
    monkeypatch.setattr(transfer, "PROMPT", transfer.LATENCY)  # blocks as long as from a device
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    records, ordinary = [], 0
    doctor.subscribe(records.append)
    for number in range(STEPS):
        x = torch.randn(16, 6, generator=generator)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        if log == "before":
            doctor.log_loss(loss)
        optimizer.zero_grad()
        loss.backward()
        if log == "between":
            doctor.log_loss(loss)
        if clip:
            clip_grad_norm_(net.parameters(), 0.5)
        disturb(number, doctor, net, optimizer, loss)
        optimizer.step()
        ordinary += doctor._monitor.lane.is_open
        if log == "after":
            doctor.log_loss(loss)
    doctor.detach()
    return records, ordinary


OF_THE_MACHINE = {"seconds", "data_seconds", "host_memory", "host_load", "processor_seconds", "disk_free"}
OF_THE_DETAILS = {"grad_nonfinite"}
"""How many tensors are not finite is known where their norms have travelled, and 1 elsewhere."""


def parts(record):
    """A record without its vitals, and its vitals as numbers, without what depends on the machine."""
    vitals = {
        name: value for name, value in record.get("vitals", {}).items() if name not in OF_THE_MACHINE | OF_THE_DETAILS
    }
    numbers = {name: np.array(value, dtype=float) for name, value in vitals.items()}  # None becomes NaN
    return {key: value for key, value in record.items() if key != "vitals"}, numbers


def nothing(number, doctor, net, optimizer, loss):
    pass


def touched(number, doctor, net, optimizer, loss):
    if number % 30 == 7:
        for p in net.parameters():
            p.grad.mul_(3)


def clipped_twice(number, doctor, net, optimizer, loss):
    if number % 17 == 3:
        clip_grad_norm_(net.parameters(), 0.25)


def clipped_in_part(number, doctor, net, optimizer, loss):
    if number % 17 == 3:
        clip_grad_norm_(net[0].parameters(), 0.1)


def validated(number, doctor, net, optimizer, loss):
    if number % 25 == 9:
        doctor.log_validation(loss.item() + 1)


def logged_otherwise(number, doctor, net, optimizer, loss):
    if number % 11 == 5:
        doctor.log_loss(float(number), name="other")
    if number == 90:
        doctor.log_loss(loss, name="late name")


def relabelled(number, doctor, net, optimizer, loss):
    if number == 0:
        doctor.log_loss(1.0, name="other", step=1000)


def labelled(number, doctor, net, optimizer, loss):
    doctor.log_loss(loss, name="other", step=500 + number)


def batches(number, doctor, net, optimizer, loss):
    if number % 40 == 13:
        doctor.log_batch(torch.tensor([math.nan, 1.0]))


def asked(number, doctor, net, optimizer, loss):
    if number % 23 == 11:
        doctor.diagnose(wait=number % 2 == 0)


def rates_and_settings(number, doctor, net, optimizer, loss):
    optimizer.param_groups[0]["lr"] = 1e-3 * (1 + number % 5)


def new_group(number, doctor, net, optimizer, loss):
    if number == 70:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 1e-4})


def exploding(number, doctor, net, optimizer, loss):
    if number == 99:
        for p in net.parameters():
            p.grad.fill_(math.inf)


def steps_with_closure(number, doctor, net, optimizer, loss):
    if number == 101:
        optimizer.step(lambda: loss)


DISTURBANCES = [
    nothing,
    touched,
    clipped_twice,
    clipped_in_part,
    validated,
    logged_otherwise,
    relabelled,
    labelled,
    batches,
    asked,
    rates_and_settings,
    new_group,
    exploding,
    steps_with_closure,
]


@pytest.mark.parametrize(("log", "clip"), [("before", True), ("between", False), ("after", True), ("after", False)])
@pytest.mark.parametrize("disturb", DISTURBANCES)
def test_both_ways_give_the_same_records(disturb, log, clip, monkeypatch):
    short, ordinary = train(disturb, log=log, clip=clip, short=True, monkeypatch=monkeypatch)
    long, none = train(disturb, log=log, clip=clip, short=False, monkeypatch=monkeypatch)
    assert none == 0
    assert ordinary >= 40, "hardly a step went the short way: this test would compare a thing with itself"
    measured = [[r for r in records if r["type"] not in ("groups", "note")] for records in (short, long)]
    assert len(measured[0]) == len(measured[1])
    for one, other in zip(*(sorted(m, key=lambda r: (r["step"], r["type"])) for m in measured), strict=True):
        (plain, numbers), (expected, others) = parts(one), parts(other)
        assert repr(plain) == repr(expected) and numbers.keys() == others.keys()
        for name, value in numbers.items():
            np.testing.assert_allclose(value, others[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("when", ["after backward", "after the step"])
def test_a_number_under_a_new_name_finds_its_step(when, to_none):
    """It has no graph, and the short way takes no note of gradients: what there is when it is logged decides."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    records, opened = [], False
    doctor.subscribe(records.append)
    for number in range(80):
        loss = net(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        if number == 60 and when == "after backward":
            opened = doctor._monitor.lane.is_open
            doctor.log_loss(0.5, name="other")
        optimizer.step()
        if number == 60 and when == "after the step":
            opened = doctor._monitor.lane.is_open
            doctor.log_loss(0.5, name="other")
        doctor.log_loss(loss)
    doctor.detach()
    assert opened
    assert [r["step"] for r in records if "other" in r.get("vitals", {})] == [60]


def test_no_gradient_outlives_its_step():
    """References are to norms, never to gradients: memory would not be given back."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    grads = []
    for _ in range(60):
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        grads.append(weakref.ref(net.weight.grad))
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        doctor.log_loss(loss)
    assert doctor._monitor.lane.is_open
    assert not any(grad() is not None for grad in grads)
    doctor.detach()


@pytest.mark.parametrize("asks", ["before", "after", "each half"])
def test_a_norm_that_is_asked_for_twice_counts_once(asks):
    """A loop that logs the norm and clips as well: both are norms of the same gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    logged, mine = [], []
    doctor.subscribe(lambda record: logged.append(record.get("vitals", {}).get("grad_norm")))
    for _ in range(8):
        optimizer.zero_grad()
        for half in (0, 1):
            net(torch.randn(16, 6)).square().mean().backward()
            if asks == "each half" or (asks == "before" and half):
                clip_grad_norm_(net.parameters(), math.inf)
        mine.append(float(torch.stack([p.grad.norm() for p in net.parameters()]).norm()))
        clip_grad_norm_(net.parameters(), 0.01)
        if asks == "after":
            torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])
        optimizer.step()
    doctor.detach()
    assert [norm for norm in logged if isinstance(norm, float)] == pytest.approx(mine, rel=1e-4)
