"""Loops that ask their model what to do: told from loops whose single rows are learnt."""

import copy
import random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from torchdoctor.doctor import Doctor
from torchdoctor.errors import PatientError

STEPS = 60


def net(inputs, outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def facts_of(run, model):
    random.seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with Doctor(model, optimizer) as doctor:
        for _ in range(STEPS):
            loss = run(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        doctor.diagnose()
        chart = doctor._examination.chart
    return chart.fact("loop.acts"), chart.fact("data.differentiated")


def asks_with_gradients(model):
    model(torch.randn(4)).argmax().item()
    return F.smooth_l1_loss(model(torch.randn(32, 4)), torch.ones(32, 2))


def asks_without(model):
    with torch.no_grad():
        model(torch.randn(1, 4)).argmax()
    return F.smooth_l1_loss(model(torch.randn(32, 4)), torch.ones(32, 2))


def rolls_out(model):
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(4, 4))
    return F.smooth_l1_loss(model(torch.randn(32, 4)), torch.ones(32, 2))


def learns_an_episode(model):
    said = [model(torch.randn(1, 4)).log_softmax(-1)[0, 0] for _ in range(random.randint(10, 30))]
    return -sum(said) / len(said)


def learns_samples_one_by_one(model):
    said = [F.mse_loss(model(torch.randn(1, 4)), torch.ones(1, 2)) for _ in range(random.choice((16, 9)))]
    return sum(said) / len(said)


def is_fed_back(model):
    state = torch.zeros(1, 4)
    for _ in range(random.randint(10, 30)):
        state = model(state)
    return state.square().sum()


def has_a_boundary(model):
    x = torch.randn(32, 4, requires_grad=True)
    slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return slope.square().mean() + (model(torch.zeros(1, 4)) - 1).square().mean()


def has_a_teacher(model):
    with torch.no_grad():
        target = model(torch.randn(32, 4))
    return F.mse_loss(model(torch.randn(32, 4)), target)


def has_batches_of_one(model):
    return F.mse_loss(model(torch.randn(1, 4)), torch.ones(1, 2))


@pytest.mark.parametrize("run", [asks_with_gradients, asks_without, rolls_out, learns_an_episode])
def test_a_loop_that_acts_is_seen(run):
    assert facts_of(run, net(4, 2)) == (True, None)


class Agent(nn.Module):
    """No forward pass of its own: the loop calls its parts."""

    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh()), net(16, 2), nn.Linear(16, 1)


def test_the_parts_of_a_model_that_is_never_called_are_seen():
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
    with Doctor(agent, optimizer) as doctor:
        for _ in range(STEPS):
            with torch.no_grad():
                agent.actor(agent.body(torch.randn(1, 4))).argmax()
            hidden = agent.body(torch.randn(32, 4))
            loss = agent.critic(hidden).square().mean() + agent.actor(hidden).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
        doctor.diagnose()
        chart = doctor._examination.chart
    assert chart.fact("loop.acts")
    assert chart.fact("modules.outputs") == ["critic", "actor.2"]


@pytest.mark.parametrize("run", [has_a_boundary, has_a_teacher, has_batches_of_one, learns_samples_one_by_one])
def test_other_loops_do_not_act(run):
    assert facts_of(run, net(4, 2))[0] is None


def test_a_state_that_is_fed_back_is_not_an_episode():
    assert facts_of(is_fed_back, net(4, 4))[0] is None


def test_derivatives_by_the_inputs_are_seen():
    assert facts_of(has_a_boundary, net(4, 2))[1]


def test_an_optimizer_beside_others_may_hold_a_tensor_that_is_in_no_model():
    model, temperature = net(4, 2), torch.zeros(1, requires_grad=True)
    ours, beside = torch.optim.Adam(model.parameters()), torch.optim.Adam([temperature])
    Doctor(model, [ours, beside]).detach()
    with pytest.raises(PatientError, match="none of the model's parameters"):
        Doctor(copy.deepcopy(model), [ours, beside])
