import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.underfitting import Underfitting

RNG = np.random.default_rng(0)
N = 600
T = np.arange(N)
NOISE = 0.02 * RNG.standard_normal(N)
HIGH = 1.9 + 0.4 * np.exp(-T / 40) + NOISE


def check(losses, validation, dropout=(), decay=0.0, weights=None, **more):
    chart = Chart.of(loss=losses, lr=np.full(len(losses), 1e-3), context={"dropout": list(dropout)}, **more)
    chart.groups = [{"weight_decay": decay}]
    for step, row in (weights or {}).items():
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": row}})
    for step in range(99, len(losses), 100):
        chart.put(step, "val_loss", float(validation(step)))
    return Underfitting().check(chart)


def like_training(step):
    return HIGH[step] + 0.01


def test_high_flat_and_close_is_a_note():
    symptom = check(HIGH, like_training)
    assert symptom.severity == "info"
    assert symptom.first_step == 300


def test_a_spike_does_not_end_a_stretch_in_which_the_loss_stays():
    assert check(np.where(abs(T - 450) < 4, 3.0, HIGH), like_training).severity == "info"


def test_what_holds_the_model_back_makes_it_a_warning():
    assert "dropout is 0.9" in check(HIGH, like_training, dropout=[0.1, 0.9]).message
    shrunk = {0: [4.0, 3.0], 500: [0.2, 0.1]}
    symptom = check(HIGH, like_training, decay=1.0, weights=shrunk)
    assert symptom.severity == "warning"
    assert "shrunk the weights" in symptom.message
    assert check(HIGH, like_training, weights=shrunk).severity == "info"
    gone = {0: [4.0, 0.1, 0.1, 3.0], 500: [1e-9, 0.5, 0.5, 1e-8]}
    assert check(HIGH, like_training, decay=0.1, weights=gone).severity == "warning"
    grown = {0: [4.0, 0.1, 0.1, 3.0], 500: [3.0, 0.5, 0.5, 2.5]}
    assert check(HIGH, like_training, decay=0.1, weights=grown).severity == "info"


def test_dropout_disturbs_training_alone():
    better = check(HIGH, lambda step: 1.4, dropout=[0.9])
    assert better.severity == "warning"
    assert check(HIGH, lambda step: 1.4) is None
    assert check(HIGH, lambda step: 2.6, dropout=[0.9]) is None


def narrow(*widths, entering=20, takers=(), kind="mse"):
    facts = {
        "loss.kind": kind,
        "modules.entering": list(takers),
        "modules.names": [f"fc{index}" for index in range(len(widths))],
        "modules.kinds": ["Linear"] * len(widths),
        "modules.widths": list(widths),
        "modules.outputs": [f"fc{len(widths) - 1}"],
    }
    chart = Chart.of(
        loss=0.4 + 2 * np.exp(-T / 40) + NOISE, lr=np.full(N, 1e-3), context={"input_shape": [32, entering]}
    )
    chart.add({"type": "facts", "step": 0, "facts": facts})
    for step in range(99, N, 100):
        chart.put(step, "val_loss", 0.42)
    return Underfitting().check(chart)


def test_two_units_that_all_must_pass_are_a_reason_even_at_a_lower_loss():
    assert "goes through 2 units" in narrow(2, 5).message
    assert narrow(2, 5).severity == "warning"
    assert narrow(64, 5) is None
    assert narrow(64, 2, 64, 20) is None  # an autoencoder's code
    assert "goes through 2 units" in narrow(64, 2, 64, 24, kind="cross-entropy").message  # many classes
    assert narrow(2, 1, entering=2) is None
    assert "goes through 1 units" in narrow(64, 1, 64, 20, takers=(20, 64, 1, 64)).message  # no code is that narrow
    assert narrow(64, 1, 64, 20, takers=(20, 64, 64, 64)) is None
    assert "goes through 2 units" in narrow(64, 2, 5, takers=(20, 64, 2)).message
    assert narrow(64, 1, 5, takers=(20, 64, 64)) is None  # the scores of an attention


HEALTHY = {
    "no readings": ([], like_training),
    "short": (HIGH[:120], like_training),
    "low": (0.2 + 2 * np.exp(-T / 40) + NOISE, lambda step: 0.22),
    "a gap": (HIGH, lambda step: 2.6),
    "training still falls": (2.3 - 0.001 * T + NOISE, lambda step: 2.3 - 0.001 * step),
    "validation still falls": (HIGH, lambda step: 2.1 - 0.0004 * step),
    "learnt and lost": (np.where(T < N // 3, 2 * np.exp(-T / 20) + 0.1, HIGH), like_training),
    "negative": (HIGH - 20, lambda step: -18.0),
    "a jump, and not back since": (HIGH + 0.3 * (T >= 450), lambda step: 1.95),
    "a jump, and half of the way back": (
        HIGH + np.where(T < 400, 0, 0.2 + 0.3 * np.exp((400 - T) / 40)),
        lambda _: 2.1,
    ),
}


@pytest.mark.parametrize(("losses", "validation"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, validation):
    assert check(losses, validation, dropout=[0.9]) is None


@pytest.mark.parametrize(("dropout", "learnt", "fires"), [(0.9, 0.04, True), (0.9, 0.4, False), (0.1, 0.04, False)])
def test_what_dropout_drowns_may_creep_on(dropout, learnt, fires):
    losses = [3.3 - 3.3 * learnt * step / 500 for step in range(500)]
    chart = Chart.of(loss=losses, lr=[1e-3] * 500, context={"dropout": [dropout]})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 3.3}})
    for step in range(99, 500, 100):
        chart.put(step, "val_loss", losses[step])
    found = Underfitting().check(chart)
    assert (found is not None and found.severity == "warning") == fires
