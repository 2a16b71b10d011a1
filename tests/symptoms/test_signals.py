"""Findings about activations, outputs and batches, on charts that look like them: what fires, what only looks so."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchdoctor import diagnoses
from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.activation_explosion import ActivationExplosion
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.dead_units import DeadUnits
from torchdoctor.symptoms.identical_units import IdenticalUnits
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.saturated_activations import SaturatedActivations
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss
from torchdoctor.symptoms.target_anomaly import TargetAnomaly
from torchdoctor.symptoms.uneven_position_loss import UnevenPositionLoss
from torchdoctor.symptoms.unexpected_initial_loss import UnexpectedInitialLoss

NAMES = ["fc1", "act", "fc2", "head"]
KINDS = ["Linear", "ReLU", "Linear", "Linear"]
EARLY = (0, 1, 2, 4, 8, 16, 25, 50, 75, 100, 125, 150, 175, 200, 225, 250)


def layers(vital, rows, *, names=NAMES, kinds=KINDS, facts=None, **vitals) -> Chart:
    """A chart of module rows at the usual steps."""
    told = {"modules.names": names, "modules.kinds": kinds, "modules.outputs": names[-1:], **(facts or {})}
    chart = sampled(told, **vitals)
    for step, row in zip(EARLY, rows, strict=False):
        chart.add({"type": "modules", "step": step, "vitals": {vital: row}})
    return chart


def sampled(facts=None, *, context=None, loss=(), **vitals) -> Chart:
    """A chart of scalars at the usual steps, and of a loss at every step."""
    chart = Chart()
    chart.context.update(context or {})
    chart.add({"type": "facts", "step": 0, "facts": facts or {}})
    for step, value in enumerate(loss):
        chart.put(step, "loss", value)
    for name, values in vitals.items():
        for step, value in zip(EARLY, values, strict=False):
            chart.put(step, name, value)
    return chart


def mostly_one_class(batch, *, warms=False, **more) -> Chart:
    """Labels of which 97 % are of one class, and a model that has not beaten their frequencies."""
    known = {"output_spread": 0.4, "prediction_top_share": 1.0, "criterion": 0.135, "guess_loss": 0.135}
    vitals = {name: [value] * 16 for name, value in known.items()} | more
    vitals |= {"pooled_classes": [2.0] * 16, "pooled_top_share": [0.97] * 16}
    return sampled(context={"batch_size": batch}, lr=[1e-4 * (1 + warms * step) for step in EARLY[:16]], **vitals)


def ended(kind, facts, **vitals) -> Chart:
    """The same of a model that ends with an activation of some kind."""
    chart = sampled(facts | {"modules.outputs": ["end"], "modules.kinds": ["Linear", kind]}, **vitals)
    chart.module_names = ("in", "end")
    chart.add({"type": "modules", "step": 2, "vitals": {"act_rms": [1.0, vitals["output_rms"][-1]]}})
    return chart


FALLING = [2.0 * 0.99**step for step in range(300)]
FLAT = [2.0 + 0.01 * (step % 3) for step in range(300)]


BELOW_A_GUESS = {"guess_loss": [0.112, 0.117, 0.113] * 4, "criterion": [0.072, 0.075, 0.071] * 4}


def dead(*shares, **more):
    return layers("act_dead", [[None, share, None, None] for share in shares], **more)


def saturated(*shares, last=None, **more):
    return layers("act_saturated", [[None, share, None, last] for share in shares], **more)


def sizes(*rows, **more):
    return layers("act_rms", rows, **more)


def code(*rows, widths=(32, 4, 4, 20)):
    """An encoder with mean and log-variance, and a decoder: three outputs."""
    facts = {"modules.widths": widths, "modules.outputs": ["mean", "log_variance", "decoder"]}
    names = ["encoder", "mean", "log_variance", "decoder"]
    return layers("act_rms", rows, names=names, facts=facts, output_spread=[0.4] * len(rows))


def halved_code(factor, samples=10):
    """An encoder whose one layer gives mean and log-variance; the decoder takes half of its width."""
    told = {"modules.widths": (32, 8, 48, 20), "modules.entering": (20, 32, 4, 48), "modules.outputs": ["code", "out"]}
    rows = [[0.6, 0.3 * factor**sample, 0.5, 0.3] for sample in range(samples)]
    return layers(
        "act_rms", rows, names=["encoder", "code", "decoder", "out"], facts=told, output_spread=[0.4] * samples
    )


def inner_parts(factor, facts=None):
    """Layers that a loop calls one by one: of the last, ever less depends on the input."""
    told = {"loss.between_outputs": True} if facts is None else facts
    return layers("act_spread", [[0.9, 0.9, 0.8, 0.5 * factor**sample] for sample in range(12)], facts=told)


def same(*flags, **more):
    return layers("weight_same", [[flag, None, 0.0, 1.0] for flag in flags], **more)


DEEP = {"names": [f"fc{index}" for index in range(7)], "kinds": ["Linear"] * 7}
HURT = Symptom("loss-divergence", "LO02", "critical", 0.9, 20, 300)


def hurt(chart: Chart) -> Chart:
    chart.open_episodes["loss-divergence"] = HURT
    return chart


LABELS = {"loss.chance": math.log(5), "loss.classes": 5}
B32 = {"batch_size": 32}


def ordered() -> Chart:
    """Targets that hardly differ within a batch, and much from batch to batch."""
    means = [0.3 * index for index in range(16)]
    return sampled(context=B32, target_mean=means, target_std=[0.02] * 16, target_min=means, target_max=means)


def spiked(chart: Chart) -> Chart:
    """A loss that leapt, at warning."""
    chart.episodes.append(Symptom("loss-spike", "LO01", "warning", 0.9, 99, 99))
    return chart


def drawn_together(facts=None):
    """Outputs that come closer to each other from sample to sample."""
    falls = [0.9**place for place in range(14)]
    told = {"loss.between_outputs": True} if facts is None else facts
    return sampled(told, output_spread=[0.5 * item for item in falls], output_std=falls, output_directions=falls)


def few_batches(different=6, validation=None):
    """Batches that come again and again, as sampled steps show them, and a loss that has all but gone."""
    chart = sampled(
        context={"batch_size": 32},
        loss=[2.0 * 0.97**step for step in range(300)],
        input_checksum=[float(step % different + 1) for step in range(len(EARLY))],
    )
    for step in (100, 200, 290):
        if validation is not None:
            chart.put(step, "val_loss", validation)
    return chart


SICK = {
    "a whole layer dead": (DeadUnits, dead(0.1, 0.95), "warning"),
    "a whole layer dead, and the output constant": (DeadUnits, dead(1.0, 1.0, output_spread=[0.0] * 2), "critical"),
    "most died while training": (DeadUnits, dead(0.1, 0.3, 0.8, loss=[*FALLING, *[1.0] * 60]), "warning"),
    "most died, and the run learns": (DeadUnits, dead(0.1, 0.3, 0.8, loss=FALLING), "info"),
    "half are dead and the loss is stuck": (DeadUnits, dead(0.6, 0.6, loss=FLAT), "warning"),
    "half are dead and the run learns": (DeadUnits, dead(0.6, 0.6, loss=FALLING), "info"),
    "saturated from the start": (SaturatedActivations, saturated(0.9, 0.85, 0.9), "warning"),
    "saturated later, and stuck": (SaturatedActivations, saturated(*[0.1] * 5, *[0.9] * 3, loss=FLAT), "warning"),
    "saturated later, and learning": (SaturatedActivations, saturated(*[0.1] * 5, *[0.9] * 3, loss=FALLING), "info"),
    "one-hot attention": (
        SaturatedActivations,
        layers("attention_entropy", [[None, 0.001, None, None]] * 4, attention_logit=[90.0] * 4, loss=FLAT),
        "warning",
    ),
    "growth through depth": (ActivationExplosion, sizes([5.0**index for index in range(7)], **DEEP), "warning"),
    "growth over time, with harm": (
        ActivationExplosion,
        hurt(sizes(*[[1.0, 1.0, 1.0, 1.0]] * 5, *[[1.0, 300.0, 300.0, 9.0]] * 2)),
        "warning",
    ),
    "near the end of half precision": (
        ActivationExplosion,
        layers("act_absmax", [[1.0, 1.0, 5e4, 1.0]], facts={}, context={"autocast": "float16"}),
        "warning",
    ),
    "equal rows that stay": (IdenticalUnits, same(1.0, 1.0, 1.0, 1.0, 1.0), "warning"),
    "the last batch for ever": (
        BatchAnomaly,
        sampled(context=B32, input_checksum=[*(float(place) for place in range(1, 9)), 9.5, 9.5, 9.5]),
        "warning",
    ),
    "drawn together": (CollapsedOutput, drawn_together(), "warning"),
    "a few batches, learnt by heart": (BatchAnomaly, few_batches(validation=0.9), "warning"),
    "no spread at all": (CollapsedOutput, sampled(output_spread=[0.0] * 12), "critical"),
    "hardly any spread": (CollapsedOutput, sampled(output_spread=[5e-4] * 12), "warning"),
    "the mean of each pixel, whatever comes in": (
        CollapsedOutput,
        sampled(output_spread=[1e-7] * 12, entry_spread=[0.6] * 12, **BELOW_A_GUESS),
        "critical",
    ),
    "collapsed against its targets": (
        CollapsedOutput,
        sampled(output_spread=[5e-4] * 12, output_std=[1e-3] * 12, target_std=[1.0] * 12),
        "warning",
    ),
    "embeddings that shrink to a point": (
        CollapsedOutput,
        sampled(output_spread=[0.5] * 5 + [0.005] * 8, output_std=[0.1] * 5 + [0.0005] * 8),
        "warning",
    ),
    "one player says one thing": (
        CollapsedOutput,
        sampled(output_spread=[0.5] * 12, **{"output_spread/makes": [2e-3] * 12}),
        "warning",
    ),
    "one class of five": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 16,
            prediction_top_share=[1.0] * 16,
            criterion=[1.6] * 16,
            guess_loss=[1.6] * 16,
            pooled_classes=[5.0] * 16,
            pooled_top_share=[0.2] * 16,
        ),
        "warning",
    ),
    "nearly one class, for a third of the time": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 11,
            prediction_top_share=[1.0] * 11,
            criterion=[0.01, 0.12] * 5 + [0.01],
            guess_loss=[0.01, 0.11] * 5 + [0.01],
            pooled_classes=[5.0] * 11,
            pooled_top_share=[0.99] * 11,
        ),
        "warning",
    ),
    "nearly one class, of which others were seen often": (CollapsedOutput, mostly_one_class(64), "warning"),
    "nearly one class, of which others were hardly seen": (CollapsedOutput, mostly_one_class(4), "info"),
    "nearly one class, in a warm-up": (CollapsedOutput, mostly_one_class(64, warms=True), "info"),
    "nearly one class, not yet as good as a guess": (
        CollapsedOutput,
        mostly_one_class(64, criterion=[0.16] * 16),
        "info",
    ),
    "nearly one class, and too few batches to say more": (
        CollapsedOutput,
        mostly_one_class(64, criterion=[0.12, 0.15] * 8),
        "info",
    ),
    "nearly one class, but outputs move far apart": (
        CollapsedOutput,
        mostly_one_class(64, output_std=[0.1] * 4 + [0.8] * 12),
        "info",
    ),
    "nearly one class, and outputs move apart a little": (
        CollapsedOutput,
        mostly_one_class(64, output_std=[0.1] * 4 + [0.15] * 12),
        "warning",
    ),
    "a code that is the prior": (
        CollapsedOutput,
        code(*([0.6, 0.25 * 0.6**sample, 0.3 * 0.6**sample, 0.3] for sample in range(10))),
        "warning",
    ),
    "a code in one layer that is the prior": (CollapsedOutput, halved_code(0.6), "warning"),
    "a part that is drawn together, where no output is seen": (CollapsedOutput, inner_parts(0.75), "warning"),
    "padding that the loss counts": (
        TargetAnomaly,
        sampled(target_classes=[4.0] * 4, target_padding=[0.9, 0.8, 0.85, 0.9]),
        "warning",
    ),
    "first loss of ten guesses": (UnexpectedInitialLoss, sampled(LABELS, criterion=[20.0]), "warning"),
    "first loss of five guesses": (UnexpectedInitialLoss, sampled(LABELS, criterion=[8.0]), "info"),
    "still above a guess": (
        UnexpectedInitialLoss,
        sampled(LABELS, criterion=[8.0] + [3.0] * 8, output_rms=[9.0] * 9),
        "warning",
    ),
    "above a guess, by a scale that may be meant": (
        UnexpectedInitialLoss,
        sampled(LABELS, criterion=[8.0] + [3.0] * 8),
        "info",
    ),
    "the last position is hard": (
        UnevenPositionLoss,
        sampled(context=B32, last_position_loss=[2.5] * 4, other_position_loss=[0.9] * 4),
        "warning",
    ),
    "raw pixels": (InputAnomaly, sampled(entry_rms=[140.0] * 3, entry_absmax=[255.0] * 3), "warning"),
    "rather large": (InputAnomaly, sampled(entry_rms=[15.0] * 3, entry_absmax=[40.0] * 3), "info"),
    "tiny": (InputAnomaly, sampled(entry_rms=[1e-4] * 3, entry_absmax=[4e-4] * 3), "warning"),
    "a time in seconds": (
        InputAnomaly,
        sampled(entry_rms=[1.0] * 3, entry_absmax=[3.0] * 3, side_entry_rms=[577.0] * 3),
        "warning",
    ),
    "not finite": (InputAnomaly, sampled(input_nonfinite=[0.0, 3.0]), "warning"),
    "all samples equal": (InputAnomaly, sampled(input_constant=[1.0] * 3), "warning"),
    "targets never reached": (
        TargetAnomaly,
        sampled(target_mean=[3e4] * 11, target_std=[1e4] * 11, output_rms=[1.0] * 11),
        "warning",
    ),
    "targets never reached, under a likelihood that widens": (
        TargetAnomaly,
        sampled(target_mean=[3e4] * 11, target_std=[1e4] * 11, output_rms=[1.0] * 11, criterion=[9e8, 500.0, 13.0]),
        "warning",
    ),
    "targets never reached, and an error that stays": (
        TargetAnomaly,
        sampled(target_mean=[3e4] * 11, target_std=[1e4] * 11, output_rms=[1.0] * 11, criterion=[1.0, 0.999, 0.998]),
        "warning",
    ),
    "large targets at first": (
        TargetAnomaly,
        sampled(target_mean=[3e3] * 3, target_std=[1e3] * 3, output_rms=[1.0] * 3),
        "info",
    ),
    "one class": (TargetAnomaly, sampled(LABELS, context=B32, pooled_classes=[1.0] * 8), "warning"),
    "negative targets behind a ReLU": (
        TargetAnomaly,
        layers(
            "act_rms",
            [[1.0, 1.0, 1.0, 0.6]] * 3,
            kinds=["Linear", "ReLU", "Linear", "ReLU"],
            output_rms=[0.6] * 3,
            target_mean=[0.0] * 3,
            target_std=[1.0] * 3,
            target_min=[-3.0] * 3,
            target_max=[3.0] * 3,
        ),
        "warning",
    ),
    "targets are inputs": (TargetAnomaly, sampled(target_is_input=[1.0] * 3), "warning"),
    "labels of 0 and 1 where -1 and 1 are meant": (
        TargetAnomaly,
        sampled(
            {"loss.function": "SoftMarginLoss"}, target_min=[0.0] * 3, target_max=[1.0] * 3, target_two_valued=[1.0] * 3
        ),
        "warning",
    ),
    "targets not finite": (TargetAnomaly, sampled(target_nonfinite=[1.0]), "warning"),
    "same batch, read anew": (BatchAnomaly, sampled(context=B32, input_checksum=[3.5] * 9), "warning"),
    "same tensor, few samples": (
        BatchAnomaly,
        sampled({"data.same_tensor": True}, context=B32, input_checksum=[3.5] * 6),
        "info",
    ),
    "same tensor, validation apart": (
        BatchAnomaly,
        sampled(
            {"data.same_tensor": True},
            context=B32,
            input_checksum=[3.5] * 9,
            val_loss=[2.0, 2.1, 2.2],
            loss=[0.1] * 100,
        ),
        "warning",
    ),
    "sorted by class": (
        BatchAnomaly,
        sampled(context=B32, target_collision=[1.0] * 10, pooled_collision=[0.3] * 10),
        "warning",
    ),
    "sorted by answer": (
        BatchAnomaly,
        sampled(
            target_std=[0.0] * 10, target_mean=[1.0, 0.0] * 5, target_min=[1.0, 0.0] * 5, target_max=[1.0, 0.0] * 5
        ),
        "warning",
    ),
    "returns up to one that grow as a policy gets better": (
        BatchAnomaly,
        sampled(
            target_std=[0.02] * 10,
            target_mean=[0.5 + 0.04 * step for step in range(10)],
            target_min=[0.0] * 10,
            target_max=[1.0] * 10,
        ),
        "info",
    ),
    "ordered by value": (
        BatchAnomaly,
        sampled(
            target_std=[1.0] * 10,
            target_mean=[3.0 * step for step in range(10)],
            target_min=[0.0] * 10,
            target_max=[30.0] * 10,
        ),
        "info",
    ),
    "embeddings that point one way, at any length": (
        CollapsedOutput,
        sampled(output_spread=[0.4] * 12, output_directions=[0.2, 0.2, 0.15, 0.1] + [0.02] * 8),
        "warning",
    ),
    "two views that are both pulled together": (
        CollapsedOutput,
        sampled(
            {"loss.kind": "mse", "loss.between_outputs": True},
            output_spread=[0.4] * 12,
            output_directions=[0.2] * 4 + [0.02] * 8,
        ),
        "warning",
    ),
    "a regression whose answer is in the window": (TargetAnomaly, sampled(target_in_input=[1.0] * 4), "warning"),
    "an error that a sigmoid cannot span": (
        TargetAnomaly,
        ended("Sigmoid", {"loss.kind": "l1", "loss.reduction": "mean"}, loss=[21.0] * 30, output_rms=[0.5] * 4),
        "warning",
    ),
    "the outcome is a column of the table": (TargetAnomaly, sampled(label_in_input=[1.0] * 6), "warning"),
    "a column that is filled in after the outcome": (
        TargetAnomaly,
        sampled(label_in_input=[0.97] * 6, label_in_another=[0.4] * 6),
        "warning",
    ),
    "a mask divided by 255 once more": (
        TargetAnomaly,
        sampled({"loss.kind": "bce"}, target_min=[0.0] * 6, target_max=[1 / 255] * 6, target_two_valued=[1.0] * 6),
        "warning",
    ),
    "boxes in pixels beside classes": (
        TargetAnomaly,
        sampled(part_target_size=[400.0] * 12, part_loss_ratio=[1500.0] * 12),
        "warning",
    ),
    "class weights upside down": (
        SuspiciousLoss,
        sampled(weight_of_common=[30.0] * 6, pooled_top_share=[0.97] * 6, pooled_classes=[2.0] * 6),
        "warning",
    ),
    "ratings by embeddings of deviation 1": (
        UnexpectedInitialLoss,
        sampled(criterion=[70.0] * 10, guess_loss=[0.8] * 10, output_std=[8.0] * 10, pooled_std=[0.9] * 10),
        "warning",
    ),
    "ordered by value, and forgotten": (BatchAnomaly, spiked(ordered()), "warning"),
}
HEALTHY = {
    "counts, and the logarithms of their rates": (
        TargetAnomaly,
        sampled(
            {"loss.function": "PoissonNLLLoss"}, target_mean=[3e4] * 11, target_std=[1e4] * 11, output_rms=[1.0] * 11
        ),
    ),
    "embeddings that were never apart": (
        CollapsedOutput,
        sampled(output_spread=[0.4] * 12, output_directions=[0.02] * 12),
    ),
    "answers far from zero, compared with data by hand": (
        CollapsedOutput,
        sampled({"loss.kind": "mse"}, output_spread=[0.4] * 12, output_directions=[0.2] * 4 + [0.01] * 8),
    ),
    "views that are pulled together, and kept apart by a term of their own": (
        CollapsedOutput,
        sampled(
            {"loss.kind": "mse", "loss.between_outputs": True},
            output_spread=[0.4] * 12,
            output_std=[0.03] * 4 + [1.2] * 8,
            output_directions=[0.2] * 4 + [0.01] * 8,
        ),
    ),
    "rare positives that outputs move apart for": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 9,
            output_std=[0.2 * 1.4**index for index in range(9)],
            prediction_top_share=[1.0] * 9,
            pooled_top_share=[0.98] * 9,
            pooled_classes=[2.0] * 9,
            guess_loss=[0.1] * 9,
            criterion=[0.1] * 9,
        ),
    ),
    "the answer is now and then what it was before": (TargetAnomaly, sampled(target_in_input=[0.3, 1.0, 0.4, 0.3])),
    "an error within reach of a sigmoid": (
        TargetAnomaly,
        ended("Sigmoid", {"loss.kind": "l1", "loss.reduction": "mean"}, loss=[0.7] * 30, output_rms=[0.5] * 4),
    ),
    "a sum of errors": (
        TargetAnomaly,
        ended("Sigmoid", {"loss.kind": "l1", "loss.reduction": "sum"}, loss=[21.0] * 30, output_rms=[0.5] * 4),
    ),
    "a good feature": (TargetAnomaly, sampled(label_in_input=[0.99] * 6)),
    "several good features": (TargetAnomaly, sampled(label_in_input=[0.98] * 6, label_in_another=[0.95] * 6)),
    "the better of two groups": (TargetAnomaly, sampled(label_in_input=[0.86] * 6, label_in_another=[0.1] * 6)),
    "rates of clicks": (
        TargetAnomaly,
        sampled({"loss.kind": "bce"}, target_min=[0.0] * 6, target_max=[0.03] * 6, target_two_valued=[0.0] * 6),
    ),
    "a mask without anything in it": (
        TargetAnomaly,
        sampled({"loss.kind": "bce"}, target_min=[0.0] * 6, target_max=[0.0] * 6, target_two_valued=[1.0] * 6),
    ),
    "large targets that are met, beside classes": (
        TargetAnomaly,
        sampled(part_target_size=[400.0] * 12, part_loss_ratio=[1500.0] * 4 + [20.0] * 8),
    ),
    "a small term beside a large one": (
        TargetAnomaly,
        sampled(part_target_size=[1.0] * 12, part_loss_ratio=[5000.0] * 12),
    ),
    "class weights the right way round": (
        SuspiciousLoss,
        sampled(weight_of_common=[0.03] * 6, pooled_top_share=[0.97] * 6, pooled_classes=[2.0] * 6),
    ),
    "a costly class among even ones": (
        SuspiciousLoss,
        sampled(weight_of_common=[5.0] * 6, pooled_top_share=[0.14] * 6, pooled_classes=[10.0] * 6),
    ),
    "targets far from zero, a quiet model": (
        UnexpectedInitialLoss,
        sampled(criterion=[900.0] * 10, guess_loss=[1.0] * 10, output_std=[0.2] * 10, pooled_std=[1.0] * 10),
    ),
    "wild answers, healed": (
        UnexpectedInitialLoss,
        sampled(criterion=[70.0, 9.0, 0.7], guess_loss=[0.8] * 3, output_std=[8.0] * 3, pooled_std=[0.9] * 3),
    ),
    "rare ones in batches that mostly have none": (
        BatchAnomaly,
        sampled(
            context=B32,
            target_mean=[0.0, 0.0, 0.03, 0.0, 0.0, 0.06, 0.0, 0.03] * 2,
            target_std=[0.0, 0.0, 0.174, 0.0, 0.0, 0.242, 0.0, 0.174] * 2,
            target_min=[0.0] * 16,
            target_max=[0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0] * 2,
        ),
    ),
    "no dead units in a sparse layer": (DeadUnits, dead(0.0, 0.0)),
    "a third dead": (DeadUnits, dead(0.3, 0.35, loss=FLAT)),
    "an output at zero": (DeadUnits, layers("act_dead", [[None, 0.0, None, 1.0]] * 3)),
    "rows of another width": (DeadUnits, layers("act_dead", [[0.9, 0.9]])),
    "a trained tanh": (SaturatedActivations, saturated(0.1, 0.3, 0.5, 0.5, loss=FLAT)),
    "one saturated sample": (SaturatedActivations, saturated(0.1, 0.9)),
    "an output at its extremes": (SaturatedActivations, saturated(*[0.1] * 4, last=0.99)),
    "sharp attention of small logits": (
        SaturatedActivations,
        layers("attention_entropy", [[None, 0.001, None, None]] * 4, attention_logit=[9.0] * 4),
    ),
    "one sharp head of two": (
        SaturatedActivations,
        layers("attention_entropy", [[0.9, 0.001, 0.8, None]] * 4, attention_logit=[90.0] * 4),
    ),
    "signed labels": (
        TargetAnomaly,
        sampled(
            {"loss.function": "SoftMarginLoss"},
            target_min=[-1.0] * 3,
            target_max=[1.0] * 3,
            target_two_valued=[1.0] * 3,
        ),
    ),
    "labels of 0 and 1 of a binary loss": (
        TargetAnomaly,
        sampled({"loss.function": "BCELoss"}, target_min=[0.0] * 3, target_max=[1.0] * 3, target_two_valued=[1.0] * 3),
    ),
    "back at the size that came in": (
        ActivationExplosion,
        sizes([1e-4 * 5.0**index for index in range(7)], entry_rms=[2.0], **DEEP),
    ),
    "even through depth": (ActivationExplosion, sizes([1.0, 0.8, 1.3, 0.9, 1.1, 1.5, 0.7], **DEEP)),
    "a residual stream": (ActivationExplosion, sizes([1.5**index for index in range(7)], **DEEP)),
    "one large output": (ActivationExplosion, sizes([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5e3], **DEEP)),
    "three layers only": (ActivationExplosion, sizes([1.0, 30.0, 900.0, 27000.0])),
    "an output that reaches thousands": (
        ActivationExplosion,
        sizes(*[[1.0, 0.5, 1.0, 1.0]] * 5, *[[2.0, 2.0, 2.0, 3e3]] * 2),
    ),
    "a branch that began at zero": (
        ActivationExplosion,
        sizes(*[[1.0, 0.5, 0.0, 1.0]] * 5, *[[1.0, 0.5, 0.9, 1.0]] * 2),
    ),
    "most branches began at zero": (
        ActivationExplosion,
        sizes([1.0, 0.0, 0.0, 0.0], *[[1.0, 1e-3, 1e-3, 0.1]] * 4, *[[1.0, 2.0, 3.0, 1.0]] * 2),
    ),
    "grown fifty times": (ActivationExplosion, hurt(sizes(*[[1.0] * 4] * 5, *[[50.0] * 4] * 2))),
    "large in bfloat16": (
        ActivationExplosion,
        layers("act_absmax", [[1.0, 1.0, 5e4, 1.0]], context={"autocast": "bfloat16"}),
    ),
    "a zero that moves": (IdenticalUnits, same(1.0, 0.0, 0.0, 0.0, 0.0)),
    "before the learning rate is up": (IdenticalUnits, same(1.0, 1.0, 1.0)),
    "no learning rate": (IdenticalUnits, same(1.0, 1.0, 1.0, 1.0, 1.0, lr=[0.0] * 5)),
    "a second input of a usual size": (
        InputAnomaly,
        sampled(entry_rms=[1.0] * 3, entry_absmax=[3.0] * 3, side_entry_rms=[9.0] * 3),
    ),
    "drawn together, but by targets": (CollapsedOutput, drawn_together(facts={})),
    "compared with each other, and apart": (
        CollapsedOutput,
        sampled(
            {"loss.between_outputs": True},
            output_spread=[0.5] * 12,
            output_std=[1.0] * 12,
            output_directions=[0.4] * 12,
        ),
    ),
    "a code in one layer that is used": (CollapsedOutput, halved_code(1.2)),
    "a young code in one layer": (CollapsedOutput, halved_code(0.6, samples=8)),
    "parts that are compared and stay apart": (CollapsedOutput, inner_parts(0.95)),
    "a part that narrows for its targets": (CollapsedOutput, inner_parts(0.75, facts={})),
    "two alike after many that differ": (
        BatchAnomaly,
        sampled(context=B32, input_checksum=[*(float(place) for place in range(1, 9)), 9.5, 9.5]),
    ),
    "a few batches, and validation follows": (BatchAnomaly, few_batches(validation=0.05)),
    "a few batches, and no validation": (BatchAnomaly, few_batches()),
    "many batches, learnt by heart": (BatchAnomaly, few_batches(different=12, validation=0.9)),
    "a young model": (CollapsedOutput, sampled(output_spread=[1e-4, 1e-4, 1e-4, 5e-4, 4e-3, 0.1, 0.4, 0.6])),
    "a zero head": (CollapsedOutput, sampled(output_spread=[0.0, 0.4, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.8])),
    "a small part of a large value": (
        CollapsedOutput,
        sampled(output_spread=[1e-4] * 12, output_std=[1.0] * 12, target_std=[1.1] * 12),
    ),
    "an offset that is learnt": (
        CollapsedOutput,
        sampled(output_spread=[0.8] * 5 + [0.01] * 8, output_std=[0.1] * 5 + [0.05] * 8),
    ),
    "batches of one sample each, many times": (
        CollapsedOutput,
        sampled(output_spread=[1e-7] * 12, entry_spread=[0.0] * 12, **BELOW_A_GUESS),
    ),
    "batches that are much alike, and answers too": (
        CollapsedOutput,
        sampled(output_spread=[5e-4] * 12, entry_spread=[0.6] * 12, **BELOW_A_GUESS),
    ),
    "small answers": (CollapsedOutput, sampled(output_spread=[0.9] * 13, output_std=[0.1] * 5 + [0.0005] * 8)),
    "collapsed for a moment": (CollapsedOutput, sampled(output_spread=[0.5] * 8 + [0.0])),
    "mostly one class, but learning": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 16,
            prediction_top_share=[1.0] * 16,
            criterion=[0.1] * 16,
            guess_loss=[0.2] * 16,
            pooled_classes=[2.0] * 16,
            pooled_top_share=[0.95] * 16,
        ),
    ),
    "one class, of one sample a batch": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 16,
            prediction_top_share=[1.0] * 16,
            criterion=[1.6] * 16,
            guess_loss=[1.6] * 16,
            pooled_classes=[5.0] * 16,
            pooled_top_share=[0.2] * 16,
            target_top_share=[1.0] * 16,
            target_collision=[0.0] * 16,
        ),
    ),
    "mostly one class, for a moment": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 11,
            prediction_top_share=[1.0] * 11,
            criterion=[0.5] * 11,
            guess_loss=[0.5] * 11,
            pooled_classes=[2.0] * 11,
            pooled_top_share=[0.8] * 11,
        ),
    ),
    "a code that says something": (
        CollapsedOutput,
        code(*([0.6, 0.25 + 0.1 * k, 0.3 + 0.1 * k, 0.3] for k in range(10))),
    ),
    "a code with a fixed spread": (
        CollapsedOutput,
        code(*([0.6, 0.25 + 0.1 * k, 0.3 * 0.6**k, 0.3] for k in range(10))),
    ),
    "two small answers": (
        CollapsedOutput,
        code(*([0.6, 0.25 * 0.6**k, 0.3 * 0.6**k, 0.3] for k in range(10)), widths=(32, 4, 1, 20)),
    ),
    "texts that end in a few blanks": (
        TargetAnomaly,
        sampled(target_classes=[4.0] * 4, target_padding=[0.3, 0.2, 0.25, 0.3]),
    ),
    "padding is left out of the loss": (TargetAnomaly, sampled(target_classes=[4.0] * 4, target_padding=[0.0] * 4)),
    "one label for all": (
        CollapsedOutput,
        sampled(
            output_spread=[0.4] * 16,
            prediction_top_share=[1.0] * 16,
            criterion=[1.0] * 16,
            guess_loss=[1.0] * 16,
            pooled_classes=[1.0] * 16,
        ),
    ),
    "twice a guess": (UnexpectedInitialLoss, sampled(LABELS, criterion=[3.3])),
    "far below a guess": (UnexpectedInitialLoss, sampled(LABELS, criterion=[0.01])),
    "healed": (UnexpectedInitialLoss, sampled(LABELS, criterion=[8.0, 4.0, 1.2])),
    "healed, and just about a guess since": (UnexpectedInitialLoss, sampled(LABELS, criterion=[8.0, *[1.5, 1.7] * 4])),
    "chance unknown": (UnexpectedInitialLoss, sampled(criterion=[900.0])),
    "watched from the middle": (UnexpectedInitialLoss, _late := sampled(LABELS)),
    "the last position is easier": (
        UnevenPositionLoss,
        sampled(context=B32, last_position_loss=[1.5] * 4, other_position_loss=[2.0] * 4),
    ),
    "a state that explodes is worst at the last position": (
        UnevenPositionLoss,
        sampled(LABELS, context=B32, last_position_loss=[5e7] * 4, other_position_loss=[1.5e6] * 4),
    ),
    "one that explodes in a model of numbers": (
        UnevenPositionLoss,
        sampled(
            {"loss.kind": "mse"},
            last_position_error=[5e9, 5e7, 5e7, 5e7],
            other_position_error=[1e9, 1.5e6, 1.5e6, 1.5e6],
            guess_loss=[1.0] * 4,
        ),
    ),
    "one unlucky sample": (
        UnevenPositionLoss,
        sampled(context=B32, last_position_loss=[2.0, 2.1, 3.9], other_position_loss=[2.0] * 3),
    ),
    "few sequences": (
        UnevenPositionLoss,
        sampled(context={"batch_size": 4}, last_position_loss=[3.2, 3.0, 3.4], other_position_loss=[1.8] * 3),
    ),
    "all learnt": (
        UnevenPositionLoss,
        sampled(context=B32, last_position_loss=[0.02] * 3, other_position_loss=[0.005] * 3),
    ),
    "usual inputs": (InputAnomaly, sampled(entry_rms=[1.0] * 3, entry_absmax=[4.0] * 3, input_constant=[0.2] * 3)),
    "pixels up to one": (InputAnomaly, sampled(entry_rms=[0.3] * 3, entry_absmax=[1.0] * 3)),
    "sparse words": (InputAnomaly, sampled(entry_rms=[0.01] * 3, entry_absmax=[1.0] * 3)),
    "pixels before a normalization": (
        InputAnomaly,
        sampled({"data.normalized_first": True}, entry_rms=[140.0] * 3, entry_absmax=[255.0] * 3),
    ),
    "one large batch": (InputAnomaly, sampled(entry_rms=[1.0, 1.0, 90.0], entry_absmax=[3.0, 3.0, 200.0])),
    "targets of one": (TargetAnomaly, sampled(target_mean=[0.0] * 9, target_std=[1.0] * 9, output_rms=[0.1] * 9)),
    "thousands that are reached": (
        TargetAnomaly,
        sampled(target_mean=[3e3] * 11, target_std=[1e3] * 11, output_rms=[0.1] * 5 + [200.0] * 6),
    ),
    "thousands whose logarithms are compared": (
        TargetAnomaly,
        sampled(target_mean=[3e4] * 11, target_std=[1e4] * 11, output_rms=[10.0] * 11, criterion=[0.3, 0.05, 0.006]),
    ),
    "positive targets behind a ReLU": (
        TargetAnomaly,
        layers(
            "act_rms",
            [[1.0, 1.0, 1.0, 0.6]] * 3,
            kinds=["Linear", "ReLU", "Linear", "ReLU"],
            output_rms=[0.6] * 3,
            target_mean=[1.0] * 3,
            target_std=[1.0] * 3,
            target_min=[0.0] * 3,
            target_max=[6.0] * 3,
        ),
    ),
    "one label, more classes than samples": (
        TargetAnomaly,
        sampled({"loss.classes": 64}, context=B32, pooled_classes=[1.0] * 16),
    ),
    "one class so far, of few labels": (
        TargetAnomaly,
        sampled({"loss.classes": 2}, context={"batch_size": 4}, pooled_classes=[1.0] * 9),
    ),
    "one batch of heavy-tailed targets": (
        TargetAnomaly,
        sampled(target_std=[2.0] * 15 + [240.0], target_mean=[0.0] * 16, output_rms=[1.9] * 16),
    ),
    "one batch with an outlier": (
        BatchAnomaly,
        sampled(target_std=[1.0] * 9 + [900.0], target_mean=[0.1, -0.1] * 4 + [0.0, 500.0]),
    ),
    "new batches": (BatchAnomaly, sampled(context=B32, input_checksum=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
    "two epochs alike": (BatchAnomaly, sampled(context=B32, input_checksum=[1.0, 2.0, 3.0, 1.0, 2.0, 3.0])),
    "shuffled classes": (
        BatchAnomaly,
        sampled(context=B32, target_collision=[0.2, 0.24, 0.18, 0.2] * 3, pooled_collision=[0.2] * 12),
    ),
    "many of each class on purpose": (
        BatchAnomaly,
        sampled(context=B32, target_collision=[0.25] * 10, pooled_collision=[0.02] * 10),
    ),
    "a player's constant targets": (
        BatchAnomaly,
        sampled(target_std=[0.0] * 10, target_mean=[1.0] * 10, target_min=[1.0] * 10, target_max=[1.0] * 10),
    ),
}
_late.put(500, "criterion", 50.0)


@pytest.mark.parametrize(("detector", "chart", "severity"), SICK.values(), ids=SICK)
def test_fires(detector, chart, severity):
    symptom = detector().check(chart)
    assert symptom is not None
    assert symptom.severity == severity
    assert symptom.first_step <= symptom.last_step


SENTENCES = {
    "labels are counted from the first batch on": (
        BatchAnomaly,
        sampled(context=B32, target_collision=[1.0] * 10, pooled_collision=[0.3] * 10),
        "share a class in 100 % of pairs, two of the first 10 batches checked in 30 %: the data is sorted by class",
    ),
    "what enters a layer": (
        DeadUnits,
        layers("act_dead", [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.7, 0.0]]),
        "70 % of the features that enter",
    ),
    "a model that has only a number": (
        CollapsedOutput,
        sampled(
            context={"model": {"class": "Generator, Critic"}},
            output_spread=[0.5] * 12,
            **{"output_spread/1": [2e-3] * 12},
        ),
        "the outputs of model 1 (Critic) are nearly the same",
    ),
}


@pytest.mark.parametrize(("detector", "chart", "words"), SENTENCES.values(), ids=SENTENCES)
def test_says_what_was_measured(detector, chart, words):
    assert words in detector().check(chart).message


def test_a_place_is_more_than_a_number():
    chart = sampled(output_spread=[0.5] * 12, **{"output_spread/1": [2e-3] * 12})
    assert CollapsedOutput().check(chart).where == ("model 1",)


@pytest.mark.parametrize(("detector", "chart"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(detector, chart):
    assert detector().check(chart) is None


MODULE_VITALS = [
    "act_rms",
    "act_absmax",
    "act_dead",
    "act_zero",
    "act_spread",
    "act_saturated",
    "attention_entropy",
    "weight_same",
]
SCALARS = [
    "loss",
    "lr",
    "criterion",
    "entry_rms",
    "entry_absmax",
    "entry_ratio",
    "input_checksum",
    "input_constant",
    "input_nonfinite",
    "input_absmax",
    "target_mean",
    "target_std",
    "target_min",
    "target_max",
    "target_absmax",
    "target_nonfinite",
    "target_is_input",
    "target_classes",
    "target_collision",
    "target_probability",
    "pooled_collision",
    "pooled_classes",
    "pooled_entropy",
    "pooled_top_share",
    "pooled_std",
    "output_rms",
    "output_std",
    "output_spread",
    "output_spread/a",
    "prediction_top_share",
    "attention_logit",
    "last_position_loss",
    "other_position_loss",
    "val_loss",
]
HOSTILE = [0.0, -1.0, 1e38, math.inf, math.nan, -math.inf, 1e-38, -1e38, 5e-324, 1.0]
MINE = [
    ActivationExplosion,
    BatchAnomaly,
    CollapsedOutput,
    DeadUnits,
    IdenticalUnits,
    InputAnomaly,
    SaturatedActivations,
    TargetAnomaly,
    UnevenPositionLoss,
    UnexpectedInitialLoss,
]
CAUSES = [
    "bad-initialization",
    "missing-normalization",
    "saturating-nonlinearity",
    "missing-skip-connections",
    "unnormalized-inputs",
    "unnormalized-targets",
    "class-imbalance",
    "data-order",
    "repeated-batch",
    "information-leak",
    "nan-in-data",
    "bad-batch",
]


@pytest.mark.parametrize("seed", range(4))
def test_hostile_readings_raise_nothing(seed):
    rng = np.random.default_rng(seed)
    facts = {"modules.names": NAMES, "modules.kinds": KINDS, "modules.outputs": NAMES[-1:], "modules.normalized": 0}
    chart = sampled({**facts, **LABELS}, context={**B32, "autocast": "float16"})
    causes = [cause() for cause in diagnoses.CAUSES if cause.name in CAUSES]
    assert len(causes) == len(CAUSES)
    for step in range(0, 600, 10):
        rows = {vital: rng.choice(HOSTILE, 4).tolist() for vital in MODULE_VITALS}
        chart.add({"type": "modules", "step": step, "vitals": rows})
        for vital in SCALARS:
            chart.put(step, vital, float(rng.choice(HOSTILE)))
        for detector in MINE:
            detector().check(chart)
        for cause in causes:
            for name in cause.explains:
                problem = diagnoses.Problem((Symptom(name, "", "warning", 0.9, 0, step, where=("act",)),))
                assert all(math.isfinite(item.weight) for item in cause.weigh(chart, problem))


def test_a_batch_that_comes_for_ever_after_others_is_a_warning_whatever_its_size():
    chart = sampled(
        {"data.same_tensor": True}, context={"batch_size": 512}, input_checksum=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0, 6.0]
    )
    assert BatchAnomaly().check(chart).severity == "warning"


def test_the_first_evaluations_show_that_one_batch_is_too_few():
    losses = [2.3 * 0.95**step for step in range(120)]
    for values, found in ({(3.0,): "warning", (1.3, 1.7): "warning", (1.7, 1.3): "info", (0.02,): "info"}).items():
        chart = sampled(
            {"data.same_tensor": True}, context=B32, input_checksum=[3.5] * 6, loss=losses, val_loss=list(values)
        )
        assert BatchAnomaly().check(chart).severity == found, values


def test_a_masked_language_model_that_counts_what_was_not_masked():
    masked = sampled(target_is_input=[0.85] * 4, target_masked=[0.8] * 4)
    assert TargetAnomaly().check(masked).severity == "warning"
    for same, share in ((0.85, 0.2), (0.3, 1.0), (0.01, 0.9)):
        assert TargetAnomaly().check(sampled(target_is_input=[same] * 4, target_masked=[share] * 4)) is None


CONSTANT = {
    "an old value": (2.5331234, [1.0 + 0.2 * (step % 3) for step in range(150)], True),
    "rounded": (0.01, [1.0 + 0.2 * (step % 3) for step in range(150)], False),
    "half precision": (10.375, [1.0 + 0.2 * (step % 3) for step in range(150)], False),
    "nothing changes": (2.5331234, [1.0] * 150, False),
    "no gradient": (2.5331234, [0.0] * 150, False),
    "too short": (2.5331234, [1.0 + 0.2 * (step % 3) for step in range(80)], False),
}


@pytest.mark.parametrize(("value", "norms", "fires"), CONSTANT.values(), ids=CONSTANT)
def test_a_logged_loss_that_never_changes_although_gradients_do(value, norms, fires):
    found = SuspiciousLoss().check(Chart.of(loss=[value] * len(norms), grad_norm=norms))
    assert (found is not None) == fires
    if found:
        assert found.message.startswith("the logged loss has been exactly 2.53 for 150 steps, while gradients change")
