"""Treatments: what to change. One table of actions, and the engine that turns diagnoses into suggestions."""

from __future__ import annotations

from torchdoctor.treatments.action import ACTIONS, Action
from torchdoctor.treatments.prescription import prescribe

__all__ = ["ACTIONS", "Action", "prescribe"]
