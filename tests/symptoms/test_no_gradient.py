"""no-gradient."""

import math

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.no_gradient import NoGradient, fed_with_nothing

NAN = math.nan
NAMES = ("encoder.weight", "encoder.bias", "head.weight")

SICK = {
    "everything": ({"graph.detached": True}, [], "critical"),
    "a module that runs": ({"graph.cut": ["encoder.weight"], "graph.absent": ["encoder.weight"]}, [], "warning"),
    "exactly zero from the start": ({}, [[0.0, 0.0, 1.0]] * 8, "warning"),
    "all exactly zero": ({}, [[0.0, 0.0, 0.0]] * 6, "critical"),
}
HEALTHY = {
    "nothing known": ({}, []),
    "all there": ({"graph.detached": False, "graph.cut": [], "graph.absent": []}, [[1.0, 1.0, 1.0]] * 6),
    "zero at the first step only": ({}, [[0.0, 0.0, 1.0]] + [[0.1, 0.1, 1.0]] * 6),
    "zero now and then": ({}, [[0.0, 0.1, 1.0], [0.1, 0.1, 1.0]] * 6),
    "too few samples": ({}, [[0.0, 0.0, 1.0]] * 4),
    "a term that has no weight in the first steps": ({}, [[0.0, 0.0, 1.0]] * 6),
    "a bias before a normalization": ({}, [[1.0, 0.0, 1.0]] * 6),
    "biases by item in a table of width 1": (
        {"modules.names": ["encoder"], "modules.kinds": ["Embedding"], "modules.widths": [1]},
        [[0.0, 1.0, 1.0]] * 6,
    ),
    "frozen": ({}, [[NAN, NAN, 1.0]] * 6),
    "converged to zero, the start forgotten": ({}, [[1.0, 1.0, 1.0]] + [[0.0, 0.0, 0.0]] * 64),
}


def chart(facts, rows):
    built = Chart()
    built.add({"type": "header", "step": 0, "tensors": list(NAMES)})
    built.add({"type": "facts", "step": 2, "facts": facts})
    for step, row in enumerate(rows):
        built.add({"type": "tensors", "step": 10 * step, "vitals": {"grad_norm": row}})
    return built


@pytest.mark.parametrize(("facts", "rows", "severity"), SICK.values(), ids=SICK)
def test_fires(facts, rows, severity):
    assert NoGradient().check(chart(facts, rows)).severity == severity


@pytest.mark.parametrize(("facts", "rows"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(facts, rows):
    assert NoGradient().check(chart(facts, rows)) is None


@pytest.mark.parametrize("steps", [8, 12])
def test_steps_are_not_called_samples(steps):
    message = NoGradient().check(chart({}, [[0.0, 0.0, 1.0]] * steps)).message
    assert message.endswith(f"is exactly zero at each of the {steps} steps checked")


def test_a_bias_that_learns_beside_a_weight_that_does_not_says_what_enters():
    assert "all zeros" in NoGradient().check(chart({}, [[0.0, 0.3, 1.0]] * 8)).message
    assert "all zeros" not in NoGradient().check(chart({}, [[0.0, 0.0, 1.0]] * 8)).message  # dead, or cut off


def mixture(chosen, scores=4, step=80):
    built = Chart()
    names = ["gate.weight", *(f"experts.{index}.weight" for index in range(4))]
    built.add({"type": "header", "step": 0, "tensors": names})
    facts = {"modules.names": ["gate", "experts.0"], "modules.widths": [scores, 8], "graph.absent": names[1 + chosen :]}
    built.add({"type": "facts", "step": 2, "facts": facts})
    built.put(step, "loss", 1.0)
    return NoGradient().check(built)


def test_experts_that_are_never_chosen_are_a_warning():
    assert mixture(1).severity == "warning"
    assert "of 4 experts that a layer scores, only 1 has ever been chosen" in mixture(1).message
    assert mixture(1, step=48).severity == "warning"  # that is a close look
    assert mixture(1, step=23).severity == "info"  # they may still be
    assert mixture(3).severity == "info"
    assert mixture(1, scores=7).severity == "info"  # tasks, languages: nothing chooses among them
    assert mixture(4) is None


def test_what_is_not_used_is_a_note():
    found = NoGradient().check(chart({"graph.absent": ["aux.weight"], "graph.cut": []}, []))
    assert (found.severity, found.where, found.first_step) == ("info", ("aux.weight",), 2)


CUT = {
    "the trunk is cut off in the middle": ([math.nan, 0.3], 200, {}, True),
    "a head that is not asked any more": ([0.2, math.nan], 200, {}, False),
    "frozen on purpose": ([math.nan, 0.3], 200, {"graph.frozen_share": 0.8}, False),
    "for a little while": ([math.nan, 0.3], 290, {}, False),
    "from the first samples on": ([math.nan, 0.3], 50, {}, False),
    "no optimizer holds it any more": ([math.nan, 0.3], 200, {"graph.not_in_optimizer": ["trunk.weight"]}, False),
}


@pytest.mark.parametrize(("late", "since", "facts", "fires"), CUT.values(), ids=CUT)
def test_first_layers_that_have_no_gradient_any_more(late, since, facts, fires):
    built = Chart.of(context={"optimizer": [{"class": "Adam"}]})
    built.names = ("trunk.weight", "head.weight")
    built.add({"type": "facts", "step": 0, "facts": facts})
    for step in range(0, 325, 25):
        built.add({"type": "tensors", "step": step, "vitals": {"grad_norm": late if step > since else [0.2, 0.3]}})
    found = NoGradient().check(built)
    assert (found is not None) == fires
    assert not fires or (found.severity, found.first_step, found.where) == ("warning", 225, ("trunk.weight",))


@pytest.mark.parametrize(("looks", "fires"), [(1, False), (2, True)])
def test_two_looks_without_a_gradient_are_enough(looks, fires):
    built = Chart.of(context={"optimizer": [{"class": "Adam"}]})
    built.names = ("trunk.weight", "head.weight")
    for step in range(0, 25 * (8 + looks), 25):
        row = [math.nan, 0.3] if step >= 200 else [0.2, 0.3]
        built.add({"type": "tensors", "step": step, "vitals": {"grad_norm": row}})
    found = NoGradient().check(built)
    assert (found is not None) == fires
    assert not fires or (found.severity, found.first_step) == ("warning", 200)


def test_players_who_take_turns_are_not_cut_off():
    built = Chart.of(context={"optimizer": [{"class": "Adam"}]})
    built.names = ("first.weight", "second.weight")
    for step in range(0, 400, 25):
        row = [math.nan, 0.3] if step // 100 % 2 else [0.2, math.nan]
        built.add({"type": "tensors", "step": step, "vitals": {"grad_norm": row}})
    assert NoGradient().check(built) is None


@pytest.mark.parametrize(("norm", "nothing_enters"), [(0.0, True), (float("nan"), False)], ids=["zero", "none"])
def test_a_weight_without_any_gradient_is_not_fed_with_nothing(norm, nothing_enters):
    chart = Chart()
    chart.names = ("user.weight", "user.bias")
    chart.add({"type": "tensors", "step": 0, "vitals": {"grad_norm": [norm, 0.3]}})
    assert fed_with_nothing(chart, ["user.weight"]) is nothing_enters


@pytest.mark.parametrize(("scale", "cut"), [(1e-9, False), (0.0, False), (1024.0, True), (None, True)])
def test_gradients_that_a_collapsed_loss_scale_rounds_to_zero_are_not_cut_off(scale, cut):
    built = Chart.of(loss=[1.0] * 9 + [0.5] * 30, grad_norm=[3.0] * 9 + [0.0] * 30)
    if scale is not None:
        built.put(38, "loss_scale", scale)
    assert (NoGradient().check(built) is not None) == cut
