"""NU01 nan-or-inf."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdoctor.chart import Chart, is_further_loss
from torchdoctor.records import Severity, Symptom, names_text, number_text
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, SAME, Detector, Outlook

SURE = 0.99
KINDS = {
    "input": "the input of {module} was already not finite: look at the data",
    "weights": "the weights of {module} were not finite",
    "output": "{module} made it from finite inputs and weights",
    "between": "the inputs of the model are finite, but those of {module} are not: look at what comes before it",
}

HUGE = 1e15
"""A loss above this may overflow when it is squared, so no operation needs to be undefined."""
AGAIN = 3
"""Steps in a row with a non-finite loss from which it is critical even if the scaler skips them; and values in a row of
a loss that is not the main one: a part of a loss may be the mean of nothing at a single step."""


@dataclass(frozen=True)
class NanOrInf(Detector):
    """A loss, gradient or weight is not a finite number.

    ## What it means
    One update with such a gradient turns every weight that it touches into NaN, and from then on every output. All
    later results of the run are meaningless.

    ## How it is told apart
    - With a gradient scaler, an occasional overflow of gradients is normal: the scaler skips the step, and nothing is
      reported.
    - A loss that is not finite is reported even then, because scaling concerns only gradients: the batch or the forward
      pass is bad. It is a warning if the step was skipped, and critical otherwise or after three such steps in a row.
    - Other losses count as well, such as those of two players, of actor and critic, or parts: if three values in a row
      are not finite, or in a log all values up to its end. It is a warning if the main loss is finite.

    The place is found as follows:
    - Weights that were not finite before the first step are named.
    - If the forward pass was watched, the first module with a non-finite value is named.
    - Otherwise the gradients tell: non-finite values spread backward, so the last affected tensor in forward order is
      nearest the source. If all tensors are affected, they came from the loss or the forward pass.
    - Weights are named only if they broke before the loss did. An update with a non-finite gradient breaks all
      weights, and then no single one is to blame.

    ## What to do
    Stop, go back to the last checkpoint, and skip the step when the loss is not finite. Then check the named place: the
    data, a logarithm, root or division at zero, half precision, or a learning rate that let values overflow.

    ## How to see that it is cured
    The run passes the step at which it broke, on the same batch.

    ## Example
    >>> print(NanOrInf().check(Chart.of(loss=[2.0, 1.9, float("nan")])))
    step 2: NU01 nan-or-inf (critical): loss is NaN
    """

    code = "NU01"
    name = "nan-or-inf"
    reads = ("loss", "grad_norm", "grad_nonfinite", "tensors/weight_norm", "origin")
    reads_losses = True
    suggests = ("skip-step", "roll-back", "clean-data", "change-precision", "scale-lr")
    references = ("https://pytorch.org/docs/stable/amp.html", "https://arxiv.org/abs/1710.03740")

    def check(self, chart: Chart) -> Symptom | None:
        """Check the loss, gradient norm and counts of the step, then find the place."""
        loss, norm, count = chart["loss"], chart["grad_norm"], chart["grad_nonfinite"]
        bad_loss = bool(loss.nonfinite) and loss.step == chart.step and not math.isfinite(loss.latest)
        bad_grad = bool(norm.nonfinite) and norm.step == chart.step and not math.isfinite(norm.latest)
        counted = count.latest if count and count.step == chart.step and count.latest > 0 else 0.0
        broken = self._broken_weights(chart)
        lost = self._lost(chart) if chart.losses else []
        if not (bad_loss or bad_grad or counted or broken or lost):
            return None
        skipped = chart["skipped"]
        saved = bool(skipped) and skipped.step == chart.step and skipped.latest > 0 and not broken
        passed = chart["passed_over"]
        over = bool(passed) and passed.step == chart.step and not (bad_grad or counted or broken)
        if saved and not (bad_loss or lost):
            return None  # normal: the scaler skips the step and lowers its scale
        # Scaling concerns only gradients: it cannot repair a loss that is repeatedly not finite.
        again = (bad_loss and self._is_lasting(chart)) or (bool(lost) and not (loss and loss.step == chart.step))
        harmless = saved or over or (bool(lost) and not (bad_loss or bad_grad or counted or broken))
        severity: Severity = "warning" if harmless and not again else "critical"
        where, told = self._place(chart, counted, bool(bad_grad or counted), abs(loss.latest) < HUGE)
        parts = []
        if bad_loss:
            parts.append(f"loss is {number_text(loss.latest)}")
        elif lost:
            verb = "are" if len(lost) > 1 else "is"
            parts.append(f"{names_text(lost)} {verb} {number_text(chart[lost[0]].latest)}")
        elif (bad_grad or counted) and loss:
            parts.append(f"gradients are not finite although the loss is ({number_text(loss.latest)})")
        elif bad_grad or counted:
            parts.append("gradients are not finite")
        if broken:
            several = len(broken) > 1
            parts.append(f"{len(broken)} weight tensor{'s are' if several else ' is'} not finite")
            where = where or self._broken_first(chart)
        if saved:
            parts.append("the scaler skipped the step")
        if over:
            parts.append("the watched optimizer made no update with it")
        value = loss.latest if bad_loss else chart[lost[0]].latest if lost else norm.latest
        since = (
            min((chart[name].broken_since for name in lost), default=None)
            if lost and not (bad_loss or broken)
            else None
        )
        message = "; ".join(parts + told)
        return self.symptom(chart, severity, message, value=value, where=where, confidence=SURE, since=since)

    def _lost(self, chart: Chart) -> list[str]:
        """Other losses that were not finite several times in a row; a log is judged by how it ends."""
        return (
            []
            if "source" in chart.context
            else [
                name
                for name in chart.losses
                if (series := chart[name]).step == chart.step
                and not math.isfinite(series.latest)
                and series.nonfinite >= AGAIN
                and series.nonfinite_steps[-AGAIN] >= series.broken_since
            ]
        )

    def _is_lasting(self, chart: Chart) -> bool:
        last = list(chart["loss"].nonfinite_steps)[-AGAIN:]
        return last == list(range(chart.step + 1 - AGAIN, chart.step + 1))

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """The coming values are finite, so nothing is found unless weights were broken before."""
        return not (chart["loss"].nonfinite or chart["grad_norm"].nonfinite or "grad_nonfinite" in coming)

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """Found where a value is not finite; the finding repeats itself unless a place may become known."""
        broken = self._broken_weights(chart, suspected=True)
        found = np.full(len(coming), bool(broken))
        for name in ("loss", "grad_norm"):
            if name in coming.columns:
                found |= ~np.isfinite(coming.columns[name])
        if "grad_nonfinite" in coming.columns:
            found |= coming.columns["grad_nonfinite"] > 0
        current = chart.open_episodes.get(self.name)
        same = (
            current is not None
            and current.severity == "critical"
            and current.confidence >= SURE
            and "skipped" not in coming.columns
            and set(current.where).issuperset(self._broken_first(chart))
        )
        outlook = np.where(found, SAME if same else LOOK, CALM).astype(np.int8)
        for name in coming.columns if "source" not in chart.context else ():
            if is_further_loss(name):
                outlook[~np.isfinite(coming.columns[name])] = LOOK
        if chart.origins:
            outlook[coming.steps <= max(origin["step"] for origin in chart.origins) + 1] = LOOK
        return outlook

    def _broken_weights(self, chart: Chart, suspected: bool = False) -> tuple[str, ...]:
        sampled = chart.tensors("weight_norm")
        row = sampled.latest
        # Broken weights stay broken until the next measurement; a run without any non-finite value need not check.
        suspected = suspected or sampled.step == chart.step
        suspected = suspected or bool(chart["loss"].nonfinite or chart["grad_norm"].nonfinite)
        if not suspected or row.size != len(chart.names) or bool(np.isfinite(row).all()):
            return ()
        # NaN stands for "not measured": frozen weights, or those of an optimizer that did not step.
        return tuple(chart.names[index] for index in np.flatnonzero(np.isinf(row)))

    def _broken_first(self, chart: Chart) -> tuple[str, ...]:
        """The weights that were measured as broken before any loss or gradient was; later ones prove nothing."""
        known = [chart[vital] for vital in ("loss", "grad_norm")]
        if any(series.nonfinite > len(series.nonfinite_steps) for series in known):
            return ()  # the first of them is no longer remembered, and the episode has its place already
        began = min((step for series in known for step in series.nonfinite_steps), default=chart.step + 1)
        rows = chart.tensors("weight_norm").rows
        row = next((row for step, row in rows if step < began and bool(np.isinf(row).any())), np.zeros(0))
        return (
            tuple(chart.names[index] for index in np.flatnonzero(np.isinf(row))) if row.size == len(chart.names) else ()
        )

    def _place(self, chart: Chart, counted: float, gradients: bool, finite: bool) -> tuple[tuple[str, ...], list[str]]:
        """Where it was first seen, and the sentence about it; `finite`: the loss is finite and not huge."""
        episode = chart.open_episodes.get(self.name)
        if started := broken_at_the_start(chart):
            return started, [f"{names_text(started)} {_was(started)} not finite before the first watched step"]
        if module := first_output(chart, chart.step if episode is None else episode.first_step):
            text = f"the output of {chart.called(module)} was the first value in the forward pass that was not finite"
            return (module,), [text]
        for origin in reversed(chart.origins):
            if origin["step"] >= chart.step - 1:
                if origin.get("kind") == "weights":
                    return self._place_of_weights(chart, origin)
                module = str(origin.get("module") or "the model")
                text = KINDS.get(str(origin.get("kind")), "first seen in {module}")
                return (module,), [text.format(module=chart.called(module))]
        names, total = _concerned(chart) if gradients else ((), 0)
        if not names:
            return (), []
        if len(names) >= total or (counted and counted >= total):
            if finite:
                text = f"all {total} of them, so the backward pass breaks at its start and the forward pass is sound: "
                return (), [text + "look for a root, norm, logarithm or division of 0 in the loss or just before it"]
            return (), [f"all {total} gradients are not finite: it came from the loss or the forward pass"]
        return names[::-1], [f"{len(names)} of {total} gradients are affected, {names[-1]} nearest the loss"]

    def _place_of_weights(self, chart: Chart, origin: Mapping[str, Any]) -> tuple[tuple[str, ...], list[str]]:
        if first := self._broken_first(chart):
            return first, [f"{names_text(first)} {_was(first)} not finite before the loss"]
        looked, names = origin["step"], broken_alone(chart, origin)
        if names:
            return names, [f"{names_text(names)} {_was(names)} not finite, and no update of this run caused it"]
        if (bad := _loss_before_weights(chart, looked)) >= 0:
            text = f"the loss of step {bad} was the first non-finite value, and by step {looked} its update had broken "
            suspect = _undefined(chart, origin, ("norm",))
            text += "the weights: check its batch"
            text += f", what enters {suspect} is undefined for some inputs" * bool(suspect)
            return (), [text + ("" if _began_finite(chart, bad) else ", and whether the weights were finite before")]
        count, module = _count(origin, "broken"), str(origin.get("module") or "the model")
        if (bad := _gradients_before_weights(chart, looked)) >= 0:
            text = f"the gradients of step {bad} were the first non-finite values, and by step {looked} their update "
            what = f"{count} weight tensors" if count > 1 else f"the weights of {chart.called(module)}"
            suspect = _undefined(chart, origin)
            ending = f": check what enters {suspect} has no finite derivative for some inputs" * bool(suspect)
            return () if count > 1 else (module,), [f"{text}had broken {what}{ending}"]
        if count > 1:
            return (), [f"{count} weight tensors were not finite by step {looked}{_broken_since(chart)}"]
        return (module,), [KINDS["weights"].format(module=chart.called(module)) + _broken_since(chart)]


def broken_at_the_start(chart: Chart) -> tuple[str, ...]:
    """The weights that were not finite before the first step that was watched."""
    row = next((row for _, row in chart.tensors("start_norm").rows), np.zeros(0))
    bad = np.flatnonzero(np.isinf(row)) if row.size == len(chart.names) else ()
    return tuple(chart.names[index] for index in bad)


def first_output(chart: Chart, step: int) -> str:
    """The first module with a non-finite output at a sampled step that began with finite inputs and weights; else "".

    Values that modules pass to each other outside their own forward() are not seen.
    """
    row = next((row for at, row in chart.modules("act_absmax").rows if at == step), np.zeros(0))
    bad = np.flatnonzero(np.isinf(row))
    if not bad.size or row.size != len(chart.module_names) or broken_at_the_start(chart):
        return ""
    known = [chart[vital].nonfinite_steps for vital in ("loss", "grad_norm")]
    broken = any(at < step and bool(np.isinf(norms).any()) for at, norms in chart.tensors("weight_norm").rows)
    # before the first watched step, finite weights must have been measured
    sure = step - 1 not in known[0] and step - 1 not in known[1] and (step > 0 or _began_finite(chart, step))
    entered = any(step in chart[vital].nonfinite_steps for vital in ("entry_absmax", "side_entry_rms"))
    return "" if broken or not sure or entered else chart.module_names[bad[0]]


def _began_finite(chart: Chart, step: int) -> bool:
    """Whether the weights were measured as finite before this step, the first that was watched."""
    first = next(iter(chart.tensors("start_norm").rows), None)
    return first is not None and first[0] == step and not bool(np.isinf(first[1]).any())


def _undefined(chart: Chart, origin: Mapping[str, Any], harmless: Sequence[str] = ()) -> str:
    """The only module seen with an operation that may be undefined, and that operation, as words; "" if not just one.

    >>> _undefined(Chart(), {"undefined": {"scale": "log", "distance": "norm"}}, ("norm",))
    'scale, whose log'
    """
    listed = origin.get("undefined")
    pairs = listed.items() if isinstance(listed, dict) else ()
    known = [(name, item) for name, item in pairs if isinstance(item, str) and item not in harmless]
    return f"{chart.called(str(known[0][0]))}, whose {known[0][1]}" if len(known) == 1 else ""


def broken_alone(chart: Chart, origin: Mapping[str, Any], within: int = 8) -> tuple[str, ...]:
    """The weights in which it began, if the search for an origin shows that; empty if an update may have broken them.

    An update with non-finite gradients breaks every weight that has one. If fewer weights are broken, or frozen ones
    are, it was not an update.
    """
    listed, looked = origin.get("tensors"), origin["step"]
    names = tuple(name for name in chart.names if name in listed) if isinstance(listed, list) else ()
    rows = [row for step, row in chart.tensors("grad_norm").rows if looked - within <= step < looked]
    spread = max((int(np.isinf(row).sum()) for row in rows), default=0)
    return names if _count(origin, "resting") or _count(origin, "broken") < spread else ()


def _count(origin: Mapping[str, Any], key: str) -> int:
    """A number of an origin; 0 if it is missing, as in older journals."""
    value = origin.get(key)
    return value if isinstance(value, int) else 0


def _was(names: Sequence[str]) -> str:
    return "were" if len(names) > 1 else "was"


def _broken_since(chart: Chart) -> str:
    """What broke the weights, as the end of a sentence: a step of this run, if any loss or gradient was finite."""
    return ": an earlier step broke them" if chart["loss"].count or chart["grad_norm"].count else ""


def _loss_before_weights(chart: Chart, looked: int, within: int = 8) -> int:
    """The step whose loss was the first known non-finite value, before the weights were checked; else -1.

    Its own update breaks the weights, so weights that are broken one step later do not show what came first.
    """
    losses = [step for step in chart["loss"].nonfinite_steps if looked - within <= step < looked]
    if not losses or losses[0] - 1 in chart["loss"].nonfinite_steps:
        return -1
    if losses[0] < 1 and not _began_finite(chart, losses[0]):
        return -1
    first = losses[0]
    broken = any(step < first and bool(np.isinf(row).any()) for step, row in chart.tensors("weight_norm").rows)
    gradients = any(first - within <= step < first for step in chart["grad_norm"].nonfinite_steps)
    return -1 if broken or gradients else first


def _gradients_before_weights(chart: Chart, looked: int, within: int = 8) -> int:
    """The step whose gradients were the first known non-finite values, before the weights were checked; else -1.

    Gradients of a step that the scaler or the loop skipped break nothing.
    """
    steps, losses = chart["grad_norm"].nonfinite_steps, chart["loss"].nonfinite_steps
    first = next((step for step in steps if looked - within <= step < looked), -1)
    without = (chart["skipped"], chart["passed_over"])
    saved = any(bool((series.values[series.steps == first] > 0).any()) for series in without)
    broken = any(step < first and bool(np.isinf(row).any()) for step, row in chart.tensors("weight_norm").rows)
    earlier = first - 1 in steps or any(first - within <= step <= first for step in losses)
    # at step 0, a finite loss shows that the weights were finite
    loss = chart["loss"]
    unknown = first < 0 or (first == 0 and not (loss.outline.start == 0 and math.isfinite(loss.first)))
    return -1 if unknown or saved or broken or earlier else first


def _concerned(chart: Chart) -> tuple[tuple[str, ...], int]:
    """The tensors whose gradient is not finite at this step, in forward order, and how many have gradients at all.

    NaN also stands for "had no gradient", so a tensor that never had a finite gradient is left out.
    """
    sampled = chart.tensors("grad_norm")
    row = sampled.latest
    if sampled.step != chart.step or row.size != len(chart.names):
        return (), 0
    earlier = sampled.matrix()[:-1]
    alive = np.isfinite(earlier).any(axis=0) if len(earlier) else np.ones(row.size, dtype=bool)
    concerned = np.isinf(row) | (np.isnan(row) & alive)
    return tuple(chart.names[index] for index in np.flatnonzero(concerned)), int((alive | concerned).sum())
