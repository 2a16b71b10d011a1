"""Definite facts: near 1, explaining the rest away, and several of them stay several."""

import math

import pytest
from tests import taxonomy

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import Cause, Evidence
from torchdoctor.diagnoses import ranking as engine
from torchdoctor.diagnoses.calibration import ECHO, RESERVE
from torchdoctor.diagnoses.cause import CERTAIN
from torchdoctor.diagnoses.mechanisms import BRINGS, linked, place, reaches
from torchdoctor.records import Symptom
from torchdoctor.symptoms import DETECTORS


def symptom(name, first, last=None, severity="warning"):
    return Symptom(name, "", severity, 0.9, first, first if last is None else last)


def cause(name, explains, *weights, prior=-1.0):
    """A cause that yields these weights whatever the chart."""

    class Made(Cause):
        def weigh(self, chart, problem):
            yield from (Evidence(weight, f"fact {number}") for number, weight in enumerate(weights))

    Made.name, Made.explains, Made.prior = name, tuple(explains), prior
    return Made()


UNKNOWN = cause("unknown", BRINGS, prior=0.0)
BATCH = cause("nan-in-data", ["nan-or-inf", "loss-spike"], CERTAIN)
LEFT_OUT = cause("parameters-not-in-optimizer", ["frozen-weights", "not-learning"], CERTAIN)
RATE = cause("lr-too-high", [*BRINGS], 4.0, 2.0, 2.0)


def ranked(symptoms, *causes):
    chart = Chart.of(loss=[2.0] * 400)
    chart.episodes += symptoms
    return engine.rank_causes(chart, [*causes, UNKNOWN])


def told(found):
    """The first cause and the symptoms of each problem."""
    return [
        (item.cause, item.symptoms)
        for number, item in enumerate(found)
        if not number or item.problem != found[number - 1].problem
    ]


def sums(found):
    return {
        number: sum(item.probability for item in found if item.problem == number)
        for number in {item.problem for item in found}
    }


def test_a_definite_fact_is_near_one_and_explains_the_rest_away():
    found = ranked([symptom("frozen-weights", 0, 399), symptom("not-learning", 0, 399)], RATE, LEFT_OUT)
    assert found[0].cause == "parameters-not-in-optimizer"
    assert found[0].probability > 0.97
    assert found[0].evidence == ("certain: fact 0",)
    assert [item.cause for item in found] == ["parameters-not-in-optimizer", "unknown"]
    assert sums(found) == {1: pytest.approx(1)}


def test_without_the_fact_the_same_cause_is_one_of_several():
    doubtful = cause("parameters-not-in-optimizer", LEFT_OUT.explains, 2.0)
    found = ranked([symptom("not-learning", 0, 399)], cause("lr-too-high", BRINGS, 2.0), doubtful)
    first, second, third = (item.probability for item in found)
    assert (
        first == pytest.approx(second) and 0.02 < third < first
    )  # neither is certain, and none explains the other away


def test_a_fact_that_much_speaks_against_is_not_certain():
    doubtful = cause("nan-in-data", ["nan-or-inf"], CERTAIN, -5.0)
    found = ranked([symptom("nan-or-inf", 300)], doubtful, cause("lr-too-high", BRINGS, 3.5))
    assert found[0].cause == "lr-too-high"


def test_two_certain_causes_are_two_problems_each_with_its_own_symptoms():
    seen = [symptom("frozen-weights", 0, 399), symptom("not-learning", 0, 399), symptom("nan-or-inf", 300)]
    seen.append(symptom("loss-spike", 300, severity="critical"))
    found = ranked(seen, RATE, BATCH, LEFT_OUT)
    assert told(found) == [
        ("nan-in-data", ("loss-spike", "nan-or-inf")),
        ("parameters-not-in-optimizer", ("frozen-weights", "not-learning")),
    ]
    assert sums(found) == {1: pytest.approx(1), 2: pytest.approx(1)}
    assert [item.episodes for item in found if item.cause != "unknown"] == [(3, 2), (0, 1)]


def test_two_certain_causes_of_one_symptom_are_two_problems_with_that_symptom():
    other = cause("eval-mode-in-training", ["not-learning"], CERTAIN)
    found = ranked([symptom("not-learning", 0, 399)], LEFT_OUT, other)
    assert told(found) == [
        ("parameters-not-in-optimizer", ("not-learning",)),
        ("eval-mode-in-training", ("not-learning",)),
    ]
    assert all(item.probability > 0.97 for item in found if item.cause != "unknown")


def test_what_follows_from_a_certain_cause_is_its_own_and_what_came_before_is_not():
    early = symptom("gradient-explosion", 290)
    late = symptom("skipped-steps", 305, 390)
    found = ranked([early, symptom("nan-or-inf", 300), late], RATE, BATCH)
    assert told(found) == [("nan-in-data", ("nan-or-inf", "skipped-steps")), ("lr-too-high", ("gradient-explosion",))]


def test_a_certain_cause_that_comes_back_is_one_problem():
    found = ranked([symptom("nan-or-inf", 100), symptom("loss-spike", 100), symptom("nan-or-inf", 380)], BATCH)
    assert told(found) == [("nan-in-data", ("loss-spike", "nan-or-inf"))]
    assert found[0].episodes == (1, 0, 2)


def test_a_certain_problem_comes_before_an_uncertain_one_of_the_same_severity():
    found = ranked([symptom("overfitting", 10), symptom("frozen-weights", 200)], RATE, LEFT_OUT)
    assert [cause for cause, _ in told(found)] == ["parameters-not-in-optimizer", "lr-too-high"]


def test_calibration_leaves_definite_facts_alone(monkeypatch):
    monkeypatch.setattr(engine, "TEMPERATURE", 4.0)
    monkeypatch.setattr(engine, "SHIFTS", {"lr-too-high": -3.0})
    assert ranked([symptom("not-learning", 0)], LEFT_OUT)[0].probability > 0.97
    rate, unknown = ranked([symptom("not-learning", 0)], RATE)
    score = (-1.0 + 4.0 + ECHO * 4.0 - 3.0) / 4.0
    assert rate.probability == pytest.approx((1 - RESERVE) / (1 + math.exp(-score)))
    assert unknown.cause == "unknown"


def test_weak_pieces_of_evidence_do_not_make_a_strong_one():
    """Three that rest on the same vitals say little more than one of them; what speaks against counts in full."""
    lone, three = cause("a", BRINGS, 3.0), cause("b", BRINGS, 1.0, 1.0, 1.0)
    found = {item.cause: item.probability for item in ranked([symptom("not-learning", 0)], lone, three)}
    assert found["a"] > 2 * found["b"]
    denied = cause("c", BRINGS, 3.0, -1.0, -1.0)
    found = {item.cause: item.probability for item in ranked([symptom("not-learning", 0)], lone, denied)}
    assert found["a"] == pytest.approx(math.exp(2.0) * found["c"])


def test_no_cause_has_all_of_a_problem_unless_it_is_certain():
    found = ranked([symptom("not-learning", 0)], cause("a", BRINGS, 7.5, prior=5.0))
    assert [item.cause for item in found] == ["a", "unknown"]
    assert found[0].probability <= 1 - RESERVE and found[1].probability >= RESERVE
    assert sums(found) == {1: pytest.approx(1)}


def test_unknown_leads_where_no_cause_says_much():
    weak = [cause(name, BRINGS, 0.3, prior=-1.2) for name in "ab"]
    found = ranked([symptom("not-learning", 0)], *weak)
    assert found[0].cause == "unknown"
    assert [item.probability for item in found] == sorted((item.probability for item in found), reverse=True)


def test_many_episodes_are_grouped_in_time():
    chains = ("gradient-explosion", "loss-spike", "loss-divergence")
    many = [symptom(name, 1000 * number + at) for number in range(500) for at, name in enumerate(chains)]
    assert len(engine.group(many)) == 500


def test_mechanisms_lead_from_root_to_consequence_and_never_back():
    names = list(BRINGS)
    for earlier, brought in BRINGS.items():
        for later in brought:
            assert later not in names or names.index(later) > names.index(earlier), (earlier, later)
    assert place("update-ratio-abnormal") < place("gradient-explosion") < place("loss-divergence") < place("nan-or-inf")
    assert reaches("frozen-weights", "underfitting")
    assert not reaches("nan-or-inf", "gradient-explosion")
    assert linked("nan-or-inf", "gradient-explosion")


def test_mechanisms_speak_of_findings_that_exist():
    known = {detector.name for detector in DETECTORS} | taxonomy.NOT_BUILT_YET
    assert {*BRINGS, *(name for brought in BRINGS.values() for name in brought)} <= known
