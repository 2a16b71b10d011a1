import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.loss_oscillation import LossOscillation, period

RNG = np.random.default_rng(0)
N = 400
T = np.arange(N)
NOISE = RNG.standard_normal(N)
RATE = np.full(N, 0.1)


def wander(memory, n=N, rng=RNG):
    drawn = rng.standard_normal(n)
    for step in range(1, n):
        drawn[step] = memory * drawn[step - 1] + (1 - memory**2) ** 0.5 * drawn[step]
    return drawn


def check(losses, lr=RATE, **vitals):
    return LossOscillation().check(Chart.of(loss=losses, lr=lr[: len(losses)], **vitals))


SICK = {
    "every other step": (2 + (-1.0) ** T + 0.1 * NOISE, 2),
    "growing": (2 + 0.004 * T * (-1.0) ** T, 2),
    "momentum": (2 + np.sin(2 * np.pi * T / 18) + 0.2 * NOISE, 18),
    "a sawtooth of one epoch": (1 + (T % 50) / 25 + 0.1 * NOISE, 50),
    "classes in turn": (0.3 + 2.0 * (T % 40 < 6) + 0.1 * np.abs(NOISE), 40),
    "longer than the window": (np.repeat(2 + np.sin(2 * np.pi * np.arange(60) / 9), 20), 180),
    "thousands": (1e4 * (2 + (-1.0) ** T), 2),
    "negative": (-20 + 5 * (-1.0) ** T, 2),
}


@pytest.mark.parametrize(("losses", "length"), SICK.values(), ids=SICK)
def test_fires(losses, length):
    symptom = check(losses, lr=np.full(len(losses), 0.1))
    assert symptom.severity == "warning"
    assert f"every {length} steps" in symptom.message


HEALTHY = {
    "no readings": ([], {}),
    "short": (2 + (-1.0) ** T[:30], {}),
    "constant": (np.full(N, 2.0), {}),
    "noise": (2 + 0.5 * NOISE, {}),
    "wandering": (2 + 0.5 * wander(0.9), {}),
    "wandering slowly": (2 + 0.5 * wander(0.98), {}),
    "falling": (2 - 0.004 * T + 0.05 * NOISE, {}),
    "dies down": (2 + np.exp(-T / 60) * np.sin(2 * np.pi * T / 12), {}),
    "the same order in every epoch": (2 + 0.5 * np.tile(NOISE[:40], 10), {}),
    "one spike": (2 + 8.0 * (T == 380) + 0.05 * NOISE, {}),
    "a small ripple": (2 + 0.02 * (-1.0) ** T, {}),
    "follows a cyclic rate": (
        2 + np.sin(2 * np.pi * T / 40),
        {"lr": 0.05 * (1.2 + np.sin(2 * np.pi * T / 40))},
    ),
    "players": (2 + (-1.0) ** T, {"d_loss": NOISE, "context": {"optimizer": [{}, {}]}}),
}


@pytest.mark.parametrize(("losses", "more"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, more):
    assert check(losses, **more) is None


def test_waves_on_a_falling_loss_are_a_note():
    assert check(3 * np.exp(-T / 150) + 0.3 * np.sin(2 * np.pi * T / 25) + 0.5).severity == "info"


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9, 0.97, 0.99])
def test_no_period_is_found_in_noise_of_any_memory(memory):
    rng = np.random.default_rng(3)
    assert not any(period(wander(memory, 200, rng), 0.5, 4) for _ in range(40))


def test_a_target_network_that_is_renewed_at_a_period_is_a_note():
    chart = Chart.of(loss=[3.0, 1.0, 2.9, 1.1] * 50, lr=[0.5] * 200)
    assert LossOscillation().check(chart).severity == "warning"
    chart.add({"type": "facts", "step": 0, "facts": {"loop.acts": True}})
    assert LossOscillation().check(chart).severity == "info"


@pytest.mark.parametrize("row", [[1.0, None], [1.0, 0.5]], ids=["own head", "all tensors"])
def test_tasks_that_take_turns_are_a_note(row):
    chart = Chart.of(loss=[3.0, 1.0, 2.9, 1.1] * 50, lr=[0.5] * 200)
    chart.names = ("a.weight", "b.weight")
    for step in range(8):
        chart.add({"type": "tensors", "step": 192 + step, "vitals": {"grad_norm": row if step % 2 else [1.0, 0.5]}})
    assert LossOscillation().check(chart).severity == ("info" if None in row else "warning")


def test_a_loss_that_goes_about_zero_has_no_level():
    assert check(0.02 * (T % 2) - 0.01 + 1e-4 * NOISE).severity == "info"
    halves_of_an_episode_in_turn = np.where(T // 4 % 8 < 3, 0.012, 0.003) * (-1.0) ** T
    assert check(halves_of_an_episode_in_turn - 0.0078).severity == "info"
    assert check(halves_of_an_episode_in_turn - 0.078).severity == "warning"


@pytest.mark.parametrize(
    ("reduction", "sizes", "severity"),
    [
        ("sum", [800.0, 100.0, 120.0, 900.0], "info"),
        ("sum", [100.0] * 4, "warning"),
        ("mean", [800.0, 100.0, 120.0, 900.0], "warning"),
    ],
)
def test_a_sum_over_short_and_long_texts_swings_with_them(reduction, sizes, severity):
    chart = Chart.of(loss=[3.0, 1.0, 2.9, 1.1] * 50, lr=[0.5] * 200, input_size=sizes)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": reduction}})
    assert LossOscillation().check(chart).severity == severity
