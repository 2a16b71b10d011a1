"""Answers that the run's own files give, so that nobody is asked for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torchdoctor.chart import Chart
from torchdoctor.consulting.question import ConsultError, Value
from torchdoctor.consulting.questions import BY_NAME
from torchdoctor.diagnoses.at_the_break import highest
from torchdoctor.diagnoses.configuration import configured
from torchdoctor.diagnoses.depth import saturating_layers, weight_layers
from torchdoctor.diagnoses.findings import dropout, has_attention, last_level, optimizer_names, weight_decay
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.treatments.configured import highest_rate

GREW = 10.0
"""Multiple of its usual level above which a gradient norm counts as grown before the NaN."""


def known_answers(chart: Chart) -> dict[str, Value]:
    """By question, the run's answer; questions that it does not answer are left out.

    >>> chart = Chart.of(loss=[2.0, 1.9], grad_norm=[0.5, 0.7], context={"batch_size": 32})
    >>> known = known_answers(chart)
    >>> known["grad_norm"], known["batch_size"], "dropout" in known
    (0.6, 32.0, False)
    """
    found: dict[str, Value] = {}
    for name, ask in ANSWERS.items():
        value = ask(chart)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        try:
            found[name] = BY_NAME[name].accept(value)
        except ConsultError:  # a value out of range is not an answer
            continue
    return found


def _optimizer(chart: Chart) -> str | None:
    name = optimizer_names(chart).lower()
    if not name:
        return None
    return next((kind for kind in ("adamw", "adam", "sgd") if kind in name), "other")


def _schedule(chart: Chart) -> str | None:
    rates = chart["lr"]
    if rates.count < 20:
        return None
    buckets = rates.outline.buckets()
    top = max(bucket[3] for bucket in buckets)
    if rates.first < 0.5 * top:
        return "warmup"
    return "decay" if rates.latest < 0.9 * top else "constant"


def _nan_step(chart: Chart) -> float | None:
    return next((float(item.first_step) for item in chart.episodes if item.name == "nan-or-inf"), None)


def _last_loss(chart: Chart) -> float | None:
    step = _nan_step(chart)
    losses = chart["loss"]
    if step is None:
        return None
    before = losses.values[losses.steps < step]
    return float(before[-1]) if before.size else None


def _norms_before(chart: Chart) -> str | None:
    step, norms = _nan_step(chart), chart["grad_norm"]
    if step is None or norms.count < 5:
        return None
    before = norms.values[norms.steps < step]
    if before.size < 5:
        return None
    usual = float(sorted(before[:-3].tolist() or before.tolist())[len(before[:-3]) // 2])
    return "grew" if float(before[-3:].max()) > GREW * max(usual, 1e-30) else "normal"


def _fell(chart: Chart) -> str | None:
    if any(item.name == "not-learning" for item in chart.episodes):
        return "no"
    if any(item.name == "loss-plateau" for item in chart.episodes):
        return "yes"
    losses = chart["loss"]
    if losses.count < 20 or losses.first <= 0:
        return None
    return "yes" if losses.lowest < 0.9 * losses.first else "no"


def _shape(chart: Chart) -> str | None:
    names = {item.name for item in chart.episodes}
    for slug, shape in (("loss-divergence", "rising"), ("loss-spike", "spike"), ("loss-oscillation", "swings")):
        if slug in names:
            return shape
    return None


def _layer_norm(chart: Chart, place: int) -> float | None:
    columns, row = weight_columns(chart.names), chart.tensors("grad_norm").latest
    if not columns or row.size != len(chart.names):
        return None
    return float(row[columns[place]])


def _activation(chart: Chart) -> str | None:
    count = saturating_layers(chart)
    if count < 0:
        return None
    return "saturating" if count >= 3 else "relu"


def _precision(chart: Chart) -> str | None:
    used = str(chart.context.get("autocast") or chart.context.get("precision") or "")
    if "bfloat16" in used or "bf16" in used:
        return "bfloat16"
    if "float16" in used or "fp16" in used:
        return "float16" if chart.context.get("scaler") is None else "float16-scaled"
    return "float32" if "32" in used else None


def _pace(chart: Chart) -> str | None:
    names = {item.name for item in chart.episodes}
    if "memory-growth" in names:
        return "memory"
    if "step-time-regression" in names:
        return "slower"
    return "always" if chart["seconds"].count >= 20 else None


def _waiting(chart: Chart) -> float | None:
    waits, times = last_level(chart["data_seconds"]), last_level(chart["seconds"], 100)
    return min(waits / times, 1.0) if times > 0 else None


def _onset(chart: Chart) -> float | None:
    grave = [item.first_step for item in chart.episodes if item.severity != "info"]
    return float(max(min(grave), 0)) if grave else None


def _values(chart: Chart, vital: str) -> list[float] | None:
    series = chart[vital]
    return [float(value) for value in series.last(100)] if series.count >= 5 else None


ANSWERS: Mapping[str, Callable[[Chart], Value]] = {
    "nan_step": _nan_step,
    "last_loss": _last_loss,
    "norms_before": _norms_before,
    "precision": _precision,
    "shape": _shape,
    "fell_before": _fell,
    "grad_norm": lambda chart: last_level(chart["grad_norm"], 128),
    "grad_peak": lambda chart: highest(chart["grad_norm"], 0, chart.step),
    "grad_first_layer": lambda chart: _layer_norm(chart, 0),
    "grad_last_layer": lambda chart: _layer_norm(chart, -1),
    "layers": lambda chart: weight_layers(chart) or None,
    "activation": _activation,
    "skips": lambda chart: "yes" if has_attention(chart) else None,
    "train_losses": lambda chart: _values(chart, "loss"),
    "val_losses": lambda chart: _values(chart, "val_loss"),
    "dropout": dropout,
    "weight_decay": weight_decay,
    "pace": _pace,
    "seconds": lambda chart: last_level(chart["seconds"], 100),
    "waiting_share": _waiting,
    "device_busy": lambda chart: last_level(chart["gpu_utilisation"]) / 100,
    "onset": _onset,
    "lr": highest_rate,
    "lr_now": lambda chart: chart["lr"].latest if chart["lr"] else None,
    "optimizer": _optimizer,
    "schedule": _schedule,
    "clip": lambda chart: chart["clip"].latest if chart["clip"] else configured(chart, "clip"),
    "batch_size": lambda chart: configured(chart, "batch_size"),
    "parameters": lambda chart: configured(chart, "parameters"),
    "dataset_size": lambda chart: configured(chart, "dataset_size"),
    "current_step": lambda chart: float(chart.step) if chart.step >= 0 else None,
    "total_steps": lambda chart: configured(chart, "total_steps"),
    "losses": lambda chart: _values(chart, "loss"),
}
"""By question, the function that reads its answer from the run; None or NaN if there is none."""
