"""hardware-fault."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step, is_brief, is_over, loss_moved_at, uneven_leap
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.records import number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.rank_divergence import AVERAGED
from torchdoctor.symptoms.weight_growth import lone_leap

GROWN = ("weight-growth", "activation-explosion")
"""Findings that come before the jump of a weight if the run itself diverges."""
HOT = 87.0
"""Temperature in degrees Celsius from which devices slow down."""


class HardwareFault(Cause):
    """The hardware gives wrong results, or is slower than it should be.

    ## What it is
    Memory errors, a device that throttles because of heat or lack of power, a full disk, or a bad link between devices:
    one step or one rank gives another result than the same code elsewhere.

    ## How to confirm it
    Repeat the step from a checkpoint on another device: it passes there. See also `nvidia-smi -q -d ECC,PERFORMANCE`,
    `dmesg | grep -i xid` and the temperature.

    ## What to change
    Restart from the last good checkpoint on another machine. Take the device out of service.

    ## How to see it cured
    The same steps pass on other hardware, without the wrong results.

    ## When to stop
    If the problem comes back at the same step on another machine, the cause is the code or the data.
    """

    name = "hardware-fault"
    explains = (
        "nan-or-inf",
        "loss-spike",
        "loss-divergence",
        "gradient-explosion",
        "weight-growth",
        "activation-explosion",
        "step-time-regression",
        "rank-divergence",
        "straggler-rank",
    )
    prior = -3.5
    suggests = ("check-hardware", "roll-back")
    references = ("https://arxiv.org/abs/2407.21783",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Memory errors, throttling, heat, and single events that nothing else in the run explains."""
        errors = chart["gpu_ecc_errors"]
        if errors and errors.latest > errors.first:
            text = f"the GPU reported {number_text(errors.latest - errors.first)} uncorrectable memory errors"
            yield Evidence(CERTAIN - 2, text)
        if problem.has("rank-divergence", "straggler-rank"):
            yield from _about_the_ranks(chart, problem)
            return
        if problem.has("step-time-regression"):
            throttled = chart["gpu_throttled"].last(16)
            if throttled.size and float(throttled.mean()) > 0.3:
                yield Evidence(5.0, f"the GPU was throttled in {share_text(throttled.mean())} of the last samples")
            heat = chart["gpu_temperature"].last(16)
            if heat.size and median(heat) >= HOT:
                yield Evidence(1.0, f"the GPU is at {median(heat):.0f} °C")
            return
        if leap := lone_leap(chart, back=64):
            # If the run had diverged before, any weight may jump: then the hardware is less likely.
            words = f"{leap.name} suddenly grew {number_text(leap.after / leap.before)} times; other weights did not"
            grown = [item.first_step for item in problem.symptoms if item.name in GROWN and item.severity != "info"]
            yield Evidence(3.0 if min(grown, default=leap.step) < leap.step else 6.0, words)
        elif uneven := uneven_leap(chart, breaking_step(problem)):
            yield Evidence(5.5, uneven)
        brief = problem.has("nan-or-inf", "loss-spike") and is_brief(problem) and is_over(chart, problem)
        if brief and not loss_moved_at(chart, problem.first_step - 1):
            yield Evidence(0.5, "it came without warning, lasted at most a few steps, and has not come back")


def _about_the_ranks(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Whether one rank differs from the others although all compute the same: that points to its hardware."""
    if problem.has("rank-divergence"):
        if chart["rank_gradients_apart"].latest > AVERAGED:
            yield Evidence(
                -3.0, "gradients are not averaged: ranks diverge because of the training loop, not the hardware"
            )
        elif chart["rank_apart"].latest >= 0:
            yield Evidence(
                4.0, f"only rank {chart['rank_apart'].latest:.0f} has other weights, although gradients are the same"
            )
    elif not chart["rank_lost"]:
        yield Evidence(2.0, f"only rank {chart['rank_slowest'].latest:.0f} is slow, in the same computation")
