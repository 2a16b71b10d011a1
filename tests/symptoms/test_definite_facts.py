"""Findings that rest on one fact each: wrong-mode, suspicious-loss, schedule-anomaly, small-normalization-batch."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.schedule_anomaly import ScheduleAnomaly
from torchdoctor.symptoms.small_normalization_batch import SmallNormalizationBatch
from torchdoctor.symptoms.suspicious_loss import MEANING, SuspiciousLoss
from torchdoctor.symptoms.wrong_mode import WrongMode

SICK = {
    "whole model in eval": (WrongMode, {"mode.whole": True, "mode.eval": ["bn"]}, "warning"),
    "loss without a graph": (SuspiciousLoss, {"loss.detached": True}, "critical"),
    "loss of an old output": (SuspiciousLoss, {"loss.stale": "outputs"}, "critical"),
    "cosine round and round": (ScheduleAnomaly, {"schedule.rounds": 3, "schedule.total": 30}, "warning"),
    "never stepped": (ScheduleAnomaly, {"schedule.stepped": False}, "warning"),
    "two values a channel": (SmallNormalizationBatch, {"mode.batchnorm": {"layers": 1, "most_values": 2}}, "warning"),
    "six values a channel": (SmallNormalizationBatch, {"mode.batchnorm": {"layers": 1, "most_values": 6}}, "info"),
    "one-cycle of eight epochs of batches, stepped by epochs": (
        ScheduleAnomaly,
        {"schedule.class": "OneCycleLR", "schedule.total": 752, "schedule.interval": 94},
        "warning",
    ),
    "running statistics of the last batch": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 784, "most_samples": 16}, "mode.batchnorm_momentum": 0.99},
        "warning",
    ),
    "running statistics of the last batch, a large one": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 9999, "most_samples": 256}, "mode.batchnorm_momentum": 0.99},
        "info",
    ),
    "running statistics that never move": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 784, "most_samples": 16}, "mode.batchnorm_momentum": 1e-4},
        "warning",
    ),
    "milestones of epochs, passed in batches": (
        ScheduleAnomaly,
        {"schedule.per_batch": True, "schedule.milestones": [20, 40, 60]},
        "warning",
    ),
    "samples taken for steps": (SuspiciousLoss, {"modules.batch_as_time": ["lstm"]}, "warning"),
    "a pair of small images": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 128, "most_samples": 2}},
        "warning",
    ),
    "a pair of large images": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 8192, "most_samples": 2}},
        "info",
    ),
} | {code: (SuspiciousLoss, {"loss.lint": [code]}, "warning") for code in MEANING}
HEALTHY = {
    "in train mode": (WrongMode, {"mode.whole": False, "mode.eval": []}),
    "BatchNorm alone rests": (WrongMode, {"mode.whole": False, "mode.eval": ["bn"]}),
    "plain loss": (SuspiciousLoss, {"loss.lint": [], "loss.kind": "cross-entropy"}),
    "a mistake of a later version": (SuspiciousLoss, {"loss.lint": ["not-known-here"]}),
    "cosine past its end once": (ScheduleAnomaly, {"schedule.rounds": 1, "schedule.total": 300}),
    "stepped": (ScheduleAnomaly, {"schedule.stepped": True}),
    "no scheduler": (ScheduleAnomaly, {}),
    "milestones of steps": (ScheduleAnomaly, {"schedule.per_batch": True, "schedule.milestones": [200, 300]}),
    "milestones of epochs": (ScheduleAnomaly, {"schedule.per_batch": False, "schedule.milestones": [20, 40]}),
    "one-cycle by epochs": (
        ScheduleAnomaly,
        {"schedule.class": "OneCycleLR", "schedule.total": 30, "schedule.interval": 94},
    ),
    "one-cycle of many epochs, by epochs": (
        ScheduleAnomaly,
        {"schedule.class": "OneCycleLR", "schedule.total": 300, "schedule.interval": 94},
    ),
    "one-cycle by batches": (
        ScheduleAnomaly,
        {"schedule.class": "OneCycleLR", "schedule.total": 400, "schedule.interval": 1},
    ),
    "usual momentum": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 784, "most_samples": 16}, "mode.batchnorm_momentum": 0.1},
    ),
    "mean of all batches": (
        SmallNormalizationBatch,
        {"mode.batchnorm": {"layers": 2, "most_values": 784, "most_samples": 16}, "mode.batchnorm_momentum": None},
    ),
    "enough values": (SmallNormalizationBatch, {"mode.batchnorm": {"layers": 9, "most_values": 64}}),
    "no BatchNorm": (SmallNormalizationBatch, {}),
}


def chart(facts, validations=5):
    built = Chart.of(lr=[0.1] * 60 + [1e-4] * 340, val_loss=[1.0] * validations)
    built.add({"type": "facts", "step": 300, "facts": facts})
    return built


@pytest.mark.parametrize(("detector", "facts", "severity"), SICK.values(), ids=SICK)
def test_fires(detector, facts, severity):
    found = detector().check(chart(facts))
    assert found.severity == severity
    assert found.first_step in (300, *facts.get("schedule.milestones", ()))


@pytest.mark.parametrize(("detector", "facts"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(detector, facts):
    assert detector().check(chart(facts)) is None


def test_a_scheduler_of_epochs_has_time():
    assert ScheduleAnomaly().check(chart({"schedule.stepped": False}, validations=4)) is None


def test_a_fact_that_comes_before_any_number_has_its_own_step():
    built = Chart()
    built.add({"type": "facts", "step": 0, "facts": {"loss.lint": ["broadcast"]}})
    found = SuspiciousLoss().check(built)
    assert (found.first_step, found.last_step) == (0, 0)


FED = {
    "a loss, taken for a score": ("max", 0.9, [0.9, 0.7, 0.6, 0.55], [0.5, 0.6, 0.7, 0.7], True),
    "an accuracy, taken for a loss": ("min", 0.5, [0.9, 0.7, 0.6, 0.55], [0.5, 0.6, 0.7, 0.7], True),
    "an accuracy": ("max", 0.7, [0.9, 0.7, 0.6, 0.55], [0.5, 0.6, 0.7, 0.7], False),
    "a loss": ("min", 0.55, [0.9, 0.7, 0.6, 0.55], [0.5, 0.6, 0.7, 0.7], False),
    "something else": ("max", 3.0, [0.9, 0.7, 0.6, 0.55], [0.5, 0.6, 0.7, 0.7], False),
    "too few": ("max", 0.9, [0.9, 0.7], [0.5, 0.6], False),
}


@pytest.mark.parametrize(("mode", "best", "losses", "scores", "wrong"), FED.values(), ids=FED)
def test_a_plateau_schedule_is_told_by_the_best_that_it_remembers(mode, best, losses, scores, wrong):
    built = Chart.of(lr=[0.1] * 100, val_loss=losses, val_accuracy=scores)
    facts = {"schedule.class": "ReduceLROnPlateau", "schedule.mode": mode, "schedule.best": best}
    built.add({"type": "facts", "step": 90, "facts": facts})
    assert (ScheduleAnomaly().check(built) is not None) == wrong


@pytest.mark.parametrize(
    ("cut_every", "per_batch", "fires"), [(12, True, True), (60, True, False), (12, False, False), (0, True, False)]
)
def test_a_plateau_schedule_that_is_asked_after_each_batch(cut_every, per_batch, fires):
    chart = Chart.of(lr=[0.1 * 0.3 ** (step // cut_every if cut_every else 0) for step in range(200)])
    told = {"schedule.class": "ReduceLROnPlateau", "schedule.per_batch": per_batch, "schedule.stepped": True}
    chart.add({"type": "facts", "step": 8, "facts": told})
    assert (ScheduleAnomaly().check(chart) is not None) is fires


@pytest.mark.parametrize(
    ("vitals", "fires"),
    [
        ({"loss": [2.0] * 8}, True),
        ({"loss": [2.0, 1.9, 1.8, 1.7, 1.6]}, False),  # a CUDA graph that is replayed
        ({"loss": [2.0, 2.0]}, False),  # too few to tell
        ({}, False),  # still on their way from the device
        ({"grad_norm": [1.0] * 20}, True),  # it has another name
        ({"loss": [2.0] * 4 + [1.9] * 4}, True),  # computed anew now and then
    ],
)
def test_a_loss_whose_graph_stays_the_same_is_old_if_its_value_does_too(vitals, fires):
    chart = Chart.of(**vitals)
    chart.add({"type": "facts", "step": max(map(len, vitals.values()), default=1) - 1, "facts": {"loss.stale": True}})
    assert (SuspiciousLoss().check(chart) is not None) == fires


@pytest.mark.parametrize(
    ("total", "every", "fires"), [(470, 94, True), (470, 90, False), (30, 94, False), (470, 1, False)]
)
def test_a_one_cycle_by_epochs_is_known_after_the_first(total, every, fires):
    built = Chart.of(lr=[0.004 + 1e-5 * (step // every) for step in range(99)])
    facts = {"schedule.class": "OneCycleLR", "schedule.total": total}
    built.add({"type": "facts", "step": 98, "facts": facts})
    assert (ScheduleAnomaly().check(built) is not None) == fires


def test_the_worst_layer_is_named_and_speaks_for_itself():
    known = {"layers": 3, "most_values": 2, "most_samples": 2, "worst": "8"}
    found = SmallNormalizationBatch().check(chart({"mode.batchnorm": known}))
    assert found.message.startswith("the worst of 3 BatchNorm layers, module 8, takes") and found.where == ("8",)


UNSTEPPED = {"schedule.class": "CosineAnnealingLR", "schedule.total": 300, "schedule.stepped": False}
LOW = [{"initial_lr": 0.1}]


@pytest.mark.parametrize(
    ("facts", "lr", "groups", "context", "severity"),
    [
        ({}, 0.1, [], {}, "info"),
        ({"schedule.total": 400}, 0.1, [], {}, None),  # most of it is still to come
        ({}, 0.1, [], {"dataset_size": 64_000, "batch_size": 64}, None),  # of the first epoch
        ({}, 0.1, [], {"dataset_size": 3200, "batch_size": 64}, "warning"),  # of the sixth
        ({"schedule.class": "LinearLR", "schedule.total": 60}, 1e-4, LOW, {}, "warning"),
        ({"schedule.class": "LinearLR", "schedule.total": 5}, 1e-4, LOW, {}, None),  # epochs of a warm-up
        ({"schedule.class": "StepLR", "schedule.total": 100}, 0.1, [], {}, None),
        ({"schedule.stepped": True}, 0.1, [], {}, None),
    ],
)
def test_a_schedule_that_never_begins(facts, lr, groups, context, severity):
    built = Chart.of(lr=[lr] * 300)
    built.add({"type": "context", "step": 0, "context": context})
    built.add({"type": "groups", "step": 0, "groups": groups})
    built.add({"type": "facts", "step": 0, "facts": UNSTEPPED | facts})
    found = ScheduleAnomaly().check(built)
    assert (found.severity if found else None) == severity
    assert found is None or "not stepped once" in found.message


@pytest.mark.parametrize(("times", "steps", "fires"), [(2, 300, True), (2, 150, False), (1, 300, False)])
def test_a_cosine_that_is_stepped_twice_comes_back_up(times, steps, fires):
    built = Chart.of(lr=[0.05 * (1 + np.cos(np.pi * times * step / 300)) for step in range(steps)])
    facts = {"schedule.class": "CosineAnnealingLR", "schedule.total": 300, "schedule.stepped": True}
    built.add({"type": "facts", "step": 0, "facts": facts | ({"schedule.times": times} if times > 1 else {})})
    found = ScheduleAnomaly().check(built)
    assert (found is not None) is fires
    assert found is None or "stepped 2 times per optimizer step" in found.message
