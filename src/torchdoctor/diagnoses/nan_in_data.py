"""nan-in-data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import finite_beside, loss_was_finite, ran_away
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.configuration import logged_every
from torchdoctor.diagnoses.numeric_precision import fragile_loss, is_infinite_loss, is_safe_loss
from torchdoctor.diagnoses.origin import broken_before, is_a_plain_stack, origin_kind
from torchdoctor.diagnoses.ranking import GAP
from torchdoctor.records import names_text, number_text


class NanInData(Cause):
    """A batch contains NaN or infinity.

    ## What it is
    NaN or infinity in inputs or targets, from missing values, a division in the preprocessing or a corrupt file.

    ## How to confirm it
    The input of the first module is not finite at that step: ``torch.isfinite(x).all()`` is False.

    ## What to change
    Check batches before they reach the model, and drop or repair bad samples.

    ## How to see it cured
    The same step has a finite loss.
    """

    name = "nan-in-data"
    explains = ("nan-or-inf", "input-anomaly", "target-anomaly", "skipped-steps", "loss-spike")
    prior = -0.4
    suggests = ("clean-data", "skip-step", "roll-back")
    references = ("https://pytorch.org/docs/stable/generated/torch.isfinite.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Non-finite values counted in the batch, where the first one appeared, and what happened before."""
        place, step, count = _counted(chart, problem)
        if count > 0:
            yield Evidence(CERTAIN, f"{number_text(count)} values in the {place} of step {step} are not finite")
            return
        if not problem.has("nan-or-inf"):
            yield Evidence(-6.0, "the inspected batches were finite")
            return
        if _was_clean(chart, problem.first_step):
            yield Evidence(-4.0, f"the batch of step {problem.first_step} was finite")
        elif _is_one_batch(chart):
            yield Evidence(-4.0, "every step gets the same batch, which was finite before")
        if spared := finite_beside(chart, problem.first_step):
            yield Evidence(
                -1.5, f"the gradient of {names_text(spared)} was finite: bad data would affect every gradient"
            )
        elif not any(chart[name].nonfinite for name in ("grad_norm", "loss", *chart.losses)) and chart["loss"]:
            yield Evidence(-3.0, "loss and gradients were always finite")
        yield from _about_the_origin(chart, problem)
        yield from _about_the_beginning(chart, problem)


def _about_the_origin(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Where the first non-finite value appeared."""
    kind, module = origin_kind(chart, problem)
    if kind == "input":
        yield Evidence(6.0, f"the input of {module} already contained NaN or infinity")
    elif kind in ("output", "between"):
        place = f"in {module}" if kind == "output" else f"before {module}"
        yield Evidence(-5.0, f"the inputs were finite: the first NaN or infinity appeared {place}")
    elif broken := broken_before(chart, problem):
        yield Evidence(
            -5.0, f"weights broke first: {names_text(broken)} had NaN or infinity before any update could cause it"
        )
    elif loss_was_finite(chart, problem.first_step):
        yield Evidence(-3.0, "the loss was finite, but its gradients were not")
    elif is_safe_loss(chart):
        text = f"the loss was the first non-finite value, but {chart.fact('loss.kind')} of finite numbers is finite"
        if is_a_plain_stack(chart):
            yield Evidence(1.5, f"{text}, and so are outputs of ordinary layers for finite inputs")
        else:
            yield Evidence(0.5, text)
    elif fragile := fragile_loss(chart):
        yield Evidence(-1.0, f"the loss is computed with a {fragile}, which can become non-finite by itself")


def _about_the_beginning(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """The kind of the first non-finite value, and what came before it; nothing if the input was bad."""
    if origin_kind(chart, problem)[0] == "input":
        return
    if is_infinite_loss(chart, problem):
        yield Evidence(-1.5, "the loss was infinite, but NaN in the data would make it NaN")
    first = next(symptom.first_step for symptom in problem.symptoms if symptom.name == "nan-or-inf")
    trouble = problem.began_with(first, "gradient-explosion", "loss-spike", "loss-divergence")
    if trouble or ran_away(chart, first):
        yield Evidence(-1.5, "the run was in trouble before the first non-finite value")
    else:
        calm = "the loss neither spiked nor diverged" + ", and gradients did not explode" * bool(chart["grad_norm"])
        within = min(first, GAP * logged_every(chart))
        when = f"in the {within} steps before" if within > 1 else "before"
        yield Evidence(0.5, f"{calm} {when} the first non-finite value")


def _is_one_batch(chart: Chart, fewest: int = 3) -> bool:
    """Whether all inspected batches are the same one, as when the whole data set is a single batch."""
    contents, wrong = chart["input_content"].values, chart["input_nonfinite"]
    finite = not wrong or float(wrong.values.max()) == 0
    return finite and contents.size >= fewest and float(np.ptp(contents)) == 0


def _was_clean(chart: Chart, step: int) -> bool:
    """Whether inputs and targets of a step were inspected and finite; tokens and labels always are."""
    if chart["token_top_share"] and chart["target_classes"] and not chart["input_std"]:
        return True
    seen = [chart[vital] for vital in ("input_nonfinite", "target_nonfinite")]
    clean = [bool((series.values[series.steps == step] == 0).any()) for series in seen]
    return clean[0] and (clean[1] or bool(chart["target_classes"]))


def _counted(chart: Chart, problem: Problem) -> tuple[str, int, float]:
    """Where, when and how many values of a batch were not finite during the problem; 0 if none were seen."""
    counts = (("inputs", "input_nonfinite"), ("targets", "target_nonfinite"), ("batch", "batch_nonfinite"))
    for place, vital in counts:
        series = chart[vital]
        for step, count in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            if count > 0 and problem.first_step - 2 <= step <= problem.last_step + 1:
                return place, step, count
    return "", 0, 0.0
