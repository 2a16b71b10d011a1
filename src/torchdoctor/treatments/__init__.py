"""Treatments: what to change. Tables of actions, and the code that turns diagnoses into suggestions."""

from __future__ import annotations

from torchdoctor.treatments.action import Action
from torchdoctor.treatments.actions import ACTIONS
from torchdoctor.treatments.prescription import prescribe

__all__ = ["ACTIONS", "Action", "prescribe"]
