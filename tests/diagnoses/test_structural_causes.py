"""Causes that rest on the structure of the loop: each is certain of its own fact, and acquitted by its absence."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem, rank
from torchdoctor.diagnoses.cause import CERTAIN
from torchdoctor.records import Symptom
from torchdoctor.treatments.prescription import prescribe

BY_NAME = {cause.name: cause for cause in CAUSES}


def weight(name, symptom, facts, vitals=None, groups=()):
    chart = Chart.of(**(vitals or {}))
    chart.groups = list(groups)
    chart.add({"type": "facts", "step": 4, "facts": facts})
    problem = Problem((Symptom(symptom, "", "warning", 0.9, 4, 100, message="seen"),))
    return sum(item.weight for item in BY_NAME[name]().weigh(chart, problem))


FACTS = {
    "missing-zero-grad": (
        "gradient-explosion",
        {"zeroing.kept": [3], "zeroing.cleared": [0]},
        {"zeroing.kept": [0], "zeroing.cleared": [3]},
    ),
    "accumulation-error": (
        "gradients-not-cleared",
        {"zeroing.between_backwards": [3], "zeroing.backwards": [4]},
        {"zeroing.between_backwards": [0], "zeroing.backwards": [1]},
    ),
    "parameters-not-in-optimizer": (
        "not-learning",
        {"graph.not_in_optimizer": ["head.weight"], "graph.not_in_model": [], "graph.stale": []},
        {"graph.not_in_optimizer": [], "graph.not_in_model": []},
    ),
    "stale-parameters": (
        "frozen-weights",
        {"graph.stale": ["optimizer0.parameter3"], "graph.not_in_optimizer": ["head.weight"]},
        {"graph.stale": [], "graph.not_in_optimizer": ["head.weight"]},
    ),
    "frozen-by-mistake": (
        "frozen-weights",
        {"graph.frozen": ["b"], "graph.frozen_share": 0.6},
        {"graph.frozen": [], "graph.frozen_share": 0.0},
    ),
    "detached-graph": (
        "no-gradient",
        {"graph.cut": ["encoder.weight"], "graph.absent": ["encoder.weight"]},
        {"graph.cut": [], "graph.absent": []},
    ),
    "stale-loss": ("suspicious-loss", {"loss.stale": "outputs"}, None),
    "loss-misuse": (
        "not-learning",
        {"loss.lint": ["softmax-before-cross-entropy"]},
        {"loss.lint": [], "loss.kind": "cross-entropy", "loss.hidden": False},
    ),
    "eval-mode-in-training": ("overfitting", {"mode.whole": True, "mode.eval": ["drop"]}, {"mode.whole": False}),
    "batchnorm-misuse": (
        "small-normalization-batch",
        {"mode.batchnorm": {"layers": 2, "most_values": 2}},
        {"mode.batchnorm": {"layers": 2, "most_values": 64}},
    ),
    "clip-missing": ("clipping-anomaly", {"clip.after_step": True}, None),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_definite_fact_is_certain_and_its_absence_acquits(name):
    symptom, guilty, innocent = FACTS[name]
    assert weight(name, symptom, guilty) >= CERTAIN
    if innocent is not None:
        assert weight(name, symptom, innocent) < -1


def test_a_replaced_head_is_not_called_forgotten():
    facts = {"graph.stale": ["optimizer0.parameter3"], "graph.not_in_optimizer": ["head.weight"]}
    assert weight("parameters-not-in-optimizer", "frozen-weights", facts) < CERTAIN


def test_gradients_that_arrive_and_are_gone_were_cleared_too_early():
    facts = {"graph.detached": True, "zeroing.backwards": [1]}
    assert weight("missing-zero-grad", "no-gradient", facts) >= CERTAIN
    assert weight("detached-graph", "no-gradient", facts) < 0


def test_a_frozen_trunk_is_a_method():
    facts = {"graph.frozen": [], "graph.frozen_share": 0.9}
    assert weight("frozen-by-mistake", "not-learning", facts) < 2
    chart = Chart.of()
    chart.names = ("head.weight", "head.bias")
    chart.add({"type": "facts", "step": 4, "facts": facts})
    chart.add({"type": "tensors", "step": 4, "vitals": {"grad_norm": [None, 0.1]}})
    problem = Problem((Symptom("not-learning", "", "warning", 0.9, 4, 100),))
    assert sum(item.weight for item in BY_NAME["frozen-by-mistake"]().weigh(chart, problem)) > 3


def test_a_trunk_that_was_never_trained_is_frozen_by_mistake():
    facts = {"graph.frozen": [], "graph.frozen_share": 0.9}
    assert weight("frozen-by-mistake", "not-learning", facts, {"frozen_fresh": [1.0]}) > 4
    assert weight("frozen-by-mistake", "not-learning", facts, {"frozen_fresh": [0.0]}) < 2


def test_frozen_layers_are_not_said_to_be_missing_in_the_optimizer():
    chart = Chart.of(loss=[2.0] * 99, frozen_fresh=[1.0])
    chart.add({"type": "facts", "step": 4, "facts": {"graph.frozen": ["b"], "graph.frozen_share": 0.6}})
    chart.episodes.append(Symptom("frozen-weights", "WE01", "warning", 0.9, 4, 98))
    actions = [item.action for item in prescribe(chart, rank(chart))[1]]
    assert actions[0] == "unfreeze" and "add-parameters-to-optimizer" not in actions


def test_a_state_that_was_loaded_is_not_called_a_resumed_run():
    said = BY_NAME["resume-error"].__doc__.splitlines()[0]
    assert said.startswith("Part of the training state was lost or overwritten"), said


def test_a_loss_below_what_its_kind_allows_is_misused():
    facts = {"loss.lint": [], "loss.kind": "mse"}
    assert weight("loss-misuse", "suspiciously-low-loss", facts, {"loss": [-3.0]}) > 4
    assert weight("loss-misuse", "suspiciously-low-loss", facts, {"loss": [0.1]}) < 0


SGD, ADAMW = {"optimizer": "SGD"}, {"optimizer": "AdamW"}
TIGHT = {"grad_norm": [50.0] * 100, "clip": [0.01]}


def test_tight_clipping_is_a_cause_where_it_is_felt():
    assert weight("clip-too-tight", "slow-learning", {}, TIGHT, [SGD]) > 5
    assert weight("clip-too-tight", "slow-learning", {}, TIGHT, [ADAMW]) < 2
    assert weight("clip-too-tight", "slow-learning", {}, {"grad_norm": [0.5] * 100, "clip": [1.0]}, [SGD]) < -3
    assert weight("clip-too-tight", "slow-learning", {}, {"grad_norm": [50.0] * 100}, [SGD]) < -3
    by_hand = {"grad_norm": [1e-4] * 100, "input_checksum": [1.0, 2.0, 3.0, 4.0]}
    assert weight("clip-too-tight", "slow-learning", {}, by_hand, [SGD]) > 4
    assert weight("clip-too-tight", "slow-learning", {}, by_hand, [ADAMW]) < -3
    assert weight("clip-too-tight", "slow-learning", {}, by_hand | {"input_checksum": [1.0] * 8}, [SGD]) < -3


ODD = {
    "eps that is felt": ("slow-learning", {"adam_eps_share": [0.9]}, ADAMW | {"eps": 0.1}),
    "momentum": ("loss-oscillation", {}, SGD | {"momentum": 0.995}),
    "beta2": ("gradient-instability", {}, ADAMW | {"betas": [0.9, 0.3]}),
    "decay": ("not-learning", {"lr": [1e-2]}, ADAMW | {"weight_decay": 10.0}),
}


@pytest.mark.parametrize(("symptom", "vitals", "group"), ODD.values(), ids=ODD)
def test_an_odd_setting_speaks_for_a_misconfigured_optimizer(symptom, vitals, group):
    assert weight("optimizer-misconfigured", symptom, {}, vitals, [group]) > 2


def test_usual_settings_speak_against_it():
    usual = ADAMW | {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
    assert weight("optimizer-misconfigured", "loss-oscillation", {}, {"lr": [1e-3]}, [usual]) < -1


@pytest.mark.parametrize(("swing", "cause"), [(0.3, "loss-misuse"), (0.0, "stale-loss")])
def test_a_loss_of_one_value_is_old_or_cancels_out(swing, cause):
    chart = Chart.of(
        loss=[0.6931] * 100, grad_norm=[2.0 + swing * (-1) ** step for step in range(100)], input_checksum=range(8)
    )
    chart.names = ("a.weight",)
    chart.add({"type": "tensors", "step": 90, "vitals": {"update_ratio": [1e-3]}})
    problem = Problem((Symptom("not-learning", "LO04", "warning", 0.8, 0, 99),))
    weights = {
        name: sum(item.weight for item in BY_NAME[name]().weigh(chart, problem))
        for name in ("loss-misuse", "stale-loss")
    }
    assert max(weights, key=weights.get) == cause


@pytest.mark.parametrize(
    ("facts", "spread", "norm", "heard"),
    [
        pytest.param({}, 0.9, 0.0, False, id="a ratio of the policy to itself"),
        pytest.param({"graph.frozen_share": 0.9}, 0.9, 0.0, True, id="adapters of which both factors are zero"),
        pytest.param({}, 0.0, 0.0, True, id="outputs that are all the same"),
        pytest.param({}, 0.9, 0.1, True, id="gradients"),
        pytest.param({"graph.detached": True}, 0.9, 0.0, True, id="a graph that was cut"),
    ],
)
def test_a_loss_that_asks_nothing_of_outputs_that_differ(facts, spread, norm, heard):
    chart = Chart.of(loss=[0.0] * 20, grad_norm=[norm] * 20, output_spread=[spread] * 20)
    chart.add({"type": "facts", "step": 0, "facts": {"graph.frozen_share": 0.0, **facts}})
    problem = Problem((Symptom("no-gradient", "GP01", "critical", 0.9, 0, 19),))
    assert (sum(item.weight for item in BY_NAME["loss-misuse"]().weigh(chart, problem)) < 3) == heard


@pytest.mark.parametrize(("share", "fresh", "blamed"), [(0.9, 0.0, False), (0.9, 1.0, True), (0.1, 0.0, True)])
def test_weights_that_were_trained_before_are_not_to_be_initialized(share, fresh, blamed):
    vitals = {"entry_rms": [1.0] * 3, "entry_absmax": [3.0] * 3, "frozen_fresh": [fresh]}
    chart = Chart.of(loss=[15.0] * 20, **vitals)
    chart.add({"type": "facts", "step": 0, "facts": {"graph.frozen_share": share}})
    problem = Problem((Symptom("unexpected-initial-loss", "OU02", "info", 0.9, 0, 8),))
    assert (sum(item.weight for item in BY_NAME["bad-initialization"]().weigh(chart, problem)) > 3) == blamed


RESTING = {"tensors": ["g.weight"], "since": 0, "frozen": True}
ALSO_CERTAIN = {
    "a criterion's own weights": (
        "parameters-not-in-optimizer",
        "frozen-weights",
        {"graph.criterion_left_out": ["loss_fn.centres"]},
    ),
    "a layer that forward makes": (
        "parameters-not-in-optimizer",
        "frozen-weights",
        {"graph.made_anew": [[64, 384]], "graph.not_in_optimizer": []},
    ),
    "frozen for the other's turn": ("frozen-by-mistake", "frozen-weights", {"graph.resting": RESTING}),
    "cut off after the first steps": (
        "detached-graph",
        "frozen-weights",
        {"graph.resting": {**RESTING, "frozen": False}, "graph.absent": []},
    ),
}


@pytest.mark.parametrize(("name", "symptom", "facts"), ALSO_CERTAIN.values(), ids=ALSO_CERTAIN)
def test_further_facts_are_certain(name, symptom, facts):
    assert weight(name, symptom, facts) >= CERTAIN


@pytest.mark.parametrize(("norm", "gradient", "certain"), [(0.0, 0.0, True), (1.0, 0.0, False), (0.0, None, False)])
def test_weights_that_are_zero_and_stay_so(norm, gradient, certain):
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": ["a.weight", "b.weight"]})
    chart.add({"type": "tensors", "step": 0, "vitals": {"weight_norm": [norm, 1.0], "grad_norm": [gradient, 1.0]}})
    problem = Problem((Symptom("no-gradient", "", "warning", 0.9, 4, 100, message="seen", where=("a.weight",)),))
    found = sum(item.weight for item in BY_NAME["bad-initialization"]().weigh(chart, problem))
    assert (found >= CERTAIN) is certain


@pytest.mark.parametrize(("momentum", "certain"), [(1e-3, True), (0.1, False)])
def test_running_statistics_that_have_not_come_round(momentum, certain):
    facts = {"mode.batchnorm": {"layers": 2, "most_values": 64}, "mode.batchnorm_momentum": momentum}
    found = weight("batchnorm-misuse", "validation-anomaly", facts, {"loss": [1.0] * 100, "val_loss": [2.0] * 100})
    assert (found >= CERTAIN) is certain


def test_a_group_at_learning_rate_zero_is_frozen_by_mistake():
    said = "parameter group 1 has had a learning rate of 0 since the first step: a, b have gradients but do not change"
    chart = Chart.of(**{"loss": [2.0] * 99, "lr": [1e-3] * 99, "lr/1": [0.0] * 99})
    chart.add({"type": "facts", "step": 4, "facts": {"graph.frozen": [], "graph.frozen_share": 0.0}})
    chart.episodes.append(Symptom("frozen-weights", "WE01", "warning", 0.95, 0, 98, message=said))
    found = rank(chart)
    assert found[0].cause == "frozen-by-mistake" and said in found[0].evidence[0]
    first = prescribe(chart, found)[1][0]
    assert first.action == "unfreeze" and first.code.startswith('for group in optimizer.param_groups: group["lr"] =')
