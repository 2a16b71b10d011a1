import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.loss_plateau import LossPlateau

RNG = np.random.default_rng(0)
N = 2000
T = np.arange(N)
NOISE = 0.02 * RNG.standard_normal(N)
HALTED = np.maximum(6 - 0.004 * T, 2.0) + NOISE


def check(losses, **vitals):
    return LossPlateau().check(Chart.of(loss=losses, **vitals))


def test_a_flat_loss_is_a_note():
    symptom = check(HALTED, lr=np.full(N, 1e-3))
    assert symptom.severity == "info"
    assert symptom.first_step == 1500


def test_a_rate_that_vanished_while_the_loss_fell_is_a_warning():
    losses = np.where(T < 1200, 6 - 0.002 * T, 3.6) + NOISE
    symptom = check(losses, lr=np.where(T < 1200, 1e-3, 0.0))
    assert symptom.severity == "warning"
    assert "learning rate fell to 0" in symptom.message


def test_a_gradient_that_died_when_progress_stopped_is_a_warning():
    losses = np.where(T < 1300, 6 - 0.002 * T, 3.4) + NOISE
    assert check(losses, grad_norm=np.where(T < 1300, 1.0, 1e-4)).severity == "warning"


HEALTHY = {
    "no readings": ([], {}),
    "short": (HALTED[:800], {}),
    "still falling": (6 - 0.002 * T + NOISE, {}),
    "a power law": (1.7 + 6 * (1 + T) ** -0.35 + NOISE, {}),
    "near zero": (4 * np.exp(-T / 100) + np.abs(NOISE), {}),
    "annealed": (HALTED, {"lr": 1e-3 * (0.5 + 0.5 * np.cos(np.pi * T / N))}),
    "after a planned cut of the rate": (HALTED, {"lr": np.where(T < 1500, 1e-3, 5e-4)}),
    "a loss that never fell": (0.3 * RNG.standard_normal(N), {}),
    "too noisy to say": (2 + np.exp(-T / 100) * 2 + 3 * np.abs(RNG.standard_normal(N)), {}),
}


@pytest.mark.parametrize(("losses", "vitals"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, vitals):
    assert check(losses, **vitals) is None
