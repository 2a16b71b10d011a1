"""Enters answers as evidence on the chart of an examination; measurements take precedence over answers.

Typed losses are vitals like any others, and the detectors examine them. A complaint that no detector finds is entered
as a reported finding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.consulting.complaints import BY_NAME, Complaint
from torchdoctor.consulting.question import Answers
from torchdoctor.diagnoses.configuration import logged_every
from torchdoctor.diagnoses.ranking import GAP
from torchdoctor.examination import Examination
from torchdoctor.records import Record, Severity, Symptom, number_text
from torchdoctor.symptoms import DETECTORS

OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
KINDS = {"relu": "ReLU", "saturating": "Sigmoid"}
MIDDLE = 1000
"""The assumed onset of trouble if nobody knows it: long after a warm-up. It is never shown."""
REPORTED = "reported"
"""Start of the message of a finding that a person reported and no detector found."""
UNDATED = "onset not known"
WARM = 0.01
"""A warm-up is assumed to begin at this share of the highest learning rate."""
LATELY = 20
"""How many values a single typed number, such as a norm, is entered for."""
CODES = {detector.name: detector.code for detector in DETECTORS}
READS = {detector.name: detector.reads for detector in DETECTORS}


def supply(examination: Examination, answers: Answers) -> None:
    """Enter the answers to what the run does not record."""
    chart = examination.chart
    for record in _setting(chart, answers):
        examination.take(record)
    rate = _number(answers, "lr")
    if answers.get("schedule") == "warmup" and not chart["lr"] and rate > 0:
        examination.take({"type": "vitals", "step": 0, "vitals": {"lr": WARM * rate}})
    if not chart["loss"]:
        for record in sorted(_vitals(answers), key=lambda item: int(item["step"])):
            examination.take(record)
    _levels(chart, answers)
    _layers(chart, answers)


def _number(answers: Answers, name: str) -> float:
    value = answers.get(name)
    return value if isinstance(value, float) else math.nan


def _numbers(answers: Answers, name: str) -> list[float]:
    values = answers.get(name)
    return [item for item in values if isinstance(item, float)] if isinstance(values, list) else []


def _whole(answers: Answers, name: str) -> int | None:
    value = _number(answers, name)
    return None if math.isnan(value) else int(value)


def _setting(chart: Chart, answers: Answers) -> Iterator[Record]:
    """Records for the context, groups and facts that are not known yet."""
    told: dict[str, Any] = {}
    used = OPTIMIZERS.get(str(answers.get("optimizer")))
    if used:
        told["optimizer"] = [{"class": used, "groups": 1}]
    if (size := _whole(answers, "parameters")) is not None:
        told["model"] = {"parameters": size, "trainable": size}
    for name in ("batch_size", "dataset_size"):
        if (value := _whole(answers, name)) is not None:
            told[name] = value
    if not math.isnan(rate := _number(answers, "dropout")):
        told["dropout"] = [rate] if rate > 0 else []
    told.update(_precision(str(answers.get("precision"))))
    new = {key: value for key, value in told.items() if not chart.context.get(key)}
    if new:
        yield {"type": "context", "step": max(chart.step, 0), "context": new}
    group: dict[str, Any] = {"optimizer": used} if used else {}
    if not math.isnan(decay := _number(answers, "weight_decay")):
        group["weight_decay"] = decay
    if group and not chart.groups:
        yield {"type": "groups", "step": max(chart.step, 0), "groups": [group]}
    facts = {key: value for key, value in _facts(answers).items() if key not in chart.facts}
    if facts:
        yield {"type": "facts", "step": max(chart.step, 0), "facts": facts}


def _precision(said: str) -> dict[str, Any]:
    match said:
        case "float16":
            return {"autocast": "float16"}
        case "float16-scaled":
            return {"autocast": "float16", "scaler": "GradScaler"}
        case "bfloat16":
            return {"autocast": "bfloat16"}
        case "float32":
            return {"precision": ["float32"]}
    return {}


def _facts(answers: Answers) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    fragile = [name for name in answers.get("loss_operations") or () if name != "library"]  # type: ignore[union-attr]
    if fragile:
        facts["loss.fragile"] = fragile
    kind, layers = KINDS.get(str(answers.get("activation"))), _whole(answers, "layers")
    if kind and (layers or kind == "Sigmoid"):
        facts["modules.kinds"] = ["Linear", kind] * min(layers or 1, 500)  # never show a number that nobody gave
    return facts


def _vitals(answers: Answers) -> Iterator[Record]:
    """Records for typed losses, one per step, as if they were logged."""
    train, validation = _numbers(answers, "train_losses"), _numbers(answers, "val_losses")
    losses = train or _numbers(answers, "losses")
    broke, now = _whole(answers, "nan_step"), _whole(answers, "current_step")
    last = broke - 1 if broke is not None else now
    if not losses and not math.isnan(known := _number(answers, "last_loss")):
        losses = [known]
    # Losses of evaluations are spread over the run; losses of steps are consecutive.
    first_of = max(len(train), len(validation)) if train else len(losses)
    stride = max((last + 1) // max(first_of, 1), 1) if train and last is not None else 1
    end = last if last is not None else first_of * stride - 1
    rate = _number(answers, "lr_now")
    rate = _number(answers, "lr") if math.isnan(rate) else rate
    scalars = {
        name: value
        for name, value in (("lr", rate), ("grad_norm", _number(answers, "grad_norm")))
        if not math.isnan(value)
    }
    for values, vital in ((losses, "loss"), (validation, "val_loss")):
        begin = end - (len(values) - 1) * stride
        for place, value in enumerate(values):
            step = max(begin + place * stride, 0)
            if vital == "loss":
                yield {"type": "vitals", "step": step, "vitals": {"loss": value, **scalars}}
            else:
                yield {"type": "validation", "step": step, "vitals": {"val_loss": value}}
    if broke is not None and "nan_step" in answers:
        for step in range(broke, broke + LATELY):  # a loss that became NaN stays NaN
            yield {"type": "vitals", "step": step, "vitals": {"loss": math.nan}}


def _levels(chart: Chart, answers: Answers) -> None:
    """Enter typed numbers as the current level of vitals that were not measured."""
    now = _whole(answers, "current_step")
    step = max(chart.step, LATELY - 1) if chart.step >= 0 or now is None else max(now, LATELY - 1)
    rate = _number(answers, "lr_now")
    clip = _number(answers, "clip")
    levels = {
        "grad_norm": _number(answers, "grad_norm"),
        "lr": _number(answers, "lr") if math.isnan(rate) else rate,
        "clip": clip if clip > 0 else math.nan,
        "seconds": _number(answers, "seconds"),
        "gpu_utilisation": 100 * _number(answers, "device_busy"),
    }
    share = _number(answers, "waiting_share")
    levels["data_seconds"] = share * (1.0 if math.isnan(levels["seconds"]) else levels["seconds"])
    if not math.isnan(share) and math.isnan(levels["seconds"]):
        levels["seconds"] = 1.0
    for vital, value in levels.items():
        if not math.isnan(value) and (not chart[vital] or chart[vital].step == 0 < step):
            for offset in range(min(LATELY, step + 1) - 1, -1, -1):
                chart.put(step - offset, vital, value)


def _layers(chart: Chart, answers: Answers) -> None:
    """Enter the gradient norms of the first and last layer, with the layers in between interpolated."""
    first, last, layers = (_number(answers, name) for name in ("grad_first_layer", "grad_last_layer", "layers"))
    if chart.names or not (first > 0 and last > 0 and layers >= 2):
        return
    count = min(int(layers), 500)
    chart.names = tuple(f"layers.{place}.weight" for place in range(count))
    row = np.geomspace(first, last, count).tolist()
    for _ in range(4):
        chart.add({"type": "tensors", "step": max(chart.step, 0), "vitals": {"grad_norm": row}})


def report_complaints(chart: Chart, complaints: Iterable[str], answers: Answers, *, run: bool) -> None:
    """Enter every complaint that no detector has found as an episode of its own, marked as reported."""
    for name in complaints:
        complaint = BY_NAME[name]
        slug = complaint.reported(answers)
        if slug and not complaint.seen_in(chart.episodes) and not _has(chart, slug):
            chart.episodes.append(_reported(chart, complaint, slug, answers, run=run))
    broke = next((item.first_step for item in chart.episodes if item.name == "nan-or-inf"), MIDDLE)
    near = broke - GAP * logged_every(chart)
    known = any(item.name == "gradient-explosion" and item.last_step >= near for item in chart.episodes)
    if answers.get("norms_before") == "grew" and "nan" in complaints and not known:
        chart.episodes.append(
            _symptom("gradient-explosion", "warning", max(broke - 1, 0), max(broke - 1, 0), "before the NaN", 0.0)
        )
    chart.episodes.sort(key=lambda item: item.first_step)


def is_reported(symptom: Symptom) -> bool:
    """Whether a person reported it and no detector found it."""
    return symptom.message.startswith(REPORTED)


def undated(text: str, symptoms: Iterable[Symptom]) -> str:
    """A text without the assumed onset step, if the real onset is not known.

    >>> nan = Symptom("nan-or-inf", "NU01", "critical", 0.6, 1000, 1000, message=f"reported: {UNDATED}")
    >>> undated("check(batch)  # the batch of step 1000", [nan])
    'check(batch)  # the batch at which it began'
    """
    for symptom in symptoms:
        if symptom.message.endswith(UNDATED):
            step = rf"step {symptom.first_step}\b"
            text = re.sub(rf"\bof {step}", "at which it began", text)
            text = re.sub(rf"\b(before|from|at|since) {step}", r"\1 its onset", text)
    return text


def _has(chart: Chart, slug: str) -> bool:
    return any(item.name == slug for item in chart.episodes)


def _reported(chart: Chart, complaint: Complaint, slug: str, answers: Answers, *, run: bool) -> Symptom:
    looked_for = run and any(chart[key] for key in READS[slug])
    severity: Severity = "info" if looked_for else complaint.severity
    words = _details(complaint.name, answers)
    if looked_for:
        words = f"{words}; the run's log does not show it" if words else "the run's log does not show it"
    now = _whole(answers, "current_step")
    onset = _whole(answers, "onset" if slug != "nan-or-inf" else "nan_step")
    if onset is None and slug in ("not-learning", "slow-learning", "data-starvation"):
        onset = 0
    if onset is None and slug == "overfitting" and (validation := chart["val_loss"]):
        onset = int(validation.steps[int(validation.values.argmin())])
        best, last = number_text(validation.lowest), number_text(validation.latest)
        words = f"validation loss {best} at its best, {last} now"
    if onset is None:
        words = f"{words}; {UNDATED}" if words else UNDATED
        onset = MIDDLE if answers.get("nan_early") != "yes" else 1
        onset = min(onset, now) if now is not None else onset
    return _symptom(slug, severity, onset, max(chart.step, onset, now or 0), words, _value(complaint.name, answers))


def _symptom(slug: str, severity: Severity, first: int, last: int, words: str, value: float) -> Symptom:
    return Symptom(
        name=slug,
        code=CODES[slug],
        severity=severity,
        confidence=0.6,
        first_step=first,
        last_step=last,
        value=value if value else None,
        message=f"{REPORTED}: {words}" if words else REPORTED,
        where=("layers",) if slug == "gradient-vanishing" and "layer" in words else (),
    )


def _value(complaint: str, answers: Answers) -> float:
    number = _number(answers, {"exploding": "grad_peak", "vanishing": "grad_norm"}.get(complaint, ""))
    return 0.0 if math.isnan(number) else number


def _details(complaint: str, answers: Answers) -> str:
    """The numbers that belong to a complaint, in words."""
    parts = []
    if complaint == "exploding" and not math.isnan(peak := _number(answers, "grad_peak")):
        usual = _number(answers, "grad_norm")
        parts.append(f"gradient norms up to {number_text(peak)}")
        if usual > 0:
            parts[-1] += f", usually {number_text(usual)}"
    if complaint in ("vanishing", "plateau", "slow-loss") and not math.isnan(norm := _number(answers, "grad_norm")):
        parts.append(f"gradient norm about {number_text(norm)}")
    if complaint == "vanishing":
        first, last = _number(answers, "grad_first_layer"), _number(answers, "grad_last_layer")
        if first > 0 and last > 0:
            parts.append(f"{number_text(first)} in the first layer, {number_text(last)} in the last")
    if complaint == "slow-machine" and not math.isnan(share := _number(answers, "waiting_share")):
        parts.append(f"{100 * share:.0f} % of a step is spent waiting for data")
    if complaint == "other" and answers.get("description"):
        parts.append(str(answers["description"]))
    if losses := _numbers(answers, "losses"):
        parts.append(f"the last loss is {number_text(losses[-1])}")
    return ", ".join(parts)
