"""A report to render, and strings that nobody should be able to smuggle through one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from torchdoctor.outline import Outline
from torchdoctor.pictures import RowMap
from torchdoctor.records import CheckResult, Diagnosis, Suggestion, Symptom
from torchdoctor.reports.report import Report

HALVE = Suggestion(
    "scale-lr",
    "learning_rate *= 0.5\nfor group in optimizer.param_groups:\n    group['lr'] *= 0.5",
    0.9,
    "apply",
    {"factor": 0.5},
    1,
    "the loss has climbed since the learning rate rose",
)
CLIP = Suggestion("set-clip-norm", "grad_clip = 1.0", 0.8, "apply", {"norm": 1.0}, 2, "gradients pass unclipped")

BROKEN = Symptom(
    "loss-divergence",
    "LO02",
    "critical",
    0.97,
    1730,
    1999,
    90,
    (),
    None,
    7.4,
    2.0,
    "loss 7.4 is 5.2 times its best 1.42",
)
JUMP = Symptom(
    "gradient-explosion",
    "GR01",
    "warning",
    0.9,
    600,
    600,
    1,
    tuple(f"blocks.{i}.weight" for i in range(8)),
    2,
    16.0,
    8.0,
    "gradient norm 16 is 20 times its recent 0.8",
)
SEVERAL = Symptom(
    "multiple-pathologies", "MU01", "info", 0.9, 1730, 1999, message="more than one finding within 50 steps"
)


def outline(steps: range, curve) -> list[tuple[int, float, float, float]]:
    made = Outline()
    for step in steps:
        made.add(step, curve(step))
    return made.buckets()


def layers(names: list[str]) -> RowMap:
    """A map with everything in it that a cell can be."""
    values = np.outer(np.linspace(1.0, 3.0, 40), np.logspace(-4, 1, len(names))).astype(np.float32)
    values[30:, 0], values[:, 1], values[5, 2] = np.inf, 0.0, np.nan
    return RowMap(tuple(names), tuple(range(0, 2000, 50)), values)


SICK = Report(
    step=1999,
    symptoms=(JUMP, BROKEN, SEVERAL),
    diagnoses=(
        Diagnosis(
            1,
            "lr-too-high",
            0.81,
            ("the learning rate rose 30-fold at step 1700", "against: the norm had not moved"),
            ("loss-divergence",),
            (HALVE,),
        ),
        Diagnosis(1, "clip-missing", 0.14, ("no clipping was seen",), ("loss-divergence",), (CLIP,)),
        Diagnosis(1, "unknown", 0.05, (), ("loss-divergence",)),
        Diagnosis(2, "bad-batch", 1.0, ("one step only",), ("gradient-explosion",)),
    ),
    suggestions=(HALVE, CLIP),
    notes=("the raw gradient norm is unknown",),
    phases=(
        {"first_step": 0, "stable": True, "trend": "decreasing", "message": "steps 0 to 999: stable, loss decreasing"},
    ),
    context={
        "model": {"class": "GPT", "parameters": 10_700_000},
        "optimizer": [{"class": "AdamW", "lr": 1e-3}],
        "seed": 1337,
    },
    curves={
        "loss": outline(range(2000), lambda step: 4.0 - step / 1000 if step < 1700 else 7.4),
        "val_loss": outline(range(99, 2000, 100), lambda step: 4.1 - step / 1000),
        "grad_norm": outline(range(2000), lambda step: 0.8 + 0.1 * math.sin(step)),
        "lr": outline(range(2000), lambda step: 1e-3),
        "step_seconds": outline(range(2000), lambda step: 0.1),
    },
    closeups={"grad_norm": ((np.arange(500, 800), 0.8 + 0.1 * np.sin(np.arange(500, 800))),)},
    maps={"grad_norm": layers([f"blocks.{i}.weight" for i in range(8)])},
    checks=(
        CheckResult("initial-loss", "CK11", "failed", "loss 9.2 at the start", ("head",), "Scale it down.", "warning"),
        CheckResult("gradient-flow", "CK03", "passed", "every tensor has a gradient"),
    ),
)
HEALTHY = Report(step=899)

XSS = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\"><svg onload=document.title='owned'>",
    "'-document.write(1)-'",
    "</style><script>document.title='owned'</script>",
    "</title><script>document.title='owned'</script>",
    "--><iframe srcdoc='<script>top.document.title=1</script>'>",
    "javascript:document.title='owned'",
    "$title ${body} {{7*7}}",
    "\x00<\x00script>\x1b]0;owned\x07\x1b[2J\x9b2J\u202egnp.exe\ud800",
)


def poisoned(text: str) -> Report:
    """The sick report with one string in every field that holds text."""
    suggestion = replace(HALVE, action=text, code=text, reason=text, parameters={text: text})
    symptom = replace(BROKEN, name=text, code=text, message=text, where=(text, text))
    return replace(
        SICK,
        symptoms=(symptom, replace(JUMP, where=(text,))),
        diagnoses=(Diagnosis(1, text, 0.9, (text,), (text,), (suggestion,)),),
        suggestions=(suggestion,),
        notes=(text,),
        phases=({"message": text},),
        context={text: {text: [text, {text: text}]}, "model": text},
        curves={**SICK.curves, f"{text}loss": SICK.curves["loss"], text: SICK.curves["lr"]},
        closeups={f"{text}loss": SICK.closeups["grad_norm"]},
        maps={"grad_norm": layers([text, f"{text}.{text}", "c", text])},
        checks=tuple(CheckResult(text, text, status, text, (text,), text) for status in ("failed", "passed")),
        run=text,
    )
