"""Loops that are odd on purpose, beside the faults that look like them."""

import numpy as np
import pytest
import torch
from tests.vitals.loops import stack
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor
from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.dead_units import DeadUnits
from torchdoctor.symptoms.hindsight import in_hindsight
from torchdoctor.symptoms.state_overwritten import StateOverwritten

FALLING = [4.0 - 0.01 * step for step in range(200)]


def charged(runs, losses):
    """A chart of a net whose second layer, which runs so often in a pass, is fed with zeros at its first turn."""
    chart = Chart.of(loss=losses)
    facts = {"modules.names": ["a", "b"], "modules.kinds": ["Linear", "Linear"], "modules.repeated": {"b": runs}}
    chart.add({"type": "facts", "step": 0, "facts": facts})
    for step in range(0, 60, 10):
        chart.add({"type": "modules", "step": step, "vitals": {"act_dead": [0.0, 0.95]}})
    return chart


@pytest.mark.parametrize(
    ("runs", "losses", "fires"),
    [
        (8, FALLING, False),  # neurons that must charge before they fire
        (1, FALLING, True),
        (8, [2.3] * 200, True),  # and never do
    ],
)
def test_what_enters_a_loop_over_time_at_its_first_turn(runs, losses, fires):
    found = DeadUnits().check(charged(runs, losses))
    assert (found is not None and found.severity != "info") == fires


@pytest.mark.parametrize(
    ("checksums", "fires"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 5, 7, 5, 7, 5, 5, 5, 5, 5], False),  # read in a fixed order; the looks fall into step
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 5, 5, 5, 5, 5], True),  # the iterator is made anew at each step
    ],
)
def test_a_batch_that_comes_round(checksums, fires):
    chart = Chart.of(loss=FALLING)
    for place, value in enumerate(checksums):
        chart.put(25 * place, "input_checksum", float(value))
    chart.context["batch_size"] = 40
    found = BatchAnomaly().check(chart)
    assert (found is not None and found.severity == "warning") == fires


@pytest.mark.parametrize(
    ("facts", "fires"),
    [
        ({"state.begun_anew": [200], "state.restarted": 200, "state.written": [[190, 215]]}, False),
        ({"state.restarted": 200, "state.written": [[190, 215]]}, True),
        ({"state.begun_anew": [100], "state.restarted": 200, "state.written": [[190, 215]]}, True),
        ({"state.begun_anew": [100], "state.written": [[90, 115], [190, 215]]}, True),
    ],
)
def test_weights_and_memory_that_begin_anew_together(facts, fires):
    chart = Chart.of(loss=FALLING + [3.9] * 40)
    chart.add({"type": "facts", "step": 215, "facts": facts})
    assert (StateOverwritten().check(chart) is not None) == fires


@pytest.mark.parametrize(("step", "severity"), [(600, "info"), (605, "info"), (590, "warning"), (700, "warning")])
def test_a_leap_at_a_new_beginning_is_a_note_in_the_end(step, severity):
    chart = Chart.of(loss=[1.0] * 900)
    chart.add({"type": "facts", "step": 640, "facts": {"state.begun_anew": [600]}})
    chart.episodes.append(Symptom("loss-spike", "LO01", "warning", 0.8, step, step + 9, message="rose"))
    assert in_hindsight(chart).episodes[0].severity == severity


def trained(model, optimizer, loss_of, steps=120, at=None):
    torch.manual_seed(0)
    x = torch.randn(512, 6)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for step in range(steps):
            if at is not None:
                at(step)
            rows = torch.randint(512, (32,))
            optimizer.zero_grad()
            loss = loss_of(model(x[rows]), y[rows])
            if loss.requires_grad:
                loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
    return {item.name: item.severity for item in doctor.diagnose().symptoms}


class Scaled(nn.Module):
    """A layer whose scale is used from some step on, or never, or without its gradient."""

    def __init__(self, used):
        super().__init__()
        self.inner, self.scale, self.used = stack(6, 16, 3), nn.Parameter(torch.ones(3)), used
        self.step = 0

    def forward(self, x):
        self.step += 1
        out = self.inner(x)
        return out * self.scale if self.step > self.used else out * self.scale.detach()


@pytest.mark.parametrize(("used", "severity"), [(60, "info"), (10**9, "warning")])
def test_a_parameter_that_waits_for_its_time(used, severity):
    model = Scaled(used)
    found = trained(model, torch.optim.Adam(model.parameters(), 1e-2), functional.cross_entropy)
    assert found.get("no-gradient") == severity


def test_gradients_of_an_earlier_training_are_not_those_of_this_one():
    model = stack(6, 16, 3)
    functional.cross_entropy(model(torch.randn(32, 6)), torch.randint(3, (32,))).backward()
    held = [model[2].weight, model[2].bias]
    optimizer = torch.optim.SGD(held, 1e-3)

    def estimated(out, target):
        """Derivatives from differences alone, which reach what is held."""
        loss = functional.cross_entropy(out, target).detach()
        for tensor in held:
            tensor.grad = 1e-3 * torch.randn_like(tensor)
        return loss

    assert "frozen-weights" not in trained(model, optimizer, estimated, steps=40)
    other = stack(6, 16, 3)
    found = trained(other, torch.optim.SGD(other[:1].parameters(), 0.1), functional.cross_entropy)
    assert found["frozen-weights"] == "warning"


def test_generations_that_begin_anew_in_one_loop():
    model = stack(6, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), 5e-2)

    def begin(step):
        if step in (120, 240):
            for layer in (model[0], model[2]):
                layer.reset_parameters()
            optimizer.state.clear()

    def forget(step):
        if step in (120, 240):
            with torch.no_grad():
                for tensor in model.parameters():
                    tensor.copy_(torch.from_numpy(np.random.default_rng(step).normal(0, 0.3, tensor.shape)).float())

    found = trained(model, optimizer, functional.cross_entropy, steps=360, at=begin)
    assert not [name for name, severity in found.items() if severity != "info"], found
    found = trained(model, optimizer, functional.cross_entropy, steps=360, at=forget)
    assert [name for name, severity in found.items() if severity != "info"], found
