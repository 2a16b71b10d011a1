"""Names of values logged once: learning rate, gradient norm, times and memory, with a rule for each."""

from __future__ import annotations

import re
from collections.abc import Callable

from torchdoctor.sources.words import FILLERS, LOSS, Name, base, listed, taken_apart

Rule = Callable[[Name], int | None]
"""Returns how badly a name fits, 0 is best; None if it does not fit."""

UNITS = {
    **{"ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "us": 1e-6},
    **{"gb": 1e9, "gib": 2.0**30, "mb": 1e6, "mib": 2.0**20, "kb": 1e3, "kib": 1024.0, "bytes": 1.0},
}
SIZES = frozenset({"gb", "gib", "mb", "mib", "kb", "kib", "bytes"})
TIMES = frozenset({"time", "seconds", "sec", "secs", "dt", "duration", "elapsed", "ms"})
MACHINE = listed(
    "runtime throughput tps fps tflops flops mfu tokens examples samples speed eta sps second timestamp wall "
    "preemption flos gpu cpu memory mem wps ups wpb bsz"
)
EACH = frozenset({"step", "iter", "iteration", "batch", "it", "dt", "update"})


def is_machine(name: str) -> bool:
    """Whether a name stands for machine speed or load, or another group's learning rate: a diagnosis does not need it.

    >>> is_machine("eval_samples_per_second"), is_machine("lr/pg1"), is_machine("kl")
    (True, True, False)
    """
    item = taken_apart(name, 0)
    return item.has(MACHINE | TIMES) or _rate(item) is not None


def _beyond(item: Name, known: frozenset[str]) -> int:
    return sum(1 for word in item.words if base(word) not in known and word not in FILLERS and not word.isdigit())


GRADIENT = listed("grad grads gradient gradients gnorm gradnorm norm norms l2 optim optimizer unclipped")
CLIPPED = listed("clip clipped clipping post after max min std param params weight weights update layer")


def _grad_norm(item: Name) -> int | None:
    named = item.has({"grad", "grads", "gradient", "gradients"}) and item.has({"norm", "norms"})
    if item.has({"gnorm", "gradnorm"}) or (item.words in (("norm",), ("total", "norm"), ("global", "norm"))):
        named = True
    unknown = _beyond(item, GRADIENT)
    return None if not named or item.has(CLIPPED) or item.split in ("val", "test") or unknown > 1 else unknown


RATE = listed("lr pg group groups param adam w sgd optimizer optim rmsprop lion muon adagrad learningrate")


def _rate(item: Name) -> int | None:
    named = item.has({"lr", "learningrate"})
    if not named or item.has(listed("scale mult multiplier decay factor min max base initial init warmup")):
        return None
    # Ultralytics' first group holds the biases, whose warm-up starts at a high learning rate of its own.
    return _beyond(item, RATE) + item.original.endswith("/pg0")


def _loss_scale(item: Name) -> int | None:
    return 0 if item.has({"scale", "scaler"}) and item.has({"loss", "grad", "amp"}) else None


_SPEED = re.compile(r"(?i)(?:/|per[ _])\s?s(?:ec(?:ond)?s?)?(?![a-z])|fps")


def _step_time(item: Name) -> int | None:
    if item.split in ("val", "test") or _SPEED.search(item.original):
        return None
    if item.has(
        listed("data load loading total eta remaining epoch since wall min max tokens samples examples images frames")
    ):
        return None
    if not item.has(TIMES) or _beyond(item, TIMES | EACH | {"s"}) > 1:
        return None
    return 0 if item.has(EACH) else 1


def _data_time(item: Name) -> int | None:
    fits = item.has({"data", "loading", "dataloader", "load"}) and item.has(TIMES | {"s"})
    return 0 if fits and item.split not in ("val", "test") else None


def _memory(item: Name) -> int | None:
    if not item.has({"memory", "mem"}) or not item.has(SIZES) or item.has({"host", "cpu", "ram", "system", "free"}):
        return None
    return 0 if item.has({"allocated", "active"}) else 1


def _entropy(item: Name) -> int | None:
    return 0 if not item.has(LOSS) and set(item.rest) in ({"entropy"}, {"policy", "entropy"}) else None


RULES: dict[str, Rule] = {
    "grad_norm": _grad_norm,
    "lr": _rate,
    "loss_scale": _loss_scale,
    "seconds": _step_time,
    "data_seconds": _data_time,
    "memory": _memory,
    "entropy": _entropy,
}
SCALED = ("seconds", "data_seconds", "memory")


def scale_of(name: str) -> float:
    """The factor that converts a value to seconds or bytes, from the unit in its name."""
    return next((UNITS[word] for word in reversed(taken_apart(name, 0).words) if word in UNITS), 1.0)
