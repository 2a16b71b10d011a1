"""unknown."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem

NEXT = {
    "gradient-explosion": "compute the gradient of that step's batch again: if it is large again, it is the batch",
    "gradient-vanishing": "look at what that step did differently: a cut graph, a loss scale, a mask that hides all",
    "gradient-instability": "repeat some hundred steps at a tenth of the rate: if the norm calms down, it was the rate",
    "loss-spike": "compute the loss of that step's batch with weights from before: if it stands out, it is the batch",
    "loss-divergence": "repeat from a checkpoint at a tenth of the learning rate: if it passes, it was the rate",
    "loss-plateau": "log update ratios and a validation loss: they separate a finished run from one that cannot move",
    "nan-or-inf": "check the batch with torch.isfinite, then repeat the step under torch.autograd.detect_anomaly()",
    "overfitting": "compare with more dropout, and with half of the data: the gap tells which of both is short",
}


class Unknown(Cause):
    """The evidence does not decide.

    ## What it is
    A cause that is not in the list, or two that look the same in what was measured.

    ## How to confirm it
    Its first line of evidence says which measurement would decide.

    ## What to change
    Nothing yet, beyond what protects the run: measure first.

    ## How to see it cured
    Another cause takes the first place.
    """

    name = "unknown"
    explains = tuple(NEXT)
    prior = 0.0

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """What to measure next; no weight of its own, so that other causes are weighed against it."""
        for name in problem.names:
            if name in NEXT:
                yield Evidence(0.0, NEXT[name])
                return
