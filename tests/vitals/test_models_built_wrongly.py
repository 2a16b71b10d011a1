"""Models that are built or begun wrongly, each beside its healthy look-alike: what the gauges see and what is found."""

import pytest
import torch
from tests.vitals.loops import causes_of, chart_of, found, watch
from torch import nn
from torch.nn import functional

from torchdoctor import Doctor


def series(_step):
    phase = 6.28 * torch.rand(16, 1)
    values = torch.sin(phase + 0.4 * torch.arange(25.0)) + 0.3 * torch.randn(16, 25)
    return values[:, :-1, None], values[:, 1:, None]


def classes(_step):
    x = torch.randn(32, 8)
    return x, (x[:, 0] > 0).long()


class Recurrent(nn.Module):
    def __init__(self, backwards=False, width=None):
        super().__init__()
        self.layer = nn.GRU(1, 16, batch_first=True, bidirectional=backwards)
        self.head = nn.Linear(32 if backwards else 16, 1)
        if width is not None:
            for weight in self.layer.parameters():
                nn.init.normal_(weight, std=width)

    def forward(self, x):
        return self.head(self.layer(x)[0])


def by_hand(output, target):
    return (target - output).square().mean()


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.l1_loss, by_hand])
@pytest.mark.parametrize("backwards", [True, False])
def test_a_series_that_is_read_backwards_is_a_leak(loss, backwards):
    torch.manual_seed(0)
    model = Recurrent(backwards)
    doctor = watch(model, torch.optim.Adam(model.parameters(), 0.02), series, loss, 101, functional=True)
    assert chart_of(doctor)["last_position_error"].count > 4
    assert ("uneven-position-loss" in found(doctor)) is backwards
    if backwards:
        assert causes_of(doctor, "uneven-position-loss")[0] == "information-leak"


@pytest.mark.parametrize(("width", "wide"), [(2.0, True), (None, False)])
def test_gates_that_are_shut_from_the_start(width, wide):
    torch.manual_seed(0)
    model = Recurrent(width=width)
    doctor = watch(model, torch.optim.Adam(model.parameters(), 1e-3), series, functional.mse_loss, 12, functional=True)
    assert ("saturated-activations" in found(doctor)) is wide
    if wide:
        assert causes_of(doctor, "saturated-activations")[0] == "bad-initialization"


@pytest.mark.parametrize(("learnt", "sick"), [(False, True), (True, False)])
def test_batchnorm_at_rest_is_wrong_where_it_has_learnt_nothing(learnt, sick):
    """A trick of fine-tuning keeps it in eval mode: with the statistics of what the model was trained on before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
    if learnt:
        model(classes(0)[0])
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    doctor = watch(model, optimizer, classes, functional.cross_entropy, 12, functional=True)
    assert chart_of(doctor)["resting_as_new"].latest == float(sick)
    assert ("wrong-mode" in found(doctor)) is sick
    if sick:
        assert causes_of(doctor, "wrong-mode")[0] == "eval-mode-in-training"


@pytest.mark.parametrize(("dropout", "sick"), [(0.0, False), (0.1, True)])
def test_batchnorm_that_is_frozen_rests_with_its_trunk(dropout, sick):
    """The head that learns is trained in eval mode too: that makes a difference where it has dropout."""
    torch.manual_seed(0)
    trunk = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU()]
    model = nn.Sequential(*trunk, nn.Dropout(dropout), nn.Linear(16, 2))
    model(classes(0)[0])
    model[:3].requires_grad_(False)
    model.eval()
    optimizer = torch.optim.SGD(model[4].parameters(), 0.05)
    doctor = watch(model, optimizer, classes, functional.cross_entropy, 12, functional=True)
    assert ("wrong-mode" in found(doctor)) is sick


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        ([nn.Linear(8, 8)] * 4, True),
        ([nn.Linear(8, 8) for _ in range(4)], False),
        ([nn.Linear(8, 8), activation := nn.ReLU(), nn.Linear(8, 8), activation], False),
        ([nn.Linear(8, 8).requires_grad_(False)] * 4 + [nn.Linear(8, 8)], False),
    ],
)
def test_a_list_that_repeats_one_layer_is_noted(blocks, said):
    model = nn.Sequential(nn.Sequential(*blocks), nn.Linear(8, 2))
    with Doctor(model, torch.optim.SGD(model.parameters(), 0.1), settings={"quiet": True}) as doctor:
        notes = [text for text in doctor.diagnose().notes if "the same Linear 4 times" in text]
    assert bool(notes) is said
    assert all(text.startswith("0 holds") for text in notes)
