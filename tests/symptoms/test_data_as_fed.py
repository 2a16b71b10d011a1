"""What the model is fed: blank, uneven and repeated samples, targets that come before, units that began alike."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.identical_units import IdenticalUnits
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.underfitting import narrowest
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly


def fed(kinds=("Linear", "LayerNorm"), normalized=True, classes=None, **vitals):
    chart = Chart.of(**{name: list(values) for name, values in vitals.items()})
    facts = {"modules.kinds": list(kinds), "data.normalized_first": normalized}
    facts |= {"loss.classes": classes} if classes else {}
    chart.add({"type": "facts", "step": 0, "facts": facts})
    return chart


UNEVEN = {"entry_rms": [26.0] * 3, "entry_absmax": [400.0] * 3, "entry_ratio": [140.0] * 3}
STUCK = {"loss": [1.39, 1.4] * 30, "output_spread": [0.5] * 6}
LEARNT = {"loss": [1.39 * 0.95**step for step in range(60)], "output_spread": [0.5] * 6}
OFFSET = {"entry_spread": [0.003] * 3, "entry_rms": [2.8] * 3, "entry_absmax": [2.9] * 3}
BYTES = {"entry_rms": [136.0] * 6, "entry_absmax": [255.0] * 6}
ERASED = {"input_zero": [0.9] * 3, "input_std": [0.3] * 3, "idle_input_std": [1.0] * 3}
SICK_INPUTS = {
    "an offset drowns the samples": OFFSET | STUCK,
    "outputs do not depend on them": OFFSET | LEARNT | {"output_spread": [0.001] * 6},
    "bytes, and a norm of each sample": BYTES | STUCK,
    "nearly all erased": ERASED | STUCK | {"classes": 4},
    "nearly all erased, and validation leads": ERASED | LEARNT | {"classes": 4, "val_loss": [0.01, 0.001]},
    "a quarter is blank": {"input_blank": [0.25, 0.22, 0.3]},
    "every third batch in another unit": {"entry_rms": [0.4, 0.4, 390.0] * 4, "normalized": False},
    "one feature drowns the rest": UNEVEN,
    "and no norm comes at all": UNEVEN | {"kinds": ("Linear", "ReLU"), "normalized": False},
}
HEALTHY_INPUTS = {
    "an offset that is taken off": OFFSET | STUCK | {"kinds": ("Conv2d", "BatchNorm2d")},
    "a large offset, and larger differences": OFFSET | STUCK | {"entry_spread": [0.1] * 3},
    "bytes, and it learns": BYTES | LEARNT,
    "bytes, and a norm of the batch": BYTES | STUCK | {"kinds": ("Conv2d", "BatchNorm2d")},
    "sparse everywhere": ERASED | STUCK | {"classes": 4, "idle_input_std": [0.3] * 3},
    "erased, to be filled in": ERASED | STUCK,
    "one batch in another unit": {"entry_rms": [0.4] * 8 + [390.0, 0.4, 0.4], "normalized": False},
    "batches that are larger now and then": {"entry_rms": [0.4, 0.4, 8.0] * 4, "normalized": False},
    "half erased": ERASED | STUCK | {"classes": 4, "input_zero": [0.5] * 3},
    "one batch has blanks": {"input_blank": [0.0, 0.25, 0.0]},
    "few blanks": {"input_blank": [0.05, 0.08, 0.02]},
    "each feature is normalized first": UNEVEN | {"kinds": ("BatchNorm1d", "Linear")},
    "even features, and a norm follows": UNEVEN | {"entry_ratio": [2.0] * 3},
}


@pytest.mark.parametrize("given", SICK_INPUTS.values(), ids=SICK_INPUTS)
def test_inputs_that_cost_results(given):
    assert InputAnomaly().check(fed(**given)).severity == "warning"


@pytest.mark.parametrize("given", HEALTHY_INPUTS.values(), ids=HEALTHY_INPUTS)
def test_inputs_that_are_fine(given):
    assert InputAnomaly().check(fed(**given)) is None


def same_samples(content, validation):
    chart = Chart.of(loss=[0.5**step for step in range(30)], input_content=content, context={"batch_size": 32})
    for step in range(len(content)):
        chart.put(step, "input_checksum", 100.0 + step)
    for number, value in enumerate(validation):
        chart.put(10 * number + 9, "val_loss", value)
    return BatchAnomaly().check(chart)


def test_the_same_samples_in_another_order():
    rounded = [3.5, 3.5000001, 3.5, 3.4999999, 3.5]
    assert same_samples(rounded, [0.6, 0.6, 0.61]).severity == "warning"
    assert same_samples(rounded, []).severity == "info"
    assert same_samples([3.5, 3.6, 3.4, 3.5, 3.7], [0.6, 0.6, 0.61]) is None


BEGAN_ALIKE = {
    "all hidden layers": ([1.0, 1.0, 1.0, 0.0], True),
    "branches that begin at zero": ([0.0, 0.0, 1.0, 0.0], False),
    "the only one of two": ([1.0, 0.0, None, 0.0], False),
}


@pytest.mark.parametrize(("row", "fires"), BEGAN_ALIKE.values(), ids=BEGAN_ALIKE)
def test_units_that_began_alike_and_came_apart(row, fires):
    chart = Chart()
    names = ["a", "b", "c", "head"]
    chart.add({"type": "facts", "step": 0, "facts": {"modules.names": names, "modules.outputs": ["head"]}})
    apart = [None if value is None else 0.0 for value in row]
    for step, values in ((0, row), (2, apart), (4, apart), (8, apart)):
        chart.add({"type": "modules", "step": step, "vitals": {"weight_same": values}})
    assert (IdenticalUnits().check(chart) is not None) is fires


THREE = {
    "worse and worse while training flies": ([2.6, 3.8, 5.2], 0.97, True),
    "training hardly moves": ([2.6, 3.8, 5.2], 0.999, False),
    "one bump": ([2.6, 3.8, 2.4], 0.97, False),
    "a little worse": ([2.6, 2.7, 2.8], 0.97, False),
}


@pytest.mark.parametrize(("validation", "rate", "fires"), THREE.values(), ids=THREE)
def test_three_evaluations_may_be_enough(validation, rate, fires):
    chart = Chart.of(loss=[4.0 * rate**step for step in range(300)])
    for number, value in enumerate(validation):
        chart.put(100 * number + 99, "val_loss", value)
    assert (Overfitting().check(chart) is not None) is fires


SHIFTED = {
    "another mean": (-1.0, 0.25, 3.0, True),
    "a larger deviation": (0.0, 2.0, 3.0, True),
    "validation does not suffer": (-1.0, 0.25, 0.1, False),
    "noise is in training alone": (0.0, 0.4, 3.0, False),
}


@pytest.mark.parametrize(("mean", "deviation", "held_out", "fires"), SHIFTED.values(), ids=SHIFTED)
def test_validation_is_fed_otherwise(mean, deviation, held_out, fires):
    chart = Chart.of(loss=[2.0 * 0.98**step for step in range(200)], lr=[0.1] * 200)
    for step in (99, 199):
        for vital, value in (("idle_input_mean", mean), ("idle_input_std", deviation), ("val_loss", held_out)):
            chart.put(step, vital, value)
        chart.put(step, "input_mean", 0.0)
        chart.put(step, "input_std", 1.0)
    found = ValidationAnomaly().check(chart)
    assert (found is not None and "±" in found.message) is fires


def test_labels_that_are_the_tokens_before():
    past = {"target_is_before": [1.0] * 3, "target_after_next": [0.05] * 3}
    copied = Chart.of(target_is_next=[0.06] * 3, loss=[4.0 * 0.9**step for step in range(60)], **past)
    assert "previous tokens" in TargetAnomaly().check(copied).message
    assert TargetAnomaly().check(copied).severity == "warning"
    backwards = Chart.of(target_is_next=[0.06] * 3, loss=[2.0 + 2.0 * 0.9**step for step in range(60)], **past)
    assert TargetAnomaly().check(backwards).severity == "info"  # a language model that reads from the end
    assert TargetAnomaly().check(Chart.of(target_is_next=[1.0] * 3, **past)) is None  # one token again and again


def test_large_targets_are_judged_by_what_the_mean_would_cost():
    given = {"target_mean": [300.0] * 3, "target_std": [1.0] * 3, "output_rms": [1.0, 30.0, 40.0]}
    dear = Chart.of(step=100, criterion=[7e4] * 3, guess_loss=[1.0] * 3, **given)
    assert TargetAnomaly().check(dear).severity == "warning"
    assert TargetAnomaly().check(Chart.of(step=100, criterion=[2.0] * 3, guess_loss=[1.0] * 3, **given)) is None


def test_large_targets_that_outputs_are_about_to_reach():
    def seen(sizes, errors):
        chart = Chart.of(step=98, loss=[errors[-1]])
        for step, size, error in zip((48, 73, 98), sizes, errors, strict=True):
            given = {"target_mean": 180.0, "target_std": 40.0, "output_rms": size}
            for vital, value in (given | {"criterion": error, "guess_loss": 1600.0}).items():
                chart.put(step, vital, value)
        return TargetAnomaly().check(chart)

    assert seen([2.3, 6.3, 64.0], [33e3, 31e3, 17e3]) is None  # there by step 150
    assert seen([6.0, 9.0, 12.0], [32e3, 31e3, 30e3]).severity == "warning"  # not by step 1000
    assert seen([2.3, 6.3, 64.0], [33e3, 32e3, 31e3]).severity == "warning"  # larger, and no better


def test_everything_goes_through_the_end_of_a_deep_model():
    widths, entering = [32, 32, 32, 1, 32, 65], [32, 32, 32, 32, 1, 32]
    names = [f"layer{place}" for place in range(6)]
    facts = {"modules.names": names, "modules.kinds": ["Linear"] * 6, "modules.outputs": names[-1:]}
    for shapes, width in (((widths, entering), 1), (([32] * 5 + [65], [32] * 6), 0)):
        chart = Chart()
        shaped = {"modules.widths": shapes[0], "modules.entering": shapes[1]}
        chart.add({"type": "facts", "step": 0, "facts": facts | shaped})
        assert narrowest(chart) == width


def test_an_offset_that_a_model_copes_with_is_a_note():
    assert InputAnomaly().check(fed(**OFFSET, **LEARNT)).severity == "info"


MISSING = {
    "-9999 in some batches": ([-2.1, -9999.0, -1.9, -9999.0, -2.0, -2.2], [1.0, 900.0, 1.1, 870.0, 1.0, 0.9]),
    "-999 in all of them": ([-999.0] * 6, [125.0] * 6),
    "1e6": ([1e6, 2.0, 1e6, 3.0, 2.5, 1.9], [1e5, 1.0, 1e5, 1.0, 1.0, 1.0]),
}
MEASURED = {
    "one outlier": ([-2.1, -9999.0, -1.9, -2.3, -2.0, -2.2], [1.0, 900.0, 1.1, 1.0, 1.0, 0.9]),
    "another one each time": ([-2.1, -9999.0, -1.9, -8734.0, -2.0, -2.2], [1.0, 900.0, 1.1, 800.0, 1.0, 0.9]),
    "as far as others go": ([-999.0] * 6, [500.0] * 6),
    "cut off at a round number": ([-500.0] * 6, [60.0] * 6),
    "small": ([-9.0] * 6, [1.0] * 6),
}


def asked(edges, spreads):
    name = "target_min" if min(edges) < 0 else "target_max"
    return Chart.of(target_mean=[0.0] * len(edges), target_std=spreads, **{name: edges})


@pytest.mark.parametrize("given", MISSING.values(), ids=MISSING)
def test_a_number_that_stands_for_what_was_not_measured(given):
    assert "missing values" in TargetAnomaly().check(asked(*given)).message


@pytest.mark.parametrize("given", MEASURED.values(), ids=MEASURED)
def test_a_number_that_may_be_measured(given):
    found = TargetAnomaly().check(asked(*given))
    assert found is None or "missing values" not in found.message


def test_targets_of_one_part_that_are_far_off_at_times():
    assert (
        TargetAnomaly().check(Chart.of(part_target_size=[1.0, 1.1, 0.9, 1200.0, 1.0, 2100.0, 1.0])).severity
        == "warning"
    )
    assert TargetAnomaly().check(Chart.of(part_target_size=[1.0, 1.1, 0.9, 1200.0, 1.0, 1.2, 1.0])) is None


@pytest.mark.parametrize(("slope", "fires"), [(1.0, True), (0.5, True), (0.2, False), (-1.0, False)])
def test_class_weights_that_follow_counts(slope, fires):
    assert (SuspiciousLoss().check(Chart.of(weight_by_count=[slope] * 5)) is not None) is fires


def test_samples_of_nearly_one_token_are_alike_by_chance():
    given = {"loss": [1.0] * 60, "val_loss": [1.0] * 3, "idle_known": [0.5] * 3, "input_again": [0.0] * 3}
    assert ValidationAnomaly().check(Chart.of(**given, token_top_share=[0.3] * 3)) is not None
    assert ValidationAnomaly().check(Chart.of(**given, token_top_share=[0.95] * 3)) is None


def one_label(kind):
    chart = Chart.of(target_std=[0.0] * 8, target_two_valued=[1.0] * 8, pooled_classes=[1.0] * 8)
    chart.context["batch_size"] = 40
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": kind}})
    return TargetAnomaly().check(chart)


def test_yes_or_no_that_is_always_no_is_one_class():
    assert "of one class" in one_label("bce").message
    assert one_label("mse") is None


def test_labels_of_which_the_loss_counts_none():
    chart = Chart.of(target_classes=[0.0], loss=[float("nan")])
    assert "ignore_index" in TargetAnomaly().check(chart).message
    assert TargetAnomaly().check(Chart.of(target_classes=[0.0], loss=[0.0])) is None  # a sum of nothing


def of_no_label(divided, norm=0.0):
    """All labels are ignored, and the loss is a sum; a trainer logs 0 for 0 / 0."""
    chart = Chart.of(target_classes=[0.0] * 3, loss=[0.0] * 3, grad_norm=[norm] * 3)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum", "loss.divided": divided}})
    return chart


@pytest.mark.parametrize(("divided", "norm", "found"), [(True, 0.0, True), (True, 1.0, False), (False, 0.0, False)])
def test_labels_of_which_a_trainer_counts_none(divided, norm, found):
    assert (TargetAnomaly().check(of_no_label(divided, norm)) is not None) is found


def test_tiny_targets_that_are_lost_in_what_the_outputs_are():
    asked = {"target_mean": [0.0] * 3, "target_std": [4e-6] * 3}
    lost = Chart.of(step=100, output_rms=[0.01] * 3, criterion=[1e-4] * 3, guess_loss=[1.6e-11] * 3, **asked)
    assert "predicting their mean would give a far lower loss" in TargetAnomaly().check(lost).message
    found = Chart.of(step=100, output_rms=[4e-6] * 3, criterion=[2e-12] * 3, guess_loss=[1.6e-11] * 3, **asked)
    assert TargetAnomaly().check(found) is None
    lost.add({"type": "facts", "step": 0, "facts": {"loss.kind": "bce"}})  # scores, and rare ones
    assert TargetAnomaly().check(lost) is None
    young = Chart.of(step=30, output_rms=[0.01] * 3, criterion=[1e-4] * 3, guess_loss=[1.6e-11] * 3, **asked)
    assert TargetAnomaly().check(young) is None


@pytest.mark.parametrize(("error", "severity"), [(0.5, "warning"), (0.002, "info")])
def test_values_in_order_cost_results_where_errors_are_larger_than_what_a_batch_spans(error, severity):
    means = [-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    chart = Chart.of(step=100, target_mean=means, target_std=[0.05] * 10, criterion=[error] * 10)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "mse"}})
    assert BatchAnomaly().check(chart).severity == severity


@pytest.mark.parametrize(("first", "severity"), [(0.05, "info"), (-4.0, "warning")])
def test_values_that_climb_from_zero_may_be_estimates_of_the_model(first, severity):
    means = [first + 0.5 * step for step in range(10)]
    chart = Chart.of(step=100, target_mean=means, target_std=[0.05] * 10, criterion=[0.002] * 10)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "mse"}})
    chart.episodes.append(Symptom("loss-oscillation", "LO06", "info", 0.8, 0, 90))
    assert BatchAnomaly().check(chart).severity == severity


@pytest.mark.parametrize(
    ("growth", "suffers", "fires"), [(1.4, True, True), (1.4, False, False), (1.15, True, False), (1 / 1.4, True, True)]
)
def test_inputs_that_drift_away_little_by_little(growth, suffers, fires):
    sizes = [0.6] * 8 + [0.6 * growth**step for step in range(10)]
    chart = Chart.of(loss=[2 * 0.98**step + 0.1 for step in range(330)] + [0.4 if suffers else 0.1] * 120)
    for index, size in enumerate(sizes):
        chart.put(25 * index + 24, "entry_rms", size)
        chart.put(25 * index + 24, "entry_absmax", 3 * size)
    found = InputAnomaly().check(chart)
    assert (found is not None and found.severity == "warning") == fires


@pytest.mark.parametrize(("raised", "times", "fires"), [(0.35, 255.0, True), (0.0, 255.0, False), (0.35, 3.0, False)])
def test_a_leap_of_the_inputs_that_a_model_gets_used_to_has_hurt_all_the_same(raised, times, fires):
    """It happens between two looks, at step 150; the loss is up at once, and back by the second look at it."""
    noise = np.random.default_rng(3).normal(0.0, 0.12, 200)
    chart = Chart.of(loss=[1.0 + noise[step] + raised * (150 <= step < 180) for step in range(200)])
    for step in (0, 1, 2, 4, 8, 16, 23, 48, 73, 98, 123, 148, 173, 198):
        size = 0.46 * (times if step >= 150 else 1.0)
        chart.put(step, "entry_rms", size)
        chart.put(step, "entry_absmax", 2 * size)
        chart.put(step, "entry_spread", 0.6)
    found = InputAnomaly().check(chart)
    assert (found is not None and found.message.startswith("inputs went from")) == fires
