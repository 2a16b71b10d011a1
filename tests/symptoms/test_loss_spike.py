import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.loss_spike import LossSpike

RNG = np.random.default_rng(0)
FALLING = 2 + 2 * np.exp(-np.arange(200) / 50) + 0.03 * RNG.standard_normal(200)

SICK = {
    "five times as much": [*FALLING, 11.0],
    "a summed loss": [*(1e5 * FALLING), 1.1e6],
    "a tiny loss": [*(1e-6 * FALLING), 1.1e-5],
    "worse than untrained": [*FALLING, 5.6],
    "a negative loss, back at its start": [*(FALLING - 100), -90.0],
    "through zero": [*(FALLING - 3), 9.0],
    "a million times as much in a young run": [2.8, 2.7, 2.5, 2.2, 2.1, 1.9, 1.8, 1.9, 1.7, 1.6e6],
    "a memorized run": [*(4 * np.exp(-np.arange(200) / 15 + RNG.standard_normal(200))), 3.0],
    "a constant loss": [1.0] * 100 + [6.0],
    "after a NaN": [*FALLING[:100], float("nan"), *FALLING[100:], 11.0],
}
HEALTHY = {
    "no readings": [],
    "too short to judge": [2.0] * 10 + [20.0],
    "a young run that was as high before": [2.8e4, 300.0, 2.5, 2.2, 2.1, 1.9, 1.8, 1.9, 1.7, 2e4],
    "nan": [*FALLING, float("nan")],
    "infinity": [*FALLING, float("inf")],
    "noise": [*FALLING, 2.15],
    "heavy tails": [*np.exp(0.5 * RNG.standard_normal(300)), 6.0],
    "precedents": [*np.where(np.arange(300) % 40 == 9, 8.0, FALLING[-1] + 0.03 * RNG.standard_normal(300)), 8.5],
    "a constant loss, rounded": [1.0] * 100 + [1.01],
    "falling on": [*FALLING, 1.5],
}


@pytest.mark.parametrize("losses", SICK.values(), ids=SICK)
def test_fires(losses):
    symptom = LossSpike().check(Chart.of(loss=losses))
    assert symptom is not None
    assert (symptom.severity, symptom.first_step) == ("warning", len(losses) - 1)


@pytest.mark.parametrize("losses", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses):
    assert LossSpike().check(Chart.of(loss=losses)) is None


def test_a_harder_curriculum_is_a_note():
    assert LossSpike().check(Chart.of(loss=[*FALLING, 3.5])).severity == "info"


def test_the_same_rise_is_a_warning_with_an_explosion_or_a_leap_of_the_learning_rate():
    chart = Chart.of(loss=[*FALLING, 3.5])
    chart.open_episodes["gradient-explosion"] = Symptom("gradient-explosion", "GR01", "warning", 0.9, 200, 200)
    assert LossSpike().check(chart).severity == "warning"
    assert LossSpike().check(Chart.of(loss=[*FALLING, 2.4], lr=[1e-3] * 199 + [0.1] * 2)).severity == "warning"


@pytest.mark.parametrize(
    ("loaded", "severity"), [([200], "warning"), ([198], "warning"), ([150], "info"), ([40, 80, 120, 160, 200], "info")]
)
def test_the_same_rise_is_a_warning_after_a_state_was_loaded_unless_that_is_a_habit(loaded, severity):
    chart = Chart.of(loss=[*FALLING, 3.5])
    chart.add({"type": "facts", "step": 190, "facts": {"state.loaded": loaded}})
    assert LossSpike().check(chart).severity == severity


@pytest.mark.parametrize(
    ("loss", "norm", "severity"),
    [(11.0, 1.1, "info"), (11.0, 4.0, "info"), (11.0, 12.0, "warning"), (1e5, 9, "warning")],
)
def test_a_single_batch_with_a_gradient_to_match_is_a_note_until_the_next_loss_is_high_too(loss, norm, severity):
    chart = Chart.of(loss=[*FALLING, loss], grad_norm=[*[1.0] * len(FALLING), norm])
    assert LossSpike().check(chart).severity == severity
    chart.put(len(FALLING) + 1, "loss", 4.5)  # lower, but not back
    chart.put(len(FALLING) + 1, "grad_norm", norm)
    assert LossSpike().check(chart).severity == "warning"


@pytest.mark.parametrize(("high", "severity"), [(0.4, "info"), (6.0, "warning")])
def test_with_a_clip_a_few_wrong_samples_of_a_nearly_solved_run_are_a_note(high, severity):
    losses = [*np.geomspace(3.0, 0.005, 150), *[0.005, 0.006, 0.004] * 20]
    chart = Chart.of(loss=[*losses, *[high] * 3], grad_norm=[*[0.1] * 209, *[9.0] * 4], clip=[1.0] * 213)
    assert LossSpike().check(chart).severity == severity


@pytest.mark.parametrize(("norms", "severity"), [((2.5, 3.5), "info"), ((1.0, 1.1), "warning")])
def test_two_hard_batches_in_a_row_are_a_note(norms, severity):
    """Chance gives some in every long run. Their norms rise too, but less than their losses."""
    chart = Chart.of(loss=[*FALLING, 9.0, 12.0], grad_norm=[*[1.0] * len(FALLING), *norms])
    assert LossSpike().check(chart).severity == severity


@pytest.mark.parametrize(
    ("losses", "norms", "severity"),
    [
        ([4.2, 3.9, 3.5], [4.0, 3.9, 3.5], "info"),
        ([4.2, 1.9, 1.6], [4.0, 3.9, 3.5], "warning"),  # it came back at once, but not all the way: one bad batch
        ([9.5, 8.1, 7.7], [9.0, 8.9, 8.5], "info"),  # a model that was sure of the old one
        ([4.2, 4.9, 4.5, 5.0, 4.1], [4.0, 4.5, 4.0, 4.1, 3.9], "info"),  # in noise
        ([4.2, 4.9, 5.9, 7.1, 8.6, 9.9], [4.0, 4.5, 5.0, 5.4, 6.0, 7.0], "warning"),  # it is not learnt
        ([4.2, 3.9, 3.5], [1.2, 1.1, 1.0], "warning"),  # no gradient: there is nothing new to learn
        ([4.2, 2.8, 1.4, 0.9, 0.8, 0.9], [8.0, 6.0, 4.0, 2.0, 1.1, 2.0], "info"),  # and learnt within a few steps
    ],
)
def test_a_new_task_that_is_learnt_at_once_is_a_note(losses, norms, severity):
    chart = Chart.of(loss=FALLING - 1.7, grad_norm=[1.0] * len(FALLING))
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), len(FALLING)):
        chart.put(step, "loss", loss)
        chart.put(step, "grad_norm", norm)
    assert LossSpike().check(chart).severity == severity


def test_a_leap_after_a_learning_rate_that_leapt_is_no_new_task():
    chart = Chart.of(loss=FALLING - 1.7, grad_norm=[1.0] * len(FALLING), lr=[1e-3] * len(FALLING))
    for step, loss in enumerate([0.32, 4.2, 3.9, 3.5], len(FALLING)):
        for name, value in (("loss", loss), ("grad_norm", loss), ("lr", 0.1)):
            chart.put(step, name, value)
    assert LossSpike().check(chart).severity == "warning"


@pytest.mark.parametrize(
    ("loss", "clip", "severity"), [(2.0, 1.0, "info"), (2.0, None, "warning"), (9.0, 1.0, "warning")]
)
def test_a_single_hard_batch_whose_step_is_cut_is_a_note_unless_it_is_many_times_as_hard(loss, clip, severity):
    calm = FALLING - 1.7
    chart = Chart.of(loss=[*calm, loss], grad_norm=[*[1.0] * len(calm), 40.0])
    if clip:
        chart.put(len(calm), "clip", clip)
    assert LossSpike().check(chart).severity == severity


@pytest.mark.parametrize(("norm", "severity"), [(4.0, "info"), (90.0, "warning")])
def test_a_loss_that_was_zero_at_times_is_compared_as_others_are(norm, severity):
    """A margin that all samples of a batch keep."""
    calm = np.maximum(0.02 + 0.4 * np.exp(-np.arange(200) / 30) + 0.01 * RNG.standard_normal(200), 0.0)
    calm[150] = 0.0
    chart = Chart.of(loss=[*calm, 0.52], grad_norm=[*[1.0] * 200, norm])
    assert LossSpike().check(chart).severity == severity


@pytest.mark.parametrize(("loss", "severity"), [(2.2, "info"), (60.0, "warning")])
def test_of_next_to_nothing_a_thousand_times_as_much_must_be_far_worse_than_untrained(loss, severity):
    calm = np.exp(-np.arange(200) / 25) + 1e-3 * np.exp(0.2 * RNG.standard_normal(200))
    chart = Chart.of(loss=[*calm, loss], grad_norm=[*[0.05] * 200, 2.0])
    assert LossSpike().check(chart).severity == severity


def test_new_targets_lift_the_loss_of_a_loop_that_acts():
    chart = Chart.of(loss=[*FALLING, 11.0])
    chart.add({"type": "facts", "step": 0, "facts": {"loop.acts": True}})
    assert LossSpike().check(chart).severity == "info"
    chart = Chart.of(loss=[*FALLING, 110.0])
    chart.add({"type": "facts", "step": 0, "facts": {"loop.acts": True}})
    assert LossSpike().check(chart).severity == "warning"


@pytest.mark.parametrize(
    ("losses", "batch", "severity"),
    [
        ([5.9, 0.42], 48, "warning"),
        ([5.9, 0.42], 8, None),  # a few samples may all be hard
        ([4.0, 0.42], 48, None),  # not much worse than a guess
        ([5.9, 5.1], 48, "info"),  # a new task would go on
    ],
)
def test_a_batch_that_was_worse_than_a_guess_between_good_ones_was_wrong_as_a_whole(losses, batch, severity):
    calm = 0.4 + 2 * np.exp(-np.arange(200) / 30) + 0.02 * RNG.standard_normal(200)
    chart = Chart.of(loss=[*calm, losses[0]], grad_norm=[*[1.0] * 200, 6.0], context={"batch_size": batch})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 2.3, "loss.classes": 10}})
    found = LossSpike().check(chart)
    assert found.severity == "info"
    chart.open_episodes[found.name] = found
    chart.put(201, "loss", losses[1])
    chart.put(201, "grad_norm", 6.0 if losses[1] > 1 else 1.0)
    found = LossSpike().check(chart)
    assert (found and found.severity) == severity
    assert severity != "warning" or found.first_step == 200


@pytest.mark.parametrize(
    ("loaded", "loss", "severity"), [([200], 2.55, "warning"), ([], 2.55, None), ([200], 2.3, None)]
)
def test_less_is_enough_where_a_state_was_loaded(loaded, loss, severity):
    rng = np.random.default_rng(5)
    noisy = 2 + 2 * np.exp(-np.arange(200) / 50) + 0.09 * rng.standard_normal(200)
    chart = Chart.of(loss=[*noisy, loss])
    chart.add({"type": "facts", "step": 199, "facts": {"state.loaded": loaded}})
    found = LossSpike().check(chart)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"loss.kind": "bce", "loss.reduction": "mean", "loss.chance": 0.693}, "warning"),
        ({"loss.kind": "cross-entropy", "loss.reduction": "mean", "outputs.classes": 2}, "warning"),
        ({"loss.kind": "bce", "loss.reduction": "sum"}, None),
        ({"loss.kind": "mse", "loss.reduction": "mean"}, None),  # one outlier makes a mean of squares as high
    ],
)
def test_of_two_classes_a_guess_is_known_too(facts, severity):
    calm = 0.69 * np.exp(-np.arange(200) / 60) + 0.05 + 0.005 * RNG.standard_normal(200)
    chart = Chart.of(loss=[*calm, 3.9], grad_norm=[*[1.0] * 200, 12.0], context={"batch_size": 64})
    chart.add({"type": "facts", "step": 0, "facts": facts})
    found = LossSpike().check(chart)
    chart.open_episodes[found.name] = found
    chart.put(201, "loss", 0.08)
    chart.put(201, "grad_norm", 1.0)
    found = LossSpike().check(chart)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("times", "rate", "severity"),
    [
        (4.5, 1e-3, "warning"),
        (1.8, 1e-3, "info"),  # as after many a proper resume on other batches
        (4.5, 2e-4, "info"),  # back to the best state at a lower rate: meant
    ],
)
def test_an_old_state_sets_a_loss_back_that_came_down_by_powers_of_ten(times, rate, severity):
    calm = np.exp(-np.arange(300) / 15) * np.exp(0.1 * RNG.standard_normal(300)) + 7e-4 * np.exp(
        0.2 * RNG.standard_normal(300)
    )
    recent = float(np.median(calm[-32:]))
    chart = Chart.of(loss=[*calm, *[times * recent] * 3], lr=[1e-3] * 300 + [rate] * 3, grad_norm=[1.0] * 303)
    chart.add({"type": "facts", "step": 300, "facts": {"state.loaded": [300]}})
    found = LossSpike().check(chart)
    assert found is None or found.severity == severity
    assert severity != "warning" or found is not None


def test_what_is_learnt_anew_may_come_soon_after_the_start():
    """A target network is renewed for the first time, fifty steps from a start as high as what comes then."""
    losses = [*(10 * np.exp(-np.arange(50) / 2) + 5e-5 * np.exp(0.3 * RNG.standard_normal(50))), 10.6]
    norms = [*(10 * np.exp(-np.arange(50) / 4) + 0.02), 9.0]
    chart = Chart.of(loss=losses, grad_norm=norms)
    for step, (loss, norm) in enumerate([(9.1, 10.6), (9.9, 12.0)], len(losses)):
        chart.put(step, "loss", loss)
        chart.put(step, "grad_norm", norm)
        found = LossSpike().check(chart)
        assert found is None or found.severity == "info"


@pytest.mark.parametrize(("last", "found"), [(4, False), (60, True)])
def test_the_short_last_batch_of_an_epoch_may_be_far_off(last, found):
    losses = [*(2 + 0.06 * np.random.default_rng(0).standard_normal(64)), 3.1]
    context = {"batch_size": 64, "epoch_batches": 65, "last_batch": last}
    assert (LossSpike().check(Chart.of(loss=losses, context=context)) is not None) == found
