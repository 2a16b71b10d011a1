import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor
from torchdoctor.vitals.kept_graphs import KeptGraphs, Mark


class Keeper:
    """What a loop does with what a step has made, and how many of them it keeps."""

    def __init__(self, most=10_000):
        self.kept, self.total, self.most = [], 0.0, most

    def add(self, value):
        self.kept.append(value)
        if len(self.kept) > self.most:
            self.kept.clear()


class Untraced(torch.optim.Optimizer):
    """Gives parameters new storage, so that backward through an old graph raises no error."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data - group["lr"] * parameter.grad


def train(keep, steps=90, features=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    if features is not None:
        model[1].register_forward_hook(lambda module, args, output: features.append(output))
    with Doctor(model, optimizer) as doctor:
        for _ in range(steps):
            x = torch.randn(8, 4)
            output = model(x)
            loss = functional.mse_loss(output, x[:, :2])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss.item())
            keep(loss, output)
        return doctor.diagnose()


def named(report):
    return "memory-growth" in [item.name for item in report.symptoms]


def summed(keeper):
    def keep(loss, output):
        keeper.total = keeper.total + loss

    return keep


SICK = {
    "losses in a list": lambda keeper: lambda loss, output: keeper.add(loss),
    "outputs in a list": lambda keeper: lambda loss, output: keeper.add(output),
    "a sum of losses": summed,
}


@pytest.mark.parametrize("keeping", SICK.values(), ids=SICK)
def test_graphs_that_nobody_lets_go_are_found(keeping):
    report = train(keeping(Keeper()))
    assert named(report)
    assert report.diagnoses[0].cause == "memory-leak"


def test_a_hidden_layer_that_a_hook_keeps_is_found():
    assert named(train(lambda loss, output: None, features=[]))


HEALTHY = {
    "nothing is kept": lambda keeper: lambda loss, output: None,
    "numbers": lambda keeper: lambda loss, output: keeper.add(loss.item()),
    "detached": lambda keeper: lambda loss, output: keeper.add((loss.detach(), output.detach())),
}


@pytest.mark.parametrize("keeping", HEALTHY.values(), ids=HEALTHY)
def test_what_has_no_graph_may_be_kept(keeping):
    assert not named(train(keeping(Keeper())))


@pytest.mark.parametrize("most", [5, 40])
def test_so_may_graphs_that_are_let_go_again(most):
    keeper = Keeper(most)
    assert not named(train(lambda loss, output: keeper.add(loss), steps=140))


@pytest.mark.parametrize(
    ("since", "length", "told"),
    [
        (200, 1000, 300),  # four samples after the first that is held
        (200, 60, None),  # let go before that
        (0, 1000, 150),  # nothing is known of what the loop does: six samples
    ],
)
def test_graphs_that_are_held_from_the_middle_on_are_told_soon(since, length, told):
    facts, kept = {}, {}
    gauge = KeptGraphs(facts.update)
    for step in range(0, 400, 25):
        kept = {at: mark for at, mark in kept.items() if since <= at and step - since < length}
        gauge._look(step)
        if facts:
            break
        kept[step] = Mark()
        gauge._held[step] = [weakref.ref(kept[step])]
    assert (step if facts.get("graph.kept") is not None else None) == told


@pytest.mark.parametrize("joined", [True, False])
def test_a_hidden_state_that_is_never_detached_joins_all_graphs(joined):
    torch.manual_seed(0)
    cell, state = nn.GRUCell(4, 4), torch.zeros(8, 4)
    optimizer = Untraced(cell.parameters())
    with Doctor(cell, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(120):
            state = cell(torch.randn(8, 4), state if joined else state.detach())
            loss = state.square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=joined)
            optimizer.step()
            doctor.log_loss(loss.item())
    assert named(doctor.diagnose()) == joined


def test_one_graph_that_all_steps_share_does_not_grow():
    torch.manual_seed(0)
    model, scale = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
    gain = scale.exp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for _ in range(120):
            loss = (gain * model(torch.randn(8, 4))).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
            doctor.log_loss(loss.item())
    assert not named(doctor.diagnose())
