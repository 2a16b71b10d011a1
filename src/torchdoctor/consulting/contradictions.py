"""Answers that contradict the run's measurements: the measurement counts, and the person is told.

>>> chart = Chart.of(loss=[2.0, 1.9, 1.8])
>>> for sentence in contradictions(chart, {"nan_step": 1.0, "lr": 0.01}, {"lr": 0.3}).values():
...     print(sentence)
You say NaN at step 1; the log has a finite loss there, 1.9.
The learning rate: you say 0.01, the run says 0.3.
"""

from __future__ import annotations

from torchdoctor.chart import Chart
from torchdoctor.consulting.question import Answers, Value, answer_text
from torchdoctor.consulting.questions import BY_NAME
from torchdoctor.reports.clock import clock_of

ROUGHLY = 2.0
"""Factor by which an answer may differ from the measurement: people round."""
NAMES = {
    "lr": "the learning rate",
    "lr_now": "the current learning rate",
    "optimizer": "the optimizer",
    "schedule": "the schedule",
    "parameters": "the number of parameters",
    "batch_size": "the batch size",
    "dataset_size": "the number of samples",
    "precision": "the precision",
    "dropout": "the dropout rate",
    "weight_decay": "the weight decay",
    "clip": "the gradient clipping norm",
    "grad_norm": "the typical gradient norm",
    "grad_peak": "the largest gradient norm",
    "nan_step": "the step of the first NaN",
    "fell_before": "whether the loss fell at first",
    "shape": "what the loss does",
    "activation": "the activation functions",
    "skips": "skip connections",
    "layers": "the number of layers",
    "waiting_share": "the share of a step spent waiting for data",
    "pace": "when training became slow",
    "norms_before": "gradient norms before the NaN",
}
"""Questions for which a disagreement is shown; for others the run's answer is used silently."""


def contradictions(chart: Chart, given: Answers, known: Answers) -> dict[str, str]:
    """By question, a sentence for each answer that the run contradicts."""
    found = {}
    if told := _finite_there(chart, given.get("nan_step"), known):
        found["nan_step"] = told
    for name, words in NAMES.items():
        said, measured = given.get(name), known.get(name)
        if said is not None and measured is not None and _differ(said, measured):
            here, there = (_text(name, value) for value in (said, measured))
            found[name] = f"{words[0].upper()}{words[1:]}: you say {here}, the run says {there}."
    return found


def _finite_there(chart: Chart, said: Value, known: Answers) -> str:
    """A sentence if the log has finite losses where the person reports NaN; empty otherwise.

    A log that ends earlier contradicts nothing, nor does a loss of 0: some trainers log NaN as 0.
    """
    losses = chart["loss"]
    if not isinstance(said, float) or "nan_step" in known or losses.nonfinite or not losses or losses.step < said:
        return ""
    clock = clock_of(chart.context)
    there = losses.values[losses.steps == int(said)]
    if there.size and there[-1] == 0:
        return ""
    has = f"a finite loss there, {answer_text(float(there[-1]))}" if there.size else "finite losses only"
    return f"You say NaN at {clock} {said:.0f}; the log has {has}."


def _differ(said: Value, measured: Value) -> bool:
    if isinstance(said, float | int) and isinstance(measured, float | int):
        low, high = sorted((abs(said), abs(measured)))
        return high > ROUGHLY * low
    return said != measured


def _text(name: str, value: Value) -> str:
    return dict(BY_NAME[name].choices).get(str(value), answer_text(value))
