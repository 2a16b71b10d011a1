"""Phases: the parts of a run between two phase reports, each with a trend and judged stable or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import INFORMATIVE, number_text

LEAST = 8
"""Losses needed for a trend."""


def judge_phase(chart: Chart, first_step: int) -> dict[str, Any]:
    """The phase since a step: whether it is stable (no finding of at least warning), and the trend of the loss.

    >>> phase = judge_phase(Chart.of(loss=[3.0 - 0.01 * step for step in range(100)]), 0)
    >>> phase["stable"], phase["trend"], phase["message"]
    (True, 'decreasing', 'steps 0 to 99: stable, loss decreasing from 2.88 to 2.13')
    """
    trouble = sorted(
        {
            episode.name
            for episode in chart.episodes
            if episode.last_step >= first_step and episode.severity != "info" and episode.name not in INFORMATIVE
        }
    )
    trend, text = _trend(chart, first_step)
    stable = not trouble
    verdict = "stable" if stable else f"not stable ({', '.join(trouble)})"
    message = f"steps {first_step} to {chart.step}: {verdict}, {text}"
    return {"first_step": first_step, "stable": stable, "trend": trend, "message": message}


def _trend(chart: Chart, first_step: int) -> tuple[str, str]:
    """The last quarter of the losses compared with the first; long phases are read from the outline."""
    series = chart["loss"]
    exact = series.since(first_step)
    complete = bool(series) and int(series.steps[0]) <= first_step
    outline = [bucket[2] for bucket in series.outline.buckets() if bucket[0] >= first_step]
    values = exact if complete else np.array(outline)
    if values.size < LEAST:
        return "unknown", "too few losses for a trend"
    quarter = max(2, values.size // 4)
    before, after = values[:quarter], values[-quarter:]
    left, right = float(np.median(before)), float(np.median(after))
    doubt = 3 * float(np.hypot(before.std(), after.std())) / np.sqrt(quarter)
    if abs(right - left) <= max(doubt, 1e-3 * abs(left)):
        return "flat", f"loss flat at {number_text(right)}"
    word = "decreasing" if right < left else "increasing"
    return word, f"loss {word} from {number_text(left)} to {number_text(right)}"
