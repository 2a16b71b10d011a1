"""GP02 gradients-not-cleared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class GradientsNotCleared(Detector):
    """Gradients are not cleared when they should be, cleared when they should not be, or summed without averaging.

    ## What it means
    `backward()` adds to `p.grad`. Without `zero_grad()`, each step applies the sum of all gradients since the start,
    like momentum that never decays. If gradients are cleared between the micro-batches of one step, all but the last
    are lost. If they are summed over k micro-batches without dividing by k, the step is k times as long as intended.

    ## How it is told apart
    It checks at sampled steps whether the old gradients are still there; `set_to_none`, zeroing in place,
    `model.zero_grad()` and closures all count as clearing. Several backward passes before one step are normal
    accumulation, and losses with different names are rightly summed, as parts of one objective. Not judged are weights
    that change between two backward passes (SAM), gradients that the loop combines itself, gradients taken for the
    inputs (an adversarial attack), and gradients that another player or an actor leaves in its critic.

    ## What to do
    Call `optimizer.zero_grad()` once per `optimizer.step()`, right after it. Call `(loss / k).backward()` for each of k
    micro-batches.

    ## How to see that it is cured
    `p.grad` is None or zero before the first `backward()` of each step, and the gradient norm stops growing with the
    number of steps.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 4, "facts": {"zeroing.kept": [3], "zeroing.cleared": [0]}})
    >>> print(GradientsNotCleared().check(chart))
    step 4: GP02 gradients-not-cleared (critical): gradients are never cleared: each step applies the sum of all so far
    """

    code = "GP02"
    name = "gradients-not-cleared"
    reads = ("tensors/grad_norm", "facts/zeroing.kept", "facts/zeroing.between_backwards", "loss_weight")
    suggests = ("fix-zero-grad", "zero-gradients", "fix-accumulation")
    references = (
        "https://pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html",
        "https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    )
    closes_after = 2

    samples: int = 3
    """Sampled steps that must show it."""
    part: float = 0.15
    """Weight below which the only loss of a step looks as if it were divided for accumulation."""
    lost: float = 0.1
    """Share of steps at which unused gradients were cleared, above which it is reported: bad batches are rarer."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check for gradients never or not always cleared, cleared too often, and losses weighted wrongly."""
        facts = [chart.fact(f"zeroing.{key}") or () for key in ("kept", "cleared", "between_backwards")]
        several = len(facts[0]) > 1
        for number, (kept, cleared) in enumerate(zip(facts[0], facts[1], strict=False)):
            whose = f" of optimizer {number}" if several else ""
            if kept >= self.samples and is_emptied(chart):
                continue
            if kept >= self.samples and not cleared:
                message = f"gradients{whose} are never cleared: each step applies the sum of all so far"
                return self._said(chart, "critical", message, "zeroing.kept")
            if kept >= self.samples:
                message = f"gradients{whose} are cleared at some steps only: other steps apply old gradients again"
                return self._said(chart, "warning", message, "zeroing.kept")
        for number, mixed in enumerate(chart.fact("zeroing.mixed") or ()):
            if several and mixed >= self.samples:
                message = f"gradients of optimizer {number} mix two losses: those from before another optimizer's step "
                message += "are not cleared, and the next backward pass adds to them"
                return self._said(chart, "warning", message, "zeroing.mixed")
        backwards = max(chart.fact("zeroing.backwards") or (0,))
        # Two players of a GAN rightly clear each other's gradients between backward passes; so does a loop whose first
        # backward pass is for the inputs only, as in an adversarial attack.
        if backwards > 1 and not max(facts[2], default=0) and climbs_with_inputs(chart):
            message = "the negated loss that is used to change the inputs leaves its gradients in the weights: they "
            message += "counteract those of the training loss"
            return self._said(chart, "warning", message, "zeroing.backwards")
        several = several or bool(chart.fact("data.differentiated"))
        if not several and max(facts[2], default=0) >= self.samples and backwards > 1:
            message = f"gradients are cleared between the {backwards} backward passes of a step: earlier ones are lost"
            return self._said(chart, "warning", message, "zeroing.between_backwards")
        if not several and (share := share_without_step(chart, self.samples)) > self.lost:
            message = f"at {share_text(share)} of the steps checked, gradients of an earlier batch had been cleared "
            message += "unused: optimizer.step() is skipped for some batches"
            return self._said(chart, "warning", message, "zeroing.between_backwards")
        return self._weighted(chart, backwards)

    def _weighted(self, chart: Chart, backwards: int) -> Symptom | None:
        """Check the weight of the loss at each of k micro-batches: 1/k is right for a mean."""
        weights, most = chart["loss_weight"].last(self.samples), most_backwards(chart)
        if most == 1:
            return self._divided(chart)
        if backwards < 2 or weights.size < self.samples or chart.fact("loss.reduction") == "sum":
            return None
        weight, steps = median(weights), chart["loss_weight"].steps
        adaptive = any("SGD" not in str(group.get("optimizer", "")) for group in chart.groups)  # the scale cancels out
        severity: Severity = "info" if adaptive else "warning"
        if float(np.abs(weights - 1).max()) < 0.1:
            message = f"{backwards} backward passes are summed, not averaged: steps are {backwards} times as long"
        elif 0 < weight * most < 0.6:
            share = number_text(weight)
            message = f"each of the {most} losses of a step has weight {share}, not 1/{most}: divided too often"
        else:
            return None
        return self.symptom(chart, severity, message, value=weight, limit=1 / backwards, since=int(steps[0]))

    def _divided(self, chart: Chart) -> Symptom | None:
        """Check for a single loss per step that is divided as if for accumulation, with steps that are too short."""
        weights = chart["loss_weight"].last(self.samples)
        adaptive = any("SGD" not in str(group.get("optimizer", "")) for group in chart.groups)
        idle = "not-learning" in chart.open_episodes or "slow-learning" in chart.open_episodes
        if weights.size < self.samples or adaptive or not idle or not 0 < float(weights.max()) < self.part:
            return None
        share = number_text(median(weights))
        message = f"the only loss of a step has weight {share}, as if it were one of many: steps are that much shorter"
        since = int(chart["loss_weight"].steps[0])
        return self.symptom(chart, "warning", message, value=median(weights), limit=self.part, since=since)

    def _said(self, chart: Chart, severity: Severity, message: str, key: str) -> Symptom:
        return self.symptom(chart, severity, message, since=chart.facts[key].step, confidence=0.97)


def is_emptied(chart: Chart) -> bool:
    """Whether every gradient was exactly zero at every step so far: then nothing old is applied.

    >>> is_emptied(Chart.of(grad_norm=[0.0] * 5)), is_emptied(Chart.of(grad_norm=[0.0, 0.1])), is_emptied(Chart())
    (True, False, False)
    """
    norms = chart["grad_norm"]
    return norms.count > 0 and not norms.nonfinite and norms.outline.highest == 0


def most_backwards(chart: Chart) -> int:
    """The most backward passes before a step among the latest samples: the last step of an epoch may have fewer.

    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 4, "facts": {"zeroing.backwards": [2], "zeroing.most_backwards": [4]}})
    >>> most_backwards(chart), most_backwards(Chart())
    (4, 0)
    """
    known = (chart.fact(f"zeroing.{key}") for key in ("most_backwards", "backwards"))
    return max((count for counts in known for count in counts or ()), default=0)


def climbs_with_inputs(chart: Chart, least: int = 12) -> bool:
    """Whether one backward pass of a step is that of a negated loss, used to change the inputs."""
    turned = "negated" in (chart.fact("loss.lint") or ())
    return turned and bool(chart.fact("data.differentiated")) and chart["loss"].count > least


def share_without_step(chart: Chart, samples: int = 3) -> float:
    """The share of sampled steps before which unused gradients were cleared; 0 if this is rare."""
    found = chart.facts.get("zeroing.between_backwards")
    times = max(found.value, default=0) if found is not None else 0
    if found is None or times < samples:
        return 0.0
    looked = max(int((chart[vital].steps <= found.step).sum()) for vital in ("input_checksum", "host_memory"))
    return times / looked if looked >= 2 * samples else 0.0
