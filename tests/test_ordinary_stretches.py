"""Records that are entered in one go are judged as if each had been entered by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.examination import Examination
from torchdoctor.records import Record
from torchdoctor.series import CAPACITY, Series
from torchdoctor.settings import Settings
from torchdoctor.stretch import Rows, Stretch

STEPS = 900


def records(change: Any = None, steps: int = STEPS, seed: int = 0) -> list[Record]:
    """A run that learns, as its journal has it; `change(step, vitals)` makes it another."""
    rng = np.random.default_rng(seed)
    made: list[Record] = []
    for step in range(steps):
        vitals = {
            "loss": 2 + 2 * math.exp(-step / 200) + 0.05 * float(rng.standard_normal()),
            "grad_norm": math.exp(0.2 * float(rng.standard_normal())),
            "lr": 1e-3,
            "seconds": 0.01,
        }
        if change is not None:
            change(step, vitals)
        made.append({"type": "vitals", "step": step, "vitals": vitals})
        if step % 250 == 249:
            made.append({"type": "validation", "step": step, "vitals": {"val_loss": 3 - step / 1000}})
    return made


def leap(step: int, vitals: dict[str, float]) -> None:
    vitals["grad_norm"] *= 30 if step in (300, 301, 640) else 1


def collapse(step: int, vitals: dict[str, float]) -> None:
    vitals["grad_norm"] *= 1e-8 if step == 411 else 1


def collapse_for_good(step: int, vitals: dict[str, float]) -> None:
    vitals["grad_norm"] *= 1e-8 if step >= 411 else 1


def spike(step: int, vitals: dict[str, float]) -> None:
    vitals["loss"] *= 9 if step == 500 else 1


def broken(step: int, vitals: dict[str, float]) -> None:
    vitals["loss"] = math.nan if 333 <= step < 336 else vitals["loss"]


def diverging(step: int, vitals: dict[str, float]) -> None:
    vitals["loss"] += max(0, step - 400) * 0.03


def rate_jumps(step: int, vitals: dict[str, float]) -> None:
    vitals["lr"] *= 100 if step >= 450 else 1
    vitals["loss"] += 0.15 if step >= 451 else 0.0
    vitals["grad_norm"] *= 3 if step >= 451 else 1


def wild(step: int, vitals: dict[str, float]) -> None:
    vitals["grad_norm"] = math.exp(3 * math.sin(7.0 * step**1.5))
    vitals["loss"] = 2.0 + step / 900


def other_keys(step: int, vitals: dict[str, float]) -> None:
    if step % 7 == 3:
        del vitals["lr"]
    if step % 11 == 5:
        vitals["clip"] = 1.0


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize(
    "change",
    [None, leap, collapse, collapse_for_good, spike, broken, diverging, rate_jumps, wild, other_keys],
    ids=lambda c: c and c.__name__,
)
def test_the_same_findings_however_records_are_handed_over(change: Any, preset: str) -> None:
    journal = records(change)
    settings = Settings.load({"preset": preset})
    one_by_one, in_blocks = Examination(settings), Examination(settings)
    expected = [item for record in journal for item in one_by_one.take(record)]
    draw, found, position = random.Random(0), [], 0
    while position < len(journal):
        size = draw.choice([1, 3, 16, 16, 40])
        rows = Rows()
        rows.add(journal[position : position + size])
        for piece, concluded in in_blocks.take_all(rows.taken()):
            measured = list(piece.records()) if isinstance(piece, Stretch) else [piece]
            assert repr(measured) == repr(journal[position : position + len(measured)])
            position += len(measured)
            found += concluded
    assert found == expected
    assert repr(in_blocks.report()) == repr(one_by_one.report())
    as_columns = Examination(settings)
    found = [item for piece in pieces(journal) for item in taken(as_columns, piece)]
    assert repr(found) == repr(expected)
    assert repr(as_columns.report()) == repr(one_by_one.report())


def pieces(journal: list[Record]) -> Iterator[Record | Stretch]:
    """The journal as a reader hands it over: neighbours that are alike as columns."""
    for _, alike in groupby(journal, key=lambda record: (record["type"], *record["vitals"])):
        part = list(alike)
        yield from [Stretch.of(part)] if part[0]["type"] == "vitals" else part


def taken(examination: Examination, piece: Record | Stretch) -> list[Record]:
    return examination.take_stretch(piece) if isinstance(piece, Stretch) else examination.take(piece)


def test_ordinary_stretches_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be gained, and nothing above would be tested."""
    examination, entered = Examination(Settings()), []
    extend = Chart.extend
    monkeypatch.setattr(
        Chart, "extend", lambda self, stretch, ranges: (entered.extend(stretch.steps), extend(self, stretch, ranges))
    )
    for start in range(0, STEPS, 16):
        rows = Rows()
        rows.add(records()[start : start + 16])
        list(examination.take_all(rows.taken()))
    assert len(entered) > 0.75 * STEPS


def test_a_series_extended_is_a_series_added_to() -> None:
    added, extended = Series(), Series()
    values = np.random.default_rng(1).standard_normal(3 * CAPACITY + 77).tolist()
    draw, position = random.Random(1), 0
    while position < len(values):
        size = draw.choice([1, 2, 5, 16, 300])
        steps, part = (
            list(range(position, position + size))[: len(values) - position],
            values[position : position + size],
        )
        extended.extend(np.array(steps), np.array(part))
        for step, value in zip(steps, part, strict=True):
            added.add(step, value)
        position += size
        assert extended.values.tolist() == added.values.tolist()
        assert extended.steps.tolist() == added.steps.tolist()
        assert extended.outline.buckets() == added.outline.buckets()
        assert extended.baseline(128, log=True) == added.baseline(128, log=True)
        assert (extended.lowest, extended.first, extended.count) == (added.lowest, added.first, added.count)


WILD = 1500


def nan_from(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return (math.nan, math.inf) if step >= 400 else (2.0 + 0.05 * rng.standard_normal(), 1.0)


def loss_gone(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return (math.nan if step >= 400 else 2.0 + 0.05 * rng.standard_normal()), math.exp(0.2 * rng.standard_normal())


def nan_now_and_then(step: int, rng: np.random.Generator) -> tuple[float, float]:
    odd = rng.random() < (0.3 if step > 900 else 0.02)
    return (math.nan if odd else 2.0), (math.inf if rng.random() < 0.05 else math.exp(0.2 * rng.standard_normal()))


def spikes(step: int, rng: np.random.Generator) -> tuple[float, float]:
    odd = rng.random() < 0.01
    return (9.0 if odd else 1.0) * (2.0 + 0.05 * rng.standard_normal()), (40.0 if odd else 1.0) * (1 + rng.random())


def heavy_tails(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return rng.exponential() + 1e-6, math.exp(1.3 * rng.standard_normal())


def pareto(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return 0.5 + rng.pareto(1.2), 0.1 + rng.pareto(1.0)


def constant(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return 2.3, 0.7


def to_zero(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return (2.0, 1.0 + rng.random()) if step < 500 else (0.0, 0.0)


def sawtooth(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return 1 + step % 200 / 200, math.exp(step % 37 / 10)


def diverged(step: int, rng: np.random.Generator) -> tuple[float, float]:
    learnt = 1 + 2 * math.exp(-step / 60) + 0.03 * rng.standard_normal()
    return (learnt if step < 400 else 100 + 5 * rng.standard_normal()), (1.0 if step < 400 else 100.0) * (
        1 + rng.random()
    )


def rising(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return 1 + 2 * math.exp(-step / 60) + max(0, step - 400) / 100 + 0.03 * rng.standard_normal(), 1 + rng.random()


def going_under(step: int, rng: np.random.Generator) -> tuple[float, float]:
    return -step / 100 + rng.standard_normal(), abs(rng.standard_normal())


KINDS = [
    nan_from,
    loss_gone,
    nan_now_and_then,
    spikes,
    heavy_tails,
    pareto,
    constant,
    to_zero,
    sawtooth,
    diverged,
    rising,
    going_under,
]


def wild_stretch(kinds: list[Any], seed: int, start: int = 0) -> Stretch:
    rng, size = np.random.default_rng(seed), WILD // len(kinds)
    rows = [kind(step, rng) for part, kind in enumerate(kinds) for step in range(part * size, part * size + size)]
    losses, norms = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    rates = np.where(np.arange(len(rows)) % 700 == 650, 1e-2, 1e-3)
    return Stretch(start + np.arange(len(rows)), {"loss": losses, "grad_norm": norms, "lr": rates})


def told(pieces: list[Record | Stretch], *, singly: bool) -> tuple[str, str]:
    """All that follows from these pieces, and the report."""
    examination, found = Examination(Settings()), []
    for piece in pieces:
        records = list(piece.records()) if singly and isinstance(piece, Stretch) else [piece]
        found += [event for record in records for event in examination.enter(record)]
    return repr(found), repr(examination.report())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_wild_and_dead_stretches_are_judged_as_step_by_step(kind: Any) -> None:
    pieces: list[Record | Stretch] = [wild_stretch([kind], seed=3)]
    assert told(pieces, singly=False) == told(pieces, singly=True)


@pytest.mark.parametrize("seed", range(4))
def test_random_mixtures_too_and_when_resumed(seed: int) -> None:
    draw = random.Random(seed)
    first, second = (wild_stretch(draw.sample(KINDS, 3), seed, start) for start in (0, 1200))
    pieces: list[Record | Stretch] = [first[:1200], {"type": "header", "step": -1}, second]
    assert told(pieces, singly=False) == told(pieces, singly=True)


def test_few_steps_of_a_dead_run_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be gained."""
    examination, looks = Examination(Settings()), []
    look = Examination._look
    monkeypatch.setattr(Examination, "_look", lambda self, watch: (looks.append(watch.name), look(self, watch))[1])
    examination.take_stretch(wild_stretch([nan_from], seed=0))
    assert looks.count("nan-or-inf") < 100
