"""RA01 rank-divergence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchdoctor.chart import Chart
from torchdoctor.records import Severity, Symptom, number_text
from torchdoctor.symptoms.detector import Detector

AVERAGED = 1e-3
"""Relative difference of gradient norms above which gradients count as not averaged."""


@dataclass(frozen=True)
class RankDivergence(Detector):
    """Ranks that should hold the same weights hold different ones.

    ## What it means
    Data-parallel training keeps a copy of the model on every rank, and all copies must be equal. If they are not,
    gradients are averaged over different models, and only the first rank's model is saved. If gradients are not
    averaged at all, each rank trains its own model, and the work of all other ranks is lost.

    ## How it is told apart
    The norms of all weights at the same step are compared between the journals of all ranks. Copies differ by rounding
    at most; a difference of a thousandth is far more than that. Shards of a model (FSDP, tensor and pipeline parallel)
    differ by design and are not compared; nor are ranks without a journal, or beyond the 64th.

    ## What to do
    Call the wrapped model (`ddp(x)`, never `ddp.module(x)`), build the optimizer before or after wrapping but from the
    same parameters, and load checkpoints on every rank. Without DDP, broadcast the weights once and average the
    gradients at every step. If a single rank differs, check its device.

    ## How to see that it is cured
    `torch.distributed.all_gather` of a checksum of the weights gives the same number on every rank, even after 1,000
    steps.

    ## Example
    >>> found = RankDivergence().check(Chart.of(rank_weights_apart=[0.1, 0.2], rank_gradients_apart=[0.3, 0.3]))
    >>> print(found)
    step 0: RA01 rank-divergence (critical): weights differ by up to 20 % between ranks; gradients are not averaged
    """

    code = "RA01"
    name = "rank-divergence"
    reads = ("rank_weights_apart",)
    suggests = ("synchronize-ranks", "check-hardware", "ask-for-help")
    references = (
        "https://pytorch.org/docs/stable/notes/ddp.html",
        "https://arxiv.org/abs/2211.05100",
    )
    closes_after = 4

    limit: float = 1e-3
    """Relative difference of a tensor's norm above which ranks count as different."""
    samples: int = 2
    """Comparisons in a row that must show it."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test the last comparisons."""
        apart = chart["rank_weights_apart"]
        recent = apart.last(self.samples)
        if recent.size < self.samples or not float(recent.min()) > self.limit:
            return None
        message = f"weights differ by up to {number_text(100 * apart.latest)} % between ranks"
        severity: Severity = "critical"
        if chart["rank_gradients_apart"].latest > AVERAGED:
            message += "; gradients are not averaged"
        odd = int(chart["rank_apart"].latest) if chart["rank_apart"] else -1
        if odd >= 0:
            message += f"; rank {odd} differs most from the others"
        since = int(apart.steps[apart.values > self.limit][0])
        found = self.symptom(chart, severity, message, value=apart.latest, limit=self.limit, since=since)
        return replace(found, rank=odd) if odd >= 0 else found
