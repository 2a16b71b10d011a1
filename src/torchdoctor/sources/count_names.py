"""Which names stand for counts of steps and epochs."""

from __future__ import annotations

from functools import lru_cache

from torchdoctor.sources.words import SPLITS, listed, words_of

COUNTS = listed("step steps iter iters iteration iterations it itr update updates nupdates timestep timesteps")
STEPS = listed("step steps timestep timesteps")
LOCAL = listed("batch minibatch")
ROUNDS = listed("episode episodes generation generations round rounds")
AROUND = listed("global trainer num n total current cur optimizer no number idx index id i the completed finished")
STAGES = AROUND | SPLITS.keys() | listed("end ended start started begin loop after at for of in results summary report")
"""Words that may stand before the word "epoch": "END TRAIN LOOP EPOCH 3"."""
EPOCHS = frozenset({"epoch", "epochs", "ep"})
GROUPS = SPLITS.keys() | listed("time progress counter counters trainer data log logs metrics payload record event")
"""Words under which loggers group their counts, or everything."""
TOTAL = " of"
"""Added to the name of a count to name the column with its total."""


@lru_cache(maxsize=4096)
def counts(name: str) -> bool:
    """Whether a name stands for a count of steps or epochs.

    >>> counts("global_step"), counts("epoch"), counts("step_time")
    (True, True, False)
    """
    return is_epoch(name) or counts_with(COUNTS | LOCAL | ROUNDS, name)


@lru_cache(maxsize=4096)
def is_epoch(name: str) -> bool:
    """Whether a name stands for a count of epochs."""
    words = _words(name)
    return not EPOCHS.isdisjoint(words) and words <= EPOCHS | STAGES


def counts_with(known: frozenset[str], name: str) -> bool:
    """Whether a name has one of the known words, and no words but those of counts."""
    words = _words(name)
    return not known.isdisjoint(words) and words <= COUNTS | LOCAL | ROUNDS | AROUND


def _words(name: str) -> set[str]:
    """The words of a name; of "time/total_timesteps" only those of the count."""
    group, _, own = name.rpartition("/")
    return set(words_of(own if group and GROUPS.issuperset(words_of(group)) else name)) - SPLITS.keys()


def preference(name: str, count: int, most: int) -> tuple[bool, bool, bool, int]:
    """What counts are sorted by: global steps first; of counts given about equally often, the one called a step."""
    words = words_of(name)
    return "global" not in words, count * 2 < most, STEPS.isdisjoint(words), -count
