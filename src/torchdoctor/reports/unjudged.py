"""What could not be judged from a log, and what to log next time: no finding does not mean no fault there.

>>> chart = Chart.of(loss=[3.0 - 0.1 * step for step in range(20)], lr=[0.1] * 20, context={"source": "CSV"})
>>> for text in unjudged(chart):
...     print(text[:96])
not judged: overfitting (no validation loss), exploding and vanishing gradients (no gradient nor
to log next time: the validation loss, once per epoch; the norm that clip_grad_norm_ returns. La
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torchdoctor.chart import Chart
from torchdoctor.records import NO_LOSS

FEW = 10
"""With fewer losses than this, trends are not judged."""
COARSE = 50
"""If losses are this many steps apart or more, short spikes cannot be seen."""
TRAINERS = {
    "Hugging Face": {
        "loss": "logging_steps=10",
        "val_loss": 'eval_strategy="steps"',
        "grad_norm": "needs a newer transformers",
    },
    "Lightning": {"lr": "LearningRateMonitor()", "loss": 'self.log("train_loss", loss)'},
}
"""By the trainer that wrote the log and by vital, the option that makes it log the vital."""


class Gap(NamedTuple):
    """Something that was not judged."""

    vital: str
    what: str
    why: str
    ask: str


def unjudged(chart: Chart) -> tuple[str, ...]:
    """Sentences for the notes of a report. None for a live run: it notes itself what it could not measure."""
    if "source" not in chart.context:
        return ()
    gaps = list(_gaps(chart))
    if not gaps:
        return ()
    silent = () if _tells_how_it_went(chart) else (f"{NO_LOSS}, nor a metric: nobody can say how the run went",)
    asked = TRAINERS.get(str(chart.context["source"]), {})
    asks = [f"{gap.ask} ({asked[gap.vital]})" if gap.vital in asked else gap.ask for gap in gaps]
    return (
        *silent,
        "not judged: " + ", ".join(f"{gap.what} ({gap.why})" for gap in gaps),
        f"to log next time: {'; '.join(dict.fromkeys(asks))}. Layers, weights and activations can only be measured "
        "live: Doctor(model, optimizer)",
    )


def _tells_how_it_went(chart: Chart) -> bool:
    """Whether a log has any loss, metric or reward, finite or not. A log without one must not be called healthy.

    >>> _tells_how_it_went(Chart.of(lr=[0.1] * 9)), _tells_how_it_went(Chart.of(val_accuracy=[0.1] * 9))
    (False, True)
    """
    better = chart.context.get("better") or {}
    told = (name for name in chart.vitals if chart[name].count or chart[name].nonfinite)
    return any(
        name in better or name.endswith(("loss", "reward")) or name.startswith(("train_", "val_")) for name in told
    )


def _gaps(chart: Chart) -> Iterator[Gap]:
    losses = chart["loss"].count or max((chart[name].count for name in ("g_loss", "d_loss")), default=0)
    broken = chart["loss"].nonfinite
    if not losses and broken:
        yield Gap("loss", "how training began", "the loss was never finite", "the loss from the first step on")
    elif not losses:
        yield Gap("loss", "training itself", "no training loss", "the training loss")
    if "val_loss" not in chart:
        metric = any(name.startswith("val_") for name in chart.vitals)
        why = "metrics, but no validation loss" if metric else "no validation loss"
        yield Gap("val_loss", "overfitting", why, "the validation loss, once per epoch")
    if "grad_norm" not in chart:
        what = "exploding and vanishing gradients"
        yield Gap("grad_norm", what, "no gradient norm", "the norm that clip_grad_norm_ returns")
    if "lr" not in chart:
        yield Gap("lr", "warm-up and schedule", "no learning rate", "the learning rate")
    every = int(chart.context.get("logged_every") or 1)
    if losses and losses < FEW:
        yield Gap(
            "loss",
            "trends",
            f"only {losses} losses" if losses > 1 else "only one loss",
            "the loss every 10 steps",
        )
    elif chart.context.get("clock") == "epoch":
        yield Gap("loss", "spikes within an epoch", "one loss per epoch", "the loss every 10 steps")
    elif losses and every >= COARSE:
        yield Gap(
            "loss", f"spikes shorter than {every} steps", "the loss is logged less often", "the loss every 10 steps"
        )
