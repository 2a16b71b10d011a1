"""Evidence must be true of the run: sentences that were seen to be wrong on real logs."""

from __future__ import annotations

import math

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.offline import diagnose
from torchdoctor.records import Symptom
from torchdoctor.symptoms.hindsight import in_hindsight
from torchdoctor.symptoms.validation_anomaly import ValidationAnomaly

LOG = {"source": "CSV", "clock": "epoch"}


def symptom(name, first=0, last=19, severity="warning"):
    return Symptom(name, "", severity, 0.9, first, last)


def said(cause, chart, *names, first=0, last=19):
    weighed = next(item for item in CAUSES if item.name == cause)()
    problem = Problem(tuple(symptom(name, first, last) for name in names))
    return {item.text: item.weight for item in weighed.weigh(chart, problem)}


@pytest.mark.parametrize(("again", "by_heart"), [([0.7, 1.0, 1.0, 1.0], True), ([0.0, 0.0, 0.0, 0.0], False)])
def test_how_soon_samples_come_again_says_whether_they_can_be_known_by_heart(again, by_heart):
    chart = Chart.of(loss=[0.7] * 20 + [0.03] * 180, lr=[1e-3] * 200, val_loss=[1.0] * 4)
    for step, share in enumerate(again, 190):
        chart.put(step, "input_again", share)
    chart.context["batch_size"] = 32
    texts = said("memorization", chart, "validation-anomaly"), said("train-val-mismatch", chart, "validation-anomaly")
    assert any("gone through its samples about" in text for text in texts[0]) == by_heart
    assert any("gone through its samples" in text for text in texts[1]) == by_heart


def test_few_losses_are_not_taken_for_zero():
    chart = Chart.of(loss=[0.59, 0.34, 0.23, 0.19], val_loss=[0.72, 3.6, 3.76, 184.0], context=LOG)
    assert not any("hardly anything is left" in text for text in said("memorization", chart, "overfitting"))


def test_a_loss_that_is_not_finite_was_not_learnt_by_heart():
    chart = Chart.of(loss=[math.nan] * 20, val_loss=[math.nan] * 20, context=LOG)
    texts = said("memorization", chart, "nan-or-inf", "validation-anomaly")
    assert texts["memorization does not make values non-finite"] < -2


def test_the_training_loss_of_a_sparse_log_is_the_one_at_its_end():
    chart = Chart.of(
        loss=[4.2, 1.9, 1.6, 1.4, 1.29, 0.9, 0.5, 0.2, 0.095, 0.03], val_loss=[1.68] * 5 + [4.0] * 5, context=LOG
    )
    assert not any("the training loss is still" in text for text in said("memorization", chart, "overfitting"))


def test_a_training_loss_that_is_not_finite_does_not_come_of_validation():
    chart = Chart.of(loss=[0.63, 0.6, math.nan], val_loss=[2.2, math.nan, math.nan], context=LOG)
    names = ("nan-or-inf", "validation-anomaly")
    assert said("train-val-mismatch", chart, *names)["the training loss is not finite either"] < -2


def test_what_validation_was_never_under_is_said_of_validation():
    chart = Chart.of(loss=[0.6 - 0.02 * step for step in range(20)], val_loss=[0.9] * 19 + [0.8], context=LOG)
    texts = said("train-val-mismatch", chart, "overfitting")
    assert any("never below 0.8, and training began at 0.6" in text for text in texts)


@pytest.mark.parametrize(("tail", "told"), [(0.2, False), (None, True)])
def test_validation_that_stands_is_odd_only_while_training_moves(tail, told):
    falling = [1.0 - 0.04 * step for step in range(20)]
    losses = falling if tail is None else falling[:17] + [tail] * 3
    chart = Chart.of(loss=losses, val_loss=[0.5] * 20, context=LOG)
    texts = said("train-val-mismatch", chart, "overfitting")
    assert any("last 3 evaluations" in text for text in texts) == told


def test_the_last_digit_of_a_guess_is_no_progress():
    losses = [2.3030] * 5 + [2.3029] * 5
    assert ValidationAnomaly().check(Chart.of(loss=losses, val_loss=[2.3026] * 10, context=LOG)) is None


def test_a_rate_at_which_nothing_moves_is_too_low_whatever_the_schedule_did():
    chart = Chart.of(loss=[0.66] * 20, lr=[1e-14] * 10 + [1e-15] * 10, context=LOG)
    texts = said("lr-too-low", chart, "not-learning")
    assert any("never above 1e-14" in text and weight > 3 for text, weight in texts.items())


def test_rows_do_not_say_when_the_run_began():
    chart = Chart.of(loss=[math.nan] * 7, lr=[5e-5] * 7, context={"source": "text", "clock": "row"})
    texts = said("warmup-missing", chart, "nan-or-inf", last=6)
    assert all(weight < 0 for weight in texts.values())


def test_a_step_that_is_long_gone_is_not_called_ordinary():
    chart = Chart.of(loss=[1.0] * 5000)
    assert not any("ordinary" in text for text in said("bad-batch", chart, "loss-spike", first=100, last=100))
    assert any("ordinary" in text for text in said("bad-batch", chart, "loss-spike", first=4900, last=4900))


def test_a_loss_that_came_back_is_not_said_to_have_stayed_away():
    chart = Chart.of(loss=[1.0] * 300)
    gone = Problem((symptom("loss-divergence", 100, 110, "critical"),))
    there = Problem((symptom("loss-divergence", 100, 299, "critical"),))
    cause = next(item for item in CAUSES if item.name == "lr-too-high")()
    assert any(item.text == "the loss rose above its earlier level for a while" for item in cause.weigh(chart, gone))
    assert any(
        item.text == "the loss rose above its earlier level and did not come back" for item in cause.weigh(chart, there)
    )


@pytest.mark.parametrize(("after", "back"), [(0.3, True), (math.nan, False), (50.0, False)])
def test_where_the_loss_ended_says_whether_it_came_back(after, back):
    """The other findings of the problem may last longer, and a loss that is not finite ends the finding itself."""
    chart = Chart.of(loss=[2.0] * 100 + [90.0] * 30 + [after] * 170)
    divergence = Symptom("loss-divergence", "", "warning", 0.9, 100, 130, limit=10.0)
    cause = next(item for item in CAUSES if item.name == "lr-too-high")()
    texts = [item.text for item in cause.weigh(chart, Problem((divergence, symptom("dead-units", 100, 299))))]
    assert ("the loss rose above its earlier level for a while" in texts) == back, texts
    assert ("the loss rose above its earlier level and did not come back" in texts) != back


def test_a_warm_up_that_is_over_is_not_denied():
    chart = Chart.of(loss=[1.0] * 200, lr=[2e-3 * step for step in range(30)] + [6e-2] * 170)
    told = said("lr-too-high", chart, "gradient-explosion", first=150, last=152)
    assert "just before the onset, the learning rate was not higher than earlier" in told, told


def test_validation_alone_that_rises_is_one_finding():
    chart = Chart.of(context={"source": "text", "clock": "step"})
    for step in range(60):
        chart.put(step, "val_loss", 1.7 - 0.1 * step if step < 9 else 0.8 + 0.12 * (step - 9))
    found = {item.name: item for item in in_hindsight(chart).episodes}
    assert found["overfitting"].severity == "critical" and "got worse as well" not in found["overfitting"].message
    assert "loss-divergence" not in found


@pytest.mark.parametrize(("first", "blamed"), [(400, False), (990, True)])
def test_decay_is_judged_by_the_rate_of_the_time_of_the_trouble(first, blamed):
    chart = Chart.of(lr=[1e-3] * 800 + [0.2] * 200)
    chart.groups = [{"optimizer": "AdamW", "weight_decay": 0.1}]
    told = said("over-regularized", chart, "gradient-explosion", first=first, last=first + 3)
    assert any("weight decay removes" in text for text in told) == blamed


@pytest.mark.parametrize(("slow", "told"), [(0.135, True), (0.0006, False)])
def test_waits_are_compared_with_the_steps_between_them(slow, told):
    times = [slow] * 500 + [0.0006] * 100  # a busy machine, and a quiet one since
    chart = Chart.of(loss=[1.0] * 600, seconds=times)
    for step in (200, 250, 300, 350):
        chart.put(step, "data_seconds", 0.1)
    found = said("slow-data-loading", chart, "step-time-regression", first=200, last=599)
    assert ("74 % of each step pass before its forward pass begins" in found) == told, found
    assert all(weight < 0 for weight in found.values()) != told


@pytest.mark.parametrize(("mean", "end"), [
    (22.0, "a root mean square of 1065, and no normalization comes before the first layer"),
    (1000.0, "a root mean square of 1065 and a mean of 1000, and no normalization removes this common offset"),
])  # fmt: skip
def test_an_offset_is_named_only_if_there_is_one(mean, end):
    spread = math.sqrt(1065.0**2 - mean**2)
    chart = Chart.of(entry_rms=[1065.0] * 3, entry_absmax=[4e3] * 3, input_mean=[mean] * 3, input_std=[spread] * 3)
    assert f"inputs have {end}" in said("unnormalized-inputs", chart, "input-anomaly")


@pytest.mark.parametrize(("kinds", "start"), [
    (["Linear", "ReLU", "Linear"], "the model has its own forward(), which may divide or mask"),
    (["LSTM", "Linear"], "the model has layers of other kinds (LSTM), which may divide or mask"),
])  # fmt: skip
def test_what_may_divide_before_the_loss_is_named(kinds, start):
    chart = Chart.of(loss=[1.0] * 19 + [math.nan], context={"model": {"class": "Net"}})
    facts = {"modules.kinds": kinds, "loss.kind": "cross-entropy", "loss.reduction": "mean"}
    chart.add({"type": "facts", "step": 0, "facts": facts})
    assert f"{start} before the cross-entropy loss" in said("numeric-precision", chart, "nan-or-inf", first=19)


@pytest.mark.parametrize(("model", "passes"), [("Net", 0), ("Sequential, Sequential", 2)])
def test_no_forward_that_never_ran_is_said_to_divide(model, passes):
    """training_step() of a LightningModule may call the layers itself."""
    chart = Chart.of(loss=[1.0] * 19 + [math.nan], context={"model": {"class": model}})
    facts = {"modules.kinds": ["Linear", "ReLU"], "loss.kind": "mse", "loss.reduction": "mean", "loop.passes": passes}
    chart.add({"type": "facts", "step": 0, "facts": facts})
    told = said("numeric-precision", chart, "nan-or-inf", first=19)
    assert "the code that calls the layers may divide or mask before the mse loss" in told, told


def test_gradients_of_zero_are_not_called_neither_too_small_nor_too_large():
    chart = Chart.of(loss=[2.3] * 200, grad_norm=[0.1] * 200)
    chart.names = ("a.weight",)
    chart.add({"type": "tensors", "step": 0, "vitals": {"grad_norm": [0.1]}})
    words = "gradients are neither too small nor too large"
    assert words in said("label-noise-or-misalignment", chart, "overfitting", first=119, last=199)
    chart.episodes.append(symptom("no-gradient", 0, 198))
    assert words not in said("label-noise-or-misalignment", chart, "overfitting", first=119, last=199)


def test_a_rate_that_leapt_is_told_as_it_was_then():
    rates = [1e-3] * 200 + [0.2 - 1e-3 * step for step in range(100)]
    chart = Chart.of(loss=[2.0] * 200 + [7.0] * 100, lr=rates)
    told = said("lr-too-high", chart, "loss-divergence", first=201, last=299)
    assert "the learning rate had just jumped to 0.2, 200 times its highest value before" in told, told


@pytest.mark.parametrize(("left", "told"), [(["G.weight", "G.bias"], True), (["G.weight"], False)])
def test_a_player_that_none_of_the_optimizers_holds_is_named(left, told):
    chart = Chart.of(context={"model": {"class": "Net, Net"}, "optimizer": [{"class": "Adam"}] * 2})
    chart.names = ("G.weight", "G.bias", "D.weight")
    chart.add({"type": "facts", "step": 2, "facts": {"graph.not_in_optimizer": left}})
    texts = said("parameters-not-in-optimizer", chart, "frozen-weights")
    assert any("none of the 2 optimizers holds any parameter of G" in text for text in texts) == told, texts


def averaged(again, best):
    """A run that learns in its first epoch and is validated from step 62 on; `again`: samples seen twice at step 48."""
    chart = Chart.of(loss=[2.3] * 20 + [0.01] * 280, lr=[1e-3] * 300)
    for step in range(0, 300, 12):
        chart.put(step, "input_again", again if step == 48 else 0.3 if step > 62 else 0.0)
    for step, value in zip((62, 125, 188, 251), (2.32, 2.31, 2.3, best), strict=True):
        chart.put(step, "val_loss", value)
    return chart


@pytest.mark.parametrize(
    ("again", "best", "new"),
    [(0.0, 2.27, True), (0.3, 2.27, False), (0.0, 1.0, False)],
    ids=["all new", "seen twice already", "validation followed"],
)
def test_what_was_there_while_all_samples_were_new_is_not_memorization(again, best, new):
    texts = [
        said(cause, averaged(again, best), "validation-anomaly") for cause in ("memorization", "train-val-mismatch")
    ]
    assert ("the gap was there before any sample was seen twice: nothing was memorized yet" in texts[0]) == new
    assert ("the gap existed before training had seen any sample twice" in texts[1]) == new
    assert any("may have memorized" in text for text in texts[1]) == (again > 0)


def test_a_little_better_than_untrained_is_not_called_never_better():
    texts = said("memorization", averaged(0.0, 2.27), "validation-anomaly")
    assert "the best validation loss is 2.27, not much better than the 2.3 of an untrained model" in texts, texts


@pytest.mark.parametrize(("batches", "told"), [([7.0] * 16, False), ([float(step) for step in range(16)], True)])
def test_samples_that_the_loop_never_gave_are_not_counted(batches, told):
    context = {"model": {"trainable": 100_000}, "dataset_size": 2000, "batch_size": 16}
    chart = Chart.of(loss=[1.0] * 40, input_checksum=batches, context=context)
    texts = said("memorization", chart, "overfitting", "batch-anomaly")
    assert ("100,000 parameters for 2,000 samples" in texts) == told, texts


@pytest.mark.parametrize("divided", [False, True])
def test_a_sum_divided_by_a_count_is_not_called_a_sum(divided):
    chart = Chart.of(loss=[2.0, 1.0, 9.0])
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum", "loss.divided": divided}})
    texts = said("loss-misuse", chart, "gradient-explosion", first=2)
    assert any("the loss is a sum" in text for text in texts) is not divided, texts


@pytest.mark.parametrize(
    ("optimizer", "rate", "against"), [("SGD", 0.05, True), ("SGD", 5.0, False), ("AdamW", 0.05, False)]
)
def test_a_sum_makes_steps_long_that_are_right_for_its_mean(optimizer, rate, against):
    context = {"optimizer": [{"class": optimizer}], "batch_size": 32}
    chart = Chart.of(loss=[2.0, 1.0, 9.0], lr=[rate] * 3, context=context)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum"}})
    ((text, weight),) = [
        item for item in said("lr-too-high", chart, "loss-divergence", first=2).items() if "a sum" in item[0]
    ]
    assert (weight < 0) is against and ("32 times" in text) is against


@pytest.mark.parametrize(("other", "told"), [("input-anomaly", True), ("update-ratio-abnormal", False)])
def test_a_loss_that_breaks_at_once_was_not_led_there_by_long_steps(other, told):
    chart = Chart.of(loss=[2.0, 1.9, 1.8, math.nan], grad_norm=[1.0, 1.1, 0.9, math.inf])
    texts = said("lr-too-high", chart, "nan-or-inf", other, first=3)
    assert any("had risen before the first non-finite value" in text for text in texts) is told


@pytest.mark.parametrize("divided", [False, True])
def test_labels_that_are_all_ignored_are_named_whatever_the_reduction(divided):
    chart = Chart.of(target_classes=[0.0] * 3, loss=[0.0] * 3, grad_norm=[0.0] * 3)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.reduction": "sum", "loss.divided": divided}})
    texts = said("loss-misuse", chart, "no-gradient")
    assert [text.rpartition(", so that ")[2] for text in texts] == [
        "its mean is 0 / 0" if divided else "it is a sum of nothing"
    ]


@pytest.mark.parametrize(
    ("norm", "kind", "ignored"),
    [(0.0, "nll", True), (0.7, "cross-entropy", False), (math.nan, "cross-entropy", False), (0.0, "mse", False)],
)
def test_a_nan_that_reaches_no_gradient_is_that_of_labels_which_are_all_ignored(norm, kind, ignored):
    chart = Chart.of(loss=[2.0, 1.9, math.nan], grad_norm=[1.0, 1.1, norm], context={"model": {"class": "GPT"}})
    facts = {"loss.kind": kind, "loss.reduction": "mean", "loss.lint": [], "loss.hidden": False}
    facts["modules.kinds"] = ["Conv1D"]
    chart.add({"type": "facts", "step": 0, "facts": facts})
    texts = said("loss-misuse", chart, "nan-or-inf", first=2), said("numeric-precision", chart, "nan-or-inf", first=2)
    assert any("ignores all labels of a batch" in text for text in texts[0]) is ignored
    assert any("may divide or mask" in text for text in texts[1]) is not ignored, texts[1]
    assert not ignored or sum(texts[1].values()) < 0


@pytest.mark.parametrize("every", [1, 10, 100])
def test_a_norm_that_stays_high_up_to_the_nan_is_a_warning_sign_however_seldom_it_is_logged(every, tmp_path):
    steps = range(140)
    norms = [1.0 + 0.1 * (step % 3) for step in steps][:110] + [30.0 + step % 4 for step in steps][:10]
    rows = [f"{every * step},{2 - step / 100},{norm}" for step, norm in zip(steps, norms, strict=False)]
    rows += [f"{every * step},nan,nan" for step in steps[120:]]
    (tmp_path / "log.csv").write_text("\n".join(["step,loss,grad_norm", *rows]))
    report = diagnose(tmp_path / "log.csv")
    exploded = next(item for item in report.symptoms if item.name == "gradient-explosion")
    assert (exploded.first_step, exploded.last_step) == (110 * every, 119 * every)
    assert {item.symptoms for item in report.diagnoses} == {("gradient-explosion", "nan-or-inf")}
    assert not any("did not explode" in text for item in report.diagnoses for text in item.evidence)


@pytest.mark.parametrize(("every", "norms", "told"), [
    (1, True, "the loss neither spiked nor diverged, and gradients did not explode in the 50 steps before"),
    (10, False, "the loss neither spiked nor diverged in the 500 steps before"),
])  # fmt: skip
def test_what_did_not_happen_before_a_nan_is_said_with_the_span(every, norms, told):
    vitals = {"loss": [1.0] * 700} | ({"grad_norm": [1.0] * 700} if norms else {})
    chart = Chart.of(**vitals, context=LOG | {"logged_every": every})
    assert f"{told} the first non-finite value" in said("nan-in-data", chart, "nan-or-inf", first=700, last=720)
