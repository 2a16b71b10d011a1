"""under-regularized."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import dropout, has_not_fallen, weight_decay
from torchdoctor.records import number_text
from torchdoctor.symptoms.validation_curve import never_followed


class UnderRegularized(Cause):
    """Regularization is too weak to keep the model from fitting noise.

    ## What it is
    The run has little or no dropout, weight decay, augmentation or label smoothing for this model and data.

    ## How to confirm it
    The configuration contains none, and the best validation loss improves when some is added.

    ## What to change
    Raise dropout by 0.1, up to 0.5. Use weight decay of 0.01 to 0.1. Add augmentation.

    ## How to see it cured
    The best validation loss is lower and comes later.

    ## When to stop
    If training gets worse and validation does not improve, the run needs more data.
    """

    name = "under-regularized"
    explains = ("overfitting", "double-descent", "validation-anomaly")
    prior = -0.6
    suggests = ("raise-dropout", "set-weight-decay")
    references = ("https://jmlr.org/papers/v15/srivastava14a.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Dropout and weight decay as configured."""
        if not problem.has("overfitting", "double-descent"):
            yield Evidence(-2.0, "neither overfitting nor double descent was found")
        if has_not_fallen(chart):
            yield Evidence(-4.0, "the training loss has not fallen")
        if never_followed(chart):
            yield Evidence(
                -2.0, "validation was never better than the untrained model, not even at the first evaluation"
            )
        rate, decay = dropout(chart), weight_decay(chart)
        if rate == 0:
            yield Evidence(1.2, "the model has no dropout")
        elif rate >= 0.3:
            yield Evidence(-1.0, f"dropout is already {number_text(rate)}")
        if decay < 1e-3:
            yield Evidence(0.8, "there is no weight decay" if decay == 0 else f"weight decay is {number_text(decay)}")
        elif decay >= 0.05:
            yield Evidence(-0.5, f"weight decay is already {number_text(decay)}")
