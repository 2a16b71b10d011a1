"""Columns and words that say whether a row belongs to training, validation or test, or to which of several runs.

>>> named_in_phase("loss", "val"), named_in_phase("epoch", "val"), named_in_phase("val_loss", "train")
('val/loss', 'epoch', 'val_loss')
>>> named_in_phase("iter", "val")  # possibly validation batches: the clock decides
'val/iter'
"""

from __future__ import annotations

from functools import lru_cache

from torchdoctor.sources.count_names import is_epoch
from torchdoctor.sources.words import SPLITS, listed, taken_apart, words_of

PHASES = frozenset({"phase", "split", "mode", "stage", "subset", "partition", "set", "dataset", "type", "name"})

RUNS = listed("fold kfold run runid runname trial trialid seed experiment repeat repetition replicate")
_AROUND = SPLITS.keys() | listed("starting start running cross k outer inner random number no id name index idx")


@lru_cache(maxsize=4096)
def is_run(name: str) -> bool:
    """Whether a column, or a printed heading, of this name tells several runs apart.

    >>> is_run("fold"), is_run("Training fold"), is_run("run_id"), is_run("best trial"), is_run("run time")
    (True, True, True, False, False)
    """
    words = set(words_of(name))
    return not RUNS.isdisjoint(words) and words <= RUNS | _AROUND


def is_phase_column(name: str) -> bool:
    """Whether a column of this name may hold the phase of each row."""
    words = words_of(name)
    return len(words) == 1 and words[0] in PHASES


def phase_of(text: object) -> str:
    """The phase that a cell names, empty if it names none.

    >>> phase_of("Validation"), phase_of("linear")
    ('val', '')
    """
    words = words_of(text) if isinstance(text, str) and len(text) < 40 else ()
    return next((SPLITS[word] for word in words if word in SPLITS), "") if len(words) <= 2 else ""


def named_in_phase(name: str, phase: object) -> str:
    """A value's name with its row's phase, unless the name includes one or counts epochs."""
    of = phase_of(phase)
    return name if not of or is_epoch(name) or is_run(name) or taken_apart(name, 0).split else f"{of}/{name}"
