"""What settings do, in words: effects with their intervals, and the sweeps of learning rate, batch and model size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torchdoctor.records import names_text, number_text
from torchdoctor.reports.wording import percent, printable

Found = Mapping[str, Any]

SHOWN = 12
"""Settings that are listed one by one."""
REPEATED = 8


def effect_lines(found: Found) -> list[str]:
    """A verdict, then each setting."""
    effects = found.get("effects", [])
    if not effects:
        return []
    matter = [item for item in effects if item["verdict"] == "matters"]
    tested = [item for item in effects if item["tested"]]
    if not tested:
        head = "There are not enough runs to say which setting explains the outcome."
    elif not matter:
        head = "No setting explains the outcome beyond chance."
    else:
        head = ""
    told = [text for item in effects[:SHOWN] for text in _effect(item, found, len(tested))]
    more = [f"and {len(effects) - SHOWN} more settings"] if len(effects) > SHOWN else []
    return [*([head] if head else []), *told, *more]


def _effect(item: Found, found: Found, tested: int) -> Iterator[str]:
    name = " + ".join(printable(name) for name in item["names"][:3]) + (" + …" if len(item["names"]) > 3 else "")
    if item["verdict"] == "not enough runs":
        yield f"{name}: not enough runs to say. {_needed(item)}".rstrip()
        return
    among = (
        "runs with all else equal"
        if item["tested"] == "runs"
        else "configurations, whose other settings differ as well"
    )
    chance = p_text(item["p"]) + (f", corrected for {tested} settings" if tested > 1 else "")
    if item["verdict"] == "nothing seen":
        yield f"{name}: no effect seen ({chance}, among {among}). {_bounded(item, found)}{_more(item)}".rstrip()
        return
    share = (
        f" and explains {percent(item['explained'])} of the differences in rank"
        if math.isfinite(item["explained"])
        else ""
    )
    best = printable(item["best"]) + (", but that depends on the batch size" if _rate_moves(item, found) else "")
    tied = names_text([printable(label) for label in item["tied"]], 5)
    same = f"; not clearly worse: {tied}" if tied else ""
    alone = names_text([printable(label) for label in item["apart"]], 5)
    never = f"; never run with the same other settings: {alone}" if alone else ""
    head = "Best of those that can be compared" if alone else "Best"
    yield f"{name} matters ({chance}){share}, among {among}. {head}: {best}{same}{never}."
    lost = [f"{level['diverged']} of {level['runs']} at {printable(level['label'])}" for level in item["levels"]
            if level["diverged"]]  # fmt: skip
    for contrast in item["contrasts"]:
        yield f"  {_contrast(contrast, item, found)}"
    if lost:
        yield f"  diverged: {names_text(lost, 5)}"
    if item["together"]:
        others = names_text([printable(name) for name in item["together"]])
        yield f"  it mostly changed together with {others}: either may be the reason"


def _rate_moves(item: Found, found: Found) -> bool:
    """Whether this is the learning rate, and its best value depends on the batch size."""
    return "lr" in item["names"] and bool((found.get("batch_size") or {}).get("moves_rate"))


def p_text(p: float) -> str:
    """A p-value as text.

    >>> p_text(0.0004), p_text(0.0312), p_text(1.0)
    ('p < 0.001', 'p = 0.031', 'p = 1')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _contrast(contrast: Found, item: Found, found: Found) -> str:
    metric = found["metric"]["words"]
    other, best = printable(contrast["other"]), printable(item["best"])
    if math.isinf(contrast["estimate"]):
        level = next(level for level in item["levels"] if level["label"] == contrast["other"])
        return f"{other} against {best}: {level['diverged']} of its {level['runs']} runs diverged"
    return f"{other} against {best}: {metric} {_size(contrast, found)}"


def _size(contrast: Found, found: Found) -> str:
    """By how much worse, with the interval."""
    low, high = contrast["low"], contrast["high"]
    if found["ratios"]:
        text = times_text(math.exp(contrast["estimate"]))
        ends = [f"{math.exp(end):.3g}" if math.isfinite(end) else None for end in (low, high)]
    else:
        worse = "higher" if found["metric"]["lower"] else "lower"
        text = f"{number_text(contrast['estimate'])} {worse}"
        ends = [number_text(end) if math.isfinite(end) else None for end in (low, high)]
    if ends[0] is None:
        bounds = "too few runs for an interval"
    else:
        bounds = f"95 % interval {ends[0]} to {ends[1]}" if ends[1] else f"at least {ends[0]}, with 95 % confidence"
    return f"{text[:-1]}; {bounds})" if text.endswith(")") else f"{text} ({bounds})"


def times_text(ratio: float) -> str:
    """A ratio as text.

    >>> times_text(0.8521), times_text(1.0004)
    ('0.852 times', 'the same (1.00 times)')
    """
    return "the same (1.00 times)" if f"{ratio:.3g}" == "1" else f"{ratio:.3g} times"


def _bounded(item: Found, found: Found) -> str:
    """How large an unseen effect may be: the interval of the widest difference."""
    contrast = item["contrasts"][-1] if item["contrasts"] else {"low": -math.inf}
    if not math.isfinite(contrast["low"]) or not math.isfinite(contrast["high"]):
        return ""
    return f"{printable(contrast['other'])} against {printable(item['best'])}: {_size(contrast, found)}."


def _needed(item: Found) -> str:
    if item["needed"] is None:
        return ""
    times = item["needed"]
    return (
        f"To show a clear effect, run each configuration {times} times as often, with new seeds."
        if times <= REPEATED
        else f"That needs {times} times as many runs."
    )


def _more(item: Found) -> str:
    if item["needed"] is None:
        return ""
    many = "More" if item["needed"] < 2 else f"About {item['needed']}"  # one of each is what there is
    return f" {many} {item['tested']} per value would confirm a difference of this size."


def rate_lines(found: Found) -> list[str]:
    """The sweep of learning rates."""
    sweep = found.get("learning_rate")
    if sweep is None:
        return []
    low, high, best = (number_text(sweep[key]) for key in ("low", "high", "best"))
    span = f"{low} to {high}" if low != high else best
    tried = f"{number_text(sweep['lowest'])} to {number_text(sweep['highest'])}"
    beyond = next((number_text(rate["lr"]) for rate in sweep["rates"] if rate["lr"] > sweep["high"]), "")
    told = {
        "valley": f"A valley: best at {span}, worse on both sides (tried: {tried}).",
        "flat": f"No learning rate is better than another beyond noise (tried: {tried}).",
        "best at the lowest": f"Best at the low edge of the sweep, {span} (tried: {tried}): {sweep['advice']}.",
        "best at the highest": f"Best at the high edge of the sweep, {span} (tried: {tried}): {sweep['advice']}.",
        "best below divergence": f"Best at {span}; at the next rate, {beyond}, runs diverge (tried: {tried}).",
    }
    if (found.get("batch_size") or {}).get("moves_rate"):
        told_apart = "The best learning rate depends on the batch size, see there;"
        return [f"{told_apart} over all batch sizes together, {best} does best (tried: {tried})."]
    lines = [told[sweep["shape"]]]
    if math.isfinite(sweep["optimum"]):
        lines.append(f"A parabola through the three best rates has its minimum at {number_text(sweep['optimum'])}.")
    lost = [
        f"{rate['diverged']} of {rate['runs']} at {number_text(rate['lr'])}"
        for rate in sweep["rates"]
        if rate["diverged"]
    ]
    if lost:
        lines.append(f"Diverged: {names_text(lost, 6)}.")
    if not sweep["noise_known"]:
        lines.append("No run was repeated: differences under 2 % count as noise.")
    return lines


def batch_lines(found: Found) -> list[str]:
    """The batch size, and the rule by which the learning rate should follow it."""
    effect = found.get("batch_size")
    if effect is None:
        return []
    lines = []
    budget = {
        "steps": "took the same number of steps, so larger batches saw more samples",
        "samples": "saw the same number of samples",
    }
    if effect["budget"]:
        lines.append(f"All runs {budget[effect['budget']]}.")
    else:
        lines.append(
            "The runs had different numbers of steps and of samples: keep that in mind when comparing batch sizes."
        )
    lines += [_kept(kept, found) for kept in effect["kept"]]
    if effect["rule"]:
        lines.append(
            f"The {effect['rule']} rule changes the outcome least, for better or worse: settings tuned at one "
            "batch size stay good at another."
        )
    elif len(effect["kept"]) > 1:
        lines.append("No rule changes the outcome less than another beyond noise.")
    if not any(kept["rule"] == "linear" for kept in effect["kept"]):
        lines.append("No two configurations follow the linear rule: a grid in factors of 2 would test it.")
    if effect["best_rates"]:
        told = [f"{number_text(rate)} at {size}" for size, rate in effect["best_rates"]]
        lines.append(f"Best learning rate by batch size: {names_text(told, 6)}.")
    if math.isfinite(effect["exponent"]):
        lines.append(_exponent(effect))
    return lines


RULES = {
    "linear": "lr in proportion to the batch",
    "square root": "lr with the square root of the batch",
    "constant": "the same lr",
}


def _kept(kept: Found, found: Found) -> str:
    name = found["metric"]["words"]
    if math.isinf(kept["change"]) or math.isinf(kept["size"]):
        change = f"{name}: the larger batch diverges"
    elif found["ratios"]:
        way, size = times_text(math.exp(kept["change"])), percent(math.expm1(kept["size"]))
        change = f"{name} {way} at the larger batch; up or down, it moves by {size}"
    else:
        way, size = number_text(kept["change"]), number_text(kept["size"])
        change = f"{name} changes by {way} at the larger batch; up or down, it moves by {size}"
    return f"{kept['rule']} ({RULES[kept['rule']]}): {change} (medians of {kept['pairs']} pairs)"


def _exponent(effect: Found) -> str:
    text = f"It grows with the batch size to the power {effect['exponent']:.2f}"
    low, high = effect["exponent_low"], effect["exponent_high"]
    if not math.isfinite(low):
        return f"{text}; too few runs were repeated to say how certain that is."
    fits = [name for name, power in (("linear", 1.0), ("square root", 0.5), ("constant", 0.0)) if low <= power <= high]
    rule = (
        f"consistent with: {' or '.join(fits)}"
        if fits
        else "consistent with neither the linear rule (1) nor the square root (0.5)"
    )
    return f"{text} (95 % interval {low:.2f} to {high:.2f}), {rule}."


def descent_lines(found: Found) -> list[str]:
    """Double descent over the model's size, and within runs."""
    descent = found.get("double_descent")
    if descent is None:
        return []
    lines = []
    sizes = descent["sizes"]
    if sizes is not None:
        name = printable(sizes["setting"])
        if sizes["descends_twice"]:
            lines.append(
                f"Over {name}: best at {sizes['bottom']:,.0f} at first, worse up to {sizes['peak']:,.0f}, then better "
                f"again than before; the best is {sizes['best']:,.0f}. Do not choose a size near {sizes['peak']:,.0f}."
            )
            if not sizes["noise_known"]:
                lines.append("No run was repeated: repeat the sizes around the peak with other seeds to be sure.")
        else:
            lines.append(f"Over {name}: none. The end of training is best at {sizes['best']:,.0f}.")
    if descent["epochs"]:
        runs = names_text([printable(run) for run in descent["epochs"]], 5)
        lines.append(f"Over epochs: validation got worse and then better than ever in {runs}.")
    return lines
