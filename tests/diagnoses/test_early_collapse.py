"""Outputs that collapse in the first steps: long steps, wrong labels, and what decay does meanwhile."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import rank
from torchdoctor.diagnoses.findings import has_attention, thrown_at_first
from torchdoctor.diagnoses.lr_too_high import times_usual
from torchdoctor.diagnoses.ranking import Problem
from torchdoctor.records import Symptom
from torchdoctor.symptoms.progress import goes_straight

N = 400
SAMPLES = (0, 1, 2, 4, 8, 16, 23, 48, 73, 98, 123)
ADAMW = {"optimizer": "AdamW", "decoupled_weight_decay": True, "weight_decay": 0.1, "betas": [0.9, 0.95]}
LONG = [0.05, 0.17, 0.13, 0.08, 0.05, 0.02, 0.009, 9e-4, 1e-4, 1e-5, 7e-6]
NOISY = [0.05, 0.17, 0.13, 0.08, 0.05, 0.03, 0.03, 0.03, 0.02, 0.02, 0.02]
SMALL = [0.003, 0.003, 0.003, 0.002, 0.002, 0.001, 1e-4, 1e-5, 1e-5, 1e-5, 1e-5]


def collapsed(ratios, first=23, spread=0.9, rate=1e-3, *others):
    found = (
        Symptom("collapsed-output", "", "warning", 0.9, first, N - 1),
        Symptom("not-learning", "", "warning", 0.9, 0, N),
    )
    chart = Chart.of(loss=[2.9] * N, lr=[rate] * N, output_spread=[spread, *[4e-4] * 20])
    chart.groups, chart.names = [ADAMW], ("a", "b")
    chart.context["optimizer"] = [{"class": "AdamW"}]
    for step, ratio in zip(SAMPLES, ratios, strict=True):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [ratio] * 2}})
    told = {"loss.chance": 2.9, "loss.kind": "cross-entropy", "modules.kinds": ["MultiheadAttention"]}
    chart.add({"type": "facts", "step": 0, "facts": told})
    chart.episodes += (*found, *others)
    return chart


THROWN = {
    "long steps, and then none": (LONG, 23, 0.9, True),
    "steps stay as long: noise pulls": (NOISY, 23, 0.9, False),
    "steps were never long": (SMALL, 23, 0.9, False),
    "late": (LONG, 123, 0.9, False),
    "before the first step": (LONG, 0, 0.9, False),
    "never told inputs apart": (LONG, 23, 1e-3, False),
}


@pytest.mark.parametrize(("ratios", "first", "spread", "thrown"), THROWN.values(), ids=THROWN)
def test_the_first_steps_threw_it(ratios, first, spread, thrown):
    chart = collapsed(ratios, first, spread)
    assert (thrown_at_first(chart, Problem(tuple(chart.episodes))) > 0) == thrown


def test_long_first_steps_lead_and_short_ones_since_do_not():
    first = [item.cause for item in rank(collapsed(LONG))][:2]
    assert set(first) == {"lr-too-high", "warmup-missing"}
    assert rank(collapsed(NOISY))[0].cause not in first


@pytest.mark.parametrize(("rate", "decay", "lead"), [(0.03, 0.1, "lr-too-high"), (1e-3, 10.0, "over-regularized")])
def test_a_usual_decay_at_a_high_rate_is_the_rates_doing(rate, decay, lead):
    chart = Chart.of(loss=[2.0 - 0.001 * step for step in range(N)], lr=[rate] * N, grad_norm=[1.0] * N)
    chart.groups, chart.names = [ADAMW | {"weight_decay": decay}], ("a", "b")
    chart.context |= {"optimizer": [{"class": "AdamW"}], "dropout": [0.2]}
    for step in (48, 98, 148, 198):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [0.014] * 2}})
    chart.episodes.append(Symptom("gradient-explosion", "", "warning", 0.9, 200, 202))
    chart.put(N - 1, "attention_ahead", 0.0)
    assert has_attention(chart)
    assert (times_usual(chart, Problem(tuple(chart.episodes))) > 1) == (lead == "lr-too-high")
    causes = [item.cause for item in rank(chart)]
    other = {"lr-too-high", "over-regularized"} - {lead}
    assert causes.index(lead) < causes.index(other.pop())


SGD = {"optimizer": "SGD", "momentum": 0.9, "weight_decay": 5e-4}


@pytest.mark.parametrize(
    ("group", "ratio", "straight"),
    [
        (SGD, 5e-4, False),
        (SGD, 5e-3, True),
        (SGD | {"weight_decay": 0.0}, 5e-4, True),
        ({"optimizer": "Adam", "weight_decay": 5e-4}, 5e-4, True),
    ],
    ids=["decay leads", "decay is a tenth", "no decay", "through Adam's step"],
)
def test_a_straight_way_that_decay_leads_is_no_short_way_to_go(group, ratio, straight):
    chart = Chart.of(loss=[2.3] * N, lr=[0.1] * N, course=np.full(8, 0.95))
    chart.groups, chart.names = [group], ("a",)
    chart.add({"type": "tensors", "step": N - 1, "vitals": {"update_ratio": [ratio]}})
    assert goes_straight(chart) == straight


@pytest.mark.parametrize("since", [0, 300])
def test_a_rate_that_came_later_has_no_part_in_an_earlier_leap(since):
    rates = [0.2 if step >= since else 1e-3 for step in range(400)]
    chart = Chart.of(loss=[2.0] * 400, lr=rates, grad_norm=[1.0] * 400)
    chart.groups, chart.context["optimizer"] = [ADAMW], [{"class": "AdamW"}]
    leap = Problem((Symptom("gradient-explosion", "", "warning", 0.9, 100, 100),))
    assert (times_usual(chart, leap) > 1) == (since == 0)
