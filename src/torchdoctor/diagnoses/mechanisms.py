"""Which finding can lead to which: a directed graph that groups findings into problems and orders them in reports.

Read an entry as "a run with this finding may later show those". Findings that are not named here stand alone.

>>> reaches("update-ratio-abnormal", "nan-or-inf"), reaches("nan-or-inf", "update-ratio-abnormal")
(True, False)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

_STILL = ("not-learning", "slow-learning", "loss-plateau", "underfitting")
_WILD = ("loss-spike", "loss-divergence", "nan-or-inf")

BRINGS: Mapping[str, tuple[str, ...]] = {
    "data-starvation": ("step-time-regression",),
    "memory-growth": ("step-time-regression",),
    "straggler-rank": ("step-time-regression",),
    "rank-divergence": _WILD,
    "input-anomaly": (
        "update-ratio-abnormal",
        "activation-explosion",
        "unexpected-initial-loss",
        "gradient-explosion",
        "gradient-instability",
        "saturated-activations",
        "dead-units",
        "gradient-vanishing",
        "collapsed-output",
        *_WILD,
        *_STILL,
    ),
    "batch-anomaly": (
        "target-anomaly",
        "gradient-explosion",
        "gradient-instability",
        "dead-units",
        "loss-oscillation",
        "collapsed-output",
        "suspiciously-low-loss",
        "overfitting",
        "validation-anomaly",
        *_STILL,
    ),
    "target-anomaly": (
        "update-ratio-abnormal",
        "unexpected-initial-loss",
        "gradient-explosion",
        "gradient-instability",
        "collapsed-output",
        "suspiciously-low-loss",
        *_WILD,
        *_STILL,
    ),
    "identical-units": ("collapsed-output", *_STILL),
    "suspicious-loss": (
        "unexpected-initial-loss",
        "gradient-vanishing",
        "no-gradient",
        "frozen-weights",
        "loss-divergence",
        "collapsed-output",
        *_STILL,
    ),
    "gradients-not-cleared": (
        "update-ratio-abnormal",
        "weight-growth",
        "activation-explosion",
        "dead-units",
        "gradient-explosion",
        "gradient-instability",
        "no-gradient",
        "loss-oscillation",
        *_WILD,
        *_STILL,
    ),
    "state-overwritten": (
        "update-ratio-abnormal",
        "gradient-explosion",
        "gradient-instability",
        "loss-oscillation",
        "validation-anomaly",
        *_WILD,
        *_STILL,
    ),
    "wrong-mode": (
        "unexpected-initial-loss",
        "update-ratio-abnormal",
        "activation-explosion",
        "dead-units",
        *_WILD,
        *_STILL,
        "overfitting",
        "validation-anomaly",
    ),
    "small-normalization-batch": ("gradient-instability", "underfitting", "overfitting", "validation-anomaly"),
    "schedule-anomaly": ("learning-rate-vanished", "update-ratio-abnormal", *_STILL),
    "clipping-anomaly": ("update-ratio-abnormal", "gradient-instability", *_WILD, *_STILL),
    "learning-rate-vanished": ("update-ratio-abnormal", *_STILL),
    "update-ratio-abnormal": (
        "weight-growth",
        "activation-explosion",
        "saturated-activations",
        "dead-units",
        "gradient-explosion",
        "gradient-instability",
        "loss-oscillation",
        "collapsed-output",
        *_WILD,
        *_STILL,
    ),
    "uneven-position-loss": ("suspiciously-low-loss", "overfitting", "validation-anomaly"),
    "suspiciously-low-loss": (  # the last ones if the loss has no lower bound
        "overfitting",
        "validation-anomaly",
        "weight-growth",
        "activation-explosion",
        "collapsed-output",
        "dead-units",
        "gradient-explosion",
    ),
    "weight-growth": (
        "activation-explosion",
        "gradient-explosion",
        "saturated-activations",
        "dead-units",
        "collapsed-output",
        *_WILD,
    ),
    "activation-explosion": (
        "unexpected-initial-loss",
        "gradient-explosion",
        "gradient-instability",
        "saturated-activations",
        "dead-units",
        "collapsed-output",
        "not-learning",
        *_WILD,
    ),
    "unexpected-initial-loss": ("gradient-explosion", "not-learning", "slow-learning", *_WILD),
    "gradient-explosion": (
        "gradient-instability",
        "saturated-activations",
        "dead-units",
        "skipped-steps",
        "collapsed-output",
        "not-learning",
        "slow-learning",
        *_WILD,
    ),
    "gradient-instability": ("loss-oscillation", "not-learning", "slow-learning", *_WILD),
    "lopsided-losses": ("gradient-vanishing", "collapsed-output", *_STILL),
    "entropy-collapse": ("gradient-vanishing", "collapsed-output", *_STILL),
    "saturated-activations": ("gradient-vanishing", "collapsed-output", *_STILL),
    "dead-units": ("gradient-vanishing", "no-gradient", "collapsed-output", *_STILL),
    "gradient-vanishing": ("frozen-weights", "collapsed-output", *_STILL),
    "no-gradient": ("frozen-weights", "collapsed-output", *_STILL),
    "frozen-weights": ("collapsed-output", *_STILL),
    "loss-oscillation": ("loss-divergence", "not-learning", "slow-learning", "loss-plateau", "validation-anomaly"),
    "loss-spike": ("loss-divergence", "nan-or-inf", "collapsed-output", "validation-anomaly"),
    "loss-divergence": ("nan-or-inf", "collapsed-output", "not-learning", "slow-learning", "validation-anomaly"),
    "nan-or-inf": ("skipped-steps", "validation-anomaly"),
    "skipped-steps": _STILL,
    "collapsed-output": ("validation-anomaly", *_STILL),
    "not-learning": ("loss-plateau", "underfitting", "validation-anomaly"),
    "slow-learning": ("loss-plateau", "underfitting"),
    "loss-plateau": ("underfitting",),
    "overfitting": ("double-descent", "validation-anomaly"),
}
"""From root to consequence, never back. Of two findings that begin at the same step, the upper one comes first."""

_PLACES = {name: place for place, name in enumerate(BRINGS)}


def place(name: str) -> int:
    """The position of a finding in this graph; 0 is nearest to the root."""
    return _PLACES.get(name, len(_PLACES))


def linked(one: str, other: str) -> bool:
    """Whether either can directly lead to the other: which one is seen first depends on how often each is checked."""
    return other in BRINGS.get(one, ()) or one in BRINGS.get(other, ())


@cache
def reaches(earlier: str, later: str) -> bool:
    """Whether the first can lead to the second, directly or through others."""
    seen: set[str] = set()
    front = [earlier]
    while front:
        name = front.pop()
        if later in BRINGS.get(name, ()):
            return True
        fresh = set(BRINGS.get(name, ())) - seen
        seen |= fresh
        front += fresh
    return False
