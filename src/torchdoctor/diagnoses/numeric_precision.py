"""numeric-precision."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.origin import origin_kind


class NumericPrecision(Cause):
    """An operation left the range of its number format, or was undefined.

    ## What it is
    Half precision ends at 65,504; log(0), 0/0 and the derivative of a root or norm at 0 are not finite in any.

    ## How to confirm it
    Inputs and weights are finite and a module's output or gradient is not. Replay the step in float32: if it passes,
    it was the range; if not, it is the operation. ``torch.autograd.detect_anomaly()`` names it.

    ## What to change
    bfloat16 or float32 for that part; an epsilon inside log, sqrt and divisions; log-softmax instead of log of softmax.

    ## How to see it cured
    The same batch passes with finite loss and gradients.
    """

    name = "numeric-precision"
    explains = ("nan-or-inf", "gradient-vanishing")
    prior = -1.0
    suggests = ("change-precision", "skip-step")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Format, place, and what came before."""
        formats = str(chart.context.get("autocast") or "") + " " + str(chart.context.get("precision") or "")
        if "float16" in formats.replace("bfloat16", ""):
            yield Evidence(1.5, "part of the run is in float16, which ends at 65,504 and at 6e-8")
        symptom = problem.get("nan-or-inf")
        if symptom is None:
            yield Evidence(-1.5, "all values are finite")
            return
        kind, module = origin_kind(chart, problem)
        if kind == "output":
            yield Evidence(2.5, f"{module} turned finite inputs and weights into values that are not")
        elif kind == "input":
            yield Evidence(-4.0, "the input was already not finite")
        elif chart["loss"] and symptom.first_step not in chart["loss"].nonfinite_steps:
            yield Evidence(2.5, "the loss was finite and its gradients were not: a derivative is undefined there")
        if problem.has("gradient-explosion", "loss-divergence"):
            yield Evidence(-1.5, "values had grown before they overflowed")
        if chart["loss_scale"].latest < 1e-2 * chart["loss_scale"].first:
            yield Evidence(1.5, "the loss scale has collapsed")
