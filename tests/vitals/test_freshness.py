"""Whether a layer was ever trained is told from its weights, however they were initialized."""

import pytest
import torch
from tests.vitals.loops import chart_of, watch
from torch import nn

from torchdoctor.vitals.freshness import is_new

LAYERS = {
    "linear": lambda: nn.Linear(48, 64),
    "wide": lambda: nn.Linear(300, 40),
    "convolution": lambda: nn.Conv2d(16, 32, 3),
    "without a bias": lambda: nn.Linear(48, 64, bias=False),
}
INITIALIZED = {
    "default": lambda weight: weight,
    "he": nn.init.kaiming_normal_,
    "xavier": nn.init.xavier_uniform_,
    "small normal": lambda weight: nn.init.normal_(weight, std=0.02),
    "orthogonal": nn.init.orthogonal_,
}


@pytest.mark.parametrize("initialize", INITIALIZED.values(), ids=INITIALIZED)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_new(make, initialize):
    torch.manual_seed(0)
    layer = make()
    initialize(layer.weight)
    assert is_new(layer)


@pytest.mark.parametrize("initialize", INITIALIZED.values(), ids=INITIALIZED)
def test_trained(initialize):
    torch.manual_seed(0)
    layers = [nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 6)]
    for layer in layers:
        initialize(layer.weight)
    net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    centres = torch.randn(6, 24)
    for _ in range(300):
        y = torch.randint(0, 6, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(centres[y] + torch.randn(32, 24)), y).backward()
        optimizer.step()
    assert not any(is_new(layer) for layer in layers)


def test_normalization_and_recurrence():
    torch.manual_seed(0)
    norm, rnn = nn.LayerNorm(8), nn.GRU(16, 32)
    assert is_new(norm) and is_new(rnn) and is_new(nn.LayerNorm(8, bias=False))
    with torch.no_grad():
        norm.weight[3] = 1.01
        rnn.weight_hh_l0 += torch.outer(torch.randn(96), torch.randn(32)) * 0.2
    assert not is_new(norm) and not is_new(rnn)


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


@pytest.mark.parametrize("make", [lambda: nn.Linear(16, 16), lambda: nn.BatchNorm1d(16)], ids=["linear", "normalizes"])
def test_a_weight_that_is_made_of_another_is_left_out(make):
    frozen = torch.nn.utils.parametrize.register_parametrization(make(), "weight", Half()).requires_grad_(False)
    model = nn.Sequential(frozen, nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model[1].parameters(), 0.1)
    watch(model, optimizer, lambda step: (torch.randn(32, 16), torch.zeros(32, 4)), nn.MSELoss(), 8)


class Reader(nn.Module):
    def __init__(self, *, teacher: bool) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 4)
        self.teacher = nn.GRU(8, 32, batch_first=True) if teacher else None

    def forward(self, x):
        return self.head(self.recurrent(x)[0][:, -1])


@pytest.mark.parametrize("teacher", [False, True], ids=["alone", "a copy of what learns"])
def test_a_frozen_recurrent_layer_is_looked_at_where_it_is_all_that_is_frozen(teacher):
    torch.manual_seed(0)
    model = Reader(teacher=teacher)
    (model.teacher if teacher else model.recurrent).requires_grad_(False)
    optimizer = torch.optim.SGD([part for part in model.parameters() if part.requires_grad], 0.1)
    doctor = watch(model, optimizer, lambda step: (torch.randn(32, 6, 8), torch.zeros(32, 4)), nn.MSELoss(), 8)
    assert chart_of(doctor)["frozen_fresh"].count == (0 if teacher else 1)
