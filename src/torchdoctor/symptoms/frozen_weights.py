"""WE01 frozen-weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text, share_text
from torchdoctor.series import Array, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import outline_levels, trend_gain

FAINT = 1e-7
"""A gradient norm below this share of the weight norm is left to `gradient-vanishing` and `no-gradient`."""
ROUNDING = 1e-6
"""A tensor whose last update was below this share of its norm has come to rest: a smaller update is rounded away."""
LAYER = 2
"""Tensors of one layer: a weight and a bias."""
THROWN = "gradients were computed and thrown away"
UNSTEPPED = "the optimizer has not stepped again"
"""Phrases of the messages about gradients that are never used: from the start, and from some step on."""
NO_RATE = "has had a learning rate of 0 since the first step"
"""Phrase of the message about a parameter group that never steps."""
JUDGED = ("Linear", "Conv", "RNN", "LSTM", "GRU")
"""Parts of the names of the layers of which `weights_fresh` is a share."""
LAG = 10
"""Steps by which an optimizer may begin later than the first one, or have stepped earlier."""
FRESH = 0.7
"""If more than this share of the layers that do not learn look freshly initialized, they were never trained."""


@dataclass(frozen=True)
class FrozenWeights(Detector):
    """Weights that should learn never change.

    ## What it means
    The weights get gradients, but nothing applies them: `optimizer.step()` is missing, no optimizer holds them (they
    belong to the loss function, or were replaced after the optimizer was built), or they sit in a plain Python list
    that `parameters()` does not search. Or they are frozen (`requires_grad=False`) between layers that learn, or since
    another player's turn. Or the learning rate of their parameter group is 0. Or `forward` creates their layer anew at
    each call. Or each update is too small for the weight's precision and is rounded away.

    ## How it is told apart
    Freezing is normal in fine-tuning: layers before the first one that learns may be frozen, and so may most of the
    model (LoRA, adapters, prompts). A parameter that something else changes (a second optimizer, an average) is not
    frozen. These are treated differently:

    - An optimizer that holds only the head is a linear probe: info, unless the other layers were never trained.
    - Frozen layers that were never trained are a warning after a few hundred steps. It comes earlier if the loss does
      not fall, only biases and norms learn, they are deep, or they lie behind layers that learn. It stays info if the
      head alone brings the loss near zero, as in a reservoir.
    - A decoder that was trained before and is frozen behind an encoder from the first step on is info.
    - A parameter group at learning rate 0 is judged like frozen layers: silent if its layers were trained before, or if
      a scheduler is going to raise it.

    ## What to do
    Build the optimizer after the last change to the model, from `model.parameters()`, and step the new one: it is
    watched from then on. Put layers into `nn.ModuleList`. Call `requires_grad_(True)` on what should learn, and give
    every parameter group a learning rate above 0.

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
    """Share of half-precision weights with a gradient that a step leaves unchanged."""
    lost_in_vain: float = 0.85
    """The same if the loss has not fallen at all."""
    lost_early: float = 0.6
    """The same at every sample since the start, when steps are longest. The median must be above 75 % as well."""
    copies: int = 2
    """Samples in a row at which the loss must come from another model."""
    soon: int = 60
    """Weights that stop getting gradients before this step are a warning: it is unlikely to be on purpose."""
    frozen: float = 0.25
    """Share of the parameters that must be frozen if they look as if never trained,"""
    patience: int = 300
    """and the steps before that raises a warning: the head may be meant to train first."""
    early: int = 40
    """Steps that are enough if layers before the frozen ones learn, or if many are frozen."""
    deep: int = 50
    """Number of frozen tensors that counts as many: random features have only a few layers."""
    samples: int = 4
    """Samples in a row at which weights must not have changed."""
    still: float = 0.5
    """Share of the tensors that must not have changed: the sampled part of one may belong to inactive units."""

    def check(self, chart: Chart) -> Symptom | None:
        """Definite facts first, then weights that do not change despite gradients and a learning rate."""
        unused = chart.fact("loop.losses_without_step")
        if unused and chart["lr"].count == 0 and not chart.fact("graph.idle"):  # of several optimizers, one may not
            message = f"{THROWN} {unused} times, and the optimizer has not stepped once"
            return self._said(chart, "critical", message, (), "loop.losses_without_step")
        if waiting := chart.fact("loop.unstepped"):
            message = (
                f"at least {waiting} losses were logged since the last step, but {UNSTEPPED}: step() is no longer "
            )
            message += "called or is skipped, or the loop now uses another optimizer than the one given to Doctor"
            return self._said(chart, "critical", message, (), "loop.unstepped")
        hidden = tuple(chart.fact("graph.not_in_model") or ())
        if hidden:
            message = f"{names_text(hidden)} contributes to the loss, but model.parameters() does not list its tensors"
            return self._said(chart, "warning", message, hidden, "graph.not_in_model")
        left = tuple(chart.fact("graph.not_in_optimizer") or ())
        if left:
            message = f"{names_text(left)} {'gets' if len(left) == 1 else 'get'} gradients, but no optimizer holds "
            message += "it" if len(left) == 1 else "them"
            probe = self._is_probe(chart, left)
            if chart["frozen_fresh"].latest > FRESH:
                message += ", and their weights look as if never trained"
            elif probe:
                message += "; if only the last layers should learn, freeze the others to save their gradients"
            if built := chart.fact("loop.built"):
                message += f"; the {built[1]} that was built at step {built[0]} has not stepped"
            return self._said(chart, "info" if probe else "warning", message, left, "graph.not_in_optimizer")
        anew = chart.fact("graph.made_anew") or []
        if anew:
            message = (
                f"a layer with weights of {' × '.join(map(str, anew[0]))} is created anew at each step inside forward: "
            )
            message += "nothing that it learns is kept"
            return self._said(chart, "warning", message, (), "graph.made_anew")
        copied = chart.fact("graph.copied") or {}
        if copied.get("samples", 0) >= self.copies:
            message = (
                f"the loss comes from {copied['tensors']} other tensors of the same shapes, as in a copy of the model: "
            )
            message += "no gradient reaches those that the optimizer holds"
            return self._said(chart, "critical", message, (), "graph.copied")
        found = self._at_rest(chart) or self._untouched(chart) or self._rounded(chart)
        return found or self._held_at_zero(chart) or self._unmoved(chart)

    def _at_rest(self, chart: Chart) -> Symptom | None:
        """Gradients that an optimizer does not apply, or no longer gets."""
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
            message = f"{names_text(where)} have had no gradient since step {since}, but their optimizer keeps stepping"
            # What learned for a while may have been frozen on purpose, and its optimizer forgotten.
            alone = len(chart.context.get("optimizer") or ()) == 1  # then nothing learns any more
            grave = alone or since < self.soon
            return self._said(chart, "warning" if grave else "info", message, where, "graph.resting")
        return None

    def _untouched(self, chart: Chart) -> Symptom | None:
        """Weights that are frozen and should not be, or probably should not."""
        frozen = tuple(chart.fact("graph.frozen") or ())
        if frozen:
            message = f"{names_text(frozen)} {'is' if len(frozen) == 1 else 'are'} frozen behind layers that learn"
            trained = chart["frozen_fresh"].latest < 1 - FRESH and chart.facts["graph.frozen"].step <= 2
            waits = chart.step < 1 and not chart["frozen_fresh"]  # after step 0 it is known whether it was trained
            return self._said(chart, "info" if trained or waits else "warning", message, frozen, "graph.frozen")
        share = chart.fact("graph.frozen_share", 0.0)
        if share >= self.frozen and chart["frozen_fresh"].latest > FRESH:
            message = f"{share_text(share)} of the parameters are frozen, and look as if never trained"
            behind = bool(chart.fact("graph.frozen_behind"))
            if behind:
                message += ", behind layers that learn"
            names = _still_tensors(chart)
            severity = self._gravity(chart, len(names), behind, only_biases_learn(chart))
            return self._said(chart, severity, message, names, "graph.frozen_share")
        return None

    def _gravity(self, chart: Chart, still: int, behind: bool = False, odd: bool = False) -> Severity:
        """How bad it is that so many tensors stay as they were initialized; `odd`: no method does that."""
        wait = self.early if behind or still >= self.deep else self.patience
        if 0 < still <= LAYER and not behind and _has_fallen(chart, share=0.8):
            wait = chart.step + 1  # one layer of random features
        alone = chart.step >= wait or odd or "not-learning" in chart.open_episodes
        return "warning" if alone and not _has_fallen(chart) else "info"

    def _held_at_zero(self, chart: Chart) -> Symptom | None:
        """New layers in a parameter group whose learning rate has been 0 from the start, while others learn."""
        groups = groups_at_zero(chart)
        if not groups:
            return None
        ratios, sizes, norms = (chart.tensors(name).matrix() for name in ("update_ratio", "weight_norm", "grad_norm"))
        if len(ratios) < self.samples or ratios.shape != sizes.shape:
            return None
        if norms.shape[1] != ratios.shape[1] or ratios.shape[1] != len(chart.names):
            return None
        moved = (ratios > 0).any(axis=0) | (sizes.max(axis=0) > sizes.min(axis=0))  # of a zero weight only the latter
        still = ~moved & np.isfinite(sizes).all(axis=0) & (norms[-1] > 0)
        where = tuple(chart.names[index] for index in np.flatnonzero(still))
        if not moved.any() or not self._are_new(chart, where):
            return None
        called = " and ".join(_group_text(chart, number) for number in groups)
        message = (
            f"{called} {NO_RATE}: {names_text(where)} have gradients but do not change, and look as if never trained"
        )
        since = chart["lr"].outline.start
        return self.symptom(chart, self._gravity(chart, len(where)), message, where=where, since=since, confidence=0.95)

    def _are_new(self, chart: Chart, where: tuple[str, ...]) -> bool:
        """Whether enough of the layers have their weights among these, and most of those were never trained.

        Only the share of all layers is known that look new: the others may all be among these.
        """
        kinds = zip(chart.fact("modules.names", ()), chart.fact("modules.kinds", ()), strict=False)
        judged = {name for name, kind in kinds if any(part in kind for part in JUDGED)}
        owners = {name: name.rpartition(".")[0] for name in chart.names if "weight" in name}
        layers = judged & set(owners.values())
        still = judged & {owners[name] for name in where if name in owners}
        share, new = len(still) / max(1, len(layers)), chart["weights_fresh"].first
        return share >= self.frozen and new > FRESH and 2 * (1 - new) < share

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
        message = f"{share_text(share, 1)} of the half-precision weights with a gradient do not change: steps are "
        message += "rounded away"
        return self.symptom(chart, "warning", message, value=share, limit=limit, since=since)

    def _is_rounded_from_the_start(self, chart: Chart, steps: int = 60) -> bool:
        """Whether most updates were rounded away at each sample since the start, and there is no warm-up."""
        lost, rates = chart["update_lost"], chart["lr"]
        if chart.step < steps or len(lost) < 2 * self.samples or lost.steps[0] > 2 or not rates.latest > 0:
            return False
        early = float(rates.values[0]) > 0.5 * rates.outline.highest  # steps are short during a warm-up
        return early and float(lost.values.min()) > self.lost_early and median(lost.values) > 0.75

    def _said(self, chart: Chart, severity: Severity, message: str, where: tuple[str, ...], key: str) -> Symptom:
        return self.symptom(chart, severity, message, where=where, since=chart.facts[key].step, confidence=0.95)

    def _is_probe(self, chart: Chart, left: tuple[str, ...]) -> bool:
        """Whether all tensors left out come before those held, and are more: a new head on a fixed trunk."""
        norms = chart.tensors("weight_norm").latest
        if norms.size != len(chart.names) or chart.fact("graph.thawed"):  # unfrozen tensors are meant to learn
            return False
        if chart["frozen_fresh"].latest > FRESH:
            return False
        held = [index for index in range(norms.size) if norms[index] == norms[index]]
        out = [index for index, name in enumerate(chart.names) if name in left]
        moved = chart.tensors("update_ratio").matrix()
        if moved.shape[1:] == norms.shape and bool((moved[:, out] > 0).any()):
            return False  # an optimizer held them until recently
        return bool(held and out) and max(out) < min(held) and len(out) > len(held)

    def _unmoved(self, chart: Chart) -> Symptom | None:
        ratios, norms = chart.tensors("update_ratio").matrix(self.samples), chart.tensors("grad_norm").matrix()
        rates = [chart[name].latest for name in chart.vitals if name == "lr" or name.startswith("lr/")]
        if len(ratios) < self.samples or len(norms) < self.samples or norms.shape[1] != ratios.shape[1]:
            return None
        if ratios.shape[1] != len(chart.names) or not all(rate > 0 for rate in rates) or chart["skipped"].latest > 0:
            return None
        if "learning-rate-vanished" in chart.open_episodes or _has_stopped(chart):  # that explains it already
            return None
        weights = chart.tensors("weight_norm").latest
        least = FAINT * weights if weights.size == len(chart.names) else 0.0  # a smaller step is rounded away
        pushed = np.isfinite(ratios).all(axis=0) & (norms[-1] > least)
        unmoved = pushed & (ratios == 0).all(axis=0)
        if not unmoved.any():
            return None
        sizes = chart.tensors("weight_norm").matrix(self.samples)
        if sizes.shape == ratios.shape:  # of a large tensor only a part is measured: other rows may change
            unmoved &= ~(sizes.max(axis=0) > sizes.min(axis=0))
        unmoved &= ~(_last_moves(chart.tensors("update_ratio").matrix()) < ROUNDING)
        if not unmoved.any() or unmoved.sum() < self.still * pushed.sum():
            return None
        where = tuple(chart.names[index] for index in np.nonzero(unmoved)[0])
        since = chart.tensors("update_ratio").rows[-self.samples][0]
        message = f"{unmoved.sum()} of {pushed.sum()} tensors have gradients but do not change: {names_text(where)}"
        return self.symptom(chart, "warning", message, where=where, since=since)


def groups_at_zero(chart: Chart) -> list[int]:
    """The parameter groups whose learning rate has been 0 from the start, while that of another has not.

    Not those that a scheduler holds at 0 and is going to raise. The learning rates of the first group are always
    recorded, those of another group only where they differ from it.

    >>> groups_at_zero(Chart.of(**{"lr": [0.0] * 9, "lr/1": [1e-3] * 9}))
    [0]
    >>> groups_at_zero(Chart.of(lr=[0.0] * 9))
    []
    """
    numbers = [0, *(int(name[3:]) for name in chart.vitals if name.startswith("lr/") and name[3:].isdigit())]
    rates = {number: chart[f"lr/{number}" if number else "lr"] for number in sorted(numbers)}
    if not any(series.outline.highest > 0 for series in rates.values()):
        return []
    begun, now = chart["lr"].outline.start + LAG, chart["lr"].step - LAG
    return [
        number
        for number, series in rates.items()
        if series
        and series.lowest == series.outline.highest == 0
        and not planned_rate(chart, number) > 0
        and series.outline.start <= begun
        and series.step >= now
    ]


def _group_text(chart: Chart, number: int) -> str:
    """What a parameter group is called: by its number, and that of its optimizer if there are several."""
    sizes = [int(item.get("groups", 1)) for item in chart.context.get("optimizer") or () if isinstance(item, dict)]
    place = 0
    while place < len(sizes) - 1 and number >= sizes[place]:
        number, place = number - sizes[place], place + 1
    return f"parameter group {number}" + (f" of optimizer {place}" if len(sizes) > 1 else "")


def planned_rate(chart: Chart, number: int = 0) -> float:
    """The learning rate that a scheduler has written into a parameter group as its goal; 0 if there is none."""
    group = chart.groups[number] if number < len(chart.groups) else {}
    rates = [group.get(name) for name in ("initial_lr", "max_lr")]
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


def _last_moves(ratios: Array) -> Array:
    """The update ratio of each tensor when it last changed; infinite for one that never has.

    >>> _last_moves(np.array([[1e-3, 0.0], [2e-8, 0.0], [0.0, 0.0]])).tolist()
    [2e-08, inf]
    """
    moved = ratios > 0
    last = len(ratios) - 1 - np.argmax(moved[::-1], axis=0)
    return np.where(moved.any(axis=0), ratios[last, np.arange(ratios.shape[1])], np.inf)


def _has_stopped(chart: Chart) -> bool:
    """Whether LBFGS, which stops by itself when it has converged, took steps before."""
    used = [str(group.get("optimizer")) for group in chart.groups]
    moved = chart.tensors("update_ratio").matrix()
    return bool(used) and all(name == "LBFGS" for name in used) and bool((moved > 0).any())


def _still_tensors(chart: Chart) -> tuple[str, ...]:
    """The tensors that have no gradient."""
    norms = chart.tensors("grad_norm").latest
    return (
        tuple(chart.names[index] for index in np.flatnonzero(np.isnan(norms))) if norms.size == len(chart.names) else ()
    )


def only_biases_learn(chart: Chart) -> bool:
    """Whether only biases and norms get gradients: no method trains just those in a new model."""
    kinds = dict(zip(chart.fact("modules.names", ()), chart.fact("modules.kinds", ()), strict=False))
    norms = chart.tensors("grad_norm").latest
    learning = [name for name, norm in zip(chart.names, norms.tolist(), strict=False) if norm > 0]
    return bool(learning) and all(
        name.endswith("bias") or "Norm" in kinds.get(name.rpartition(".")[0], "") for name in learning
    )


def _has_fallen(chart: Chart, share: float = 0.05) -> bool:
    """Whether a positive loss has fallen below this share of its first value."""
    loss = chart["loss"]
    return bool(loss) and 0 < loss.baseline(128).recent < share * loss.first


def _has_learnt(chart: Chart, steps: int = 100) -> bool:
    """Whether the loss has fallen by more than its noise, or it is too early to say."""
    losses = chart["loss"]
    if losses.count < steps:
        return True
    levels = outline_levels(losses)
    gain, doubt = trend_gain(levels)
    return gain > 3 * doubt and gain > 0.01 * abs(float(levels.mean()))
