"""How good the doctor is, from the results of the benchmark: recall, silence, delay, root causes, calibration.

What counts, for one run of a sick kind: it is *found* when a finding whose name the kind declared right is raised at
warning or above, or when a right cause leads a problem of warning or above, at the time or in the report; in an acute
kind, not before its onset. A finding of warning or above that is neither right nor declared secondary is *false*; on a
healthy kind every one is. The root cause is *first* when it leads the report's first problem, and *among three* when it
is one of the first three causes of that problem.

>>> share(19, 20)
{'share': 0.95, 'count': 19, 'runs': 20, 'low': 0.764, 'high': 0.991}
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from torchdoctor.clinic.bench import Case, Line, kind_of
from torchdoctor.clinic.kinds import Kind
from torchdoctor.records import INFORMATIVE

BEFORE = -1
"""The step of what is known before the first step is taken: an optimizer without some parameters, say."""
IN_TIME_ACUTE = 3
IN_TIME_CHRONIC = 100
BINS = 10
RESAMPLES = 1000
CANDIDATES = 3


class Verdict(NamedTuple):
    """One run, judged."""

    kind: Kind
    line: Line
    found: bool
    spoke: bool
    """Whether anything was raised at warning or above."""
    false: tuple[str, ...]
    delay: int | None
    in_time: bool
    ranked: tuple[tuple[str, float], ...]
    """The causes of the report's first problem, `unknown` left out, likeliest first."""

    @property
    def first(self) -> bool:
        """Whether the right cause leads."""
        return bool(self.ranked) and self.ranked[0][0] in self.kind.cause

    @property
    def among_three(self) -> bool:
        """Whether it is among the first three."""
        return any(cause in self.kind.cause for cause, _ in self.ranked[:CANDIDATES])


def judge(line: Line) -> Verdict | None:
    """The verdict on a line; None where its kind has been renamed, or the run failed."""
    kind = kind_of(line)
    if kind is None or "error" in line:
        return None
    alarms = [item for item in line["findings"] if item["severity"] != "info" and item["name"] not in INFORMATIVE]
    onset = _onset(kind, line)
    earliest = onset if kind.acute else BEFORE
    heard = line["findings"] if kind.advice else alarms
    leads = [item for item in line["leads"] if kind.advice or item["severity"] != "info"]
    named = [(item["name"], item["step"]) for item in heard] + [(item["cause"], item["step"]) for item in leads]
    named += [(cause, line["report"]["step"]) for cause in _heads(line["report"], advice=kind.advice)]
    firsts = [
        min((step for name, step in named if name in names and step >= earliest), default=math.inf)
        for names in (kind.right, kind.also)
        if names
    ]
    last = max(firsts, default=math.inf)
    found = math.isfinite(last)
    delay = max(int(last) - onset, 0) if found else None
    known = {*kind.right, *kind.also, *kind.secondary}
    false = tuple(item["name"] for item in alarms if item["name"] not in known or item["step"] < earliest)
    return Verdict(
        kind=kind,
        line=line,
        found=found,
        spoke=bool(alarms),
        false=false,
        delay=delay,
        in_time=delay is not None and delay <= _allowed(kind, line, onset),
        ranked=_ranked(line["report"]),
    )


def _onset(kind: Kind, line: Line) -> int:
    if isinstance(kind.onset, int):
        return kind.onset
    known = [(loss, step) for step, loss in line["validations"] if math.isfinite(loss)]
    return int(min(known)[1]) if known else 0


def _allowed(kind: Kind, line: Line, onset: int) -> int:
    """Steps within which it has to be found: three, or for what is chronic a hundred or two validations."""
    if kind.acute:
        return IN_TIME_ACUTE
    later = [step for step, _ in line["validations"] if step > onset]
    return max(IN_TIME_CHRONIC, later[1] - onset if len(later) > 1 else 0)


def _ranked(report: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    diagnoses = report.get("diagnoses", [])
    if not diagnoses:
        return ()
    first = diagnoses[0]["problem"]
    causes = [item for item in diagnoses if item["problem"] == first and item["cause"] != "unknown"]
    return tuple(sorted(((item["cause"], item["probability"]) for item in causes), key=lambda pair: -pair[1]))


def _heads(report: dict[str, Any], *, advice: bool) -> list[str]:
    """The causes that lead the report's problems of warning or above: the last looks may have put them there."""
    grave = {item["name"] for item in report.get("symptoms", []) if advice or item["severity"] != "info"}
    heads: dict[int, str] = {}
    for item in report.get("diagnoses", []):
        if item["cause"] != "unknown" and grave.intersection(item["symptoms"]):
            heads.setdefault(item["problem"], item["cause"])
    return list(heads.values())


def latest(lines: Iterable[Line], version: str | None = None) -> list[Line]:
    """Of each run and preset, the line that was written last (of a version, if one is given)."""
    kept: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if version is None or line["version"] == version:
            kept[(line["preset"], *Case(line["kind"], line["arena"], line["seed"]))] = line
    return list(kept.values())


# ── numbers with their uncertainty ───────────────────────────────────────────────────────────────────────────────────


def share(count: int, runs: int) -> dict[str, float]:
    """A share with its 95 % interval after Wilson."""
    if not runs:
        return {"share": math.nan, "count": 0, "runs": 0, "low": math.nan, "high": math.nan}
    z = 1.96
    p = count / runs
    centre = (p + z * z / (2 * runs)) / (1 + z * z / runs)
    half = z * math.sqrt(p * (1 - p) / runs + z * z / (4 * runs * runs)) / (1 + z * z / runs)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return {"share": round(p, 3), "count": count, "runs": runs, "low": round(low, 3), "high": round(high, 3)}


def bootstrapped(runs: Sequence[Verdict], number: Callable[[Sequence[Verdict]], float]) -> dict[str, float]:
    """A number with its 95 % interval over resampled kinds: runs of one kind are too much alike to count apart."""
    kinds: dict[str, list[Verdict]] = {}
    for run in runs:
        kinds.setdefault(run.kind.slug, []).append(run)
    if not kinds:
        return {"value": math.nan, "runs": 0, "low": math.nan, "high": math.nan}
    dice = random.Random(0)
    groups = list(kinds.values())
    drawn = sorted(
        number([run for group in dice.choices(groups, k=len(groups)) for run in group]) for _ in range(RESAMPLES)
    )
    low, high = drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES) - 1]
    return {"value": round(number(runs), 4), "runs": len(runs), "low": round(low, 4), "high": round(high, 4)}


def reliability(runs: Sequence[Verdict]) -> list[dict[str, float]]:
    """Of the leading causes, by how sure the doctor was: how often they were right."""
    return _binned([(run.ranked[0][1], run.first) for run in runs if run.ranked])


def _binned(claims: Sequence[tuple[float, bool]]) -> list[dict[str, float]]:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for sure, right in claims:
        bins[min(int(sure * BINS), BINS - 1)].append((sure, right))
    return [
        {
            "from": index / BINS,
            "to": (index + 1) / BINS,
            "runs": len(group),
            "said": round(fmean(sure for sure, _ in group), 3),
            "right": round(fmean(right for _, right in group), 3),
        }
        for index, group in enumerate(bins)
        if group
    ]


def calibration_error(runs: Sequence[Verdict]) -> float:
    """The expected calibration error of the leading cause: |said - right|, weighted by how often it was said."""
    return _error(reliability(runs))


def chance_error(runs: Sequence[Verdict]) -> float:
    """What the calibration error would come to, on average, if each claim were as likely as it says: luck alone."""
    dice = random.Random(0)
    sure = [run.ranked[0][1] for run in runs if run.ranked]
    return fmean(_error(_binned([(p, dice.random() < p) for p in sure])) for _ in range(RESAMPLES))


def _error(bins: Sequence[dict[str, float]]) -> float:
    total = sum(item["runs"] for item in bins)
    return sum(item["runs"] * abs(item["said"] - item["right"]) for item in bins) / total if total else math.nan


# ── the score ────────────────────────────────────────────────────────────────────────────────────────────────────────


def score(lines: Iterable[Line]) -> dict[str, Any]:
    """Everything that the benchmark reports, as plain data."""
    kept = latest(lines)
    by_preset: dict[str, list[Verdict]] = {}
    for line in kept:
        verdict = judge(line)
        if verdict is not None:
            by_preset.setdefault(line["preset"], []).append(verdict)
    ours = by_preset.get("default", [])
    errors = [line for line in kept if "error" in line]
    return {
        "versions": sorted({line["version"] for line in kept}),
        "splits": sorted({line["split"] for line in kept}),
        "errors": [{**Case(e["kind"], e["arena"], e["seed"])._asdict(), "error": e["error"]} for e in errors],
        **_ours(ours),
        "presets": {name: _compared(verdicts) for name, verdicts in by_preset.items()},
        "kinds": [_row(kind, [v for v in ours if v.kind is kind]) for kind in dict.fromkeys(v.kind for v in ours)],
    }


def _ours(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    sick = [v for v in verdicts if not v.kind.healthy]
    healthy = [v for v in verdicts if v.kind.healthy]
    acute, chronic = [v for v in sick if v.kind.acute], [v for v in sick if not v.kind.acute]
    rooted = [v for v in sick if v.kind.cause]
    spoken = [v for v in verdicts if v.ranked and v.spoke and (v.kind.cause or v.kind.healthy)]
    return {
        "recall": share(sum(v.found for v in sick), len(sick)),
        "false_findings_per_sick_run": bootstrapped(sick, lambda runs: fmean(len(v.false) for v in runs)),
        "healthy_silent": share(sum(not v.spoke for v in healthy), len(healthy)),
        "false_alarms_per_healthy_run": bootstrapped(healthy, lambda runs: fmean(len(v.false) for v in runs)),
        "false_alarms_per_10000_steps": bootstrapped(
            healthy, lambda runs: 1e4 * sum(len(v.false) for v in runs) / sum(v.line["steps"] for v in runs)
        ),
        "acute_in_time": share(sum(v.in_time for v in acute), len(acute)),
        "chronic_in_time": share(sum(v.in_time for v in chronic), len(chronic)),
        "acute_delay": _delays(acute),
        "chronic_delay": _delays(chronic),
        "cause_first": share(sum(v.first for v in rooted), len(rooted)),
        "cause_among_three": share(sum(v.among_three for v in rooted), len(rooted)),
        "calibration_error": bootstrapped(spoken, calibration_error),
        "calibration_error_by_chance": round(chance_error(spoken), 4),
        "reliability": reliability(spoken),
    }


def _delays(verdicts: Sequence[Verdict]) -> dict[str, float]:
    known = sorted(v.delay for v in verdicts if v.delay is not None)
    if not known:
        return {"runs": 0, "median": math.nan, "p90": math.nan}
    return {"runs": len(known), "median": median(known), "p90": known[int(0.9 * (len(known) - 1))]}


def _compared(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """What can be said of everybody: who spoke on sick runs, and who kept silent on healthy ones."""
    sick = [v for v in verdicts if not v.kind.healthy]
    healthy = [v for v in verdicts if v.kind.healthy]
    return {
        "named": share(sum(v.found for v in sick), len(sick)),
        "spoke": share(sum(bool(v.line["findings"]) for v in sick), len(sick)),
        "healthy_silent": share(sum(not v.spoke for v in healthy), len(healthy)),
        "false_alarms_per_healthy_run": bootstrapped(
            healthy, lambda runs: fmean(sum(f["severity"] != "info" for f in v.line["findings"]) for v in runs)
        ),
    }


def _row(kind: Kind, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    causes: dict[str, int] = {}
    false: dict[str, int] = {}
    for verdict in verdicts:
        for name in dict.fromkeys(verdict.false):
            false[name] = false.get(name, 0) + 1
        leader = verdict.ranked[0][0] if verdict.ranked else "-"
        causes[leader] = causes.get(leader, 0) + 1
    return {
        "kind": kind.slug,
        "healthy": kind.healthy,
        "runs": len(verdicts),
        "found": sum(v.found for v in verdicts),
        "in_time": sum(v.in_time for v in verdicts),
        "missed_on": [f"{v.line['arena']}/{v.line['seed']}" for v in verdicts if not kind.healthy and not v.found],
        "false": dict(sorted(false.items(), key=lambda item: -item[1])),
        "cause_first": sum(v.first for v in verdicts) if kind.cause else None,
        "leaders": dict(sorted(causes.items(), key=lambda item: -item[1])),
    }
