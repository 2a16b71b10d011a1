"""clip-too-tight."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.clipping_anomaly import IN_VAIN, clip_in_vain, is_cut_by_value, is_pinned, is_scaled


class ClipTooTight(Cause):
    """Gradient clipping makes every step far too small.

    ## What it is
    The clipping threshold is far below the usual gradient norm, so each SGD step is shorter by the same factor. Often
    the threshold was chosen for a mean loss but the loss is a sum, or gradients are clipped before `scaler.unscale_`.

    ## How to confirm it
    Compare the threshold with the median gradient norm before clipping: it should be about as large, or larger.

    ## What to change
    Set the threshold to about the 90th percentile of the gradient norm, or raise the learning rate by the same factor.

    ## How to see it cured
    A few percent of the steps are clipped, and update ratios are about 1e-3.
    """

    name = "clip-too-tight"
    explains = (
        "clipping-anomaly",
        "update-ratio-abnormal",
        "slow-learning",
        "not-learning",
        "underfitting",
        "loss-plateau",
    )
    prior = -1.7
    suggests = ("set-clip-norm", "scale-lr")
    references = ("https://arxiv.org/abs/1211.5063",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The threshold compared with the gradient norm, and whether clipping changes the optimizer's steps."""
        clip, norms = chart["clip"].latest, chart["grad_norm"].last(128)
        plain = not chart.groups or all(group.get("optimizer") == "SGD" for group in chart.groups)
        if plain and is_pinned(chart) and not clip < 0.9 * norms[-1]:  # by hand: the norm is measured after that
            yield Evidence(
                4.5, f"gradients are rescaled to a norm of {number_text(norms[-1])} at every step, whatever the batch"
            )
            return
        if plain and not clip > 0 and is_cut_by_value(chart):
            text = "the gradient norms of several tensors stay the same to the last digit: all of their values"
            yield Evidence(5.5, f"{text} are clipped at one threshold")
            return
        if not clip > 0:
            yield Evidence(-5.0, "no clipping was seen")
            return
        if fact := clip_in_vain(chart):
            yield Evidence(-5.0, IN_VAIN[fact].partition(":")[0])
            return
        if not norms.size:
            return
        typical = median(norms)
        text = f"gradients are clipped at {number_text(clip)}; their median norm is {number_text(typical)}"
        if clip > 0.2 * typical:
            yield Evidence(-4.0, text)
        elif clip > 0.01 * typical:
            yield Evidence(5.0 if problem.grave("clipping-anomaly") else 0.5, text)
        else:
            yield Evidence(5.5, text)
        if is_scaled(chart) and clip < 0.01 * typical:
            yield Evidence(
                CERTAIN, f"gradients are clipped while still multiplied by {number_text(chart['loss_scale'].latest)}"
            )
        elif not plain:
            yield Evidence(-4.0, "the optimizer is adaptive: the scale of gradients does not change its steps")
