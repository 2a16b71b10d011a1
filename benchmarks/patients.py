"""The nanoGPT-class patients as factories for the check-up.

cd benchmarks && time torchdoctor check patients:small --quick
cd benchmarks && time torchdoctor check patients:paper
"""

from __future__ import annotations

from typing import Any

from torchdoctor.clinic.patient import Patient, Recipe


def small() -> tuple[Any, None, Any, Any]:
    """The patient of the demo: model, no loss of its own, a batch, its optimizer."""
    return _made("small")


def paper() -> tuple[Any, None, Any, Any]:
    """The one of 10.8M parameters."""
    return _made("shakespeare_char")


def _made(size: str) -> tuple[Any, None, Any, Any]:
    patient = Patient(Recipe.named(size))
    return patient.model, None, patient._draw(), patient.optimizer
