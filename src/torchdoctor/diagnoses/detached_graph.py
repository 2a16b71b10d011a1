"""detached-graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import names_text, number_text
from torchdoctor.symptoms.collapsed_output import SAYS_NOTHING
from torchdoctor.symptoms.no_gradient import cut_off, is_at_nothing, stands_in

SAME = 1e-6
"""Share of their size by which outputs vary under which nothing of the input reaches them: the way there is dead."""

FAINT = 0.01
"""Share of the largest gradient under which a code hears nothing of what is made of it, only of its own penalty."""


class DetachedGraph(Cause):
    """The loss does not depend on the parameters.

    ## What it is
    Between the parameters and the loss something cuts the graph: `detach()`, `.data`, `.item()`, `torch.tensor(x)`,
    NumPy, `argmax`, `torch.no_grad()`, a missing `backward()`. `sign`, `round`, `floor` and comparisons cut it as well:
    their gradient is zero everywhere, and needs a straight-through estimator. `loss.requires_grad_()` only hides it:
    backward then runs, and reaches nothing.

    ## How to confirm it
    `loss.grad_fn` is not None, and after `loss.backward()` each parameter's `grad` is a tensor that is not all zero.

    ## What to change
    Remove what cuts; compute metrics on a detached copy and the loss on the original.

    ## How to see it cured
    Every trainable parameter has a gradient, and the loss of one repeated batch falls.
    """

    name = "detached-graph"
    explains = (
        "no-gradient",
        "suspicious-loss",
        "frozen-weights",
        "not-learning",
        "underfitting",
        "loss-plateau",
        "slow-learning",
        "collapsed-output",
    )
    prior = -1.7
    suggests = ("reattach-graph",)
    references = ("https://pytorch.org/docs/stable/notes/autograd.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """What the census found without a gradient."""
        cut = chart.fact("graph.cut") or []
        if chart.fact("loss.detached"):
            yield Evidence(CERTAIN, "the logged loss is a leaf that requires grad: nothing lies behind it")
        elif chart.fact("graph.copied"):
            yield Evidence(-1.0, "the loss has a graph, which ends in other tensors")
        elif chart.fact("graph.detached"):
            if max(chart.fact("zeroing.backwards") or (0,)):
                yield Evidence(-2.0, "gradients arrive, and are gone when the optimizer steps")
            else:
                yield Evidence(CERTAIN, "no backward pass reaches a parameter before any step")
        elif cut:
            yield Evidence(CERTAIN, f"{names_text(cut)}: the module runs, and its tensors never get a gradient")
        elif problem.has("frozen-weights") and (chart.fact("graph.resting") or {}).get("frozen") is False:
            yield Evidence(CERTAIN, "gradients came at first, and no backward pass reaches these weights any more")
        elif problem.has("no-gradient") and (lost := cut_off(chart))[0]:
            yield Evidence(CERTAIN, f"{names_text(lost[0])}: gradients came up to step {lost[1]}, and none since")
        else:
            yield from _about_the_rest(chart, problem)


def _about_the_rest(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """What speaks for it where nothing is cut off for sure."""
    absent = chart.fact("graph.absent")
    if (heard := _heard_by_the_code(chart, problem)) < FAINT:
        text = f"gradients of the code are {number_text(heard)} of others: nothing that is made of it comes back to it"
        yield Evidence(6.5, text)
    elif stands_in(chart)[0]:
        yield Evidence(5.0, f"{names_text(absent or ())}: never called, another one is in their place")
    elif is_at_nothing(chart):
        yield Evidence(3.5, "loss and gradients are nothing from the first step on")
    elif absent:
        yield Evidence(1.5, f"{names_text(absent)}: in no loss's graph")
    elif _is_flat(chart, problem):
        yield Evidence(4.5, "some gradients are exactly zero and others are not: a step without slope lies between")
    elif absent is not None:
        yield Evidence(-5.0, "every trainable parameter has had a gradient")


def _heard_by_the_code(chart: Chart, problem: Problem, samples: int = 3) -> float:
    """The gradients of a collapsed code as a share of the largest; NaN where no code has collapsed.

    A penalty that is too strong is at odds with what the decoder asks for, and both go on. One that is alone comes to
    rest: where the code is cut off from its decoder, its gradients fade away.
    """
    collapsed, norms = problem.get("collapsed-output"), chart.tensors("grad_norm").matrix(samples)
    if collapsed is None or not collapsed.message.endswith(SAYS_NOTHING) or norms.shape[1:] != (len(chart.names),):
        return math.nan
    if (dead := problem.get("dead-units")) is not None and dead.severity != "info":
        return math.nan  # nothing passes a dead encoder, whatever comes back
    code = [index for index, name in enumerate(chart.names) if name.rpartition(".")[0] in collapsed.where]
    largest = float(norms.max(initial=0.0))
    return float(norms[:, code].max()) / largest if code and 0 < largest < math.inf else math.nan


def _is_flat(chart: Chart, problem: Problem) -> bool:
    """Whether part of the weights has gradients of exactly zero though outputs follow inputs, and no unit is dead."""
    zero = problem.get("no-gradient")
    norms = chart.tensors("grad_norm").latest
    if zero is None or zero.severity == "info" or problem.has("dead-units") or chart["output_spread"].latest < SAME:
        return False
    return bool((norms > 0).any() and (norms == 0).any())
