"""OU01 collapsed-output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.series import Series
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.not_learning import against_guess, tells_apart
from torchdoctor.symptoms.progress import Progress, acts, is_game, is_of_one_sample, is_unrolled, working_since

SAYS_NOTHING = "the latent code carries no information about the input"
"""How the message ends if a variational code has become its prior."""


@dataclass(frozen=True)
class CollapsedOutput(Detector):
    """Outputs are nearly independent of the input: one class, one token, one mode.

    ## What it means
    The model gives the same output for every input. At best it has learned the average of its targets. Something
    between input and output has died, the input carries no information, or the easiest answer (the most common class,
    one image, one embedding for all) has won.

    ## How it is told apart
    A new model gives nearly the same output for every input, and a large bias makes the differences look small. So the
    collapse must last for several samples over fifty steps, and if the targets are known, outputs must vary far less
    than targets do. Special cases:

    - Predicting only the most common class is reported if the loss is no better than a guess by class frequency on the
      same batches. It must last longer while outputs still move apart. It is info while the loss still falls or has not
      come down to the guess, during a warm-up, until some hundred samples of the other classes have been seen, and if
      outputs vary five times as much over a batch as at first: then they depend on the input.
    - Embeddings without targets may collapse in direction while their lengths differ. This is info for a hundred steps
      unless the loss gains by it: in many healthy runs they come together and separate again.
    - For a variational code, mean and log-variance must both have fallen to zero: a code that is used keeps its means
      apart.

    ## What to do
    Look for `dead-units`, `input-anomaly` and `class-imbalance` in the same report. Try to overfit ten samples: if the
    outputs are still the same, the path from input to output is broken. Weight or resample rare classes. For embeddings
    and GANs, add a loss term that rewards variety.

    ## How to see that it is cured
    `output_spread` rises above 0.01, and predictions are distributed like labels.

    ## Example
    >>> chart = Chart()
    >>> for step in (25, 50, 75, 100):
    ...     chart.put(step, "output_spread", 1e-7)
    >>> print(CollapsedOutput().check(chart))
    step 50: OU01 collapsed-output (critical): outputs do not depend on the input: they vary by 1e-07 of their size
    """

    code = "OU01"
    name = "collapsed-output"
    reads = ("output_spread", "modules/act_spread")
    suggests = ("initialize", "scale-lr", "reinitialize-dead-units", "ask-for-help")
    references = ("https://karpathy.github.io/2019/04/25/recipe/", "https://arxiv.org/abs/1606.03498")
    closes_after = 3

    samples: int = 3
    """Samples in a row that must show it."""
    steps: int = 50
    """Steps that they must span."""
    spread: float = 1e-3
    """Standard deviation over the batch, as a share of the output's size, below which outputs have collapsed."""
    latent: float = 0.12
    """Size of a variational code's mean and log-variance below which it cannot be told from the prior."""
    directions: float = 0.04
    """Share of the embeddings' size that is not along their mean direction, below which they have collapsed."""
    together: float = 0.4
    """Share of their first spread below which outputs that the loss compares with each other have come together."""
    one_class: int = 200
    """Steps for which only one class must have been predicted."""
    rare: int = 200
    """Samples of the other classes seen so far below which this is info: nothing can have been learned from them."""
    behind: float = 0.05
    """Share by which the loss is above that of a guess while the bias still learns the frequencies."""
    apart: float = 5
    """Multiple of their first spread from which outputs depend on the input, whatever class is predicted."""
    sure: float = 0.1
    """Share that may have been learned unseen, for a warning."""
    guess: float = 0.93
    """Loss as a share of that of a guess by class frequency, above which it is no better than the guess."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check the spread of the outputs, then that of each of several models, then the predicted classes."""
        series = chart["output_spread"]
        value, since = self._highest(series)
        better = self._beats_guess(chart, since) and not _is_deaf(chart, value)
        excused = self._follows_targets(chart) or better or _is_the_loss(chart)
        excused = excused or _begins_alike(chart)
        if value < self.spread and not excused:
            severity: Severity = "critical" if value < 1e-6 else "warning"
            message = f"outputs do not depend on the input: they vary by {number_text(value)} of their size"
            return self.symptom(chart, severity, message, value=value, limit=self.spread, since=since)
        code, since = self._code(chart)
        if code:
            message = f"{' and '.join(code)} fell to zero: {SAYS_NOTHING}"
            return self.symptom(chart, "warning", message, where=code, since=since)
        shrunk, since = self._shrunk(chart)
        if shrunk < 20 * self.spread:
            message = f"outputs hardly depend on the input any more: they vary by {number_text(shrunk)} of their size"
            return self.symptom(chart, "warning", message, value=shrunk, limit=20 * self.spread, since=since)
        drawn = self._drawn_together(chart)
        if drawn is not None:
            share = chart["output_std"].latest / chart["output_std"].first
            message = f"the spread of outputs fell to {number_text(share)} of its first value, and the loss compares "
            message += "them with each other: it is smallest if all are equal"
            return self.symptom(chart, "warning", message, value=share, limit=self.together, since=drawn)
        inner, share, since = self._inner(chart)
        if inner:
            message = f"the output of {inner} has come to vary by only {number_text(share)} of its size, and the loss "
            message += "compares outputs with each other: it is smallest if all are equal"
            return self.symptom(chart, "warning", message, value=share, where=(inner,), since=since)
        pointing, since = self._aligned(chart)
        if pointing < self.directions:
            message = (
                f"outputs point in the same direction for every input, except for {number_text(pointing)} of their size"
            )
            severity = "warning" if _pays(chart) or self._lasts(chart["output_directions"]) else "info"
            return self.symptom(chart, severity, message, value=pointing, limit=self.directions, since=since)
        for vital in chart.vitals:
            if vital.startswith("output_spread/") and not _is_number(chart, vital.partition("/")[2]):
                value, since = self._highest(chart[vital])
                if value < 10 * self.spread:
                    name = _called(chart, vital.partition("/")[2])
                    message = (
                        f"the outputs of {name} are nearly the same for every input: they vary by {number_text(value)}"
                    )
                    return self.symptom(
                        chart, "warning", f"{message} of their size", value=value, where=(name,), since=since
                    )
        return self._predicts_one_class(chart)

    def _highest(self, series: Series) -> tuple[float, int]:
        """The highest of the last samples that span enough steps, and the first of their steps; NaN if too few."""
        if len(series) < self.samples or not math.isfinite(series.latest):
            return math.nan, 0
        steps = series.steps
        start = min(len(series) - self.samples, int(np.searchsorted(steps, steps[-1] - self.steps, "right")) - 1)
        if start < 0:
            return math.nan, 0
        return float(series.values[start:].max()), int(steps[start])

    def _code(self, chart: Chart) -> tuple[tuple[str, ...], int]:
        """The layers that give mean and log-variance of a variational code, if both fell to nearly zero."""
        outputs, widths, names = chart.fact("modules.outputs", ()), chart.fact("modules.widths", ()), chart.module_names
        series = chart.modules("act_rms")
        rows = series.matrix()
        if len(outputs) < 2 or len(rows) < 2 * self.samples or not rows.shape[1] == len(names) == len(widths):
            return (), 0
        if series.rows[-1][0] - series.rows[-self.samples][0] < self.steps:  # a new code may be near zero for a while
            return (), 0
        places = [names.index(name) for name in outputs if name in names]
        low = rows[-self.samples :].max(axis=0)
        gone = [place for place in places if low[place] < self.latent and low[place] < 0.5 * rows[0, place]]
        entering = chart.fact("modules.entering", ())
        halved = [names[place] for place in gone if widths[place] in [2 * width for width in entering if width]]
        if len(halved) == 1:  # one layer gives both, and the next takes half its width
            return (halved[0],), series.rows[-self.samples][0]
        if len(gone) != 2 or len(places) < 3 or widths[gone[0]] != widths[gone[1]]:
            return (), 0
        pair = names[gone[0]], names[gone[1]]
        siblings = pair[0].rpartition(".")[0] == pair[1].rpartition(".")[0]
        if not siblings and widths[gone[0]] not in entering:  # two models, and no layer takes their outputs
            return (), 0
        return pair, series.rows[-self.samples][0]

    def _shrunk(self, chart: Chart) -> tuple[float, int]:
        """The spread of outputs that vary fifty times less than at first although targets do not; else NaN."""
        deviation = chart["output_std"]
        fell = bool(deviation) and float(deviation.last(self.samples).max()) < 0.02 * deviation.first
        return self._highest(chart["output_spread"]) if fell and not self._follows_targets(chart) else (math.nan, 0)

    def _drawn_together(self, chart: Chart) -> int | None:
        """Since when outputs that the loss compares with each other shrink towards one point; None if not."""
        deviation, pointing = chart["output_std"], chart["output_directions"]
        if not chart.fact("loss.between_outputs") or len(deviation) < 2 * self.samples or is_game(chart):
            return None
        shrunk, since = self._highest(deviation)
        narrowed, _ = self._highest(pointing)
        shrinks = shrunk < self.together * deviation.first and narrowed < 0.6 * float(pointing.values.max())
        return since if shrinks and bool((np.diff(deviation.last(self.samples)) < 0).all()) else None

    def _inner(self, chart: Chart) -> tuple[str, float, int]:
        """A module whose outputs become ever more alike, if the model's own output is not seen."""
        series, names = chart.modules("act_spread"), chart.module_names
        if not chart.fact("loss.between_outputs") or chart["output_std"] or len(series.rows) < 2 * self.samples:
            return "", math.nan, 0
        rows = series.matrix()
        if rows.shape[1] != len(names) or is_game(chart) or series.rows[-1][0] < self.steps:
            return "", math.nan, 0
        recent = np.nanmax(rows[-self.samples :], axis=0, initial=0.0)
        gone = np.flatnonzero((recent > 0) & (recent < 0.3 * rows[0]) & (rows[-1] < rows[-self.samples]))
        gone = gone[recent[gone] < 3 * self.directions]
        if not gone.size:
            return "", math.nan, 0
        return names[gone[-1]], float(recent[gone[-1]]), series.rows[-self.samples][0]

    def _aligned(self, chart: Chart) -> tuple[float, int]:
        """The share of embeddings (outputs without targets) that is not along their mean, if it has fallen."""
        series = chart["output_directions"]
        compares = chart["criterion"] or chart["target_std"] or chart.fact("loss.kind")
        if not series or (compares and not chart.fact("loss.between_outputs")):
            return math.nan, 0
        deviation = chart["output_std"]
        if chart.fact("loss.kind") and deviation.latest > deviation.first:  # a loss of differences, and these grow
            return math.nan, 0
        if not chart.fact("loss.between_outputs") and _parts(deviation):  # parameters of a density, mostly similar
            return math.nan, 0
        value, since = self._highest(series)
        return (value, since) if value < 0.2 * float(series.values.max()) else (math.nan, 0)

    def _lasts(self, series: Series) -> bool:
        """Whether embeddings have pointed in one direction for long, and are not separating.

        If a loss pushes some apart, all may come together first and separate once the model can distinguish them.
        """
        low = series.values < self.directions
        since = int(series.steps[np.flatnonzero(~low)[-1]]) if not low.all() else int(series.steps[0])
        parting = series.latest > 1.3 * float(series.last(2 * self.samples).min())
        last = series.last(self.samples)
        parting = parting or (bool((np.diff(last) > 0).all()) and series.latest > 1.1 * float(last[0]))
        return series.step - since >= self.one_class // 2 and not parting

    def _follows_targets(self, chart: Chart) -> bool:
        """Whether outputs vary enough for the targets, which may vary by a small part of a large value."""
        target, output = chart["target_std"].latest, chart["output_std"].latest
        return output > 0.02 * target if target > 0 else False

    def _beats_guess(self, chart: Chart, since: int) -> bool:
        """Whether the loss is far below that of a guess that ignores the input."""
        learnt, doubt, batches = against_guess(chart, since)
        return batches >= self.samples and learnt > max(0.3, 3 * doubt)

    def _predicts_one_class(self, chart: Chart) -> Symptom | None:
        predicted, share = chart["prediction_top_share"], chart["pooled_top_share"].latest
        if not chart["pooled_classes"].latest > 1 or len(predicted) < 2 * self.samples:
            return None
        # If nearly all labels are of one class, waiting longer does not help, unless outputs are moving apart.
        lasting = self.one_class // (1 if share < 0.95 or _parts(chart["output_std"]) else 3)
        since = int(predicted.steps[-1]) - lasting
        recent = predicted.since(since)
        if int(predicted.steps[0]) > since or recent.size < self.samples or not float(recent.min()) > 0.999:
            return None
        if is_of_one_sample(chart):
            return None  # a batch of one sample has only one class
        learnt, doubt, batches = against_guess(chart, since)
        if batches < self.samples or not learnt < 1 - self.guess:
            return None
        later = against_guess(chart, since + lasting // 2)  # once the bias fits the frequencies
        if later[2] >= self.samples:
            learnt, doubt, _ = later
            parting = share < 0.95 and _parts(chart["output_std"])  # with few rare samples, the gain is noise
            if learnt > (doubt if parting else 2 * doubt + 0.01):
                return None
        message = f"only one class has been predicted for {lasting} steps, and the loss is no better than a guess by "
        message += f"class frequency; {100 * share:.0f} % of the labels are of the most common class"
        young = chart.step < 2 * self.one_class and tells_apart(chart)
        warms = bool(chart["lr"]) and working_since(chart) is None
        nearing = learnt < -max(2 * doubt, self.behind)  # the bias is on its way to the frequencies
        unsure = learnt + 2 * doubt > self.sure
        unseen = (1 - share) * _labels(chart) * chart.step < self.rare
        waits = share < 0.99 and (nearing or unsure or unseen or _parts(chart["output_std"], self.apart))
        early = young or warms or waits or _is_falling(chart["loss"], chart.step - self.one_class)
        severity: Severity = "info" if early or _stands_still(chart) else "warning"
        return self.symptom(chart, severity, message, value=float(recent.min()), confidence=0.7, since=max(since, 0))


def _called(chart: Chart, model: str) -> str:
    """The name of a model for a reader: models given as a list have only numbers, so their class is added.

    >>> chart = Chart.of(context={"model": {"class": "Generator, Critic"}})
    >>> _called(chart, "1"), _called(chart, "critic"), _called(Chart(), "1")
    ('model 1 (Critic)', 'critic', 'model 1')
    """
    if not model.isdecimal():
        return model
    classes = str((chart.context.get("model") or {}).get("class") or "").split(", ")
    kind = classes[int(model)] if int(model) < len(classes) else ""
    return f"model {model} ({kind})" if kind else f"model {model}"


def _begins_alike(chart: Chart) -> bool:
    """Whether a loop over time starts from equal inputs: outputs of its first pass are then equal too."""
    return is_unrolled(chart) and 1.0 in (chart["input_constant"].latest, chart["input_blank"].latest)


def _is_deaf(chart: Chart, value: float, same: float = 1e-6, apart: float = 0.05) -> bool:
    """Whether outputs are exactly equal for samples that differ at the first layer.

    If each output has its own mean, as pixels have, predicting these means alone beats a guess of one number.
    """
    return value < same and chart["entry_spread"].latest > apart


def _is_the_loss(chart: Chart, samples: int = 3) -> bool:
    """Whether the model's output is the loss itself: it may be nearly the same for all samples."""
    outputs, losses = chart["output_rms"], chart["loss"]
    known = np.isin(losses.steps, outputs.steps[-samples:])
    sizes, values = outputs.last(samples), np.abs(losses.values[known])
    return sizes.size == values.size == samples and bool((np.abs(sizes - values) < 0.02 * values).all())


def _is_number(chart: Chart, model: str) -> bool:
    """Whether the model gives one number in a game: values near 100, or a critic's scores, may differ by little."""
    widths = dict(zip(chart.module_names, chart.fact("modules.widths", ()), strict=False))
    last = [widths.get(name) for name in chart.fact("modules.outputs", ()) if name.partition(".")[0] == model]
    free = acts(chart) or (is_game(chart) and chart.fact("loss.kind") != "bce")  # no loss holds such a score near 0
    return free and bool(last) and all(width == 1 for width in last)


def _pays(chart: Chart) -> bool:
    """Whether the loss is below 20 % of its start, or unknown: equal outputs then make it small."""
    loss = chart["loss"]
    return not loss or loss.baseline(32).recent < 0.2 * Progress.of(loss).start


def _is_falling(series: Series, since: int, least: int = 8, sure: float = 2.5, far: float = 0.03) -> bool:
    """Whether losses fell far in the later half of the steps since then: the bias still learns frequencies.

    If losses are logged seldom, the last few count.

    >>> _is_falling(Chart.of(loss=np.linspace(0.4, 0.1, 200))["loss"], 50)
    True
    >>> _is_falling(Chart.of(loss=[0.1, 0.2] * 100)["loss"], 50)
    False
    """
    values = series.since(since)
    values = values if values.size >= 2 * least else series.last(2 * least)
    early, late = values[: values.size // 2], values[values.size // 2 :]
    if early.size < least:
        return values.size > 3 and bool((np.diff(values) < 0).all())
    doubt = math.sqrt((float(early.var()) + float(late.var())) / early.size)
    return float(early.mean()) - float(late.mean()) > max(sure * doubt, far * float(early.mean()))


def _labels(chart: Chart) -> float:
    """Labels per step: one for each sample, or for each token whose next one is predicted."""
    return (
        chart["input_size"].latest
        if chart["target_is_next"].latest > 0.5
        else chart.context.get("batch_size", math.inf)
    )


def _stands_still(chart: Chart) -> bool:
    """Whether another finding says that weights hardly move: outputs are as at the start, and did not collapse."""
    episodes = (chart.open_episodes.get(name) for name in ("learning-rate-vanished", "slow-learning"))
    return any(episode is not None and episode.severity != "info" for episode in episodes)


def _parts(deviation: Series, times: float = 2) -> bool:
    """Whether outputs vary far more over a batch than they did at first."""
    return bool(deviation) and deviation.latest > times * deviation.first
