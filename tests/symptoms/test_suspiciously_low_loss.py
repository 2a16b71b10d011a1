import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.suspiciously_low_loss import SuspiciouslyLowLoss

RNG = np.random.default_rng(0)
T = np.arange(300)
QUICK = 4.2 * np.exp(-T / 40) + 0.01 * np.abs(RNG.standard_normal(300))
EPOCH = {"dataset_size": 100_000, "batch_size": 64}
TEXT = {"data.next_token": True, "loss.chance": 4.2}


def check(losses, facts=None, context=None, validation=(), **vitals):
    chart = Chart.of(loss=losses, lr=np.full(len(losses), 1e-3), context=context, **vitals)
    for number, value in enumerate(validation):
        chart.put(99 + 50 * number, "val_loss", value)
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    return SuspiciouslyLowLoss().check(chart)


SICK = {
    "the next token, known before its time": (QUICK, {"facts": TEXT, "context": EPOCH}),
    "the same, from a stream": (QUICK, {"facts": TEXT}),
    "nothing left in the first epoch, and validation says no": (QUICK, {"context": EPOCH, "validation": [4.5, 5.0]}),
    "maximised": (-2.3 - 0.01 * T, {"facts": {"loss.function": "MSELoss"}, "criterion": 2.3 + 0.01 * T}),
    "below zero where that cannot be": (
        1 - 0.01 * T,
        {"facts": {"loss.function": "CrossEntropyLoss"}, "criterion": 1 - 0.01 * T},
    ),
}


@pytest.mark.parametrize(("losses", "more"), SICK.values(), ids=SICK)
def test_fires(losses, more):
    assert check(losses, **more).severity == "warning"


@pytest.mark.parametrize(
    ("losses", "growth", "fires"),
    [
        (-2.3 - 1e-3 * T**2.0, 1.3, True),  # a minus sign too many
        (-2.3 - 1e-3 * T**2.0, 1.0, False),  # returns that grow are no weights that grow
        (9 - np.exp(T / 30), 1.0, True),  # ever faster: nothing stops it
        (-14 - 3e-2 * T**3.0, 1.0, True),  # a power of the steps, but no likelihood goes that far
        (-14 - 3e-4 * T**3.0, 1.0, False),
        (5 - 60 * (1 - np.exp(-T / 80)), 1.3, False),  # a log-likelihood, on its way to its bottom
    ],
)
def test_a_loss_without_a_bottom(losses, growth, fires):
    chart = Chart.of(loss=losses, lr=np.full(300, 1e-3))
    chart.names = ("a.weight", "b.weight")
    for step in range(0, 300, 25):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [growth ** (step / 25), 1.0]}})
    assert (SuspiciouslyLowLoss().check(chart) is not None) == fires


@pytest.mark.parametrize(("runs", "fires"), [(1, True), (12, False)], ids=["one pass", "a path of twelve actions"])
def test_a_loss_that_begins_at_nothing_and_weighs_actions(runs, fires):
    losses = 0.02 * np.sin(1.7 * T) - 4e-6 * T**2.0
    chart = Chart.of(loss=losses, lr=np.full(300, 1e-3))
    chart.names = ("a.weight",)
    repeated = {"a": runs} if runs > 1 else {}
    chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["a"], "modules.repeated": repeated}})
    for step in range(0, 300, 25):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [1.3 ** (step / 25)]}})
    assert (SuspiciouslyLowLoss().check(chart) is not None) == fires


HEALTHY = {
    "no readings": ([], {}),
    "an easy task": (QUICK, {"facts": {"loss.chance": 4.2}}),
    "an easy task, and validation agrees": (QUICK, {"context": EPOCH, "validation": [0.5, 0.1]}),
    "text at a usual pace": (1.5 + 2.7 * np.exp(-T / 40), {"facts": TEXT}),
    "text learnt by heart, in many epochs": (
        QUICK,
        {"facts": TEXT, "context": {"dataset_size": 500, "batch_size": 64}},
    ),
    "overfitting, in many epochs": (
        QUICK,
        {"context": {"dataset_size": 500, "batch_size": 64}, "validation": [4.5, 5.0]},
    ),
    "a likelihood of any sign": (1 - 0.01 * T, {}),
    "a bonus taken off": (
        1 - 0.01 * T,
        {"facts": {"loss.function": "CrossEntropyLoss"}, "criterion": np.full(300, 0.5)},
    ),
    "nothing left, and the size of the data is not known": (QUICK, {"validation": [4.5, 5.0]}),
}


@pytest.mark.parametrize(("losses", "more"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, more):
    assert check(losses, **more) is None
