"""The clinic: a patient to train, faults to give it, and the runs that show what the doctor finds."""

from torchdoctor.clinic.faults import (
    Fault,
    FreezeLayer,
    JumpLearningRate,
    NanBatch,
    OutlierBatch,
    RemoveDropout,
    ScaleGradients,
)
from torchdoctor.clinic.injection import Injection, Injector, inject, paper_schedule
from torchdoctor.clinic.patient import RECIPES, Patient, Recipe

__all__ = [
    "RECIPES",
    "Fault",
    "FreezeLayer",
    "Injection",
    "Injector",
    "JumpLearningRate",
    "NanBatch",
    "OutlierBatch",
    "Patient",
    "Recipe",
    "RemoveDropout",
    "ScaleGradients",
    "inject",
    "paper_schedule",
]
