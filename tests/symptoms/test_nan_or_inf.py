import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.examination import Examination
from torchdoctor.settings import Settings
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.nan_or_inf import NanOrInf

NAN, INF = float("nan"), float("inf")
NAMES = ["embed", "first", "second", "head"]


def chart(row=None, origin=None, **vitals):
    built = Chart()
    built.add({"type": "header", "step": 0, "tensors": NAMES})
    built.add({"type": "tensors", "step": 0, "vitals": {"grad_norm": [1.0, 1.0, 1.0, None]}})
    built.add({"type": "vitals", "step": 0, "vitals": {"loss": 2.0, "grad_norm": 1.0}})
    if origin:
        built.add({"type": "origin", "step": 1, "module": "block.3", "kind": origin})
    if row:
        built.add({"type": "tensors", "step": 1, "vitals": {"grad_norm": row}})
    built.add({"type": "vitals", "step": 1, "vitals": {"loss": 2.0, "grad_norm": 1.0} | vitals})
    return built


SICK = {
    "loss is NaN": chart(loss=NAN),
    "loss is infinity": chart(loss=INF),
    "loss is -infinity": chart(loss=-INF),
    "gradients are not finite although the loss is (2)": chart(grad_norm=NAN),
    "gradients are not finite although": chart(grad_nonfinite=3),
}


@pytest.mark.parametrize("text", SICK)
def test_fires(text):
    symptom = NanOrInf().check(SICK[text])
    assert symptom.severity == "critical"
    assert text in symptom.message


HEALTHY = {
    "no readings": Chart(),
    "finite": chart(),
    "the scaler skipped it": chart(grad_norm=INF, skipped=1),
    "an earlier NaN": Chart.of(loss=[1.0, NAN, 1.0]),
    "a large number": chart(loss=1e38),
    "a tensor that never had a gradient": chart(row=[1.0, 1.0, 1.0, None]),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_stays_silent(name):
    assert NanOrInf().check(HEALTHY[name]) is None


def test_a_skipped_step_whose_loss_is_not_finite_is_a_warning():
    assert NanOrInf().check(chart(loss=NAN, grad_norm=NAN, skipped=1)).severity == "warning"


def test_the_tensor_nearest_the_loss_comes_first():
    symptom = NanOrInf().check(chart(row=[NAN, NAN, 1.0, None], grad_norm=NAN, grad_nonfinite=2))
    assert symptom.where == ("first", "embed")
    assert "2 of 3 gradients are affected, first nearest the loss" in symptom.message


def test_all_of_them_means_the_forward_pass():
    symptom = NanOrInf().check(chart(row=[NAN, NAN, NAN, INF], loss=NAN, grad_norm=NAN, grad_nonfinite=4))
    assert symptom.where == ()
    assert "came from the loss or the forward pass" in symptom.message


@pytest.mark.parametrize(("loss", "said"), [(2.0, "forward pass is sound"), (1e30, "came from the loss")])
def test_all_of_them_beside_a_sound_loss_means_the_backward_pass(loss, said):
    symptom = NanOrInf().check(chart(row=[NAN, NAN, NAN, INF], loss=loss, grad_norm=NAN, grad_nonfinite=4))
    assert symptom.where == () and said in symptom.message


def test_all_that_there_are_as_well():
    symptom = NanOrInf().check(chart(row=[NAN, NAN, NAN, None], loss=NAN, grad_norm=NAN, grad_nonfinite=3))
    assert symptom.where == () and "all 3 gradients are not finite" in symptom.message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("input", "look at the data"),
        ("weights", "an earlier step broke them"),
        ("output", "made it from finite inputs"),
    ],
)
def test_the_forward_pass_names_the_module(kind, text):
    symptom = NanOrInf().check(chart(loss=NAN, origin=kind))
    assert symptom.where == ("block.3",)
    assert text in symptom.message


def test_weights():
    built = chart()
    built.add({"type": "tensors", "step": 2, "vitals": {"weight_norm": [1.0, math.inf, NAN, 1.0]}})  # one is frozen
    symptom = NanOrInf().check(built)
    assert (symptom.where, symptom.severity) == (("first",), "critical")
    assert "1 weight tensor is not finite" in symptom.message


@pytest.mark.parametrize(("losses", "step"), [([1.0, NAN], ": an earlier step broke them"), ([NAN, NAN], "")])
@pytest.mark.parametrize(
    ("broken", "what"), [(4, "4 weight tensors were not finite by step 1"), (1, "a were not finite")]
)
def test_an_earlier_step_is_blamed_only_if_weights_were_finite_before(losses, step, broken, what):
    built = Chart.of(loss=losses)
    built.add({"type": "origin", "step": 1, "module": "a", "kind": "weights", "broken": broken})
    assert NanOrInf().check(built).message.endswith(what + step)


@pytest.mark.parametrize(("losses", "severity"), [([1.0, NAN, NAN], "warning"), ([1.0, NAN, NAN, NAN], "critical")])
def test_a_loss_that_is_never_finite_is_not_the_scalers_to_mend(losses, severity):
    found = NanOrInf().check(Chart.of(loss=losses, skipped=[0, *[1] * (len(losses) - 1)]))
    assert found.severity == severity


@pytest.mark.parametrize(
    ("grad_norm", "norms", "words"),
    [
        ([1.0] * 12, 1.0, "the loss of step 12 was the first"),
        ([1.0] * 11 + [INF], 1.0, "the gradients of step 11 were the first"),
        ([1.0] * 12, INF, "a.weight was not finite before the loss"),
    ],
    ids=["the loss came first", "a gradient did", "weights did"],
)
def test_weights_that_the_step_of_a_bad_loss_broke_are_not_what_came_first(grad_norm, norms, words):
    built = Chart.of(loss=[1.0] * 12 + [NAN] * 3, grad_norm=[*grad_norm, INF, INF, INF])
    built.names = ("a.weight",)
    built.add({"type": "tensors", "step": 8, "vitals": {"weight_norm": [norms]}})
    built.add({"type": "origin", "step": 14, "module": "a", "kind": "weights"})
    assert words in NanOrInf().check(built).message


EIGHT = [f"{part}.{kind}" for part in ("a", "b", "c", "d") for kind in ("weight", "bias")]


def searched(**origin):
    """A run of eight weights whose loss and gradients are not finite at step 12, and what a search found at step 14."""
    built = Chart.of(loss=[1.0] * 12 + [NAN] * 2, grad_norm=[1.0] * 12 + [INF] * 2)
    built.add({"type": "header", "step": 0, "tensors": EIGHT})
    built.add({"type": "tensors", "step": 12, "vitals": {"grad_norm": [INF] * 8}})
    built.add({"type": "origin", "step": 14, "module": "a", "kind": "weights", **origin})
    built.add({"type": "vitals", "step": 14, "vitals": {"loss": NAN, "grad_norm": INF}})
    return NanOrInf().check(built)


def test_weights_that_an_update_broke_name_no_place():
    spread = searched(tensors=EIGHT, broken=8, resting=0)
    assert spread.where == () and "the loss of step 12 was the first" in spread.message


@pytest.mark.parametrize(
    "found",
    [{"tensors": ["d.bias"], "broken": 1, "resting": 0}, {"tensors": ["d.bias"], "broken": 8, "resting": 1}],
    ids=["the others are finite, so no step was made", "it does not learn"],
)
def test_a_weight_that_no_update_broke_is_where_it_began(found):
    symptom = searched(**found)
    assert symptom.where == ("d.bias",) and "d.bias was not finite" in symptom.message


def test_numbers_of_a_search_that_are_none_are_passed_over():
    assert searched(tensors="all", broken="many", resting=None).where == ()


def test_weights_that_were_broken_before_the_loss_come_first_and_later_ones_are_not_added():
    built = Chart.of(loss=[1.0] * 12 + [NAN] * 2, grad_norm=[1.0] * 12 + [INF] * 2)
    built.add({"type": "header", "step": 0, "tensors": EIGHT})
    built.add({"type": "tensors", "step": 8, "vitals": {"weight_norm": [1.0] * 7 + [INF]}})
    built.add({"type": "tensors", "step": 14, "vitals": {"weight_norm": [INF] * 8}})
    assert NanOrInf().check(built).where == ("d.bias",)
    late = Chart.of(loss=[1.0] * 12 + [NAN] * 2)
    late.add({"type": "header", "step": 0, "tensors": EIGHT})
    late.add({"type": "tensors", "step": 14, "vitals": {"weight_norm": [INF] * 8}})
    assert NanOrInf().check(late).where == ()


def test_a_module_whose_name_is_a_number_is_called_one():
    built = chart(loss=NAN)
    built.add({"type": "origin", "step": 1, "module": "0", "kind": "output"})
    assert "module 0 made it from finite inputs" in NanOrInf().check(built).message


def test_a_batch_that_the_loop_passed_over_is_no_end():
    chart = Chart.of(loss=[1.0] * 30, grad_norm=[1.0] * 30)
    chart.add({"type": "vitals", "step": 30, "vitals": {"loss": math.nan, "passed_over": 1.0}})
    found = NanOrInf().check(chart)
    assert found.severity == "warning" and "made no update with it" in found.message
    chart.add({"type": "vitals", "step": 30, "vitals": {"loss": 1.0, "grad_norm": 1.0}})
    assert NanOrInf().check(chart) is None


UPDATE = (
    "the gradients of step 3 were the first non-finite values, and by step 5 their update had broken 6 weight tensors"
)


@pytest.mark.parametrize(
    ("vital", "end"),
    [({}, UPDATE), ({"skipped": 1.0}, "6 weight tensors were not finite by step 5: an earlier step broke them")],
    ids=["the step was made", "the scaler skipped it"],
)
def test_weights_that_the_step_of_the_finding_broke_were_not_broken_by_an_earlier_one(vital, end):
    built = Chart.of(loss=[1.0, 1e3, 1e9], grad_norm=[1.0, 1e4, 1e12])
    built.add({"type": "origin", "step": 5, "module": "a", "kind": "weights", "broken": 6})
    built.add({"type": "vitals", "step": 3, "vitals": {"loss": 7e31, "grad_norm": INF, **vital}})
    if vital:
        built.add({"type": "vitals", "step": 4, "vitals": {"loss": NAN, "grad_norm": NAN}})
    assert NanOrInf().check(built).message.endswith(end)


def test_other_losses_count_if_they_are_not_finite_three_times_in_a_row():
    losses = {"d_loss": [1.4, 1.3, NAN, NAN, NAN], "g_loss": [0.7, NAN, 0.8, NAN, NAN]}
    found = NanOrInf().check(Chart.of(**losses))
    assert (found.severity, found.message, found.first_step) == ("critical", "d_loss is NaN", 2)
    assert NanOrInf().check(Chart.of(loss=[2.0, 1.9, 1.8, 1.7, 1.6], **losses)).severity == "warning"
    assert NanOrInf().check(Chart.of(**{name: values[:4] for name, values in losses.items()})) is None
    assert NanOrInf().check(Chart.of(loss_scale=[INF] * 5, guess_loss=[NAN] * 5, val_loss=[NAN] * 5)) is None


def test_the_players_of_a_live_run_are_watched_step_by_step_and_at_once():
    values = [1.4, NAN, 1.2] * 20 + [NAN] * 80 + [1.0] * 40
    at_once, in_turn = Examination(Settings()), Examination(Settings())
    steps = np.arange(len(values))
    at_once.take_stretch(Stretch(steps, {"d_loss": np.array(values), "g_loss": np.full(len(values), 0.7)}))
    for step, value in enumerate(values):
        in_turn.take({"type": "vitals", "step": step, "vitals": {"d_loss": value, "g_loss": 0.7}})
    assert at_once.report().to_dict()["symptoms"] == in_turn.report().to_dict()["symptoms"]
    (found,) = [item for item in in_turn.report().symptoms if item.name == "nan-or-inf"]
    assert (found.severity, found.first_step, found.last_step) == ("critical", 60, 139)


def watched(start=(1.0, 1.0), absmax=(2.0, INF), loss=NAN, entry=1.0, origin=None):
    """A run whose first step is not finite."""
    built = Chart()
    built.add({"type": "header", "step": 0, "tensors": ["a.weight", "b.weight"]})
    built.add({"type": "facts", "step": 0, "facts": {"modules.names": ["a", "scale"]}})
    built.add({"type": "tensors", "step": 0, "vitals": {"grad_norm": [INF, INF], "start_norm": list(start)}})
    built.add({"type": "modules", "step": 0, "vitals": {"act_absmax": list(absmax)}})
    built.add({"type": "vitals", "step": 0, "vitals": {"loss": loss, "grad_norm": NAN, "entry_absmax": entry}})
    if origin is not None:
        known = {"module": "a", "kind": "weights", "broken": 2, "undefined": origin}
        built.add({"type": "origin", "step": 1, **known})
    return built


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({}, ("scale",), "the output of scale was the first value in the forward pass that was not finite"),
        ({"entry": NAN}, (), "all 2 gradients are not finite"),
        ({"start": (1.0, INF)}, ("b.weight",), "b.weight was not finite before the first watched step"),
        ({"absmax": (2.0, 3.0)}, (), "all 2 gradients are not finite"),
        (
            {"absmax": (2.0, 3.0), "origin": {"scale": "log"}},
            (),
            "the loss of step 0 was the first non-finite value, and by step 1 its update had broken the weights: check "
            "its batch, what enters scale, whose log is undefined for some inputs",
        ),
        (
            {"absmax": (2.0, 3.0), "origin": {"scale": "norm"}, "loss": 2.0},
            (),
            "check what enters scale, whose norm has no finite derivative for some inputs",
        ),
        ({"absmax": (2.0, 3.0), "origin": {"scale": "log", "b": "log"}}, (), "the weights: check its batch"),
    ],
)
def test_what_the_first_step_shows(changes, where, words):
    found = NanOrInf().check(watched(**changes))
    assert found.where == where and words in found.message
