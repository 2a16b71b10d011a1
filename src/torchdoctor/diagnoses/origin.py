"""The place where a non-finite value first appeared in a forward pass."""

from __future__ import annotations

import re
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Problem
from torchdoctor.records import names_text
from torchdoctor.symptoms.nan_or_inf import broken_alone, broken_at_the_start, first_output

TOTAL = re.compile(
    "Linear|Conv.d|.*ReLU|.?ELU|SiLU|Tanh|Sigmoid|Flatten|Dropout.*|Identity|Embedding|.*Norm.*|.*Pool.d"
)
"""Modules whose outputs are finite for finite inputs, except for overflow."""


def is_a_plain_stack(chart: Chart) -> bool:
    """Whether the model is a `Sequential` of ordinary layers, without divisions or masks of its own.

    >>> chart = Chart.of(context={"model": {"class": "Sequential"}}, loss=[1.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Linear", "ReLU", "Linear"]}})
    >>> is_a_plain_stack(chart)
    True
    """
    kinds = chart.fact("modules.kinds", ())
    whole = (chart.context.get("model") or {}).get("class") == "Sequential"
    return whole and bool(kinds) and all(TOTAL.fullmatch(kind) for kind in kinds)


def may_divide(chart: Chart) -> str:
    """What of a model that is no plain stack may divide or mask before the loss, as the beginning of a sentence.

    >>> chart = Chart.of(context={"model": {"class": "Net"}}, loss=[1.0])
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Linear", "ReLU"]}})
    >>> may_divide(chart)
    'the model has its own forward(), which'
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["MultiheadAttention", "Linear"]}})
    >>> may_divide(chart)
    'the model has layers of other kinds (MultiheadAttention), which'

    The forward() of a LightningModule whose training_step() calls the layers itself never runs:

    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": ["Linear", "ReLU"], "loop.passes": 0}})
    >>> may_divide(chart)
    'the code that calls the layers'
    """
    kinds = chart.fact("modules.kinds", ())
    others = [kind for kind in dict.fromkeys(kinds) if not TOTAL.fullmatch(kind)]
    if others:
        return f"the model has layers of other kinds ({names_text(others)}), which"
    classes = set(str((chart.context.get("model") or {}).get("class") or "").split(", "))
    if not kinds or classes == {""}:
        return "the model"
    ran = classes != {"Sequential"} and chart.fact("loop.passes") != 0
    return "the model has its own forward(), which" if ran else "the code that calls the layers"


def origin_kind(chart: Chart, problem: Problem) -> tuple[str, str]:
    """Kind ("input", "weights", "output", "between") and module of the first origin; empty if none was seen."""
    symptom = problem.get("nan-or-inf")
    if symptom is not None and (module := first_output(chart, symptom.first_step)):
        kinds = dict(zip(chart.module_names, chart.fact("modules.kinds") or (), strict=False))
        if not TOTAL.fullmatch(str(kinds.get(module, ""))):  # else its input, which was not measured, was bad already
            return "output", chart.called(module)
    origin = _first_origin(chart, problem)
    if origin is None:
        return "", ""
    return str(origin.get("kind", "")), chart.called(str(origin.get("module") or "the model"))


def broken_before(chart: Chart, problem: Problem) -> tuple[str, ...]:
    """The weights that broke first, before any update could have caused it; empty if unknown."""
    if problem.has("nan-or-inf") and (started := broken_at_the_start(chart)):
        return started
    origin = _first_origin(chart, problem)
    return broken_alone(chart, origin) if origin is not None and origin.get("kind") == "weights" else ()


def _first_origin(chart: Chart, problem: Problem) -> dict[str, Any] | None:
    symptom = problem.get("nan-or-inf")
    for origin in chart.origins:
        if symptom is not None and symptom.first_step - 1 <= origin["step"] <= symptom.last_step + 1:
            return origin
    return None
