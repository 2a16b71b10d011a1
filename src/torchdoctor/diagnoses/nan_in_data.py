"""nan-in-data."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.origin import origin_kind


class NanInData(Cause):
    """A batch holds values that are not finite.

    ## What it is
    NaN or infinity in inputs or targets: missing values, a division in the preprocessing, a corrupt file.

    ## How to confirm it
    The input of the first module is not finite at that step: ``torch.isfinite(x).all()``.

    ## What to change
    Check batches before the model sees them; drop or repair the samples.

    ## How to see it cured
    The same step passes with a finite loss.
    """

    name = "nan-in-data"
    explains = ("nan-or-inf",)
    prior = -0.7
    suggests = ("clean-data", "skip-step")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Where the first such value was seen, and what came before it."""
        kind, module = origin_kind(chart, problem)
        if kind == "input":
            yield Evidence(6.0, f"the input of {module} was already not finite")
        elif kind:
            yield Evidence(-5.0, f"the inputs were finite: it began in {module}")
        if problem.has("gradient-explosion", "loss-spike", "loss-divergence") and kind != "input":
            yield Evidence(-1.5, "the run was in trouble before the first value that was not finite")
        elif kind != "input":
            yield Evidence(0.5, "nothing had announced it")
