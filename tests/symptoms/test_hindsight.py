"""Whole logs of other people's runs: those that must be found at the end, and those that must be left in peace."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.examination import Examination
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.settings import Settings
from torchdoctor.symptoms import hindsight
from torchdoctor.symptoms.hindsight import in_hindsight
from torchdoctor.symptoms.hindsight.recovered import sank_for_long
from torchdoctor.symptoms.not_learning import NotLearning

RANDOM = np.random.default_rng(0)
FALL = [3.0 * 0.8**epoch + 0.3 for epoch in range(20)]


def examined(loss=(), val=(), every=1, clock="epoch", better=None, settings=None, **vitals):
    """The report on a log with these series, each point `every` steps after the one before."""
    context = {"source": "CSV", "clock": clock, "logged_every": every, "better": better or {}}
    examination = Examination(settings or Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": context})
    length = max(len(loss), len(val), *(len(values) for values in vitals.values()), 0)
    for place in range(length):
        train = {"loss": loss} | {name: values for name, values in vitals.items() if not name.startswith("val_")}
        held_out = {"val_loss": val} | {name: values for name, values in vitals.items() if name.startswith("val_")}
        for kind, series in (("vitals", train), ("validation", held_out)):
            present = {name: float(values[place]) for name, values in series.items() if place < len(values)}
            if present:
                examination.take({"type": kind, "step": every * place, "vitals": present})
    return examination.report()


def raised(report):
    return {item.name for item in report.symptoms if item.severity != "info" and item.name not in INFORMATIVE}


def noise(count, size):
    return RANDOM.standard_normal(count) * size


SICK = {
    "dead after a leap above the start": ("loss-divergence", {"loss": [1.64, 11.8, 11.6, 10.4] + [10.37] * 6}),
    "explodes from the start": ("loss-divergence", {"loss": [26.0, 8e4, 1e7, 5e14, 3e10, 1e14, 2e18, 2e24, 8e26]}),
    "learns, then loses it": (
        "loss-divergence",
        {"loss": [11.0, 2.7, 2.5, 2.4, 2.4, 2.5, 3.9, 5.0, 6.0, 7.0, 7.5, 8.0, 8.2]},
    ),
    "creeps up, and validation with it": (
        "loss-divergence",
        {
            "loss": [7.0, 3.0, 1.5, 1.0, 0.8, *np.linspace(0.85, 1.6, 15)],
            "val": [7.0, 3.2, 2.0, 1.6, 1.5, *np.linspace(1.55, 2.4, 15)],
        },
    ),
    "accuracy falls to chance": (
        "loss-divergence",
        {
            "loss": [9000.0, 6.0, 4.0, 3.9, 7.0, 16.0, 9.0, 7.0, 12.0, 8.0, 9.0, 8.9],
            "val": [9000.0, 6.0, 4.0, 3.9, 7.0, 16.0, 9.0, 7.0, 12.0, 8.0, 9.0, 8.9],
            "val_accuracy": [0.001, 0.1, 0.37, 0.35, 0.2, 0.06, 0.01, 0.01, 0.002, 0.002, 0.002, 0.002],
            "better": {"val_accuracy": "higher"},
        },
    ),
    "leaps once, then is one number for ever": ("loss-divergence", {"loss": [2.9, 2.0, 16.0, 1.2] + [0.511] * 60}),
    "never moves": ("not-learning", {"loss": 0.25 + noise(30, 1e-4), "every": 50, "clock": "step"}),
    "hardly learns in many epochs": (
        "slow-learning",
        {"loss": np.linspace(0.69, 0.66, 39) + noise(39, 0.01), "train_accuracy": 0.58 + noise(39, 0.02)},
    ),
    "one answer to everything": (
        "collapsed-output",
        {"loss": FALL, "val": FALL, "val_accuracy": [0.7241] * 20, "better": {"val_accuracy": "higher"}},
    ),
    "NaN written as zero": ("nan-or-inf", {"loss": [1.9, 1.8, 0.0, 0.0, 0.0, 0.0]}),
    "NaN written as nothing": ("nan-or-inf", {"val": [11.0, 4.5, 3.1], "val_accuracy": [0.0] * 30}),
    "validation turns NaN": ("nan-or-inf", {"loss": FALL, "val": FALL[:10] + [math.nan] * 10}),
    "overfits in three epochs": ("overfitting", {"loss": [0.5, 0.2, 0.05], "val": [0.30, 0.36, 0.45]}),
    "overfits though it came from far": (
        "overfitting",
        {"loss": [0.74, *np.geomspace(0.05, 0.008, 40)], "val": [0.74, 0.05, 0.046, *np.linspace(0.045, 0.06, 38)]},
    ),
    "both losses leap together": (
        "loss-spike",
        {
            "loss": [*FALL, *([0.33] * 20), 3.9, 2.7, 1.5, *([0.33] * 20)],
            "val": [*FALL, *([0.43] * 20), 4.3, 2.9, 1.6, *([0.43] * 20)],
        },
    ),
    "batches without progress after a lucky first one, and accuracies that stay": (
        "not-learning",
        {
            "loss": [1.38, *(1.57 + noise(550, 0.12))],
            "every": 50,
            "clock": "step",
            "train_accuracy": 0.34 + noise(551, 0.08),
            "better": {"train_accuracy": "higher"},
        },
    ),
    "an area under the curve of a half, for training too": (
        "not-learning",
        {
            "loss": [2.76, 1.55, 1.25, *([1.197] * 8)],
            "val": [1.97, 1.30, 1.21, *([1.206] * 8)],
            "train_auroc": 0.5 + noise(11, 0.015),
            "val_auroc": [0.47, 0.52, 0.48, 0.50, 0.48, 0.42, 0.46, 0.51, 0.52, 0.45, 0.56],
            "better": {"train_auroc": "higher", "val_auroc": "higher"},
        },
    ),
    "an area under the curve of a half, while training learns": (
        "validation-anomaly",
        {"loss": FALL, "val_auc": 0.5 + noise(20, 0.02), "better": {"val_auc": "higher"}},
    ),
    "memorized, and validation never learned": (
        "validation-anomaly",
        {
            "loss": [0.6, 0.18, 0.044, 0.019, 0.01, 0.007, 0.006, *([0.004] * 40)],
            "val": [1.19, 1.12, 1.115, 1.105, 1.086, 1.096, 1.09, *(1.11 + noise(40, 0.01))],
            "val_accuracy_top1": [0.26, 0.38, 0.36, 0.41, 0.47, 0.38, 0.44, *(0.34 + noise(40, 0.02))],
            "val_accuracy_top5": [0.72, 0.88, 0.84, 0.90, 0.84, 0.79, 0.84, *([0.82] * 40)],
            "better": {"val_accuracy_top1": "higher", "val_accuracy_top5": "higher"},
        },
    ),
}

SETBACK = [*np.geomspace(1000, 88, 40), *np.geomspace(100, 240, 8), *np.geomspace(220, 106, 9), *([104.0] * 3)]
SICK["rises step by step, and validation with it"] = (
    "loss-spike",
    {"loss": SETBACK, "val": 0.7 * np.array(SETBACK), "every": 50, "clock": "step"},
)

SICK["one class, to training and validation"] = (
    "collapsed-output",
    {
        "loss": [0.16, *(0.118 + noise(11, 0.001))],
        "val": [0.08, *(0.071 + noise(11, 0.001))],
        "train_accuracy": [0.961] + [0.9749] * 11,
        "val_accuracy": [0.9867] * 12,
    },
)
SICK["left an early best at once, and keeps rising"] = (
    "overfitting",
    {
        "loss": [5.5, 4.90, 4.80, 4.78, 4.75, 4.71, 4.70, 4.70, 4.69, 4.67],
        "val": [7.04, 4.98, 5.24, 5.29, 5.28, 5.27, 5.36, 5.33, 5.36, 5.35],
    },
)

HEALTHY = {
    "one of seventy-five validation samples stays wrong": {
        "loss": np.geomspace(0.5, 0.02, 12),
        "val": np.geomspace(0.12, 0.07, 12),
        "train_accuracy": np.linspace(0.9, 0.995, 12),
        "val_accuracy": [0.9867] * 12,
    },
    "validation stays high, and most answers have become right": {
        "loss": np.geomspace(1.6, 0.07, 50),
        "val": 1.045 + 0.5 * 0.75 ** np.arange(50) + noise(50, 0.005),
        "val_accuracy": 0.855 - 0.33 * 0.6 ** np.arange(50) + noise(50, 0.003),
        "better": {"val_accuracy": "higher"},
    },
    "most was learned in the first epoch, and chance decides the rest": {
        "loss": [0.645, 0.605, *(0.6028 - 0.0042 * np.linspace(0, 1, 28) ** 0.6 + noise(28, 0.0004))],
        "train_accuracy": [0.6345, *(0.668 + noise(29, 0.0012))],
        "clock": "row",
        "better": {"train_accuracy": "higher"},
    },
    "a restart that costs training a good deal and validation little": {
        "loss": SETBACK,
        "val": [*np.geomspace(900, 120, 40), *np.geomspace(122, 140, 8), *np.geomspace(138, 118, 12)],
        "every": 50,
        "clock": "step",
    },
    "label smoothing keeps validation high, and nearly all answers are right": {
        "loss": np.geomspace(0.79, 0.038, 30),
        "val": 0.558 + 0.16 * 0.7 ** np.arange(30),
        "val_accuracy": 0.992 - 0.12 * 0.6 ** np.arange(30),
        "better": {"val_accuracy": "higher"},
    },
    "an area under the curve that leaves a half late": {
        "loss": np.linspace(0.70, 0.60, 20),
        "val_auc": [*([0.5] * 9), 0.53, 0.58, 0.63, 0.67, 0.7, 0.71, 0.72, 0.73, 0.73, 0.74, 0.74],
        "better": {"val_auc": "higher"},
    },
    "falls": {"loss": FALL, "val": [value + 0.1 for value in FALL]},
    "five points": {"loss": [3.5, 2.8, 2.5, 2.4, 2.37]},
    "one point": {"loss": [3.5], "val": [3.6]},
    "a start that was slow": {"loss": [*(0.693 + noise(40, 0.002)), *np.linspace(0.69, 0.1, 60)], "every": 10},
    "leaps at its start and learns": {"loss": [0.46, 19.8, 12.7, 6.7, 2.2, 0.9, 0.4, 0.2, 0.16, 0.14, 0.13, 0.13]},
    "a gradient that leapt and harmed nothing": {
        "loss": 2.0 - np.linspace(0, 0.5, 200) + noise(200, 0.02),
        "grad_norm": [*(2.0 + noise(150, 0.1)), 35.0, *(2.0 + noise(49, 0.1))],
        "every": 500,
        "clock": "step",
    },
    "half precision finding its scale": {
        "loss": np.linspace(3, 1, 60),
        "grad_norm": [math.inf, math.nan, *([1.0] * 58)],
        "clock": "step",
    },
    "validation rises, its metric gets better": {
        "loss": np.linspace(0.5, 0.05, 12),
        "val": [0.30, 0.25, 0.23, 0.24, 0.25, 0.26, 0.27, 0.27, 0.28, 0.28, 0.29, 0.29],
        "val_accuracy": np.linspace(0.90, 0.945, 12),
        "better": {"val_accuracy": "higher"},
    },
    "validation under training": {"loss": [value + 0.2 for value in FALL], "val": FALL},
    "noisy validation that ends low": {"loss": FALL, "val": np.abs(np.array(FALL) * (1 + noise(20, 0.3)))},
    "converged long ago": {"loss": [230.0, 40.0, 3.0, 0.1, 0.01] + [1.9e-4] * 300},
    "flat from the second epoch on": {"loss": [0.27, *(0.124 + noise(40, 0.001))], "val": [0.27] + [0.126] * 40},
    "generator and discriminator": {"g_loss": np.linspace(0.7, 3.0, 60), "d_loss": 1.3 - np.linspace(0, 0.9, 60)},
    "a policy whose loss grows with its reward": {
        "loss": np.linspace(0.01, 3.0, 60),
        "reward": np.linspace(0, 200, 60),
    },
    "too easy": {"loss": [0.85, 0.01, 0.0005, 0.0001, 0.0, 0.0, 0.0, 0.0], "every": 10, "clock": "step"},
    "nothing": {},
}


@pytest.mark.parametrize("name", SICK)
def test_sick(name):
    slug, series = SICK[name]
    assert slug in raised(examined(**series)), name


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name):
    assert not raised(examined(**HEALTHY[name])), [str(item) for item in examined(**HEALTHY[name]).symptoms]


def test_a_noisy_loss_that_was_lucky_once_is_no_setback():
    chart = Chart.of(loss=[4.7, 3.8, 2.4, *np.exp(noise(600, 0.5)), 0.2, 0.2, 0.2, *np.exp(noise(397, 0.5))])
    for number, value in enumerate([4.8, 2.8, 2.3, 2.2, 7.1, 9.3, 2.8, 4.6, 6.2, 3.0]):
        chart.put(100 * number + 1, "val_loss", value)
    assert not list(sank_for_long(chart))


def test_a_live_run_is_not_judged_again():
    chart = Chart.of(loss=[1.64, 11.8, 11.6, 10.4, 10.37, 10.37])
    assert in_hindsight(chart).episodes == chart.episodes == []


@pytest.mark.parametrize(("later", "severity"), [(1, "info"), (2.5, "warning")])
def test_a_live_run_that_learnt_all_the_same_has_outgrown_a_slow_start(later, severity):
    chart = Chart.of(loss=[3.0] * 200 + [later] * 400)
    chart.episodes.append(Symptom("not-learning", "LO04", "warning", 0.8, 0, 199, value=3.0, message="flat"))
    assert in_hindsight(chart).episodes[0].severity == severity
    assert in_hindsight(chart).episodes[0].message == f"flat; later it fell to {later:g}"
    chart.open_episodes["not-learning"] = chart.episodes[0]  # it goes on
    assert in_hindsight(chart).episodes[0].severity == "warning"


def test_the_chart_itself_is_left_alone():
    chart = Chart.of(loss=[3.0] * 30 + [3.0 * 0.9**step for step in range(30)], context={"source": "CSV"})
    episode = Symptom("not-learning", "LO04", "warning", 0.8, 0, 29, message="flat")
    chart.episodes.append(episode)
    assert in_hindsight(chart).episodes[0].severity == "info"
    assert chart.episodes == [episode]


def test_what_is_ignored_is_not_said():
    losses = [1.64, 11.8, 11.6, 10.4, 10.37, 10.37]
    assert raised(examined(losses)) == {"loss-divergence"}
    assert not raised(examined(losses, settings=Settings(ignore=("loss-divergence",))))


def test_the_preset_of_the_paper_stays_as_it_is():
    said = raised(examined([1.64, 2.8, 2.6, 2.4, 2.4, 2.4], settings=Settings(preset="paper")))
    assert "loss-divergence" not in said


def test_many_notes_of_one_name_become_one():
    chart = Chart.of(loss=FALL * 5, context={"source": "CSV"})
    for step in range(0, 60, 10):
        chart.episodes.append(Symptom("loss-spike", "LO01", "info", 0.9, step, step, value=float(step), message="up"))
    notes = [item for item in in_hindsight(chart).episodes if item.severity == "info" and item.name == "loss-spike"]
    assert [(item.first_step, item.last_step, item.count) for item in notes] == [(0, 50, 6)]
    assert "highest of 6" in notes[0].message


def test_a_spike_that_lasted_is_more_than_a_note():
    calm = 3.0 + noise(200, 0.05)
    lasting = [*np.geomspace(11, 3, 60), *calm, *([4.9] * 6), *calm]
    single = [*np.geomspace(11, 3, 60), *calm, 4.9, *calm]
    assert "loss-spike" in raised(examined(lasting, every=100, clock="step"))
    assert not raised(examined(single, every=100, clock="step"))


def test_several_evaluation_sets_are_not_the_training_data():
    report = examined([0.5, 0.3, 0.2, 0.1, 0.05], [1.8, 2.1, 2.5, 2.9, 3.4])
    assert "overfitting" in raised(report)
    chart = Chart.of(loss=[0.5, 0.3, 0.2, 0.1, 0.05], val_loss=[1.8, 2.1, 2.5, 2.9, 3.4])
    chart.context.update({"source": "CSV", "columns": {"loss": "loss", "val_loss": "eval_a_loss + eval_b_loss"}})
    assert [item.severity for item in in_hindsight(chart).episodes] == ["info"]


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, 1e-308, math.nan, math.inf, -math.inf])
def test_strange_numbers_do_no_harm(value):
    for length in (1, 2, 3, 4, 5, 9, 40):
        series = [value if place % 2 else 1.0 for place in range(length)]
        for odd in (series, [value] * length):
            examined(odd, odd, train_accuracy=odd, val_accuracy=odd, grad_norm=odd, better={"val_accuracy": "higher"})
            examined((), odd, val_accuracy=odd, better={"val_accuracy": "lower"})


def test_a_leap_that_cost_a_good_part_of_the_run_is_a_warning():
    values = [*(100 * 0.98**step for step in range(150)), *(60 * 0.98**step for step in range(250))]
    assert "loss-spike" in raised(examined(np.array(values) * (1 + noise(400, 0.01)), clock="row"))


def test_a_loss_that_leapt_and_stayed_up_has_diverged_without_validation_too():
    values = [*(100 * 0.8**epoch + 30 for epoch in range(27)), *(90 - 2 * epoch for epoch in range(13))]
    assert "loss-divergence" in raised(examined(values))


def test_guessing_among_classes_is_no_learning():
    report = examined(
        0.69 + 0.08 * np.exp(-np.arange(40) / 8) + noise(40, 0.002),
        train_accuracy=0.54 + noise(40, 0.005),
        val_accuracy=0.52 + noise(40, 0.005),
    )
    assert "not-learning" in raised(report)
    assert "not-learning" not in raised(
        examined(0.69 + 0.08 * np.exp(-np.arange(40) / 8), train_accuracy=0.5 + 0.01 * np.arange(40))
    )


def test_overfitting_shows_in_an_accuracy_where_validation_has_no_loss():
    scores = [0.5 + 0.02 * min(epoch, 13) - 0.006 * max(epoch - 15, 0) for epoch in range(40)]
    better = {"val_accuracy": "higher"}
    assert "overfitting" in raised(examined(FALL + [0.29] * 20, val_accuracy=scores, better=better))
    still = [max(scores[: epoch + 1]) for epoch in range(40)]
    assert not raised(examined(FALL + [0.29] * 20, val_accuracy=still, better=better))


def test_spikes_of_a_policy_are_notes_where_the_reward_was_kept():
    loss, norms = noise(400, 0.01), np.exp(noise(400, 0.3))
    loss[200:203], norms[200:203] = 0.4, 40.0
    assert not raised(examined(loss, clock="step", grad_norm=norms, reward=np.linspace(0, 1, 400)))


def test_a_log_that_begins_in_the_midst_of_a_run_may_have_converged():
    chart = Chart.of(loss=[0.267] * 40, context={"source": "CSV", "clock": "step"})
    assert "not-learning" in {item.name for item in in_hindsight(chart).episodes}
    report = Examination(Settings())
    report.take({"type": "header", "step": -1, "schema": 1, "context": {"source": "CSV", "clock": "step"}})
    for place in range(80):
        report.take({"type": "vitals", "step": 67400 + 50 * place, "vitals": {"loss": 0.267 + 1e-4 * (place % 3)}})
    assert not raised(report.report())


def test_a_rate_of_five_in_a_log_is_the_leading_cause_of_a_divergence():
    loss = [1.64, 11.8, 11.6, 10.4, *[10.37] * 6]
    first = examined(loss, clock="step", lr=[5.0] * 10).diagnoses[0]
    assert (first.cause, first.probability > 0.8) == ("lr-too-high", True)
    assert any("learning rate of 5" in str(item) for item in first.evidence)


def test_training_that_climbs_for_many_epochs_has_diverged_though_validation_is_noisy():
    fall = [2.6, 2.4, 1.65, 1.3, 1.1, 0.89, 0.67, 0.5, 0.34, 0.21, 0.11, 0.07]
    held_out = [2.7, 3.0, 0.8, 1.0, 1.7, 0.98, 0.78, 0.38, 0.32, 0.08, 0.07, 0.065]
    rise, other = [0.06, 0.067, 0.11, 0.2, 0.33, 0.46, 0.55], [0.06, 0.076, 0.11, 0.33, 0.33, 0.73, 0.18]
    assert "loss-divergence" in raised(examined(fall + rise, held_out + other))
    assert "loss-divergence" not in raised(examined(fall + rise, held_out + [0.06] * 7))


SWINGING = [0.4, 2.4] * 10
ACCURACIES = [0.95, 0.55] * 10


def test_validation_that_swings_up_to_the_end_is_a_warning():
    higher = {"val_accuracy": "higher"}
    assert "validation-anomaly" in raised(examined(loss=FALL, val=SWINGING, val_accuracy=ACCURACIES, better=higher))
    noisy = [2.0 * 0.85**epoch * (1.2 if epoch % 2 else 1.0) + 0.3 for epoch in range(20)]
    assert not raised(examined(loss=FALL, val=noisy))


def test_a_loss_that_leapt_in_a_short_log_and_stayed_there_has_diverged():
    assert "loss-divergence" in raised(examined(loss=[0.141, 0.097, 0.083, 0.505, 0.495, 0.493, 0.488, 0.487, 0.486]))


def test_a_metric_excuses_validation_only_as_far_as_it_gained():
    doubled = [0.6, 0.45, 0.375, 0.48, 0.5, 0.58, 0.65, 0.7, 0.75, 0.77]
    slight = [0.6, 0.45, 0.375, 0.39, 0.4, 0.41, 0.42, 0.42, 0.43, 0.43]
    scores = [0.7, 0.75, 0.78, 0.79, 0.8, 0.81, 0.82, 0.83, 0.83, 0.83]
    better = {"val_accuracy": "higher"}
    for val, sick in ((doubled, True), (slight, False)):
        report = examined(loss=[0.7 * 0.5**epoch for epoch in range(10)], val=val, val_accuracy=scores, better=better)
        assert ("overfitting" in raised(report)) is sick


def test_training_that_stands_still_is_no_overfitting():
    still = [0.1 + 0.004 * ((7 * epoch) % 5 - 2) for epoch in range(32)]
    val = [0.106] * 11 + [0.01, 0.003, 0.0006, 0.0006, 0.0006, 0.0006, 0.0006] + [0.06, 0.08] + [0.1] * 12
    assert "overfitting" not in raised(examined(loss=still, val=val))


def test_what_is_said_of_overfitting_does_not_contradict_itself():
    loss = [1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3, 0.28] + [0.9] * 6
    report = examined(loss=loss, val=[1.0, 0.8, 0.7, 0.9, 1.0, 1.1, 1.2, 1.3] + [1.3] * 6)
    for item in report.symptoms:
        assert not (" while " in item.message and "training got worse" in item.message)


HELD = [0.90, 0.91, 0.90, 0.91, 0.90, 0.89, 0.91, 0.90, 0.91, 0.90, 0.91, 0.90, 0.91, 0.90, 0.91, 0.90]
LOST = [0.76, 0.72, 0.66, 0.74]


@pytest.mark.parametrize(("training", "name"), [(0.3, "validation-anomaly"), (0.9, "loss-divergence")])
def test_an_accuracy_of_validation_that_is_lost_alone_is_of_validation(training, name):
    report = examined(loss=[0.3] * 16 + [training] * 4, val_accuracy=HELD + LOST, better={"val_accuracy": "higher"})
    assert name in raised(report)
    assert ("validation accuracy fell" in str(report)) is (name == "validation-anomaly")


def test_an_accuracy_of_validation_that_came_back_is_none():
    rates = HELD + LOST + HELD[:6]
    assert not raised(examined(loss=np.linspace(0.5, 0.1, 26), val_accuracy=rates, better={"val_accuracy": "higher"}))


WAVE = [0.998, 1.042, 0.968, 0.993, 1.045, 1.052, 1.032, 1.0, 1.061, 1.025, 0.957, 1.024, 0.928, 1.06, 0.939, 0.968]
CALM = [1.006, 0.878, 0.952, 1.015, 0.928, 0.912, 0.881, 0.871, 1.057, 0.944, 1.06, 0.989, 1.009, 0.998, 1.064, 1.011]


def test_neither_loss_that_falls_is_no_learning_though_validation_creeps_up():
    assert "not-learning" in raised(examined(loss=WAVE, val=CALM))
    assert not raised(examined(loss=[value - 0.02 * epoch for epoch, value in enumerate(WAVE)], val=CALM[::-1]))


def test_validation_that_is_seldom_finite_is_said_though_it_came_back():
    often = [2.3, 2.2, *[math.nan] * 8, 1.9, math.nan, *np.linspace(1.8, 1.0, 8)]
    seldom = [2.3, 2.2, math.nan, *np.linspace(2.1, 1.0, 17)]
    late = [*[math.nan] * 8, *np.linspace(2.3, 1.0, 12)]  # not measured from the start on
    assert "nan-or-inf" in raised(examined(loss=FALL, val=often))
    assert "nan-or-inf" not in raised(examined(loss=FALL, val=seldom)) | raised(examined(loss=FALL, val=late))
    said = [item.message for item in examined(loss=FALL, val=seldom).symptoms if item.name == "nan-or-inf"]
    assert said == ["validation loss is not finite at 1 of 20 evaluations"]
    assert not any(item.name == "nan-or-inf" for item in examined(loss=FALL, val=late).symptoms)


def test_records_are_counted_as_the_log_has_them():
    """A long log is judged by its outline of a thousand points."""
    report = examined(loss=2.3 + 0.01 * np.random.default_rng(1).standard_normal(3000), clock="step")
    found = next(item for item in report.symptoms if item.name == "not-learning")
    assert "of 3000 records" in found.message and found.count == 3000


def test_a_look_that_fails_costs_no_other_and_is_said(monkeypatch):
    def broken(chart):
        raise ZeroDivisionError("no records")

    monkeypatch.setattr(hindsight, "LOOKS", (broken, *hindsight.LOOKS))
    report = examined(loss=[1.9105] * 12, clock="epoch")
    assert "not-learning" in {item.name for item in report.symptoms}
    assert any("(broken) failed: ZeroDivisionError" in note for note in report.notes)


BAND, GONE = [1.4, 1.3, 1.35, 1.3] * 10, [math.nan] * 10
OTHERS_LOST = {
    "both players": ({"d_loss": BAND + GONE, "g_loss": BAND + GONE}, "d_loss, g_loss are NaN from step 40 to the end"),
    "one player": ({"d_loss": BAND + [math.inf] * 10, "g_loss": [0.7] * 50}, "d_loss is infinity from step 40"),
    "actor and critic": ({"actor_loss": BAND + GONE, "critic_loss": BAND + GONE}, "actor_loss, critic_loss are NaN"),
    "never a number": ({"d_loss": GONE, "g_loss": GONE}, "d_loss, g_loss are NaN from step 0 to the end"),
    "nothing but a reward": ({"reward": BAND + GONE}, "reward is NaN from step 40 to the end"),
    "nothing but accuracies": ({"val_accuracy": [0.5] * 40 + GONE}, "val_accuracy is NaN from step 40 to the end"),
    "many records": ({"d_loss": BAND + GONE * 10, "g_loss": BAND + GONE * 10}, "d_loss, g_loss are NaN from step 40"),
}
OTHERS_KEPT = {
    "not computed": {"d_loss": BAND, "g_loss": [0.7] * 40, "mask_loss": [math.nan] * 40},
    "before learning begins": {"policy_loss": GONE + BAND, "value_loss": GONE + BAND, "reward": [0.0, 1.0] * 25},
    "for some time": {"policy_loss": BAND + GONE + BAND, "value_loss": BAND + GONE + BAND},
    "no episode has ended": {"policy_loss": BAND + BAND, "reward": [1.0, 2.0] * 20 + GONE * 4},
    "an accuracy of nothing": {"loss": FALL * 2, "val_accuracy": [0.5] * 30 + GONE},
    "the last record": {"d_loss": [*BAND, math.nan], "g_loss": [0.7] * 41},
}


@pytest.mark.parametrize("case", OTHERS_LOST)
def test_other_losses_that_are_lost_for_good(case):
    vitals, said = OTHERS_LOST[case]
    (found,) = [item for item in examined(clock="step", **vitals).symptoms if item.name == "nan-or-inf"]
    assert found.message.startswith(said)
    assert found.severity == ("warning" if "reward" in vitals or "val_accuracy" in vitals else "critical")


@pytest.mark.parametrize("case", OTHERS_KEPT)
def test_other_losses_may_have_no_value_for_a_time(case):
    assert "nan-or-inf" not in raised(examined(clock="step", **OTHERS_KEPT[case]))


def test_a_part_is_a_warning_while_the_loss_is_finite():
    found = examined(loss=FALL, box_loss=FALL[:10] + GONE)
    assert [item.severity for item in found.symptoms if item.name == "nan-or-inf"] == ["warning"]


def test_a_game_that_both_players_lose_has_diverged():
    blown = [*BAND, *np.exp(np.linspace(0, 10, 40))]
    assert "loss-divergence" in raised(examined(clock="step", d_loss=blown, g_loss=blown))
    assert "loss-divergence" in raised(examined(clock="step", box_loss=blown, class_loss=blown))
    for losses in (
        {"d_loss": blown, "g_loss": BAND * 2},
        {"d_loss": blown[:60], "g_loss": blown[:60]},  # 100 times
        {"d_loss": [-value for value in blown], "g_loss": blown},  # a score without a level
        {"actor_loss": blown, "critic_loss": blown},  # they grow with the returns
    ):
        assert "loss-divergence" not in raised(examined(clock="step", **losses))


EPOCHS = np.arange(50)
RISEN = 0.7 * (1 - np.exp(-EPOCHS / 4))
CRASHED = {  # the values before, from epoch 30 on, and what is better
    "iou": (RISEN, 0.05, "higher"),
    "psnr": (30 * RISEN, 1.5, "higher"),
    "wer": (20 + 100 * np.exp(-EPOCHS / 4), 150, "lower"),
    "fid": (5 + 300 * np.exp(-EPOCHS / 4), 300, "lower"),
}


@pytest.mark.parametrize("metric", CRASHED)
def test_a_crash_of_any_metric_of_validation_is_found(metric):
    before, after, way = CRASHED[metric]
    series = {"loss": 2 * np.exp(-EPOCHS / 10) + 0.2, "better": {f"val_{metric}": way, "val_accuracy_other": "higher"}}
    crashed = examined(**series, **{f"val_{metric}": np.where(EPOCHS < 30, before, after)})
    verb = "rose" if way == "lower" else "fell"
    assert f"validation {metric} {verb} from" in str(crashed) and "validation-anomaly" in raised(crashed)
    for mended in (EPOCHS >= 36, EPOCHS % 7 == 0):  # it came back, or it comes back again and again
        assert not raised(examined(**series, **{f"val_{metric}": np.where((EPOCHS < 30) | mended, before, after)}))
    beside = examined(**series, **{f"val_{metric}": np.where(EPOCHS < 30, before, after)}, val_accuracy_other=RISEN)
    assert not raised(beside)  # one class or one part among several


def test_the_metric_of_a_generator_is_judged_beside_its_losses():
    before, after, way = CRASHED["fid"]
    series = {"g_loss": [0.8, 0.9] * 25, "d_loss": [1.3, 1.2] * 25, "better": {"val_fid": way}}
    assert "loss-divergence" in raised(examined(**series, val_fid=np.where(EPOCHS < 30, before, after)))
    assert not raised(examined(**series, val_fid=before * np.exp(noise(50, 0.2))))


@pytest.mark.parametrize(("metric", "way"), [("dice", "higher"), ("wer", "lower")])
def test_overfitting_shows_in_any_metric_of_validation(metric, way):
    held_out = np.minimum(RISEN, 0.75 - 0.01 * EPOCHS)
    values = held_out if way == "higher" else 100 * (1.05 - held_out)
    better = {f"val_{metric}": way, f"train_{metric}": way}
    name, loss = f"val_{metric}", 2 * np.exp(-EPOCHS / 10)
    report = examined(loss, better=better, **{name: values})
    assert raised(report) == {"overfitting"} and "while the training loss fell" in str(report)
    twin = RISEN + 0.005 * EPOCHS if way == "higher" else 100 * (1.2 - RISEN - 0.008 * EPOCHS)
    report = examined(better=better, **{name: values, f"train_{metric}": twin})
    assert "overfitting" in raised(report) and f"while training {metric} " in str(report)
    swinging = held_out + noise(50, 0.15)
    assert not raised(examined(loss, better=better, **{name: swinging if way == "higher" else 1.05 - swinging}))


def test_what_a_broken_model_scores_is_no_overfitting_and_did_not_come_first():
    rates = [0.1 + 0.6 * (1 - 0.8**epoch) for epoch in range(15)] + [0.1] * 15
    loss = [2.3 * 0.9**epoch for epoch in range(15)] + [math.nan] * 15
    report = examined(loss, val_accuracy=rates, better={"val_accuracy": "higher"})
    assert raised(report) == {"nan-or-inf"} and "while the training loss" not in str(report)
    policy = {"better": {"reward": "higher"}, "every": 1000, "clock": "step"}
    rewards = [*(20 + 40 * np.minimum(np.arange(60), 12)), *([20.0] * 60)]
    assert raised(examined(loss=[1.0] * 60 + [math.nan] * 60, reward=rewards, **policy)) == {"nan-or-inf"}


def test_a_reward_is_lost_where_it_falls():
    rewards = np.concatenate([20 + 5 * np.minimum(np.arange(120.0), 90), np.full(80, 21.0)]) + noise(200, 3)
    report = examined(reward=rewards, every=1000, clock="step", better={"reward": "higher"})
    found = next(item for item in report.symptoms if item.name == "loss-divergence")
    assert found.first_step == 120_000 and "rose above its earlier level" not in str(report)


def test_steps_are_skipped_from_where_the_scale_begins_to_fall():
    scales = [65536.0] * 100 + [max(1.0, 65536.0 / 2**place) for place in range(1, 60)]
    report = examined(loss=np.linspace(7, 5, 159), loss_scale=scales, every=10, clock="step")
    assert next(item for item in report.symptoms if item.name == "skipped-steps").first_step == 1000


def test_a_loss_that_swings_at_every_record_and_does_not_fall():
    swings = np.where(np.arange(300) % 2, 0.5, 3.5) + noise(300, 0.2)
    report = examined(swings, every=10, clock="step", lr=[0.5] * 300)
    assert raised(report) == {"loss-oscillation"} and "fell nevertheless" not in str(report)
    assert report.diagnoses[0].cause == "lr-too-high" and "swings more slowly" not in str(report)
    assert not raised(examined(swings + np.geomspace(40, 0.1, 300), every=10, clock="step", lr=[0.5] * 300))


def of_stairs(loss, **vitals):
    examination = Examination(Settings())
    context = {"source": "CSV", "clock": "step", "logged_every": 10, "steps_per_epoch": 1000}
    examination.take({"type": "header", "step": -1, "schema": 1, "context": context})
    for place, value in enumerate(loss):
        others = {name: float(values[place]) for name, values in vitals.items()}
        examination.take({"type": "vitals", "step": 10 * place, "vitals": {"loss": float(value), **others}})
    return [item.message for item in examination.report().symptoms]


def test_a_loss_that_falls_when_an_epoch_ends_is_remembered_and_not_stuck():
    loss = np.repeat([1.3, 0.95, 0.6], 100) * np.exp(noise(300, 0.04))
    (said,) = of_stairs(loss)
    assert "from epoch to epoch (1.3, 0.9" in said and "unless the learning rate" in said
    assert not any("epoch to epoch" in text for text in of_stairs(loss, lr=np.repeat([1e-3, 1e-4, 1e-5], 100)))
    assert not of_stairs(np.geomspace(1.3, 0.6, 300) * np.exp(noise(300, 0.04)))


def test_a_flat_loss_is_counted_in_steps():
    chart = Chart.of(loss=[2.31, 2.29, 2.3, 2.32, 2.28] * 50, context={"source": "CSV", "logged_every": 10})
    assert "for 2500 steps" in NotLearning().check(chart).message


def test_a_loss_of_zero_that_does_not_count_the_errors():
    loss = [*np.geomspace(2, 0.1, 10), *([0.0] * 190)]
    report = examined(loss, every=10, clock="step", val_accuracy=[0.1] * 10, better={"val_accuracy": "higher"})
    assert {"collapsed-output", "suspiciously-low-loss"} <= raised(report)
    assert report.diagnoses[0].cause == "loss-misuse"


def test_validation_at_chance_level_is_no_mystery_where_training_is_there_too():
    loss = 2.30 + 0.9 * np.exp(-np.arange(40) / 2) + noise(40, 0.01)
    rates = 0.1 + noise(40, 0.01)
    report = examined(loss, 2.31 + noise(40, 0.01), train_accuracy=rates, val_accuracy=rates)
    assert raised(report) == {"not-learning"}


def test_validation_that_rises_from_far_above_its_increments_is_no_running_sum():
    training = 1.05 * np.exp(-np.arange(80) / 10) + 0.045
    examination = Examination(Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": {"source": "CSV", "clock": "step"}})
    for place, value in enumerate(training):
        examination.take({"type": "vitals", "step": 25 * place, "vitals": {"loss": value}})
        if place % 20 == 19:
            held_out = 0.25 + 0.06 * (place // 20)
            examination.take({"type": "validation", "step": 25 * place, "vitals": {"val_loss": held_out}})
    assert raised(examination.report()) == {"overfitting"}
