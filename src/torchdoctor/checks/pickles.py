"""Pickles, which may run any code when they are read: the only place where that is so.

It is reached with ``--trust-pickle`` alone, which the user gives for files that he would run as a program.
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
    """Anything at all, as torch.save or pickle.dump has written it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old classes, which their owner knows
            if not zipfile.is_zipfile(path):
                with path.open("rb") as file:
                    found = pickle.load(file)
                if not isinstance(found, int) or found != torch.serialization.MAGIC_NUMBER:  # of an old torch.save
                    return found
            return torch.load(path, weights_only=False, map_location="cpu")
    except Exception as error:  # a pickle may raise anything
        raise PatientError(
            f"{path} cannot be unpickled: {type(error).__name__}: {str(error)[:300]}. It must have been written by "
            "torch.save or pickle.dump, and the classes in it must be importable from here."
        ) from error
