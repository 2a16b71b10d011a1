"""From the numbers of a step to its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from torchdoctor.records import Record
from torchdoctor.vitals.transfer import BAD_BATCH, FOUND_INF, LOSS_SCALE, RATE, TOTAL_NORM, Row, Slot

Vector = NDArray[np.float64]

EXTRA_ROWS = 8
"""How many per-tensor records out of turn fifty steps may have: a wild run must not flood its journal."""
HOST_FACTS = ("seconds", "memory")


class Decoder:
    """Makes records out of rows, and decides when the per-tensor values are worth one."""

    def __init__(self, tensors: int, note: Callable[[str, str], None]) -> None:
        self._tensors = tensors
        self._note = note
        self._typical = math.nan
        """A slow mean of the logarithm of the norm; non-finite and wild values do not move it far."""
        self._finite = True
        self._allowance = EXTRA_ROWS
        self._same_norm = (0.0, 0)
        self._clip: float | None = None

    def decode(self, slot: Slot, row: Row, step: int, every: int) -> Iterator[Record]:
        """The records of one slot, in the order in which detectors want them."""
        if "groups" in slot.extra:
            yield {"type": "groups", "step": step, "groups": slot.extra["groups"]}
        vitals: dict[str, float] = {}
        for name, cell in slot.cells.items():
            if cell.count:
                total = cell.total + (float(row[cell.column]) if cell.column is not None else 0.0)
                vitals[name] = short(total / cell.count)
        if slot.kind == "validation":
            yield {"type": "validation", "step": step, "vitals": vitals}
            return
        finite = all(map(math.isfinite, vitals.values()))
        self._read_facts(slot, row, vitals)
        if slot.parts:
            self._read_norm(slot, row, vitals)
            if slot.number % every == 0 or self._worth_a_row(slot, vitals):
                yield {"type": "tensors", "step": step, "vitals": self._tensor_vitals(slot, row)}
        if vitals:
            yield {"type": "vitals", "step": step, "vitals": vitals}
        finite = (finite and "grad_nonfinite" not in vitals) or bool(vitals.get("skipped"))
        slot.facts["nonfinite"] = self._finite and not finite  # news only when the step before was finite
        self._finite = finite

    def _read_facts(self, slot: Slot, row: Row, vitals: dict[str, float]) -> None:
        facts = slot.facts
        for name, value in facts.items():
            if name in HOST_FACTS or name.startswith("lr"):
                vitals[name] = short(value)
        if "clip" in facts and facts["clip"] != self._clip:  # said when it changes: most loops have one all their life
            self._clip = vitals["clip"] = facts["clip"]
        if "rate" in facts:
            vitals["lr"] = short(float(row[RATE]))
        if "scaled" in facts:
            vitals["loss_scale"] = float(row[LOSS_SCALE])
        if "skipped" in facts or "found_inf" in facts:
            vitals["skipped"] = 1.0 if facts.get("skipped") or ("found_inf" in facts and row[FOUND_INF] > 0) else 0.0
        if "batch" in facts:
            vitals["batch_nonfinite"] = float(row[BAD_BATCH])

    def _read_norm(self, slot: Slot, row: Row, vitals: dict[str, float]) -> None:
        vitals["grad_norm"] = short(self._total(slot, row))
        if not math.isfinite(vitals["grad_norm"]):
            vitals["grad_nonfinite"] = float(np.isinf(self._norms(slot, row)).sum() or 1)
        elif "clip" not in slot.facts:
            self._suspect_hidden_clip(vitals)

    def _total(self, slot: Slot, row: Row) -> float:
        """The total norm, infinite where any part of it is not finite."""
        if "total_known" in slot.facts:
            total = float(row[TOTAL_NORM])
        elif all(part[0] != "applied_norm" for part in slot.parts):  # the common case, kept short
            squares = 0.0
            for vital, start, indices in slot.parts:
                if vital == "grad_norm":
                    values = row[start : start + indices.size].astype(np.float64)
                    squares += float(values.dot(values))
            total = math.sqrt(squares)
        else:
            total = math.sqrt(float(np.nansum(np.square(self._norms(slot, row)))))
        return total if math.isfinite(total) else math.inf

    def _norms(self, slot: Slot, row: Row) -> Vector:
        """The gradient norm of every tensor, NaN where it has none, infinite where it is not finite."""
        raw, applied = self._gather(slot, row, "grad_norm"), self._gather(slot, row, "applied_norm")
        norms = _reconcile(raw, applied)
        if "total_known" in slot.facts:  # clipped before they could be measured: undo it
            total, known = math.sqrt(float(np.nansum(np.square(norms)))), float(row[TOTAL_NORM])
            if 0 < total < math.inf and math.isfinite(known):
                norms = norms * (known / total)
        return norms

    def _gather(self, slot: Slot, row: Row, vital: str) -> Vector | None:
        values: Vector | None = None
        for name, start, indices in slot.parts:
            if name == vital:
                if values is None:
                    values = np.full(self._tensors, np.nan)
                part = row[start : start + indices.size].astype(np.float64)
                part[~np.isfinite(part)] = np.inf
                values[indices] = part
        return values

    def _tensor_vitals(self, slot: Slot, row: Row) -> dict[str, list[float | None]]:
        result = {"grad_norm": _listed(self._norms(slot, row))}
        weights = self._gather(slot, row, "weight_norm")
        ratios = self._gather(slot, row, "update_ratio")
        if weights is not None and ratios is not None:
            ratios[~np.isfinite(ratios)] = np.nan  # weights of zero have no relative movement
            result["weight_norm"] = _listed(weights)
            result["update_ratio"] = _listed(ratios)
        return result

    def _worth_a_row(self, slot: Slot, vitals: dict[str, float]) -> bool:
        """Whether the norms by tensor of this step, out of turn, would tell where something happened."""
        norm = vitals["grad_norm"]
        if slot.number % 50 == 0:
            self._allowance = EXTRA_ROWS
        if not math.isfinite(norm):
            return self._finite
        level = math.log(norm + 1e-30)
        if math.isnan(self._typical):
            self._typical = level
        distance = level - self._typical
        self._typical += 0.1 * max(-1.0, min(1.0, distance))
        if abs(distance) > math.log(3.0) and self._allowance > 0:
            self._allowance -= 1
            return True
        return False

    def _suspect_hidden_clip(self, vitals: dict[str, float]) -> None:
        norm = vitals["grad_norm"]
        value, count = self._same_norm
        if norm > 0 and abs(norm - value) <= 1e-4 * norm:
            self._same_norm = value, count + 1
            if count + 1 == 20:
                self._clip = vitals["clip"] = value
                self._note(
                    "hidden clip",
                    f"the gradient norm is {value:.4g} at step after step: gradients are clipped where it cannot be "
                    "seen (in compiled code or in a library), and the norm before clipping is unknown. "
                    "Call doctor.log_gradients() before clipping to see it.",
                )
        else:
            self._same_norm = norm, 0


def _reconcile(raw: Vector | None, applied: Vector | None) -> Vector:
    """Norms at the capture and at the step: a moderate decrease between them is a clip that was not seen."""
    if raw is None or applied is None:
        known = applied if raw is None else raw
        return np.zeros(0) if known is None else known
    if (np.isnan(raw) & ~np.isnan(applied)).any():  # clipping saw only some of the tensors
        return np.where(np.isnan(raw), applied, raw)
    before, after = float(np.nansum(np.square(raw))), float(np.nansum(np.square(applied)))
    return raw if 1e-8 * before < after < before else np.where(np.isnan(applied), raw, applied)


def _listed(values: Vector) -> list[float | None]:
    """A row for the journal, each number as `short` would make it, None for NaN."""
    with np.errstate(all="ignore"):
        digits = 10.0 ** (6 - np.floor(np.log10(np.abs(values))))
        rounded = np.where(np.isfinite(digits) & (digits > 0), np.round(values * digits) / digits, values)
    return [None if value != value else value for value in rounded.tolist()]


def short(value: float) -> float:
    """A number with the seven digits that a 32-bit float has: half the journal, and the same live and read back.

    >>> short(0.30000001192092896)
    0.3
    """
    return float(f"{value:.7g}")
