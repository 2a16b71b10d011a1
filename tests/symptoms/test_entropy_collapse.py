import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.entropy_collapse import EntropyCollapse

RNG = np.random.default_rng(0)
N = 400
FALLS = np.maximum(1.6 * np.exp(-np.arange(N) / 20), 0.002)
FLAT = RNG.standard_normal(N)
RISES = np.linspace(0, 5, N) + RNG.standard_normal(N)

SICK = {
    "flat reward": {"entropy": FALLS, "reward": FLAT},
    "falling return": {"policy_entropy": FALLS, "episode_return": -RISES},
    "half of it, and the reward fell": {"entropy": np.linspace(1.6, 0.4, N), "reward": -RISES},
    "gone at once": {"entropy": [1.6] + [0.0] * (N - 1), "reward": FLAT},
    "paid for being sure, and paid well": {"entropy": FALLS, "reward": RISES, "policy_loss": 1.5 * FALLS},
    "huge rewards": {"entropy": FALLS, "reward": 1e6 * FLAT},
}
HEALTHY = {
    "no entropy": {"loss": FLAT},
    "stays up": {"entropy": np.full(N, 1.6), "reward": FLAT},
    "falls slowly": {"entropy": np.linspace(1.6, 0.4, N), "reward": FLAT},
    "falls slowly, and pays": {"entropy": np.linspace(1.6, 0.4, N), "reward": RISES},
    "paid less, and as open as ever": {"entropy": np.full(N, 1.6), "reward": -RISES},
    "learnt its task": {"entropy": FALLS, "reward": RISES},
    "entropy is rewarded": {"entropy": FALLS, "reward": RISES, "policy_loss": -1.5 * FALLS},
    "no baseline": {"entropy": FALLS, "reward": RISES, "policy_loss": FALLS / (1 - np.log(FALLS / 1.7))},
    "learnt it early": {"entropy": FALLS, "reward": np.minimum(np.arange(N) / 40, 1) * 5 + FLAT},
    "continuous actions": {"entropy": FALLS - 1, "reward": FLAT},
    "zero from the start": {"entropy": np.zeros(N), "reward": FLAT},
    "too early": {"entropy": FALLS[:90], "reward": FLAT[:90]},
}


@pytest.mark.parametrize("vitals", SICK.values(), ids=SICK)
def test_fires(vitals):
    symptom = EntropyCollapse().check(Chart.of(**vitals))
    assert symptom
    assert symptom.severity == "warning"


@pytest.mark.parametrize("vitals", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(vitals):
    assert EntropyCollapse().check(Chart.of(**vitals)) is None


def test_without_a_reward_it_is_a_remark():
    symptom = EntropyCollapse().check(Chart.of(entropy=FALLS))
    assert symptom
    assert symptom.severity == "info"
