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
    assert raised({"reward": "higher"}, loss=grown, reward=luck) == {"loss-divergence"}
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
