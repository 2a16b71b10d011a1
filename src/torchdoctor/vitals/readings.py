"""Turns the numbers of a step into its records."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np

from torchdoctor.records import ANEW, Record
from torchdoctor.vitals.slot import Bunch, Slot, Vector

EXTRA_ROWS = 8
"""Maximum number of extra per-tensor records per fifty steps: a wild run must not flood its journal."""
HIDDEN_AFTER = 20
"""Steps with the same norm that indicate a hidden clip."""
NOISE = 1e-3
"""Relative change by which a loss goes up and down if batches differ: gradients then differ too."""
HOST_FACTS = ("seconds", "memory")
SMALLEST, LARGEST = 1e-15, 1e7
"""Between these limits, the powers of ten that turn seven digits into an integer are themselves exact integers."""
POWERS = np.array([10.0**power for power in range(22)])
INTERNAL = frozenset({"total", "found_inf", "grad_scale", "same_total"})
"""Device scalars that other code reads; every other one is a vital with its own name."""


class Decoder:
    """Makes records of slots, and decides when per-tensor values are worth one."""

    def __init__(self, tensors: int, note: Callable[[str, str], None]) -> None:
        self._tensors = tensors
        self._note = note
        self._typical = math.nan
        """A slow mean of the logarithm of the norm; non-finite and extreme values move it little."""
        self._was_finite = True
        self._was_well = True
        self._allowance = EXTRA_ROWS
        self._same_norm = (0.0, 0)
        self._courses: dict[str, deque[float]] = {}
        """The latest losses by name."""
        self._clip: float | None = None
        self._rate = (math.nan, math.nan)
        """The latest learning rate, as it is and shortened: it rarely changes."""

    def is_odd(self, slot: Slot | Bunch) -> bool:
        """Whether an extra per-tensor record of this step would show where something happened."""
        if isinstance(slot, Bunch):
            return not self._is_calm(slot)
        if slot.kind != "vitals" or not slot.parts:
            return False
        norm = self._total(slot)
        if math.isnan(norm):  # the total has been overwritten: get the norms that it consists of
            return True
        slot.facts["total"] = norm
        if slot.number % 50 == 0:
            self._allowance = EXTRA_ROWS
        odd = False
        if not math.isfinite(norm):
            odd = self._was_finite
        else:
            level = math.log(norm + 1e-30)
            if math.isnan(self._typical):
                self._typical = level
            distance = level - self._typical
            self._typical += 0.1 * max(-1.0, min(1.0, distance))
            odd = abs(distance) > 1.1 and self._allowance > 0  # a factor of three up or down
            self._allowance -= odd
        self._was_finite = math.isfinite(norm)
        slot.facts["odd"] = odd
        return odd

    def _is_calm(self, bunch: Bunch) -> bool:
        """Whether none of these steps is odd and all values are finite; if so, their norms update the typical norm."""
        if not bunch.is_true or not bunch.is_finite():
            return False
        typical = self._typical
        for level in map(math.log, [norm + 1e-30 for norm in bunch.totals]):
            distance = level - typical
            if not -1.0 <= distance <= 1.0:
                return self._is_calm_in_turn(bunch)
            typical += 0.1 * distance
        if -bunch.number % 50 < len(bunch):
            self._allowance = EXTRA_ROWS
        self._typical, self._was_finite = typical, True
        return True

    def _is_calm_in_turn(self, bunch: Bunch) -> bool:
        """The same step by step, if a norm is far off or there is no typical norm yet: the order then matters."""
        typical, allowance, number = self._typical, self._allowance, bunch.number
        log = math.log
        for norm in bunch.totals:
            if number % 50 == 0:
                allowance = EXTRA_ROWS
            number += 1
            level = log(norm + 1e-30)
            if typical != typical:
                typical = level
            distance = level - typical
            if -1.0 <= distance <= 1.0:
                typical += 0.1 * distance
            elif abs(distance) > 1.1 and allowance > 0:
                return False
            else:
                typical += 0.1 * max(-1.0, min(1.0, distance))
        self._typical, self._allowance, self._was_finite = typical, allowance, True
        return True

    def columns(self, bunch: Bunch) -> dict[str, list[float]] | None:
        """The vitals of calm steps, as `decode` would return them one by one; None if `decode` is needed."""
        # All in one call, and in the same order as `decode`.
        measured = {**bunch.losses, "seconds": bunch.seconds, **bunch.rates, "grad_norm": bunch.totals}
        numbers, size = shortened([*chain.from_iterable(measured.values())]), len(bunch)
        columns = {name: numbers[size * place : size * (place + 1)] for place, name in enumerate(measured)}
        if bunch.clip is None:
            value, count = self._same_norm
            for place, norm in enumerate(columns["grad_norm"]):
                if norm > 0 and -1e-4 * norm <= norm - value <= 1e-4 * norm:  # `_is_same`, inlined
                    count += 1
                    if count == HIDDEN_AFTER:
                        if self._is_cut_to(value, {name: columns[name][: place + 1] for name in bunch.losses}):
                            return None
                        count = 0
                else:
                    value, count = norm, 0
            self._same_norm = value, count
            for name in bunch.losses:
                self._follow(name, columns[name])
        elif bunch.clip != self._clip:
            return None
        self._was_well = True
        columns["seconds"] = np.round(bunch.seconds, 7).tolist()  # tenths of a microsecond, at any duration
        return columns

    def decode(self, slot: Slot, step: int, is_loss: Callable[[str], bool]) -> Iterator[Record]:
        """The records of a slot whose numbers have arrived, in the order in which detectors need them."""
        yield from _ahead(slot, step)
        vitals, unused = _means(slot)
        if slot.kind == "validation":
            yield {"type": "validation", "step": step, "vitals": vitals}
            return
        finite = self._take_losses({name: value for name, value in vitals.items() if is_loss(name)})
        self._read_facts(slot, vitals)
        if slot.sampled:
            yield from self._by_module(slot, step)
        if unused:
            yield {"type": "vitals", "step": step, "vitals": {**unused, "passed_over": float(len(unused))}}
        self._make_up_for_total(slot)
        if "total" in slot.facts:
            norm = vitals["grad_norm"] = short(slot.facts["total"])
            detailed = all(part.values is not None for part in slot.parts)
            if not math.isfinite(norm):
                finite = False
                vitals["grad_nonfinite"] = float(np.isinf(self._norms(slot)).sum() or 1) if detailed else 1.0
            elif "clip" not in slot.facts:
                self._suspect_hidden_clip(vitals)
            if detailed and (slot.facts["odd"] or slot.sampled):
                yield {"type": "tensors", "step": step, "vitals": self._tensor_vitals(slot)}
        if vitals:
            yield {"type": "vitals", "step": step, "vitals": vitals}
        finite = finite or bool(vitals.get("skipped"))
        slot.facts["nonfinite"] = self._was_well and not finite  # news only if the step before was well
        self._was_well = finite

    def _make_up_for_total(self, slot: Slot) -> None:
        """Compute the total norm from the norms by tensor, if the original was overwritten."""
        if slot.parts and "total" not in slot.facts and not math.isnan(total := self._total(slot)):
            slot.facts["total"], slot.facts["odd"] = total, False

    def _read_facts(self, slot: Slot, vitals: dict[str, float]) -> None:
        for name, value in slot.facts.items():
            if name == "lr":
                if value != self._rate[0]:
                    self._rate = value, short(value)
                vitals[name] = self._rate[1]
            elif name in HOST_FACTS:
                vitals[name] = round(value, 7)
            elif name.startswith("lr/"):
                vitals[name] = short(value)
        if "waited" in slot.facts:
            ready, entered = slot.facts["waited"]
            waited = ready.until(entered)
            if waited is not None:
                vitals["data_seconds"] = round(waited, 7)
        if "clip" in slot.facts and slot.facts["clip"] != self._clip:  # only when it changes: most loops have one clip
            self._clip = vitals["clip"] = slot.facts["clip"]
        if "skipped" in slot.facts or "found_inf" in slot.values:
            overflowed = any(value > 0 for value in slot.values.get("found_inf", ()))
            vitals["skipped"] = 1.0 if slot.facts.get("skipped") or overflowed else 0.0

    def _total(self, slot: Slot) -> float:
        """The total norm, infinite if any part of it is not finite; NaN if nothing has arrived."""
        known = slot.values.get("total")
        if known is not None and not ("own" in slot.facts and "captured" in slot.facts):
            total = known[0] if len(known) == 1 else math.sqrt(sum(value * value for value in known))
        else:  # measured by us, all or in part
            norms = self._norms(slot)
            if not norms.size:
                return math.nan
            total = math.sqrt(float(np.nansum(np.square(norms))))
        return total if math.isfinite(total) else math.inf

    def _norms(self, slot: Slot) -> Vector:
        """The gradient norm of every tensor: NaN if it has none, infinite if it is not finite."""
        norms = _reconcile(self._gather(slot, "grad_norm"), self._gather(slot, "applied_norm"))
        if norms is None:
            return np.zeros(0)
        scale = slot.values.get("grad_scale")
        if scale:
            norms = norms / scale[-1]
        known = slot.values.get("total")
        if known is not None and "captured" not in slot.facts:  # clipped before they could be measured: undo it
            total = math.sqrt(float(np.nansum(np.square(norms))))
            if 0 < total < math.inf and math.isfinite(known[-1]):
                norms = norms * (known[-1] / total)
        return norms

    def _gather(self, slot: Slot, vital: str) -> Vector | None:
        values: Vector | None = None
        for part in slot.parts:
            if part.vital == vital and part.values is not None:
                if values is None:
                    values = np.full(part.modules or self._tensors, np.nan)
                values[part.indices] = np.where(np.isfinite(part.values), part.values, np.inf)
        return values

    def _tensor_vitals(self, slot: Slot) -> dict[str, list[float | None]]:
        result = {"grad_norm": _listed(self._norms(slot))}
        weights, slices, changes = (self._gather(slot, name) for name in ("weight_norm", "slice_norm", "change_norm"))
        if weights is not None and slices is not None and changes is not None:
            with np.errstate(all="ignore"):
                ratios = changes / slices
            ratios[~np.isfinite(ratios)] = np.nan  # zero weights have no relative change
            result["weight_norm"] = _listed(weights)
            result["update_ratio"] = _listed(ratios)
        if (start := self._gather(slot, "start_norm")) is not None:
            result["start_norm"] = _listed(start)
        return result

    def _by_module(self, slot: Slot, step: int) -> Iterator[Record]:
        rows = {part.vital: self._gather(slot, part.vital) for part in slot.parts if part.modules}
        if rows:
            listed = {vital: _listed(row) for vital, row in rows.items() if row is not None}
            yield {"type": "modules", "step": step, "vitals": listed}

    def _suspect_hidden_clip(self, vitals: dict[str, float]) -> None:
        norm = vitals["grad_norm"]
        value, count = self._same_norm
        if _is_same(norm, value):
            self._same_norm = value, count + 1
            if count + 1 == HIDDEN_AFTER and not self._is_cut_to(value, {}):
                self._same_norm = value, 0
            elif count + 1 == HIDDEN_AFTER:
                self._clip = vitals["clip"] = value
                self._note(
                    "hidden clip",
                    f"the gradient norm has been {value:.4g} for {HIDDEN_AFTER} steps: gradients may be clipped where "
                    "torchdoctor cannot see it (in compiled code or in a library), and the norm before clipping is "
                    "then unknown. Call doctor.log_gradients() before clipping to record it.",
                )
        else:
            self._same_norm = norm, 0

    def _take_losses(self, losses: Mapping[str, float]) -> bool:
        """Remember the losses of a step; returns whether all are finite."""
        for name, value in losses.items():
            self._follow(name, (value,))
        return all(map(math.isfinite, losses.values()))

    def _follow(self, name: str, losses: Sequence[float]) -> None:
        self._courses.setdefault(name, deque(maxlen=HIDDEN_AFTER)).extend(losses[-HIDDEN_AFTER:])

    def _is_cut_to(self, norm: float, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether a constant norm is due to a clip and not to constant gradients; `coming` holds further losses.

        If a loss goes up and down with its batch, so does its gradient norm. If it does not, all batches may be the
        same and the weights may hardly move. If no loss is logged, the norm counts as a clip if it is a round number.
        """
        if not self._courses and not coming:
            return _is_round(norm)
        names = {**self._courses, **coming}
        return any(_is_noisy([*self._courses.get(name, ()), *coming.get(name, ())][-HIDDEN_AFTER:]) for name in names)


def _ahead(slot: Slot, step: int) -> Iterator[Record]:
    """What must be known before the numbers of a step."""
    if slot.groups is not None:
        yield {"type": "groups", "step": step, "groups": slot.groups}
    if "anew" in slot.facts:
        yield {"type": "facts", "step": step, "facts": {ANEW: True}}


def _is_round(norm: float) -> bool:
    """Whether a number has at most two digits, up to a clip's precision.

    >>> _is_round(0.24999995), _is_round(0.2503)
    (True, False)
    """
    return abs(norm - float(f"{norm:.2g}")) <= 1e-5 * norm


def _is_noisy(losses: Sequence[float]) -> bool:
    """Whether losses go up and down by more than their last digits.

    >>> _is_noisy([1.0, 0.9, 1.1, 0.95, 1.0, 0.9]), _is_noisy([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])
    (True, False)
    """
    changes = [after - before for before, after in pairwise(losses)]
    least = NOISE * max(map(abs, losses), default=0.0)
    rises, falls = (sum(sign * change > least for change in changes) for sign in (1, -1))
    return min(rises, falls) > len(changes) // 5


def _is_same(norm: float, other: float) -> bool:
    return norm > 0 and abs(norm - other) <= 1e-4 * norm


def _means(slot: Slot) -> tuple[dict[str, float], dict[str, float]]:
    """Losses and gauges by name, averaged over micro-batches; and losses that have no part in the step.

    A non-finite loss has non-finite gradients. If the step's gradients are finite, and so is another loss of that name,
    the loop has skipped that batch: its loss is recorded separately and not mixed into the step's loss.
    """
    means: dict[str, float] = {}
    unused: dict[str, float] = {}
    for name, values in slot.values.items():
        if name not in INTERNAL and name not in slot.cells:
            means[name] = short(values[0] if len(values) == 1 else _mean(slot, name, values, unused))
    for name, (total, count) in slot.cells.items():
        values = slot.values.get(name, [])
        odd = slot.nonfinite.get(name) if slot.nonfinite else None
        if odd:
            means[name] = short(_mean(slot, name, [*odd, *values, *[total / count] * count], unused))
        else:
            means[name] = short((total + sum(values)) / (count + len(values)))
    for name, odd in (slot.nonfinite or {}).items():
        if name not in slot.cells:
            means[name] = short(_mean(slot, name, [*odd, *slot.values.get(name, ())], unused))
    return means, unused


def _mean(slot: Slot, name: str, values: Sequence[float], unused: dict[str, float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    if finite and len(finite) < len(values) and math.isfinite(slot.facts.get("total", math.inf)):
        unused[name] = sum(value for value in values if not math.isfinite(value))
        values = finite
    return sum(values) / len(values)


def _reconcile(raw: Vector | None, applied: Vector | None) -> Vector | None:
    """Norms at the capture and at the step: a moderate decrease in between is a hidden clip."""
    if raw is None or applied is None:
        return applied if raw is None else raw
    if (np.isnan(raw) & ~np.isnan(applied)).any():  # clipping saw only some of the tensors
        return np.where(np.isnan(raw), applied, raw)
    before, after = float(np.nansum(np.square(raw))), float(np.nansum(np.square(applied)))
    return raw if 1e-8 * before < after < before else np.where(np.isnan(applied), raw, applied)


def _listed(values: Vector) -> list[float | None]:
    """A row for the journal, each number shortened as by `short`; None for NaN."""
    with np.errstate(all="ignore"):
        digits = 10.0 ** (6 - np.floor(np.log10(np.abs(values))))
        rounded = np.where(np.isfinite(digits) & (digits > 0), np.round(values * digits) / digits, values)
    return [None if value != value else value for value in rounded.tolist()]


def short(value: float) -> float:
    """A number with a float32's seven digits: it halves the journal, and is the same live and when read back.

    >>> short(0.30000001192092896)
    0.3
    """
    return float(f"{value:.7g}")


def shortened(values: Sequence[float]) -> list[float]:
    """Finite numbers, each shortened as by `short`, but four times faster than formatting and parsing.

    A seven-digit integer divided by an exact power of ten is the float nearest to that decimal.

    >>> shortened([0.30000001192092896, 0.0, -12.3456789])
    [0.3, 0.0, -12.34568]
    """
    numbers = np.array(values, dtype=np.float64)
    sizes = np.abs(numbers)
    sizes[sizes == 0] = 1.0
    if not (sizes.min(initial=SMALLEST) >= SMALLEST and sizes.max(initial=SMALLEST) < LARGEST):
        return list(map(short, values))
    powers = POWERS[6 - np.floor(np.log10(sizes)).astype(np.intp)]
    rounded: list[float] = (np.rint(numbers * powers) / powers).tolist()
    return rounded
