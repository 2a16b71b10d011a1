"""memorization."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import number_text


class Memorization(Cause):
    """The model learns a small data set by heart.

    ## What it is
    Enough parameters to store the samples instead of what they have in common.

    ## How to confirm it
    The training loss goes towards zero, far under the best validation loss; it drops at epoch borders.

    ## What to change
    More data or augmentation; a smaller or more regularized model; stop at the best step.

    ## How to see it cured
    Training and validation loss fall together for longer.
    """

    name = "memorization"
    explains = ("overfitting",)
    prior = 0.2
    suggests = ("stop-at-best", "augment-data", "raise-dropout")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How far the training loss is below the best validation loss, and parameters against samples."""
        train = chart["loss"].baseline(128).recent
        best = chart["val_loss"].lowest
        if math.isfinite(best) and best > 0 and chart["loss"]:
            if 0 <= train < 0.25 * best:
                low = number_text(train)
                yield Evidence(1.8, f"the training loss is {low}, the best validation loss {number_text(best)}")
            elif train > 0.75 * best:
                yield Evidence(-1.0, f"the training loss is still {number_text(train)}, near the best validation loss")
        size, samples = (chart.context.get("model") or {}).get("trainable"), chart.context.get("dataset_size")
        if isinstance(size, int) and isinstance(samples, int) and size > 10 * samples:
            yield Evidence(0.8, f"{size:,} parameters for {samples:,} samples")
