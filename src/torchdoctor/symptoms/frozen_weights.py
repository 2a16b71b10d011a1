"""WE01 frozen-weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import outline_levels, trend_gain

FAINT = 1e-7
"""Share of a weight under which a gradient is next to nothing, which `gradient-vanishing` and `no-gradient` are for."""
ROUNDING = 1e-6
"""Share of itself by which a tensor last moved, under which it has come to rest: a smaller step is rounded away."""
LAYER = 2
"""Tensors of one layer: a weight and a bias."""
THROWN = "gradients were computed and thrown away"
UNSTEPPED = "the optimizer has not stepped again"
"""How gradients that nobody takes are told, from the start and from some step on."""
FRESH = 0.7
"""Share of the layers that do not learn that look new, from which they were never trained."""


@dataclass(frozen=True)
class FrozenWeights(Detector):
    """Weights that should learn never change.

    ## What it means
    They get gradients and nobody applies them: `optimizer.step()` is missing, they are in no optimizer, or were
    replaced after the optimizer was built, or sit in a plain Python list where `parameters()` does not find them. Or
    they are frozen (`requires_grad=False`) in the middle of layers that learn, or for the other player's turn and never
    thawed; or they belong to the loss function, and the optimizer was given the model's alone. Or their layer is made
    inside `forward`, anew at each call, so that nothing it learns is kept. Or each update is too small for the
    precision of the weight and is rounded away.

    ## How it is told apart
    A frozen trunk under a new head is fine-tuning: what lies before the first layer that learns may be frozen. So may
    most of the model be, or many stretches of it (LoRA, adapters, prompts). An optimizer that holds the head alone is a
    linear probe: a note, unless what stays was never trained: whoever means that freezes it. A frozen trunk that looks
    new is a warning once the head has had its time, or learns nothing, and at once where nothing but biases and norms
    learns; soon where it is deep, or lies behind layers that learn: then the head is not meant to come first. It is a
    note where the head learns nearly all there is, as behind a reservoir. So is a decoder that was trained before,
    frozen behind an encoder from the first step on. A parameter that something else changes (a second optimizer, an
    average) is not frozen.

    ## What to do
    Build the optimizer after the last change to the model, from `model.parameters()`; put layers into
    `nn.ModuleList`; set `requires_grad_(True)` on what should learn.

    ## How to see that it is cured
    `before = p.detach().clone()`, one step, `(p != before).any()` is true for every parameter that should learn.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 2, "facts": {"graph.not_in_optimizer": ["head.weight", "head.bias"]}})
    >>> print(FrozenWeights().check(chart))
    step 2: WE01 frozen-weights (warning): head.weight, head.bias get gradients, but no optimizer holds them
    """

    code = "WE01"
    name = "frozen-weights"
    reads = (
        "tensors/update_ratio",
        "facts/loop.losses_without_step",
        "facts/loop.unstepped",
        "facts/graph.not_in_optimizer",
        "facts/graph.not_in_model",
        "facts/graph.idle",
        "facts/graph.resting",
        "facts/graph.copied",
        "facts/graph.made_anew",
        "facts/graph.criterion_left_out",
        "facts/graph.frozen",
        "update_lost",
    )
    suggests = ("add-parameters-to-optimizer", "unfreeze")
    references = ("https://pytorch.org/docs/stable/optim.html",)
    closes_after = 2

    lost: float = 0.95
    """Share of half-precision weights with a gradient that a step does not move."""
    lost_in_vain: float = 0.85
    """The same where the loss has not fallen at all."""
    lost_early: float = 0.6
    """The same at each sample since the start, when steps are longest; three quarters at most of them."""
    copies: int = 2
    """Samples in a row at which another model must have been trained."""
    soon: int = 60
    """Steps within which weights that learnt once were not put to rest on purpose."""
    frozen: float = 0.25
    """Share of the parameters that is frozen, where it looks as if never trained,"""
    patience: int = 300
    """and the steps for which it is: the head may have been meant to come first."""
    early: int = 40
    """Steps that are enough where layers before it learn, too, or it is deep: no method leaves that as it was drawn."""
    deep: int = 50
    """Tensors that do not learn, from which on a trunk is deep: random features are of a few layers."""
    samples: int = 4
    """Samples in a row at which weights must not have moved."""
    still: float = 0.5
    """Share of the weights that must not have moved: a slice of one may lie among units that rest."""

    def check(self, chart: Chart) -> Symptom | None:
        """Definite facts first, then weights that do not move though they have gradients and a learning rate."""
        unused = chart.fact("loop.losses_without_step")
        if unused and chart["lr"].count == 0 and not chart.fact("graph.idle"):  # of several optimizers, one may not
            message = f"{THROWN} {unused} times, and the optimizer has not stepped once"
            return self._said(chart, "critical", message, (), "loop.losses_without_step")
        if waiting := chart.fact("loop.unstepped"):
            message = f"at least {waiting} losses have come since the last step, and {UNSTEPPED}: step() is no longer "
            message += "called, or something skips it"
            return self._said(chart, "critical", message, (), "loop.unstepped")
        hidden = tuple(chart.fact("graph.not_in_model") or ())
        if hidden:
            message = f"{names_text(hidden)} takes part in the loss, but model.parameters() does not know its tensors"
            return self._said(chart, "warning", message, hidden, "graph.not_in_model")
        left = tuple(chart.fact("graph.not_in_optimizer") or ())
        if left:
            message = f"{names_text(left)} {'gets' if len(left) == 1 else 'get'} gradients, but no optimizer holds "
            message += "it" if len(left) == 1 else "them"
            probe = self._is_probe(chart, left)
            if chart["frozen_fresh"].latest > FRESH:
                message += ", and their weights look as if never trained"
            elif probe:
                message += "; if only the last layers shall learn, freeze the others to save their gradients"
            return self._said(chart, "info" if probe else "warning", message, left, "graph.not_in_optimizer")
        anew = chart.fact("graph.made_anew") or []
        if anew:
            message = (
                f"a layer with weights of {' × '.join(map(str, anew[0]))} is another one at each step: it is made "
            )
            message += "inside forward, and nothing that it learns is kept"
            return self._said(chart, "warning", message, (), "graph.made_anew")
        copied = chart.fact("graph.copied") or {}
        if copied.get("samples", 0) >= self.copies:
            message = (
                f"the loss is that of {copied['tensors']} other tensors of the same shapes, as a copy of the model"
            )
            message += " has them: no gradient reaches those that the optimizer holds"
            return self._said(chart, "critical", message, (), "graph.copied")
        return self._at_rest(chart) or self._untouched(chart) or self._rounded(chart) or self._unmoved(chart)

    def _at_rest(self, chart: Chart) -> Symptom | None:
        """Gradients that an optimizer does not apply, or does not get."""
        idle = tuple(chart.fact("graph.idle") or ())
        if idle:
            message = f"{names_text(idle)} get gradients, but the optimizer that holds them has not stepped once"
            return self._said(chart, "warning", message, idle, "graph.idle")
        outside = tuple(chart.fact("graph.criterion_left_out") or ())
        if outside:
            message = f"{names_text(outside)} of the loss function {'gets' if len(outside) == 1 else 'get'} gradients, "
            message += "but no optimizer holds " + ("it" if len(outside) == 1 else "them")
            return self._said(chart, "warning", message, outside, "graph.criterion_left_out")
        resting = chart.fact("graph.resting")
        if resting:
            since, where = int(resting["since"]), tuple(resting["tensors"])
            message = f"{names_text(where)} have had no gradient since step {since}, and their optimizer steps on"
            # What learnt for a while may have been put to rest on purpose, and its optimizer forgotten.
            alone = len(chart.context.get("optimizer") or ()) == 1  # then nothing learns any more
            grave = alone or since < self.soon
            return self._said(chart, "warning" if grave else "info", message, where, "graph.resting")
        return None

    def _untouched(self, chart: Chart) -> Symptom | None:
        """Weights that are frozen and should not be, or look as if they should not."""
        frozen = tuple(chart.fact("graph.frozen") or ())
        if frozen:
            message = f"{names_text(frozen)} {'is' if len(frozen) == 1 else 'are'} frozen behind layers that learn"
            trained = chart["frozen_fresh"].latest < 1 - FRESH and chart.facts["graph.frozen"].step <= 2
            waits = chart.step < 1 and not chart["frozen_fresh"]  # whether it was trained before, the first step tells
            return self._said(chart, "info" if trained or waits else "warning", message, frozen, "graph.frozen")
        share = chart.fact("graph.frozen_share", 0.0)
        if share >= self.frozen and chart["frozen_fresh"].latest > FRESH:
            message = f"{share_text(share)} of the parameters are frozen, and look as if never trained"
            behind = bool(chart.fact("graph.frozen_behind"))
            if behind:
                message += ", behind layers that learn"
            names = _still_tensors(chart)
            still = len(names)
            wait = self.early if behind or still >= self.deep else self.patience
            if 0 < still <= LAYER and not behind and _has_fallen(chart, share=0.8):
                wait = chart.step + 1  # one layer of random features
            alone = chart.step >= wait or only_biases_learn(chart) or "not-learning" in chart.open_episodes
            severity: Severity = "warning" if alone and not _has_fallen(chart) else "info"
            return self._said(chart, severity, message, names, "graph.frozen_share")
        return None

    def _rounded(self, chart: Chart) -> Symptom | None:
        lost = chart["update_lost"].last(self.samples)
        limit = self.lost if _has_learnt(chart) else self.lost_in_vain
        if lost.size < self.samples or not chart["lr"].latest > 0:
            return None
        since = int(chart["update_lost"].steps[-self.samples])
        if not float(lost.min()) > limit:
            if not self._is_rounded_from_the_start(chart):
                return None
            lost, limit, since = chart["update_lost"].values, self.lost_early, 0
        share = median(lost)
        message = f"{share:.1%} of the half-precision weights with a gradient stay as they are: steps are rounded away"
        return self.symptom(chart, "warning", message, value=share, limit=limit, since=since)

    def _is_rounded_from_the_start(self, chart: Chart, steps: int = 60) -> bool:
        """Whether most steps were lost at each sample, at a rate that is no longer rising."""
        lost, rates = chart["update_lost"], chart["lr"]
        if chart.step < steps or len(lost) < 2 * self.samples or lost.steps[0] > 2 or not rates.latest > 0:
            return False
        early = float(rates.values[0]) > 0.5 * rates.outline.highest  # in a warm-up steps are short
        return early and float(lost.values.min()) > self.lost_early and median(lost.values) > 0.75

    def _said(self, chart: Chart, severity: Severity, message: str, where: tuple[str, ...], key: str) -> Symptom:
        return self.symptom(chart, severity, message, where=where, since=chart.facts[key].step, confidence=0.95)

    def _is_probe(self, chart: Chart, left: tuple[str, ...]) -> bool:
        """Whether all that is left out comes before all that is held, and is more: a new head on a trunk that stays."""
        norms = chart.tensors("weight_norm").latest
        if norms.size != len(chart.names) or chart.fact("graph.thawed"):  # what was unfrozen is meant to learn
            return False
        if chart["frozen_fresh"].latest > FRESH:
            return False
        held = [index for index in range(norms.size) if norms[index] == norms[index]]
        out = [index for index, name in enumerate(chart.names) if name in left]
        moved = chart.tensors("update_ratio").matrix()
        if moved.shape[1:] == norms.shape and bool((moved[:, out] > 0).any()):
            return False  # an optimizer held them until lately
        return bool(held and out) and max(out) < min(held) and len(out) > len(held)

    def _unmoved(self, chart: Chart) -> Symptom | None:
        ratios, norms = chart.tensors("update_ratio").matrix(self.samples), chart.tensors("grad_norm").matrix()
        rates = [chart[name].latest for name in chart.vitals if name == "lr" or name.startswith("lr/")]
        if len(ratios) < self.samples or len(norms) < self.samples or norms.shape[1] != ratios.shape[1]:
            return None
        if ratios.shape[1] != len(chart.names) or not all(rate > 0 for rate in rates) or chart["skipped"].latest > 0:
            return None
        if "learning-rate-vanished" in chart.open_episodes or _has_stopped(chart):  # which says why
            return None
        weights = chart.tensors("weight_norm").latest
        least = FAINT * weights if weights.size == len(chart.names) else 0.0  # what a step of it adds is rounded away
        pushed = np.isfinite(ratios).all(axis=0) & (norms[-1] > least)
        unmoved = pushed & (ratios == 0).all(axis=0)
        sizes = chart.tensors("weight_norm").matrix(self.samples)
        if sizes.shape == ratios.shape:  # ratios are of a part of a large tensor: a few rows may move elsewhere
            unmoved &= ~(sizes.max(axis=0) > sizes.min(axis=0))
        unmoved &= ~(_last_moves(chart.tensors("update_ratio").matrix()) < ROUNDING)
        if not unmoved.any() or unmoved.sum() < self.still * pushed.sum():
            return None
        where = tuple(chart.names[index] for index in np.nonzero(unmoved)[0])
        since = chart.tensors("update_ratio").rows[-self.samples][0]
        message = f"{unmoved.sum()} of {pushed.sum()} tensors have gradients and do not move: {names_text(where)}"
        return self.symptom(chart, "warning", message, where=where, since=since)


def _last_moves(ratios: Array) -> Array:
    """The share of itself by which each tensor moved when it last did; infinite for one that never has.

    >>> _last_moves(np.array([[1e-3, 0.0], [2e-8, 0.0], [0.0, 0.0]])).tolist()
    [2e-08, inf]
    """
    moved = ratios > 0
    last = len(ratios) - 1 - np.argmax(moved[::-1], axis=0)
    return np.where(moved.any(axis=0), ratios[last, np.arange(ratios.shape[1])], np.inf)


def _has_stopped(chart: Chart) -> bool:
    """Whether an optimizer that looks whether it has arrived took steps before, and takes none now."""
    used = [str(group.get("optimizer")) for group in chart.groups]
    moved = chart.tensors("update_ratio").matrix()
    return bool(used) and all(name == "LBFGS" for name in used) and bool((moved > 0).any())


def share_text(share: float) -> str:
    """A share in per cent, which is not rounded to all.

    >>> share_text(0.5), share_text(0.9971)
    ('50%', '99.7%')
    """
    return f"{share:.0%}" if share < 0.995 else f"{share:.1%}"


def _still_tensors(chart: Chart) -> tuple[str, ...]:
    """The tensors that have no gradient."""
    norms = chart.tensors("grad_norm").latest
    return (
        tuple(chart.names[index] for index in np.flatnonzero(np.isnan(norms))) if norms.size == len(chart.names) else ()
    )


def only_biases_learn(chart: Chart) -> bool:
    """Whether every tensor that gets a gradient is a bias or a norm's: no method leaves just those of a new model."""
    kinds = dict(zip(chart.fact("modules.names", ()), chart.fact("modules.kinds", ()), strict=False))
    norms = chart.tensors("grad_norm").latest
    learning = [name for name, norm in zip(chart.names, norms.tolist(), strict=False) if norm > 0]
    return bool(learning) and all(
        name.endswith("bias") or "Norm" in kinds.get(name.rpartition(".")[0], "") for name in learning
    )


def _has_fallen(chart: Chart, share: float = 0.05) -> bool:
    """Whether no more than this share of a positive loss is left."""
    loss = chart["loss"]
    return bool(loss) and 0 < loss.baseline(128).recent < share * loss.first


def _has_learnt(chart: Chart, steps: int = 100) -> bool:
    """Whether the loss has fallen by more than chance, or it is too early to say."""
    losses = chart["loss"]
    if losses.count < steps:
        return True
    levels = outline_levels(losses)
    gain, doubt = trend_gain(levels)
    return gain > 3 * doubt and gain > 0.01 * abs(float(levels.mean()))
