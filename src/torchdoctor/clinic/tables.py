"""The benchmark's score as text: a few lines of numbers, a reliability diagram, a table of kinds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torchdoctor.clinic.peers import PEERS

BAR = 20


def plain(item: Any) -> Any:
    """The same with None for what is not a number, which JSON cannot say."""
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, list):
        return [plain(value) for value in item]
    return None if isinstance(item, float) and math.isnan(item) else item


def share_text(item: dict[str, float]) -> str:
    """A share as people read it.

    >>> share_text({"share": 0.95, "count": 19, "runs": 20, "low": 0.764, "high": 0.991})
    '95.0 % (76.4 .. 99.1), 19 of 20 runs'
    """
    if not item["runs"]:
        return "no runs"
    low, high = 100 * item["low"], 100 * item["high"]
    return f"{100 * item['share']:.1f} % ({low:.1f} .. {high:.1f}), {item['count']} of {item['runs']} runs"


def value_text(item: dict[str, float]) -> str:
    """A number with its interval."""
    if math.isnan(item["value"]):
        return "no runs"
    return f"{item['value']:.3g} ({item['low']:.3g} .. {item['high']:.3g}), {item['runs']} runs"


def delay_text(item: dict[str, float]) -> str:
    """Delays in steps."""
    return f"median {item['median']:g}, 90 % within {item['p90']:g} steps" if item["runs"] else "none found"


def summary(score: dict[str, Any]) -> list[str]:
    """The numbers that matter, a line each; intervals are 95 %."""
    rows = [
        ("faults found, with a right name", share_text(score["recall"]), "95 %"),
        ("healthy runs without a warning", share_text(score["healthy_silent"]), "98 %"),
        ("false alarms per healthy run", value_text(score["false_alarms_per_healthy_run"]), ""),
        ("  per 10,000 healthy steps", value_text(score["false_alarms_per_10000_steps"]), ""),
        ("false findings per sick run", value_text(score["false_findings_per_sick_run"]), ""),
        ("acute: found within 3 steps", share_text(score["acute_in_time"]), ""),
        ("  delay", delay_text(score["acute_delay"]), ""),
        ("chronic: found within 100 steps", share_text(score["chronic_in_time"]), ""),
        ("  delay", delay_text(score["chronic_delay"]), ""),
        ("root cause first", share_text(score["cause_first"]), "80 %"),
        ("root cause among three", share_text(score["cause_among_three"]), "95 %"),
        ("calibration error", value_text(score["calibration_error"]), "0.05"),
        ("  by luck, were it calibrated", _luck_text(score), ""),
    ]
    lines = [f"{title:<33}{text}{f'   [goal {goal}]' if goal else ''}" for title, text, goal in rows]
    head = f"version {', '.join(score['versions'])}; {' and '.join(score['splits'])} kinds"
    return [head, "", *lines]


def _luck_text(score: dict[str, Any]) -> str:
    luck = score["calibration_error_by_chance"]
    return "no runs" if math.isnan(luck) else f"{luck:.3g} on average"


def diagram(score: dict[str, Any]) -> list[str]:
    """How sure the leading cause was said to be, and how often it was right."""
    lines = ["said        right                        runs"]
    for item in score["reliability"]:
        bar = "#" * round(BAR * item["right"])
        lines.append(f"{item['said']:>4.0%}  {item['right']:>10.0%}  |{bar:<{BAR}}|  {item['runs']:>4}")
    return lines


def comparison(score: dict[str, Any]) -> list[str]:
    """The doctor beside the paper's rules and the peers."""
    lines = [f"{'':<18}{'found by name':<16}{'said anything':<16}{'healthy: silent':<17}false alarms a healthy run"]
    for name in ("default", "paper", *PEERS):
        item = score["presets"].get(name)
        if item is None:
            lines.append(f"{name:<18}not installed, or not run")
            continue
        named = "-" if name in PEERS else f"{item['named']['share']:.1%}"
        silent = item["healthy_silent"]["share"]
        alarms = item["false_alarms_per_healthy_run"]
        lines.append(
            f"{name:<18}{named:<16}{item['spoke']['share']:<16.1%}{silent:<17.1%}"
            f"{alarms['value']:.2f} ({alarms['low']:.2f} .. {alarms['high']:.2f})"
        )
    return lines


def kinds(score: dict[str, Any], *, healthy: bool) -> list[str]:
    """A line a kind: found, in time, root cause first, and what was said that should not have been."""
    chosen = [row for row in score["kinds"] if row["healthy"] is healthy]
    width = max((len(row["kind"]) for row in chosen), default=4) + 2
    head = "false alarms" if healthy else "found  in time  cause  leading causes; missed on; false findings"
    lines = [f"{'kind':<{width}}runs  {head}"]
    for row in chosen:
        start = f"{row['kind']:<{width}}{row['runs']:>4}  "
        if healthy:
            lines.append(start + (_counted(row["false"]) or "-"))
            continue
        cause = "-" if row["cause_first"] is None else str(row["cause_first"])
        parts = [_counted(row["leaders"])]
        parts += [f"missed on {', '.join(row['missed_on'])}"] if row["missed_on"] else []
        parts += [f"false: {_counted(row['false'])}"] if row["false"] else []
        lines.append(f"{start}{row['found']:>5}  {row['in_time']:>7}  {cause:>5}  {'; '.join(parts)}")
    return lines


def _counted(names: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in names.items())


def render(score: dict[str, Any]) -> str:
    """The whole of it."""
    blocks: list[Iterable[str]] = [
        summary(score),
        ["", "How sure, and how often right (leading causes)"],
        diagram(score),
        ["", "Side by side"],
        comparison(score),
        ["", "Faults"],
        kinds(score, healthy=False),
        ["", "Healthy"],
        kinds(score, healthy=True),
    ]
    if score["errors"]:
        failed = [
            f"{item['kind']} on {item['arena']}, seed {item['seed']}: {item['error']}" for item in score["errors"]
        ]
        blocks.append(["", f"Runs that failed: {len(failed)}", *failed])
    return "\n".join(line.rstrip() for block in blocks for line in block)
