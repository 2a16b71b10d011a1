"""The actions: one table per kind, and all of them together."""

from __future__ import annotations

from torchdoctor.treatments.action import Action
from torchdoctor.treatments.actions.architecture import ARCHITECTURE
from torchdoctor.treatments.actions.data import DATA
from torchdoctor.treatments.actions.gradient_control import GRADIENT_CONTROL
from torchdoctor.treatments.actions.optimizer import OPTIMIZER
from torchdoctor.treatments.actions.process import PROCESS
from torchdoctor.treatments.actions.regularization import REGULARIZATION

__all__ = ["ACTIONS"]

ACTIONS: tuple[Action, ...] = (*GRADIENT_CONTROL, *REGULARIZATION, *OPTIMIZER, *DATA, *ARCHITECTURE, *PROCESS)
