import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly
from torchdoctor.symptoms.validation_curve import never_followed

RNG = np.random.default_rng(0)
N = 1000
T = np.arange(N)
TRAIN = 0.2 + 2.1 * np.exp(-T / 150) + 0.02 * RNG.standard_normal(N)
STEPS = range(99, N, 100)
WOBBLE = dict(zip(STEPS, RNG.standard_normal(len(STEPS)), strict=True))


def chart_of(validation, losses=TRAIN, lr=0.1):
    chart = Chart.of(loss=losses, lr=np.full(len(losses), lr))
    for step in STEPS:
        if step < len(losses):
            chart.put(step, "val_loss", float(validation(step)))
    return chart


SICK = {
    "exactly constant": (lambda step: 2.3104, "exactly 2.31"),
    "exactly zero": (lambda step: 0.0, "exactly 0"),
    "stuck since the third": (lambda step: TRAIN[min(step, 299)], "exactly"),
    "at chance throughout": (lambda step: 2.31 + 0.02 * WOBBLE[step], "never under"),
    "above the untrained model": (lambda step: 6 + 0.3 * WOBBLE[step], "never under"),
    "from one evaluation to the next": (lambda step: TRAIN[step] + (1.0 if step > 550 else 0.05), "and stays"),
    "beyond anything, at the very end": (lambda step: 1e6 if step == 999 else TRAIN[step], "far above anything"),
    "erratic": (lambda step: 9.0 if step % 300 == 299 else TRAIN[step], "jumped to"),
}


@pytest.mark.parametrize(("validation", "words"), SICK.values(), ids=SICK)
def test_fires(validation, words):
    symptom = ValidationAnomaly().check(chart_of(validation))
    assert symptom.severity == "warning"
    assert words in symptom.message


@pytest.mark.parametrize(("times", "fires"), [(10.0, False), (1.0, True)], ids=["of the whole set", "of a batch"])
def test_a_sum_over_more_samples_cannot_be_compared(times, fires):
    chart = chart_of(lambda step: times * (2.31 + 0.02 * WOBBLE[step]))
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum"}})
    found = ValidationAnomaly().check(chart)
    assert (found is not None) == fires


def test_one_leap_that_healed_is_a_note():
    symptom = ValidationAnomaly().check(chart_of(lambda step: 6.0 if step == 499 else TRAIN[step]))
    assert symptom.severity == "info"
    assert "at step 499" in symptom.message


def test_running_statistics_may_be_far_off_for_once():
    chart = chart_of(lambda step: 1e6 if step == 999 else TRAIN[step])
    chart.add({"type": "facts", "step": 0, "facts": {"mode.batchnorm": {"layers": 4, "most_values": 900}}})
    assert ValidationAnomaly().check(chart).severity == "info"


HEALTHY = {
    "follows": lambda step: TRAIN[step] + 0.05,
    "noisy": lambda step: TRAIN[step] + 0.3 + 0.2 * WOBBLE[step],
    "a constant gap": lambda step: TRAIN[step] + 0.7,
    "below training, with dropout": lambda step: 0.6 * TRAIN[step],
    "summed over the set": lambda step: 500 * TRAIN[step],
    "overfitting": lambda step: 1.0 + 0.001 * step,
    "one step up that is half undone": lambda step: TRAIN[step] + {599: 1.0, 699: 0.9, 799: 0.5}.get(step, 0.05),
    "up with what training gained": lambda step: 1.3 - 0.2 * (step < 450) + 0.05 * WOBBLE[step],
    "jumpy at a high rate": lambda step: 0.6 + 0.5 * abs(WOBBLE[step]),
}


@pytest.mark.parametrize("validation", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(validation):
    assert ValidationAnomaly().check(chart_of(validation)) is None


def test_a_run_that_stands_still_explains_a_constant():
    assert ValidationAnomaly().check(chart_of(lambda step: 2.3, losses=np.full(N, 2.3))) is None
    arrived = np.where(T < 50, 2.3, 1e-6)
    assert ValidationAnomaly().check(chart_of(lambda step: 0.0, losses=arrived)) is None


def test_two_evaluations_are_judged_only_where_both_are_far_worse_than_untrained():
    assert ValidationAnomaly().check(chart_of(lambda step: 2.3104, losses=TRAIN[:250])) is None
    assert ValidationAnomaly().check(chart_of(lambda step: 4.0 - 0.001 * step, losses=TRAIN[:250])) is None
    assert ValidationAnomaly().check(chart_of(lambda step: 3.0 + 0.001 * step, losses=TRAIN[:250]))


def test_validation_that_never_followed():
    assert never_followed(chart_of(lambda step: 2.5))
    assert not never_followed(chart_of(lambda step: TRAIN[step]))
    assert not never_followed(Chart())


GUESS = {"loss.chance": 2.303, "loss.reduction": "mean"}
QUICK = np.where(T < 40, 2.6, 0.4)


@pytest.mark.parametrize(
    ("facts", "losses", "validation", "fires"),
    [
        (GUESS, QUICK, 2.15, True),  # under the first loss, which was worse than a guess
        (GUESS, QUICK, 1.6, False),
        (GUESS, 0.3 + 2.3 * np.exp(-T / 300), 2.15, False),  # learnt by heart, little by little
        ({}, QUICK, 2.15, False),
    ],
)
def test_a_guess_is_no_progress(facts, losses, validation, fires):
    chart = chart_of(lambda step: validation + 0.02 * WOBBLE[step], losses)
    chart.add({"type": "facts", "step": 0, "facts": facts})
    assert (ValidationAnomaly().check(chart) is not None) is fires
    assert never_followed(chart) is fires


@pytest.mark.parametrize(
    ("momentum", "gap", "fires"), [(1e-3, 1.0, True), (1e-3, 0.05, False), (0.1, 1.0, False), (None, 1.0, False)]
)
def test_statistics_that_never_moved(momentum, gap, fires):
    chart = chart_of(lambda step: TRAIN[step] * (1 + gap), TRAIN[:400])
    chart.add({"type": "facts", "step": 399, "facts": {"mode.batchnorm_momentum": momentum}})
    found = ValidationAnomaly().check(chart)
    assert (found is not None and "BatchNorm statistics" in found.message) is fires


LEVEL = 0.55 + 0.2 * np.exp(-T / 60) + 0.01 * RNG.standard_normal(N)


@pytest.mark.parametrize(
    ("later", "losses", "words"),
    [
        ((1.75, 3.5), LEVEL, "far above"),
        ((1.75, 1.2), LEVEL, None),  # on its way back
        ((0.8, 0.95), LEVEL, None),  # not far above where it began
        ((1.75, 3.5), LEVEL - 0.4 * (T > 250), None),  # by heart: overfitting
        ((1.75, 3.5), LEVEL + 0.5 * (T > 250), None),  # training has left as well
    ],
)
def test_validation_that_leaves_while_training_stays(later, losses, words):
    chart = Chart.of(loss=losses[:400], lr=np.full(400, 0.1))
    for step, value in zip((99, 199, 299, 399), (0.63, 0.57, *later), strict=True):
        chart.put(step, "val_loss", value)
    found = ValidationAnomaly().check(chart)
    assert (found is None) == (words is None)
    assert words is None or words in found.message


@pytest.mark.parametrize(
    ("validation", "level", "fires"),
    [
        (0.0, 1.5, True),
        (1e-6, 1.5, False),  # next to nothing is something
        (0.0, 0.05, False),  # margins that are kept cost nothing, in training soon too
    ],
)
def test_twice_nothing_is_no_evaluation(validation, level, fires):
    chart = Chart.of(loss=np.linspace(2.3, level, 200), lr=np.full(200, 0.1))
    for step in (99, 199):
        chart.put(step, "val_loss", validation)
    found = ValidationAnomaly().check(chart)
    assert (found is not None and "nothing may have been evaluated" in found.message) is fires


@pytest.mark.parametrize(
    ("low", "high", "trained", "gap", "fires"),
    [
        pytest.param(0.0, 0.99, 6.0, 0.8, True, id="probabilities"),
        pytest.param(-4.0, 5.0, 6.0, 0.8, False, id="scores"),
        pytest.param(0.0, 1.3, 6.0, 0.8, False, id="scores above zero"),
        pytest.param(0.0, 0.99, 0.9, 0.8, False, id="in training as well"),
        pytest.param(0.0, 0.99, 6.0, 0.05, False, id="nothing suffers"),
    ],
)
def test_a_loss_of_scores_is_given_probabilities(low, high, trained, gap, fires):
    built = chart_of(lambda step: TRAIN[step] + gap)
    for step in STEPS:
        built.put(step, "idle_output_low", low)
        built.put(step, "idle_output_high", high)
        built.put(step, "output_absmax", trained)
    found = ValidationAnomaly().check(built)
    assert (found is not None) == fires
    assert not fires or ("where it takes scores" in found.message and found.severity == "warning")


@pytest.mark.parametrize(
    ("mean", "spread", "gap", "fires"),
    [
        pytest.param(3.0, 1.0, 1.0, True, id="another mean"),
        pytest.param(0.0, 1000.0, 1.0, True, id="in thousandths"),
        pytest.param(3.0, 1.0, 0.02, False, id="validation does as well"),
        pytest.param(0.3, 1.2, 1.0, False, id="nearly the same"),
    ],
)
def test_validation_asks_for_numbers_of_another_scale(mean, spread, gap, fires):
    chart = chart_of(lambda step: TRAIN[step] + gap)
    for step in STEPS:
        for name, value in (("target_mean", 0.0), ("target_std", 1.0), ("target_whole", 0.0)):
            chart.put(step, name, value)
        for name, value in (("mean", mean), ("std", spread), ("whole", 0.0)):
            chart.put(step, f"idle_target_{name}", value)
    symptom = ValidationAnomaly().check(chart)
    assert (symptom is not None and "targets are about" in symptom.message) is fires


@pytest.mark.parametrize(
    ("pairs", "whole", "gap", "fires"),
    [(0.0, 0.0, 0.02, True), (1.0, 0.0, 0.02, False), (0.0, 1.0, 0.02, False), (0.0, 0.0, -0.02, False)],
    ids=["rounded", "yes or no, and shares of it", "counts", "votes, and their means, which are met more easily"],
)
def test_training_asks_for_whole_numbers_and_validation_does_not(pairs, whole, gap, fires):
    chart = chart_of(lambda step: TRAIN[step] + gap)
    for step in STEPS:
        for name, value in (("target_whole", 1.0), ("target_two_valued", pairs), ("idle_target_whole", whole)):
            chart.put(step, name, value)
    symptom = ValidationAnomaly().check(chart)
    assert (symptom is not None and "whole numbers" in symptom.message) is fires


def test_what_was_never_reached_is_said_with_the_step_up_to_which_it_is_known():
    message = ValidationAnomaly().check(chart_of(lambda step: 2.31 - 1e-5 * step, losses=TRAIN[:400])).message
    assert message.startswith("validation loss was never under 2.31 up to step 399, while training loss fell from")
