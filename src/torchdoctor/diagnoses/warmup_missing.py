"""warmup-missing."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import (
    SHARP,
    breaking_step,
    has_attention,
    is_brief,
    level_about,
    optimizer_names,
    ran_away,
    thrown_at_first,
)
from torchdoctor.diagnoses.lr_too_high import USUAL_ATTENTION
from torchdoctor.records import number_text
from torchdoctor.symptoms.progress import Progress

EARLY = 300
"""Steps that count as the beginning."""
FIRST = 5
"""Steps of which each may break a run before anything can be seen to grow."""
LEARNT = 60
"""Steps in which a run that learns shows that it bears its rate."""
FADED = ("collapsed-output", "dead-units")
"""What a deep stack comes to when its first steps were too long."""
NORMS = ("LayerNorm", "RMSNorm")


class WarmupMissing(Cause):
    """The learning rate begins at full height.

    ## What it is
    In the first steps gradients are large and an adaptive optimizer's averages are not yet worth anything: full
    steps then throw the weights far off.

    ## How to confirm it
    The trouble is in the first few hundred steps, the learning rate never rose, and a warm-up removes it.

    ## What to change
    Raise the learning rate linearly over the first few hundred to few thousand steps.

    ## How to see it cured
    The early spike is gone and the loss is lower at the same step.
    """

    name = "warmup-missing"
    explains = (
        "gradient-explosion",
        "loss-spike",
        "loss-divergence",
        "gradient-instability",
        "nan-or-inf",
        "update-ratio-abnormal",
        "dead-units",
        "collapsed-output",
        "not-learning",
        "loss-plateau",
    )
    prior = -2.5
    suggests = ("restart-warmup", "scale-lr")
    references = ("https://arxiv.org/abs/2002.04745",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """When it began, and what the rate did from the first step."""
        rates = chart["lr"]
        onset = breaking_step(problem)
        faded = min((item.first_step for item in problem.symptoms if item.name in FADED), default=0)
        if 0 < faded <= EARLY and is_post_norm(chart):
            yield Evidence(2.0, f"norms come after the residual sums, and by step {faded} the signal was lost")
        elif (thrown := thrown_at_first(chart, problem)) > 0:
            text = f"weights moved by {number_text(thrown)} of themselves a step at first"
            yield Evidence(2.0, f"{text}, and by step {faded} the signal was lost")
        elif not problem.has(*SHARP, "gradient-instability"):
            yield Evidence(-2.5, "nothing broke in the first steps")
        if chart.context.get("clock") == "row":
            yield Evidence(-2.0, "the log counts no steps: the run may have begun long before it")
            return
        if onset > EARLY:
            yield Evidence(-5.0, f"it began at step {onset}, long after a warm-up would have ended")
            return
        if onset > LEARNT and _had_learnt(chart, onset):
            yield Evidence(-2.5, f"the run had learnt for {onset} steps when it broke")
        yield from _about_the_onset(chart, problem, onset)
        if is_brief(problem) and not problem.grave("loss-spike", "loss-divergence"):
            yield Evidence(-2.0, "the loss took no harm")
        buckets = rates.outline.buckets()
        if buckets:
            top = max(bucket[3] for bucket in buckets if bucket[0] <= EARLY)
            if rates.first < 0.5 * top:
                low = number_text(rates.first)
                yield Evidence(-5.0, f"the learning rate was warmed up from {low} to {number_text(top)}")
            else:
                yield Evidence(1.5, f"the learning rate was {number_text(rates.first)} from the first step")
        yield from _about_the_model(chart)


def _had_learnt(chart: Chart, onset: int) -> bool:
    """Whether the loss before an onset was in the lower half of what it has come down by."""
    losses = chart["loss"]
    progress = Progress.of(losses) if losses else Progress(0.0, 0.0)
    before = level_about(losses, onset - 24, onset - 1)
    return progress.is_learning(0.0) and before < progress.start - 0.5 * progress.descent


def _about_the_onset(chart: Chart, problem: Problem, onset: int) -> Iterator[Evidence]:
    if onset == 0 and problem.has(*SHARP):
        yield Evidence(-3.0, "it was there before the first step was taken")
    elif problem.names == ("nan-or-inf",) and onset > FIRST and not ran_away(chart, onset):
        yield Evidence(-1.5, "neither gradient norm nor loss had risen before the first value that was not finite")
    elif onset <= EARLY // 3:
        yield Evidence(1.0, f"it began at step {onset}")


def is_post_norm(chart: Chart) -> bool:
    """Whether an attention runs before any norm layer does: such stacks are the ones that cannot do without."""
    kinds = chart.fact("modules.kinds") or ()
    norms = [index for index, kind in enumerate(kinds) if kind in NORMS]
    return "MultiheadAttention" in kinds and len(norms) > 2 and kinds.index("MultiheadAttention") < norms[0]


def _about_the_model(chart: Chart) -> Iterator[Evidence]:
    adaptive, attention, rate = "Adam" in optimizer_names(chart), has_attention(chart), chart["lr"].latest
    if chart.fact("modules.kinds") is not None and not attention:
        yield Evidence(-1.0, "the model has no attention, which is what needs a warm-up most")
    elif attention and adaptive and rate > USUAL_ATTENTION:
        yield Evidence(-1.0, f"a warm-up alone would not make a rate of {number_text(rate)} bearable")
    if adaptive:
        yield Evidence(0.4, "Adam's averages are young in the first steps")
