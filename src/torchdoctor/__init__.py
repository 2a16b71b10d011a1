"""Training Doctor: watches a PyTorch training run, says what is wrong, where and why, and what to change.

    from torchdoctor import Doctor

    doctor = Doctor(model, optimizer)
    ...
    print(doctor.diagnose())

Names are imported on first use, so `import torchdoctor` is fast and does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchdoctor.checks.checkup import checkup as checkup
    from torchdoctor.checks.lr_range import lr_range as lr_range
    from torchdoctor.doctor import Doctor as Doctor
    from torchdoctor.errors import JournalError as JournalError
    from torchdoctor.errors import PatientError as PatientError
    from torchdoctor.errors import SettingsError as SettingsError
    from torchdoctor.errors import SourceError as SourceError
    from torchdoctor.errors import TorchDoctorError as TorchDoctorError
    from torchdoctor.offline import diagnose as diagnose
    from torchdoctor.records import CheckResult as CheckResult
    from torchdoctor.records import Diagnosis as Diagnosis
    from torchdoctor.records import Suggestion as Suggestion
    from torchdoctor.records import Symptom as Symptom
    from torchdoctor.reports.checkup import Checkup as Checkup
    from torchdoctor.reports.report import Report as Report
    from torchdoctor.settings import Settings as Settings
    from torchdoctor.sources import Run as Run
    from torchdoctor.sources import read as read
    from torchdoctor.sources import read_all as read_all

__version__ = "0.1.0"

_HOMES = {
    "CheckResult": "records",
    "Checkup": "reports.checkup",
    "Diagnosis": "records",
    "Doctor": "doctor",
    "JournalError": "errors",
    "PatientError": "errors",
    "Report": "reports.report",
    "Run": "sources",
    "Settings": "settings",
    "SettingsError": "errors",
    "SourceError": "errors",
    "Suggestion": "records",
    "Symptom": "records",
    "TorchDoctorError": "errors",
    "checkup": "checks.checkup",
    "diagnose": "offline",
    "lr_range": "checks.lr_range",
    "read": "sources",
    "read_all": "sources",
}

__all__ = [
    "CheckResult",
    "Checkup",
    "Diagnosis",
    "Doctor",
    "JournalError",
    "PatientError",
    "Report",
    "Run",
    "Settings",
    "SettingsError",
    "SourceError",
    "Suggestion",
    "Symptom",
    "TorchDoctorError",
    "__version__",
    "checkup",
    "diagnose",
    "lr_range",
    "read",
    "read_all",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs torch: pip install 'torchdoctor[torch]'.", name="torch"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
