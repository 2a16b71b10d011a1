"""Signs from before something broke, in the words of the causes that they speak for."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.diagnoses.lr_too_high import LrTooHigh
from torchdoctor.diagnoses.optimizer_misconfigured import OptimizerMisconfigured
from torchdoctor.records import Symptom

ADAM = {"optimizer": "Adam", "betas": [0.9, 0.999], "eps": 1e-8}
DIVERGED = Problem((Symptom("loss-divergence", "LO02", "critical", 0.9, 210, 260),))
SWINGS = Problem((Symptom("loss-oscillation", "LO06", "warning", 0.9, 100, 260),))


def weight(cause, problem, words, **sampled):
    """The weight of the sentence that holds some words; samples are every 25 steps, the last at 250."""
    chart = Chart.of(loss=np.full(261, 2.0), lr=np.full(261, 1e-3))
    chart.groups = [ADAM]
    for vital, values in sampled.items():
        for number, value in enumerate(values):
            chart.put(250 - 25 * (len(values) - 1 - number), vital, value)
    found = [item for item in cause().weigh(chart, problem) if words in item.text]
    assert len(found) <= 1
    return found[0].weight if found else 0.0


FOR = {
    "steps beyond the edge": (LrTooHigh, DIVERGED, "increased the loss", {"step_curvature": [3.0] * 6}),
    "swings at the edge": (LrTooHigh, SWINGS, "increased the loss", {"step_curvature": [2.6] * 6}),
    "attention logits": (LrTooHigh, DIVERGED, "attention logit", {"attention_logit": [5.0, 30.0, 90.0, 90.0, 90.0]}),
    "drift downwards": (LrTooHigh, DIVERGED, "log-sum-exp", {"logit_drift": [2.3, -20.0, -70.0, -80.0, -90.0]}),
    "a stale average": (OptimizerMisconfigured, DIVERGED, "beta2", {"adam_staleness": [1.1] * 5 + [9.0] * 3}),
}
AGAINST = {
    "short steps": (LrTooHigh, DIVERGED, "short enough", {"step_curvature": [0.3] * 6}),
}
NEITHER = {
    "one look beyond the edge": (LrTooHigh, DIVERGED, "along them", {"step_curvature": [1.2, 1.3, 9.0, 1.2, 1.4, 1.1]}),
    "beyond the edge only afterwards": (LrTooHigh, DIVERGED, "increased", {"step_curvature": [0.5] * 5 + [50.0] * 2}),
    "a confident classifier": (LrTooHigh, DIVERGED, "log-sum-exp", {"logit_drift": [2.3, 8.0, 12.0, 15.0, 18.0]}),
    "logits as large as ever": (LrTooHigh, DIVERGED, "attention logit", {"attention_logit": [60.0] * 8}),
    "rare words": (OptimizerMisconfigured, DIVERGED, "second average", {"adam_staleness": [6.0, 7.0, 5.0, 6.0] * 2}),
    "stale only when it broke": (OptimizerMisconfigured, DIVERGED, "beta2", {"adam_staleness": [1.1] * 6 + [9.0] * 2}),
}


@pytest.mark.parametrize(("cause", "problem", "words", "sampled"), FOR.values(), ids=FOR)
def test_speaks_for(cause, problem, words, sampled):
    assert weight(cause, problem, words, **sampled) > 0


@pytest.mark.parametrize(("cause", "problem", "words", "sampled"), AGAINST.values(), ids=AGAINST)
def test_speaks_against(cause, problem, words, sampled):
    assert weight(cause, problem, words, **sampled) < 0


@pytest.mark.parametrize(("cause", "problem", "words", "sampled"), NEITHER.values(), ids=NEITHER)
def test_says_nothing(cause, problem, words, sampled):
    assert weight(cause, problem, words, **sampled) == 0
