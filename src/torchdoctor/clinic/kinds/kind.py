"""The shape of a kind: one way in which a run is sick, or looks sick and is not.

What counts as right is declared with the kind, before anything is measured. A kind without a right answer is healthy.

>>> def forgetful(loop: Loop) -> None:
...     'The loop never clears its gradients.'
...     loop.zero_grad = False
>>> kind = Kind("missing-zero-grad", forgetful, on=("mlp",), right=("missing-zero-grad",))
>>> kind.healthy, kind.split, kind.summary
(False, 'development', 'The loop never clears its gradients.')

Kinds are for development unless they are held out. Those of `sealed_*.py` were written by people who knew the names of
findings and causes and not how anything is found; nobody looks at what is found on them while working on detectors or
causes: they are only ever reported. Those of `everyday_*.py` are sealed as well: the faults that people really make,
on ordinary small projects, and the recipes that ordinary users run. Those of `apart_*.py` and `blind_*.py` had been
written in the same way, and are opened since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torchdoctor.clinic.kinds.loop import Loop

Split = Literal["development", "held-out"]
SPLITS: tuple[Split, ...] = ("development", "held-out")
Onset = int | Literal["best-validation"]
"""A step, or the step of the lowest validation loss, where only the run itself can tell."""

UNSTABLE = (
    "gradient-explosion",
    "gradient-instability",
    "loss-spike",
    "loss-divergence",
    "loss-oscillation",
    "nan-or-inf",
    "update-ratio-abnormal",
    "weight-growth",
    "activation-explosion",
)
"""What too large steps look like, from the first sign to the end."""
STALLED = (
    "not-learning",
    "slow-learning",
    "loss-plateau",
    "underfitting",
    "update-ratio-abnormal",
    "learning-rate-vanished",
)
"""What too small steps look like."""
SIGNAL = ("gradient-vanishing", "dead-units", "saturated-activations", "collapsed-output", "no-gradient")
"""What a net looks like through which nothing passes."""
GENERALIZATION = ("overfitting", "validation-anomaly")
"""What a validation says that has little to do with the training loss."""
UNMOVED = ("frozen-weights", "no-gradient")
"""What weights look like that are not trained."""


@dataclass(frozen=True)
class Kind:
    """A family of runs that share one fault, or one reason to look sick."""

    slug: str
    change: Callable[[Loop], None]
    """What is done to an ordinary loop; its docstring says it in a sentence."""
    on: tuple[str, ...]
    """The arenas that it is trained in."""
    right: tuple[str, ...] = ()
    """Symptoms and causes of which any one counts as finding it."""
    also: tuple[str, ...] = ()
    """Where two things are wrong: of these, one must be found as well."""
    cause: tuple[str, ...] = ()
    """The causes of which any one is the root; empty where the run cannot tell."""
    secondary: tuple[str, ...] = ()
    """What is true of the run as well, and no false finding."""
    onset: Onset = 0
    acute: bool = False
    """Whether it shows at once: within a few steps of its onset."""
    advice: bool = False
    """Whether it costs the run little, so that a finding of severity info is the right answer."""
    learns: bool = True
    """Of a healthy kind: whether its loss must fall for the run to be what it says."""
    held_out: bool = False
    """Whether it is sealed: reported, and not looked at."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong with its runs."""
        return not self.right

    @property
    def split(self) -> Split:
        """Which part of the benchmark it belongs to."""
        return "held-out" if self.held_out else "development"

    @property
    def summary(self) -> str:
        """What happens in it, in a sentence."""
        return (self.change.__doc__ or "").strip().splitlines()[0]
