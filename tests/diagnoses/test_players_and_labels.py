"""Collapse of outputs, labels that do not fit, and a run that was resumed: which cause comes first."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import Problem
from torchdoctor.diagnoses.adversarial_imbalance import AdversarialImbalance
from torchdoctor.diagnoses.label_noise_or_misalignment import LabelNoiseOrMisalignment
from torchdoctor.diagnoses.mode_collapse import ModeCollapse
from torchdoctor.diagnoses.policy_collapse import PolicyCollapse
from torchdoctor.diagnoses.representation_collapse import RepresentationCollapse
from torchdoctor.diagnoses.resume_error import ResumeError
from torchdoctor.records import Symptom
from torchdoctor.symptoms.hindsight.constant import NO_TARGET, UNMATCHED

N = 400
STEPS = np.arange(N)
RNG = np.random.default_rng(0)
FADES = np.maximum(np.exp(-STEPS / 30), 0.004)


def problem(*names, first=300, last=399):
    return Problem(tuple(Symptom(name, "", "warning", 0.9, first, last) for name in names))


def odds(cause, chart, *names, **when):
    return cause.prior + sum(item.weight for item in cause().weigh(chart, problem(*names, **when)))


def sampled(chart, vital, values):
    for place, value in enumerate(values):
        chart.put(25 * place, vital, value)
    return chart


WON = {"d_loss": 1.4 * FADES, "g_loss": 0.7 + 6 * (1 - FADES)}
EVEN = {"d_loss": np.full(N, 1.3), "g_loss": np.full(N, 0.9)}


def test_a_game_that_was_won_before_outputs_were_alike_is_no_collapse_of_its_own():
    together, after = (
        Problem(
            tuple(
                Symptom(name, "", "warning", 0.9, first, 399)
                for name, first in (("lopsided-losses", won), ("collapsed-output", 100))
            )
        )
        for won in (100, 30)
    )
    chart = Chart.of(**WON)
    weights = [sum(item.weight for item in ModeCollapse().weigh(chart, found)) for found in (together, after)]
    assert weights[1] < weights[0]


def test_players():
    won = Chart.of(**WON)
    assert odds(AdversarialImbalance, won, "lopsided-losses") > 3
    assert odds(ModeCollapse, won, "lopsided-losses") < odds(AdversarialImbalance, won, "lopsided-losses")
    alike = sampled(Chart.of(**EVEN), "output_spread/generator", [1.0, 0.9, 0.4, 0.02, 0.02, 0.01])
    assert odds(ModeCollapse, alike, "collapsed-output") > 3
    assert odds(AdversarialImbalance, alike, "collapsed-output") < 0
    free = Chart.of(d_loss=-np.exp(STEPS / 40), g_loss=-3 * np.exp(STEPS / 40))
    assert odds(AdversarialImbalance, free, "activation-explosion") > 3
    assert odds(AdversarialImbalance, Chart.of(**EVEN), "activation-explosion") < 0
    alone = Chart.of(loss=FADES)
    assert odds(ModeCollapse, alone, "collapsed-output") < -4
    assert odds(AdversarialImbalance, alone, "collapsed-output") < -4


def test_policy():
    fell = {"entropy": 1.6 * FADES}
    flat, risen = RNG.standard_normal(N), 0.05 * STEPS + RNG.standard_normal(N)
    assert odds(PolicyCollapse, Chart.of(**fell, reward=flat), "entropy-collapse") > 3
    assert odds(PolicyCollapse, Chart.of(**fell, reward=risen), "entropy-collapse") < 0
    assert odds(PolicyCollapse, Chart.of(entropy=np.full(N, 1.6), reward=flat), "not-learning") < -1
    assert odds(PolicyCollapse, Chart.of(loss=flat), "not-learning") < -4


def test_representations():
    stuck = Chart.of(loss=np.full(N, math.log(64)), context={"batch_size": 64})
    sampled(stuck, "output_spread", [0.9, 0.5, 0.05, 0.01, 0.01])
    assert odds(RepresentationCollapse, stuck, "collapsed-output") > 2
    labelled = sampled(stuck, "target_classes", [10.0] * 4)
    assert odds(RepresentationCollapse, labelled, "collapsed-output") < 1
    varied = sampled(Chart.of(loss=FADES), "output_spread", [0.9, 0.9, 0.9])
    assert odds(RepresentationCollapse, varied, "loss-plateau") < -3


def labels(loss, val_loss):
    chart = Chart.of(loss=loss, grad_norm=np.ones(N))
    for place, value in enumerate(val_loss):
        chart.put(100 * place + 99, "val_loss", value)
    chart.names = ("a.weight",)
    chart.add({"type": "tensors", "step": 300, "vitals": {"update_ratio": [1e-3]}})
    return sampled(chart, "target_entropy", [math.log(10)] * 4)


def test_labels():
    chance = math.log(10)
    flat = labels(np.full(N, chance), [chance] * 4)
    assert odds(LabelNoiseOrMisalignment, flat, "not-learning") > 1
    by_heart = labels(np.linspace(chance, 0.1, N), [2.4, 2.9, 3.5, 4.0])
    assert odds(LabelNoiseOrMisalignment, by_heart, "overfitting") > 2
    overfits = labels(np.linspace(chance, 0.1, N), [1.2, 0.8, 0.9, 1.1])
    assert odds(LabelNoiseOrMisalignment, overfits, "overfitting") < -1
    learns = labels(np.linspace(chance, 0.5, N), [2.0, 1.5, 1.0, 0.6])
    assert odds(LabelNoiseOrMisalignment, learns, "loss-plateau") < -1
    dead = odds(LabelNoiseOrMisalignment, flat, "not-learning", "dead-units")
    assert dead < odds(LabelNoiseOrMisalignment, flat, "not-learning")


def test_a_run_that_was_resumed():
    chart = Chart.of(loss=np.ones(200), lr=np.full(200, 1e-3))
    chart.add({"type": "header", "step": 0})
    for step in range(200, 240):
        chart.put(step, "loss", 5.0)
    assert chart.resumed == [199]
    assert odds(ResumeError, chart, "loss-spike", first=200, last=230) > 2
    assert odds(ResumeError, chart, "loss-spike", first=90, last=95) < -2
    assert Chart.of(loss=[1.0]).resumed == []


def test_a_first_header_is_no_resume():
    chart = Chart()
    chart.add({"type": "header", "step": 0})
    assert chart.resumed == []


@pytest.mark.parametrize(("hole", "likely"), [(5000, True), (1, False)])
def test_a_hole_in_the_steps(hole, likely):
    chart = Chart.of(loss=np.ones(200))
    for step in range(200 + hole, 240 + hole):
        chart.put(step, "loss", 5.0)
    assert (odds(ResumeError, chart, "loss-spike", first=200 + hole) > 1) == likely


def test_a_rate_that_starts_over_once_and_a_schedule_with_restarts():
    cosine = 1e-3 * (1 + np.cos(np.pi * np.arange(200) / 210)) / 2
    once = Chart.of(loss=np.ones(400), lr=np.concatenate([cosine, cosine]))
    assert odds(ResumeError, once, "loss-spike", first=203) > 0
    often = Chart.of(loss=np.ones(800), lr=np.tile(cosine, 4))
    assert odds(ResumeError, often, "loss-spike", first=203) < -1


@pytest.mark.parametrize("end", [NO_TARGET, UNMATCHED])
def test_a_part_of_the_loss_without_labels_is_a_matter_of_labels(end):
    chart = Chart.of(loss=[90.0, 54.0, 25.0])

    def weighed(message):
        found = Problem((Symptom("not-learning", "LO04", "warning", 0.9, 0, 3, message=message),))
        return sum(item.weight for item in LabelNoiseOrMisalignment().weigh(chart, found))

    assert weighed(f"box loss is exactly 0: {end}") > 3 + weighed("loss stays at 90")
