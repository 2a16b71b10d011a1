"""RA02 straggler-rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom, number_text, share_text
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class StragglerRank(Detector):
    """One rank is slower than the others, which wait for it; or only one rank has a NaN.

    ## What it means
    Ranks synchronize at every step, so a slow rank slows all of them down. If the loss of a single rank is not finite,
    its batch or its device is to blame; after the next gradient average all ranks have the NaN.

    ## How it is told apart
    All steps take equally long, because fast ranks wait for slow ones. So each rank's own part is compared: data
    loading and the forward pass, in which no rank waits. One rank must be the slowest in several comparisons in a row,
    by at least 30 % each time, and cost a tenth of every step. A first rank that writes checkpoints is always a little
    slower.

    ## What to do
    Run `nvidia-smi -q -d PERFORMANCE,TEMPERATURE` on its machine. Give each rank the same number of loader workers and
    CPU cores, and batches of equal length (bucket by length over all ranks, not within each). If only one rank has a
    NaN, look at its batch of that step.

    ## How to see that it is cured
    The forward passes of all ranks take the same time, and steps are as short as those of the fastest rank alone.

    ## Example
    >>> chart = Chart.of(rank_waited=[0.3] * 6, rank_slowest=[2.0] * 6, rank_slowness=[1.6] * 6)
    >>> print(StragglerRank().check(chart))
    step 1: RA02 straggler-rank (warning): rank 2 takes 1.6 times as long as the others, which wait 30 % of each step
    """

    code = "RA02"
    name = "straggler-rank"
    reads = ("rank_waited", "rank_lost")
    suggests = ("check-hardware", "speed-up-data")
    references = ("https://pytorch.org/docs/stable/notes/ddp.html", "https://arxiv.org/abs/2402.15627")
    closes_after = 4

    samples: int = 5
    """Comparisons in a row that must show the same rank."""
    waited: float = 0.1
    """Share of a step that the other ranks must at least wait."""
    slowness: float = 1.3
    """Its time divided by that of the other ranks, from which it is reported."""

    def check(self, chart: Chart) -> Symptom | None:
        """Test for a NaN on a single rank, then compare the times of the ranks."""
        if chart["rank_lost"]:
            rank, step = int(chart["rank_lost"].latest), int(chart["rank_lost_at"].latest)
            message = f"only the loss of rank {rank} was not finite at step {step}"
            return replace(self.symptom(chart, "warning", message, value=float(step), since=step), rank=rank)
        waited, slowness = (chart[name].last(self.samples) for name in ("rank_waited", "rank_slowness"))
        slowest = chart["rank_slowest"].last(self.samples)
        if waited.size < self.samples or float(np.ptp(slowest)) > 0:
            return None
        share, times = float(waited.min()), float(slowness.min())
        if share < self.waited or times < self.slowness:
            return None
        rank = int(slowest[-1])
        message = f"rank {rank} takes {number_text(times)} times as long as the others, which wait "
        message += f"{share_text(share)} of each step"
        since = int(chart["rank_waited"].steps[-self.samples])
        found = self.symptom(chart, "warning", message, value=share, limit=self.waited, since=since)
        return replace(found, rank=rank)
