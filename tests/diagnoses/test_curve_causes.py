"""Causes that are read off curves, times and configuration: what is first on charts that look like it."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.diagnoses.numeric_precision import eps_below_the_format
from torchdoctor.records import Symptom
from torchdoctor.symptoms.collapsed_output import SAYS_NOTHING

RNG = np.random.default_rng(0)
N = 400
T = np.arange(N)
FLAT = 2.3 + 0.02 * RNG.standard_normal(N)
ADAM = {"optimizer": [{"class": "Adam"}]}
SGD = {"optimizer": [{"class": "SGD"}]}


def symptom(name, first=0, severity="warning", message=""):
    return Symptom(name, "", severity, 0.9, first, N - 1, message=message)


def causes(*symptoms, context=None, groups=(), rows=None, facts=None, validation=(), **vitals):
    chart = Chart.of(context=context, **({"loss": FLAT, "lr": np.full(N, 1e-3)} | vitals))
    chart.groups = list(groups)
    for vital, sampled in (rows or {}).items():
        for step, row in sampled.items():
            chart.names = tuple(f"layers.{index}.weight" for index in range(len(row)))
            chart.add({"type": "tensors", "step": step, "vitals": {vital: row}})
    for number, value in enumerate(validation):
        chart.put(49 + 50 * number, "val_loss", value)
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    chart.episodes += symptoms
    found = rank(chart)
    assert sum(item.probability for item in found) == pytest.approx(len({item.problem for item in found}))
    return found


def ratio(value):
    return {"update_ratio": {300: [value] * 4}}


def noise(snr, batch):
    """Measured at each step: batch size over noise scale, and batch size."""
    return {"gradient_snr": np.full(N, snr), "gradient_samples": np.full(N, float(batch))}


STILL = symptom("not-learning")
SLOW = symptom("slow-learning")
UNDER = symptom("underfitting", 200)
VANISHED = symptom("learning-rate-vanished", 100)
ODD = symptom("validation-anomaly", 49)
TICKING = symptom("loss-oscillation", message="loss swings by 1.9 around 2, every 2 steps, and does not settle")

FIRST = {
    "updates of a fifth of the weights": ("lr-too-high", [STILL], {"rows": ratio(0.2), "context": ADAM}),
    "a rate of five": ("lr-too-high", [STILL], {"lr": np.full(N, 5.0), "context": SGD, "rows": ratio(0.15)}),
    "up and down at every other step": ("lr-too-high", [TICKING], {}),
    "updates of a millionth": ("lr-too-low", [SLOW], {"rows": ratio(1e-6), "lr": np.full(N, 1e-7), "context": ADAM}),
    "the same, flat": ("lr-too-low", [STILL], {"rows": ratio(1e-6), "lr": np.full(N, 1e-7)}),
    "a rate that is gone": ("schedule-error", [VANISHED], {"lr": np.where(T < 100, 1e-3, 0.0)}),
    "a rate that never was": ("schedule-error", [STILL], {"lr": np.zeros(N)}),
    "milestones in epochs, steps in batches": (
        "schedule-error",
        [SLOW],
        {
            "lr": np.where(T < 90, 0.1, 1e-5),
            "facts": {"schedule.class": "MultiStepLR", "schedule.milestones": [30, 60, 90], "schedule.per_batch": True},
        },
    ),
    "a warm-up that is never stepped": (
        "schedule-error",
        [SLOW],
        {
            "lr": np.full(N, 1e-6),
            "context": {"scheduler": "LinearLR"} | ADAM,
            "facts": {"schedule.class": "LinearLR", "schedule.stepped": False},
        },
    ),
    "a one-cycle that stays at its beginning": (
        "schedule-error",
        [STILL],
        {
            "lr": np.full(N, 4e-5),
            "context": ADAM,
            "groups": [{"initial_lr": 4e-5, "max_lr": 1e-2}],
            "facts": {"schedule.class": "OneCycleLR", "schedule.stepped": False},
            "rows": ratio(2e-5),
        },
    ),
    "a warm-up that nobody steps, nor showed the doctor": (
        "schedule-error",
        [STILL],
        {"lr": np.full(N, 1e-4), "context": SGD, "groups": [{"initial_lr": 0.1}]},
    ),
    "float16 weights, where eps is zero": (
        "numeric-precision",
        [symptom("nan-or-inf", 0, "critical")],
        {"context": {"precision": ["float16"]} | ADAM, "groups": [{"eps": 1e-8}], "facts": {"loss.kind": "mse"}},
    ),
    "dropout of nine tenths": ("over-regularized", [UNDER], {"context": {"dropout": [0.9]}}),
    "weights that decay": (
        "over-regularized",
        [UNDER],
        {"groups": [{"weight_decay": 10.0}], "rows": {"weight_norm": {0: [4.0, 3.0], 300: [0.1, 0.05]}}},
    ),
    "a tiny model": (
        "insufficient-capacity",
        [UNDER],
        {
            "context": {"model": {"trainable": 42}, "dataset_size": 50_000, "dropout": []},
            "rows": ratio(1e-3),
            "validation": [2.3, 2.31, 2.3, 2.31],
        },
    ),
    "all of it through one unit, and still falling": (
        "insufficient-capacity",
        [UNDER],
        {
            "loss": 2.3 - 5e-4 * T,
            "rows": ratio(1e-3),
            "validation": [2.2, 2.15, 2.12],
            "facts": {
                "modules.names": ["a", "b", "c"],
                "modules.kinds": ["Linear"] * 3,
                "modules.widths": [64, 1, 10],
                "modules.entering": [784, 64, 1],
                "modules.outputs": ["c"],
            },
        },
    ),
    "steps are what is missing": (
        "stopped-too-early",
        [SLOW],
        {"loss": 2.3 - 5e-4 * T, "rows": ratio(1e-3), "validation": [2.2, 2.15, 2.12]},
    ),
    "validation that never followed": (
        "train-val-mismatch",
        [ODD],
        {"loss": 2.3 * np.exp(-T / 80), "validation": [4.0, 5.0, 5.5, 6.0]},
    ),
    "validation that is a constant": (
        "train-val-mismatch",
        [ODD],
        {"loss": 2.3 * np.exp(-T / 80), "validation": [2.0] * 5},
    ),
    "four samples and noise": (
        "batch-size-unsuited",
        [symptom("gradient-instability", 100)],
        {"context": {"batch_size": 2}, "clip": [1.0], "rows": ratio(1e-4)} | noise(0.005, 2),
    ),
    "negative curvature": (
        "saddle-point",
        [symptom("loss-plateau", 200)],
        {"curvature": np.full(N, -0.4), "grad_norm": np.where(T < 200, 1.0, 0.01), "loss": FLAT + 2 * np.exp(-T / 50)},
    ),
    "memory errors": ("hardware-fault", [symptom("loss-spike", 300)], {"gpu_ecc_errors": [0.0, 0.0, 3.0]}),
    "throttled": (
        "hardware-fault",
        [symptom("step-time-regression", 200)],
        {"gpu_throttled": [0.0] * 8 + [1.0] * 8, "gpu_temperature": [91.0] * 16},
    ),
    "a loader that is slow": (
        "slow-data-loading",
        [symptom("data-starvation", 30)],
        {"seconds": [0.1] * 99, "data_seconds": [0.08] * 20, "gpu_utilisation": [10.0] * 8},
    ),
    "memory that is kept": ("memory-leak", [symptom("memory-growth", 100)], {"memory": [1e9, 2e9]}),
    "a scale that collapsed": (
        "numeric-precision",
        [symptom("skipped-steps", 200, "critical")],
        {"loss_scale": np.maximum(65536 * 0.5 ** (T // 10), 1e-3), "context": {"autocast": "float16"}},
    ),
    "updates that bfloat16 rounds away": (
        "numeric-precision",
        [SLOW],
        {"context": {"precision": ["bfloat16"]}, "rows": ratio(2e-4), "lr": np.full(N, 1e-4)},
    ),
    "no gap, low, flat": (
        "converged",
        [symptom("loss-plateau", 200, "info")],
        {"loss": 0.3 + 2 * np.exp(-T / 30), "validation": [0.35] * 8, "rows": ratio(1e-3)},
    ),
}


@pytest.mark.parametrize(("cause", "symptoms", "more"), FIRST.values(), ids=FIRST)
def test_first(cause, symptoms, more):
    found = causes(*symptoms, **more)
    assert found[0].cause == cause, [(item.cause, round(item.probability, 2)) for item in found]
    assert found[0].probability > 0.25
    assert found[0].evidence


AGAINST = {
    "a rate that decay explains": (
        "lr-too-high",
        [STILL],
        {
            "groups": [{"weight_decay": 10.0}],
            "rows": ratio(0.2) | {"weight_norm": {0: [4.0] * 4, 300: [0.1] * 4}},
        },
    ),
    "no gradient to scale": ("lr-too-low", [STILL], {"grad_norm": np.zeros(N), "rows": ratio(0.0)}),
    "a schedule that goes on": ("schedule-error", [SLOW], {}),
    "a schedule whose plan is the rate": ("schedule-error", [SLOW], {"groups": [{"initial_lr": 1e-3}]}),
    "no dropout, no decay": (
        "over-regularized",
        [UNDER],
        {"context": {"dropout": []}, "groups": [{"weight_decay": 0}]},
    ),
    "a loss at chance is not finished": ("converged", [UNDER], {"facts": {"loss.chance": 2.303}}),
    "a loss that stopped falling": ("stopped-too-early", [UNDER], {}),
    "validation fell before it rose": (
        "train-val-mismatch",
        [symptom("overfitting", 200)],
        {"loss": 2.3 * np.exp(-T / 80), "validation": [1.5, 0.8, 0.6, 0.8, 1.0]},
    ),
    "a batch that suits the noise": (
        "batch-size-unsuited",
        [SLOW],
        {"context": {"batch_size": 64}} | noise(0.8, 64),
    ),
    "positive curvature": ("saddle-point", [symptom("loss-plateau", 200)], {"curvature": np.full(N, 0.1)}),
    "a cool and busy device": (
        "hardware-fault",
        [symptom("step-time-regression", 200)],
        {"gpu_throttled": [0.0] * 16, "gpu_temperature": [60.0] * 16},
    ),
    "memory that stays": ("memory-leak", [symptom("step-time-regression", 200)], {"memory": [1e9] * 40}),
}


def test_what_one_step_does_is_no_saddle():
    """Nor is it the size of inputs, where they are tokens."""
    lost = np.where(T == 200, 1e-8, 1.0)
    found = causes(symptom("gradient-vanishing", 200), grad_norm=lost, token_top_share=[0.2] * 5)
    shares = {item.cause: item.probability for item in found}
    assert max(shares.get(name, 0.0) for name in ("saddle-point", "unnormalized-inputs")) < 0.02, shares


@pytest.mark.parametrize(("cause", "symptoms", "more"), AGAINST.values(), ids=AGAINST)
def test_unlikely(cause, symptoms, more):
    assert all(item.probability < 0.15 for item in causes(*symptoms, **more) if item.cause == cause)


@pytest.mark.parametrize(
    ("precision", "group", "lost"),
    [
        ("float16", {"eps": 1e-8}, True),
        ("float16", {"eps": 1e-4}, False),
        ("float16", {"momentum": 0.9}, False),
        ("bfloat16", {"eps": 1e-8}, False),
        ("float32", {"eps": 1e-8}, False),
    ],
)
def test_an_eps_that_the_format_of_the_weights_has_no_room_for(precision, group, lost):
    chart = Chart.of(context={"precision": [precision]}, loss=[1.0])
    chart.groups = [group]
    assert (eps_below_the_format(chart) is not None) is lost


@pytest.mark.parametrize(("heard", "cause"), [(1e-3, "detached-graph"), (0.3, "over-regularized")])
def test_a_code_that_says_nothing_and_hears_nothing(heard, cause):
    """Cut off from its decoder, a code comes to rest at its prior; under a penalty that is too strong it does not."""
    chart = Chart.of(loss=FLAT, lr=np.full(N, 1e-3))
    chart.names = ("body.weight", "mean.weight", "spread.weight", "decoder.weight")
    chart.add({"type": "facts", "step": 0, "facts": {"graph.absent": []}})
    for step in (0, 100, 200, 300):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": [heard, heard, heard, 1.0]}})
    message = f"mean and spread fell to zero: {SAYS_NOTHING}"
    chart.episodes.append(
        Symptom("collapsed-output", "", "warning", 0.9, 23, N - 1, where=("mean", "spread"), message=message)
    )
    assert rank(chart)[0].cause == cause


@pytest.mark.parametrize(("severity", "certain"), [("warning", True), ("info", False)])
def test_a_schedule_that_never_begins_is_certain_unless_its_numbers_may_count_epochs(severity, certain):
    facts = {"schedule.class": "LinearLR", "schedule.stepped": False}
    first = causes(symptom("schedule-anomaly", 0, severity), SLOW, lr=np.full(N, 1e-6), facts=facts)[0]
    assert first.cause == "schedule-error" and (first.probability > 0.95) is certain
    assert any(item.startswith("certain") for item in first.evidence) is certain


@pytest.mark.parametrize(
    ("size", "said"), [({}, "has 98 parameters"), ({"parameters": 57442}, "has 57,442 parameters, and 98 of them are")]
)
def test_a_small_head_on_a_frozen_trunk_is_not_the_whole_model(size, said):
    found = causes(STILL, context=ADAM | {"model": size | {"trainable": 98}})
    (tiny,) = (item for item in found if item.cause == "insufficient-capacity")
    assert any(said in evidence for evidence in tiny.evidence)
