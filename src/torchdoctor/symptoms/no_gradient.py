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
"""Steps without any gradient after which none will come."""
BRANCH = re.compile(r"(?:.*?\.)?\d+\.")
"""The beginning of a name, up to the first number: one of several branches."""


@dataclass(frozen=True)
class NoGradient(Detector):
    """Trainable parameters have no gradient, or one of exactly zero, at every step.

    ## What it means
    The loss does not depend on them: a `detach()`, `.data`, `.item()`, `torch.no_grad()` or a conversion to NumPy cuts
    the graph, `backward()` is never called, or every path to them is blocked (dead ReLUs, a mask that hides all).

    ## How it is told apart
    A parameter that is left out at some steps only (routing, tasks that take turns) is healthy. One whose module never
    runs is unused: a note, not a warning. So is a part of the last of several equal blocks that has a gradient in those
    before it: what it passes on is meant for a next block. So is a bias alone, where the weight beside it learns: a
    force is the derivative of an energy, which may be shifted. LoRA's A and zero-initialized branches have a gradient
    of zero at step 0 and one later. A frozen parameter (`requires_grad=False`) needs none. Experts of a mixture may be
    chosen rarely; half of them never is a warning. So are branches that never run while one beside them runs as often
    as all together should, and a loss that was nothing, with gradients of nothing, from the first step on;
    or one that is far from nothing, and has had no gradient at all for dozens of steps. So are first layers that had a
    gradient at every sample and have none any more, while those after them go on; a head that nobody asks is not.

    ## What to do
    Walk back from the loss: `print(loss.grad_fn.next_functions)`. Remove what cuts the graph. Take unused modules out
    of the model, or freeze them.

    ## How to see that it is cured
    After `loss.backward()` this prints nothing:
    `[n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]`.

    ## Example
    >>> chart = Chart()
    >>> chart.add({"type": "facts", "step": 2, "facts": {"graph.absent": ["encoder.weight"],
    ...                                                  "graph.cut": ["encoder.weight"]}})
    >>> NoGradient().check(chart).message
    'encoder.weight never gets a gradient, although its module runs: it is not used, or cut off from the loss'
    """

    code = "GP01"
    name = "no-gradient"
    reads = ("tensors/grad_norm", "facts/graph.detached", "facts/graph.absent", "facts/graph.cut")
    suggests = ("reattach-graph",)
    references = ("https://pytorch.org/docs/stable/notes/autograd.html",)
    closes_after = 2

    samples: int = 5
    """Samples at which a gradient must have been exactly zero, all of them since the start of the run."""

    span: int = 60
    """Steps that they must span, where other gradients are not zero."""
    settled: int = 45
    """Steps after which experts of a mixture that were never chosen will hardly be."""

    def check(self, chart: Chart) -> Symptom | None:
        """First what the graph says, then gradients of exactly zero."""
        if chart.fact("graph.detached"):
            since = chart.facts["graph.detached"].step
            return self.symptom(chart, "critical", "no parameter gets a gradient: nothing is learnt", since=since)
        cut = tuple(chart.fact("graph.cut") or ())
        if cut:
            verb = "gets" if len(cut) == 1 else "get"
            runs = "its module runs" if len(cut) == 1 else "their modules run"
            message = f"{names_text(cut)} never {verb} a gradient, although {runs}: "
            message += f"{'it is' if len(cut) == 1 else 'they are'} not used, or cut off from the loss"
            severity: Severity = "warning"
            if all(name.endswith("bias") and f"{name[:-4]}weight" in set(chart.names) - set(cut) for name in cut):
                severity, message = "info", message + "; a loss of derivatives does not depend on a shift"
            elif _ends_a_chain(cut, chart.names):
                severity, message = "info", message + "; blocks before the last one need what it is there for"
            return self.symptom(chart, severity, message, where=cut, since=chart.facts["graph.cut"].step)
        zero, since = self._zero(chart)
        if zero:
            everything = not (chart.tensors("grad_norm").latest > 0).any()
            subject = "every gradient" if everything else f"the gradient of {names_text(zero)}"
            message = f"{subject} is exactly zero at each of {len(chart.tensors('grad_norm').rows)} samples"
            if fed_with_nothing(chart, zero):
                message += ", and that of the bias is not: what enters is all zeros"
            return self.symptom(chart, "critical" if everything else "warning", message, where=zero, since=since)
        if is_flat(chart):
            message = f"every gradient is exactly zero at each of the last {FLAT} steps, and the loss is still "
            message += f"{number_text(median(chart['loss'].last(FLAT)))}: it does not depend on the outputs any more"
            norms = chart["grad_norm"]
            alive = np.flatnonzero(norms.values > 0)
            first = min(int(alive[-1]) + 1, len(norms) - 1) if alive.size else 0
            return self.symptom(chart, "warning", message, value=0.0, since=int(norms.steps[first]))
        if is_at_nothing(chart):
            message = "the loss has been zero, and every gradient next to it, since the first step: what is compared "
            message += "is one and the same, or nothing is asked for"
            return self.symptom(chart, "warning", message, since=int(chart["loss"].steps[0]))
        lost, since = cut_off(chart)
        if lost:
            message = f"{names_text(lost)} had a gradient at every sample, and none since step {since}, while the "
            message += "layers after them go on learning from what they make"
            return self.symptom(chart, "warning", message, where=lost, since=since)
        return self._unused(chart)

    def _unused(self, chart: Chart) -> Symptom | None:
        """What takes no part at all: called under another's name, never chosen, or merely there."""
        absent = tuple(chart.fact("graph.absent") or ())
        stand_in, times = stands_in(chart)
        if stand_in:
            message = f"{names_text(absent)} never run, while {stand_in} beside them runs {times} times in a pass: it "
            message += "is called in their place"
            return self.symptom(chart, "warning", message, where=absent, since=chart.facts["graph.absent"].step)
        chosen, experts = experts_used(chart)
        if 0 < 2 * chosen <= experts and chart.step >= self.settled:
            message = f"of {experts} experts that a layer scores, {chosen} {'is' if chosen == 1 else 'are'} ever chosen"
            return self.symptom(chart, "warning", message, where=absent, since=chart.facts["graph.absent"].step)
        if absent:
            verb = "is" if len(absent) == 1 else "are"
            message = f"{names_text(absent)} {verb} trainable, but not used"
            return self.symptom(chart, "info", message, where=absent, since=chart.facts["graph.absent"].step)
        return None

    def _zero(self, chart: Chart) -> tuple[tuple[str, ...], int]:
        """Weights with a gradient of exactly zero at every sample so far, while all of those are still known."""
        sampled: TensorSeries = chart.tensors("grad_norm")
        rows = sampled.matrix()
        known_from_the_start = len(sampled.rows) < (sampled.rows.maxlen or 0) or self.name in chart.open_episodes
        if len(rows) < self.samples or rows.shape[1] != len(chart.names) or not known_from_the_start:
            return (), 0
        if sampled.rows[-1][0] - sampled.rows[0][0] < self.span and (sampled.latest > 0).any():
            return (), 0  # a term of the loss may be given no weight in the first steps
        never = np.nonzero((rows == 0).all(axis=0))[0]
        # A bias before a normalization has a gradient of zero by arithmetic.
        biases = ("bias", *single_columns(chart))
        names = tuple(chart.names[index] for index in never if not chart.names[index].endswith(biases))
        return names, sampled.rows[0][0]


def cut_off(chart: Chart, before: int = 4, samples: int = 2, span: int = 20) -> tuple[tuple[str, ...], int]:
    """The first layers, where they had a gradient at every sample and the last ones alone have one since; and when.

    A head that is no longer asked comes last, players and experts had none at times before, and what was frozen on
    purpose does not require one.

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
        return (), 0  # they get one, and nobody steps them any more
    since = sampled.rows[start][0]
    return (chart.names[:count], since) if sampled.rows[-1][0] - since >= span else ((), 0)


def fed_with_nothing(chart: Chart, zero: Sequence[str]) -> bool:
    """Whether each of these weights has a gradient of zero, and its layer's bias another: then what enters it is zero.

    Behind units that are dead, the layer before has none at all. A weight without any gradient is not what is used.

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
    """Whether all gradients, which were there before, have been exactly zero for long, far above a loss of zero.

    A margin that all samples keep leaves a loss of zero.

    >>> is_flat(Chart.of(loss=[1.0] * 9 + [0.5] * 30, grad_norm=[3.0] * 9 + [0.0] * 30))
    True
    >>> is_flat(Chart.of(loss=[1.0] * 9 + [0.0] * 30, grad_norm=[3.0] * 9 + [0.0] * 30))
    False
    """
    norms, losses = chart["grad_norm"].last(FLAT), chart["loss"].last(FLAT)
    if norms.size < FLAT or losses.size < FLAT or float(norms.max()) > 0 or not chart["grad_norm"].outline.highest > 0:
        return False
    return float(losses.min()) > 0 and median(losses) > least * Progress.of(chart["loss"]).start


def is_at_nothing(chart: Chart, steps: int = 60, nothing: float = 1e-6) -> bool:
    """Whether the loss was zero but for rounding, to either side of it, at all steps so far, and so were gradients.

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
    """A branch that runs as often as it and those beside it that never run are many, and how often; or nothing.

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
    """How many of the equal branches that a layer gives one score each have ever had a gradient, and how many exist.

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
    """Whether these are a part of the last of several equal blocks, and have a gradient in the one before it.

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
    """Weights of embeddings of width 1: biases by item, which drop out of a loss that compares two of the same user."""
    kinds, widths = chart.fact("modules.kinds") or (), chart.fact("modules.widths") or ()
    known = zip(chart.module_names, kinds, widths, strict=False)
    return tuple(f"{name}.weight" for name, kind, width in known if kind == "Embedding" and width == 1)
