"""When to stop debugging: changes did not help, nothing is left to gain, or the budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from torchdoctor.consulting.casebook import IN_VAIN, Case
from torchdoctor.consulting.complaints import seen
from torchdoctor.consulting.question import Answers
from torchdoctor.reports.problem import stands_out
from torchdoctor.reports.report import Report

PATIENCE = 3
"""Changes in a row without success after which another one is not worth trying."""
FLOOR = 2
"""Changes in a row within the noise, with nothing left to fix, after which to stop: one alone may be the wrong one."""
INSTEAD = (
    "Consider instead: a different architecture, a different formulation of the task, more or better data, asking a "
    "colleague, or the literature."
)


def in_vain(history: Sequence[Case]) -> int:
    """How many of the latest changes in a row did nothing or did harm."""
    return len(list(takewhile(lambda case: case.outcome in IN_VAIN, reversed(_told(history)))))


def _told(history: Sequence[Case]) -> list[Case]:
    return [case for case in history if case.outcome not in (None, "not-tried")]


def reasons_to_stop(answers: Answers, report: Report, history: Sequence[Case]) -> tuple[str, ...]:
    """Reasons to stop; empty to continue.

    >>> tried = [Case(str(number), "", outcome="nothing") for number in range(3)]
    >>> len(reasons_to_stop({}, Report(step=9), tried)), reasons_to_stop({}, Report(step=9), tried[:2])
    (1, ())
    """
    found = []
    count = in_vain(history)
    if count >= PATIENCE:
        names = ", ".join(dict.fromkeys(case.action for case in history[-count:] if case.action))
        found.append(
            f"{count} changes in a row did not help{f' ({names})' if names else ''}: the problem may be fundamental, "
            "in the data, the task or the architecture. Stop tuning hyperparameters."
        )
    best = report.diagnoses[0] if report.diagnoses else None
    if best is not None and best.cause == "converged" and stands_out(best):
        found.append("Most likely nothing is wrong: the run has converged.")
    elif answers.get("at_floor") == "yes":
        found.append("You say that the loss is at its theoretical minimum: there is nothing left to gain.")
    latest = _told(history)[-FLOOR:]
    stands = "plateau" in seen(report.symptoms)
    if len(latest) == FLOOR and all(case.at_noise_floor for case in latest) and not stands:
        found.append(f"The last {FLOOR} changes moved the loss by less than its noise: this is the noise floor.")
    if answers.get("budget") == 0:
        found.append("The budget for test runs is spent: keep the best weights, and write down what you know.")
    step, total = answers.get("current_step"), answers.get("total_steps")
    if isinstance(step, float) and isinstance(total, float) and step >= total > 1 and not report.symptoms:
        found.append("The run has reached its planned end, and nothing was found.")
    return tuple(found)
