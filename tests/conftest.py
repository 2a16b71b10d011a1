"""What the tests share."""

from __future__ import annotations

import gc
import signal

import pytest
import torch


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """No test reads the project's configuration or writes into its tree."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def no_other_doctors():
    """Doctors that tests of other modules have left behind are gone, and with them their taps."""
    gc.collect()


@pytest.fixture
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would not hear it either
    signal.signal(signal.SIGINT, signal.default_int_handler)
