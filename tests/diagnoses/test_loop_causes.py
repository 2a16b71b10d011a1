"""Causes of what happens to the loop itself: what was replaced, what grows, what a loss may be undefined for."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import CAUSES, Problem
from torchdoctor.records import Symptom

BY_NAME = {cause.name: cause for cause in CAUSES}
SLOWER = "a step takes 2 s, up from 1 s; it grows with every step"
UNSTEPPED = "at least 44 losses were logged since the last step, but the optimizer has not stepped again: step() is"
THROWN = "gradients were computed and thrown away 40 times, and the optimizer has not stepped once"
TOLD = {
    "gradients that no step uses": ("accumulation-error", "frozen-weights", {"zeroing.backwards": [1]}, {}, THROWN),
    "micro-batches that no step uses any more": (
        "accumulation-error", "frozen-weights", {"zeroing.backwards": [4]}, {}, UNSTEPPED,
    ),
    "passes of which nobody knows the weight": ("accumulation-error", "dead-units", {"zeroing.backwards": [2]}, {}, ""),
    "a loss scale that is never taken off": (
        "lr-too-high", "update-ratio-abnormal", {}, {"loss_weight": [1024.0], "grad_norm": [3900.0]}, "seen",
    ),
    "weights were replaced": ("resume-error", "loss-spike", {"state.written": [[190, 215]]}, {}, "seen"),
    "the optimizer began anew": ("resume-error", "loss-spike", {"state.restarted": 199}, {}, "seen"),
    "the finding itself": ("resume-error", "state-overwritten", {}, {}, "seen"),
    "momentum of 1": (
        "batchnorm-misuse",
        "small-normalization-batch",
        {"mode.batchnorm": {"layers": 1, "most_values": 784}, "mode.batchnorm_momentum": 0.99},
        {},
        "seen",
    ),
    "steps become slower at one pace": ("memory-leak", "step-time-regression", {}, {"host_memory": [1e9] * 9}, SLOWER),
    "a log in the loss": ("numeric-precision", "nan-or-inf", {"loss.fragile": ["log"]}, {"loss": [1.0] * 200}, "seen"),
    "probabilities into a loss of one's own": (
        "numeric-precision",
        "nan-or-inf",
        {"modules.names": ["0", "1"], "modules.kinds": ["Linear", "Sigmoid"], "modules.outputs": ["1"]},
        {"loss": [1.0] * 200},
        "seen",
    ),
    "zeros that are kept: cleared in place, before the step": (
        "missing-zero-grad",
        "no-gradient",
        {"zeroing.kept": [5], "zeroing.cleared": [0], "zeroing.backwards": [1]},
        {"grad_norm": [0.0] * 9},
        "seen",
    ),
    "steps that Rprop shortens": (
        "optimizer-misconfigured",
        "update-ratio-abnormal",
        {},
        {"lr": [1e-3] * 9, "input_checksum": range(9), "groups": [{"optimizer": "Rprop"}]},
        "seen",
    ),
    "labels smoothed away": ("over-regularized", "not-learning", {"loss.label_smoothing": 0.9}, {}, "seen"),
    "clamped at every step": ("over-regularized", "not-learning", {"state.written_always": 5}, {}, "seen"),
}  # fmt: skip
QUIET = {
    "weights in no optimizer": ("accumulation-error", "frozen-weights", {"zeroing.backwards": [1]}, {}, "seen"),
    "a generator's gradients, cleared before the discriminator's own": (
        "accumulation-error",
        "dead-units",
        {"zeroing.backwards": [1, 2], "zeroing.between_backwards": [0, 5]},
        {},
        "",
    ),
    "an optimizer that was replaced": (
        "accumulation-error", "frozen-weights", {"zeroing.backwards": [1]}, {}, UNSTEPPED,
    ),
    "two terms of a discriminator": ("accumulation-error", "dead-units", {"zeroing.backwards": [1, 2]}, {}, ""),
    "a loss scale that the scaler took off": (
        "lr-too-high", "update-ratio-abnormal", {}, {"loss_weight": [1024.0], "grad_norm": [3.9]}, "seen",
    ),
    "weights were replaced long ago": ("resume-error", "loss-spike", {"state.written": [[90, 115]]}, {}, "seen"),
    "the optimizer began anew later": ("resume-error", "loss-spike", {"state.restarted": 260}, {}, "seen"),
    "usual momentum": (
        "batchnorm-misuse",
        "validation-anomaly",
        {"mode.batchnorm": {"layers": 1, "most_values": 784}, "mode.batchnorm_momentum": 0.1},
        {},
        "seen",
    ),
    "a step that took longer all at once": (
        "memory-leak", "step-time-regression", {}, {"host_memory": [1e9] * 9}, "a step takes 2 s, up from 1 s",
    ),
    "steps become slower, and the device holds as much as ever": (
        "memory-leak", "step-time-regression", {}, {"memory": [1e9] * 9}, SLOWER,
    ),
    "a rate that Rprop takes for its first step only": (
        "lr-too-low",
        "update-ratio-abnormal",
        {},
        {"lr": [1e-6] * 9, "context": {"optimizer": [{"class": "Rprop"}]}},
        "seen",
    ),
    "full batches, which Rprop is made for": (
        "optimizer-misconfigured",
        "update-ratio-abnormal",
        {},
        {"lr": [1e-3] * 9, "input_checksum": [7.0] * 9, "groups": [{"optimizer": "Rprop"}]},
        "seen",
    ),
    "labels smoothed as usual": ("over-regularized", "not-learning", {"loss.label_smoothing": 0.1}, {}, "seen"),
    "a written-to weight now and then": ("over-regularized", "not-learning", {"state.written": [[1, 9]]}, {}, "seen"),
}  # fmt: skip


def weight(name, symptom, facts, vitals, message):
    groups = vitals.get("groups", ())
    chart = Chart.of(**{key: values for key, values in vitals.items() if key != "groups"})
    chart.groups = list(groups)
    if "loss" in vitals:
        chart.put(200, "loss", float("nan"))
    chart.add({"type": "facts", "step": 4, "facts": facts})
    problem = Problem((Symptom(symptom, "", "warning", 0.9, 200, 210, message=message),))
    return sum(item.weight for item in BY_NAME[name]().weigh(chart, problem))


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_speaks_for_it(case):
    assert weight(*case) > 1


@pytest.mark.parametrize("case", QUIET.values(), ids=QUIET)
def test_speaks_against_it(case):
    assert weight(*case) <= 0
