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
    """Sigmoid, tanh or attention units are saturated.

    ## What it means
    Beyond |x| = 3, tanh and sigmoid are flat: the unit gives the same output for every input, and hardly any gradient
    passes back through it. An attention softmax that is one-hot from the start cannot learn where to look.

    ## How it is told apart
    In a healthy trained tanh layer, a third of the values may be saturated, and the output of a model may be fully
    saturated: it is not judged. A hidden layer is reported if most of its values are beyond 0.97 (tanh) or outside
    0.03 to 0.97 (sigmoid) at several samples. It is a warning if it began that way or the loss does not fall, and info
    otherwise; sigmoids that began that way are also info while the run learns. In recurrent layers, the inputs of the
    gates are measured: beyond 3.5, a gate is fully open or closed. Attention that is written by hand or fused is
    reported if most queries give all their weight to one token at the first samples, or after another finding.

    ## What to do
    Scale the inputs to mean 0 and standard deviation 1, use Xavier initialization, put a normalization layer in front
    of the activation, or use ReLU or GELU if no bounds are needed. For attention, normalize queries and keys and lower
    the learning rate.

    ## How to see that it is cured
    `act_saturated` of the layer stays below one half, and the loss falls faster.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 0, "facts": {"modules.names": ["fc1", "tanh"]}})
    >>> for step in (0, 1, 2):
    ...     chart.add({"type": "modules", "step": step, "vitals": {"act_saturated": [None, 0.9]}})
    >>> print(SaturatedActivations().check(chart))
    step 0: AC02 saturated-activations (warning): 90 % of the values of tanh are at their extremes, from the start
    """

    code = "AC02"
    name = "saturated-activations"
    reads = ("modules/act_saturated", "modules/attention_entropy", "attention_fixed")
    suggests = ("use-relu-family", "initialize", "normalize-inputs", "add-normalization")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html", "https://arxiv.org/abs/2303.06296")
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show it."""
    share: float = 0.7
    """Share of a layer's values at their extremes above which the layer is saturated."""
    gates: float = 0.25
    """Share of saturated gate inputs at the first sample above which a recurrent layer is reported."""
    entropy: float = 0.1
    """Entropy of attention, relative to uniform attention, below which it counts as one-hot."""
    logit: float = 50.0
    """Attention logit above which one-hot attention is reported."""
    fixed: float = 0.5
    """Share of queries that must give all weight to one token, if attention is read from the graph of the loss."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the lowest share of the last samples for each layer, then attention."""
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
                message += ", from the start" if early else ""
                return self.symptom(
                    chart, severity, message, value=float(now[worst]), limit=self.share, where=where, since=since
                )
        return self._attention(chart) or self._fixed(chart)

    def _shut(self, chart: Chart, now: Array) -> bool:
        """Whether all of these layers are sigmoids and the run learns: gates may be closed at first on purpose."""
        kinds, functions = chart.fact("modules.kinds", ()), chart.fact("modules.squashed") or {}
        kinds = [functions.get(name, kind) for name, kind in zip(chart.module_names, kinds, strict=False)]
        pinned = [kinds[int(index)] for index in np.flatnonzero(now > self.share)] if len(kinds) == now.size else [""]
        return all("igmoid" in kind for kind in pinned) and _learns(chart)

    def _gates(self, chart: Chart, now: Array) -> Symptom | None:
        """Recurrent layers with many saturated gates since the start: a default initialization gives hardly any."""
        kinds, series = chart.fact("modules.kinds", ()), chart.modules("act_saturated")
        first = series.rows[0][1]
        if len(kinds) != now.size or first.size != now.size or series.rows[0][0] > 2:
            return None
        shut = np.array([kind in ("RNN", "GRU", "LSTM") for kind in kinds])
        shut &= (first > self.gates) & (now > 0.6 * self.gates)
        if not shut.any():
            return None
        worst = int(np.argmax(np.where(shut, now, 0.0)))
        message = f"{100 * now[worst]:.0f} % of the gate inputs of {chart.called(worst)} saturate the gates, "
        message += "from the start"
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
        message += f" {number_text(logit)}" + (", from the start" if early else "")
        return self.symptom(chart, severity, message, value=logit, where=where, since=first if early else None)

    def _fixed(self, chart: Chart) -> Symptom | None:
        """Attention that is not a torch module: most queries give all their weight to one token."""
        series = chart["attention_fixed"]
        if series.count < self.samples or not float(series.last(self.samples).min()) > self.fixed:
            return None
        early = series.first > self.fixed and series.count == self.samples
        early = early or "saturated-activations" in chart.open_episodes
        message = f"attention is one-hot for {100 * series.latest:.0f} % of the queries: all but one token get less "
        message += "than a millionth of the weight, so the scores get no gradient. They may have to be divided by the "
        message += "square root of the head's width"
        severity: Severity = "warning" if early or is_stuck(chart) else "info"
        since = int(series.steps[-self.samples])
        return self.symptom(chart, severity, message, value=series.latest, limit=self.fixed, since=since)


def _told(chart: Chart, index: int) -> str:
    """The name of a module, with the function applied to its output if that is what is measured."""
    name = chart.module_names[index]
    function = (chart.fact("modules.squashed") or {}).get(name)
    return f"{function.lower()}({name})" if function else chart.called(index)


def _learns(chart: Chart, least: int = 32, share: float = 0.6) -> bool:
    """Whether the loss is well below its start, or the run is too young to tell."""
    loss = chart["loss"]
    if not loss or loss.count < least:
        return bool(loss)
    return loss.baseline(32).recent < share * Progress.of(loss).start
