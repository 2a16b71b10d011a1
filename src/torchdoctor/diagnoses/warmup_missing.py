"""warmup-missing."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import SHARP, breaking_step, is_brief, level_about, ran_away
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_attention, optimizer_names, thrown_at_first
from torchdoctor.diagnoses.lr_too_high import USUAL_ATTENTION
from torchdoctor.records import number_text
from torchdoctor.symptoms.progress import Progress

EARLY = 300
"""Steps that count as the beginning of a run."""
FIRST = 5
"""First steps, any of which may break a run before a rise can be seen."""
LEARNT = 60
"""Steps after which a run that has learned shows that it tolerates its learning rate."""
FADED = ("collapsed-output", "dead-units")
"""Findings about a deep stack whose first steps were too long."""
NORMS = ("LayerNorm", "RMSNorm")


class WarmupMissing(Cause):
    """The learning rate starts at its full value, without a warm-up.

    ## What it is
    In the first steps, gradients are large and the averages of an adaptive optimizer are not yet reliable, so full-size
    steps can ruin the weights.

    ## How to confirm it
    The problem is in the first few hundred steps, the learning rate never rose, and a warm-up removes the problem.

    ## What to change
    Raise the learning rate linearly over the first few hundred to few thousand steps.

    ## How to see it cured
    The early spike is gone, and the loss is lower at the same step.
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
        """When the problem began, and how the learning rate started."""
        rates = chart["lr"]
        onset = breaking_step(problem)
        faded = min((item.first_step for item in problem.symptoms if item.name in FADED), default=0)
        if 0 < faded <= EARLY and is_post_norm(chart):
            yield Evidence(
                2.0, f"the model normalizes after the residual sum (post-norm), and lost its signal by step {faded}"
            )
        elif (thrown := thrown_at_first(chart, problem)) > 0:
            text = f"the first steps changed the weights by {number_text(thrown)} of their norm each"
            yield Evidence(2.0, f"{text}, and the signal was lost by step {faded}")
        elif not problem.has(*SHARP, "gradient-instability"):
            yield Evidence(-2.5, "nothing broke in the first steps")
        if chart.context.get("clock") == "row":
            yield Evidence(-2.0, "the log has no step numbers: the run may have begun long before it")
            return
        if onset > EARLY:
            yield Evidence(-5.0, f"the problem began at step {onset}, long after a warm-up would have ended")
            return
        if onset > LEARNT and _had_learnt(chart, onset):
            yield Evidence(-2.5, f"the run had learned for {onset} steps when it broke")
        yield from _about_the_onset(chart, problem, onset)
        if is_brief(problem) and not problem.grave("loss-spike", "loss-divergence"):
            yield Evidence(-2.0, "the loss was not affected")
        buckets = rates.outline.buckets()
        if buckets:
            top = max(bucket[3] for bucket in buckets if bucket[0] <= EARLY)
            if rates.first < 0.5 * top:
                low = number_text(rates.first)
                yield Evidence(-5.0, f"the learning rate was warmed up from {low} to {number_text(top)}")
            else:
                yield Evidence(1.5, f"the learning rate was {number_text(rates.first)} from the first step on")
        yield from _about_the_model(chart)


def _had_learnt(chart: Chart, onset: int) -> bool:
    """Whether the loss had made more than half of its total descent before the onset."""
    losses = chart["loss"]
    progress = Progress.of(losses) if losses else Progress(0.0, 0.0)
    before = level_about(losses, onset - 24, onset - 1)
    return progress.is_learning(0.0) and before < progress.start - 0.5 * progress.descent


def _about_the_onset(chart: Chart, problem: Problem, onset: int) -> Iterator[Evidence]:
    if onset == 0 and problem.has(*SHARP):
        yield Evidence(-3.0, "the problem existed before the first step")
    elif problem.names == ("nan-or-inf",) and onset > FIRST and not ran_away(chart, onset):
        yield Evidence(-1.5, "neither gradient norm nor loss had risen before the first non-finite value")
    elif onset <= EARLY // 3:
        yield Evidence(1.0, f"the problem began at step {onset}")


def is_post_norm(chart: Chart) -> bool:
    """Whether attention runs before any normalization layer (post-norm): such models need a warm-up most."""
    kinds = chart.fact("modules.kinds") or ()
    norms = [index for index, kind in enumerate(kinds) if kind in NORMS]
    return "MultiheadAttention" in kinds and len(norms) > 2 and kinds.index("MultiheadAttention") < norms[0]


def _about_the_model(chart: Chart) -> Iterator[Evidence]:
    adaptive, attention, rate = "Adam" in optimizer_names(chart), has_attention(chart), chart["lr"].latest
    if chart.fact("modules.kinds") is not None and not attention:
        yield Evidence(-1.0, "the model has no attention, and attention needs a warm-up most")
    elif attention and adaptive and rate > USUAL_ATTENTION:
        yield Evidence(-1.0, f"a learning rate of {number_text(rate)} is too high even with a warm-up")
    if adaptive:
        yield Evidence(0.4, "Adam's running averages are unreliable in the first steps")
