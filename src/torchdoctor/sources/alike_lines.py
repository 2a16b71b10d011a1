"""Reads journal lines that differ only in their numbers all at once: they are most of a long run.

The text between the numbers is the same in all of them, so one pattern matches them all. Other lines are left to the
reader of single lines.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from torchdoctor.stretch import Stretch

FEWEST = 16
"""Fewest lines for which this is worthwhile."""
BEGINNING = b'{"type": "vitals", "step": '
EXACT = 2**53
"""Below this, a float holds the written step exactly."""
NUMBER = rb"([^,}\n]+)"


def alike_from(text: bytes, start: int) -> tuple[Stretch | None, int]:
    """The steps of the alike lines that begin at `start`, and where they end; None if there are only a few.

    >>> line = b'{"type": "vitals", "step": %d, "vitals": {"loss": %.1f, "grad_norm": "NaN"}}\\n'
    >>> text = b"".join(line % (step, 2.5 - step / 10) for step in range(20))
    >>> stretch, end = alike_from(text + b"something else", 0)
    >>> int(stretch.steps[-1]), float(stretch.columns["loss"][-1]), float(stretch.columns["grad_norm"][-1])
    (19, 0.6, nan)
    >>> text[end:], alike_from(text, len(text) - 5)
    (b'', (None, 0))
    """
    if not text.startswith(BEGINNING, start):
        return None, 0
    names = _names(text[start : text.find(b"\n", start) + 1])
    if not names:
        return None, 0
    one, many = _patterns(names)
    pieces = one.split(text) if start == 0 else [text]
    if not any(pieces[:: len(names) + 2]):  # only such lines: usually all of them are alike
        end = len(text)
    elif (found := many.match(text, start)) is None:
        return None, 0
    else:
        end = found.end()
        pieces = one.split(text[start:end])
    if len(pieces) < FEWEST * (len(names) + 2):
        return None, 0
    return _columns(pieces, names), end


def _names(line: bytes) -> tuple[str, ...]:
    """The vitals of a line; empty if it is another kind of line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return ()
    if list(record) != ["type", "step", "vitals"] or not isinstance(record["vitals"], dict):
        return ()
    return tuple(record["vitals"])


@lru_cache(maxsize=64)
def _patterns(names: tuple[str, ...]) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Patterns for one line with its numbers, and for any number of such lines."""
    keys = rb", ".join(re.escape(json.dumps(name).encode()) + b": " + NUMBER for name in names)
    line = b"^" + re.escape(BEGINNING) + NUMBER + rb', "vitals": \{' + keys + rb"\}\}\n"
    many = b"(?:" + line.replace(NUMBER, NUMBER.replace(b"(", b"(?:")) + b")+"
    return re.compile(line, re.MULTILINE), re.compile(many, re.MULTILINE)


def _columns(pieces: list[bytes], names: tuple[str, ...]) -> Stretch | None:
    """The numbers of the lines; each line gives an empty rest, its step and its vitals."""
    width = len(names) + 2
    try:
        steps, *columns = (_numbers(pieces[place::width]) for place in range(1, width))
    except ValueError:
        return None
    if not _in_order(steps):
        return None
    return Stretch(steps.astype(np.int64), dict(zip(names, columns, strict=True)))


def _numbers(column: list[bytes]) -> NDArray[np.float64]:
    if column.count(column[0]) == len(column):
        return np.full(len(column), float(column[0].strip(b'"')))
    try:
        return np.fromiter(map(float, column), np.float64, len(column))
    except ValueError:
        return np.fromiter((float(value.strip(b'"')) for value in column), np.float64, len(column))


def _in_order(steps: NDArray[np.float64]) -> bool:
    return bool(steps[0] >= 0 and steps[-1] < EXACT and (np.diff(steps) > 0).all() and (steps == np.floor(steps)).all())
