"""Facts about the loop: what is unfrozen, what a schedule says of itself, what a loss may be undefined for."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

from torchdoctor.vitals.census import GraphCensus
from torchdoctor.vitals.loss_graph import read_graph
from torchdoctor.vitals.modes import ModeCensus
from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.schedule import ScheduleGauge
from torchdoctor.vitals.slot import Slot

LOSSES = {
    "log of probabilities": (lambda out: -out.sigmoid().log().mean(), ("log",)),
    "root of a distance": (lambda out: out.square().sum(1).sqrt().mean(), ("sqrt",)),
    "root as a power": (lambda out: out.square().sum(1).pow(0.5).mean(), ("root",)),
    "norm": (lambda out: out.norm(dim=1).mean(), ("norm",)),
    "quotient of two outputs": (lambda out: (out[:, 0] / out[:, 1]).mean(), ("division",)),
    "squares": (lambda out: out.pow(2).mean(), ()),
    "divided by a number": (lambda out: out.square().mean() / 4, ()),
    "cross-entropy": (lambda out: functional.cross_entropy(out, torch.zeros(8, dtype=torch.long)), ()),
}


@pytest.mark.parametrize(("loss", "fragile"), LOSSES.values(), ids=LOSSES)
def test_what_a_loss_may_be_undefined_for(loss, fragile):
    out = nn.Linear(4, 3)(torch.ones(8, 4))
    assert read_graph(loss(out).grad_fn).fragile == fragile


VIEWS = {
    "a view for a transpose": (lambda out: out.view(8, 5, 6), True),
    "a transpose": (lambda out: out.transpose(1, 2), False),
    "a view after a transpose": (lambda out: out.transpose(1, 2).contiguous().view(8, 5, 6), False),
    "a permute": (lambda out: out.permute(0, 2, 1), False),
}


@pytest.mark.parametrize(("shaped", "scrambled"), VIEWS.values(), ids=VIEWS)
def test_a_view_that_stands_for_a_transpose(shaped, scrambled):
    out = nn.Linear(4, 5)(torch.ones(8, 6, 4))
    graph = read_graph(functional.cross_entropy(shaped(out), torch.zeros(8, 6, dtype=torch.long)).grad_fn)
    assert ("scrambled" in graph.lint) == scrambled


def census(*, thaw_at=None, holds_all=False, writes=False):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    held = model if holds_all else model[2]
    optimizer, told = torch.optim.SGD(held.parameters(), lr=0.1), {}
    gauge = GraphCensus(Setup({"": model}, [optimizer]), told.update)
    for sample in range(9):
        if sample == thaw_at:
            model[0].requires_grad_(True)
        gauge.arm()
        loss = model(torch.randn(8, 4)).square().mean()
        gauge.loss_logged("loss", loss)
        loss.backward()
        gauge.before_step(0, SimpleNamespace(number=25 * sample))
        optimizer.step()
        if writes:
            with torch.no_grad():
                model[0].weight.mul_(0.9)
                model[0].bias.mul_(0.9)
        gauge.after_step(0, SimpleNamespace(number=25 * sample))
        gauge.disarm()
        model.zero_grad()
    return told


def test_what_is_unfrozen_and_in_no_optimizer_is_known_at_the_second_sample_after():
    assert census(thaw_at=6)["graph.thawed"] == ["0.weight", "0.bias"]


@pytest.mark.parametrize("case", [{}, {"thaw_at": 6, "holds_all": True}, {"thaw_at": 6, "writes": True}])
def test_what_stays_frozen_or_is_held_or_changed_is_not_left_out(case):
    assert "graph.thawed" not in census(**case)


def pair(*, steps_both=False, writes=False, samples=21, name="loss", takes_part=0):
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    both, told = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (first, second)], {}
    gauge = GraphCensus(Setup({"a": first, "b": second}, both), told.update)
    for sample in range(samples):
        gauge.arm()
        made = first(torch.randn(8, 4))
        loss = second(made if sample >= takes_part else made.detach()).square().mean()
        gauge.loss_logged(name, loss)
        loss.backward()
        for index in (0, 1) if steps_both else (1,):
            gauge.before_step(index, SimpleNamespace(number=25 * sample))
            both[index].step()
            gauge.after_step(index, SimpleNamespace(number=25 * sample))
        if writes:
            with torch.no_grad():
                first.weight.mul_(0.9)
                first.bias.mul_(0.9)
        gauge.disarm()
        first.zero_grad()
        second.zero_grad()
    return told.get("graph.idle")


def test_an_optimizer_that_never_steps_is_known_by_what_it_holds():
    assert pair() == ["a.weight", "a.bias"]
    assert pair(steps_both=True) is None
    assert pair(writes=True) is None
    assert pair(samples=10) == ["a.weight", "a.bias"]
    assert pair(samples=10, name="d_loss") is None  # a critic may be ahead
    assert pair(samples=21, name="d_loss") == ["a.weight", "a.bias"]
    assert pair(samples=11, takes_part=9) is None  # seen once: whether it was changed is not known yet


def scheduled(make, advance, steps=100):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler, told = make(optimizer), {}
    gauge = ScheduleGauge(Setup({"": nn.Linear(1, 1)}, [optimizer], scheduler=scheduler), told.update)
    for step in range(steps):
        optimizer.step()
        if step % 10 == 9:
            gauge.after_step(0, SimpleNamespace(number=step))
        advance(scheduler, step)
    return told


def test_how_many_steps_lie_between_two_of_the_schedulers():
    told = scheduled(
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=100),
        lambda scheduler, step: scheduler.step() if step % 20 == 19 else None,
    )
    assert told["schedule.interval"] in range(20, 25)


@pytest.mark.parametrize(("each", "times"), [(2, 2), (1, None)])
def test_how_many_steps_of_the_scheduler_an_optimizer_step_has(each, times):
    def advance(scheduler, step):
        for _ in range(each):
            scheduler.step()

    told = scheduled(lambda optimizer: CosineAnnealingLR(optimizer, 100), advance)
    assert told.get("schedule.times") == times


def test_what_a_plateau_schedule_remembers():
    told = scheduled(
        lambda optimizer: ReduceLROnPlateau(optimizer, mode="max"),
        lambda scheduler, step: scheduler.step(1.0 - step / 100) if step % 20 == 19 else None,
    )
    assert told["schedule.mode"] == "max"
    assert told["schedule.best"] == pytest.approx(0.81)


@pytest.mark.parametrize(("late", "passes"), [(1, 1), (6, 6)], ids=["one pass a step", "six views later"])
def test_how_often_the_model_runs_for_a_step(late, passes):
    model = nn.Linear(4, 1)
    setup, told = Setup({"": model}, [torch.optim.SGD(model.parameters(), lr=0.1)]), {}
    gauge = ModeCensus(setup, told.update)
    for sample in range(4):
        gauge.arm()
        for _ in range(late if sample > 1 else 1):
            model(torch.randn(8, 4))
        with torch.no_grad():  # validation, or a score of what was learnt
            model(torch.randn(8, 4))
        gauge.before_step(0, Slot(sample, "step"))
        gauge.disarm()
    assert told["loop.passes"] == passes
