"""Compares the ranks of a distributed run by the journals that they write.

Every rank writes a journal to the same folder (``journal.jsonl``, ``journal.rank1.jsonl`` ...). The first rank reads
the others in a separate thread as they grow. This adds no collective operation that could hang, and a rank that dies
only stops writing. The results are vitals of the first rank, so its journal covers all ranks:

===========================  =======================================================================
``rank_weights_apart``       the largest relative difference of a tensor's norm between two replicas
``rank_gradients_apart``     the same for the gradient norm, as the median over the last steps
``rank_apart``               the replica that differs most from the others; -1 if there are only two
``rank_waited``              share of a step that the others wait for the slowest rank
``rank_slowest``             the slowest rank; ``rank_slowness``: its time relative to the others
``rank_lost``                the only rank whose loss was not finite, at step ``rank_lost_at``
===========================  =======================================================================

Replicas are ranks with a DDP model, or with equal gradients. Ranks that hold whole models but have different losses and
gradients also count, because they were probably meant to be replicas. Shards of a model (FSDP, tensor or pipeline
parallel) are not compared.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.series import median

RANKS = 64
"""Maximum number of ranks that are compared: reading more journals would slow the first rank down."""
STEPS = 64
"""Number of steps kept per rank."""
LOOKS = 16
"""Number of weight samples kept per rank."""
TIMES = 5
"""Number of timings kept per rank, and needed for a comparison."""
CHUNK = 1 << 20
"""Bytes read from a journal at once."""
SAME = 1e-5
"""Relative difference up to which values count as equal."""
TINY = 1e-30

Table = NDArray[np.float64]


class Rank:
    """The latest records of one rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0
        self._rest = b""
        self.forget()

    def forget(self) -> None:
        """Forget all records, because a new run begins."""
        self.losses: dict[int, float] = {}
        self.norms: dict[int, float] = {}
        self.weights: dict[int, list[float]] = {}
        self.own: deque[float] = deque(maxlen=TIMES)
        self.seconds: deque[float] = deque(maxlen=STEPS)
        self.lost = -1
        self.step = -1

    def read_on(self) -> None:
        """Read what was added to the journal since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._place)
                data = file.read(CHUNK)
                self._place = file.tell()
        except OSError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:  # a torn line
                continue
            if isinstance(record, dict):
                self.take(record)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take one record."""
        kind, step, vitals = record.get("type"), record.get("step"), record.get("vitals")
        if kind == "header":
            self.forget()
        if not isinstance(step, int) or not isinstance(vitals, dict):
            return
        if kind == "vitals":
            self.step = step
            self._take_vitals(step, {name: _number(value) for name, value in vitals.items()})
        elif kind == "tensors" and isinstance(norms := vitals.get("weight_norm"), list):
            self.weights[step] = [_number(item) for item in norms]
            _cut(self.weights, LOOKS)

    def _take_vitals(self, step: int, vitals: Mapping[str, float]) -> None:
        for name, kept in (("loss", self.losses), ("grad_norm", self.norms)):
            if name in vitals:
                kept[step] = vitals[name]
                _cut(kept, STEPS)
        if self.lost < 0 and not math.isfinite(vitals.get("loss", 0.0)):
            self.lost = step
        self.seconds.append(vitals.get("seconds", math.nan))
        if "forward_seconds" in vitals:
            self.own.append(vitals["forward_seconds"] + vitals.get("data_seconds", 0.0))


class Ranks:
    """The ranks of a run, by their journals; `kind` is "replicas", "shards", or "" if unknown."""

    def __init__(self, journal: Path, size: int, kind: str) -> None:
        names = [journal.name, *(f"{journal.stem}.rank{number}.jsonl" for number in range(1, min(size, RANKS)))]
        self._ranks = [Rank(journal.with_name(name)) for name in names]
        self._kind = kind

    def compare(self) -> dict[str, float]:
        """Read the journals and return the differences by name of vital; empty if nothing can be compared."""
        for rank in self._ranks:
            rank.read_on()
        return compared(self._ranks, self._kind)


def compared(ranks: Sequence[Rank], kind: str) -> dict[str, float]:
    """The differences between ranks, by name of vital."""
    present = [rank for rank in ranks if rank.step >= 0]
    if len(present) < 2:
        return {}
    found = {} if kind == "shards" else _apart(present, ranks, kind)
    return {**found, **_slowest(present, ranks), **_lost(present, ranks)}


def _apart(present: Sequence[Rank], ranks: Sequence[Rank], kind: str) -> dict[str, float]:
    """The differences between replicas; empty if the ranks are not replicas."""
    gradients, losses = (_gaps(_common([getattr(rank, name) for rank in present])) for name in ("norms", "losses"))
    if min(gradients.size, losses.size) < TIMES:
        return {}
    averaged = float((gradients < SAME).mean()) > 0.9
    separate = float((losses > SAME).mean()) > 0.9 and float((gradients > SAME).mean()) > 0.9
    looks = set.intersection(*(set(rank.weights) for rank in present))
    rows = [rank.weights[max(looks)] for rank in present] if looks else []
    if not (kind == "replicas" or averaged or separate) or len({len(row) for row in rows}) != 1:
        return {}
    weights = np.array(rows)
    gaps = _gaps(weights)
    if not gaps.size:
        return {}
    far = np.abs(weights - np.median(weights, axis=0)) / np.maximum(np.abs(weights).max(axis=0), TINY)
    odd = float(ranks.index(present[int(np.nan_to_num(far).max(axis=1).argmax())])) if len(present) > 2 else -1.0
    return {
        "rank_weights_apart": float(gaps.max()),
        "rank_gradients_apart": median(gradients),
        "rank_apart": odd,
    }


def _common(rows: Sequence[Mapping[int, float]]) -> Table:
    """The values at steps that all ranks have, one row per rank."""
    steps = sorted(set.intersection(*(set(row) for row in rows)))
    return np.array([[row[step] for step in steps] for row in rows])


def _gaps(rows: Table) -> Table:
    """For each column, the range relative to the largest size; columns with non-finite numbers are left out."""
    rows = rows[:, np.isfinite(rows).all(axis=0)]
    gaps: Table = np.ptp(rows, axis=0) / np.maximum(np.abs(rows).max(axis=0), TINY) if rows.size else np.array([])
    return gaps


def _slowest(present: Sequence[Rank], ranks: Sequence[Rank]) -> dict[str, float]:
    """The slowest rank by data loading and forward pass, the parts of a step in which no rank waits.

    The fastest time of that rank is compared with the others' median, because on a busy machine any rank is slow at
    times.
    """
    if any(len(rank.own) < TIMES for rank in present):
        return {}
    quickest = [min(rank.own) for rank in present]
    slowest = int(np.argmax(quickest))
    others = median(np.array([second for rank in present if rank is not present[slowest] for second in rank.own]))
    step = float(np.nanmedian([second for rank in present for second in rank.seconds]))
    if not step > 0 or not others > 0:
        return {}
    return {
        "rank_waited": min(1.0, (quickest[slowest] - others) / step),
        "rank_slowest": float(ranks.index(present[slowest])),
        "rank_slowness": quickest[slowest] / others,
    }


def _lost(present: Sequence[Rank], ranks: Sequence[Rank]) -> dict[str, float]:
    """The rank whose loss was non-finite before any other's; all ranks must have reached that step."""
    lost = [rank for rank in present if rank.lost >= 0]
    if not lost:
        return {}
    first = min(lost, key=lambda rank: rank.lost)
    if any(rank is not first and (rank.step < first.lost or rank.lost == first.lost) for rank in present):
        return {}
    return {"rank_lost": float(ranks.index(first)), "rank_lost_at": float(first.lost)}


def _number(value: Any) -> float:
    """A number from a journal, where non-finite numbers are strings."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _cut(rows: dict[int, Any], most: int) -> None:
    while len(rows) > most:
        del rows[next(iter(rows))]
