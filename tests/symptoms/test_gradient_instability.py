import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradient_instability import GradientInstability

RNG = np.random.default_rng(0)
WILD = np.exp(2.0 * RNG.standard_normal(160))
FALLS = np.linspace(4.0, 1.0, 80)
LOSES_GROUND = np.concatenate([FALLS, np.linspace(1.0, 4.0, 80)])


def check(norms, losses):
    return GradientInstability().check(Chart.of(grad_norm=norms, loss=losses))


def test_wild_swings_while_the_loss_loses_ground():
    assert check(WILD, LOSES_GROUND).severity == "warning"


def test_wild_swings_without_progress_are_a_note():
    assert check(WILD, np.concatenate([FALLS[:30], np.linspace(2.9, 2.91, 130)])).severity == "info"


def test_a_likelihood_that_went_below_zero_and_comes_back():
    assert check(WILD, np.concatenate([np.linspace(1.0, -2.0, 80), np.linspace(-2.0, 0.0, 80)])).severity == "warning"


def test_losses_that_need_not_stay_low_are_a_note():
    from_zero_and_back = np.concatenate([np.linspace(0.0, -2.7, 80), np.linspace(-2.7, -0.1, 20), np.full(60, -0.04)])
    assert check(WILD, from_zero_and_back).severity == "info"  # a policy that has become sure of what pays
    chart = Chart.of(grad_norm=WILD, loss=LOSES_GROUND, reward=np.linspace(0.0, 1.0, 160))
    assert GradientInstability().check(chart).severity == "info"


HEALTHY = {
    "no readings": ([], []),
    "swings of small batches": (np.exp(0.8 * RNG.standard_normal(160)), LOSES_GROUND),
    "the loss falls": (WILD, np.linspace(4.0, 1.0, 160)),
    "memorized": (WILD, np.concatenate([np.linspace(4.0, 0.01, 80), np.full(80, 0.01)])),
    "a steep trend": (np.exp(np.linspace(0, 6, 160)), LOSES_GROUND),
    "steps from which nothing can be learnt": (np.where(np.arange(160) % 3 > 0, 0.0, 0.3), LOSES_GROUND),
    "too short": (WILD[:40], LOSES_GROUND[-40:]),
    "no loss": (WILD, []),
}


@pytest.mark.parametrize(("norms", "losses"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(norms, losses):
    assert check(norms, losses) is None
