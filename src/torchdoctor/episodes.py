"""Episodes: repeated sightings of one finding are joined into one episode with a beginning and an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, worst
from torchdoctor.watch import Watch

EPISODES_LIMIT = 32
"""Maximum number of episodes per finding; later sightings are added to the last one."""
WHERE_LIMIT = 8
"""Maximum number of names that an episode keeps."""


def follow(chart: Chart, watch: Watch, symptom: Symptom | None) -> Iterator[tuple[str, Symptom]]:
    """Enter a detector's result into the chart; yields "opened", "changed" or "closed", with the episode."""
    name = watch.name
    current = chart.open_episodes.get(name)
    if symptom is None:
        if current is not None:
            watch.silent += 1
            if watch.silent >= watch.detector.closes_after:
                del chart.open_episodes[name]
                yield "closed", current
        return
    watch.silent = 0
    if current is None:
        current = _reopened(chart, symptom)
    if current is None and watch.opened < EPISODES_LIMIT:
        watch.opened += 1
        chart.episodes.append(symptom)
        chart.open_episodes[name] = symptom
        yield "opened", symptom
        return
    if current is None:  # limit reached: continue the last episode
        current = next(item for item in reversed(chart.episodes) if item.name == name)
    merged = merge(current, symptom)
    chart.update(current, merged)
    if (merged.severity, merged.where) != (current.severity, current.where):
        yield "changed", merged


def _reopened(chart: Chart, symptom: Symptom) -> Symptom | None:
    """Reopen the last episode of this finding if the new sighting began within it; else None."""
    last = next((item for item in reversed(chart.episodes) if item.name == symptom.name), None)
    if last is None or not symptom.first_step <= last.last_step < symptom.last_step:
        return None
    chart.open_episodes[symptom.name] = last
    return last


def merge(current: Symptom, latest: Symptom) -> Symptom:
    """Join an open episode and its latest sighting, with the worse severity and the earlier first step."""
    severity = worst([current.severity, latest.severity])
    worse: Severity = severity if severity is not None else latest.severity
    # Within one step the later sighting knows more: a sample of the weights comes before the step's loss.
    # A sighting that names a place is better than one that does not.
    better = latest.last_step == current.first_step or bool(latest.where and not current.where)
    leading = latest if worse != current.severity or better else current
    where = tuple(dict.fromkeys(leading.where + current.where + latest.where))[:WHERE_LIMIT]
    return replace(
        leading,
        severity=worse,
        confidence=max(current.confidence, latest.confidence),
        first_step=min(current.first_step, latest.first_step),
        last_step=max(current.last_step, latest.last_step),
        count=current.count + 1,
        where=where,
    )
