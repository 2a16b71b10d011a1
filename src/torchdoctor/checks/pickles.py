"""Reads pickles, which can run any code when they are read: the only place that does so.

It is used only with ``--trust-pickle``, which the user passes for files that they would run as a program.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from torchdoctor.errors import PatientError


def unpickled(path: Path) -> Any:
    """Any object written by torch.save or pickle.dump."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old classes, which the owner of the file knows
            if not zipfile.is_zipfile(path):
                with path.open("rb") as file:
                    found = pickle.load(file)
                if not isinstance(found, int) or found != torch.serialization.MAGIC_NUMBER:  # not an old torch.save
                    return found
            return torch.load(path, weights_only=False, map_location="cpu")
    except Exception as error:  # a pickle may raise anything
        raise PatientError(
            f"{path} cannot be unpickled: {type(error).__name__}: {str(error)[:300]}. It must have been written by "
            "torch.save or pickle.dump, and the classes in it must be importable from here."
        ) from error
