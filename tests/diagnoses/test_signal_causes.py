"""Causes that are read from activations, batches and outputs: which comes first, and what speaks against them."""

from __future__ import annotations

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.label_noise_or_misalignment import LabelNoiseOrMisalignment
from torchdoctor.diagnoses.nan_in_data import NanInData
from torchdoctor.records import Symptom

STEPS = (0, 1, 2, 4, 8, 16, 25, 50, 75, 100, 125, 150)


def symptom(name, first=0, last=150, severity="warning", **more):
    return Symptom(name, "", severity, 0.9, first, last, **more)


def ranked(*symptoms, facts=None, context=None, rows=None, **vitals):
    """The causes of a chart with scalars and module rows at the usual steps, likeliest first, with probabilities."""
    chart = Chart.of(loss=[2.0] * 151, lr=[1e-3] * 151, context={"batch_size": 32, **(context or {})})
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    for name, values in vitals.items():
        for step, value in zip(STEPS, values if isinstance(values, list) else [values] * 12, strict=False):
            chart.put(step, name, value)
    for vital, row in (rows or {}).items():
        for step in STEPS:
            chart.add({"type": "modules", "step": step, "vitals": {vital: row}})
    chart.episodes += symptoms
    return {item.cause: item.probability for item in rank(chart)}


def stack(kind="Linear", count=7, **facts):
    names = [f"layers.{index}" for index in range(count)]
    return {"modules.names": names, "modules.kinds": [kind] * count, "modules.normalized": 0, **facts}


NORMAL = {"entry_rms": 1.0, "entry_absmax": 4.0}
MIXED = {"modules.names": ["a", "b", "c"], "modules.kinds": ["Linear", "Sigmoid", "Linear"], "modules.outputs": ["c"]}
GROWING = {"act_rms": [6.0**index for index in range(7)]}
SATURATED = symptom("saturated-activations")
SIGMOIDS = {
    "modules.names": [f"{kind}{index}" for index in range(4) for kind in ("fc", "act")],
    "modules.kinds": ["Linear", "Sigmoid"] * 4,
    "modules.normalized": 0,
}

FIRST = {
    "loud inputs": ("unnormalized-inputs", [symptom("input-anomaly")], {"entry_rms": 140.0, "entry_absmax": 255.0}),
    "loud inputs saturate": (
        "unnormalized-inputs",
        [SATURATED, symptom("input-anomaly")],
        {"entry_rms": 50.0, "entry_absmax": 90.0, "facts": MIXED},
    ),
    "quiet inputs": (
        "unnormalized-inputs",
        [symptom("input-anomaly"), symptom("not-learning")],
        {"entry_rms": 1e-4, "entry_absmax": 3e-4},
    ),
    "targets in thousands": (
        "unnormalized-targets",
        [symptom("target-anomaly"), symptom("nan-or-inf", 4)],
        {"target_mean": 3e3, "target_std": 1e3, "output_rms": 0.2},
    ),
    "one class nearly always": (
        "class-imbalance",
        [symptom("collapsed-output", 50)],
        {"pooled_top_share": 0.97, "pooled_classes": 2.0, "prediction_top_share": 1.0},
    ),
    "one class only": (
        "class-imbalance",
        [symptom("target-anomaly")],
        {"pooled_top_share": 1.0, "pooled_classes": 1.0, "facts": {"loss.classes": 5}},
    ),
    "sorted labels": (
        "data-order",
        [symptom("batch-anomaly"), symptom("loss-oscillation", 60)],
        {"target_collision": 1.0, "pooled_collision": 0.2, "input_checksum": [float(step) for step in STEPS]},
    ),
    "sorted answers": (
        "data-order",
        [symptom("batch-anomaly")],
        {"target_std": 0.0, "target_mean": [0.0, 1.0] * 6},
    ),
    "a long swing": (
        "data-order",
        [symptom("loss-oscillation", 60, message="loss swings between 1 and 2 every 50 steps")],
        {},
    ),
    "a second input that is loud": ("unnormalized-inputs", [symptom("input-anomaly")], {"side_entry_rms": 577.0}),
    "the same few batches": (
        "repeated-batch",
        [symptom("batch-anomaly")],
        {"input_checksum": [float(s % 3) for s in range(len(STEPS))]},
    ),
    "the same batch": ("repeated-batch", [symptom("batch-anomaly")], {"input_checksum": 7.5}),
    "the same batch, overfitted": (
        "repeated-batch",
        [symptom("batch-anomaly"), symptom("overfitting", 50)],
        {"input_checksum": 7.5},
    ),
    "a mask that leaks": (
        "information-leak",
        [symptom("uneven-position-loss", 50)],
        {"last_position_loss": 2.5, "other_position_loss": 0.1},
    ),
    "targets that are inputs": ("information-leak", [symptom("target-anomaly")], {"target_is_input": 1.0}),
    "a loader that ran out": (
        "repeated-batch",
        [symptom("batch-anomaly", 75)],
        {"input_checksum": [*(float(place) for place in range(1, 10)), 9.5, 9.5, 9.5]},
    ),
    "equal units": ("bad-initialization", [symptom("identical-units")], {}),
    "growth through depth": (
        "bad-initialization",
        [symptom("activation-explosion"), symptom("unexpected-initial-loss")],
        {"facts": stack(), "rows": GROWING, **NORMAL},
    ),
    "dead before the first step": (
        "bad-initialization",
        [symptom("dead-units", 4, where=("layers.1",))],
        {"facts": stack("ReLU"), "rows": {"act_zero": [0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5]}, **NORMAL},
    ),
    "weights too small": (
        "bad-initialization",
        [symptom("collapsed-output"), symptom("not-learning")],
        {"facts": stack(count=3), "rows": {"act_spread": [0.9, 2e-3, 1e-6], "act_rms": [6e-4, 8e-5, 8e-5]}, **NORMAL},
    ),
    "sigmoids that lose the signal": (
        "saturating-nonlinearity",
        [symptom("collapsed-output"), symptom("not-learning")],
        {"facts": SIGMOIDS, "rows": {"act_spread": [0.9, 0.1, 0.09, 0.01, 0.009, 1e-3, 9e-4, 1e-4]}, **NORMAL},
    ),
    "depth that loses the signal": (
        "missing-skip-connections",
        [symptom("collapsed-output", 25), symptom("not-learning")],
        {
            "facts": stack(count=12),
            "rows": {"act_spread": [0.4**index for index in range(12)]},
            "output_spread": 2e-5,
            "target_entropy": 2.0,
            **NORMAL,
        },
    ),
    "an output that cannot be negative": (
        "saturating-nonlinearity",
        [symptom("target-anomaly")],
        {
            "facts": {"modules.names": ["a", "b"], "modules.kinds": ["Linear", "ReLU"], "modules.outputs": ["b"]},
            "rows": {"act_rms": [1.0, 0.6]},
            "output_rms": 0.6,
            "target_mean": 0.0,
            "target_std": 1.0,
            "target_min": -3.0,
            "target_max": 3.0,
        },
    ),
    "values counted in the batch": (
        "nan-in-data",
        [symptom("nan-or-inf", 100)],
        {"input_nonfinite": [0.0] * 9 + [3.0, 0.0, 0.0]},
    ),
    "a target that is not finite": ("nan-in-data", [symptom("target-anomaly", 100)], {"target_nonfinite": 2.0}),
    "an outlier in the batch": (
        "bad-batch",
        [symptom("gradient-explosion", 100, 101)],
        {"input_absmax": [3.0] * 9 + [900.0, 3.0, 3.0]},
    ),
}


@pytest.mark.parametrize(("cause", "symptoms", "given"), FIRST.values(), ids=FIRST)
def test_comes_first(cause, symptoms, given):
    found = ranked(*symptoms, **given)
    assert next(iter(found)) == cause, found
    assert found[cause] > 0.4


AGAINST = {
    "inputs of a usual size": ("unnormalized-inputs", [SATURATED], NORMAL),
    "loud inputs that are normalized": (
        "unnormalized-inputs",
        [SATURATED],
        {"entry_rms": 90.0, "entry_absmax": 255.0, "facts": {"data.normalized_first": True}},
    ),
    "labels have no scale": ("unnormalized-targets", [symptom("unexpected-initial-loss")], {"target_classes": 5.0}),
    "targets of one": (
        "unnormalized-targets",
        [symptom("loss-divergence")],
        {"target_mean": 0.0, "target_std": 1.0, "output_rms": 0.3},
    ),
    "balanced classes": (
        "class-imbalance",
        [symptom("collapsed-output")],
        {"pooled_top_share": 0.22, "pooled_classes": 5.0, "prediction_top_share": 1.0},
    ),
    "shuffled": (
        "data-order",
        [symptom("loss-oscillation")],
        {"target_collision": 0.2, "pooled_collision": 0.2},
    ),
    "one outlier": (
        "data-order",
        [symptom("loss-spike", 100)],
        {"target_std": [1.0] * 11 + [900.0], "target_mean": [0.1, -0.1] * 5 + [0.1, 700.0]},
    ),
    "new batches": ("repeated-batch", [symptom("overfitting", 50)], {"input_checksum": [float(s) for s in STEPS]}),
    "nothing known": ("repeated-batch", [symptom("overfitting", 50)], {}),
    "an even loss": (
        "information-leak",
        [symptom("suspiciously-low-loss", 50)],
        {"last_position_loss": 0.1, "other_position_loss": 0.1},
    ),
    "a state that grows from position to position": (
        "information-leak",
        [symptom("uneven-position-loss", 50)],
        {"last_position_loss": 5e7, "other_position_loss": 1.5e6, "facts": {"loss.chance": 4.6}},
    ),
    "began long after the start": ("bad-initialization", [symptom("dead-units", 120, where=("a",))], {}),
    "it has normalization": (
        "missing-normalization",
        [symptom("activation-explosion")],
        {"facts": stack(**{"modules.normalized": 3}), "rows": GROWING},
    ),
    "no sigmoid in it": ("saturating-nonlinearity", [symptom("gradient-vanishing")], {"facts": stack()}),
    "too shallow for shortcuts": ("missing-skip-connections", [symptom("not-learning")], {"facts": stack(count=3)}),
    "batches were finite": ("nan-in-data", [symptom("input-anomaly")], {"entry_rms": 140.0, "entry_absmax": 255.0}),
}


@pytest.mark.parametrize(("cause", "symptoms", "given"), AGAINST.values(), ids=AGAINST)
def test_is_out_of_the_question(cause, symptoms, given):
    assert ranked(*symptoms, **given).get(cause, 0.0) < 0.12


@pytest.mark.parametrize(("kind", "size", "right"), [
    ("Tanh", [0.5, 0.3, *[0.1] * 6], "missing-skip-connections"),
    ("Tanh", [0.9] * 8, "saturating-nonlinearity"),
    ("Sigmoid", [0.1] * 8, "saturating-nonlinearity"),
])  # fmt: skip
def test_what_tanh_takes_of_a_gradient_is_its_mean_square(kind, size, right):
    names = [f"{place}.{part}" for place in range(8) for part in ("fc", "act")]
    facts = {"modules.names": names, "modules.kinds": ["Linear", kind] * 8, "modules.normalized": 0}
    levels = [level for level in size for _ in range(2)]
    vanishing = symptom("gradient-vanishing", 4, where=("0.fc.weight",), value=2.1)
    found = ranked(vanishing, symptom("not-learning"), facts=facts, rows={"act_rms": levels}, **NORMAL)
    assert max(("missing-skip-connections", "saturating-nonlinearity"), key=lambda name: found.get(name, 0.0)) == right


def test_a_plain_rnn_is_a_row_of_tanh():
    given = {"target_entropy": 2.0, **NORMAL}
    plain, gated = (ranked(symptom("not-learning"), facts=stack(kind, count=1), **given) for kind in ("RNN", "GRU"))
    assert plain["saturating-nonlinearity"] > 0.05 > 5 * gated.get("saturating-nonlinearity", 0.0)


def test_a_deep_stack_without_normalization():
    found = ranked(
        symptom("gradient-instability", 80),
        facts=stack(),
        rows={"act_rms": [2.2**index for index in range(7)]},
        **NORMAL,
    )
    assert found["missing-normalization"] > 0.2


@pytest.mark.parametrize(("apart", "against"), [(0.0, True), (0.1, False)])
def test_one_batch_that_was_finite_before_holds_no_nan(apart, against):
    chart = Chart.of(loss=[2.0] * 20 + [float("nan")], input_content=[1.2 + apart * place for place in range(20)])
    evidence = NanInData().weigh(chart, Problem((symptom("nan-or-inf", 20, 20),)))
    assert any(item.weight < 0 and "same batch" in item.text for item in evidence) == against


def test_targets_that_changed_are_remembered_when_all_of_them_are_wrong():
    said = "34% of the repeated samples, with identical inputs, have a different target than before"
    found = ranked(symptom("target-anomaly", 50, message=said), symptom("loss-spike", 50), answer_changed=1.0)
    assert found["label-noise-or-misalignment"] > 0.9
    told = LabelNoiseOrMisalignment().weigh(Chart(), Problem((symptom("target-anomaly", 50, message=said),)))
    assert [item.text for item in told] == [said]
    assert ranked(symptom("target-anomaly", 50), answer_changed=1.0).get("label-noise-or-misalignment", 0.0) < 0.5


@pytest.mark.parametrize(("size", "leads"), [(0.7, True), (700.0, False)])
def test_outputs_in_hundreds_of_a_model_without_layers(size, leads):
    inputs = {"input_mean": [0.0] * 3, "input_std": [size] * 3, "input_absmax": [3 * size] * 3}
    chart = Chart.of(loss=[2e5, 1e5, 9e4], output_rms=[448.0] * 3, **inputs)
    chart.episodes.append(Symptom("unexpected-initial-loss", "OU02", "warning", 0.9, 0, 2))
    assert (rank(chart)[0].cause == "bad-initialization") == leads
