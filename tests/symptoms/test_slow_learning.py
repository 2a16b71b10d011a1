import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.slow_learning import SlowLearning

RNG = np.random.default_rng(0)
N = 300
T = np.arange(N)
NOISE = RNG.standard_normal(N)
SLOW = 2.3 - 1e-5 * T + 0.02 * NOISE


def check(losses, ratio=None, lr=None, chance=None, episodes=(), **vitals):
    chart = Chart.of(loss=losses, lr=np.full(len(losses), 1e-6) if lr is None else lr, **vitals)
    if ratio is not None:
        chart.add({"type": "tensors", "step": chart.step, "vitals": {"update_ratio": [ratio, 2 * ratio, ratio]}})
    if chance is not None:
        chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": chance}})
    chart.episodes += episodes
    return SlowLearning().check(chart)


SICK = {
    "weights hardly move": (SLOW, 4e-7),
    "summed": (1e4 * SLOW, 4e-7),
    "too noisy to see, but hardly moving": (np.abs(2.3 + NOISE), 4e-7),
    "moving a little": (SLOW, 1e-5),
}


@pytest.mark.parametrize(("losses", "ratio"), SICK.values(), ids=SICK)
def test_fires(losses, ratio):
    assert check(losses, ratio).severity == "warning"


def test_steps_that_are_rounded_away_are_a_warning_whatever_the_ratio():
    found = check(SLOW, 1e-3, update_lost=[0.9] * N)
    assert found.severity == "warning"
    assert "rounded away" in found.message


@pytest.mark.parametrize(("cosine", "fires"), [(0.95, True), (0.5, False)])
def test_steps_that_all_point_the_same_way_are_too_short_whatever_the_ratio(cosine, fires):
    assert (check(SLOW, 1e-3, momentum_cosine=[cosine] * 12) is not None) == fires
    assert check(2.3 - 2e-3 * T, 1e-4, momentum_cosine=[cosine] * 12) is None
    assert check(SLOW, 1e-4, momentum_cosine=[cosine] * 12, reward=T) is None  # its loss need not fall


def test_a_straight_line_is_a_note_where_updates_are_not_known():
    assert check(2.3 - 1e-4 * T).severity == "info"


HEALTHY = {
    "no readings": ([], {}),
    "short": (SLOW[:60], {"ratio": 4e-7}),
    "weights move": (SLOW, {"ratio": 1e-3}),
    "not at all: that is frozen": (SLOW, {"ratio": 0.0}),
    "falls well at a low ratio": (2.3 - 2e-3 * T, {"ratio": 4e-7}),
    "some steps rounded away": (SLOW, {"ratio": 1e-3, "update_lost": [0.5] * N}),
    "rounded away, and it learns": (2.3 - 2e-3 * T, {"ratio": 1e-3, "update_lost": [0.9] * N}),
    "bent": (1.7 + 6 * (1 + T) ** -0.35, {}),
    "noise": (2.3 + 0.1 * NOISE, {}),
    "in warm-up": (SLOW, {"ratio": 4e-7, "lr": 1e-9 * T}),
    "annealed": (SLOW, {"ratio": 4e-7, "lr": np.linspace(1e-3, 0, N)}),
    "fine-tuned": (SLOW, {"ratio": 4e-7, "chance": 10.4}),
    "broken before": (
        SLOW,
        {"ratio": 4e-7, "episodes": [Symptom("loss-divergence", "LO02", "critical", 0.9, 20, 30)]},
    ),
}


@pytest.mark.parametrize(("losses", "more"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, more):
    assert check(losses, **more) is None


@pytest.mark.parametrize(
    ("ratio", "cosine", "slope", "fires"),
    [
        (1e-4, 0.5, 0.9996, True),
        (1e-4, 0.1, 0.9996, False),
        (1e-3, 0.5, 0.9996, False),
        (1e-4, 0.5, 0.99, False),
    ],
)
def test_gradients_that_lean_one_way_under_the_noise_of_batches(ratio, cosine, slope, fires):
    chart = Chart.of(loss=[2.3 * slope**step for step in range(150)], lr=[1e-5] * 150)
    for step in (8, 16, 25, 50, 75, 100, 125, 149):
        chart.put(step, "momentum_cosine", cosine)
    chart.add({"type": "tensors", "step": 149, "vitals": {"update_ratio": [ratio] * 4}})
    assert (SlowLearning().check(chart) is not None) == fires


@pytest.mark.parametrize(
    ("ratio", "share", "fires"),
    [(3e-3, 0.06, False), (3e-3, 0.007, True), (1e-4, 0.06, True)],
    ids=["falls toward a high floor", "hardly falls", "hardly moves"],
)
def test_weights_that_move_far_in_one_direction_are_slow_only_if_the_loss_hardly_falls(ratio, share, fires):
    losses = 5.2 * (1 - share * np.arange(120) / 120) + 0.02 * NOISE[:120]
    assert (check(losses, ratio, momentum_cosine=[0.93] * 8) is not None) == fires


@pytest.mark.parametrize(
    ("dropout", "level", "validated", "fires"),
    [
        (0.9, 0.8, None, True),
        (0.9, 0.8, 0.8, True),
        (0.9, 0.8, 0.4, False),  # it disturbs training alone
        (0.9, 0.4, None, False),
        (0.5, 0.8, None, False),
    ],
)
def test_dropout_that_leaves_too_little_to_learn(dropout, level, validated, fires):
    losses = [4.0 * (level + (1 - level) * 0.95**step) for step in range(150)]
    chart = Chart.of(loss=losses, lr=[1e-3] * 150, context={"dropout": [0.1, dropout]})
    chart.add({"type": "tensors", "step": 149, "vitals": {"update_ratio": [1e-3] * 4}})
    if validated is not None:
        chart.put(149, "val_loss", 4.0 * validated)
    found = SlowLearning().check(chart)
    assert (found is not None) == fires
    assert not fires or found.severity == "warning"


@pytest.mark.parametrize(
    ("dropout", "level", "validated", "fires"),
    [
        (0.9, 2.5, None, True),
        (0.9, 2.5, 2.4, True),
        (0.9, 2.5, 1.2, False),  # without dropout it knows more than a guess
        (0.9, 2.1, None, False),  # so it does with it, however high it began
        (0.5, 2.5, None, False),
    ],
)
def test_dropout_that_keeps_a_loss_above_a_guess_is_found_however_high_it_began(dropout, level, validated, fires):
    losses = [level + 6.0 * 0.93**step for step in range(150)]
    chart = Chart.of(loss=losses, lr=[1e-3] * 150, context={"dropout": [dropout]})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 2.3}})
    chart.add({"type": "tensors", "step": 149, "vitals": {"update_ratio": [1e-3] * 4}})
    if validated is not None:
        chart.put(149, "val_loss", validated)
    found = SlowLearning().check(chart)
    assert (found is not None) == fires
    assert not fires or found.severity == "warning"
