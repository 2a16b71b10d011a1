"""numeric-precision."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import finite_beside, loss_was_finite, ran_away, update_level
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import has_attention
from torchdoctor.diagnoses.origin import is_a_plain_stack, may_divide, origin_kind
from torchdoctor.records import names_text, number_text, share_text
from torchdoctor.series import median
from torchdoctor.symptoms.gradient_vanishing import weight_columns
from torchdoctor.symptoms.no_gradient import UNDERFLOW
from torchdoctor.symptoms.target_values import averaged_nothing

GROWTH = ("gradient-explosion", "loss-spike", "loss-divergence", "weight-growth", "activation-explosion")
"""Findings that precede an overflow."""
SMALLEST_HALF = 2.0**-24
"""The smallest positive number of float16. Anything below half of it rounds to zero."""
SAFE = ("mse", "l1", "smooth-l1", "huber", "cross-entropy")
"""Kinds of loss that are finite for finite outputs and targets, unless they overflow."""


class NumericPrecision(Cause):
    """A value left the range of its number format, or an operation was undefined.

    ## What it is
    float16 overflows above 65,504 and rounds numbers below 6e-8 to zero. Weights in bfloat16 lose small updates.
    log(0), 0/0 and the derivative of a root or a norm at 0 are not finite in any format.

    ## How to confirm it
    Inputs and weights are finite, but a module's output or gradient is not. Repeat the step in float32: if it passes,
    the cause is the range, otherwise the operation. ``torch.autograd.detect_anomaly()`` names the operation.

    ## What to change
    Use bfloat16 or float32 for that part. Put an epsilon inside log, sqrt and divisions. Use log-softmax instead of
    the log of a softmax.

    ## How to see it cured
    The same batch gives a finite loss and finite gradients.
    """

    name = "numeric-precision"
    explains = (
        "nan-or-inf",
        "skipped-steps",
        "slow-learning",
        "not-learning",
        "frozen-weights",
        "gradient-vanishing",
        "loss-plateau",
        "no-gradient",
        "underfitting",
    )
    prior = -0.8
    suggests = ("change-precision", "skip-step")
    references = ("https://pytorch.org/docs/stable/notes/amp_examples.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """The number formats, where the first non-finite value was, and what came before it."""
        formats = str(chart.context.get("autocast") or "") + " " + str(chart.context.get("precision") or "")
        if "float16" in formats.replace("bfloat16", ""):
            yield Evidence(1.5, "part of the run is in float16, which overflows above 65,504 and underflows below 6e-8")
            if _is_unscaled(chart):
                yield Evidence(1.0, "float16 autocast runs without a gradient scaler")
        if problem.has("skipped-steps"):
            yield from _about_the_scale(chart, problem)
        symptom = problem.get("nan-or-inf")
        if symptom is None or averaged_nothing(chart, symptom.first_step):
            yield from _about_rounding(chart, problem) if symptom is None else _spares_the_gradients(symptom.first_step)
            return
        step = symptom.first_step
        if (vanished := eps_below_the_format(chart)) is not None:
            text = f"weights are in float16, where the optimizer's eps of {number_text(vanished)} rounds to 0: "
            yield Evidence(4.0, f"{text}the step divides by zero if a squared gradient rounds to 0 too")
        overflowed = is_overflow_of_a_batch(chart, problem)
        if loss_was_finite(chart, step) is False and not overflowed and (spared := finite_beside(chart, step)):
            text = f"the loss was not finite, but the gradient of {names_text(spared)} was: a mask blocks the way to it"
            yield Evidence(2.5, text)
        yield from _about_the_origin(chart, problem, step)
        if is_infinite_loss(chart, problem) and not overflowed:
            yield Evidence(1.5, "the loss became infinite in one step: a division by zero or a log of zero")
        if problem.began_with(step, *GROWTH, "unexpected-initial-loss") or ran_away(chart, step):
            yield Evidence(-1.5, "loss, gradients or weights had already grown before that")
        if not problem.has("skipped-steps") and chart["loss_scale"].latest < 1e-2 * chart["loss_scale"].first:
            yield Evidence(1.5, "the loss scale has collapsed")


def _spares_the_gradients(step: int) -> Iterator[Evidence]:
    """A non-finite loss without harm to any gradient: the loss ignored its labels, and no arithmetic failed."""
    yield Evidence(-3.0, f"every gradient of step {step} is exactly zero: an undefined operation would have spread")


def eps_below_the_format(chart: Chart) -> float | None:
    """The eps of an optimizer if it rounds to zero because the weights are in float16; else None."""
    if "float16" not in [str(item).removeprefix("torch.") for item in chart.context.get("precision") or ()]:
        return None
    known = [group.get("eps") for group in chart.groups]
    return next((eps for eps in known if isinstance(eps, float) and 0 <= eps < SMALLEST_HALF / 2), None)


def is_underflow(chart: Chart, samples: int = 3) -> bool:
    """Whether float16 rounds gradients to zero at the last samples: of all weights, or of those before tiny ones.

    The graph must be whole. Under autocast without a gradient scaler, weights are in float32, so their gradients may be
    zero for another reason as well, unless the loss per output is beyond float16 or other gradients are close to it.
    """
    formats = {str(item).removeprefix("torch.") for item in chart.context.get("precision") or ()}
    norms = chart.tensors("grad_norm").matrix(samples)
    cut = chart.fact("graph.detached") or chart.fact("graph.cut") or chart.fact("graph.absent")
    if cut or norms.shape[0] < samples or not abs(chart["loss"].latest) > 0 or (norms > 0).all(axis=1).any():
        return False
    if not norms.any():
        return formats == {"float16"} or (_is_unscaled(chart) and _share_of_an_output(chart) < SMALLEST_HALF)
    if not (_is_unscaled(chart) or formats == {"float16"}) or norms.shape[1] != len(chart.names):
        return False
    known = norms[:, list(weight_columns(chart.names))]
    left = known[known > 0].min(initial=math.inf)
    return bool((known == 0).all(axis=0).any()) and (_share_of_an_output(chart) < SMALLEST_HALF or left < UNDERFLOW)


def _is_unscaled(chart: Chart) -> bool:
    """Whether autocast uses float16 and no gradient scaler was seen."""
    unseen = chart.context.get("scaler") is None and not chart["loss_scale"]
    return unseen and str(chart.context.get("autocast") or "") == "float16"


def _share_of_an_output(chart: Chart) -> float:
    """About the gradient of a mean loss for one number of the outputs; infinity if their count is unknown."""
    widths = dict(zip(chart.fact("modules.names") or (), chart.fact("modules.widths") or (), strict=False))
    width = max((widths.get(name, 0) for name in chart.fact("modules.outputs") or ()), default=0)
    loss, batch = abs(chart["loss"].latest), chart.context.get("batch_size")
    count = batch * width if isinstance(batch, int) else 0
    return (math.sqrt(loss) if chart.fact("loss.kind") == "mse" else loss) / count if count > 0 else math.inf


def _strength(chart: Chart) -> float:
    """The weight of this evidence: higher with attention, where a fully masked row gives 0/0."""
    return 1.5 if has_attention(chart) else 0.7


def fragile_loss(chart: Chart) -> str:
    """The operation in the loss that may be undefined; empty if none was seen."""
    if fragile := chart.fact("loss.fragile"):
        return " and a ".join(fragile)
    kinds = dict(zip(chart.fact("modules.names") or (), chart.fact("modules.kinds") or (), strict=False))
    last = {kinds.get(name) for name in chart.fact("modules.outputs") or ()}
    if chart.fact("loss.kind") is None and last & {"Sigmoid", "Softmax"}:
        return "function of probabilities, perhaps a log"
    return ""


def is_safe_loss(chart: Chart) -> bool:
    """Whether the loss is finite whenever outputs and targets are finite.

    A loss written by hand may take a log of the targets or divide by them. Targets have no graph, so that is not seen.
    """
    by_hand = chart.fact("loss.reduction") is None and chart.fact("loss.function") is None
    return chart.fact("loss.kind") in SAFE and not chart.fact("loss.hidden") and not by_hand


def is_infinite_loss(chart: Chart, problem: Problem) -> bool:
    """Whether the loss became infinite in one step of an ordinary run. NaN in the data would give NaN, not infinity."""
    symptom = problem.get("nan-or-inf")
    return (
        symptom is not None
        and symptom.value == math.inf
        and loss_was_finite(chart, symptom.first_step) is False
        and not problem.began_with(symptom.first_step, *GROWTH)
    )


def is_overflow_of_a_batch(chart: Chart, problem: Problem) -> bool:
    """Whether the loss became infinite although model and loss never divide: then the batch holds a huge number."""
    return is_infinite_loss(chart, problem) and is_safe_loss(chart) and is_a_plain_stack(chart)


def _about_the_origin(chart: Chart, problem: Problem, step: int) -> Iterator[Evidence]:
    """Where the first non-finite value was seen: in a module, in the loss, or in the gradients."""
    kind, module = origin_kind(chart, problem)
    if kind == "output":
        yield Evidence(2.5, f"{module} turned finite inputs and weights into non-finite values")
    elif kind == "between":
        text = f"the model's inputs were finite, but the input of {module} was not: a division or a root before it"
        yield Evidence(4.0, f"{text} is undefined")
    elif kind == "input":
        yield Evidence(-4.0, "the input was already not finite")
    elif chart["loss"] and loss_was_finite(chart, step) and chart["grad_norm"].nonfinite:
        text = "the loss was finite, but its gradients were not"
        grown = ran_away(chart, step)  # then the square of a finite number may overflow
        yield Evidence(0.0 if grown else 2.5, text if grown else f"{text}: a derivative is undefined")
    elif (fragile := fragile_loss(chart)) and loss_was_finite(chart, step) is False:
        yield Evidence(2.5, f"the loss was the first non-finite value, and it is computed with a {fragile}")
    elif is_safe_loss(chart):
        loss = chart.fact("loss.kind")
        if is_a_plain_stack(chart):
            yield Evidence(-1.0, f"the {loss} loss of finite numbers is finite, and ordinary layers keep them finite")
        elif not problem.began_with(step, *GROWTH):
            yield Evidence(_strength(chart), f"{may_divide(chart)} may divide or mask before the {loss} loss")
    elif kind != "input" and not problem.began_with(step, *GROWTH):
        what = "the loss" if "loss" in chart or chart.losses else "a number"
        text = f"{what} became non-finite in one step: it may contain a log, a root or a division"
        yield Evidence(_strength(chart), text)


def _about_the_scale(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    scale = chart["loss_scale"]
    if scale.latest < 1:
        yield Evidence(3.0, f"the loss scale fell from {number_text(scale.first)} to {number_text(scale.latest)}")
    if not problem.has("gradient-explosion", "loss-divergence", "loss-spike"):
        yield Evidence(1.5, "gradients overflow although neither loss nor gradients had grown")


def _about_rounding(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Whether updates are rounded away: bfloat16 has eight bits of precision, so updates below that are lost."""
    if problem.has("skipped-steps"):
        return
    lost = chart["update_lost"].last(4)
    if lost.size and median(lost) > 0.5:
        share = f"{share_text(median(lost))}"
        yield Evidence(CERTAIN - 2, f"{share} of the weights with a gradient did not change: updates are rounded away")
        return
    formats, ratio = [str(item) for item in chart.context.get("precision") or ()], update_level(chart, chart.step + 1)
    half = formats and all(item in ("bfloat16", "float16") for item in formats)
    if problem.has("no-gradient") and is_underflow(chart):
        which = "some" if chart.tensors("grad_norm").latest.any() else "all"
        text = f"backward reaches every weight, but {which} gradients are exactly zero: float16 cannot hold numbers"
        missing = ", and no gradient scaler lifts them" if _is_unscaled(chart) else ""
        yield Evidence(CERTAIN - 2, f"{text} below 6e-8{missing}")
        return
    if half and ratio < 2**-8 and problem.has("slow-learning", "frozen-weights"):
        low = number_text(ratio)
        yield Evidence(3.5, f"weights are in {formats[0]}, where updates of {low} of a weight are rounded away")
    else:
        yield Evidence(-2.5, "all values are finite")
