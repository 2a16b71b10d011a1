"""clip-missing."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_recurrence, is_over
from torchdoctor.records import number_text

TOO_EARLY = 10
"""Steps before which no norm has a recent scale to leap from."""


class ClipMissing(Cause):
    """Rare huge gradients pass unclipped: nobody clips, or too late.

    ## What it is
    Now and then a batch gives a gradient many times the usual. Without clipping it moves the weights as far.

    ## How to confirm it
    The explosions come back, each is followed by damage, and the loop does not clip.

    ## What to change
    Clip the total norm between ``backward()`` and ``step()``.

    ## How to see it cured
    The same raw norms appear, and the loss no longer follows them.
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
        """Whether the loop clips, whether explosions recur, and whether they did harm."""
        if chart.fact("clip.after_step"):
            yield Evidence(CERTAIN, "clipping comes after the step that it should protect")
            return
        if "clip" in chart:
            yield Evidence(-6.0, f"the loop clips at {number_text(chart['clip'].latest)}")
            return
        gated = problem.get("saturated-activations")
        if gated is not None and gated.severity != "info":
            yield Evidence(-2.0, "units were at their extremes from the start: there is more to mend than a rare leap")
        if has_recurrence(chart) and problem.grave("gradient-explosion", "loss-spike", "loss-divergence", "nan-or-inf"):
            yield Evidence(2.5, "gradients of a recurrent layer pass the same weights at every position")
        explosions = [item for item in problem.symptoms if item.name == "gradient-explosion"]
        if not explosions:
            if problem.first_step >= TOO_EARLY:  # before that there is nothing that a norm could leap from
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
