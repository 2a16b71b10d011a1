"""The exceptions of Training Doctor, all raised before training starts or when a file is read.

    TorchDoctorError
    ├── SettingsError   a setting that does not exist, or an invalid value
    ├── PatientError    a model, optimizer, data set or fault that cannot be used
    ├── JournalError    a journal that cannot be written
    └── SourceError     a run that cannot be read

After a doctor is attached, nothing is raised into the training loop: the error is logged once and listed in the
report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any


class TorchDoctorError(Exception):
    """The base class of all exceptions raised on purpose."""


class SettingsError(TorchDoctorError):
    """A setting that does not exist, or an invalid value."""


class PatientError(TorchDoctorError):
    """A model, optimizer, scheduler, data set or injected fault that cannot be used."""


class JournalError(TorchDoctorError):
    """A journal that cannot be opened for writing."""


class SourceError(TorchDoctorError):
    """A run that cannot be read: missing, empty, or in an unknown format."""


STEM = 4
"""Letters that "exploding" and "explosion" have in common."""
MOST_NAMES = 30
"""Maximum number of names listed in a sentence."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence for an unknown name: the nearest matches if there are any, else the known names.

    >>> did_you_mean("windw", ["window", "preset"])
    "Did you mean 'window'?"
    >>> did_you_mean("xyz", ["window", "preset"])
    'Known: preset, window.'
    >>> did_you_mean("loss", ["loss-spike", "loss-plateau", "nan-or-inf"])
    "Did you mean 'loss-plateau' or 'loss-spike'?"
    >>> did_you_mean("exploding gradients", ["gradient-explosion", "zero-gradients"])
    "Did you mean 'gradient-explosion'?"
    """
    names = sorted(known)
    near = _same_words(name, names) or get_close_matches(name, names, n=1, cutoff=0.6)
    near = near or [item for item in names if len(name) > 2 and name.lower() in item.lower()][:5]
    if near:
        return f"Did you mean {' or '.join(map(repr, near))}?"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"Known: {', '.join(names[:MOST_NAMES])}{more}."


def stands_for(token: str, words: Iterable[str]) -> bool:
    """Whether a name, code or pattern that a user wrote means one of these words; in any case, with - or _.

    >>> stands_for("loss_*", ["loss-spike", "LO01"]), stands_for("lo01", ["LO01"]), stands_for("spike", ["loss-spike"])
    (True, True, False)
    """
    wanted = token.strip().lower().replace("_", "-")
    return any(fnmatchcase(word.lower(), wanted) for word in words)


def _same_words(name: str, names: Iterable[str]) -> list[str]:
    """The names made of the same words in another order or form: those that begin alike."""
    typed = {word[:STEM] for word in re.split(r"[\W_]+", name.lower()) if word}
    return [
        item for item in names if len(typed) > 1 and typed == {word[:STEM] for word in re.split(r"\W+", item.lower())}
    ]


def check_loss(loss_fn: Any) -> None:
    """Raise a `PatientError` if this cannot be a loss function.

    >>> check_loss(dict)
    Traceback (most recent call last):
    ...
    torchdoctor.errors.PatientError: loss_fn is the class dict, not an instance: pass dict().
    """
    if loss_fn is not None and not callable(loss_fn):
        raise PatientError(f"loss_fn must be callable (an nn.Module or a function), not {type(loss_fn).__name__}.")
    if isinstance(loss_fn, type):
        raise PatientError(f"loss_fn is the class {loss_fn.__name__}, not an instance: pass {loss_fn.__name__}().")
