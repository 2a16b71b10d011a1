"""What the length of an optimizer's steps, and the smallest number of a format, leave as the only explanation."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.diagnoses.at_the_break import beyond_its_steps, lr_leap
from torchdoctor.records import Symptom

N = 400
T = np.arange(N)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(N)
ADAM = {"optimizer": "Adam", "eps": 1e-8, "betas": [0.9, 0.999]}
SGD = {"optimizer": "SGD", "momentum": 0.9}
SHOWN = [
    Symptom("gradient-explosion", "", "warning", 0.9, 251, 264),
    Symptom("loss-spike", "", "warning", 0.9, 251, 261),
]


def thrown(group=ADAM, grown=16.0, ratio=0.01, rate=1.0, shown=SHOWN):
    """A loss that leaps at one step and takes dozens to come back, with weights that have grown by then."""
    loss = np.where(T < 251, 2.0, 2.0 + 75 * np.exp(-(T - 251) / 5.0)) + NOISE
    chart = Chart.of(loss=loss, lr=np.where(T < 250, 1e-2, 1e-2 * rate))
    chart.groups, chart.names = [group], ("e.weight", "r.weight", "r.bias", "o.weight")
    for step in (198, 223, 248, 273):
        norms = np.array([50.0, 14.0, 1.7, 13.0]) * (grown if step > 250 else 1.0)
        chart.add(
            {"type": "tensors", "step": step, "vitals": {"weight_norm": norms.tolist(), "update_ratio": [ratio] * 4}}
        )
    chart.episodes += shown
    return chart


def test_moments_that_were_lost_are_not_a_bad_batch():
    assert beyond_its_steps(thrown(), 251)
    assert rank(thrown())[0].cause == "resume-error"


@pytest.mark.parametrize(
    "other",
    [{"group": SGD}, {"grown": 1.2}, {"ratio": 0.3}, {"rate": 100.0}],
    ids=["plain steps are as long as the gradient", "weights are where they were", "steps were long", "the rate rose"],
)
def test_what_steps_can_do_proves_nothing(other):
    assert not beyond_its_steps(thrown(**other), 251)
    assert rank(thrown(**other))[0].cause != "resume-error"


def test_one_tensor_alone_is_not_the_optimizers_doing():
    chart = thrown(grown=1.0)
    chart.add({"type": "tensors", "step": 274, "vitals": {"weight_norm": [50.0, 14e4, 1.7, 13.0]}})
    assert not beyond_its_steps(chart, 251)


@pytest.mark.parametrize(("before", "leads"), [(0.2, False), (0.75, True)])
def test_units_at_their_extremes_after_a_break_did_not_bring_it_about(before, leads):
    pinned = Symptom("saturated-activations", "", "warning", 0.9, 323, N - 1)
    grown = Symptom("weight-growth", "", "warning", 0.9, 273, 348)
    chart = thrown(group=SGD, shown=[*SHOWN, grown, pinned])
    chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Embedding", "RNN", "Linear"]}})
    for step in (223, 248):
        chart.add({"type": "modules", "step": step, "vitals": {"act_saturated": [None, before, None]}})
    told = next(item for item in rank(chart) if item.cause == "saturating-nonlinearity")
    assert any("a consequence" in text for text in told.evidence) is not leads


STILL = [Symptom("no-gradient", "", "critical", 0.9, 0, N - 1), Symptom("not-learning", "", "warning", 0.9, 0, N - 1)]


def without_gradient(precision="float16", norm=0.0, **facts):
    chart = Chart.of(loss=1.2e-4 + 1e-6 * NOISE, lr=np.full(N, 1.0), grad_norm=np.full(N, norm))
    chart.context["precision"] = [precision]
    chart.groups, chart.names = [SGD], ("1.weight", "3.weight")
    chart.add({"type": "facts", "step": 0, "facts": facts})
    for step in (100, 200, 300):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": [norm, norm]}})
    chart.episodes += STILL
    return chart


def test_gradients_that_are_too_small_for_half_precision():
    assert rank(without_gradient())[0].cause == "numeric-precision"


def autocast(rows, loss=1e-6, **context):
    """A classifier under autocast in float16, whose gradients were these at every sample."""
    chart = without_gradient("float32", **WHOLE)
    chart.context |= {"autocast": "float16", "batch_size": 32} | context
    for step in range(N):
        chart.put(N + step, "loss", loss)
        chart.put(N + step, "output_spread", 0.5)
    for step in (400, 500, 600):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": rows}})
    return chart


WHOLE = {"modules.names": ["1", "3"], "modules.widths": [64, 3], "modules.outputs": ["3"], "loss.kind": "cross-entropy"}
WHOLE |= {"graph.detached": False, "graph.frozen_share": 0.0}


@pytest.mark.parametrize(
    ("chart", "rounded"),
    [
        (autocast([0.0, 0.0]), True),
        (autocast([0.0, 2e-5]), True),
        (autocast([0.0, 2e-5], loss=2.3), True),
        (autocast([0.0, 0.0], loss=2.3), False),
        (autocast([0.0, 0.3], loss=2.3), False),
        (autocast([0.0, 0.0], scaler="GradScaler"), False),
        (autocast([0.0, 0.0], autocast="bfloat16"), False),
        (autocast([1e-5, 2e-5]), False),
    ],
    ids=[
        *("a tiny loss", "a tiny loss, first layer", "behind a tiny gradient", "a loss that does not hear"),
        *("behind a usual gradient", "lifted by a scaler", "bfloat16", "none is zero"),
    ],
)
def test_gradients_that_autocast_rounds_to_zero(chart, rounded):
    found = rank(chart)
    assert (found[0].cause == "numeric-precision") is rounded
    for name in ("loss-misuse", "detached-graph") if rounded else ():
        assert all(item.probability < 0.05 for item in found if item.cause == name)


@pytest.mark.parametrize(
    "chart",
    [
        without_gradient("float32"),
        without_gradient("bfloat16"),
        without_gradient(norm=1e-6),
        without_gradient(**{"graph.cut": ["1", "3"]}),
    ],
    ids=["float32", "bfloat16 reaches as far down", "there are some", "they are cut off"],
)
def test_gradients_that_are_missing_for_another_reason(chart):
    assert rank(chart)[0].cause != "numeric-precision"


@pytest.mark.parametrize(
    ("loss", "cause"),
    [
        ([1.9, 16.0, 2.6, 450.0, 28.0, 5e4, 7e9, 9e25] + [np.nan] * 40, "lr-too-high"),
        ([1.9, 1.6, 1.6, 1.5, 1.4, 1.4, 1.3, 1.3] + [np.nan] * 40, "numeric-precision"),
        ([1.9, 1.6, 1.6, 1.5, 1.4, 1.4, 1.3, 9e25] + [np.nan] * 40, "numeric-precision"),
    ],
    ids=["step by step", "at once", "by what came at that step"],
)
def test_an_overflow_that_steps_led_to(loss, cause):
    chart = Chart.of(loss=loss, lr=np.full(len(loss), 0.6), grad_norm=[*loss[:7], *[np.inf] * 41])
    chart.groups, chart.names = [SGD], ("0.weight", "2.weight")
    for step in (1, 2, 4):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.11, 0.11]}})
    chart.episodes.append(Symptom("nan-or-inf", "", "critical", 0.9, 7, 47))
    assert rank(chart)[0].cause == cause


@pytest.mark.parametrize(
    ("groups", "cause"),
    [
        ([ADAM | {"maximize": True}], "optimizer-misconfigured"),
        ([ADAM | {"maximize": True}, ADAM | {"maximize": False}], "lr-too-high"),
    ],
    ids=["all that is trained", "one player of two"],
)
def test_a_loss_of_ones_own_that_is_maximized(groups, cause):
    chart = Chart.of(loss=0.6 * np.exp(T / 60.0) + NOISE, lr=np.full(N, 2e-3))
    chart.groups, chart.names = groups, ("0.weight", "2.weight")
    for step in (25, 50, 100):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.02, 0.02]}})
    chart.episodes.append(Symptom("loss-divergence", "", "critical", 0.9, 55, N - 1))
    assert rank(chart)[0].cause == cause


@pytest.mark.parametrize(("top", "leap"), [(1.0, 1000.0), (1.5e-3, 1.0)], ids=["one group's rate", "a little"])
def test_the_rate_of_one_group_that_leapt(top, leap):
    chart = Chart.of(lr=np.full(N, 1e-3), **{"lr/1": np.where(T < 259, 1e-3, top)})
    chart.groups = [ADAM, ADAM]
    assert lr_leap(chart, 261) == pytest.approx(leap)


def test_a_group_whose_rate_is_kept_from_where_it_differs():
    chart = Chart.of(lr=np.full(N, 1e-3))
    chart.groups = [ADAM, ADAM]
    for step in range(259, N):
        chart.put(step, "lr/1", 1.0)
    assert lr_leap(chart, 261) == pytest.approx(1000.0)
    assert lr_leap(chart, 200) == lr_leap(chart, 350) == 1.0


def run(loss, ratio, *found, **vitals):
    chart = Chart.of(loss=loss, lr=np.full(N, 1e-3), **vitals)
    chart.groups, chart.names = [SGD], ("0.weight", "2.weight")
    for step in (25, 50, 100, 140):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [ratio] * 2}})
    chart.episodes += found
    return chart


def test_a_loss_that_is_solved_on_many_batches_is_not_stale():
    over = Symptom("overfitting", "", "critical", 0.9, 24, N - 1), Symptom("not-learning", "", "warning", 0.9, 0, N - 1)
    for loss, stale in ((0.0, False), (1.58, True)):
        found = rank(run(np.full(N, loss), 0.01, *over, input_checksum=T[:8]))
        assert (found[0].cause == "stale-loss") is stale


def test_a_jump_that_was_over_long_before_the_run_broke_did_not_break_it():
    seen = (
        Symptom("loss-spike", "", "warning", 0.9, 60, 60),
        Symptom("loss-divergence", "", "critical", 0.9, 150, N - 1),
    )
    loss = np.where(T < 150, np.where(T == 60, 3000.0, 1.0 + 0.02 * np.abs(NOISE)), 1.3 ** np.maximum(T - 149.0, 0))
    assert rank(run(loss, 0.2, *seen))[0].cause == "lr-too-high"
