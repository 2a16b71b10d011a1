"""What the census of those left behind tells: optimizers that step for nobody, and a criterion's own weights."""

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
