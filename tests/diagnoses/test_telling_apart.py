"""Causes that look alike: what tells the one from the other decides which comes first."""

import math
from dataclasses import replace

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem, rank
from torchdoctor.diagnoses.at_the_break import loss_was_finite
from torchdoctor.diagnoses.findings import validation_leads, working_update
from torchdoctor.records import Symptom

RNG = np.random.default_rng(0)
N = 400
T = np.arange(N)
NOISE = 0.02 * RNG.standard_normal(N)
FALLING = 0.3 + 2 * np.exp(-T / 60) + NOISE
ADAM = {"optimizer": "Adam", "eps": 1e-8, "betas": [0.9, 0.999]}


def symptom(name, first=0, severity="warning", last=N - 1):
    return Symptom(name, "", severity, 0.9, first, last)


def charted(*symptoms, context=None, groups=(), facts=None, ratio=None, validation=(), **vitals):
    chart = Chart.of(context=context, **({"loss": FALLING, "lr": np.full(N, 1e-3)} | vitals))
    chart.groups = list(groups)
    chart.names = ("a", "b")
    for step in (25, 50, 100, 200, 300):
        if ratio is not None:
            chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [ratio] * 2}})
    for number, value in enumerate(validation):
        chart.put(24 + 25 * number, "val_loss", value)
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    chart.episodes += symptoms
    return chart


def leap(step, times):
    return np.where(step == T, times * FALLING, FALLING)


BROKEN = (
    symptom("weight-growth", 100),
    symptom("gradient-explosion", 150, "critical", 152),
    symptom("loss-spike", 150, last=152),
    symptom("loss-divergence", 153),
)
ALIKE = symptom("collapsed-output", 100)
OFF = (symptom("validation-anomaly", 24), symptom("overfitting", 24, "critical"))
NAN = symptom("nan-or-inf", 150, "critical")
CROSS = {"loss.chance": 2.3, "loss.kind": "cross-entropy"}
BETAS = {"ratio": 0.05, "context": {"optimizer": [{"class": "Adam"}]}}
STALLED = symptom("slow-learning")
KILLED = (symptom("dead-units", 16, "critical"), symptom("activation-explosion", 23), symptom("not-learning"))
PASSES = {"zeroing.backwards": [4], "zeroing.cleared": [50], "zeroing.kept": [0]}
HEADS = {"modules.kinds": ["MultiheadAttention", "LayerNorm", "Linear", "Linear"] * 3, "modules.normalized": 3}
PLAIN = {
    "context": {"model": {"class": "Sequential"}},
    "facts": {"loss.kind": "mse", "loss.reduction": "mean", "modules.kinds": ["Linear", "ReLU", "Linear"]},
}
DRIFTING = {"target_mean": np.linspace(0, 900, 20), "target_std": [10.0] * 20}
TINY = {"entry_rms": [1e-3] * 8, "entry_absmax": [4e-3] * 8, "loss": 2.3 + NOISE, "ratio": 1e-3}
TWO = {"loss.chance": 0.693, "loss.kind": "cross-entropy"}

APART = {
    "one batch broke the run": ("bad-batch", BROKEN, {"loss": leap(150, 300.0), "ratio": 0.02}),
    "steps broke it": (
        "lr-too-high",
        BROKEN,
        {"loss": np.where(T < 150, FALLING, np.minimum(FALLING * 1.3 ** (T - 149.0), 50 + FALLING)), "ratio": 0.05},
    ),
    "betas that leave Adam unbounded": (
        "optimizer-misconfigured",
        (*BROKEN, symptom("optimizer-advice", 0, "info")),
        BETAS | {"groups": [ADAM | {"betas": [0.9, 0.1]}]},
    ),
    "usual betas": ("lr-too-high", BROKEN, BETAS | {"groups": [ADAM]}),
    "a large eps": (
        "optimizer-misconfigured",
        [STALLED],
        {"groups": [ADAM | {"eps": 0.01}], "adam_eps_share": [0.9] * 4, "ratio": 5e-5},
    ),
    "one loss on many batches": (
        "stale-loss",
        [symptom("not-learning"), symptom("overfitting", 24, "critical")],
        {"loss": np.full(N, 1.58), "ratio": 0.01, "input_checksum": T[:8], "validation": [1.2, 2.5, 4.0, 5.4]},
    ),
    "a loss below zero": (
        "loss-misuse",
        [symptom("suspiciously-low-loss", 39)],
        {"loss": -T / 10.0, "facts": CROSS | {"loss.function": "CrossEntropyLoss"}},
    ),
    "a first loss that tells of the targets": (
        "unnormalized-targets",
        [symptom("activation-explosion", 375)],
        {
            "loss": 1e10 * (1 - T / 1000),
            "output_rms": [0.1],
            "facts": {"loss.kind": "mse", "loss.reduction": "mean"},
        },
    ),
    "a loss that rewards sameness": (
        "representation-collapse",
        [ALIKE, symptom("dead-units", 250, "info")],
        {"loss": 0.5 * np.exp(-T / 20), "output_spread": [0.8, 0.3, 0.02, 0.02, 0.02], "ratio": 0.01},
    ),
    "validation that is fed otherwise": (
        "train-val-mismatch",
        OFF,
        {"facts": CROSS, "validation": [2.9, 3.5, 4.0, 4.3, 4.5, 4.7], "ratio": 1e-3},
    ),
    "validation that changed from one evaluation to the next": (
        "train-val-mismatch",
        OFF,
        {"loss": 2.3 * np.exp(-T / 40), "facts": CROSS, "validation": [0.8, 0.3, 0.1, 0.05, 1.1, 1.05, 1.1]},
    ),
    "labels that were stored one by one": (
        "label-noise-or-misalignment",
        OFF,
        {
            "loss": np.where(T < 200, 2.3, 2.3 - 0.01 * (T - 200)) + NOISE,
            "facts": CROSS,
            "validation": [2.32, 2.31, 2.33, 2.32, 2.4, 2.5],
            "ratio": 1e-3,
        },
    ),
    "a small set, learnt by heart": (
        "memorization",
        OFF,
        {"loss": 2.3 * np.exp(-T / 20), "facts": CROSS, "validation": [2.26, 2.24, 2.5, 3.0, 3.5]},
    ),
    "a validation in other units": (
        "train-val-mismatch",
        [symptom("validation-anomaly", 24)],
        {"loss": np.exp(-T / 20), "validation": [8e5, 8.1e5, 8e5, 8e5, 8.1e5], "input_again": [0.0, 0.5, 0.9, 1.0]},
    ),
    "a logarithm of what is negative, from the first step on": (
        "numeric-precision",
        [symptom("nan-or-inf", 0, "critical"), symptom("gradient-explosion", 57)],
        {"loss": np.where(T % 8 == 5, FALLING, np.nan), "facts": {"loss.fragile": ["log"]}},
    ),
    "an infinite target": (
        "nan-in-data",
        [NAN],
        {"loss": np.where(T < 150, FALLING, np.nan), "facts": {"loss.kind": "mse", "loss.reduction": "mean"}},
    ),
    "a root at zero": (
        "numeric-precision",
        [NAN],
        {"loss": np.where(T <= 150, FALLING, np.nan), "facts": {"loss.kind": "mse", "loss.hidden": False}},
    ),
    "inputs that went black": (
        "unnormalized-inputs",
        [symptom("input-anomaly", 150), symptom("loss-divergence", 175), symptom("collapsed-output", 175)],
        {"entry_rms": [1.0] * 12 + [0.0] * 4, "entry_absmax": [3.0] * 12 + [0.0] * 4},
    ),
    "a rare class in a batch": (
        "class-imbalance",
        [symptom("gradient-explosion", 150, last=150)],
        {"loss": leap(150, 30.0), "pooled_top_share": [0.98], "pooled_classes": [5.0]},
    ),
    "a class that is always given, and a validation with even shares": (
        "class-imbalance",
        [symptom("collapsed-output", 23, "info", 299), symptom("validation-anomaly", 100, last=299)],
        {
            "loss": FALLING,
            "pooled_top_share": [0.97] * 6,
            "pooled_classes": [4.0] * 6,
            "prediction_top_share": [1.0] * 6,
            "val_loss": [3.2] * 6,
        },
    ),
    "validation that was not standardized": (
        "train-val-mismatch",
        [symptom("validation-anomaly", 100, last=299), symptom("overfitting", 100, last=299)],
        {
            "loss": FALLING,
            "input_mean": [0.0] * 6,
            "input_std": [1.0] * 6,
            "idle_input_mean": [0.29] * 6,
            "idle_input_std": [0.35] * 6,
            "val_loss": [0.9, 0.8, 0.9, 1.0, 1.1, 1.2],
        },
    ),
    "a mask that hides a whole row": (
        "numeric-precision",
        [NAN],
        {
            "loss": np.where(T < 150, FALLING, np.nan),
            "facts": {"loss.kind": "cross-entropy", "loss.hidden": False, "modules.kinds": ["MultiheadAttention"]},
        },
    ),
    "backward passes that nobody divided": ("accumulation-error", KILLED, {"facts": PASSES, "ratio": 0.2}),
    "backward passes with known weights": (
        "lr-too-high",
        KILLED,
        {"facts": PASSES, "ratio": 0.2, "loss_weight": np.full(N, 0.25)},
    ),
    "a recurrent layer without a clip": (
        "clip-missing",
        [symptom("gradient-explosion", 150, "critical", 152), symptom("loss-spike", 152, last=160)],
        {"facts": {"modules.kinds": ["GRU", "Linear"]}, "ratio": 0.005},
    ),
    "a rate that attention does not bear": (
        "lr-too-high",
        [symptom("gradient-explosion", 58), symptom("dead-units", 100), symptom("gradient-vanishing", 173)],
        {"lr": np.full(N, 0.06), "facts": HEADS, "context": BETAS["context"], "groups": [ADAM], "ratio": 0.08},
    ),
    "twelve parameters": (
        "insufficient-capacity",
        [symptom("not-learning"), symptom("underfitting", 150, "info")],
        {"loss": 0.693 + 0.1 * NOISE, "facts": TWO, "context": {"model": {"trainable": 12}}, "ratio": 0.005},
    ),
    "labels that a large model cannot learn": (
        "label-noise-or-misalignment",
        [symptom("not-learning"), symptom("underfitting", 150, "info")],
        {"loss": 0.693 + 0.1 * NOISE, "facts": TWO, "context": {"model": {"trainable": 9000}}, "ratio": 0.005},
    ),
    "short steps in the right direction": (
        "lr-too-low",
        [symptom("not-learning", last=99)],
        {"loss": 4.25 - 2e-4 * T + 0.1 * NOISE, "ratio": 7e-5},
    ),
    "a plateau that was none": (
        "schedule-error",
        [symptom("learning-rate-vanished", 200, "info")],
        {
            "lr": np.where(T < 100, 1e-2, np.where(T < 150, 1e-3, 1e-6)),
            "loss": np.maximum(2.5 - 0.01 * T, 1.4) + NOISE,
            "facts": {"schedule.class": "ReduceLROnPlateau"},
        },
    ),
    "a plateau that was one": (
        "converged",
        [symptom("learning-rate-vanished", 300, "info")],
        {
            "lr": np.where(T < 200, 1e-2, np.where(T < 300, 1e-3, 1e-6)),
            "loss": np.maximum(2.5 - 0.04 * T, 0.5) + NOISE,
            "facts": {"schedule.class": "ReduceLROnPlateau"},
        },
    ),
    "one number beyond what a square can hold": (
        "bad-batch",
        [replace(symptom("nan-or-inf", 150, "critical", 150), value=math.inf)],
        PLAIN | {"loss": np.where(T == 150, np.inf, FALLING)},
    ),
    "targets from batch to batch": (
        "data-order",
        [symptom("loss-oscillation")],
        DRIFTING,
    ),
    "targets that run away with their model": (
        "lr-too-high",
        [symptom("loss-divergence", 40, "critical"), symptom("weight-growth", 100), symptom("loss-oscillation")],
        DRIFTING | {"ratio": 0.05},
    ),
    "inputs too small for a bias, and a norm that keeps it": (
        "unnormalized-inputs",
        [symptom("not-learning"), symptom("collapsed-output", 23)],
        TINY | {"facts": CROSS | {"data.normalized_first": True, "modules.kinds": ["Conv2d", "LayerNorm", "Linear"]}},
    ),
    "sorted by class": (
        "data-order",
        [symptom("batch-anomaly"), symptom("target-anomaly"), symptom("dead-units", 175)],
        {"target_collision": [0.98] * 8, "pooled_collision": [0.2] * 8},
    ),
    "two sources, one behind the other": (
        "data-order",
        [symptom("loss-spike", 30), symptom("loss-divergence", 33), symptom("not-learning", 160, "info")],
        {"target_collision": [0.5] * 8, "pooled_collision": [0.27] * 8},
    ),
}


@pytest.mark.parametrize(("cause", "symptoms", "more"), APART.values(), ids=APART)
def test_what_comes_first(cause, symptoms, more):
    found = rank(charted(*symptoms, **more))
    assert found[0].cause == cause, [(item.cause, round(item.probability, 2)) for item in found]


def test_a_norm_of_the_batch_takes_off_what_a_bias_adds():
    kinds = {"data.normalized_first": True, "modules.kinds": ["Conv2d", "BatchNorm2d", "Linear"]}
    found = rank(charted(symptom("not-learning"), **TINY, facts=CROSS | kinds))
    assert not [item for item in found if item.cause == "unnormalized-inputs" and item.probability > 0.1]


def test_an_eps_that_is_usual_is_not_blamed_for_gradients_that_are_gone():
    found = rank(charted(STALLED, groups=[ADAM], adam_eps_share=[0.9] * 4, ratio=5e-5))
    assert not [item for item in found if item.cause == "optimizer-misconfigured" and item.probability > 0.1]


def test_a_whole_data_set_in_one_batch_may_have_one_loss():
    still = charted(symptom("not-learning"), loss=np.full(N, 1.58), ratio=0.01, input_checksum=[7.0] * 8)
    assert not [item for item in rank(still) if item.cause == "stale-loss" and item.probability > 0.1]


def test_a_batch_that_was_looked_at_is_acquitted():
    def blamed(**seen):
        found = rank(charted(NAN, loss=np.where(T < 150, FALLING, np.nan), **seen))
        return sum(item.probability for item in found if item.cause == "nan-in-data")

    assert blamed() > 0.2
    assert blamed(input_nonfinite=np.zeros(N), target_classes=np.full(N, 4.0)) < 0.05


def test_what_costs_time_comes_after_what_costs_results():
    found = rank(charted(symptom("data-starvation", 30), symptom("not-learning", 60)))
    assert [item.symptoms for item in found if item.problem == 1][0] == ("not-learning",)


def test_the_next_best_causes_are_named_where_none_is_certain():
    found = rank(charted(*BROKEN, loss=leap(150, 300.0)))
    assert len([item for item in found if item.problem == 1]) >= 4


def test_a_schedule_that_ran_out_does_not_make_the_rate_too_low():
    chart = charted(lr=np.where(T < 250, 1e-3, 1e-9), ratio=0.01)
    chart.add({"type": "tensors", "step": 390, "vitals": {"update_ratio": [1e-8] * 2}})
    assert working_update(chart) == pytest.approx(0.01)


def test_a_loss_is_remembered_as_finite_or_not():
    chart = Chart.of(loss=np.where(T < 150, 1.0, np.nan))
    assert [loss_was_finite(chart, step) for step in (149, 150, 399)] == [True, False, False]
    forgotten = Chart.of(loss=np.where(T % 8 == 5, 1.0, np.nan))
    assert [loss_was_finite(forgotten, step) for step in (0, 5, 8)] == [False, True, False]


@pytest.mark.parametrize(
    ("left", "facts", "cause"),
    [(0.01, {}, "over-regularized"), (0.8, {}, "lr-too-high"), (0.01, {"loss.between_outputs": True}, "lr-too-high")],
)
def test_weights_that_a_penalty_took(left, facts, cause):
    shown = (
        symptom("not-learning"),
        symptom("collapsed-output", 148, "critical"),
        symptom("update-ratio-abnormal", 198),
    )
    chart = charted(*shown, loss=1.0 + NOISE, ratio=0.6, facts=facts, groups=[{"lr": 1e-3, "weight_decay": 0}])
    for step, share in ((25, 1.0), (300, left)):
        chart.add({"type": "tensors", "step": step, "vitals": {"weight_norm": [4.0 * share, 2.0 * share]}})
    assert rank(chart)[0].cause == cause


@pytest.mark.parametrize(("offset", "share"), [(-0.1, 1.0), (0.1, 0.0)])
def test_validation_is_compared_with_training_about_it(offset, share):
    falling = 3 - 0.005 * T
    chart = charted(loss=falling, validation=[float(falling[24 + 25 * n]) + offset for n in range(8)])
    assert validation_leads(chart) == share


@pytest.mark.parametrize(("sums", "right"), [
    ([1.0, 2.0, 3.0] * 6, "repeated-batch"),  # as they were
    ([float(number) for number in range(18)], "memorization"),  # mixed anew
])  # fmt: skip
def test_what_is_learnt_by_heart_of_batches_that_come_again(sums, right):
    found = charted(
        symptom("batch-anomaly"), symptom("overfitting", 49, "critical"), input_checksum=sums,
        loss=0.02 + 2 * np.exp(-T / 40), validation=[1.2, 1.4, 1.8, 2.5], context={"batch_size": 16},
    )  # fmt: skip
    assert rank(found)[0].cause == right


@pytest.mark.parametrize(("validation", "right"), [
    ([2.4, 2.35, 2.33, 2.3], "train-val-mismatch"),  # an average that lags is written to validate
    ([0.9, 0.8, 2.6, 2.6], "resume-error"),
])  # fmt: skip
def test_weights_that_are_written_to_validate_are_not_those_of_a_resumed_run(validation, right):
    at = 24 if right == "train-val-mismatch" else 74
    found = charted(
        symptom("validation-anomaly", at), facts={"state.written": [[at, at + 25]]}, validation=validation,
    )  # fmt: skip
    assert right in [item.cause for item in rank(found) if item.cause != "unknown"][:2]
    against = [text for item in rank(found) if item.cause == "resume-error" for text in item.evidence]
    assert any("swapped for validation" in text for text in against) == (right == "train-val-mismatch")


@pytest.mark.parametrize(("norm", "right"), [(0.0, False), (0.5, True)])
def test_validation_cannot_change_where_no_gradient_is_left(norm, right):
    found = charted(symptom("validation-anomaly", 24), grad_norm=np.full(N, norm), validation=[2.0] * 4)
    texts = [text for item in rank(found) if item.cause == "train-val-mismatch" for text in item.evidence]
    assert any("last 3 evaluations" in text for text in texts) == right


@pytest.mark.parametrize(("validation", "blamed"), [([2.32, 2.34, 2.4, 2.5], True), ([1.9, 1.95, 2.1, 2.3], False)])
def test_what_is_learnt_of_wrong_labels_is_learnt_by_heart(validation, blamed):
    """A little is enough, where validation was never better than a guess; where it was, labels say something."""
    slowly = 2.3 - 0.5 * np.clip((T - 150) / 250, 0, 1) + NOISE
    found = charted(symptom("overfitting", 24), loss=slowly, facts=CROSS, validation=validation, ratio=1e-3)
    evidence = [text for item in rank(found) if item.cause.startswith("label-noise") for text in item.evidence]
    assert any("but validation loss never below" in text for text in evidence) == blamed


@pytest.mark.parametrize(("moved", "leads"), [(6.0, "lr-too-high"), (0.01, "bad-initialization")])
def test_what_the_first_steps_did_was_not_there_at_the_start(moved, leads):
    grown = symptom("activation-explosion", 2), symptom("update-ratio-abnormal", 2)
    chart = charted(*grown, groups=[{"optimizer": "SGD"}], entry_rms=[1.0], entry_absmax=[3.0], lr=[0.05] * N)
    for step in (0, 1, 4, 8):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [moved] * 2}})
    found = [item.cause for item in rank(chart)]
    assert found[0] == leads


@pytest.mark.parametrize(("wander", "leads"), [(0.0, "clip-too-tight"), (0.01, "lr-too-low")])
def test_gradients_that_are_cut_off_value_by_value(wander, leads):
    chart = charted(
        symptom("slow-learning", 0), groups=[{"optimizer": "SGD"}], loss=2.3 - 1e-5 * T, lr=[1e-3] * N, course=[0.9] * 8
    )
    chart.names = ("a", "b", "c")
    for step in range(8):
        sizes = [0.3 + 0.01 * step, 2e-5 * (1 + wander * step), 3e-6 * (1 + wander * step)]
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": sizes, "update_ratio": [1e-6] * 3}})
        chart.put(step, "input_checksum", 0.1 * step)
    found = [item.cause for item in rank(chart)]
    assert found[0] == leads


LEFT = np.where(T < 200, FALLING, 2.0 + NOISE)
"""A loss that leaps at step 200 and stays there."""


@pytest.mark.parametrize(
    ("losses", "norms", "vitals", "cause"),
    [
        pytest.param(leap(200, 6.0), np.ones(N), {}, "bad-batch", id="one high loss"),
        pytest.param(LEFT, np.ones(N), {}, "label-noise-or-misalignment", id="at a guess since then"),
        pytest.param(
            np.where(T < 200, FALLING, 100 * FALLING),
            np.ones(N),
            {"criterion": FALLING, "guess_loss": np.full(N, 2.1)},
            "loss-misuse",
            id="most of it is another term",
        ),
        pytest.param(LEFT, np.where(np.isin(T, (198, 199)), 30.0, 1.0), {}, None, id="long steps came before"),
    ],
)
def test_what_a_leap_of_the_loss_came_from(losses, norms, vitals, cause):
    lasts = cause != "bad-batch"
    found = symptom("loss-spike", 200, last=N - 1 if lasts else 200)
    facts = {"loss.chance": 2.1, "loss.reduction": "mean", "loss.kind": "cross-entropy"}
    chart = charted(found, loss=losses, grad_norm=norms, facts=facts, **vitals)
    leading = rank(chart)[0]
    if cause is None:
        assert leading.cause not in ("bad-batch", "label-noise-or-misalignment", "loss-misuse")
    else:
        assert leading.cause == cause
        assert leading.probability > 0.5


@pytest.mark.parametrize(("replaced", "leads"), [(None, True), (100, True), (223, False)])
def test_a_leap_at_which_layers_were_replaced_is_not_blamed_on_the_labels(replaced, leads):
    facts = {"loss.chance": 2.1, "loss.reduction": "mean", "loss.kind": "cross-entropy"}
    chart = charted(symptom("loss-spike", 200, last=N - 1), loss=LEFT, grad_norm=np.ones(N), facts=facts)
    if replaced is not None:
        chart.add({"type": "facts", "step": replaced, "facts": {"graph.stale": ["head.weight"]}})
    assert (rank(chart)[0].cause == "label-noise-or-misalignment") == leads


def test_a_warm_up_is_not_missed_by_a_run_that_had_learnt():
    def share(losses):
        chart = charted(symptom("loss-spike", 200), loss=losses, grad_norm=np.ones(N), groups=[ADAM])
        return sum(item.probability for item in rank(chart) if item.cause == "warmup-missing")

    assert share(LEFT) < 0.3 * share(np.where(T < 200, 2.3 + NOISE, 9.0 + NOISE))


@pytest.mark.parametrize(("since", "leads"), [(50, True), (0, False)], ids=["from the middle on", "from the start on"])
def test_layers_that_lost_their_gradient_were_frozen(since, leads):
    chart = charted(symptom("no-gradient", 40), symptom("underfitting", 100, "info"))
    chart.add({"type": "facts", "step": since, "facts": {"graph.frozen_share": 0.96, "graph.frozen": []}})
    assert (rank(chart)[0].cause == "frozen-by-mistake") is leads


def test_a_leap_before_any_gradient_was_seen_is_judged_without_one():
    chart = charted(symptom("loss-spike", 200), loss=LEFT)
    chart.put(200, "grad_norm", 5.0)
    assert sum(item.probability for item in rank(chart)) == pytest.approx(1.0)


@pytest.mark.parametrize(("first", "blamed"), [(True, False), (False, False), (None, True)])
def test_a_learning_rate_of_zero_is_that_of_one_group_or_of_all(first, blamed):
    rates = {"lr": 0.0} if first is None else {"lr": 0.0, "lr/1": 1e-3} if first else {"lr": 1e-3, "lr/1": 0.0}
    chart = Chart.of(loss=np.full(N, 2.3), **{name: np.full(N, rate) for name, rate in rates.items()})
    problem = Problem((symptom("not-learning", 0),))
    weighed = {name: next(item for item in CAUSES if item.name == name)() for name in ("schedule-error", "lr-too-low")}
    said = {item.text: item.weight for cause in weighed.values() for item in cause.weigh(chart, problem)}
    assert ("the learning rate has been 0 since the first step" in said) == blamed
    assert any("before the schedule lowered it" in text for text in said) == blamed


def test_weights_that_do_not_move_count_among_all():
    """Biases that begin at zero change by a multiple of their norm, however low the learning rate is."""
    chart = charted(lr=np.full(N, 5e-9))
    for step in range(0, 390, 10):
        chart.add(
            {"type": "tensors", "step": step, "vitals": {"update_ratio": [0.0, 0.0, 5e-8, 6e-8, 7e-8, 0.01, 0.02]}}
        )
    assert working_update(chart) == 6e-8
    chart.add({"type": "tensors", "step": 390, "vitals": {"update_ratio": [0.0] * 7}})  # a step that was skipped
    assert working_update(chart) == 6e-8


def test_updates_of_a_head_are_not_those_of_the_weights():
    chart = charted()
    for step in range(0, 390, 10):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.0, 0.0, 0.0, 0.04]}})
    assert np.isnan(working_update(chart))
