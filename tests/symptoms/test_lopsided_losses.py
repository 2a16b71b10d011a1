import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.lopsided_losses import LopsidedLosses

RNG = np.random.default_rng(0)
NOISE = np.exp(0.1 * RNG.standard_normal(600))
FADES = np.maximum(np.exp(-np.arange(600) / 40), 0.005)

SICK = {
    "the discriminator wins": {"d_loss": 1.4 * FADES * NOISE, "g_loss": (0.7 + 6 * (1 - FADES)) * NOISE},
    "by their full names": {"discriminator": 1.4 * FADES * NOISE, "generator": (0.7 + 6 * (1 - FADES)) * NOISE},
    "the generator wins": {"d_loss": (1.4 + 4 * (1 - FADES)) * NOISE, "g_loss": 0.7 * FADES * NOISE},
    "least squares": {"disc_loss": 0.5 * FADES * NOISE, "gen_loss": (0.5 + 0.5 * (1 - FADES)) * NOISE},
    "log(1 - D) that goes to zero": {"d_loss": 1.4 * FADES * NOISE, "g_loss": -0.7 * FADES * NOISE},
    "the discriminator wins with smoothed labels": {
        "d_loss": 0.325 + 1.1 * np.exp(-np.arange(600) / 20) + 0.0005 * NOISE,
        "g_loss": (0.7 + 7 * (1 - FADES)) * NOISE,
    },
    "a hinge": {"d_loss": 2 * FADES * NOISE, "g_loss": -0.1 + 4 * (1 - FADES) * NOISE},
    "scaled by a thousand": {"d_loss": 1400 * FADES * NOISE, "g_loss": 700 * (1 + 9 * (1 - FADES)) * NOISE},
}
SWING = 1 + 0.5 * np.sin(np.arange(600) / 30)
HEALTHY = {
    "no players": {"loss": FADES},
    "one player only": {"d_loss": FADES},
    "an actor and its critic": {"critic": 1.4 * FADES * NOISE, "actor": (0.7 + 6 * (1 - FADES)) * NOISE},
    "in balance": {"d_loss": 1.3 * NOISE, "g_loss": 0.8 * NOISE},
    "swings": {"d_loss": SWING * NOISE, "g_loss": (2 - SWING) * NOISE},
    "a lead that passes": {
        "d_loss": np.where((np.arange(600) > 450) & (np.arange(600) < 540), 0.02, 1.2) * NOISE,
        "g_loss": np.where((np.arange(600) > 450) & (np.arange(600) < 540), 5.0, 0.9) * NOISE,
    },
    "smoothed labels, a lead that keeps moving": {"d_loss": 0.45 * NOISE, "g_loss": (0.7 + 4 * (1 - FADES)) * NOISE},
    "smoothed labels, found its floor, and the other is near": {
        "d_loss": 0.325 + 1.1 * FADES + 0.0005 * NOISE,
        "g_loss": (0.7 + 2 * (1 - FADES)) * NOISE,
    },
    "a part of the loss that is constant from the start": {
        "d_loss": [0.33] * 600,
        "g_loss": (0.7 + 6 * (1 - FADES)) * NOISE,
    },
    "a hinge, in balance": {"d_loss": 1.2 * NOISE, "g_loss": np.sin(np.arange(600) / 30) * NOISE},
    "a hinge, the other does not climb": {"d_loss": 2 * FADES * NOISE, "g_loss": -0.1 + 0.5 * (1 - FADES) * NOISE},
    "log(1 - D) in balance": {"d_loss": 1.4 * NOISE, "g_loss": -0.7 * NOISE},
    "both fall": {"d_loss": FADES * NOISE, "g_loss": FADES * NOISE},
    "the other stays where it was": {"d_loss": 1.4 * FADES * NOISE, "g_loss": 0.7 * NOISE},
    "a Wasserstein critic": {"d_loss": -5 * (1 - FADES) * NOISE, "g_loss": 3 * (1 - FADES) * NOISE},
    "too early": {"d_loss": [1.4] * 20 + [0.001] * 60, "g_loss": [0.7] * 20 + [9.0] * 60},
}


@pytest.mark.parametrize("vitals", SICK.values(), ids=SICK)
def test_fires(vitals):
    symptom = LopsidedLosses().check(Chart.of(**vitals))
    assert symptom
    assert 50 < symptom.first_step < 250


@pytest.mark.parametrize("vitals", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(vitals):
    assert LopsidedLosses().check(Chart.of(**vitals)) is None


def test_a_game_that_is_over_at_once_is_measured_from_its_first_values():
    chart = Chart.of(d_loss=[0.8, 0.1] + [0.0] * 298, g_loss=[0.3] + [1.7] * 299)
    assert LopsidedLosses().check(chart)
