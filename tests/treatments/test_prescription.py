import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Evidence, Problem, rank
from torchdoctor.records import INFORMATIVE, Diagnosis, Suggestion, Symptom
from torchdoctor.symptoms import DETECTORS
from torchdoctor.treatments import ACTIONS, prescribe, prescription
from torchdoctor.treatments.case import Case
from torchdoctor.treatments.fitting import fitting
from torchdoctor.treatments.parameters import parameters

N = 400
STEADY = np.exp(0.1 * np.random.default_rng(0).standard_normal(N))


def symptom(name, first=398, last=None, severity="warning", count=1):
    return Symptom(name, "", severity, 0.9, first, first if last is None else last, count)


def merged(*symptoms, context=None, groups=(), **vitals):
    chart = Chart.of(
        context=context, **({"loss": 2 * np.ones(N), "grad_norm": STEADY, "lr": np.full(N, 1e-3)} | vitals)
    )
    chart.episodes += symptoms
    chart.groups = list(groups)
    return {item.action: item for item in prescribe(chart, rank(chart))[1]}


def first_line(suggestion):
    return suggestion.code.splitlines()[0]


def test_the_priors_of_the_paper():
    explosion = merged(symptom("gradient-explosion"))
    assert first_line(explosion["scale-lr"]) == "learning_rate *= 0.5"
    assert first_line(explosion["set-clip-norm"]) == "grad_clip = 1.0"
    assert (explosion["scale-lr"].confidence, explosion["set-clip-norm"].confidence) == (0.9, 0.9)
    assert merged(symptom("gradient-instability", 300, 399))["set-clip-norm"].confidence == 0.8
    vanishing = merged(symptom("gradient-vanishing"))
    assert (first_line(vanishing["scale-lr"]), vanishing["scale-lr"].confidence) == ("learning_rate *= 2.0", 0.7)
    overfitting = merged(symptom("overfitting"), context={"dropout": [0.2]}, groups=[{"weight_decay": 0.1}])
    assert overfitting["raise-dropout"].code.startswith("dropout += 0.1")
    assert overfitting["raise-dropout"].parameters == {"rate": 0.3}
    assert overfitting["raise-dropout"].confidence == 0.8


def test_severity_moves_confidence():
    by_severity = [
        merged(symptom("overfitting", severity=severity), context={"dropout": [0.2]}, groups=[{"weight_decay": 0.1}])
        for severity in ("info", "warning", "critical")
    ]
    confidences = [found["raise-dropout"].confidence for found in by_severity]
    assert confidences == sorted(set(confidences))


def test_repetition_escalates():
    steps = {1: (398,), 2: (200, 398), 3: (100, 200, 398), 4: (100, 200, 300, 398)}
    found = {count: merged(*(symptom("gradient-explosion", step) for step in given)) for count, given in steps.items()}
    assert [found[count]["scale-lr"].parameters["factor"] for count in steps] == [0.5, 0.25, 0.1, 0.1]
    assert [found[count]["set-clip-norm"].parameters["max_norm"] for count in steps] == [1.0, 0.5, 0.25, 0.25]
    assert ["roll-back" in found[count] for count in steps] == [False, False, True, True]
    assert ["ask-for-help" in found[count] for count in steps] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "count", "every", "times"),
    [
        ("gradient-explosion", 1, 1, 1),
        ("gradient-explosion", 4, 1, 4),
        ("loss-spike", 2, 1, 2),
        ("gradient-explosion", 31, 1, 1),
        ("gradient-explosion", 28, 1, 1),
        ("gradient-explosion", 4, 10, 1),
        ("gradient-instability", 4, 1, 1),
    ],
    ids=["once", "apart", "twice", "in a row", "nearly so", "in a row of a log of every tenth step", "a state"],
)
def test_leaps_that_are_apart_in_one_episode_are_several(name, count, every, times):
    chart = Chart()
    for step in range(0, 400, every):
        chart.add({"type": "vitals", "step": step, "vitals": {"grad_norm": 1.0, "loss": 2.0}})
    assert Case(chart, Problem((symptom(name, 300, 330, count=count),))).repeats == times


def test_repetition_within_an_episode_escalates():
    found = merged(symptom("gradient-explosion", 300, 330, count=4))
    assert (found["scale-lr"].parameters["factor"], found["set-clip-norm"].parameters["max_norm"]) == (0.1, 0.25)
    assert "gradient-explosion was seen 4 times" in found["roll-back"].reason and "ask-for-help" in found


def test_what_has_grown_is_treated_as_such_wherever_it_was_seen():
    """The first leap belongs to a problem of its own, and its offers are no surer than those of the others."""
    leaps = [symptom("gradient-explosion", step) for step in (100, 180, 260, 340)]
    found = merged(symptom("slow-learning", 0, 99), *leaps)
    assert (found["scale-lr"].parameters["factor"], found["set-clip-norm"].parameters["max_norm"]) == (0.1, 0.25)
    assert "was seen 4 times" in found["roll-back"].reason


def test_of_two_offers_as_sure_the_escalated_one_is_kept():
    first, again = (
        prescription.Offer(Suggestion("scale-lr", code, 0.9), 1, repeats=repeats)
        for code, repeats in (("learning_rate *= 0.5", 1), ("learning_rate *= 0.1", 3))
    )
    assert prescription._merged([first, again]) == prescription._merged([again, first]) == [again]


def test_trouble_of_long_ago_does_not_escalate():
    found = merged(*(symptom("gradient-explosion", step) for step in (1, 3000, 6000)))
    assert found["scale-lr"].parameters["factor"] == 0.5


def test_a_jump_that_healed_without_harm_leaves_the_learning_rate_nearly_alone():
    healed = merged(symptom("gradient-explosion", 300))
    assert healed["scale-lr"].confidence == 0.6
    assert healed["set-clip-norm"].confidence == 0.9


def test_what_has_passed_keeps_its_last_suggestion():
    (left,) = merged(symptom("gradient-vanishing", 300)).values()
    assert (first_line(left), left.confidence) == ("learning_rate *= 2.0", 0.5)
    lasting = merged(symptom("gradient-vanishing", 300, 399, count=100))
    assert lasting["scale-lr"].confidence == 0.7
    assert merged(symptom("gradient-vanishing", 300, severity="info")) == {}


@pytest.mark.parametrize("detector", [kind for kind in DETECTORS if kind.name not in INFORMATIVE], ids=lambda k: k.name)
@pytest.mark.parametrize("steps", [(100, 100), (398, 399), (100, 399)], ids=["passed", "just now", "lasting"])
def test_no_finding_that_hurts_ends_without_a_suggestion(detector, steps):
    for severity in ("warning", "critical"):
        for vitals in ({}, {"clip": np.full(N, 0.01)}):
            found = merged(symptom(detector.name, *steps, severity), **vitals)
            assert found and all(0.5 <= item.confidence <= 0.99 for item in found.values())


@pytest.mark.parametrize(("clip", "limit"), [(5.0, 1.0), (1.0, None), (0.5, None)])
def test_a_clip_that_is_there_is_respected(clip, limit):
    found = merged(symptom("gradient-explosion"), clip=np.full(N, clip))
    assert (found["set-clip-norm"].parameters["max_norm"] if "set-clip-norm" in found else None) == limit


def test_a_gradient_that_is_gone_is_not_clipped():
    gone = np.where(np.arange(N) < 150, STEADY, 1e-8 * STEADY)
    assert "set-clip-norm" not in merged(symptom("gradient-instability", 300, 399), grad_norm=gone)


def test_norms_that_grew_with_the_trouble_are_no_scale():
    norms = np.concatenate([np.full(300, 1.0), np.geomspace(1.0, 80.0, N - 300)])
    assert (
        merged(symptom("loss-divergence", 310, N - 1), grad_norm=norms)["set-clip-norm"].parameters["max_norm"] == 1.0
    )


def test_a_large_usual_norm_is_not_clipped_to_one():
    found = merged(symptom("gradient-explosion"), grad_norm=1e4 * STEADY)
    assert found["set-clip-norm"].parameters["max_norm"] == 20000


def test_what_is_at_its_end_is_not_raised_further():
    found = merged(symptom("overfitting"), context={"dropout": [0.5]}, groups=[{"weight_decay": 0.1}])
    assert not {"raise-dropout", "set-weight-decay"} & set(found)
    assert merged(symptom("overfitting"), context={"dropout": [0.45]})["raise-dropout"].parameters == {"rate": 0.5}


def test_gradient_control_comes_before_regularization_before_the_rest():
    found = merged(symptom("overfitting", severity="critical"), symptom("gradient-explosion"), symptom("loss-spike"))
    priorities = [item.priority for item in found.values()]
    assert priorities == sorted(priorities)
    assert list(found)[0] in ("scale-lr", "set-clip-norm")
    assert {"raise-dropout", "stop-at-best"} <= set(found)


def test_the_worse_problem_decides_which_way_the_learning_rate_goes():
    found = merged(symptom("gradient-vanishing", 100), symptom("loss-divergence", 300, 399, severity="critical"))
    assert found["scale-lr"].parameters["factor"] == 0.5


@pytest.mark.parametrize(
    ("severity", "factor", "reason"), [("warning", 0.5, "gradient-explosion"), ("info", 2.0, "gradient-vanishing")]
)
def test_the_reason_for_a_rate_is_the_finding_that_asks_for_it(severity, factor, reason):
    problem = Problem((symptom("gradient-vanishing", 390, 399), symptom("gradient-explosion", 395, severity=severity)))
    case = Case(Chart.of(loss=2 * np.ones(N), grad_norm=STEADY, lr=np.full(N, 1e-3)), problem)
    (found,) = [item for item in prescription._for_symptoms(case) if item.action == "scale-lr"]
    assert found.parameters == {"factor": factor} and found.reason.startswith(reason)


def test_diagnoses_carry_the_suggestions_of_their_cause():
    chart = Chart.of(loss=2 * np.ones(N), grad_norm=STEADY, lr=np.where(np.arange(N) < 299, 1e-3, 0.1))
    chart.episodes += [symptom("loss-spike", 300, 310), symptom("loss-divergence", 310, 399)]
    treated, _ = prescribe(chart, rank(chart))
    assert treated[0].cause == "lr-too-high"
    assert treated[0].suggestions[0].action == "scale-lr"
    assert treated[0].suggestions[0].reason.startswith("lr-too-high (")


def test_nothing_to_treat():
    assert prescribe(Chart(), ()) == ((), ())


def certain(monkeypatch, name, explains, suggests, weight=8.0):
    """A cause of the catalogue that is as sure as a fact, whatever the chart says."""
    (known,) = [cause for cause in CAUSES if cause.name == name]
    monkeypatch.setattr(known, "weigh", lambda self, chart, problem: iter([Evidence(weight, "it is so")]))
    monkeypatch.setattr(known, "explains", explains)
    monkeypatch.setitem(prescription.SUGGESTED, name, suggests)


def test_what_mends_a_sure_cause_comes_first_and_in_its_own_order(monkeypatch):
    certain(monkeypatch, "nan-in-data", ("loss-divergence",), ("clean-data", "skip-step"))
    found = merged(symptom("loss-divergence", 300, 399))
    assert list(found) == ["clean-data", "skip-step", "roll-back"]


@pytest.mark.parametrize(
    ("action", "severity", "sure", "first"),
    [
        ("speed-up-data", 0, False, "prevent-collapse"),
        ("speed-up-data", 1, False, "prevent-collapse"),
        ("speed-up-data", 1, True, "speed-up-data"),
        ("scale-lr", 0, False, "prevent-collapse"),
        ("scale-lr", 1, False, "scale-lr"),
    ],
)
def test_the_first_change_is_for_the_worst_problem_unless_another_protects_the_run(action, severity, sure, first):
    own, other = (
        Suggestion(slug, "", 0.6, priority=prescription.BY_SLUG[slug].priority) for slug in ("prevent-collapse", action)
    )
    offers = [prescription.Offer(own, 1, problem=1), prescription.Offer(other, severity, sure, problem=2)]
    collapse = Diagnosis(1, "representation-collapse", 0.45, suggestions=(own,))
    for treated in ([collapse], [Diagnosis(1, "unknown", 0.5), collapse]):
        assert [item.action for item in prescription._led(treated, prescription._merged(offers))][0] == first


def test_a_finding_asks_for_more_only_where_no_cause_is_sure(monkeypatch):
    certain(monkeypatch, "nan-in-data", ("loss-divergence",), ("clean-data",), weight=2.5)
    found = merged(symptom("loss-divergence", 300, 399))
    assert {"scale-lr", "set-clip-norm", "roll-back"} <= set(found)


def test_advice_does_not_jump_the_queue(monkeypatch):
    certain(monkeypatch, "nan-in-data", ("loss-spike",), ("clean-data",))
    found = merged(symptom("loss-spike", 100, severity="info"), symptom("gradient-explosion"))
    assert list(found)[0] in ("scale-lr", "set-clip-norm")


def test_nothing_is_rebuilt_for_what_has_passed():
    found = merged(symptom("gradient-vanishing", 200))
    assert {action.kind for action in ACTIONS if action.slug in found} <= {"gradient control"}


@pytest.mark.parametrize(("cause", "factor"), [("lr-too-high", 0.5), ("lr-too-low", 2.0)])
def test_the_cause_knows_which_way_the_learning_rate_goes(monkeypatch, cause, factor):
    certain(monkeypatch, cause, ("not-learning",), ("scale-lr",))
    assert merged(symptom("not-learning", 0, 399))["scale-lr"].parameters == {"factor": factor}


def test_without_a_cause_a_run_that_does_not_learn_gets_no_new_rate():
    chart = Chart.of(loss=2 * np.ones(N))
    case = Case(chart, Problem((symptom("not-learning", 0, 399),)))
    assert parameters(case, "scale-lr") is None


@pytest.mark.parametrize(
    ("config", "rate", "factor"),
    [
        ({"optim": "adamw_torch"}, 5.0, 0.0002),
        ({"optim": "adamw_torch", "num_parameters": 124_000_000}, 0.01, 0.06),
        ({"optimizer": "sgd"}, 5.0, 0.02),
        ({}, 5.0, 0.002),
        ({"optimizer": "sgd"}, 0.4, 0.5),
        ({"optim": "adamw_torch"}, 0.001, 0.5),
        ({"optimizer": "Prodigy"}, 5.0, 0.5),
    ],
)
def test_an_absurd_learning_rate_is_not_just_halved(config, rate, factor):
    found = merged(
        symptom("loss-divergence", 2, 399, severity="critical"), context={"config": config}, lr=np.full(N, rate)
    )
    assert found["scale-lr"].parameters["factor"] == factor
    assert f"Lower the learning rate, from {rate:g} to " in found["scale-lr"].reason


def test_what_the_log_says_is_set_is_not_proposed():
    config = {"config": {"hidden_dropout_prob": 0.2, "weight_decay": 0.1, "max_grad_norm": 1.0}}
    found = merged(symptom("overfitting"), context=config)
    assert found["raise-dropout"].parameters == {"rate": 0.3}
    assert "set-weight-decay" not in found
    assert "set-clip-norm" not in merged(symptom("gradient-explosion"), context=config)


def test_a_dropout_that_is_not_known_is_raised_from_wherever_it_is():
    found = merged(symptom("overfitting"))["raise-dropout"]
    assert found.parameters == {} and first_line(found) == "dropout += 0.1  # 0.5 at most"


def test_what_mends_the_likeliest_cause_comes_first():
    chart = Chart.of(loss=2 * np.ones(N), val_loss=np.linspace(2, 4, N))
    chart.episodes.append(symptom("overfitting", 100, 399))
    treated, suggestions = prescribe(chart, rank(chart))
    told = {item.action for item in suggestions}
    own = [item.action for item in treated[0].suggestions if item.action in told]
    assert suggestions[0].action == own[0]


def test_a_cause_with_several_settings_treats_the_one_in_question():
    said = ("weight decay removes 0.02 of each weight",)
    slugs = prescription.in_question(("lower-dropout", "set-weight-decay"), said)
    assert slugs == ["set-weight-decay"]


def test_the_best_step_is_that_of_the_whole_run_and_the_one_that_the_finding_names():
    chart = Chart.of(context={"source": "CSV"})
    for step in range(3000):  # more than are kept one by one
        chart.put(step, "val_loss", 0.5 + abs(step - 100) / 1000)
    case = Case(chart, Problem((symptom("overfitting", 100, 2999),)))
    assert parameters(case, "stop-at-best") == {"step": 100.0}
    near = Case(chart, Problem((symptom("overfitting", 104, 2999),)))  # as good as the best
    assert parameters(near, "stop-at-best") == {"step": 104.0}
    far = Case(chart, Problem((symptom("overfitting", 900, 2999),)))  # it was lower yet elsewhere
    assert parameters(far, "stop-at-best")["step"] == pytest.approx(100, abs=4)


def test_there_is_nothing_to_go_back_to_at_the_best_step_and_at_the_first():
    chart = Chart.of(loss=[12.0] * 100)
    for step in range(9, 100, 10):
        chart.put(step, "val_loss", 14.0 - 0.01 * step)  # a gap, and still falling
    assert parameters(Case(chart, Problem((symptom("overfitting", 9, 99),))), "stop-at-best") is None
    assert parameters(Case(chart, Problem((symptom("loss-divergence", 0, 99),))), "roll-back") is None
    assert parameters(Case(chart, Problem((symptom("loss-divergence", 50, 99),))), "roll-back") == {"step": 50.0}


def test_a_plateau_and_dead_units_are_told_all_ways_out():
    code = {action.slug: action.code for action in ACTIONS}
    assert all(word in code["change-schedule"] for word in ("CosineAnnealing", "CyclicLR", "patience=10", "Restarts"))
    assert all(word in code["use-relu-family"] for word in ("LeakyReLU(0.01)", "PReLU", "ELU", "dead"))


@pytest.mark.parametrize(
    ("first", "clock", "there"),
    [(2, "step", False), (200, "step", True), (1, "epoch", False), (9, "epoch", True), (0, "row", False)],
)
def test_there_is_nothing_to_go_back_to_at_the_beginning_of_a_log(first, clock, there):
    chart = Chart.of(loss=[1.0] * 300, context={"source": "CSV", "clock": clock})
    case = Case(chart, Problem((symptom("loss-divergence", first, 299, severity="critical"),)))
    assert (parameters(case, "roll-back") is not None) == there


def test_a_rate_at_which_nothing_moves_is_not_just_doubled():
    found = merged(symptom("slow-learning"), lr=np.full(N, 1e-14))
    assert found["scale-lr"].parameters["factor"] == 1e9
    assert "Raise the learning rate, from 1e-14 to 1e-05." in found["scale-lr"].reason


def test_ranks_that_differ_are_synchronised_before_anybody_looks_at_the_machine():
    assert next(iter(merged(symptom("rank-divergence", severity="critical")))) == "synchronize-ranks"


def test_a_rollback_speaks_of_no_batches_if_none_led_to_it(monkeypatch):
    certain(monkeypatch, "resume-error", ("loss-spike",), ("roll-back",))
    assert "batches" not in merged(symptom("loss-spike", 300, 399))["roll-back"].reason


def test_asking_for_help_claims_no_changes_that_nobody_made():
    found = merged(symptom("gradient-explosion", 300, 330, count=4))["ask-for-help"]
    assert "did not help" not in found.reason and "seen 4 times" in found.reason


def test_nobody_goes_back_to_a_checkpoint_because_a_rank_is_slow():
    found = merged(symptom("step-time-regression", 66, 200, "info"), symptom("straggler-rank", 248, 399))
    assert next(iter(found)) == "check-hardware" and "roll-back" not in found


@pytest.mark.parametrize(
    ("kind", "first"), [("bce", "binary_cross_entropy_with_logits"), ("cross-entropy", "cross_entropy(")]
)
def test_the_line_that_fits_the_run_comes_first(kind, first):
    chart = Chart()
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": kind}})
    case = Case(chart, Problem((symptom("suspicious-loss"),)), "loss-misuse")
    assert first in prescription.suggest(case, "fix-loss", 0.9, "").code.splitlines()[0]


def test_wrong_labels_are_looked_at_and_not_their_numbers():
    causes = {cause.name: cause for cause in CAUSES}
    assert causes["label-noise-or-misalignment"].suggests[0] == "check-labels"


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.slug)
def test_the_first_line_of_code_is_whole(action):
    """It is all that a headline shows."""
    line = action.code.splitlines()[0].partition("#")[0]
    assert line.count("(") == line.count(")") and not line.rstrip().endswith(",")


@pytest.mark.parametrize(
    ("parts", "beginning"),
    [(None, "optimizer.load_state_dict"), ([[26, 50, "head.weight"]], "layer.reset_parameters")],
)
def test_weights_that_the_loop_writes_to_are_spoken_of_first(parts, beginning):
    chart = Chart.of(loss=[1.0])
    chart.add({"type": "facts", "step": 0, "facts": {"state.written_in_part": parts}})
    assert fitting(chart, prescription.BY_SLUG["restore-state"].code).startswith(beginning)


def test_a_second_descent_is_trained_on():
    chart = Chart.of(loss=np.geomspace(2.0, 0.01, N))
    for step, loss in zip(
        range(19, N, 20), [2.0, 1.5, 1.2, 1.4, 1.6, 1.6, 1.5, 1.3, 1.1, 1.0] + [0.9] * 10, strict=True
    ):
        chart.put(step, "val_loss", loss)
    chart.episodes += [symptom("overfitting", 59, 159, "info"), symptom("double-descent", 59, 399, "info")]
    found = prescribe(chart, rank(chart))[1]
    assert found[0].action == "keep-training" and "stop-at-best" not in {item.action for item in found}
