"""hardware-fault."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import breaking_step, is_brief, is_over, loss_moved_at, uneven_leap
from torchdoctor.records import number_text
from torchdoctor.series import median
from torchdoctor.symptoms.rank_divergence import AVERAGED
from torchdoctor.symptoms.weight_growth import lone_leap

GROWN = ("weight-growth", "activation-explosion")
"""What a run that breaks by itself has before a weight leaps."""
HOT = 87.0
"""Degrees Celsius at which devices slow themselves down."""


class HardwareFault(Cause):
    """The machine computes something else than it should, or slower.

    ## What it is
    Memory errors, a device that throttles because it is hot or short of power, a full disk, a bad link between devices:
    one step or one rank differs from what the same code gives elsewhere.

    ## How to confirm it
    Repeat the step from a checkpoint on another device: it passes. `nvidia-smi -q -d ECC,PERFORMANCE`, `dmesg | grep
    -i xid` and the temperature tell more.

    ## What to change
    Restart from the last good checkpoint on another machine; take the device out of service.

    ## How to see it cured
    The same steps pass elsewhere with the numbers that they had before.

    ## When to stop
    When it comes back at the same step on another machine: then it is the code or the data.
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
        """Memory errors, throttling, heat; a lone event that nothing else in the run announced."""
        errors = chart["gpu_ecc_errors"]
        if errors and errors.latest > errors.first:
            text = f"the device counted {number_text(errors.latest - errors.first)} memory errors it could not correct"
            yield Evidence(CERTAIN - 2, text)
        if problem.has("rank-divergence", "straggler-rank"):
            yield from _about_the_ranks(chart, problem)
            return
        if problem.has("step-time-regression"):
            throttled = chart["gpu_throttled"].last(16)
            if throttled.size and float(throttled.mean()) > 0.3:
                yield Evidence(5.0, f"the device was throttled at {throttled.mean():.0%} of the last looks")
            heat = chart["gpu_temperature"].last(16)
            if heat.size and median(heat) >= HOT:
                yield Evidence(1.0, f"it is {median(heat):.0f} degrees hot")
            return
        if leap := lone_leap(chart, back=64):
            # A run that had broken before may do so anywhere, and is no machine's fault.
            words = f"{leap.name} grew {number_text(leap.after / leap.before)} times at once, and nothing else"
            grown = [item.first_step for item in problem.symptoms if item.name in GROWN and item.severity != "info"]
            yield Evidence(3.0 if min(grown, default=leap.step) < leap.step else 6.0, words)
        elif uneven := uneven_leap(chart, breaking_step(problem)):
            yield Evidence(5.5, uneven)
        if problem.has("nan-or-inf", "loss-spike") and is_brief(problem) and is_over(chart, problem):
            lone = not loss_moved_at(chart, problem.first_step - 1)
            yield Evidence(0.5 if lone else 0.0, "one step stood out, and nothing before or after it")


def _about_the_ranks(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """One rank among several that differs while all do the same is its machine's matter."""
    if problem.has("rank-divergence"):
        if chart["rank_gradients_apart"].latest > AVERAGED:
            yield Evidence(-3.0, "gradients are not averaged: the loop, not a machine, lets ranks go their own ways")
        elif chart["rank_apart"].latest >= 0:
            yield Evidence(
                4.0, f"rank {chart['rank_apart'].latest:.0f} alone has other weights, with the same gradients"
            )
    elif not chart["rank_lost"]:
        yield Evidence(2.0, f"rank {chart['rank_slowest'].latest:.0f} alone is slow, in the same computation")
