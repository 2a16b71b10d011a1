"""clip-missing."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import is_over
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_recurrence
from torchdoctor.records import number_text
from torchdoctor.symptoms.clipping_anomaly import IN_VAIN, clip_in_vain

TOO_EARLY = 10
"""Steps before which the gradient norm has no recent level to compare with."""


class ClipMissing(Cause):
    """Rare, huge gradients are not clipped, or are clipped in vain.

    ## What it is
    Now and then a batch gives a gradient many times larger than usual. Without clipping, it moves the weights that much
    farther.

    ## How to confirm it
    The explosions recur, damage follows each of them, and the loop does not clip, or clips after `step()`, before
    `backward()`, or with an iterator of parameters that is used up.

    ## What to change
    Clip the total gradient norm between `backward()` and `step()`.

    ## How to see it cured
    The same norms appear before clipping, and the loss no longer jumps after them.
    """

    name = "clip-missing"
    explains = (
        "clipping-anomaly",
        "gradient-explosion",
        "loss-spike",
        "gradient-instability",
        "loss-divergence",
        "nan-or-inf",
        "loss-oscillation",
    )
    prior = -2.0
    suggests = ("set-clip-norm", "adaptive-clip", "set-clip-value", "use-gru-or-layernorm-rnn")
    references = ("https://arxiv.org/abs/1211.5063",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether the loop clips, whether explosions recur, and whether they do harm."""
        if fact := clip_in_vain(chart):
            yield Evidence(CERTAIN, IN_VAIN[fact].partition(":")[0])
            return
        if "clip" in chart:
            yield Evidence(-6.0, f"the loop clips gradients at {number_text(chart['clip'].latest)}")
            return
        gated = problem.get("saturated-activations")
        if gated is not None and gated.severity != "info":
            yield Evidence(-2.0, "units are saturated: this is more than a rare spike")
        if has_recurrence(chart) and problem.grave("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf"):
            yield Evidence(2.5, "gradients of a recurrent layer pass through the same weights at every position")
        explosions = [item for item in problem.symptoms if item.name == "gradient-explosion"]
        if not explosions:
            if problem.first_step >= TOO_EARLY:  # earlier, an explosion could not be detected
                yield Evidence(-1.5, "the gradient norm did not explode")
            return
        yield Evidence(0.8, "no clipping was seen")
        if len(explosions) > 1:
            yield Evidence(0.8, f"the gradient norm exploded {len(explosions)} times")
        spike = problem.get("loss-spike") or problem.get("loss-divergence")
        if spike is not None and spike.first_step > explosions[0].first_step:
            late = spike.first_step - explosions[0].first_step
            yield Evidence(0.7, f"the loss rose {late} steps after the gradient norm")
        elif spike is None and is_over(chart, problem):
            yield Evidence(-1.0, "the loss did not follow")
