"""Changes that the loop makes on purpose: whether a leap of loss or gradients came with one, and the run recovers.

New layers, a new parameter group, unfrozen layers, another optimizer, a new loss term or another data set raise the
loss when they come, and the run learns from there. The loop is seen doing it (`loop.changes`), so the leap is only info
and names the change, as long as the loss comes down again. An accident has no such change before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress

Check = Callable[[Chart], Symptom | None]

AFTER = 32
"""Steps after a change within which a leap belongs to it."""
DESTROYED = 100.0
"""Factor over the loss of the untrained model, and over that before the change, from which the change did harm."""
KEPT = 0.5
"""Share of its leap that the loss must have kept for a change to have done harm."""
GRACE, SETTLED = 16, 64
"""Steps after which the loss must have begun to come down, and after which the run must learn again."""


class Change(NamedTuple):
    """Something that the loop changed before a step."""

    step: int
    text: str


def change_before(chart: Chart, step: int) -> Change | None:
    """The last change by the loop at or shortly before a step.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 9, "facts": {"loop.changes": [[9, "2 tensors joined in the optimizer"]]}})
    >>> change_before(chart, 10).text, change_before(chart, 100)
    ('2 tensors joined in the optimizer', None)
    """
    changes = [Change(*item) for item in chart.fact("loop.changes") or ()]
    return next((item for item in reversed(changes) if item.step - 1 <= step <= item.step + AFTER), None)


def expecting(detector: Detector) -> Check:
    """The check of a detector; if it expects changes, in view of what the loop has changed."""
    check = detector.check
    return (lambda chart: in_view_of_changes(chart, check(chart))) if detector.expects_changes else check


def in_view_of_changes(chart: Chart, symptom: Symptom | None) -> Symptom | None:
    """The finding; as info that names the change, if a change by the loop explains it and the run recovers."""
    if symptom is None or symptom.severity == "info":
        return symptom
    change = change_before(chart, symptom.first_step)
    if change is None or _was_loaded(chart, change.step) or not recovers(chart, change.step):
        return symptom
    return replace(symptom, severity="info", message=f"{symptom.message}; at step {change.step} {change.text}")


def unhealed(chart: Chart, episode: Symptom) -> Symptom:
    """A leap that came with a change; as a warning if, long after it, the loss has kept most of it.

    >>> losses = [3.0 * 0.97**step for step in range(200)] + [2.0] * 100
    >>> chart = Chart.of(loss=losses)
    >>> chart.add({"type": "facts", "step": 200, "facts": {"loop.changes": [[200, "2 tensors joined"]]}})
    >>> said = "loss jumped to 2; at step 200 2 tensors joined"
    >>> leap = Symptom("loss-spike", "LO01", "info", 0.9, 200, 205, message=said)
    >>> unhealed(chart, leap).message.removeprefix(said)
    ', and the loss has stayed near 2 since'
    """
    change = change_before(chart, episode.first_step)
    if episode.severity != "info" or change is None or not episode.message.endswith(f" {change.text}"):
        return episode
    series = chart["loss"]
    at, _, levels, high = series.outline.columns()
    before, since = levels[at < change.step], high[at >= change.step]
    if chart.step - change.step < SETTLED or before.size < GRACE or not since.size:
        return episode
    level, now = median(before[-GRACE // 4 :]), median(series.last(GRACE))
    lost = Progress.of(series).start - level
    lowest = min(now, float(levels[at >= change.step].min()))  # what came down and rose later has another reason
    if not lowest - level > max(KEPT * (float(since[:2].max()) - level), 0.25 * lost, 0.05 * abs(level)):
        return episode
    message = f"{episode.message}, and the loss has stayed near {number_text(now)} since"
    return replace(episode, severity="warning", message=message)


def _was_loaded(chart: Chart, step: int) -> bool:
    """Whether weights were loaded at this step: a new optimizer then means that its state was not."""
    return any(abs(int(at) - step) <= 1 for at in chart.fact("state.loaded") or ())


def recovers(chart: Chart, step: int) -> bool:
    """Whether the loss comes down from where it leapt at a step, or it is too early to say.

    >>> falling, before = [3.0 * 0.97**step for step in range(40)], [1.0] * 40
    >>> recovers(Chart.of(loss=before + falling), 40), recovers(Chart.of(loss=before + falling[::-1]), 40)
    (True, False)
    """
    series = chart["loss"]
    since, before = series.values[series.steps >= step], series.values[series.steps < step]
    if not math.isfinite(series.latest) or not before.size:
        return False
    if not since.size or series.step < chart.step - GRACE:  # the loss is not logged: nothing shows that it is harmless
        return chart.step - step < GRACE
    level, progress = median(before[-GRACE:]), Progress.of(series)
    if float(since[:GRACE].max()) > DESTROYED * max(abs(level), abs(progress.start)):
        return False
    above, noise = since - level, series.baseline(128).noise
    return median(above[-5:]) <= 2 * noise or _comes_down(above, progress.start - 0.25 * progress.descent - level)


def _comes_down(above: Array, start: float) -> bool:
    """Whether a loss above its former level comes down: in time also below a share of its start, or by most of it."""
    first, now = float(above[:4].max()), median(above[-5:])
    if above.size < GRACE:
        return now < 1.5 * first
    if above.size < SETTLED:
        return now < 0.9 * max(first, float(above[:GRACE].max()))
    return now < 0.9 * first and (now < start or now < 0.3 * first)
