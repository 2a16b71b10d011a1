"""frozen-weights."""

import math

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.frozen_weights import FrozenWeights

NAN = math.nan
NAMES = ("a.weight", "b.weight", "c.weight", "head.weight")
ALL = [1.0] * 4
MOVING = [1e-3] * 4

SICK = {
    "left out in the middle": ({"graph.not_in_optimizer": ["b.weight"]}, [1.0, NAN, 1.0, 1.0], [], {}),
    "head left out": ({"graph.not_in_optimizer": ["head.weight"]}, [1.0, 1.0, 1.0, NAN], [], {}),
    "first layer left out": ({"graph.not_in_optimizer": ["a.weight"]}, [NAN, 1.0, 1.0, 1.0], [], {}),
    "a plain list": ({"graph.not_in_model": ["blocks"]}, ALL, [], {}),
    "a criterion's own": ({"graph.criterion_left_out": ["loss_fn.centres"]}, ALL, [], {}),
    "frozen for the other's turn, and never thawed": (
        {"graph.resting": {"tensors": ["a.weight"], "since": 0, "frozen": True}},
        ALL,
        [],
        {},
    ),
    "frozen in the middle": ({"graph.frozen": ["b"]}, ALL, [MOVING] * 2, {}),
    "rounded away": ({}, ALL, [MOVING] * 4, {"lr": 1e-3, "update_lost": 0.99}),
    "pushed and not moved": ({}, ALL, [[0.0] * 4] * 4, {"lr": 1e-3}),
    "most not moved": ({}, ALL, [[0.0, 0.0, 0.0, 1e-3]] * 4, {"lr": 1e-3}),
    "moved, and does not any more": ({}, ALL, [MOVING] * 4 + [[0.0] * 4] * 6, {"lr": 1e-3}),
}
HEALTHY = {
    "nothing known": ({}, ALL, [], {}),
    "all held": ({"graph.not_in_optimizer": [], "graph.not_in_model": [], "graph.frozen": []}, ALL, [MOVING] * 6, {}),
    "most of it frozen, as for LoRA": ({"graph.frozen": [], "graph.frozen_share": 0.97}, ALL, [], {}),
    "some rounded away": ({}, ALL, [MOVING] * 6, {"lr": 1e-3, "update_lost": 0.7}),
    "moving": ({}, ALL, [MOVING] * 6, {"lr": 1e-3}),
    "one slice among units that rest": ({}, ALL, [[0.0, 1e-3, 1e-3, 1e-3]] * 6, {"lr": 1e-3}),
    "learning rate zero": ({}, ALL, [[0.0] * 4] * 6, {"lr": 0.0}),
    "a group at rate zero": ({}, ALL, [[0.0, 0.0, 1e-3, 1e-3]] * 6, {"lr": 1e-3, "lr/1": 0.0}),
    "the scaler skips": ({}, ALL, [[0.0] * 4] * 6, {"lr": 1e-3, "skipped": 1.0}),
    "moved at one of the samples": ({}, ALL, [[0.0] * 4] * 3 + [MOVING], {"lr": 1e-3}),
    "came to rest by smaller and smaller steps": (
        {},
        ALL,
        [[10.0**-power] * 4 for power in range(3, 9)] + [[0.0] * 4] * 6,
        {"lr": 1e-3},
    ),
}


def chart(facts, weights, ratios, vitals):
    built = Chart()
    built.add({"type": "header", "step": 0, "tensors": list(NAMES)})
    built.add({"type": "facts", "step": 2, "facts": facts})
    for step, row in enumerate(ratios or [[NAN] * 4]):
        built.add({"type": "vitals", "step": 10 * step, "vitals": vitals})
        rows = {"grad_norm": [1.0] * 4, "weight_norm": weights, "update_ratio": row}
        built.add({"type": "tensors", "step": 10 * step, "vitals": rows})
    return built


@pytest.mark.parametrize("case", SICK.values(), ids=SICK)
def test_fires(case):
    assert FrozenWeights().check(chart(*case)).severity == "warning"


@pytest.mark.parametrize("case", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(case):
    assert FrozenWeights().check(chart(*case)) is None


@pytest.mark.parametrize(("growth", "fires"), [(0.01, False), (0.0, True)])
def test_what_grows_moves_wherever_it_was_looked_at(growth, fires):
    """Ratios are of a part of a large table: of rows that come one by one, others may have had their turn."""
    built = chart({}, ALL, [], {"lr": 1e-3})
    for number in range(6):
        rows = {"grad_norm": ALL, "weight_norm": [1.0 + growth * number] * 4, "update_ratio": [0.0] * 4}
        built.add({"type": "tensors", "step": 20 + 10 * number, "vitals": rows})
    assert (FrozenWeights().check(built) is not None) == fires


def test_an_optimizer_of_the_head_alone_is_a_probe():
    facts = {"graph.not_in_optimizer": ["a.weight", "b.weight", "c.weight"]}
    assert FrozenWeights().check(chart(facts, [NAN, NAN, NAN, 1.0], [], {})).severity == "info"


@pytest.mark.parametrize(
    ("fresh", "step", "severity"), [(1.0, 320, "warning"), (1.0, 50, "warning"), (0.0, 320, "info")]
)
def test_a_probe_of_what_was_never_trained_is_a_warning(fresh, step, severity):
    facts = {"graph.not_in_optimizer": ["a.weight", "b.weight", "c.weight"]}
    built = chart(facts, [NAN, NAN, NAN, 1.0], [], {"frozen_fresh": fresh})
    built.put(step, "loss", 1.0)
    assert FrozenWeights().check(built).severity == severity


@pytest.mark.parametrize(
    ("fresh", "share", "step", "severity"),
    [
        (1.0, 0.9, 320, "warning"),
        (1.0, 0.4, 320, "warning"),
        (1.0, 0.9, 60, "info"),
        (0.0, 0.9, 320, None),
        (1.0, 0.2, 320, None),
    ],
)
def test_a_frozen_trunk_that_was_never_trained(fresh, share, step, severity):
    built = chart({"graph.frozen_share": share}, ALL, [MOVING] * 6, {"lr": 1e-3, "frozen_fresh": fresh})
    built.put(step, "loss", 1.0)
    found = FrozenWeights().check(built)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("last", "severity"), [(0.6, "info"), (1.0, "warning")])
def test_one_layer_of_random_features_is_enough_where_the_loss_falls(last, severity):
    built = chart({"graph.frozen_share": 0.7}, ALL, [MOVING], {"frozen_fresh": 1.0, "lr": 1e-3})
    built.add({"type": "tensors", "step": 20, "vitals": {"grad_norm": [NAN, NAN, 1.0, 1.0]}})
    for step in range(400):
        built.put(step, "loss", max(1.0 - 0.01 * step, last))
    assert FrozenWeights().check(built).severity == severity


@pytest.mark.parametrize(
    ("behind", "tensors", "fresh", "step", "severity"),
    [
        (True, 3, 1.0, 48, "warning"),
        (True, 3, 1.0, 16, "info"),
        (True, 3, 0.0, 48, None),
        (False, 60, 1.0, 48, "warning"),
        (False, 60, 0.0, 48, None),
        (False, 20, 1.0, 48, "info"),
    ],
    ids=["behind", "too early", "trained before", "deep", "deep, trained before", "random features"],
)
def test_a_new_trunk_that_no_method_leaves_as_it_is(behind, tensors, fresh, step, severity):
    built = Chart.of(loss=[1.0] * (step + 1), frozen_fresh=[fresh])
    built.names = tuple(f"{place}.weight" for place in range(tensors + 1))
    built.add({"type": "tensors", "step": step, "vitals": {"grad_norm": [NAN] * tensors + [1.0]}})
    facts = {"graph.frozen": [], "graph.frozen_share": 0.9971, "graph.frozen_behind": behind}
    built.add({"type": "facts", "step": 0, "facts": facts})
    found = FrozenWeights().check(built)
    assert (found and found.severity) == severity
    assert found is None or "99.7 %" in found.message


@pytest.mark.parametrize(("fall", "fires"), [(0.0, True), (0.002, False)])
def test_most_steps_rounded_away_matter_where_nothing_is_learnt(fall, fires):
    losses = [2.5 - fall * step + 0.02 * (-1) ** step for step in range(200)]
    built = Chart.of(loss=losses, lr=[2e-5] * 200, update_lost=[0.9] * 6)
    assert (FrozenWeights().check(built) is not None) == fires


def test_what_has_learnt_for_a_while_may_rest():
    resting = {"graph.resting": {"tensors": ["a.weight"], "since": 400, "frozen": True}}
    assert FrozenWeights().check(chart(resting, ALL, [], {})).severity == "info"


EARLY = {
    "most steps are lost from the start on": ([0.93, 0.9, 0.9, 0.87, 0.84, 0.8, 0.74, 0.63, 0.77], [0.02] * 80, True),
    "more and more are lost, as steps become shorter": (
        [0.05, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.7],
        [0.02] * 80,
        False,
    ),
    "two in three": ([0.67] * 9, [0.02] * 80, False),
    "a warm-up": ([0.99, 0.98, 0.97, 0.95, 0.9, 0.8, 0.8, 0.7, 0.65], [2e-4 * (1 + step) for step in range(80)], False),
    "too early to say": ([0.93, 0.9, 0.9, 0.87, 0.84, 0.8, 0.8, 0.8], [0.02] * 40, False),
}


@pytest.mark.parametrize(("lost", "rates", "fires"), EARLY.values(), ids=EARLY)
def test_steps_that_are_rounded_away_from_the_start_on(lost, rates, fires):
    built = Chart.of(lr=rates, loss=[2 * 0.99**step for step in range(len(rates))])
    for step, share in zip((0, 1, 2, 4, 8, 16, 23, 38, 73), lost, strict=False):
        built.put(step, "update_lost", share)
    found = FrozenWeights().check(built)
    assert (found is not None) == fires
    assert not fires or (found.first_step, found.severity) == (0, "warning")


@pytest.mark.parametrize(("samples", "severity"), [(1, None), (2, "critical")])
def test_a_copy_of_the_model_is_trained(samples, severity):
    found = FrozenWeights().check(chart({"graph.copied": {"tensors": 4, "samples": samples}}, ALL, [MOVING] * 6, {}))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("shapes", "severity"), [([], None), ([[64, 384]], "warning")])
def test_a_layer_that_is_made_inside_forward(shapes, severity):
    found = FrozenWeights().check(chart({"graph.made_anew": shapes}, ALL, [MOVING] * 6, {}))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("optimizers", "severity"), [(1, "warning"), (2, "info")])
def test_the_only_optimizer_has_nothing_to_do(optimizers, severity):
    built = chart({"graph.resting": {"tensors": ["a.weight"], "since": 200, "frozen": False}}, ALL, [MOVING] * 6, {})
    built.context["optimizer"] = [{"class": "SGD"}] * optimizers
    assert FrozenWeights().check(built).severity == severity


def test_what_an_optimizer_held_until_lately_was_not_left_out_on_purpose():
    facts = {"graph.not_in_optimizer": ["a.weight", "b.weight", "c.weight"]}
    rows = [[0.001] * 4] * 5 + [[NAN, NAN, NAN, 0.001]] * 3
    assert FrozenWeights().check(chart(facts, [NAN, NAN, NAN, 1.0], rows, {})).severity == "warning"


TRUNK, HEAD = ("0.weight", "0.bias", "2.weight", "2.bias"), ("4.weight", "4.bias")
TRUNK_FIRST, HEAD_FIRST = {"lr": 0.0, "lr/1": 1e-3}, {"lr": 1e-3, "lr/1": 0.0}


def two_groups(rates, *, fresh=1.0, last=1.0, steps=400, groups=(), optimizers=(), moves=0.0, late=0):
    """A trunk whose updates are `moves`, and a head that learns; the learning rates begin at step `late`."""
    built = Chart.of(loss=[1.0] * (steps - 1) + [last] * 128, weights_fresh=[fresh])
    built.names, built.groups = TRUNK + HEAD, list(groups)
    built.context["optimizer"] = [{"class": "AdamW", "groups": size} for size in optimizers]
    facts = {
        "modules.names": ["0", "1", "2", "3", "4"],
        "modules.kinds": ["Linear", "ReLU", "Linear", "ReLU", "Linear"],
    }
    built.add({"type": "facts", "step": 0, "facts": facts})
    for number, step in enumerate(range(0, steps, 8)):
        built.add({"type": "vitals", "step": step, "vitals": {"lr": rates["lr"]} if step < late else rates})
        rows = {"grad_norm": [1.0] * 6, "update_ratio": [moves, NAN, moves, moves, 0.01, NAN]}
        rows["weight_norm"] = [1.0, 0.0, 1.0, 1.0, 1.0 + number, 0.1 * number]  # biases begin at zero
        built.add({"type": "tensors", "step": step, "vitals": rows})
    return built


@pytest.mark.parametrize(("rates", "number"), [(TRUNK_FIRST, 0), (HEAD_FIRST, 1)], ids=["first", "second"])
def test_a_new_trunk_in_a_group_at_learning_rate_zero(rates, number):
    found = FrozenWeights().check(two_groups(rates))
    assert (found.severity, found.first_step, found.where) == ("warning", 0, TRUNK)
    assert f"parameter group {number} has had a learning rate of 0 since the first step: 0.weight" in found.message


def test_a_group_is_called_by_its_optimizer_if_there_are_several():
    assert (
        "parameter group 0 of optimizer 1 has"
        in FrozenWeights().check(two_groups(HEAD_FIRST, optimizers=(1, 1))).message
    )


@pytest.mark.parametrize("rates", [TRUNK_FIRST, HEAD_FIRST], ids=["first", "second"])
@pytest.mark.parametrize(
    ("told", "severity"),
    [
        ({"fresh": 0.3}, None),
        ({"fresh": math.nan}, None),
        ({"groups": [{"initial_lr": 1e-3}] * 2}, None),
        ({"groups": [{"initial_lr": 0.0}] * 2}, "warning"),
        ({"moves": 1e-4}, None),
        ({"steps": 160}, "info"),
        ({"last": 0.01}, "info"),
    ],
    ids=["trained before", "unknown", "a scheduler raises it", "it does not", "moved", "head first", "a reservoir"],
)
def test_what_is_held_at_learning_rate_zero_on_purpose(rates, told, severity):
    found = FrozenWeights().check(two_groups(rates, **told))
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    "built",
    [
        two_groups({"lr": 0.0, "lr/1": 0.0}),
        two_groups(HEAD_FIRST, late=200),
        two_groups({"lr": 1e-3}),
    ],
    ids=["all groups at zero", "it stepped at first", "none at zero"],
)
def test_a_group_that_is_not_the_only_one_at_rest_or_was_not_always(built):
    found = FrozenWeights().check(built)
    assert found is None or "learning rate of 0" not in found.message
