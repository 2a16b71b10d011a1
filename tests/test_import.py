"""What importing costs: no torch, no command line, no network, little time."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_the_package_alone_loads_next_to_nothing():
    assert not loaded_by("import torchdoctor") & {"torch", "rich", "click", "numpy", "socket", "multiprocessing"}


@pytest.mark.parametrize("name", ["Report", "Settings", "Symptom", "read", "diagnose"])
def test_the_offline_half_needs_neither_torch_nor_a_terminal(name):
    assert not loaded_by(f"from torchdoctor import {name}") & {"torch", "rich", "click"}


def test_doctor_is_found_without_loading_torch():
    assert not loaded_by("from torchdoctor import Doctor") & {"torch", "rich", "click"}


def test_the_command_line_loads_no_torch():
    code = "from torchdoctor.cli import COMMANDS, group\nfor name in COMMANDS: group.get_command(None, name)"
    assert "torch" not in loaded_by(code)


def test_importing_adds_few_modules_to_numpy():
    """Time varies with the machine; the number of modules, which is what costs it, does not."""
    count = "len([name for name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, numpy\nbefore = {count}\nimport torchdoctor\nprint({count} - before)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 20
