"""The state witness: what it tells of a loop in which somebody else writes to the weights."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchdoctor.vitals.patient import Setup
from torchdoctor.vitals.state_witness import StateWitness
from torchdoctor.vitals.state_witness import _remembered as remembered

SAMPLES = (0, 1, 2, 4, 8, 16, 25, 50, 75)


def write(model):
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.mul_(1.0)


def one_tensor(model):
    with torch.no_grad():
        next(model.parameters()).mul_(1.0)


def told_by(optimizer_class=torch.optim.Adam, *, each=None, at=None, skip=(), parts=(), **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = optimizer_class(model.parameters(), lr=1e-3, **options)
    fresh, told = copy.deepcopy(optimizer.state_dict()), {}
    gauge = StateWitness(Setup({"": model}, [optimizer]), told.update)
    for step in range(76):
        if step in parts:
            one_tensor(model)
        if at == step:
            write(model)
        elif at == -step:
            optimizer.load_state_dict(fresh)
        model(torch.randn(8, 4)).square().mean().backward()
        slot = SimpleNamespace(number=step)
        if step in SAMPLES:
            gauge.before_step(0, slot)
        if step not in skip:
            optimizer.step()
        if step in SAMPLES:
            gauge.after_step(0, slot)
        optimizer.zero_grad()
        if each is not None:
            each(model)
    assert told.pop("state.at_start") == 0
    return told


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_the_optimizers_own_writes_are_accounted_for(optimizer):
    assert told_by(optimizer) == {}


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_a_write_is_placed_between_two_samples(optimizer):
    assert told_by(optimizer, at=60) == {"state.written": [[51, 75]]}


def test_a_write_at_every_step_is_a_method_of_its_own():
    assert told_by(each=write) == {"state.written_always": 5}


def test_a_write_to_one_tensor_is_no_write_to_the_state():
    assert told_by(each=one_tensor) == {}


def test_a_layer_that_is_initialized_anew_is_named_and_placed():
    told = told_by(parts=(30, 60))
    assert told == {"state.written_in_part": [[26, 50, "0.weight"], [51, 75, "0.weight"]]}


def test_a_skipped_step_is_no_write():
    assert told_by(skip=(30, 31)) == {}


def test_a_count_that_falls_tells_where_it_began_anew():
    assert told_by(at=-60) == {"state.restarted": 60}


@pytest.mark.parametrize("loaded", [False, True])
def test_weights_and_memory_that_begin_anew_at_once(loaded):
    model = nn.Linear(4, 1)
    optimizer, told = torch.optim.Adam(model.parameters(), lr=1e-3), {}
    gauge = StateWitness(Setup({"": model}, [optimizer]), told.update)
    for step in range(76):
        if step == 60:
            optimizer.state.clear()
            model.load_state_dict(model.state_dict()) if loaded else write(model)
        _train(model, optimizer, gauge, step)
    assert told["state.restarted"] == 60
    assert told.get("state.begun_anew") == (None if loaded else [60])


def test_with_two_optimizers_nothing_is_known():
    model = nn.Linear(2, 2)
    both = [torch.optim.SGD([tensor], lr=0.1) for tensor in model.parameters()]
    told = {}
    gauge = StateWitness(Setup({"": model}, both), told.update)
    for step in range(3):
        gauge.before_step(0, SimpleNamespace(number=step))
        write(model)
        gauge.after_step(0, SimpleNamespace(number=step))
    assert told == {}


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("at", [26, 40, 60])
def test_a_state_that_is_loaded_tells_the_step_that_comes_next(optimizer, at):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    stepping, told = optimizer(model.parameters(), lr=1e-3), {}
    gauge = StateWitness(Setup({"": model}, [stepping]), told.update)
    early = copy.deepcopy(model.state_dict())
    for step in range(76):
        if step == at:
            model.load_state_dict(early)
        _train(model, stepping, gauge, step)
    assert told["state.loaded"] == [at]
    told.clear()
    copy.deepcopy(model).load_state_dict(early)
    del gauge
    model.load_state_dict(early)
    assert told == {}


def test_a_part_that_is_loaded_alone_tells_it_too_and_a_whole_tells_it_once():
    torch.manual_seed(0)
    model, told = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), {}
    stepping = torch.optim.Adam(model.parameters(), lr=1e-3)
    gauge = StateWitness(Setup({"": model}, [stepping]), told.update)
    early = copy.deepcopy(model.state_dict())
    for step in range(76):
        if step == 40:
            model[0].load_state_dict({"weight": early["0.weight"], "bias": early["0.bias"]})
        if step == 60:  # an average that is put in for a validation, and taken out again
            model.load_state_dict(early)
            model.load_state_dict(early)
        _train(model, stepping, gauge, step)
    assert told["state.loaded"][0] == 40
    assert len(told["state.loaded"]) == 3


def _train(model, stepping, gauge, step):
    model(torch.randn(8, 4)).square().mean().backward()
    if step in SAMPLES:
        gauge.before_step(0, SimpleNamespace(number=step, keep=lambda name, value: None))
    stepping.step()
    if step in SAMPLES:
        gauge.after_step(0, SimpleNamespace(number=step, keep=lambda name, value: None))
    stepping.zero_grad()


@pytest.mark.parametrize(
    ("optimizer", "each", "options"),
    [(torch.optim.Adam, 1, {}), (torch.optim.SGD, 1, {"momentum": 0.9}), (torch.optim.RMSprop, 1, {})],
)
def test_a_memory_that_is_emptied_again_and_again(optimizer, each, options):
    model, told = nn.Linear(4, 1), {}
    stepping = optimizer(model.parameters(), lr=1e-3, **options)
    gauge = StateWitness(Setup({"": model}, [stepping]), told.update)
    for step in range(76):
        if step >= 10 and step % each == 0:
            stepping.state.clear()
        _train(model, stepping, gauge, step)
    assert told["state.forgotten"] == 4


@pytest.mark.parametrize(
    ("optimizer", "known"), [(torch.optim.Adam, 3), (torch.optim.RMSprop, 3), (torch.optim.SGD, 1)]
)
def test_a_memory_that_came_back_is_known_from_the_first_sample(optimizer, known):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    watched = optimizer(model.parameters(), lr=1e-3, **options)
    for _ in range(3):
        model(torch.randn(8, 4)).square().mean().backward()
        watched.step()
    told = {}
    StateWitness(Setup({"": model}, [watched]), told.update).before_step(0, SimpleNamespace(number=0))
    assert told["state.at_start"] == known


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        ({}, 0),
        ({"step": torch.tensor(7.0), "exp_avg": torch.zeros(2)}, 7),
        ({"step": torch.empty((), device="meta"), "exp_avg": torch.zeros(2)}, 1),  # a fused optimizer's, on the device
        ({"square_avg": torch.zeros(2)}, 1),
        ({"momentum_buffer": None}, 0),
    ],
)
def test_a_memory_whose_count_is_on_the_device_is_not_empty(state, steps):
    assert remembered(state) == steps


@pytest.mark.parametrize("moves", [False, True], ids=["the same", "an average that goes on"])
def test_a_state_is_known_again(moves):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    stepping, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    gauge = StateWitness(Setup({"": model}, [stepping]), {}.update)
    kept = copy.deepcopy(model.state_dict())
    for step in range(90):
        if step > 30 and step % 20 == 0:
            model.load_state_dict(kept)
            if moves:
                kept["0.weight"] += 1e-3
        if step % 5 == 0:
            gauge.before_step(
                0, SimpleNamespace(number=step, keep=lambda name, value: seen.append((name, float(value))))
            )
        model(torch.randn(8, 4)).square().mean().backward()
        stepping.step()
        stepping.zero_grad()
        if step % 5 == 0:
            gauge.after_step(0, SimpleNamespace(number=step))
    assert seen == [("state_same", float(not moves))] * 2
