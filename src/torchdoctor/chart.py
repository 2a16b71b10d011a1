"""The chart: everything known about one run, in bounded memory, built from journal records alone.

>>> chart = Chart.of(loss=[4.0, 3.0, float("nan"), 2.0])
>>> chart.step, chart["loss"].latest, chart["loss"].values.tolist(), chart["loss"].nonfinite
(3, 2.0, [4.0, 3.0, 2.0], 1)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from torchdoctor.pictures import MAPPED, RowMap, RowOutline
from torchdoctor.records import ANEW, CheckResult, Record, Symptom
from torchdoctor.series import EMPTY, Coming, Series, TensorSeries
from torchdoctor.stretch import Stretch

CHECKS = 200
"""Maximum number of check-up results that are kept; there are fewer checks."""
OF_OURS = frozenset(("guess_loss", "last_position_loss", "other_position_loss", "part_loss_ratio"))
OF_OURS |= {"loss_scale", "loss_weight"}
"""Vitals with the word loss in their names that are no losses of the run."""
_WORDS = re.compile(r"[\W_]+")


class Fact(NamedTuple):
    """A structural observation, and the first step at which it had this value."""

    value: Any
    step: int


class Chart:
    """Everything that is known about a run."""

    def __init__(self) -> None:
        self.step = -1
        """The latest training step."""
        self.context: dict[str, Any] = {}
        """What the header and later context records say about model, optimizer, data and machine."""
        self.groups: list[dict[str, Any]] = []
        """The latest parameter groups of the optimizers."""
        self.names: tuple[str, ...] = ()
        """The names of the watched tensors: the columns of every per-tensor vital."""
        self.module_names: tuple[str, ...] = ()
        """The names of the watched modules: the columns of every per-module vital."""
        self.facts: dict[str, Fact] = {}
        """The latest structural observations, by dotted key."""
        self.notes: list[tuple[int, str]] = []
        self.origins: list[dict[str, Any]] = []
        """Where non-finite values first appeared in a forward pass."""
        self.episodes: list[Symptom] = []
        """The findings so far, in order of first step; the examination keeps them up to date."""
        self.open_episodes: dict[str, Symptom] = {}
        """The ongoing episodes, by name."""
        self.resumed: list[int] = []
        """The latest step before each further header: where the run was resumed."""
        self.phases: list[dict[str, Any]] = []
        self.checks: dict[str, CheckResult] = {}
        """The results of a check-up before the run, by name."""
        self.ended = False
        self.losses: tuple[str, ...] = ()
        """The names of training losses besides the main one, such as those of players, actors and critics, or parts."""
        self._series: dict[str, Series] = {}
        self._tensors: dict[str, TensorSeries] = {}
        self._modules: dict[str, TensorSeries] = {}
        self._maps: dict[str, tuple[bool, RowOutline]] = {}

    @classmethod
    def of(cls, *, step: int = 0, context: Mapping[str, Any] | None = None, **vitals: Iterable[float]) -> Chart:
        """A chart from plain series that start at `step`, with one value per step; for tests and examples."""
        chart = cls()
        chart.context.update(context or {})
        for name, values in vitals.items():
            for offset, value in enumerate(values):
                chart.put(step + offset, name, value)
        return chart

    def __getitem__(self, vital: str) -> Series:
        return self._series.get(vital, EMPTY)

    def __contains__(self, vital: str) -> bool:
        return vital in self._series

    @property
    def vitals(self) -> Sequence[str]:
        """The names of the scalar vitals seen so far."""
        return list(self._series)

    def tensors(self, vital: str) -> TensorSeries:
        """A per-tensor vital, empty if it was never measured."""
        return self._tensors.get(vital) or TensorSeries()

    def modules(self, vital: str) -> TensorSeries:
        """A per-module vital, empty if it was never measured."""
        return self._modules.get(vital) or TensorSeries()

    def called(self, module: int | str) -> str:
        """A module's name for a sentence, with its class if the name is only a number.

        >>> chart = Chart()
        >>> facts = {"modules.names": ["body.0", "3"], "modules.kinds": ["Linear", "ReLU"]}
        >>> chart.add({"type": "facts", "step": 0, "facts": facts})
        >>> chart.called(0), chart.called(1), chart.called("3"), chart.called("5")
        ('body.0', 'ReLU 3', 'ReLU 3', 'module 5')
        """
        if isinstance(module, str):
            if module not in self.module_names:
                return f"module {module}" if module.isdigit() else module
            module = self.module_names.index(module)
        name, kinds = self.module_names[module], self.fact("modules.kinds") or ()
        return f"{kinds[module]} {name}" if name.isdigit() and module < len(kinds) else name

    @property
    def maps(self) -> dict[str, RowMap]:
        """For each vital, an outline of the whole run by step and by tensor or module."""
        found = {
            vital: outline.map(self.names if by_tensor else self.module_names)
            for vital, (by_tensor, outline) in self._maps.items()
        }
        return {vital: made for vital, made in found.items() if made is not None}

    def fact(self, key: str, default: Any = None) -> Any:
        """The value of a fact, or the default if it is not known."""
        known = self.facts.get(key)
        return default if known is None else known.value

    def _kept(self, vital: str) -> Series:
        series = self._series.get(vital)
        if series is None:
            series = self._series[vital] = Series()
            if is_further_loss(vital):
                self.losses = (*self.losses, vital)
        return series

    def put(self, step: int, vital: str, value: float) -> None:
        """Insert one reading."""
        self._kept(vital).add(step, value)
        if step > self.step:
            self.step = step

    def extend(self, stretch: Stretch, ranges: Mapping[str, Sequence[float]]) -> None:
        """Insert several steps of the same vitals at once, all finite; `ranges` holds the lowest value of each."""
        for vital, values in stretch.columns.items():
            self._kept(vital).extend(stretch.steps, values, ranges[vital][0])
        last = stretch.steps.item(-1)
        if last > self.step:
            self.step = last

    def announce(self, stretch: Stretch) -> Callable[[int], None]:
        """Store coming steps; the returned function makes the first `size` of them visible, never fewer than before."""
        coming = [Coming(self._kept(vital), stretch.steps, values) for vital, values in stretch.columns.items()]
        steps, before = stretch.steps.tolist(), self.step

        def let_in(size: int) -> None:
            for values in coming:
                values.let_in(size)
            self.step = max(before, steps[size - 1])

        return let_in

    def update(self, current: Symptom, latest: Symptom) -> None:
        """Replace an episode, which must be the stored object itself, by its latest version."""
        self.open_episodes[latest.name] = latest
        place = next(place for place in reversed(range(len(self.episodes))) if self.episodes[place] is current)
        self.episodes[place] = latest

    def add(self, record: Record) -> None:
        """Insert one journal record; types that are not evidence (symptoms, diagnoses) are ignored."""
        match record["type"]:
            case "vitals" | "validation":
                for name, value in record["vitals"].items():
                    self.put(record["step"], name, value)
            case "tensors" | "modules":
                self._add_rows(record)
            case "facts":
                news = {key: Fact(value, record["step"]) for key, value in record["facts"].items()}
                self.facts.update((key, fact) for key, fact in news.items() if self.fact(key, ...) != fact.value)
                self.module_names = tuple(record["facts"].get("modules.names", self.module_names))
                if ANEW in record["facts"]:
                    self._series.pop("loss", None)
            case "groups":
                self.groups = record["groups"]
            case "header" | "context":
                self._add_context(record)
            case "origin" | "note" | "check" | "end":
                self._add_remark(record)

    def _add_remark(self, record: Record) -> None:
        match record["type"]:
            case "origin":
                self.origins.append(dict(record))
            case "note":
                self.notes.append((record["step"], record["text"]))
            case "check":
                result = CheckResult.of(record)
                if result is not None and (result.name in self.checks or len(self.checks) < CHECKS):
                    self.checks[result.name] = result
            case "end":
                self.ended = True

    def _add_context(self, record: Record) -> None:
        if record["type"] == "header" and self.step >= 0:
            self.resumed.append(self.step)
        self.context.update(record.get("context", {}))
        self.names = tuple(record.get("tensors", self.names))
        self.module_names = tuple(record.get("modules", self.module_names))

    def _add_rows(self, record: Record) -> None:
        self.step = max(self.step, record["step"])
        table = self._tensors if record["type"] == "tensors" else self._modules
        for name, row in record["vitals"].items():
            kept = table.setdefault(name, TensorSeries())
            kept.rows.append((record["step"], np.array(row, dtype=np.float64)))
            if name in MAPPED:
                by_tensor = record["type"] == "tensors"
                self._maps.setdefault(name, (by_tensor, RowOutline()))[1].add(record["step"], row)


def is_further_loss(vital: str) -> bool:
    """Whether a vital is a training loss besides the one that is called loss.

    >>> [is_further_loss(name) for name in ("d_loss", "Loss/actor", "loss", "val_loss", "test_loss", "guess_loss")]
    [True, True, False, False, False, False]
    """
    first, *others = _WORDS.split(vital.lower())
    return bool(others) and "loss" in (first, *others) and first not in ("val", "test") and vital not in OF_OURS
