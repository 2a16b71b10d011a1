"""Several runs side by side in words: what a comparison found, as a headline, a table and sections of sentences.

Takes the plain data of ``comparing/comparison.py``; text, Markdown and the page are made of the same words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdoctor.records import names_text, number_text
from torchdoctor.reports.clock import counted
from torchdoctor.reports.comparison_effects import batch_lines, descent_lines, effect_lines, rate_lines
from torchdoctor.reports.fitting import Column, fitted
from torchdoctor.reports.wording import printable

Found = Mapping[str, Any]

TOP = 20
"""Runs that are listed. If there are more, the rest is only counted."""
SIDE_BY_SIDE = 8
"""Up to this many runs, each has its own column in the table of findings."""
SETTINGS = 4
"""Settings with their own column."""
NOT_WELL = 10
ILL = ("sick", "critical")


@dataclass(frozen=True)
class Section:
    """A part of the comparison: sentences, and a table where that says it better."""

    title: str
    lines: tuple[str, ...]
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def headline(found: Found) -> list[str]:
    """The answer first: the best run, and the best configuration where runs were repeated."""
    metric = found["metric"]
    if found["best"] is None or metric is None:
        return [f"No run can be called the best: {_why_none(found)}."]
    best = found["runs"][0]
    level = f"{metric['words']} {number_text(best['score'])}"
    equal = [printable(row["run"]) for row in found["runs"] if row["score"] == best["score"] and not row["diverged"]]
    lines = (
        [f"Best: {printable(best['run'])}, by its {level}{_with(best)}."]
        if len(equal) == 1
        else [f"None is best: {names_text(equal, 5)} have exactly the same {level}."]
    )
    if found.get("unlike"):
        reason = printable(found["unlike"])
        return [f"These runs do not seem to share one task: {reason}. Their ranking then means little.", *lines]
    settled = found["configurations"][0] if found.get("configurations") else None
    if settled is None or len(found["configurations"]) == len(found["runs"]):
        if len(found["runs"]) > 2 and found["differs"] and found["settings_told"]:
            lines.append("Each configuration ran once, so the effect of the seed is not known.")
        return lines
    if len(found["configurations"]) == 1:
        return [*lines, f"All runs have the same settings: {_range(settled)}."]
    text = f"Best configuration: {_settings(settled['settings'])}, {_range(settled)}."
    ties = [item for item in found["configurations"][1:] if item["tied"]]
    if ties:
        others = names_text([f"({_settings(item['settings'])})" for item in ties], 2)
        text += f" Seeds alone could explain its lead over {others}."
    return [*lines, text]


def _why_none(found: Found) -> str:
    lost = [bool(row["diverged"]) for row in found["runs"]]
    if lost and all(lost):
        return "all of them diverged"
    if found["metric"] is None:
        return "no metric is in at least half of them"
    return f"{'the others' if any(lost) else 'they'} have no finite {found['metric']['words']}" + (
        f", and {sum(lost)} diverged" if any(lost) else ""
    )


def _with(row: Found) -> str:
    return f" ({_settings(row['settings'])})" if row["settings"] else ""


def _settings(settings: Mapping[str, str], most: int = SETTINGS) -> str:
    given = {name: value for name, value in settings.items() if value != "not given"} or settings
    return names_text([f"{printable(name)} {printable(value)}" for name, value in given.items()], most)


def _range(item: Found) -> str:
    runs = len(item["runs"])
    text = f"median {number_text(item['median'])} of {runs} {'run' if runs == 1 else 'runs'}"
    if runs > 1 and math.isfinite(item["low"]):
        text += f" ({number_text(item['low'])} to {number_text(item['high'])})"
    return text + (f", {item['diverged']} diverged" if item["diverged"] else "")


def table(found: Found, top: int = TOP, width: int | None = None) -> Section:
    """The ranking: one line per run, best first; if a width is given, only the most important columns that fit."""
    columns = [item for item in _columns(found) if item.importance == 0 or any(item.values)]
    columns = [item._replace(values=item.values[:top]) for item in columns]
    lines = []
    if (more := len(found["runs"]) - top) > 0:
        lines.append(f"and {more:,} more: --format json and --sql have them all")
    if width is not None:
        columns, dropped = fitted(columns, width)
        if dropped:
            lines.append(f"columns left out, shown by --format json and --output page.html: {names_text(dropped, 12)}")
    listed = tuple(zip(*(item.values for item in columns), strict=True))
    return Section("Runs, best first", tuple(lines), tuple(item.name for item in columns), listed)


def _columns(found: Found) -> Iterator[Column]:
    """All that is known of each run, with how much each column matters."""
    rows, metric, race = found["runs"], found["metric"], found["race"]
    yield Column("run", [row["run"] for row in rows], 0)
    for place, item in enumerate(found["differs"][:SETTINGS]):
        name = item["settings"][0]
        yield Column(name, [row["settings"].get(name, "") for row in rows], (2, 4, 9, 11)[place])
    if metric is not None:
        yield Column(metric["words"].replace("validation", "val."), [_number(row["score"]) for row in rows], 1)
        if metric["name"] == "val_loss":
            at = ["" if row["best_step"] is None else str(row["best_step"]) for row in rows]
            yield Column(f"at {_clock(found)}".strip(), at, 6)
    if metric is None or metric["name"] != "loss":
        yield Column("final loss", [_number(row["loss"]) for row in rows], 8 if metric is not None else 1)
    yield Column(f"{_clock(found) or 'step'}s", [f"{row['steps']:,}" for row in rows], 7)
    if race is not None:
        reached = ["never" if row["reached_at"] is None else f"{row['reached_at']:,}" for row in rows]
        yield Column(f"{number_text(race['level'])} reached at", reached, 10)
        yield Column("reached after", [seconds_text(row["reached_after"]) for row in rows], 12)
    yield Column("roughness", [_percent(row["roughness"]) for row in rows], 13)
    if any(row["health"] for row in rows):
        yield Column("health", ["diverged" if row["diverged"] else row["health"] for row in rows], 3)
        yield Column("likeliest cause", [row["cause"] if row["health"] in ILL else "" for row in rows], 5)


def seconds_text(seconds: float) -> str:
    """A time as a person says it.

    >>> seconds_text(42.3), seconds_text(3700), seconds_text(float("nan"))
    ('42 s', '1.0 h', '')
    """
    if not math.isfinite(seconds):
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _number(value: float) -> str:
    return number_text(value) if math.isfinite(value) else ""


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if math.isfinite(value) else ""


def _clock(found: Found) -> str:
    return str(found.get("clock", "step"))


def sections(found: Found, width: int | None = None) -> list[Section]:
    """Everything else, in the order in which one would ask."""
    titled: list[tuple[str, list[str]]] = [
        ("What differs", list(_differs(found))),
        ("Which setting explains it", effect_lines(found)),
        ("Which was faster", list(_faster(found))),
        ("Where they separate", [*_partings(found)]),
        ("Learning rate", rate_lines(found)),
        ("Batch size", batch_lines(found)),
        ("Double descent", descent_lines(found)),
        ("Sick or diverged", list(_not_well(found))),
    ]
    clock = _clock(found) or "step"
    made = [Section(title, tuple(counted(text, clock) for text in lines)) for title, lines in titled if lines]
    if found["findings"]:
        made.append(_findings(found, width))
    if found["notes"]:
        made.append(Section("Notes", tuple(printable(note) for note in found["notes"])))
    return made


def _differs(found: Found) -> Iterator[str]:
    for item in found["differs"]:
        first, *rest = (printable(name) for name in item["settings"])
        together = f"; always together with {names_text(rest)}" if rest else ""
        yield f"{first}: {names_text([printable(label) for label in item['levels']], 8)}{together}"
    if found["seeds"]:
        repeated = names_text([printable(name) for name in found["seeds"]])
        yield f"{repeated}: runs that differ only here count as repetitions"
    if not found["settings_told"]:
        names = [printable(item["settings"][0]) for item in found["differs"]]
        alone = f"Of the recorded settings, only {names[0]} differs. " if len(names) == 1 else ""
        yield (
            f"{alone}The logs record too few settings: what explains the ranking cannot be said. "
            "Write all settings of each run, and its seed, into config.json beside its log."
        )
    elif not found["differs"] and not found["seeds"]:
        yield "No recorded setting."
    elif not found["seeds"] and len(found.get("configurations", ())) < len(found["runs"]):
        yield "No seed was recorded: runs with the same recorded settings count as repetitions."
    if found["same"]:
        many = len(found["same"])
        yield f"{many} {'setting is' if many == 1 else 'settings are'} the same in all runs"


def _faster(found: Found) -> Iterator[str]:
    race = found["race"]
    if race is None:
        return
    name = race["curve"].replace("val_", "validation ").replace("_", " ")
    well = [row for row in found["runs"] if not row["diverged"]]
    arrived = sorted((row for row in well if row["reached_at"] is not None), key=lambda row: row["reached_at"])
    if not arrived:
        return
    level = f"{name} {number_text(race['level'])}, which {'both runs' if race['shared'] else 'half of the runs'} reach"
    first, last = arrived[0], arrived[-1]
    tied = last is not first and last["reached_at"] == first["reached_at"]
    leaders = [printable(row["run"]) for row in arrived if row["reached_at"] == first["reached_at"]]
    winners = f"{names_text(leaders, 3)} {'is' if len(leaders) == 1 else 'are'} first"
    text = f"{'No run is faster than another' if tied else winners} at {level}: at step {first['reached_at']:,}"
    if math.isfinite(first["reached_after"]) and not tied:
        text += f", after {seconds_text(first['reached_after'])}"
    if last is not first and not tied:
        text += f"; {printable(last['run'])} needs {last['reached_at']:,} steps"
        if math.isfinite(last["reached_after"]):
            text += f" and {seconds_text(last['reached_after'])}"
        ratio = last["reached_at"] / first["reached_at"] if first["reached_at"] > 0 else 1.0
        if ratio >= 1.05:
            text += f", {ratio:,.{0 if ratio >= 10 else 1}f} times as many"
    yield f"{text}."
    timed = [row for row in arrived if math.isfinite(row["reached_after"])]
    quickest = min(timed, key=lambda row: row["reached_after"], default=None)
    slower = quickest is not None and any(row["reached_after"] > quickest["reached_after"] for row in timed)
    if quickest is not None and slower and (tied or quickest is not first):
        yield f"In time, {printable(quickest['run'])} is first, after {seconds_text(quickest['reached_after'])}."
    areas = [row for row in well if math.isfinite(row["area"])]
    lowest = min(areas, key=lambda row: row["area"], default=None)
    if lowest is not None and any(row["area"] > lowest["area"] for row in areas):
        yield f"Lowest on average over the whole run: {printable(lowest['run'])}, {number_text(lowest['area'])}."


def _partings(found: Found) -> Iterator[str]:
    """A line for each pair of runs that separates, then one line for all that do not."""
    together = [item for item in found["partings"] if item["step"] is None and not item["identical_until"]]
    for item in found["partings"]:
        if item not in together:
            yield from _parting(item)
    if together:
        others = names_text([printable(item["second"]) for item in together], 6)
        name = together[0]["curve"].replace("val_", "validation ").replace("_", " ")
        them = others if len(together) == 1 else f"any of {others}"
        first = printable(together[0]["first"])
        yield f"{first} does not separate from {them}: the difference in {name} stays within noise."


def _parting(item: Found) -> Iterator[str]:
    first, second = printable(item["first"]), printable(item["second"])
    name = item["curve"].replace("val_", "validation ").replace("_", " ")
    alike = f"identical up to step {item['identical_until']}" if item["identical_until"] else ""
    if item["step"] is None:
        yield f"{first} and {second} do not separate: the difference in {name} stays within noise ({alike})."
        return
    here, there = (number_text(level) for level in item["levels"])
    if item["reason"] == "non-finite":
        text = f"{first} and {second} separate at step {item['step']}: one of them is not finite from there on"
    else:
        text = (
            f"{first} and {second} separate at about step {item['step']}, {name} {here} against {there}, and stay apart"
        )
    yield (text + (f"; {alike}" if alike else "") + _explained(item) + ".")
    told = [
        f"{label} {number_text(pair[0])} against {number_text(pair[1])}"
        for key, label in (("lr", "learning rate"), ("grad_norm", "gradient norm"))
        if (pair := item["readings"].get(key)) is not None and _apart(pair)
    ]
    if told:
        yield f"  at that step: {', '.join(told)}"
    yield from (f"  near that step: {printable(text)}" for text in item["findings"][:4])


def _apart(pair: Sequence[float]) -> bool:
    """Whether two numbers still differ after rounding for display."""
    return number_text(pair[0]) != number_text(pair[1])


def _explained(item: Found) -> str:
    """What explains a separation of runs with equal settings; their learning rates are printed below."""
    rates = item["readings"].get("lr")
    if not item["same_settings"] or (rates is not None and _apart(rates)):
        return ""
    only = "they differ only in their seed" if item["other_seeds"] else "no recorded setting differs"
    return f" ({only})"


def _not_well(found: Found) -> Iterator[str]:
    diverged = [row for row in found["runs"] if row["diverged"]]
    ill = [row for row in found["runs"] if not row["diverged"] and row["health"] in ILL]
    for row in diverged[:NOT_WELL]:
        yield f"{printable(row['run'])} diverged: {printable(row['diverged'])}{_with(row)}"
    if len(diverged) > NOT_WELL:
        yield f"and {len(diverged) - NOT_WELL} more diverged"
    for row in ill[:NOT_WELL]:
        yield f"{printable(row['run'])}: {printable(row['verdict'])}"
    if len(ill) > NOT_WELL:
        yield f"and {len(ill) - NOT_WELL} more sick runs"


def _findings(found: Found, width: int | None = None) -> Section:
    """One column per run; one line per finding if that is too wide; for many runs, how many have each finding."""
    names = [row["run"] for row in found["runs"]]
    title = f"Findings side by side: the {_clock(found) or 'step'} at which each began"
    if len(names) <= SIDE_BY_SIDE and width is not None and 30 + sum(2 + max(len(name), 6) for name in names) > width:
        return Section(title, tuple(_in_a_line(item) for item in found["findings"]))
    if len(names) <= SIDE_BY_SIDE:
        rows = tuple(
            (item["name"], item["severity"], *(_seen(item["runs"].get(name)) for name in names))
            for item in found["findings"]
        )
        return Section(title, (), ("finding", "worst", *names), rows)
    rows = tuple(
        (
            item["name"],
            item["severity"],
            f"{len(item['runs'])} of {found['diagnosed']}",
            _middle([entry["first_step"] for entry in item["runs"].values()]),
        )
        for item in found["findings"]
    )
    head = ("finding", "worst", "runs", f"usually from {_clock(found) or 'step'}")
    return Section("Findings, and how many runs have them", (), head, rows)


def _in_a_line(item: Found) -> str:
    runs = names_text([f"{printable(name)} {_seen(entry)}" for name, entry in item["runs"].items()], SIDE_BY_SIDE)
    return f"{item['name']} ({item['severity']}): {runs}"


def _seen(entry: Found | None) -> str:
    return "" if entry is None else str(entry["first_step"])


def _middle(steps: Sequence[int]) -> str:
    return str(sorted(steps)[len(steps) // 2])
