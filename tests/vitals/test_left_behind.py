"""What the census of those left behind tells: optimizers that step for nobody, and a criterion's own weights."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from torchdoctor.vitals.left_behind import LeftBehind
from torchdoctor.vitals.patient import Setup

SAMPLES = (0, 1, 2, 4, 8, 16, 25, 50, 75, 100)


def told_by(turn):
    """Two players of which the second learns at each step, and the first when it is its turn; both always step."""
    torch.manual_seed(0)
    players = [nn.Linear(4, 4), nn.Linear(4, 1)]
    optimizers = [torch.optim.Adam(player.parameters(), 1e-3) for player in players]
    told = {}
    gauge = LeftBehind(Setup({"g": players[0], "d": players[1]}, optimizers), told.update)
    for step in range(101):
        players[0].requires_grad_(turn(step))
        players[1](players[0](torch.randn(8, 4))).square().mean().backward()
        for index, optimizer in enumerate(optimizers):
            slot = SimpleNamespace(number=step)
            if step in SAMPLES:
                gauge.before_step(index, slot)
            optimizer.step()
            if step in SAMPLES:
                gauge.after_step(index, slot)
            optimizer.zero_grad()
    return told


def test_never_thawed_again():
    resting = told_by(lambda step: step == 0)["graph.resting"]
    assert resting == {"tensors": ["g.weight", "g.bias"], "since": 0, "frozen": True}


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(lambda step: True, id="always"),
        pytest.param(lambda step: step % 3 == 0, id="every third step"),
        pytest.param(lambda step: step % 25 == 3, id="only between two samples"),
        pytest.param(lambda step: False, id="never, which the graph's census tells"),
    ],
)
def test_players_that_take_turns_do_not_rest(turn):
    assert "graph.resting" not in told_by(turn)


class Centres(nn.Module):
    """A criterion with weights of its own, and a network that only judges."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(3))
        self.judge = nn.Linear(3, 1)

    def forward(self, out):
        return (out - self.centres).square().mean() + self.judge(out).mean()


def left_out(*, held=False, by_hand=False):
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 3), Centres()
    own = [criterion.centres] if held else []
    optimizer = torch.optim.SGD([*model.parameters(), *own], 1e-2)
    told = {}
    gauge = LeftBehind(Setup({"": model}, [optimizer], loss_fn=criterion), told.update)
    for step in range(6):
        criterion(model(torch.randn(8, 4))).backward()
        gauge.before_step(0, SimpleNamespace(number=step))
        optimizer.step()
        gauge.after_step(0, SimpleNamespace(number=step))
        if by_hand:
            with torch.no_grad():
                criterion.centres.sub_(0.1 * criterion.centres.grad)
        optimizer.zero_grad()
    return told.get("graph.criterion_left_out")


def test_a_criterion_of_weights_that_nobody_holds():
    assert left_out() == ["loss_fn.centres"]


@pytest.mark.parametrize("given", [{"held": True}, {"by_hand": True}])
def test_a_criterion_that_somebody_moves(given):
    assert not left_out(**given)


class Projected(nn.Module):
    """Two layers of its own, and between or before them one that `forward` is given by a function."""

    def __init__(self, layer, *, first=False):
        super().__init__()
        self.below, self.above = nn.Linear(4, 4), nn.Linear(4, 1)
        self.layer, self.first = [layer], first

    def forward(self, inputs):
        if self.first:
            return self.above(self.below(self.layer[0]()(inputs)).relu())
        return self.above(self.layer[0]()(self.below(inputs).relu()).relu())


def anew(model, loss=lambda model, inputs: model(inputs).square().mean()):
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    told = {}
    gauge = LeftBehind(Setup({"": model}, [optimizer]), told.update)
    for step in range(6):
        error = loss(model, torch.randn(8, 4))
        gauge._backward(error)
        error.backward()
        gauge.before_step(0, SimpleNamespace(number=step))
        optimizer.step()
        gauge.after_step(0, SimpleNamespace(number=step))
        optimizer.zero_grad()
    return told.get("graph.made_anew")


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(4, 4), [4, 4]),
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten()), [1, 1, 3]),
    ],
)
def test_a_layer_that_forward_makes(layer, shape):
    torch.manual_seed(0)
    assert anew(Projected(layer)) == [shape]


def perturbed(model, inputs):
    """An attack: a parameter for each batch, which is no layer's."""
    return model(inputs + nn.Parameter(torch.zeros(8, 4))).square().mean()


def of_a_copy(model, inputs):
    """A task of meta-learning."""
    return copy.deepcopy(model)(inputs).square().mean()


KEPT = nn.Linear(4, 4)
OTHERS = {
    "an augmentation that is drawn": lambda: anew(Projected(lambda: nn.Linear(4, 4), first=True)),
    "somebody else's layer": lambda: anew(Projected(lambda: KEPT)),
    "drawn without gradients": lambda: anew(Projected(lambda: nn.Linear(4, 4).requires_grad_(False))),
    "one for each batch": lambda: anew(nn.Linear(4, 4), perturbed),
    "a copy of the model": lambda: anew(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), of_a_copy),
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_layers_that_are_nobodys_on_purpose(others):
    torch.manual_seed(0)
    assert not others()
