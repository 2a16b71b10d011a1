"""Several runs side by side: which did best, and what was wrong with the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchdoctor.records import number_text
from torchdoctor.reports.report import Report
from torchdoctor.reports.statistics_text import table
from torchdoctor.reports.wording import percent, printable, verdict

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]
LAST = 20
"""Steps that the final loss is the mean of."""


@dataclass(frozen=True)
class Row:
    """One run."""

    run: str
    steps: int
    loss: float
    """The mean of the last steps."""
    best_validation: float
    best_step: int | None
    lr: float
    """The highest that was used."""
    health: str
    cause: str
    verdict: str

    @property
    def score(self) -> float:
        """What runs are ranked by: the best validation loss, or the final loss where there is none."""
        found = self.best_validation if math.isfinite(self.best_validation) else self.loss
        return found if math.isfinite(found) else math.inf


def row(name: str, series: Series, report: Report) -> Row:
    """What is compared of a run."""
    losses = [value for value in series.get("loss", ((), ()))[1][-LAST:]]
    steps, validation = series.get("val_loss", ((), ()))
    known = [(value, step) for step, value in zip(steps, validation, strict=True) if math.isfinite(value)]
    best, at = min(known, default=(math.nan, None))
    rates = [value for key, (_, values) in series.items() if key == "lr" or key.startswith("lr/") for value in values]
    leading = report.diagnoses[0] if report.diagnoses else None
    cause = f"{leading.cause} ({percent(leading.probability)})" if leading is not None else ""
    return Row(
        name,
        report.step + 1,
        sum(losses) / len(losses) if losses else math.nan,
        best,
        None if at is None else int(at),
        max(rates, default=math.nan),
        report.health,
        cause,
        verdict(report),
    )


def comparison(rows: Sequence[Row]) -> dict[str, Any]:
    """Plain data: the runs, best first, and which one that is; None where no run has a loss."""
    ranked = sorted(rows, key=lambda item: item.score)
    best = ranked[0].run if ranked and math.isfinite(ranked[0].score) else None
    by = "best_validation" if any(math.isfinite(item.best_validation) for item in rows) else "loss"
    return {"best": best, "ranked_by": by, "runs": [asdict(item) for item in ranked]}


def comparison_text(found: Mapping[str, Any]) -> str:
    """The table, the best run, and a line for each that is not well."""
    head = ("run", "steps", "final loss", "best validation", "at step", "highest lr", "health", "likeliest cause")
    rows = [
        (
            item["run"],
            f"{item['steps']:,}",
            _number(item["loss"]),
            _number(item["best_validation"]),
            "" if item["best_step"] is None else str(item["best_step"]),
            _number(item["lr"]),
            item["health"],
            item["cause"],
        )
        for item in found["runs"]
    ]
    lines = [table(head, rows), ""]
    if found["best"] is not None:
        words = "validation loss" if found["ranked_by"] == "best_validation" else "loss"
        lines.append(f"Best: {printable(found['best'])}, by its {words}.")
    lines += [f"{printable(item['run'])}: {item['verdict']}" for item in found["runs"] if item["health"] != "healthy"]
    return "\n".join(lines)


def _number(value: float) -> str:
    return number_text(value) if math.isfinite(value) else ""
