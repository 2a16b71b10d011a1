import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.loss_divergence import LossDivergence

RNG = np.random.default_rng(0)
NOISE = 0.03 * RNG.standard_normal(400)
FALLING = 2 + 2 * np.exp(-np.arange(200) / 50) + NOISE[:200]

SICK = {
    "worse than at the start": [*FALLING, 4.6, 5.0, 5.5, 6.0, 6.5],
    "on its way back": [*FALLING, *np.linspace(2.0, 3.8, 80)],
    "from the first step": [2.3, 2.4, 2.9, 4.0, 7.0, 12.0, 20.0, 35.0, 60.0, 90.0, 150.0, 240.0],
    "a negative loss": [*(FALLING - 100), *np.linspace(-95, -50, 10)],
    "a summed loss": [*(1e5 * FALLING), *np.linspace(5e5, 9e5, 10)],
}
HEALTHY = {
    "rewards that are rare": [2e-4, 2e-3, 1e-4, 2e-4, 2e-4, 4e-4, 2e-4, 3e-4, 2e-2, 1e-2, 1e-3, 1e-2, 1e-2, 1e-2],
    "no readings": [],
    "falling": FALLING,
    "one spike": [*FALLING, 50.0],
    "a harder curriculum": [*FALLING, *(3.0 + NOISE[:100])],
    "wandering without descent": 1.4 + np.abs(np.cumsum(0.02 * RNG.standard_normal(600))),
    "flat noise": RNG.standard_normal(500),
    "an early bump": [2.3, 2.4, 2.6, 2.5, 2.4, 2.6, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 2.3],
    "nan": [*FALLING, float("nan"), float("nan"), float("nan")],
}


@pytest.mark.parametrize("losses", SICK.values(), ids=SICK)
def test_fires(losses):
    symptom = LossDivergence().check(Chart.of(loss=losses))
    assert symptom is not None
    assert symptom.severity == "warning"


@pytest.mark.parametrize("losses", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses):
    for length in range(1, len(losses) + 1, 3):
        assert LossDivergence().check(Chart.of(loss=losses[:length])) is None, length


GUESS = {
    "far above a guess for long": ([2.3, *[6.0 - 0.04 * step for step in range(40)]], 2.3, "warning"),
    "a bump of some steps": ([2.3, *[6.0] * 20, *[2.2] * 20], 2.3, None),
    "began there": ([6.0 - 0.04 * step for step in range(41)], 6.0, None),
    "what the model knew is gone": ([0.5, 2.6, 3.0, *[1.2] * 40], 0.5, "warning"),
    "what the model knew is back": ([0.5, 2.6, 3.0, *[0.6] * 40], 0.5, None),
    "an easy first batch": ([1.6, *[2.2] * 40], 1.6, None),
    "a loss of several terms": ([2.3, *[6.0] * 40], 1.0, None),
}


@pytest.mark.parametrize(("losses", "plain", "severity"), GUESS.values(), ids=GUESS)
def test_a_known_guess_is_a_measure(losses, plain, severity):
    chart = Chart.of(loss=losses, criterion=[plain])
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 2.303}})
    found = LossDivergence().check(chart)
    assert (found and found.severity) == severity


def test_staying_far_away_is_critical():
    assert LossDivergence().check(Chart.of(loss=[*FALLING, *[9.0] * 30])).severity == "critical"


@pytest.mark.parametrize(("level", "severity"), [(40.0, None), (1000.0, "critical")])
def test_returns_that_grow_lift_the_loss_of_a_loop_that_acts(level, severity):
    chart = Chart.of(loss=[*FALLING, *[level] * 30])
    chart.add({"type": "facts", "step": 0, "facts": {"loop.acts": True}})
    found = LossDivergence().check(chart)
    assert (found and found.severity) == severity


def test_scores_of_samples_that_follow_their_slope_come_back_to_zero():
    chart = Chart.of(loss=[*(FALLING - FALLING[0]), *np.linspace(-1.5, 0.0, 60)])
    assert LossDivergence().check(chart).severity == "warning"
    chart.add({"type": "facts", "step": 0, "facts": {"data.differentiated": True}})
    assert LossDivergence().check(chart) is None
    above = Chart.of(loss=[*(FALLING - FALLING[0] - 0.2), *np.linspace(-1.5, 0.05, 60), *[0.05] * 6])
    assert LossDivergence().check(above).severity == "warning"
    above.add({"type": "facts", "step": 0, "facts": {"data.differentiated": True}})
    assert LossDivergence().check(above) is None


BLOWN = {
    "far above the first loss and a guess": ([2.0, *[700.0 - 5 * step for step in range(60)]], 0.4, 2.0, "warning"),
    "a bump that is over": ([2.0, *[700.0] * 20, *[1.5] * 20], 0.4, 2.0, None),
    "below what a guess would cost": ([2.0, *[30.0] * 60], 40.0, 2.0, None),
    "a loss of several terms": ([2.0, *[30.0] * 60], 0.4, 1.0, None),
}


@pytest.mark.parametrize(("losses", "guess", "plain", "severity"), BLOWN.values(), ids=BLOWN)
def test_a_loss_that_the_first_steps_blew_up_is_found_while_it_falls(losses, guess, plain, severity):
    found = LossDivergence().check(Chart.of(loss=losses, criterion=[plain], guess_loss=[guess]))
    assert (found and found.severity) == severity


def test_a_loss_that_is_blown_up_late_was_well_before():
    losses = [0.8, *[0.2] * 100, 9e5, *[4e4] * 60]
    found = LossDivergence().check(Chart.of(loss=losses, criterion=[0.8], guess_loss=[0.9]))
    assert found.first_step == 101


def _switched(after, norms, facts=None, **vitals):
    """A run that has settled, and whose losses and norms are these from then on."""
    losses = np.concatenate([0.3 + 2 * np.exp(-np.arange(200) / 30) + 0.3 * NOISE[:200], after])
    chart = Chart.of(loss=losses, grad_norm=[*[1.0] * 200, *norms], **vitals)
    if facts:
        chart.add({"type": "facts", "step": 0, "facts": facts})
    return chart


SWITCHES = {
    "a new task that is learnt quickly": ([3.7, 3.1, 2.8, 3.0, 2.5, 2.7], [5.0, 4.4, 3.1, 4.6, 3.3, 3.0], None),
    "after an unusual step": ([0.3, 0.3, 3.7, 3.1, 2.8, 3.0, 2.7], [6.0, 9.0, 5.0, 4.4, 3.1, 4.6, 3.3], "warning"),
    "it grows": ([2.6, 3.1, 3.9, 4.6, 5.9, 7.1, 8.0], [5.0, 5.0, 5.0, 5.0, 5.0, 6.0, 7.0], "warning"),
    "only the hardest samples": (1.7 + NOISE[:24], [3.0] * 24, None),
    "worse little by little": (np.linspace(0.4, 1.8, 80), [1.0] * 80, "warning"),
    "worse and worse after a leap": (np.linspace(1.0, 1.9, 60), np.linspace(3.0, 4.0, 60), "warning"),
}


@pytest.mark.parametrize(("after", "norms", "severity"), SWITCHES.values(), ids=SWITCHES)
def test_a_leap_that_no_step_made_is_judged_by_what_comes_of_it(after, norms, severity):
    found = LossDivergence().check(_switched(after, norms))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("reduction", "looked", "size", "severity"),
    [
        ("sum", 225, 800.0, None),
        ("sum", 225, 80.0, "critical"),
        ("mean", 225, 800.0, "critical"),
        ("sum", 198, 64.0, None),  # what came since is not known yet
    ],
)
def test_a_sum_over_larger_batches_is_larger(reduction, looked, size, severity):
    chart = _switched([9.0] * 30, [1.7] * 30, {"loss.reduction": reduction}, input_size=[64.0] * 6)
    for step in (looked - 1, looked):
        chart.put(step, "input_size", size)
    found = LossDivergence().check(chart)
    assert (found and found.severity) == severity


def evaluated(losses, evaluations, every=50):
    """A run of which each piece of so many steps is followed by an evaluation."""
    chart = Chart()
    for step, loss in enumerate(losses):
        chart.put(step, "loss", float(loss))
        if step % every == every - 1 and step // every < len(evaluations):
            chart.put(step, "val_loss", evaluations[step // every])
    return chart


LEFT = [*FALLING, *(3.0 + NOISE[:100])]
"""A loss that has lost half of what it had gained, for a hundred steps."""


def test_training_and_validation_that_are_both_far_above_what_they_were():
    symptom = LossDivergence().check(evaluated(LEFT, [3.1, 2.4, 2.2, 2.1, 2.9, 3.0]))
    assert symptom.severity == "warning"
    assert symptom.first_step == 200
    assert symptom.message == (
        "loss level 3 and validation loss 3 (its best was 2.1) are far above earlier values and do not fall"
    )


@pytest.mark.parametrize(
    ("losses", "evaluations"),
    [
        pytest.param(LEFT, [3.1, 2.4, 2.2, 2.1, 2.1, 2.0], id="noise in training alone"),
        pytest.param(LEFT, [3.1, 2.4, 2.2, 2.1, 2.9, 2.5], id="validation comes back"),
        pytest.param(LEFT, [3.1, 2.4, 2.2, 2.1, 2.9], id="one evaluation"),
        pytest.param(LEFT, [3.1, 2.4, 2.2, 2.1, 2.25, 2.3], id="a little worse"),
        pytest.param(LEFT, [2.3, 2.2, 2.15, 2.1, 2.5, 2.5], id="a little of all that was learnt"),
        pytest.param(LEFT, [0.023, 0.022, 0.0215, 0.021, 0.025, 0.025], id="the same in other units"),
        pytest.param([*FALLING, *FALLING[:100]], [3.1, 2.4, 2.2, 2.1, 2.9, 3.0], id="training is on its way"),
        pytest.param(np.concatenate([FALLING, FALLING[-100:]]), [3.1, 2.4, 2.2, 2.1, 2.9, 3.0], id="overfitting"),
    ],
)
def test_what_is_lost_in_training_or_validation_alone_or_comes_back(losses, evaluations):
    assert LossDivergence().check(evaluated(losses, evaluations)) is None


def test_a_run_that_blows_up_from_its_first_step_began_with_its_first_loss():
    found = LossDivergence().check(Chart.of(loss=[1.2, *(10.0 * 4.0**step for step in range(40))]))
    assert "above the 1.2 that the run began with" in found.message and "best" not in found.message
