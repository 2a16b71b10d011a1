"""nan-in-data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import finite_beside, loss_was_finite, ran_away
from torchdoctor.diagnoses.numeric_precision import fragile_loss, is_infinite_loss, is_safe_loss
from torchdoctor.diagnoses.origin import broken_before, is_a_plain_stack, origin_kind
from torchdoctor.records import names_text, number_text


class NanInData(Cause):
    """A batch holds values that are not finite.

    ## What it is
    NaN or infinity in inputs or targets: missing values, a division in the preprocessing, a corrupt file.

    ## How to confirm it
    The input of the first module is not finite at that step: ``torch.isfinite(x).all()``.

    ## What to change
    Check batches before the model sees them; drop or repair the samples.

    ## How to see it cured
    The same step passes with a finite loss.
    """

    name = "nan-in-data"
    explains = ("nan-or-inf", "input-anomaly", "target-anomaly", "skipped-steps", "loss-spike")
    prior = -0.4
    suggests = ("clean-data", "skip-step", "roll-back")
    references = ("https://pytorch.org/docs/stable/generated/torch.isfinite.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Values that were counted in the batch, where the first was seen, and what came before it."""
        place, step, count = _counted(chart, problem)
        if count > 0:
            yield Evidence(CERTAIN, f"{number_text(count)} values of the {place} of step {step} are not finite")
            return
        if not problem.has("nan-or-inf"):
            yield Evidence(-6.0, "the batches looked at were finite")
            return
        if _was_clean(chart, problem.first_step):
            yield Evidence(-4.0, f"the batch of step {problem.first_step} was finite")
        elif _is_one_batch(chart):
            yield Evidence(-4.0, "every step is given the same batch, which was finite before")
        if spared := finite_beside(chart, problem.first_step):
            yield Evidence(-1.5, f"the gradient of {names_text(spared)} was finite: bad data would be in all of them")
        elif not chart["grad_norm"].nonfinite and not chart["loss"].nonfinite:
            yield Evidence(-3.0, "neither a loss nor a gradient was ever not finite")
        yield from _about_the_origin(chart, problem)
        yield from _about_the_beginning(chart, problem)


def _about_the_origin(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """Where the first was seen."""
    kind, module = origin_kind(chart, problem)
    if kind == "input":
        yield Evidence(6.0, f"the input of {module} was already not finite")
    elif kind in ("output", "between"):
        place = f"in {module}" if kind == "output" else f"before {module}"
        yield Evidence(-5.0, f"the inputs were finite: it began {place}")
    elif broken := broken_before(chart, problem):
        yield Evidence(-5.0, f"it began in weights: {names_text(broken)} broke before any update could have done it")
    elif loss_was_finite(chart, problem.first_step):
        yield Evidence(-3.0, "the loss was finite, and its gradients were not")
    elif is_safe_loss(chart):
        text = f"the loss itself was the first: a {chart.fact('loss.kind')} of finite numbers is finite"
        if is_a_plain_stack(chart):
            yield Evidence(1.5, f"{text}, and so is what ordinary layers make of them")
        else:
            yield Evidence(0.5, text)
    elif fragile := fragile_loss(chart):
        yield Evidence(-1.0, f"the loss takes a {fragile}, which can fail by itself")


def _about_the_beginning(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    """What kind of value was the first, and what came before it; nothing more is asked of a bad input."""
    if origin_kind(chart, problem)[0] == "input":
        return
    if is_infinite_loss(chart, problem):
        yield Evidence(-1.5, "the loss was infinite: a value in the data that is no number would make it none either")
    first = next(symptom.first_step for symptom in problem.symptoms if symptom.name == "nan-or-inf")
    trouble = problem.began_with(first, "gradient-explosion", "loss-spike", "loss-divergence")
    if trouble or ran_away(chart, first):
        yield Evidence(-1.5, "the run was in trouble before the first value that was not finite")
    else:
        yield Evidence(0.5, "nothing had announced it")


def _is_one_batch(chart: Chart, fewest: int = 3) -> bool:
    """Whether all batches looked at are one and the same, as where all the data there are make one."""
    contents, wrong = chart["input_content"].values, chart["input_nonfinite"]
    finite = not wrong or float(wrong.values.max()) == 0
    return finite and contents.size >= fewest and float(np.ptp(contents)) == 0


def _was_clean(chart: Chart, step: int) -> bool:
    """Whether inputs and targets of a step were looked at, and all were finite; tokens and labels always are."""
    if chart["token_top_share"] and chart["target_classes"] and not chart["input_std"]:
        return True
    seen = [chart[vital] for vital in ("input_nonfinite", "target_nonfinite")]
    clean = [bool((series.values[series.steps == step] == 0).any()) for series in seen]
    return clean[0] and (clean[1] or bool(chart["target_classes"]))


def _counted(chart: Chart, problem: Problem) -> tuple[str, int, float]:
    """Where, when and how many values of a batch were not finite while the problem was there; 0 where none was seen."""
    counts = (("inputs", "input_nonfinite"), ("targets", "target_nonfinite"), ("batch", "batch_nonfinite"))
    for place, vital in counts:
        series = chart[vital]
        for step, count in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            if count > 0 and problem.first_step - 2 <= step <= problem.last_step + 1:
                return place, step, count
    return "", 0, 0.0
