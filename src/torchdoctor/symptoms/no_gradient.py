"""GP01 no-gradient."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text, number_text
from torchdoctor.series import TensorSeries, median
from torchdoctor.symptoms.detector import Detector
from torchdoctor.symptoms.progress import Progress, is_game

FLAT = 25
"""Steps in a row without any gradient after which the run counts as stuck."""
UNDERFLOW = 2.0**-14
"""Loss scale below which float16 rounds gradients to zero: its smallest normal number."""
BRANCH = re.compile(r"(?:.*?\.)?\d+\.")
"""A tensor name up to its first number: the name of one of several parallel branches."""


@dataclass(frozen=True)
class NoGradient(Detector):
    """Trainable parameters never get a gradient, or their gradient is always exactly zero.

    ## What it means
    The loss does not depend on them: a `detach()`, `.data`, `.item()`, `torch.no_grad()` or a conversion to NumPy cuts
    the graph, `backward()` is never called, or every path to them is blocked (dead ReLUs, a mask that hides all).

    ## How it is told apart
    Parameters may lack a gradient at some steps (routing, alternating tasks). Frozen ones (`requires_grad=False`) need
    none. In LoRA's A and in zero-initialized branches it is zero at step 0 only. These are reported as info:

    - parameters whose module never runs: they are unused;
    - parts of the last of several equal blocks, if they get a gradient in the block before: they serve a next block;
    - biases whose weights do learn: a loss of derivatives, such as forces, does not depend on a shift.

    These are warnings as well:

    - At least half of the experts of a mixture have never been chosen.
    - Branches never run, while one beside them runs as often as all of them together should.
    - The loss and all gradients have been zero since the first step.
    - The loss is far from zero, but every gradient has been exactly zero for 25 steps. With a loss scale that has
      fallen to almost nothing, float16 rounds them to zero, which `skipped-steps` reports.
    - The first layers had a gradient at every sample and no longer have one, while later layers still learn. A head
      that is no longer used is not reported.

    ## What to do
    Walk back from the loss: `print(loss.grad_fn.next_functions)`. Remove what cuts the graph. Remove unused modules
    from the model, or freeze them.

    ## How to see that it is cured
    After `loss.backward()` this prints nothing:
    `[n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]`.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 2, "facts": {"graph.absent": ["encoder.weight"],
    ...                                                  "graph.cut": ["encoder.weight"]}})
    >>> NoGradient().check(chart).message
    'encoder.weight never gets a gradient, although its module runs: it is unused, or cut off from the loss'
    """

    code = "GP01"
    name = "no-gradient"
    reads = ("tensors/grad_norm", "facts/graph.detached", "facts/graph.absent", "facts/graph.cut")
    suggests = ("reattach-graph",)
    references = ("https://pytorch.org/docs/stable/notes/autograd.html",)
    closes_after = 2

    samples: int = 5
    """Samples needed; a gradient must have been exactly zero at every sample since the start of the run."""

    span: int = 60
    """Steps that these samples must span if other gradients are not zero."""
    settled: int = 45
    """Steps after which experts that were never chosen are reported."""

    def check(self, chart: Chart) -> Symptom | None:
        """Check facts about the graph first, then gradients of exactly zero."""
        if chart.fact("graph.detached"):
            since = chart.facts["graph.detached"].step
            return self.symptom(chart, "critical", "no parameter gets a gradient: nothing is learned", since=since)
        cut = tuple(chart.fact("graph.cut") or ())
        if cut:
            verb = "gets" if len(cut) == 1 else "get"
            runs = "its module runs" if len(cut) == 1 else "their modules run"
            message = f"{names_text(cut)} never {verb} a gradient, although {runs}: "
            message += f"{'it is' if len(cut) == 1 else 'they are'} unused, or cut off from the loss"
            severity: Severity = "warning"
            if all(name.endswith("bias") and f"{name[:-4]}weight" in set(chart.names) - set(cut) for name in cut):
                severity, message = "info", message + "; a loss of derivatives does not depend on a shift"
            elif _ends_a_chain(cut, chart.names):
                severity, message = "info", message + "; only blocks before the last one need it"
            return self.symptom(chart, severity, message, where=cut, since=chart.facts["graph.cut"].step)
        zero, since = self._zero(chart)
        if zero:
            everything = not (chart.tensors("grad_norm").latest > 0).any()
            subject = "every gradient" if everything else f"the gradient of {names_text(zero)}"
            message = f"{subject} is exactly zero at each of the {len(chart.tensors('grad_norm').rows)} steps checked"
            if fed_with_nothing(chart, zero):
                message += ", but the bias has one: the inputs of the layer are all zeros"
            return self.symptom(chart, "critical" if everything else "warning", message, where=zero, since=since)
        if is_flat(chart):
            message = f"every gradient is exactly zero at each of the last {FLAT} steps, and the loss is still "
            message += f"{number_text(median(chart['loss'].last(FLAT)))}: it no longer depends on the outputs"
            norms = chart["grad_norm"]
            alive = np.flatnonzero(norms.values > 0)
            first = min(int(alive[-1]) + 1, len(norms) - 1) if alive.size else 0
            return self.symptom(chart, "warning", message, value=0.0, since=int(norms.steps[first]))
        if is_at_nothing(chart):
            message = "the loss and all gradients have been about zero since the first step: the loss compares "
            message += "something with itself, or has no target"
            return self.symptom(chart, "warning", message, since=int(chart["loss"].steps[0]))
        lost, since = cut_off(chart)
        if lost:
            message = (
                f"{names_text(lost)} had a gradient at every step checked, but none since step {since}, while the "
            )
            message += "layers after them still learn"
            return self.symptom(chart, "warning", message, where=lost, since=since)
        return self._unused(chart)

    def _unused(self, chart: Chart) -> Symptom | None:
        """Parameters that are never used: a branch runs in their place, experts are not chosen, or a module is idle."""
        absent = tuple(chart.fact("graph.absent") or ())
        stand_in, times = stands_in(chart)
        if stand_in:
            message = f"{names_text(absent)} never run, while {stand_in} beside them runs {times} times per forward "
            message += "pass: it is called in their place"
            return self.symptom(chart, "warning", message, where=absent, since=chart.facts["graph.absent"].step)
        chosen, experts = experts_used(chart)
        if 0 < 2 * chosen <= experts and chart.step >= self.settled:
            verb = "has" if chosen == 1 else "have"
            message = f"of {experts} experts that a layer scores, only {chosen} {verb} ever been chosen"
            return self.symptom(chart, "warning", message, where=absent, since=chart.facts["graph.absent"].step)
        if absent:
            verb = "is" if len(absent) == 1 else "are"
            message = f"{names_text(absent)} {verb} trainable, but never used"
            return self.symptom(chart, "info", message, where=absent, since=chart.facts["graph.absent"].step)
        return None

    def _zero(self, chart: Chart) -> tuple[tuple[str, ...], int]:
        """Weights whose gradient was exactly zero at every sample, and the first step; all samples must be kept."""
        sampled: TensorSeries = chart.tensors("grad_norm")
        rows = sampled.matrix()
        known_from_the_start = len(sampled.rows) < (sampled.rows.maxlen or 0) or self.name in chart.open_episodes
        if len(rows) < self.samples or rows.shape[1] != len(chart.names) or not known_from_the_start:
            return (), 0
        if sampled.rows[-1][0] - sampled.rows[0][0] < self.span and (sampled.latest > 0).any():
            return (), 0  # a loss term may have weight zero in the first steps
        never = np.nonzero((rows == 0).all(axis=0))[0]
        # The gradient of a bias before a normalization layer is always zero.
        biases = ("bias", *single_columns(chart))
        names = tuple(chart.names[index] for index in never if not chart.names[index].endswith(biases))
        return names, sampled.rows[0][0]


def cut_off(chart: Chart, before: int = 4, samples: int = 2, span: int = 20) -> tuple[tuple[str, ...], int]:
    """The first layers, if they lost the gradient they had at every sample while later layers kept theirs; and when.

    A head that is no longer used comes last, players of a game and experts lack a gradient at times, and layers frozen
    on purpose do not require one: none of these is returned.

    >>> chart = Chart()
    >>> chart.names = ("trunk.weight", "head.weight")
    >>> for step in range(0, 350, 25):
    ...     row = [float("nan") if step > 200 else 0.2, 0.3]
    ...     chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": row}})
    >>> cut_off(chart)
    (('trunk.weight',), 225)
    """
    sampled = chart.tensors("grad_norm")
    rows = sampled.matrix()
    if len(rows) < before + samples or rows.shape[1] != len(chart.names) or is_game(chart):
        return (), 0
    frozen = chart.fact("graph.frozen_behind") or chart.fact("graph.frozen_share", 0.0) > 0
    gone = np.asarray(np.isnan(rows[-samples:]).all(axis=0))
    count = int(np.argmin(gone))
    if frozen or not count or gone[count:].any() or len(chart.context.get("optimizer") or ()) > 1:
        return (), 0
    had = np.flatnonzero(np.isfinite(rows[:, :count]).any(axis=1))
    start = int(had[-1]) + 1 if had.size else 0
    if start < before or not np.isfinite(rows[:start]).all() or not (rows[start:, count:] > 0).any(axis=1).all():
        return (), 0
    if set(chart.names[:count]) & set(chart.fact("graph.not_in_optimizer") or ()):
        return (), 0  # they do get gradients, but no optimizer holds them any more
    since = sampled.rows[start][0]
    return (chart.names[:count], since) if sampled.rows[-1][0] - since >= span else ((), 0)


def fed_with_nothing(chart: Chart, zero: Sequence[str]) -> bool:
    """Whether each of these weights has a gradient of zero while the bias of its layer has not: the inputs are zero.

    Dead units leave both at zero. Weights without any gradient (NaN) do not count.

    >>> chart = Chart()
    >>> chart.names = ("user.weight", "user.bias")
    >>> chart.add({"type": "tensors", "step": 0, "vitals": {"grad_norm": [0.0, 0.3]}})
    >>> fed_with_nothing(chart, ["user.weight"])
    True
    """
    row = chart.tensors("grad_norm").latest
    known = dict(zip(chart.names, row.tolist(), strict=True)) if row.size == len(chart.names) else {}
    biases = [known.get(f"{name.removesuffix('weight')}bias", 0.0) for name in zero]
    return bool(biases) and all(norm > 0 for norm in biases) and all(known[name] == 0 for name in zero)


def is_flat(chart: Chart, least: float = 0.1) -> bool:
    """Whether all gradients have been exactly zero for long, though not from the start, and the loss is far from zero.

    A margin loss that all samples satisfy is zero itself, so it is not reported. Neither are gradients that a
    collapsed loss scale rounds to zero: the graph is whole.

    >>> is_flat(Chart.of(loss=[1.0] * 9 + [0.5] * 30, grad_norm=[3.0] * 9 + [0.0] * 30))
    True
    >>> is_flat(Chart.of(loss=[1.0] * 9 + [0.0] * 30, grad_norm=[3.0] * 9 + [0.0] * 30))
    False
    """
    norms, losses = chart["grad_norm"].last(FLAT), chart["loss"].last(FLAT)
    if chart["loss_scale"].latest < UNDERFLOW:
        return False
    if norms.size < FLAT or losses.size < FLAT or float(norms.max()) > 0 or not chart["grad_norm"].outline.highest > 0:
        return False
    return float(losses.min()) > 0 and median(losses) > least * Progress.of(chart["loss"]).start


def is_at_nothing(chart: Chart, steps: int = 60, nothing: float = 1e-6) -> bool:
    """Whether loss and gradients have been zero, up to rounding of either sign, at all steps so far.

    >>> is_at_nothing(Chart.of(loss=[0.0, 1e-9, -1e-9] * 20, grad_norm=[1e-8] * 60))
    True
    >>> is_at_nothing(Chart.of(loss=[3e-7, 2e-7, 1e-7] * 20, grad_norm=[1e-8] * 60))
    False
    """
    loss, norms = chart["loss"], chart["grad_norm"]
    if not steps <= loss.count <= 4 * steps or loss.count != len(loss) or not norms.count >= steps // 2:
        return False
    small = max(loss.outline.highest, -loss.lowest, norms.outline.highest) < nothing
    return small and float((loss.values <= 0).mean()) > 0.2


def stands_in(chart: Chart) -> tuple[str, int]:
    """A branch that runs once for itself and once for each branch beside it that never runs, and its runs; or nothing.

    >>> chart = Chart()
    >>> chart.names = ("heads.0.weight", "heads.1.weight", "heads.2.weight")
    >>> facts = {"graph.absent": ["heads.0.weight", "heads.1.weight"], "modules.repeated": {"heads.2": 3}}
    >>> chart.add({"type": "facts", "step": 2, "facts": facts})
    >>> stands_in(chart)
    ('heads.2', 3)
    """
    absent = {match[0] for name in chart.fact("graph.absent") or () if (match := BRANCH.match(name))}
    for module, runs in (chart.fact("modules.repeated") or {}).items():
        match = BRANCH.match(f"{module}.")
        if match is None or match[0] in absent:
            continue
        root = match[0].rstrip(".").rpartition(".")[0]
        beside = sum(branch.rstrip(".").rpartition(".")[0] == root for branch in absent)
        if beside and runs == beside + 1:
            return match[0].rstrip("."), runs
    return "", 0


def experts_used(chart: Chart) -> tuple[int, int]:
    """How many experts have ever had a gradient, and how many exist: equal branches that a layer scores one by one.

    >>> chart = Chart()
    >>> chart.names = ("gate.weight", "experts.0.weight", "experts.1.weight", "experts.2.weight")
    >>> facts = {"modules.names": ["gate", "experts.0"], "modules.widths": [3, 8],
    ...          "graph.absent": ["experts.1.weight", "experts.2.weight"]}
    >>> chart.add({"type": "facts", "step": 60, "facts": facts})
    >>> experts_used(chart)
    (1, 3)
    """
    absent, widths = chart.fact("graph.absent") or (), chart.fact("modules.widths") or ()
    branches = {match[0] for name in absent if (match := BRANCH.match(name))}
    roots = {branch.rstrip(".").rpartition(".")[0] for branch in branches}
    if len(roots) != 1 or not all(BRANCH.match(name) for name in absent):
        return 0, 0
    root = roots.pop()
    everything = {match[0] for name in chart.names if name.startswith(f"{root}.") and (match := BRANCH.match(name))}
    scored = len(everything) in [
        width for name, width in zip(chart.module_names, widths, strict=False) if not name.startswith(f"{root}.")
    ]
    used = {branch for branch in everything if not any(name.startswith(branch) for name in absent)}
    return (len(used), len(everything)) if scored and len(everything) > 2 else (0, 0)


def _ends_a_chain(cut: tuple[str, ...], names: Sequence[str]) -> bool:
    """Whether these belong to the last of several equal blocks, and the same parts of the block before get gradients.

    >>> names = [f"blocks.{index}.{part}.weight" for index in range(3) for part in ("fit", "rest")]
    >>> _ends_a_chain(("blocks.2.rest.weight",), names)
    True
    >>> _ends_a_chain(("blocks.2.rest.weight", "blocks.2.fit.weight"), names)
    False
    """
    known, ends = set(names), set()
    for name in cut:
        parts = name.split(".")
        places = [place for place, part in enumerate(parts[:-2]) if part.isdigit() and part != "0"]
        for place in places:
            block, index = ".".join(parts[:place]), int(parts[place])
            rest = ".".join(parts[place + 1 :])
            before, after = (f"{block}.{other}.{rest}".lstrip(".") for other in (index - 1, index + 1))
            if before in known and before not in cut and after not in known:
                ends.add(f"{block}.{index}.".lstrip("."))
                break
        else:
            return False
    return all(any(name.startswith(end) and name not in cut for name in names) for end in ends)


def single_columns(chart: Chart) -> tuple[str, ...]:
    """Weights of embeddings of width 1: per-item biases, which cancel out in a loss that compares items of one user."""
    kinds, widths = chart.fact("modules.kinds") or (), chart.fact("modules.widths") or ()
    known = zip(chart.module_names, kinds, widths, strict=False)
    return tuple(f"{name}.weight" for name, kind, width in known if kind == "Embedding" and width == 1)
