"""GP01 no-gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, names_text
from torchdoctor.series import TensorSeries
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class NoGradient(Detector):
    """Trainable parameters have no gradient, or one of exactly zero, at every step.

    ## What it means
    The loss does not depend on them: a `detach()`, `.data`, `.item()`, `torch.no_grad()` or a conversion to NumPy cuts
    the graph, `backward()` is never called, or every path to them is blocked (dead ReLUs, a mask that hides all).

    ## How it is told apart
    A parameter that is left out at some steps only (routing, tasks that take turns) is healthy. One whose module never
    runs is unused: a note, not a warning. So is a part of the last of several equal blocks that has a gradient in those
    before it: what it passes on is meant for a next block. LoRA's A and zero-initialized branches have a gradient of
    zero at step 0 and one later. A frozen parameter (`requires_grad=False`) needs none.

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
    >>> print(NoGradient().check(chart))
    step 2: GP01 no-gradient (warning): encoder.weight never gets a gradient, although its module runs
    """

    code = "GP01"
    name = "no-gradient"
    reads = ("tensors/grad_norm", "facts/graph.detached", "facts/graph.absent", "facts/graph.cut")
    suggests = ("fix-loss",)
    references = ("https://pytorch.org/docs/stable/notes/autograd.html",)
    closes_after = 2

    samples: int = 5
    """Samples at which a gradient must have been exactly zero, all of them since the start of the run."""

    def check(self, chart: Chart) -> Symptom | None:
        """First what the graph says, then gradients of exactly zero."""
        if chart.fact("graph.detached"):
            since = chart.facts["graph.detached"].step
            return self.symptom(chart, "critical", "no parameter gets a gradient: nothing is learnt", since=since)
        cut = tuple(chart.fact("graph.cut") or ())
        if cut:
            verb = "gets" if len(cut) == 1 else "get"
            runs = "its module runs" if len(cut) == 1 else "their modules run"
            message = f"{names_text(cut)} never {verb} a gradient, although {runs}"
            severity: Severity = "warning"
            if _ends_a_chain(cut, chart.names):
                severity, message = "info", message + "; blocks before the last one need what it is there for"
            return self.symptom(chart, severity, message, where=cut, since=chart.facts["graph.cut"].step)
        zero, since = self._zero(chart)
        if zero:
            everything = not (chart.tensors("grad_norm").latest > 0).any()
            subject = "every gradient" if everything else f"the gradient of {names_text(zero)}"
            message = f"{subject} is exactly zero at each of {len(chart.tensors('grad_norm').rows)} samples"
            return self.symptom(chart, "critical" if everything else "warning", message, where=zero, since=since)
        absent = tuple(chart.fact("graph.absent") or ())
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
        never = np.nonzero((rows == 0).all(axis=0))[0]
        # A bias before a normalization has a gradient of zero by arithmetic.
        biases = ("bias", *single_columns(chart))
        names = tuple(chart.names[index] for index in never if not chart.names[index].endswith(biases))
        return names, sampled.rows[0][0]


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
