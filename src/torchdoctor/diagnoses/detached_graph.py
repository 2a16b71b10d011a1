"""detached-graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.numeric_precision import is_underflow
from torchdoctor.records import names_text, number_text
from torchdoctor.symptoms.collapsed_output import SAYS_NOTHING
from torchdoctor.symptoms.no_gradient import cut_off, is_at_nothing, stands_in

SAME = 1e-6
"""Variation of the outputs, as a share of their size, below which they do not depend on the input at all."""

FAINT = 0.01
"""Share of the largest gradient below which the gradients of a code do not come from its decoder."""


class DetachedGraph(Cause):
    """Something cuts the graph between the loss and the parameters, or some of them.

    ## What it is
    The graph is cut by `detach()`, `.data`, `.item()`, `torch.tensor(x)`, NumPy, `argmax` or `torch.no_grad()`, or
    `backward()` is missing. `sign`, `round`, `floor` and comparisons cut it as well: their gradient is zero everywhere,
    so they need a straight-through estimator. `loss.requires_grad_()` only hides the problem: backward then runs, but
    reaches no parameter.

    ## How to confirm it
    `loss.grad_fn` is not None, and after `loss.backward()` each parameter's `grad` is a tensor that is not all zero.

    ## What to change
    Remove the operation that cuts the graph. Compute metrics on a detached copy and the loss on the original.

    ## How to see it cured
    Every trainable parameter has a gradient, and the loss falls on one repeated batch.
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
        """Which parameters never had a gradient, or no longer get one."""
        cut = chart.fact("graph.cut") or []
        if chart.fact("loss.detached"):
            yield Evidence(CERTAIN, "the logged loss is a leaf tensor with requires_grad: no parameter is behind it")
        elif chart.fact("graph.copied"):
            yield Evidence(-1.0, "the loss has a graph, but the graph ends in other tensors")
        elif chart.fact("graph.detached"):
            if max(chart.fact("zeroing.backwards") or (0,)):
                yield Evidence(-2.0, "backward() computes gradients, but they are gone when the optimizer steps")
            else:
                yield Evidence(CERTAIN, "no backward pass reaches any parameter before the optimizer steps")
        elif cut:
            yield Evidence(CERTAIN, f"{names_text(cut)}: the module runs, but its tensors never get a gradient")
        elif problem.has("frozen-weights") and (chart.fact("graph.resting") or {}).get("frozen") is False:
            yield Evidence(CERTAIN, "these weights had gradients at first, but no backward pass reaches them any more")
        elif problem.has("no-gradient") and (lost := cut_off(chart))[0]:
            yield Evidence(CERTAIN, f"{names_text(lost[0])}: gradients at first, but none since step {lost[1]}")
        else:
            yield from _about_the_rest(chart, problem)


def _about_the_rest(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Evidence if no definite fact shows a cut."""
    absent = chart.fact("graph.absent")
    if (heard := _heard_by_the_code(chart, problem)) < FAINT:
        text = f"gradients of the code are {number_text(heard)} of the largest: none come from the decoder"
        yield Evidence(6.5, text)
    elif stands_in(chart)[0]:
        yield Evidence(5.0, f"{names_text(absent or ())}: never called; another module runs in their place")
    elif is_at_nothing(chart):
        yield Evidence(3.5, "loss and gradients have been zero, up to rounding, since the first step")
    elif absent:
        yield Evidence(1.5, f"{names_text(absent)}: not in the graph of any loss")
    elif _is_flat(chart, problem):
        yield Evidence(
            4.5, "some gradients are exactly zero and others are not: an operation with zero gradient is in between"
        )
    elif absent is not None:
        yield Evidence(-5.0, "every trainable parameter has had a gradient")


def _heard_by_the_code(chart: Chart, problem: Problem, samples: int = 3) -> float:
    """The gradients of a collapsed code as a share of the largest; NaN if no code has collapsed.

    If a penalty on the code is too strong, its gradient and the decoder's keep opposing each other. If the code is cut
    off from its decoder, only the penalty acts, and its gradient fades.
    """
    collapsed, norms = problem.get("collapsed-output"), chart.tensors("grad_norm").matrix(samples)
    if collapsed is None or not collapsed.message.endswith(SAYS_NOTHING) or norms.shape[1:] != (len(chart.names),):
        return math.nan
    if (dead := problem.get("dead-units")) is not None and dead.severity != "info":
        return math.nan  # no gradient passes a dead encoder
    code = [index for index, name in enumerate(chart.names) if name.rpartition(".")[0] in collapsed.where]
    largest = float(norms.max(initial=0.0))
    return float(norms[:, code].max()) / largest if code and 0 < largest < math.inf else math.nan


def _is_flat(chart: Chart, problem: Problem) -> bool:
    """Whether only some gradients are exactly zero, although outputs depend on inputs and no unit is dead."""
    zero = problem.get("no-gradient")
    norms = chart.tensors("grad_norm").latest
    if zero is None or zero.severity == "info" or problem.has("dead-units") or chart["output_spread"].latest < SAME:
        return False
    return bool((norms > 0).any() and (norms == 0).any()) and not is_underflow(chart)
