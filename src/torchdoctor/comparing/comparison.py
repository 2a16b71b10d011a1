"""The whole comparison: the answers to all questions about some runs, as plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.comparing.batch_size import batch_effect
from torchdoctor.comparing.blame import blamed
from torchdoctor.comparing.configurations import configurations
from torchdoctor.comparing.design import Design, design, value_text
from torchdoctor.comparing.effects import effects, seed_spread
from torchdoctor.comparing.learning_rate import noise_of, rate_effect
from torchdoctor.comparing.model_size import descent
from torchdoctor.comparing.outcome import Metric, Outcome, choose, costs, outcome, ranked
from torchdoctor.comparing.parting import Parting, part
from torchdoctor.comparing.reading import Progress, places_of, read_runs
from torchdoctor.comparing.sampling import ALL, chosen, diagnosed
from torchdoctor.comparing.speed import Race, race
from torchdoctor.comparing.summary import Curve, Summary
from torchdoctor.comparing.tasks import unlike
from torchdoctor.errors import SourceError
from torchdoctor.records import SEVERITIES
from torchdoctor.reports import comparison_formats, comparison_html

PAIRS = 6
"""Up to this many runs, each is compared with the best; with more, only the best run of the next configurations."""
NEXT = 3
UNEQUAL = 1.1
"""If the lengths of runs differ by more than this ratio, they are also compared at the end of the shortest."""


@dataclass(frozen=True)
class Comparison:
    """The results, best run first, as plain data; with the curves, for plots."""

    found: Mapping[str, Any]
    summaries: tuple[Summary, ...] = field(repr=False)
    """The runs in the order of `found["runs"]`."""
    unreadable: tuple[str, ...] = ()
    """A sentence for each place that could not be read."""

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints."""
        return dict(self.found)

    @property
    def curves(self) -> dict[str, dict[str, Curve]]:
        """The curves of each run."""
        return {summary.run: dict(summary.curves) for summary in self.summaries}

    def __str__(self) -> str:
        return comparison_formats.full(self.found)

    def _repr_html_(self) -> str:
        return comparison_html.fragment(self.found, self.curves)


def compare(
    paths: Sequence[str | Path],
    *,
    metric: str | None = None,
    examine: bool | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the runs at some paths: journals, logs, and folders of them.

    Runs are ranked by `metric`; by default by the validation loss, else the loss. Diagnosing the runs takes most of the
    time: `examine=False` skips it, True diagnoses every run, and None diagnoses all of up to 500 runs; of more, the
    best, those that diverged and a sample of the rest. With several `processes`, the calling script must be importable
    (``if __name__ == "__main__":``).
    """
    places = places_of(paths)
    at_once = examine is True or (examine is None and len(places) <= ALL)
    summaries, errors = read_runs(places, examine=at_once, processes=processes, progress=progress)
    if len(summaries) < 2:
        reasons = " ".join(errors[:3]) if errors else f"There is one: {summaries[0].path}."
        raise SourceError(f"a comparison needs at least two runs, {len(summaries)} could be read. {reasons}".strip())
    if examine is None and not at_once:
        summaries = diagnosed(summaries, chosen(summaries, metric), processes=processes, progress=progress)
    return compare_runs(summaries, metric=metric, unreadable=errors)


def compare_runs(
    summaries: Sequence[Summary], *, metric: str | None = None, unreadable: Sequence[str] = ()
) -> Comparison:
    """Compare runs that are already read and summarized."""
    chosen = choose(summaries, metric)
    outcomes = [outcome(summary, chosen) for summary in summaries]
    order = ranked(outcomes, chosen)
    summaries, outcomes = [summaries[place] for place in order], [outcomes[place] for place in order]
    plan = design(summaries)
    words = [
        {factor.name: value_text(_plain(summary.settings.get(factor.name))) for factor in plan.factors}
        for summary in summaries
    ]
    causes = blamed(plan, [bool(item.diverged) for item in outcomes])
    summaries = [replace(item, cause=cause or item.cause) for item, cause in zip(summaries, causes, strict=True)]
    clock, apart = _clock(summaries), unlike(summaries)
    speeds = race(summaries, outcomes, chosen) if clock and not apart else None
    found: dict[str, Any] = {
        "best": _best(summaries, outcomes),
        "clock": clock,
        "metric": None if chosen is None else asdict(chosen) | {"words": chosen.words},
        "runs": [
            _row(summary, result, speeds, place, plan, words[place])
            for place, (summary, result) in enumerate(zip(summaries, outcomes, strict=True))
        ],
        "differs": [{"settings": list(factor.names), "levels": list(factor.labels)} for factor in plan.factors],
        "seeds": list(plan.seeds),
        "same": list(plan.constant),
        "names_only": list(plan.identifiers),
        "settings_told": plan.told,
        "race": None if speeds is None else {"curve": speeds.curve, "level": speeds.level, "shared": speeds.shared},
    }
    found |= _explained(summaries, outcomes, plan, chosen, words)
    found["unlike"] = apart
    if not clock or apart:
        found["partings"] = []
    if apart:  # statistics across different tasks would only describe the tasks
        found |= {key: empty for key, empty in (("effects", []), ("learning_rate", None), ("batch_size", None))}
    found["findings"] = _side_by_side(summaries)
    found["diagnosed"] = sum(bool(summary.health) for summary in summaries)
    found["notes"] = _notes(summaries, outcomes, chosen)
    found["unreadable"] = list(unreadable)
    return Comparison(found, tuple(summaries), tuple(unreadable))


def _clock(summaries: Sequence[Summary]) -> str:
    """The unit of all runs; empty if it differs between them."""
    clocks = {summary.clock for summary in summaries}
    return clocks.pop() if len(clocks) == 1 else ""


def _explained(
    summaries: Sequence[Summary],
    outcomes: Sequence[Outcome],
    plan: Design,
    metric: Metric | None,
    words: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """The results that need a score: effects, configurations, sweeps, and where runs separate."""
    if metric is None:
        return {"partings": _partings(summaries, plan, math.nan, log=False)}
    made, log = costs(outcomes, metric)
    spread = seed_spread(made, plan.groups)
    scores = np.array([item.score for item in outcomes])
    steps = np.array([float(summary.steps) for summary in summaries])
    ranked_configurations = configurations(plan, outcomes, made, words, spread)
    tested = effects(plan, made, scores) if plan.told else []
    rate = next((item for item in tested if "lr" in item.names and item.tested), None)
    favoured = "" if rate is None or rate.apart else rate.best
    return {
        "ratios": log,
        "seed_spread": spread,
        "configurations": [
            asdict(item) | {"runs": [summaries[run].run for run in item.runs]} for item in ranked_configurations
        ],
        "effects": [
            asdict(item) | {"contrasts": [{"other": one.other, **one.shift._asdict()} for one in item.contrasts]}
            for item in tested
        ],
        "learning_rate": _data(rate_effect(plan, made, spread, favoured)) if plan.told else None,
        "batch_size": _data(batch_effect(plan, made, steps, spread)) if plan.told else None,
        "double_descent": asdict(descent(summaries, outcomes, plan, metric.lower, spread if log else math.nan)),
        "partings": _partings(summaries, plan, spread, log=log),
    }


def _data(found: Any) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _best(summaries: Sequence[Summary], outcomes: Sequence[Outcome]) -> str | None:
    well = outcomes and not outcomes[0].diverged and math.isfinite(outcomes[0].score)
    return summaries[0].run if well else None


def _row(
    summary: Summary, result: Outcome, speeds: Race | None, place: int, plan: Design, words: Mapping[str, str]
) -> dict[str, Any]:
    speed = None if speeds is None else speeds.speeds[place]
    rate = summary.settings.get("lr")
    return {
        "run": summary.run,
        "path": summary.path,
        "steps": summary.steps,
        "score": result.score,
        "loss": result.final_loss,
        "best_validation": result.best_validation,
        "best_step": result.best_step,
        "final": result.final,
        "roughness": result.roughness,
        "diverged": result.diverged,
        "lr": rate if isinstance(rate, int | float) else math.nan,
        "settings": dict(words),
        "configuration": int(plan.groups[place]),
        "reached_at": None if speed is None else speed.steps,
        "reached_after": math.nan if speed is None else speed.seconds,
        "area": math.nan if speed is None else speed.area,
        "health": summary.health,
        "cause": summary.cause,
        "verdict": summary.verdict,
        "findings": [asdict(item) for item in summary.findings],
    }


def _partings(summaries: Sequence[Summary], plan: Design, spread: float, *, log: bool) -> list[dict[str, Any]]:
    """Where the best run and others separate: all others if few, else the best of the next configurations."""
    places = list(range(1, len(summaries)))
    if len(summaries) > PAIRS:
        firsts = dict(zip(reversed(plan.groups[1:].tolist()), reversed(places), strict=True))
        firsts.pop(int(plan.groups[0]), None)
        places = sorted(firsts.values())[:NEXT] or places[:NEXT]
    curve = "loss" if any(item.curve("loss") is not None for item in summaries) else "val_loss"
    floor = noise_of(spread) if log and not math.isnan(spread) else 0.0
    found: list[dict[str, Any]] = []
    for place in places:
        parting: Parting | None = part(summaries[0], summaries[place], curve, floor)
        if parting is not None:
            same = bool(plan.groups[0] == plan.groups[place])
            seeds = any(_seed(summaries[0], name) != _seed(summaries[place], name) for name in plan.seeds)
            found.append(asdict(parting) | {"same_settings": same, "other_seeds": seeds})
    return found


def _seed(summary: Summary, name: str) -> Any:
    return summary.settings.get(name)


def _side_by_side(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Each finding with the runs that have it, the most severe and most common first."""
    seen: dict[str, dict[str, Any]] = {}
    for summary in summaries:
        for finding in summary.findings:
            entry = seen.setdefault(finding.name, {"name": finding.name, "severity": "info", "runs": {}})
            entry["severity"] = max(entry["severity"], finding.severity, key=SEVERITIES.index)
            entry["runs"].setdefault(summary.run, {"severity": finding.severity, "first_step": finding.first_step})
    return sorted(
        seen.values(), key=lambda item: (-SEVERITIES.index(item["severity"]), -len(item["runs"]), item["name"])
    )


def _notes(summaries: Sequence[Summary], outcomes: Sequence[Outcome], metric: Metric | None) -> list[str]:
    notes = []
    judged = sum(bool(summary.health) for summary in summaries)
    if 0 < judged < len(summaries):
        notes.append(
            f"{judged:,} of {len(summaries):,} runs were diagnosed: the best, those that diverged, and a sample of the "
            "rest. Use --all to diagnose every run."
        )
    if metric is None:
        notes.append("The runs have no metric in common, so they cannot be ranked.")
    else:
        lacking = sum(math.isnan(item.score) and not item.diverged for item in outcomes)
        if lacking:
            have = "run has no" if lacking == 1 else "of the runs have no"
            notes.append(f"{lacking} {have} {metric.words}: ranked last.")
    well = [summary for summary, result in zip(summaries, outcomes, strict=True) if not result.diverged]
    if not _clock(summaries):
        counts = Counter(summary.clock for summary in summaries)
        told = " and ".join(f"{count} by {clock}s" for clock, count in counts.most_common())
        notes.append(f"The logs count in different units, {told}, so speed and separation are not compared.")
    elif metric is not None and len(well) > 1:
        notes += _unequal(well, metric)
    damaged = sum(bool(summary.notes) for summary in summaries)
    if damaged:
        have = "file has notes of its" if damaged == 1 else "files have notes of their"
        notes.append(f"{damaged} {have} own: `torchdoctor diagnose` shows them.")
    return notes


def _unequal(summaries: Sequence[Summary], metric: Metric) -> list[str]:
    """A note if runs have different lengths, with the run that leads at the end of the shortest."""
    shortest, longest = min(item.steps for item in summaries), max(item.steps for item in summaries)
    if shortest < 2 or longest <= UNEQUAL * shortest:
        return []
    ends = [[int(curve.steps[-1]) for curve in item.curves.values() if len(curve.steps)] for item in summaries]
    end = min((max(steps) for steps in ends if steps), default=shortest)
    upto = [(_cut(summary, end), summary.run) for summary in summaries]
    scores = [(outcome(cut, metric).score, name) for cut, name in upto]
    known = [(score if metric.lower else -score, name) for score, name in scores if math.isfinite(score)]
    text = f"The runs have different lengths, {shortest:,} to {longest:,} {summaries[0].clock}s"
    leader = min(known)[1] if known else None
    if leader is None or leader == summaries[0].run:
        return [f"{text}."]
    return [f"{text}: at the end of the shortest, {leader} leads."]


def _cut(summary: Summary, end: int) -> Summary:
    curves = {
        name: Curve(curve.steps[curve.steps <= end], curve.values[curve.steps <= end])
        for name, curve in summary.curves.items()
    }
    return Summary(summary.run, summary.path, end, summary.settings, curves)
