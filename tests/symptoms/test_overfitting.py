import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.overfitting import Overfitting

TRAIN = 3 * np.exp(-np.arange(1000) / 250)


def check(validation, train=TRAIN):
    chart = Chart.of(loss=train)
    every = len(train) // max(1, len(validation)) if len(train) else 50
    for number, loss in enumerate(validation):
        chart.put((number + 1) * every - 1, "val_loss", loss)
    return Overfitting().check(chart)


MODERATE = [2.5, 1.8, 1.4, 1.2, 1.1, 1.15, 1.2, 1.26, 1.31, 1.36]
SEVERE = [2.5, 1.5, 1.0, 0.9, 1.1, 1.3, 1.5, 1.8, 2.1, 2.4]
GAP = [2.8, 2.0, 1.6, 1.4, 1.3, 1.25, 1.22, 1.21, 1.205, 1.2]


def test_moderate_is_a_warning_and_names_the_best_step():
    symptom = check(MODERATE)
    assert (symptom.severity, symptom.first_step) == ("warning", 499)
    assert "from 1.1 at step 499 to 1.31 by step 999 while" in symptom.message  # it may rise further afterwards


def test_severe_is_critical():
    assert check(SEVERE).severity == "critical"


def test_without_a_training_loss_it_is_a_note():
    assert check(SEVERE, train=[]).severity == "info"


def test_validation_that_stands_still_where_training_has_nothing_left():
    known = np.maximum(3 * np.exp(-np.arange(1000) / 80), 0.01)
    symptom = check([2.8, 2.6, 2.5, 2.45, 2.44, 2.44, 2.44, 2.43, 2.44, 2.43], known)
    assert symptom.severity == "warning"
    assert "stays at 2.44 up to step 999 while" in symptom.message


HEALTHY = {
    "half of the way": ([2.0, 1.5, 1.3, 1.25, 1.25, 1.24, 1.25, 1.24, 1.25, 1.25], TRAIN**3 / 9),
    "still coming down": (np.linspace(2.9, 2.2, 10), np.maximum(3 * np.exp(-np.arange(1000) / 80), 0.01)),
    "in other units": ([28.0, 26.0, 25.0, *[24.5] * 7], np.maximum(3 * np.exp(-np.arange(1000) / 80), 0.01)),
    "no evaluations": ([], TRAIN),
    "a constant gap": (GAP, TRAIN),
    "too few": (SEVERE[:4], TRAIN),
    "below training": (0.8 * TRAIN[99::100], TRAIN),
    "one bad evaluation": ([*GAP[:6], 1.9, *GAP[7:]], TRAIN),
    "the last one bad": ([*GAP[:9], 1.9], TRAIN),
    "noise": (1.2 + 0.2 * np.random.default_rng(0).standard_normal(30), TRAIN),
    "training gets worse too": (SEVERE, np.concatenate([TRAIN[:400], np.linspace(0.6, 3, 600)])),
    "over its peak and better than ever": ([2.5, 1.5, 1.0, 1.3, 1.5, 1.3, 1.1, 0.9, 0.8, 0.7], TRAIN),
    "nan": ([*SEVERE, float("nan")], TRAIN),
    "next to nothing": ([2.3045, 2.3032, 2.3025, 2.3027, 2.3029, 2.3031, 2.3033, 2.3035], 2.3 - 0.002 * TRAIN[::-1]),
}


@pytest.mark.parametrize(("validation", "train"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(validation, train):
    assert check(validation, train) is None


STEADY = 4 * np.exp(-np.arange(1750) / 900)
RISES = {
    "three in a row, after a steep fall": ([4.26, 1.93, 1.6, 1.54, 1.55, 1.65, 1.87], STEADY, True),
    "two so far": ([4.26, 1.93, 1.6, 1.54, 1.55, 1.65], STEADY[:1500], False),
    "three small ones": ([4.26, 1.93, 1.6, 1.54, 1.56, 1.58, 1.62], STEADY, False),
    "as it wavered before": ([4.26, 1.93, 1.6, 1.8, 1.54, 1.6, 1.7, 1.87], STEADY, False),
    "up and down": ([4.26, 1.93, 1.6, 1.54, 1.7, 1.65, 1.87], STEADY, False),
    "training stands still": ([4.26, 1.93, 1.6, 1.54, 1.55, 1.65, 1.87], np.maximum(STEADY, 1.4), False),
}


@pytest.mark.parametrize(("validation", "train", "fires"), RISES.values(), ids=RISES)
def test_three_rises_in_a_row(validation, train, fires):
    found = check(validation, train)
    assert (found is not None and found.severity == "warning") == fires
    assert not fires or "from 1.54 at step 999 to 1.87 by step 1749 while" in found.message


def test_a_run_that_gained_little_loses_little():
    chart = Chart.of(loss=[2.4 - 0.002 * step for step in range(300)])
    for number, loss in enumerate([2.30, 2.27, 2.25, 2.25, 2.26, 2.28, 2.29, 2.31, 2.32, 2.33, 2.34, 2.35]):
        chart.put(25 * number + 24, "val_loss", loss)
    found = Overfitting().check(chart)
    assert found is not None and found.severity == "warning"
