"""GR02 gradient-vanishing."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text
from torchdoctor.series import TINY, Array, Series, median, scatter
from torchdoctor.stretch import Stretch
from torchdoctor.symptoms.detector import CALM, LOOK, Detector, Outlook
from torchdoctor.symptoms.first_pass import MUFFLED, fading, muffled
from torchdoctor.symptoms.optimizer_advice import COUPLED
from torchdoctor.symptoms.progress import SLACK, extreme, is_adversarial, log_spread

NOT_MATRICES = ("norm", "bn", "ln", "embed", "emb", "wte", "wpe", "scale", "gamma", "lora")
"""Parts of weight names that say nothing about depth: gains, embeddings, adapters that begin at zero."""
DECAY_ALONE = "; only weight decay moves the early weights"
"""How a message ends if gradients are tiny and Adam amplifies what weight decay adds to them."""


@dataclass(frozen=True)
class GradientVanishing(Detector):
    """The gradient norm collapses, or gradients shrink through depth until early layers stop learning.

    ## What it means
    The learning signal does not reach the weights. Either it vanishes in the whole model at once (a cut graph, a wrong
    scale, underflow), or it shrinks layer by layer on its way back through saturating or unnormalized layers.

    ## How it is told apart
    A norm that shrinks while the loss converges is healthy. One of these must hold:

    - Collapse: the norm suddenly falls to 1e-4 of its recent median while the loss stays where it was. With plain SGD,
      a fall to 2 % that lasts several steps is enough. The finding ends when the norm recovers, or when the loss or the
      size of the updates shows that the run learns anyway.
    - Depth: over several samples in a row, a line fitted through log-norm over depth falls by three powers of ten, and
      the update ratio of early layers is below 1 % of that of late layers. A single small layer (a bias, a LayerScale,
      a zero-initialized branch) is healthy. If update ratios are unknown, it is info.
    - Before the first step: in a model without normalization each layer shrinks its input to less than 6 %, or the
      outputs of normalization layers are far smaller than their weights because their `eps` is too large.

    ## What to do
    A single collapsed step does no harm: look at what that step did differently. Through depth: use ReLU-family
    activations, normalization, residual connections, He or Xavier initialization. A higher learning rate helps a
    little.

    ## How to see that it is cured
    The update ratios of early layers are at least 1 % of those of late layers, and the norm is back at its old level.

    ## Example
    >>> chart = Chart.of(grad_norm=[1.0, 1.2, 0.9, 1.1] * 16 + [1e-8], loss=[2.0] * 65)
    >>> GradientVanishing().check(chart).message
    'gradient norm collapsed to 1e-08 from its recent median of 1.05 while the loss stayed at 2'
    """

    code = "GR02"
    name = "gradient-vanishing"
    reads = ("grad_norm", "tensors/grad_norm")
    suggests = ("scale-lr", "use-relu-family", "add-residuals", "ask-for-help")
    references = ("https://proceedings.mlr.press/v9/glorot10a.html", "https://arxiv.org/abs/1512.03385")

    window: int = 128
    """Recent values that the median and spread are taken from."""
    history: int = 16
    """Values needed before a collapse is reported."""
    collapse: float = 1e-4
    """Share of the recent median below which the total norm has collapsed."""
    deviations: float = 5.0
    """Robust deviations in log space that the collapse must exceed as well."""
    fallen: float = 0.02
    """With plain SGD: share of the norm just before, below which a fall is reported if it lasts"""
    staying: int = 4
    """for this many steps."""
    momentum: int = 32
    """Steps after a collapse until momentum no longer moves the weights."""
    decades: float = 3.0
    """Powers of ten that the norm loses from the last layer to the first."""
    layers: int = 6
    """Weight matrices that a line through depth needs."""
    samples: int = 4
    """Samples in a row that must show the decay."""
    muffled: float = MUFFLED
    """Output size of normalization layers before the first step, as a share of the size of their weights."""
    fading: float = 0.06
    """Output size of a typical layer before the first step, as a share of its input, below which the signal fades"""
    faded: float = 1e-3
    """if less than this share of the model's input also reaches its last layer. Five times `fading` is enough"""
    gone: float = 1e-5
    """if less than this share reaches the last layer."""
    motion: float = 0.01
    """Share of the late layers' update ratio below which early layers count as not moving."""

    def check(self, chart: Chart) -> Symptom | None:
        """A collapse at this step, or decay through depth if tensors were just sampled."""
        series = chart["grad_norm"]
        norm = series.latest
        base = series.baseline(self.window, log=True)
        if series.step == chart.step and base.count >= self.history and 0 <= norm < math.inf:
            if (lasting := self._lasts(chart, norm)) is not None:
                return lasting
            fall = base.recent - math.log(norm + TINY)
            if fall > -math.log(self.collapse):
                return self._collapsed(chart, norm, fall)
            if fall > -math.log(self.fallen) and (found := self._stays_low(chart, norm)) is not None:
                return found
        sampled = chart.tensors("grad_norm")
        # A record of tensors comes before the step's scalars: only then is the latest row newer than the latest norm.
        if sampled.step > series.step and (faded := self._faded(chart)) is not None:
            return faded
        if sampled.step > series.step and len(sampled.rows) >= self.samples and not _starts_slowly(chart):
            return self._decayed(chart)
        current = chart.open_episodes.get(self.name)
        if current is not None and current.where and sampled.step <= current.last_step:
            return current  # the latest sample, perhaps hundreds of steps ago, showed it, and nothing newer is known
        return None

    def is_calm(self, chart: Chart, coming: Mapping[str, Sequence[float]]) -> bool:
        """Whether even the lowest of these norms is no collapse; decay through depth is checked at sampled steps."""
        base = chart["grad_norm"].upcoming(self.window, log=True)
        lowest = max(min(coming["grad_norm"]), 0.0)
        return base.count < self.history or not base.recent - math.log(lowest + TINY) > -math.log(self.fallen)

    def foresee(self, chart: Chart, coming: Stretch) -> Outlook:
        """The same for each of these norms; decay through depth holds until the next sample."""
        norms = coming.columns.get("grad_norm")
        current = chart.open_episodes.get(self.name)
        if norms is None or (current is not None and current.where):
            return super().foresee(chart, coming)
        base = chart["grad_norm"].upcoming(self.window, log=True)
        if base.count < self.history:
            return np.full(len(coming), CALM, dtype=np.int8)
        with np.errstate(all="ignore"):
            odd = base.recent - np.log(norms + TINY) > -math.log(self.fallen) - SLACK
            if current is not None and current.limit is not None:
                odd |= norms < current.limit
        return np.where(odd, LOOK, CALM).astype(np.int8)

    def _collapsed(self, chart: Chart, norm: float, fall: float) -> Symptom | None:
        base = chart["grad_norm"].baseline(self.window, log=True)
        before = chart["grad_norm"].last(9)[:-1]
        sudden = norm < 0.01 * float(before.min(initial=math.inf))
        loss = chart["loss"]
        beyond_noise = fall > extreme(self.deviations, base.count) * log_spread(base, self.window)
        if not (sudden and beyond_noise) or _at_floor(chart):
            return None
        # `frozen-weights` reports a copied model; a critic whose margins all hold has nothing to learn at this step.
        if norm == 0 and (chart.fact("graph.copied") or is_adversarial(chart)):
            return None
        if loss.step == chart.step and not math.isfinite(loss.latest):  # the loop has discarded its gradients
            return None
        typical = math.exp(base.recent)
        message = f"gradient norm collapsed to {number_text(norm)} from its recent median of {number_text(typical)}"
        if math.isfinite(loss.latest):
            message += f" while the loss stayed at {number_text(loss.latest)}"
        return self.symptom(chart, "warning", message, value=norm, limit=typical * self.collapse)

    def _lasts(self, chart: Chart, norm: float) -> Symptom | None:
        """A collapse that continues: the recent median has followed it down, so its first limit still applies."""
        current, loss = chart.open_episodes.get(self.name), chart["loss"]
        if current is None or current.where or current.limit is None or not norm < current.limit:
            return None
        if _at_floor(chart) or (loss.step == chart.step and not math.isfinite(loss.latest)):
            return None
        if _falls_on(chart, current.first_step) or self._moves_on(chart, current.first_step):
            return None
        return self.symptom(chart, current.severity, current.message, value=norm, limit=current.limit)

    def _moves_on(self, chart: Chart, since: int, share: float = 0.1) -> bool:
        """Whether weights move about as far as before the collapse, thanks to Adam or a raised learning rate."""
        sampled = chart.tensors("update_ratio")
        if sampled.step < since + self.momentum:
            return False
        before = next((row for step, row in reversed(sampled.rows) if step < since), sampled.latest[:0])
        return _median(sampled.latest) > share * _median(before)

    def _stays_low(self, chart: Chart, norm: float) -> Symptom | None:
        """A lasting fall from one step to the next while the loss stays: the loop divides its gradients by something.

        Only with SGD: Adam and its relatives divide by the gradients' own size, and do not notice.
        """
        series, loss = chart["grad_norm"], chart["loss"]
        alike = bool(chart.groups) and all(str(group.get("optimizer")) == "SGD" for group in chart.groups)
        if not alike or loss.step != chart.step or is_adversarial(chart):
            return None
        low = self._low_since(series.last(self.history + 3 * self.staying))
        losses = loss.last(self.history + low)
        if not low or not median(losses[-low:]) > 0.3 * median(losses[:-low]) > 0:
            return None
        typical = median(series.values[-low - self.history : -low])
        message = f"gradient norm fell to {number_text(norm)} from {number_text(typical)} in one step and stays there, "
        message += f"while the loss stayed at {number_text(loss.latest)}"
        first = int(series.steps[-low])
        return self.symptom(chart, "warning", message, value=norm, limit=typical * self.fallen, since=first)

    def _low_since(self, norms: Array) -> int:
        """How many of the latest norms are far below those before them; 0 if fewer than `staying`."""
        for low in range(self.staying, norms.size - self.history + 1):
            if float(norms[-low:].max()) < self.fallen * float(norms[-low - self.history : -low].min()):
                return low
        return 0

    def _faded(self, chart: Chart) -> Symptom | None:
        """Before the first step each layer shrinks its input so much that no gradient will come back through them."""
        norms, share = muffled(chart)
        if share < self.muffled:
            message = f"before the first step normalization layers output {number_text(share)} of their weights' size: "
            message += "their eps outweighs their input"
            return self.symptom(chart, "warning", message, value=share, limit=self.muffled, where=norms, since=0)
        layers, factor, left = fading(chart)
        if not (factor < self.fading and left < self.faded) and not (factor < 5 * self.fading and left < self.gone):
            return None
        message = f"before the first step each layer shrinks its input to {number_text(factor)} of its size: "
        message += f"{number_text(left)} of the model's input reaches the last of {len(layers)} layers"
        return self.symptom(chart, "warning", message, value=left, limit=self.faded, where=layers[:-1], since=0)

    def _decayed(self, chart: Chart) -> Symptom | None:
        if not self._looks_steep(chart):
            return None
        decades, layers = decay_through_depth(chart, self.samples)
        if layers < self.layers or len(decades) < self.samples or not min(decades) > self.decades:
            return None
        columns = weight_columns(chart.names)
        early, late = list(columns[: layers // 3]), list(columns[-(layers // 3) :])
        where = tuple(chart.names[index] for index in early)
        lost = decades[-1]
        message = f"gradient norms fall by {lost:.1f} powers of ten from the last to the first of {layers} layers"
        updates = chart.tensors("update_ratio").latest
        if updates.size != len(chart.names):  # whether the early weights move is not known
            return self.symptom(chart, "info", message, value=lost, limit=self.decades, where=where, confidence=0.6)
        slow, quick = _median(updates[early]), _median(updates[late])
        if is_decay_alone(chart, early):
            message += DECAY_ALONE
            return self.symptom(chart, "warning", message, value=lost, limit=self.decades, where=where)
        if slow < self.motion * quick:
            message += (
                f"; a step changes early weights by {number_text(slow)} of their norm, "
                f"late ones by {number_text(quick)}"
            )
            return self.symptom(chart, "warning", message, value=lost, limit=self.decades, where=where)
        return None

    def _looks_steep(self, chart: Chart) -> bool:
        """A cheap comparison of both ends, before a line is fitted through every pair of layers."""
        columns, row = weight_columns(chart.names), chart.tensors("grad_norm").latest
        third = len(columns) // 3
        if not third or row.size != len(chart.names):
            return False
        early, late = row[list(columns[:third])], row[list(columns[-third:])]
        lowest = float(early[np.isfinite(early)].min(initial=math.inf))
        return float(late[np.isfinite(late)].max(initial=0.0)) > 10 ** (self.decades / 2) * lowest


def decay_through_depth(chart: Chart, samples: int = 4) -> tuple[list[float], int]:
    """Powers of ten that the gradient loses on its way to the first layer, per recent sample, and the number of layers.

    Gradient norms are divided by the weights' norms where these are known, because layers differ in size.
    """
    columns = list(weight_columns(chart.names))
    rows = chart.tensors("grad_norm").matrix(samples)
    if len(columns) < 2 or not len(rows) or rows.shape[1] != len(chart.names):
        return [], len(columns)
    norms = rows[:, columns]
    weights = chart.tensors("weight_norm").latest
    if weights.size == len(chart.names):
        with np.errstate(all="ignore"):  # non-finite values are left out when the line is fitted
            norms = norms / np.maximum(weights[columns], TINY)
    return [_decades_lost(row) for row in norms], len(columns)


def is_decay_alone(chart: Chart, columns: list[int], share: float = 0.01) -> bool:
    """Whether weight decay, added to the gradient and amplified by Adam, outweighs the gradient of these weights."""
    groups = [group for group in chart.groups if str(group.get("optimizer")) in COUPLED]
    known = (group.get("weight_decay") for group in groups if not group.get("decoupled_weight_decay"))
    decays = [float(decay) for decay in known if isinstance(decay, int | float)]
    norms, weights = chart.tensors("grad_norm").latest, chart.tensors("weight_norm").latest
    if not decays or len(decays) < len(chart.groups) or norms.size != weights.size:
        return False
    return bool((norms[columns] < share * min(decays) * weights[columns]).all())


@functools.lru_cache(maxsize=8)
def weight_columns(names: tuple[str, ...]) -> tuple[int, ...]:
    """The columns of weight matrices, recognized by their names."""
    return tuple(index for index, name in enumerate(names) if _is_matrix(name))


def _starts_slowly(chart: Chart, steps: int = 16) -> bool:
    """Whether this is the start of RAdam, whose first steps are not yet scaled by tensor."""
    slow = bool(chart.groups) and all(group.get("optimizer") == "RAdam" for group in chart.groups)
    return slow and chart.step < steps


def _at_floor(chart: Chart) -> bool:
    """Whether the loss fell with the norm, or has nothing left to lose: then a vanishing gradient is right.

    Without a main loss, all others must, such as the loss of a policy whose rewards were all equal at this step.
    """
    losses = [chart["loss"]] if chart["loss"] else [chart[name] for name in chart.losses]
    return bool(losses) and all(_has_fallen(loss) for loss in losses)


def _has_fallen(loss: Series) -> bool:
    size = abs(loss.latest)
    return size <= 0.01 * abs(loss.baseline(128).recent) or size <= 1e-3 * abs(loss.first)


def _falls_on(chart: Chart, since: int, fewest: int = 128) -> bool:
    """Whether the loss has halved since a step, noise aside: then the run learns in spite of its gradients."""
    losses = chart["loss"].since(since)
    quarter = losses.size // 4
    if losses.size < fewest:
        return False
    then = median(losses[:quarter])
    return then - median(losses[-quarter:]) > 0.5 * abs(then)


def _is_matrix(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "weight" in last and not any(part in name.lower() for part in NOT_MATRICES)


def _decades_lost(row: Array) -> float:
    """Powers of ten between the ends of a robust line (Theil-Sen) through log-norm over depth; 0 if no line fits."""
    known = np.isfinite(row) & (row > 0)
    if known.sum() < max(4, 0.8 * row.size):
        return 0.0
    depth, logs = np.flatnonzero(known).astype(np.float64), np.log10(row[known])
    first, second = np.triu_indices(depth.size, 1)
    slope = median((logs[second] - logs[first]) / (depth[second] - depth[first]))
    lost = slope * (row.size - 1)
    return lost if scatter(logs - slope * depth) < lost / 4 else 0.0


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return median(known) if known.size else math.nan
