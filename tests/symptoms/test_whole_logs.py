"""Whole logs that went wrong in ways that only the end of a log shows, each beside one that is well."""

import numpy as np
import pytest

from torchdoctor.examination import Examination
from torchdoctor.records import INFORMATIVE
from torchdoctor.settings import Settings

WAVE = [1.0, 1.08, 0.94, 1.03, 0.97]


def raised(better=None, every=1, **vitals):
    """What is said of a log with these series; `context` in it says what is known of the run."""
    context = {"source": "CSV", "clock": "step", "better": better or {}, **vitals.pop("context", {})}
    examination = Examination(Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": context})
    for place in range(max(map(len, vitals.values()))):
        there = {name: float(values[place]) for name, values in vitals.items() if place < len(values)}
        held_out = {name: value for name, value in there.items() if name.startswith("val_")}
        train = {name: value for name, value in there.items() if name not in held_out}
        for kind, found in (("vitals", train), ("validation", held_out)):
            if found:
                examination.take({"type": kind, "step": every * place, "vitals": found})
    found = examination.report().symptoms
    return {item.name for item in found if item.severity != "info" and item.name not in INFORMATIVE}


def test_validation_that_never_moves_beside_noisy_batches_is_no_learning():
    noisy = [1.1 * factor for factor in WAVE * 8]
    assert raised(loss=noisy, val_loss=[1.11, 1.112] * 10) == {"not-learning"}
    assert not raised(loss=noisy, val_loss=[1.3 - 0.02 * place for place in range(20)])
    right = {"val_accuracy": "higher"}
    assert not raised(right, loss=noisy, val_loss=[1.11, 1.112] * 10, val_accuracy=[0.93] * 3 + [0.94] * 17)


def test_epochs_with_one_and_the_same_mean_are_no_learning():
    batches = [9.0, 1.5, 4.0, 0.5]
    context = {"steps_per_epoch": 4}
    assert raised(loss=batches * 15, context=context) == {"not-learning"}
    falling = [value * 0.9 ** (place // 4) for place, value in enumerate(batches * 15)]
    assert not raised(loss=falling, context=context)


@pytest.mark.parametrize(("classes", "accuracy"), [(2, 0.51), (3, 0.33)])
def test_noisy_batches_at_chance_with_two_evaluations_are_a_guess(classes, accuracy):
    losses = [np.log(classes) * factor for factor in WAVE * 6]
    assert "not-learning" in raised(loss=losses, val_accuracy=[accuracy, accuracy + 0.002], val_loss=[1.12, 1.11])
    assert not raised(loss=losses, val_accuracy=[0.7, 0.74], val_loss=[1.12, 1.0])


def test_the_loss_of_the_classes_alone_may_stand_still():
    boxes = [700 * factor for factor in WAVE * 8]
    still = [5.30, 5.305, 5.298, 5.302] * 10
    whole = [one + other for one, other in zip(boxes, still, strict=True)]
    assert raised(loss=whole, classification_loss=still, regression_loss=boxes) == {"not-learning"}
    falling = [5.3 * 0.97**place for place in range(40)]
    assert not raised(loss=whole, classification_loss=falling, regression_loss=boxes)


def test_a_loss_that_leaps_in_the_last_records_has_diverged():
    calm = [0.5 * 0.95**epoch for epoch in range(40)]
    context = {"clock": "epoch"}
    assert raised(loss=[*calm, 0.28, 0.42, 0.39, 0.3, 0.2], context=context) >= {"loss-divergence"}
    assert not raised(loss=[*calm, 0.07, 0.066, 0.068, 0.065, 0.064], context=context)


def test_a_handful_of_noisy_batches_is_no_divergence_where_validation_falls():
    falls = [0.69 * 0.9**place for place in range(10)]
    assert not raised(loss=[0.1575, 0.0904, 0.3111, 0.2731, 0.2926], val_loss=falls, every=50)


def test_what_an_agent_expects_diverges_where_it_earns_no_more():
    grown = [300 * factor * max(1.0, 1.03 ** (step - 100)) for step, factor in enumerate(WAVE * 50)]
    luck = np.tile([-90.0, -60.0, -110.0, -75.0, -115.0], 50)
    assert "loss-divergence" in raised({"reward": "higher"}, loss=grown, reward=luck)
    assert not raised({"reward": "higher"}, loss=grown, reward=luck + np.linspace(0, 300, 250))


def test_validation_that_left_its_best_for_good_is_overfitting_though_it_swings():
    loss = [0.7 * 0.99**epoch for epoch in range(80)]
    swings = [0.69, 0.66, 0.65, 0.645, 0.65, 0.66, *np.linspace(1.3, 0.9, 74) + np.tile([0.03, -0.03], 37)]
    assert "overfitting" in raised(loss=loss, val_loss=swings, context={"clock": "epoch"})
    assert not raised(loss=loss, val_loss=[0.69 * 0.992**epoch for epoch in range(80)], context={"clock": "epoch"})


def test_a_metric_that_fell_by_a_third_is_overfitting_though_the_loss_hardly_rose():
    loss = [6.3, 5.1, 4.6, 4.5, 4.3, 4.4, 4.3, 4.2, 4.1, 4.1, 4.0, 3.9]
    val = [6.3, 5.7, 6.0, 6.05, 5.95, 6.1, 6.1, 6.2, 6.2, 6.3, 6.1, 6.1]
    fell = [0.48, 0.54, 0.50, 0.52, 0.55, 0.52, 0.41, 0.30, 0.31, 0.34, 0.36, 0.35]
    better, context = {"val_map50": "higher"}, {"clock": "epoch"}
    assert raised(better, loss=loss, val_loss=val, val_map50=fell, context=context) == {"overfitting"}
    assert not raised(better, loss=loss, val_loss=val, val_map50=sorted(fell), context=context)


def test_detectors_without_a_single_box_are_not_learning():
    loss = [136.0 - 5 * epoch for epoch in range(12)]
    zero = dict.fromkeys(("val_map50", "val_precision", "val_recall"), [0.0] * 12)
    better, context = dict.fromkeys(zero, "higher"), {"clock": "epoch"}
    assert "not-learning" in raised(better, loss=loss, context=context, **zero)
    assert not raised(better, loss=loss, context=context, **{**zero, "val_map50": [0.0] * 5 + [0.1] * 7})


def test_validation_that_gains_two_per_cent_in_many_evaluations_stands_still():
    noisy = [12.0 * factor for factor in (1.0, 1.6, 0.5, 1.3, 0.6) * 20]
    assert raised(loss=noisy, val_loss=np.linspace(12.81, 12.67, 100)) == {"not-learning"}
    assert not raised(loss=noisy, val_loss=np.linspace(12.81, 11.9, 100))


def test_a_validation_that_is_nan_at_the_very_end_has_ended_the_run():
    falls = [2.0 * 0.9**step for step in range(12)]
    assert raised(loss=falls, val_loss=[*falls[:-1], float("nan")]) == {"nan-or-inf"}
    assert not raised(loss=falls, val_loss=falls)


def test_nothing_right_and_a_loss_that_does_not_move_is_no_learning_early_too():
    better = {"val_accuracy": "higher"}
    still = [1.07, 1.092, 1.086, 1.091, 1.086, 1.093, 1.084, 1.083, 1.086, 1.085]
    noisy = [1.02, 0.96, 1.04, 0.98, 0.99]
    assert "not-learning" in raised(better, loss=noisy, val_loss=still, val_accuracy=[0.0] * 10, every=29)
    falls = [1.07 * 0.95**place for place in range(10)]
    assert not raised(better, loss=noisy, val_loss=falls, val_accuracy=[0.0] * 10, every=29)
    learns = [0.09, 0.06, 0.04, 0.02, 0.01]
    assert "not-learning" not in raised(better, loss=learns, val_loss=still, val_accuracy=[0.0] * 10, every=29)


def test_twenty_evaluations_of_guessing_are_no_learning_where_training_has_not_learnt_either():
    noisy = np.linspace(0.72, 0.68, 60) * np.tile([1.0, 1.03, 0.97, 1.01, 0.98], 12)
    guess, better = [0.711, *[0.6935, 0.694, 0.6937] * 8], {"val_accuracy": "higher"}
    assert "not-learning" in raised(better, loss=noisy, val_loss=guess, val_accuracy=[0.515, *[0.52, 0.521, 0.518] * 8])
    right = np.linspace(0.52, 0.7, 25)
    assert not raised(better, loss=noisy, val_loss=np.linspace(0.711, 0.6, 25), val_accuracy=right)


def test_validation_in_other_units_than_training_is_no_anomaly():
    falls = [0.46 * 0.97**step for step in range(60)]
    assert not raised(loss=falls, val_loss=[1.0e7, 1.005e7, 9.9e6] * 20)
    assert "validation-anomaly" in raised(loss=falls, val_loss=[1.0, 1.005, 0.99] * 20)


def test_training_and_validation_that_both_end_above_their_start_have_diverged():
    rises = [0.0405, 0.0416, 0.0402, 0.041, 0.0393, 0.0406, 0.0495, 0.0534, 0.0482, 0.0453, 0.0464, 0.0452]
    val = [0.0389, 0.0409, 0.0411, 0.04, 0.0408, 0.0461, 0.0444, 0.0622, 0.0475, 0.0546, 0.0466, 0.048]
    context = {"clock": "epoch"}
    assert raised(loss=rises, val_loss=val, context=context) == {"loss-divergence"}
    assert not raised(loss=rises[::-1], val_loss=val[::-1], context=context)


def test_validation_that_only_climbs_is_overfitting_however_noisy():
    loss = np.linspace(1.85, 1.5, 10)
    val = [4.55, 4.764, 5.191, 4.49, 5.88, 4.976, 4.969, 5.312, 5.28, 6.281]
    assert "overfitting" in raised(loss=loss, val_loss=val, every=100)
    assert "overfitting" not in raised(loss=loss, val_loss=val[::-1], every=100)


EPOCHS = {"clock": "epoch"}
FALLING = [3.5 * 0.83**place for place in range(10)]


@pytest.mark.parametrize(
    "held_out",
    [
        [3.3, 2.7, 2.3, 2.2, 1.86, 1.82, 1.64, 1.79, 1.90, 2.10],
        [3.4, 2.9, 2.5, 2.07, 1.92, 1.99, 1.735, 1.815, 2.08, 2.03],
        [3.77, 1.92, 1.64, 1.56, 1.499, 1.508, 1.515, 1.545, 1.585, 1.611],
        [0.88, 0.59, 0.56, 0.49, 0.52, 0.55, 0.58, 0.55, 0.58, 0.57],
    ],
)
def test_a_best_that_was_left_for_good_shows_in_a_few_evaluations(held_out):
    falling = [value * min(1.0, held_out[0] / FALLING[0]) for value in FALLING]
    assert raised(loss=falling, val_loss=held_out, context=EPOCHS) == {"overfitting"}


@pytest.mark.parametrize(
    "held_out",
    [
        [3.3, 2.7, 2.3, 2.2, 1.86, 1.82, 1.64, 1.79, 1.70, 1.75],
        [0.88, 0.62, 0.60, 0.49, 0.59, 0.58, 0.58, 0.58, 0.57, 0.57],
        [1.7, 1.1, 0.43, 0.55, 0.34, 0.47, 0.57, 0.39, 0.25, 0.20],
    ],
)
def test_a_lucky_best_was_not_left(held_out):
    assert not raised(loss=FALLING, val_loss=held_out, context=EPOCHS)


def test_precision_that_rises_where_recall_falls_excuses_nothing():
    held_out = [0.26, 0.33, 0.30, 0.32, 0.48, 0.50, 0.55, 0.40, 0.50, 0.53, 0.58, 0.62, 0.61, 0.75, 0.54, 0.66]
    better = dict.fromkeys(("val_f1", "val_precision"), "higher")
    precision = [0.86 + 0.007 * place for place in range(16)]
    series = {"loss": [0.7 * 0.8**place for place in range(16)], "val_loss": held_out, "val_precision": precision}
    assert raised(better, **series, val_f1=[0.89, 0.90] * 8) == {"overfitting"}
    assert not raised(better, **series, val_f1=[0.80 + 0.01 * place for place in range(16)])


def test_validation_that_ends_at_its_very_best_has_come_back():
    train = [1.6 * 0.96**place for place in range(60)]
    held_out = [1.5 * 0.97**place for place in range(54)] + [0.37, 0.45, 0.58, 0.44, 0.47, 0.25]
    assert not raised(loss=train, val_loss=held_out, context=EPOCHS)


def test_ten_epochs_of_noise_in_both_losses_are_no_learning():
    train = [1.01, 1.06, 0.92, 0.98, 1.01, 0.97, 1.07, 0.93, 1.03, 1.02]
    assert raised(loss=train, val_loss=train[::-1], context=EPOCHS) == {"not-learning"}
    assert not raised(loss=train, val_loss=[0.99 - 0.02 * place for place in range(10)], context=EPOCHS)


def test_an_accuracy_that_grows_from_one_in_six_to_one_in_four_is_learning():
    better = {"train_accuracy": "higher"}
    losses = [1.83 - 0.008 * place for place in range(20)]
    grown = [0.17 + 0.007 * place for place in range(20)]
    assert not raised(better, loss=losses, train_accuracy=grown, context=EPOCHS)
    assert raised(better, loss=losses, train_accuracy=[0.17, 0.18] * 10, context=EPOCHS)


def test_batches_that_leap_for_a_quarter_of_the_run_and_are_not_quite_back():
    levels = np.repeat([9, 8, 7, 6, 7, 8, 25, 24, 24, 7, 12, 15], 40)
    assert "loss-divergence" in raised(loss=levels * np.tile(WAVE, 96))
    assert not raised(loss=np.repeat([9, 8, 7, 6, 6, 6, 6, 5, 5, 5, 5, 5], 40) * np.tile(WAVE, 96))


def test_evaluations_of_guessing_beside_a_loss_that_gained_nothing():
    better = {"val_accuracy": "higher"}
    losses = [210.0] + [238.0, 239.0] * 8
    guesses = [0.696, 0.6933, 0.6931]
    assert raised(better, loss=losses, val_loss=guesses, val_accuracy=[0.496, 0.504, 0.504]) == {"not-learning"}
    noisy = [0.695 * factor for factor in WAVE * 8]
    assert raised(loss=noisy, val_loss=[0.70, 0.72, *[0.6931, 0.6945] * 9]) == {"not-learning"}


def test_validation_that_swung_and_has_settled_at_its_best_is_no_anomaly():
    better = {"val_accuracy": "higher"}
    train = [1.4 * 0.9**place for place in range(20)]
    swings, rates = [0.4, 1.6] * 8, [0.9, 0.5] * 8
    wild = {"val_loss": [*swings, 0.4, 1.6, 0.4, 1.6], "val_accuracy": [*rates, 0.9, 0.5, 0.9, 0.5]}
    calm = {"val_loss": [*swings, 0.3, 0.31, 0.3, 0.3], "val_accuracy": [*rates, 0.92, 0.92, 0.93, 0.92]}
    assert "validation-anomaly" in raised(better, loss=train, context=EPOCHS, **wild)
    assert "validation-anomaly" not in raised(better, loss=train, context=EPOCHS, **calm)


def test_validation_that_is_nan_up_to_the_end_is_named_so():
    assert raised(loss=[2.0, 1.9, 1.8, 1.7, 1.6, 1.5], val_loss=[np.nan] * 6) == {"nan-or-inf"}


def test_validation_that_gives_all_its_gain_back_again_and_again_is_an_anomaly_whatever_training_does():
    batches = [2.9, 0.4, 3.4, 1.6, 0.8, 2.1, 3.6, 0.5]
    swings = [5.9, 6.9, 3.2, 2.5, *[0.7, 3.3, 0.8, 4.4, 0.9, 2.9, 0.6, 3.6] * 6]
    assert "validation-anomaly" in raised(loss=batches, val_loss=swings)
    settled = [*swings[:-12], *[0.7, 0.9, 0.8, 0.7] * 3]
    assert not raised(loss=batches, val_loss=settled)
    noisy = [5.9, 4.9, 4.2, 3.5, *[0.7, 0.9, 0.8, 1.4, 0.9, 0.7, 0.6, 1.2] * 6]
    assert not raised(loss=batches, val_loss=noisy)
    sure = {"val_accuracy": "higher"}
    assert not raised(sure, loss=batches, val_loss=swings, val_accuracy=[0.97, 0.99] * 26)


def test_validation_that_is_never_better_than_the_first_beside_noisy_batches_is_no_learning():
    noisy = [6.2 * factor for factor in WAVE * 12]
    risen = [5.00, 5.02, 5.19, 5.12, 5.10] + [5.11, 5.10] * 8
    assert raised(loss=noisy, val_loss=risen) == {"not-learning"}
    better = [5.00, 5.02, 4.90, 4.85, 4.80] + [4.78, 4.77] * 8
    assert not raised(loss=noisy, val_loss=better)
    falling = [value * 0.99**place for place, value in enumerate(noisy)]
    assert "not-learning" not in raised(loss=falling, val_loss=risen)
    slowly = [0.4955 + 0.043 * 0.93**place for place in range(100)]
    assert "not-learning" not in raised(loss=slowly, val_loss=[0.91 + 0.0007 * place for place in range(100)])


def test_a_loss_that_soon_is_one_number_no_better_than_the_first_does_not_move():
    better = {"train_accuracy": "higher"}
    start, rates = [10.4, 9.99, 11.1, 12.1, 10.9], [0.36, 0.38, 0.31, 0.25, 0.32]
    dead = {"loss": [*start, *[11.17] * 20], "train_accuracy": [*rates, *[0.306] * 20]}
    assert "not-learning" in raised(better, context=EPOCHS, **dead)
    alive = {"loss": [*start, *[11.17 - 0.3 * place for place in range(20)]], "train_accuracy": [*rates, *[0.4] * 20]}
    assert "not-learning" not in raised(better, context=EPOCHS, **alive)


def test_a_ripple_of_a_steep_start_is_no_spike():
    held = [2.2, 1.9, 1.8, 1.75, *[1.7] * 9]
    tail = [1.9 * 0.98**place for place in range(170)]
    ripple = [104.0, 40.0, 12.0, 4.0, *held, 4.1, 3.0, *tail]
    assert not raised(loss=ripple, val_loss=ripple, context=EPOCHS)
    leap = [10.4, 6.0, 4.0, 3.0, *held, *[4.1] * 10, 3.0, *tail]
    assert "loss-spike" in raised(loss=leap, val_loss=leap, context=EPOCHS)
    healed = [10.4, 6.0, 4.0, 3.0, *held, 4.1, 3.0, *tail]  # two high evaluations, and the run improves from there
    assert "loss-spike" not in raised(loss=healed, val_loss=healed, context=EPOCHS)


def test_validation_that_touches_a_guess_and_is_never_better_is_no_learning():
    batches = [0.69, 0.72, 0.66, 0.70, 0.73, 0.68, 0.69, 0.71, 0.70, 0.69, 0.70, 0.72, 0.68, 0.70]
    swings = [0.904, 0.699, 0.695, 0.6932, 0.703, 0.6939, 0.753, 0.6931, 0.718, 1.08, 0.756, 0.6935, 0.727, 0.6933]
    assert raised(loss=batches, val_loss=swings) == {"not-learning"}
    falling = [value - 0.01 * place for place, value in enumerate(batches)]
    assert not raised(loss=falling, val_loss=swings)
    assert not raised(loss=batches, val_loss=falling)


def test_many_evaluations_of_which_the_first_has_the_best_accuracy_are_no_learning():
    better = {"train_accuracy": "higher", "val_accuracy": "higher"}
    noise = np.random.default_rng(0).normal(0, 0.18, (2, 400))
    train = {"loss": 0.97 * (1 + noise[0]), "train_accuracy": 0.5 * (1 + noise[1])}
    held_out = [1.028, 1.14, 1.06, *[1.03 - 0.0005 * place for place in range(40)]]
    idle = [0.557, 0.45, 0.44, *[0.48, 0.49] * 20]
    assert "not-learning" in raised(better, every=5, val_loss=held_out, val_accuracy=idle, **train)
    learns = [0.41, 0.45, 0.44, *[0.48 + 0.004 * place for place in range(40)]]
    assert "not-learning" not in raised(better, every=5, val_loss=held_out, val_accuracy=learns, **train)


def test_a_reward_that_falls_out_of_all_that_it_was_is_a_collapse():
    better = {"reward": "higher"}
    earned = [-54.0, -40.0, -30.0, -20.0, *[-16.0, -17.0] * 15]
    assert "loss-divergence" in raised(better, reward=[*earned, -304.0, -260.0, -277.0])
    assert "loss-divergence" not in raised(better, reward=[*earned, -60.0, -50.0, -55.0])
    assert "loss-divergence" not in raised(better, reward=[*earned, -304.0, -16.0, -17.0])


def test_losses_that_leave_their_level_late_and_together_have_diverged():
    held, high = [0.040, 0.041, 0.039, 0.0405] * 16, [0.050, 0.047, 0.049, 0.046] * 4
    assert "loss-divergence" in raised(loss=held + high, val_loss=held + high, context=EPOCHS)
    assert "loss-divergence" not in raised(loss=held + held[:16], val_loss=held + held[:16], context=EPOCHS)
    back = [*held, *high[:8], *held[:8]]
    assert "loss-divergence" not in raised(loss=back, val_loss=back, context=EPOCHS)
    better = {"val_map50": "higher"}
    gained = [0.3 + 0.005 * place for place in range(80)]
    harder = raised(better, loss=held + high, val_loss=held + high, val_map50=gained, context=EPOCHS)
    assert "loss-divergence" not in harder


def test_precision_is_no_gain_beside_a_mean_of_it_that_fell():
    better = {"val_precision": "higher", "val_recall": "higher", "val_map50": "higher"}
    train = [7.0 * 0.99**place for place in range(100)]
    held_out = [4.1 + 0.0125 * place for place in range(100)]
    precise = [0.6 + 0.003 * place for place in range(100)]
    lost = {"val_recall": precise[::-1], "val_map50": precise[::-1]}
    found = raised(better, loss=train, val_loss=held_out, val_precision=precise, context=EPOCHS, **lost)
    assert "overfitting" in found
    kept = {"val_recall": precise, "val_map50": precise}
    found = raised(better, loss=train, val_loss=held_out, val_precision=precise, context=EPOCHS, **kept)
    assert "overfitting" not in found


def test_a_loss_that_surely_falls_is_learning_though_it_gained_little():
    noise = [0.01 * (factor - 1) for factor in WAVE * 6]
    slowly = [1.3 - 0.003 * place + step for place, step in enumerate(noise)]
    assert not raised(loss=slowly)
    assert raised(loss=[1.3 + step for step in noise]) == {"not-learning"}


def test_an_accuracy_that_rises_tells_that_a_loss_on_a_floor_learns():
    better = {"train_accuracy": "higher"}
    floor = [0.4999 + 0.0001 * (place % 2) for place in range(30)]
    assert not raised(better, loss=floor, train_accuracy=[0.55 + 0.01 * place for place in range(30)], context=EPOCHS)
    assert "not-learning" in raised(better, loss=floor, train_accuracy=[0.55, 0.56] * 15, context=EPOCHS)


def test_two_noisy_losses_together_tell_what_neither_does_alone():
    noisy = [1.02, 0.93, 1.08, 0.97, 1.05, 0.99, 0.92, 1.07, 0.96, 1.03]
    assert raised(loss=noisy, val_loss=noisy[3:] + noisy[:3], context=EPOCHS) == {"not-learning"}
    assert not raised(loss=noisy, val_loss=[1.2 - 0.03 * place for place in range(10)], context=EPOCHS)


def test_a_continued_run_whose_loss_still_falls_is_no_standstill():
    losses = [0.0539, 0.0523, 0.0515, 0.0515, 0.0512, 0.0496, 0.0494, 0.0523, 0.0502, 0.0498, 0.05, 0.0499, 0.0493]
    better = {"train_accuracy": "higher"}
    rates = [0.170 + 0.0008 * place for place in range(13)]
    assert not raised(better, loss=[*losses, 0.048, 0.0493], train_accuracy=[*rates, 0.18, 0.18], context=EPOCHS)


def test_training_that_surely_ends_worse_than_it_began_has_diverged():
    rising = [0.70, 0.60, 0.66, 0.63, 0.60, 0.61, 0.74, 0.81, 0.83, 0.82, 0.88]
    assert raised(loss=rising) == {"loss-divergence"}
    assert not raised(loss=rising[::-1])
    noise = [0.70, 0.60, 0.66, 0.63, 0.60, 0.61, 0.64, 0.61, 0.66, 0.62, 0.65, 0.60]
    assert "loss-divergence" not in raised(loss=noise * 2)


def test_validation_that_swings_and_surely_ends_worse_than_it_began_is_overfitting():
    train = [4.0 * 0.9**place for place in range(16)]
    swings = [3.4, 6.8, 4.7, 4.6, 15.8, 8.0, 12.0, 18.4, 5.5, 14.3, 19.7, 13.9, 12.6, 9.7, 14.0, 15.1]
    assert "overfitting" in raised(loss=train, val_loss=swings, context=EPOCHS)
    better = {"val_accuracy": "higher"}
    rates = [0.6 + 0.015 * place for place in range(16)]
    mild = [0.1 * value + 3 for value in swings]
    assert not raised(better, loss=train, val_loss=mild, val_accuracy=rates, context=EPOCHS)


def test_a_validation_of_nothing_but_zeros_is_no_standstill():
    assert not raised(loss=[2.0 * 0.9**place for place in range(30)], val_loss=[0.0] * 30)


def test_a_best_that_was_never_seen_again_while_training_went_to_nothing_is_overfitting():
    train = [0.586, 0.469, 0.376, 0.142, 0.057, 0.023, 0.014, 0.0068, 0.0061, 0.0028, 0.0027, 0.0027]
    held_out = [22.3, 25.8, 0.78, 2.02, 1.32, 2.01, 1.51, 1.28, 1.13, 1.14, 1.16, 1.16]
    assert raised(loss=train, val_loss=held_out, context=EPOCHS) == {"overfitting"}
    back = [*held_out[:9], 0.86, 0.81, 0.79]
    assert not raised(loss=train, val_loss=back, context=EPOCHS)
    level = [0.586 - 0.02 * place for place in range(12)]
    assert "overfitting" not in raised(loss=level, val_loss=held_out, context=EPOCHS)


def test_a_few_evaluations_at_the_loss_of_a_guess_are_no_learning():
    train = [0.748, 0.729, 0.741, 0.739, 0.730, 0.728]
    held_out = [0.6948, 0.6934, 0.6934, 0.6932, 0.6931, 0.6931]
    assert raised(loss=train, val_loss=held_out, context=EPOCHS) == {"not-learning"}
    assert not raised(loss=train, val_loss=[0.72, 0.71, 0.70, 0.693, 0.689, 0.682], context=EPOCHS)


def test_validation_that_left_its_best_for_nothing_has_diverged():
    losses = [0.15, 0.30, 0.31, 0.29, 0.27, 0.18]
    assert raised(loss=losses, val_loss=[0.22, 0.42, 0.42, 0.41, 0.44, 0.40]) == {"loss-divergence"}
    luck = [0.41, 0.40, 0.22, 0.42, 0.42, 0.41, 0.44, 0.40]
    assert "loss-divergence" not in raised(loss=[0.2] * 8, val_loss=luck)
    better = {"val_accuracy": "higher"}
    rates = [0.70, 0.74, 0.77, 0.80, 0.82, 0.83]
    assert not raised(better, loss=losses, val_loss=[0.22, 0.42, 0.42, 0.41, 0.44, 0.40], val_accuracy=rates)


def test_a_reward_that_does_not_rise_in_a_long_run_is_not_learnt():
    swings = np.sin(np.arange(240.0) ** 2)
    assert raised(reward=swings - 13) == {"not-learning"}
    assert raised(reward=swings - np.linspace(9, 20, 240)) == {"loss-divergence"}
    assert not raised(reward=(swings - 13)[:60])  # too few to say
    assert not raised(reward=swings + np.linspace(0, 2, 240))  # slowly, but it rises
    assert not raised(reward=np.minimum(500.0, 495 + 9 * swings))  # solved
    assert not raised(reward=0.8 + 0.1 * swings)  # most of what can be had


def test_a_reward_that_was_held_for_a_tenth_of_a_long_run_and_lost():
    held = [*[0.7, 0.6, 0.8] * 40, *[108.0, 109.0] * 18, *[2.0, 0.1, 0.0] * 30]
    assert "loss-divergence" in raised(reward=held)


def test_every_prediction_right_from_the_first_evaluation_on_is_too_good():
    low = [4e-4, 1e-4, 4e-5, 1e-5, 0.0, 0.0]
    for name, rates in (("val_accuracy", [1.0] * 6), ("val_accuracy_top1", [100.0] * 6)):
        better = {name: "higher"}
        assert "suspiciously-low-loss" in raised(better, context=EPOCHS, loss=low, val_loss=low, **{name: rates})
        easy = [0.05, 0.02, 0.01, 0.008, 0.006, 0.005]
        assert not raised(better, context=EPOCHS, loss=easy, val_loss=easy, **{name: rates})
        learnt = [0.93 * rates[0], *rates[1:]]
        assert not raised(better, context=EPOCHS, loss=low, val_loss=[0.2, *low[1:]], **{name: learnt})


def test_rewards_that_are_hardly_ever_earned_teach_nothing():
    seldom = [0.0, 0.0, 0.125, 0.0, 0.0, 0.0, 0.0625, 0.0] * 5
    assert raised(loss=[0.01, -0.01] * 20, reward=seldom) == {"not-learning"}
    assert not raised(loss=[0.01, -0.01] * 20, reward=seldom[:20] + [0.1, 0.3, 0.2, 0.4] * 5)
    assert not raised(loss=[0.01, -0.01] * 20, reward=[0.0] * 40)  # not in use


def test_an_accuracy_whose_name_begins_with_a_number_is_one():
    rates = [50 + place for place in range(25)] + [75.0] * 10 + [58.0 + 0.2 * place for place in range(20)]
    assert raised({"val_192_acc1": "higher"}, loss=[2.0 - 0.02 * place for place in range(55)], val_192_acc1=rates)


def test_the_trough_of_a_swing_is_no_best_that_was_left():
    swings = [0.2 * 0.97**place + 0.05 + 0.026 * np.cos(place / 2) for place in range(100)]
    losses = [0.2 * 0.97**place + 0.01 for place in range(400)]
    assert "overfitting" not in raised(loss=losses, val_loss=[*swings, *[0.034] * 300])
    assert "overfitting" in raised(loss=losses, val_loss=[*swings[:94], *np.linspace(0.035, 0.09, 306)])


def test_a_run_that_ends_above_its_start_is_lost_and_the_end_is_quoted():
    fall = [5.0 * 0.985**place for place in range(60)]
    examination = Examination(Settings())
    examination.take({"type": "header", "step": -1, "schema": 1, "context": {"source": "CSV", "clock": "step"}})
    for place, loss in enumerate([*fall, *[7.5 * factor for factor in WAVE * 16]]):
        examination.take({"type": "vitals", "step": 500 * place, "vitals": {"loss": loss}})
    found = {item.name: item for item in examination.report().symptoms}["loss-divergence"]
    assert (found.severity, found.last_step) == ("critical", 500 * 139)
    assert "7.5" in found.message and "at the end" in found.message


def test_a_run_that_stays_far_above_its_start_has_diverged_however_noisy():
    noise = np.random.default_rng(0).normal(0, 5, 450)
    losses = [*np.linspace(6, 5, 50), *(25 + noise).clip(9)]
    assert "loss-divergence" in raised(loss=losses)
    assert not raised(loss=[*np.linspace(6, 5, 50), *(5 + 0.2 * noise).clip(1)])


def test_a_loss_that_never_moves_is_no_learning_though_validation_begins_late():
    """Two evaluations in three epochs begin in the middle of the log; training was there from the start."""
    noise = [0.0005, 0.0, -0.0003, 0.003, 0.0015, 0.002, -0.0004, 0.0, 0.0014, -0.0003, -0.0003, -0.0004, 0.0004, 0.0]
    still = [2.7735 * (1 + item) for item in noise]
    missing = [float("nan")] * 4
    assert "not-learning" in raised(every=50, loss=still, val_loss=[*missing, 2.7755, *missing, 2.7737])
    falling = [value * 0.97**place for place, value in enumerate(still)]
    assert not raised(every=50, loss=falling, val_loss=[*missing, 2.4, *missing, 2.0])


def test_an_accuracy_that_is_one_of_two_shares_is_one_answer_to_everything():
    better = {"val_accuracy": "higher"}
    noisy = [0.55 * factor for factor in WAVE * 2]
    one_or_the_other = [0.274, 0.726, 0.726, 0.274, 0.726, 0.726, 0.274, 0.726, 0.726, 0.726]
    assert "collapsed-output" in raised(better, loss=noisy, val_loss=noisy, val_accuracy=one_or_the_other)
    of_ten_samples = [0.4, 0.6, 0.5, 0.4, 0.6, 0.7, 0.6, 0.4, 0.6, 0.6]
    assert "collapsed-output" not in raised(better, loss=noisy, val_loss=noisy, val_accuracy=of_ten_samples)


def test_a_leap_that_the_next_evaluation_takes_back_is_no_spike():
    def run(leap):
        falling = [0.015 * 0.985**place for place in range(120)]
        return [*falling[:30], *leap, *falling[30:]]

    passing, lasting = run([0.026]), run([0.026, 0.026, 0.024])
    assert not raised(loss=passing, val_loss=passing, context=EPOCHS)
    assert "loss-spike" in raised(loss=lasting, val_loss=lasting, context=EPOCHS)


def test_a_constant_reward_in_a_long_run_that_goes_on():
    stays, moves = [10.1] * 120, list(np.linspace(0.9, 0.002, 120))
    assert raised(reward=stays, entropy_coef=moves) == {"not-learning"}
    assert not raised(reward=[0.0] * 120, entropy_coef=moves)  # not in use
    assert not raised(reward=stays[:60], entropy_coef=moves[:60])


def test_a_loss_far_off_for_long_that_ends_where_it_began_has_learnt_nothing():
    astray = [*[5.7, 5.8, 6.1] * 20, *[20.0, 27.0, 22.0] * 10, *[7.5, 6.0, 10.0] * 20]
    assert "loss-divergence" in raised(loss=[*astray, *[5.6, 5.8] * 20])
    assert "loss-divergence" not in raised(loss=[*astray, *np.linspace(5.6, 2.0, 200)])


def test_training_that_leaves_validation_far_behind_for_two_thirds_of_the_run_overfits():
    right, loss = 1 - 0.5 * 0.85 ** np.arange(30), 0.28 * 0.94 ** np.arange(30)
    held_out = [0.35, 0.30, 0.255, *[0.25, 0.257] * 13, 0.25]
    better = {"train_accuracy": "higher", "val_accuracy": "higher"}
    known = {"loss": loss, "val_loss": held_out, "train_accuracy": right}
    stuck = [0.5, 0.51, 0.57, 0.55, *[0.59, 0.6] * 13]
    assert "overfitting" in raised(better, context=EPOCHS, val_accuracy=stuck, **known)
    alone = {"loss": loss, "train_accuracy": right, "val_accuracy": stuck}
    assert "overfitting" in raised(better, context=EPOCHS, **alone)  # without a validation loss too
    gains = np.linspace(0.5, 0.66, 30)
    assert "overfitting" not in raised(better, context=EPOCHS, val_accuracy=gains, **known)


def test_metrics_at_zero_and_a_part_of_the_loss_at_zero_mean_that_no_label_is_matched():
    names = ("val_precision_b", "val_recall_b", "val_map50_b")
    better = dict.fromkeys(names, "higher")
    none = {name: [0.0] * 5 for name in names}
    falls = [14.1, 13.6, 13.1, 12.7, 12.4]
    assert "not-learning" in raised(better, context=EPOCHS, loss=falls, box_loss=[0.0] * 5, cls_loss=falls, **none)
    assert not raised(better, context=EPOCHS, loss=falls, box_loss=falls, cls_loss=falls, **none)


def test_a_policy_whose_entropy_is_always_zero_never_explores():
    falls = [0.88 * 0.97**step for step in range(15)]
    sure = {"policy_loss": falls, "entropy": [0.0] * 15}
    assert "entropy-collapse" in raised(loss=falls, **sure)
    assert "entropy-collapse" not in raised(loss=falls, entropy=[0.0] * 15)  # of no policy, or not in use
    assert "entropy-collapse" not in raised(loss=falls, policy_loss=falls, entropy=[0.5, *[0.0] * 14])


def test_validation_whose_loss_has_a_high_floor_is_no_anomaly_where_nearly_all_predictions_are_right():
    """Cross-entropy of probabilities: 29 classes, all right, have a loss of 2.43."""
    falls = [1.16, 0.21, 0.18, 0.15, 0.11, 0.09, 0.07, 0.06, 0.05, 0.04]
    floor = [2.45, 2.432, 2.430, 2.428, 2.427, *[2.426] * 5]
    better, context = {"val_accuracy_top1": "higher"}, {"clock": "epoch"}
    right = [0.9948, 0.997, 0.998, 0.999, 0.9995, 0.9998, *[0.9999] * 4]
    assert not raised(better, loss=falls, val_loss=floor, val_accuracy_top1=right, context=context)
    wrong = [value - 0.6 for value in right]
    assert "validation-anomaly" in raised(better, loss=falls, val_loss=floor, val_accuracy_top1=wrong, context=context)
    points = [100 + value for value in right]  # no share of anything
    assert "validation-anomaly" in raised(better, loss=falls, val_loss=floor, val_accuracy_top1=points, context=context)


def test_a_first_batch_that_was_lucky_is_no_level_that_is_lost():
    falls = [1e-7, 6e-9, 0.13, 0.69, *np.geomspace(0.2, 3e-7, 80)]
    assert not raised(loss=falls, every=10)
    lost = [0.3, 0.28, 50.0, 40.0, *np.geomspace(30.0, 0.6, 80)]
    assert "loss-divergence" in raised(loss=lost, every=10)
    exploded = [0.5, 0.45, 1e9, 1e8, 1e7, *np.geomspace(1e6, 3.0, 20), *[3.0] * 60]
    assert "loss-divergence" in raised(loss=exploded, every=10)


def test_validation_that_rose_and_then_found_a_new_best_is_no_overfitting():
    swings = np.tile([0.05, -0.05, 0.02, -0.03], 12)
    rises = [8.1, 7.4, 6.4, 6.0, 5.7, 5.5, 5.3, 5.4, 5.5, 5.7, 5.8, 6.0, 6.3, 6.7, 7.0, 6.7, 6.2, 5.8]
    train, context = 4 + 6 * 0.88 ** np.arange(44) + 3 * swings[:44], {"clock": "epoch"}
    comes_back = np.array([*rises, *np.linspace(5.7, 4.8, 22), 4.85, 5.1, 5.2, 5.15]) + swings[:44]
    assert not raised(loss=train, val_loss=comes_back, context=context)
    stays = np.array([*rises, *np.linspace(5.9, 6.4, 26)]) + swings[:44]
    assert "overfitting" in raised(loss=train, val_loss=stays, context=context)


def test_masks_that_overlap_to_the_last_pixel_from_the_first_evaluation_on_are_too_good():
    falls, better = [0.2, 0.03, 0.013, 0.008, 0.006, 0.005], {"val_iou": "higher"}
    assert raised(better, loss=falls, val_loss=falls, val_iou=[1.0] * 6, every=26) == {"suspiciously-low-loss"}
    assert not raised(better, loss=falls, val_loss=falls, val_iou=[0.71, 0.9, 0.95, 0.97, 0.98, 0.98], every=26)
    right = {"val_accuracy": "higher"}  # an easy task
    assert not raised(right, loss=falls, val_loss=falls, val_accuracy=[1.0] * 6, every=26)


def test_a_part_of_the_loss_that_training_never_has_is_no_learning():
    boxes, none, context = [1.8 * factor for factor in WAVE * 4], [0.0] * 20, {"clock": "epoch"}
    falls = [9.0 * 0.9**epoch for epoch in range(20)]
    assert raised(loss=falls, box_loss=none, val_loss=falls, val_box_loss=boxes, context=context) == {"not-learning"}
    unused = {"kobj_loss": none, "val_kobj_loss": none}  # key points without visibility
    assert not raised(loss=falls, val_loss=falls, context=context, **unused)
    assert not raised(loss=falls, val_loss=falls, kl_loss=none, val_kl_loss=boxes, context=context)


def test_three_epochs_without_a_box_are_enough_where_two_parts_of_the_loss_are_nothing():
    loss, zero = [90.0, 54.0, 25.0], [0.0] * 3
    metrics = dict.fromkeys(("val_map50", "val_precision", "val_recall"), zero)
    better, context = dict.fromkeys(metrics, "higher"), {"clock": "epoch"}
    parts = {"box_loss": zero, "dfl_loss": zero}
    assert raised(better, loss=loss, context=context, **metrics, **parts) == {"not-learning"}
    assert not raised(better, loss=loss, context=context, **metrics, kobj_loss=zero, val_kobj_loss=zero)
    assert not raised(better, loss=loss, context=context, **{**parts, **metrics, "val_map50": [0.0, 0.0, 0.1]})
