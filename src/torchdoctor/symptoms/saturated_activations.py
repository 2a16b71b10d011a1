"""AC02 saturated-activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Array
from torchdoctor.symptoms.dead_units import first_known, is_stuck
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress


@dataclass(frozen=True)
class SaturatedActivations(Detector):
    """Sigmoid, tanh or attention units pinned at their extremes.

    ## What it means
    Beyond |x| = 3 tanh and sigmoid are flat: the unit says the same whatever comes in, and hardly any gradient gets
    back through it. An attention softmax that is one-hot from early on has stopped choosing.

    ## How it is told apart
    A third of a trained tanh layer at its ends is healthy, and an output layer may be there altogether: the model's own
    output is left out. A hidden layer counts if most of its values are beyond 0.97 (tanh) or outside 0.03 to 0.97
    (sigmoid) at several samples. It is a warning if it began that way, or the loss does not move; where the run
    learns, it is a note. Of recurrent layers, what enters the gates is meant: beyond 3.5 they are open or shut.

    ## What to do
    Scale the inputs to mean 0 and deviation 1; Xavier initialization; a normalization in front of the activation;
    ReLU or GELU where nothing needs the bounds. For attention: normalize queries and keys, lower the learning rate.

    ## How to see that it is cured
    `act_saturated` of the layer stays below a half, and the loss falls faster.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["fc1", "tanh"]}})
    >>> for step in (0, 1, 2):
    ...     chart.add({"type": "modules", "step": step, "vitals": {"act_saturated": [None, 0.9]}})
    >>> print(SaturatedActivations().check(chart))
    step 0: AC02 saturated-activations (warning): 90 % of the values of tanh are at their extremes, from the start on
    """

    code = "AC02"
    name = "saturated-activations"
    reads = ("modules/act_saturated", "modules/attention_entropy")
    suggests = ("use-relu-family", "initialize", "normalize-inputs", "add-normalization")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html", "https://arxiv.org/abs/2303.06296")
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show it."""
    share: float = 0.7
    """Share of a layer's values at the extremes."""
    gates: float = 0.25
    """Share of what enters the gates of a recurrent layer that is beyond their reach, from the start on."""
    entropy: float = 0.1
    """Entropy of attention, relative to an even one, under which it is one-hot."""
    logit: float = 50.0
    """Attention logit above which one-hot attention is no longer a choice."""

    def check(self, chart: Chart) -> Symptom | None:
        """The median of the last samples, by layer."""
        names = chart.module_names
        series = chart.modules("act_saturated")
        rows = series.matrix()
        if len(rows) >= self.samples and rows.shape[1] == len(names):
            hidden = np.array([name not in chart.fact("modules.outputs", ()) for name in names])
            low = np.min(rows[-self.samples :], axis=0)
            now = np.where(hidden & np.isfinite(low), low, 0.0)
            worst = int(np.argmax(now))
            if not now[worst] > self.share and (shut := self._gates(chart, now)) is not None:
                return shut
            if now[worst] > self.share:
                where = tuple(names[int(index)] for index in np.flatnonzero(now > self.share)[:4])
                early = bool(first_known(rows)[worst] > self.share) and series.rows[0][0] <= 50
                severity: Severity = "warning" if (early and not self._shut(chart, now)) or is_stuck(chart) else "info"
                message = f"{100 * now[worst]:.0f} % of the values of {_told(chart, worst)} are at their extremes"
                since = series.rows[0][0] if early else None
                message += ", from the start on" if early else ""
                return self.symptom(
                    chart, severity, message, value=float(now[worst]), limit=self.share, where=where, since=since
                )
        return self._attention(chart)

    def _shut(self, chart: Chart, now: Array) -> bool:
        """Whether all of these layers are sigmoids, and the run learns: gates may be shut at first on purpose."""
        kinds, functions = chart.fact("modules.kinds", ()), chart.fact("modules.squashed") or {}
        kinds = [functions.get(name, kind) for name, kind in zip(chart.module_names, kinds, strict=False)]
        pinned = [kinds[int(index)] for index in np.flatnonzero(now > self.share)] if len(kinds) == now.size else [""]
        return all("igmoid" in kind for kind in pinned) and _learns(chart)

    def _gates(self, chart: Chart, now: Array) -> Symptom | None:
        """Recurrent layers that a fresh initialization gives hardly any gate beyond its reach."""
        kinds, series = chart.fact("modules.kinds", ()), chart.modules("act_saturated")
        first = series.rows[0][1]
        if len(kinds) != now.size or first.size != now.size or series.rows[0][0] > 2:
            return None
        shut = np.array([kind in ("RNN", "GRU", "LSTM") for kind in kinds])
        shut &= (first > self.gates) & (now > 0.6 * self.gates)
        if not shut.any():
            return None
        worst = int(np.argmax(np.where(shut, now, 0.0)))
        message = f"{100 * now[worst]:.0f} % of what enters the gates of {chart.called(worst)} is beyond their "
        message += "reach, from the start on"
        where = tuple(chart.module_names[int(index)] for index in np.flatnonzero(shut)[:4])
        return self.symptom(
            chart, "warning", message, value=float(now[worst]), limit=self.gates, where=where, since=series.rows[0][0]
        )

    def _attention(self, chart: Chart) -> Symptom | None:
        names = chart.module_names
        rows = chart.modules("attention_entropy").matrix(self.samples)
        logit = chart["attention_logit"].latest
        if len(rows) < self.samples or rows.shape[1] != len(names) or not logit > self.logit:
            return None
        columns = np.flatnonzero(np.isfinite(rows).all(axis=0))
        sharp = columns[(rows[:, columns] < self.entropy).all(axis=0)] if columns.size else columns
        if not columns.size or sharp.size < columns.size / 2:
            return None
        message = f"attention is one-hot in {sharp.size} of {columns.size} modules; its largest logit is"
        where = tuple(names[int(index)] for index in sharp[:4])
        first, row = chart.modules("attention_entropy").rows[0]
        early = first <= 2 and row.size == len(names) and bool((row[sharp] < self.entropy).all())
        severity: Severity = "warning" if early or is_stuck(chart) else "info"
        message += f" {number_text(logit)}" + (", from the start on" if early else "")
        return self.symptom(chart, severity, message, value=logit, where=where, since=first if early else None)


def _told(chart: Chart, index: int) -> str:
    """A module's name; with the function that its output enters, where that is what is measured."""
    name = chart.module_names[index]
    function = (chart.fact("modules.squashed") or {}).get(name)
    return f"{function.lower()}({name})" if function else chart.called(index)


def _learns(chart: Chart, least: int = 32, share: float = 0.6) -> bool:
    """Whether the loss is well below its start, or too young to tell: gates may be shut at first on purpose."""
    loss = chart["loss"]
    if not loss or loss.count < least:
        return bool(loss)
    return loss.baseline(32).recent < share * Progress.of(loss).start
