"""Which cause comes first, on charts that look like it."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import group, rank
from torchdoctor.records import Symptom

RNG = np.random.default_rng(0)
N = 400
LOSS = 2 + 0.02 * RNG.standard_normal(N)
NORM = np.exp(0.1 * RNG.standard_normal(N))


def symptom(name, first=300, last=None, severity="warning", **more):
    return Symptom(name, "", severity, 0.9, first, first if last is None else last, **more)


def causes(*symptoms, context=None, groups=(), origins=(), rows=None, **vitals):
    chart = Chart.of(context=context, **({"loss": LOSS, "grad_norm": NORM, "lr": np.full(N, 1e-3)} | vitals))
    chart.episodes += symptoms
    chart.groups = list(groups)
    chart.origins = list(origins)
    for vital, row in (rows or {}).items():
        chart.names = tuple(f"layers.{index}.weight" for index in range(len(row)))
        for step in (50, 100, 150, 200, 250):
            chart.add({"type": "tensors", "step": step, "vitals": {vital: row}})
    return rank(chart)


def at(step, value, series=LOSS):
    changed = series.copy()
    changed[step] = value
    return changed


EXPLODED = symptom("gradient-explosion")
DIVERGED = symptom("loss-divergence", 310, 399)


def test_a_learning_rate_that_leapt():
    found = causes(EXPLODED, DIVERGED, lr=np.where(np.arange(N) < 299, 1e-3, 0.1))
    assert found[0].cause == "lr-too-high"
    assert found[0].probability > 0.6
    assert "the learning rate had just jumped to 0.1, 100 times its highest value before" in found[0].evidence


def test_updates_that_are_too_large():
    found = causes(symptom("loss-divergence", 300, 399), rows={"update_ratio": [0.05] * 4})
    assert found[0].cause == "lr-too-high"


def test_one_scaled_gradient_that_healed_is_not_blamed_on_the_learning_rate():
    found = causes(EXPLODED)
    assert found[0].cause == "unknown"
    assert all(item.probability < 0.2 for item in found if item.cause in ("lr-too-high", "warmup-missing"))
    assert any("compute the gradient of that step's batch again" in text for text in found[0].evidence)


def test_a_collapse_that_healed_is_unknown():
    assert causes(symptom("gradient-vanishing"))[0].cause == "unknown"


def test_a_batch_that_stands_out_itself():
    found = causes(symptom("loss-spike"), EXPLODED, loss=at(300, 12.0))
    assert found[0].cause == "bad-batch"
    assert "the loss was already unusual at step 300, before that step's update" in found[0].evidence


def leading(found):
    """The likeliest cause of the catalogue: `unknown` may be before it where the evidence is weak."""
    return next(item.cause for item in found if item.cause != "unknown")


def test_unclipped_gradients_that_come_back_and_hurt():
    chain = [symptom("gradient-explosion", step) for step in (300, 320, 340)]
    found = causes(*chain, symptom("loss-spike", 302, 345))
    assert leading(found) == "clip-missing"
    clipped = causes(*chain, symptom("loss-spike", 302, 345), clip=np.full(N, 1.0))
    assert "clip-missing" not in {item.cause for item in clipped}


def test_trouble_at_the_start_without_a_warm_up():
    early = (symptom("gradient-explosion", 20, 40), symptom("loss-spike", 22, 60))
    found = causes(*early, context={"optimizer": [{"class": "AdamW"}]}, clip=np.full(N, 1.0))
    assert leading(found) == "warmup-missing"
    warmed = causes(*early, lr=np.minimum(1e-3, 1e-5 * (1 + np.arange(N))), clip=np.full(N, 1.0))
    assert "warmup-missing" not in {item.cause for item in warmed}


NAN = symptom("nan-or-inf", severity="critical")


@pytest.mark.parametrize(("kind", "cause"), [("input", "nan-in-data"), ("output", "numeric-precision")])
def test_the_origin_decides(kind, cause):
    found = causes(NAN, origins=[{"step": 300, "module": "block.1", "kind": kind}])
    assert found[0].cause == cause
    assert found[0].probability > 0.6


def test_gradients_that_are_not_finite_with_a_finite_loss():
    assert causes(NAN)[0].cause == "numeric-precision"


def test_values_that_grew_before_they_overflowed():
    found = causes(
        symptom("gradient-explosion", 280, 299),
        symptom("loss-divergence", 285, 300),
        NAN,
        loss=at(300, np.nan),
        lr=np.where(np.arange(N) < 279, 1e-3, 0.1),
    )
    assert found[0].cause == "lr-too-high"


OVERFITTING = symptom("overfitting", severity="critical")


def test_overfitting():
    validation = [2.6, 2.2, 2.0, 2.05, 2.1, 2.2, 2.3, 2.4]
    loose = causes(
        OVERFITTING,
        context={"dropout": []},
        groups=[{"weight_decay": 0}],
        val_loss=validation,
        loss=np.linspace(3, 1.5, N),
    )
    assert loose[0].cause == "under-regularized"
    by_heart = causes(
        OVERFITTING,
        context={"dropout": [0.3]},
        groups=[{"weight_decay": 0.1}],
        val_loss=validation,
        loss=np.linspace(2, 0.01, N) ** 3,
    )
    assert by_heart[0].cause == "memorization"


PLATEAU = symptom("loss-plateau", 250, 399, severity="info")


def test_plateaus():
    falling = np.linspace(10, 2, N)
    assert causes(PLATEAU, loss=falling, val_loss=[2.1] * 6)[0].cause == "converged"
    rates = np.where(np.arange(N) < 249, 1e-3, 0.0)
    assert causes(PLATEAU, loss=falling, lr=rates)[0].cause == "schedule-error"
    still = causes(PLATEAU, loss=np.linspace(2.3, 2.2, N), lr=np.full(N, 1e-7), rows={"update_ratio": [1e-7] * 4})
    assert still[0].cause == "lr-too-low"


@pytest.mark.parametrize(("factor", "cause"), [(6.0, "saturating-nonlinearity"), (2.2, "missing-skip-connections")])
def test_decay_through_depth(factor, cause):
    decay = symptom("gradient-vanishing", 200, 250, where=("layers.0.weight",))
    found = causes(decay, rows={"grad_norm": [factor ** (index - 11) for index in range(12)]})
    assert found[0].cause == cause


def test_symptoms_near_in_time_and_of_one_mechanism_are_one_problem():
    found = [
        symptom("gradient-explosion", 100),
        symptom("loss-spike", 101, 110),
        symptom("nan-or-inf", 140),
        symptom("overfitting", 120),
        symptom("loss-plateau", 600),
        symptom("gradient-explosion", 900),
    ]
    assert [problem.names for problem in group(found)] == [
        ("gradient-explosion", "loss-spike", "nan-or-inf"),
        ("overfitting",),
        ("loss-plateau",),
        ("gradient-explosion",),
    ]


def test_a_lone_symptom_that_comes_back_is_one_problem():
    (problem,) = group([symptom("gradient-explosion", step) for step in (100, 500, 2500)])
    assert [item.first_step for item in problem.symptoms] == [100, 500, 2500]


def test_the_worst_problem_comes_first():
    found = causes(symptom("loss-plateau", 10, severity="info"), OVERFITTING)
    assert (found[0].problem, found[0].symptoms, found[0].episodes) == (1, ("overfitting",), (1,))
    assert (found[-1].problem, found[-1].symptoms, found[-1].episodes) == (2, ("loss-plateau",), (0,))


def test_informative_findings_are_no_problem():
    assert causes(symptom("multiple-pathologies", severity="info")) == ()
    assert causes() == ()


def test_a_note_beside_what_breaks_is_not_its_cause():
    note = symptom("validation-anomaly", 280, 320, "info", message="what it is asked for may be wrong")
    broken = symptom("nan-or-inf", 300, 399, "critical")
    vitals = {"val_loss": [1.0] * 4, "loss": np.where(np.arange(N) < 300, LOSS, np.nan)}
    assert "label-noise-or-misalignment" in {item.cause for item in causes(note, **vitals)}
    first = [item for item in causes(note, broken, **vitals) if "nan-or-inf" in item.symptoms]
    assert first
    assert "label-noise-or-misalignment" not in {item.cause for item in first}


def test_what_goes_on_at_once_and_has_one_likeliest_cause_is_one_problem():
    still, slow = symptom("not-learning", 0, 380), symptom("slow-learning", 0, 399)
    found = causes(still, slow, rows={"update_ratio": [1e-6] * 4}, lr=np.full(N, 1e-7))
    assert {item.problem for item in found} == {1} and found[0].symptoms == ("not-learning", "slow-learning")
    later = causes(symptom("not-learning", 0, 100), symptom("slow-learning", 300, 399), lr=np.full(N, 1e-7))
    assert {item.problem for item in later} == {1, 2}


def test_a_setting_that_explains_a_standstill_is_one_problem_with_it():
    told = "eps is 1 and outweighs 100% of the gradients"
    found = causes(
        symptom("optimizer-advice", 0, 399, message=told),
        symptom("slow-learning", 0, 399),
        groups=[{"optimizer": "AdamW", "eps": 1.0}],
        rows={"update_ratio": [3e-5] * 4},
        adam_eps_share=np.ones(N),
    )
    assert {item.problem for item in found} == {1}
    assert (found[0].cause, found[0].evidence) == ("optimizer-misconfigured", (f"certain: {told}",))


def test_a_note_about_the_optimizer_does_not_take_what_others_explain():
    note = symptom("optimizer-advice", 0, 399, "info", message="Adam adds weight decay 0.01 to the gradient")
    found = causes(note, EXPLODED, DIVERGED, lr=np.where(np.arange(N) < 299, 1e-3, 0.1))
    assert found[0].cause == "lr-too-high" and {item.problem for item in found} == {1, 2}


def test_a_higher_rate_is_no_answer_to_gradients_that_are_lost_on_their_way():
    lost = symptom("gradient-vanishing", 4, 399, where=("layers.0.weight",), value=5.8)
    still = symptom("not-learning", 0, 399)
    rows = {"update_ratio": [1e-8, 1e-7, 1e-6, 1e-5], "grad_norm": [1e-8, 1e-6, 1e-4, 1e-2]}
    found = {item.cause: item for item in causes(lost, still, rows=rows)}
    assert any("on their way back" in text for text in found["lr-too-low"].evidence)
