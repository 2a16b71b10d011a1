"""The public names: what is promised exists, and nothing else is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchdoctor


def test_every_promised_name_exists_and_is_listed():
    for name in torchdoctor.__all__:
        assert getattr(torchdoctor, name) is not None
    assert set(torchdoctor.__all__) <= set(dir(torchdoctor))
    assert torchdoctor.__all__ == sorted(torchdoctor.__all__)


def test_the_names_of_the_design():
    promised = {
        "Doctor",
        "Settings",
        "Report",
        "Symptom",
        "Diagnosis",
        "Suggestion",
        "Run",
        "CheckResult",
        "Checkup",
        "checkup",
        "lr_range",
        "read",
        "read_all",
        "diagnose",
        "__version__",
    }
    errors = {"TorchDoctorError", "SettingsError", "PatientError", "JournalError", "SourceError"}
    assert set(torchdoctor.__all__) == promised | errors


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(torchdoctor.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert seen | {"__version__"} == set(torchdoctor.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nurse'"):
        _ = torchdoctor.Nurse


def test_diagnose_and_read_are_functions_whatever_was_imported_before():
    import torchdoctor.cli.diagnose
    import torchdoctor.offline

    assert torchdoctor.diagnose is torchdoctor.offline.diagnose
    assert torchdoctor.read is torchdoctor.sources.read
