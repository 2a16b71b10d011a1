"""One JSON file per epoch, numbered in its name: AllenNLP's ``metrics_epoch_3.json``, and dumps by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.errors import SourceError
from torchdoctor.sources.count_names import counts
from torchdoctor.sources.json_lines import NOT_JSON, measured
from torchdoctor.sources.logged import Logged
from torchdoctor.sources.table import Table
from torchdoctor.sources.words import is_measure, words_of

FEWEST, MOST = 3, 20_000
"""Number of files that make a run."""
SIZE_LIMIT = 2**18
"""Most bytes of a file that are read."""
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d{1,9})\.json\Z")


def recognises(path: Path) -> bool:
    """Whether a folder holds such files, and the first of them has a loss or a metric and a count."""
    files = _files(path) if path.is_dir() else {}
    if len(files) < FEWEST:
        return False
    row = _row(files[min(files)], min(files))
    return any(map(is_measure, row)) and any(map(counts, row))


def read(path: Path) -> list[Logged]:
    """The run whose epochs are in these files."""
    table = Table()
    for number, file in sorted(_files(path).items())[:MOST]:
        row = _row(file, number)
        if row:
            table.add(row)
        else:
            table.skip(number)
    if not table.rows:
        raise SourceError(f"the numbered JSON files in {path} hold no numbers.")
    return [table.logged(path, "JSON files")]


def _files(folder: Path) -> dict[int, Path]:
    """The files of the largest series of numbered names, by number."""
    found: dict[str, dict[int, Path]] = {}
    for file in folder.glob("*.json"):
        match = _NUMBERED.match(file.name)
        if match and file.is_file() and not file.is_symlink():
            found.setdefault(match["stem"], {})[int(match["number"])] = file
    return max(found.values(), key=len, default={})


def _row(file: Path, number: int) -> Mapping[str, float]:
    """The numbers in one file, plus the number in its name if that is a count; empty if the file holds whole series."""
    try:
        with file.open("rb") as opened:
            item = json.loads(opened.read(SIZE_LIMIT))
    except (*NOT_JSON, OSError):
        return {}
    if not isinstance(item, dict) or any(isinstance(value, list) and len(value) > 3 for value in item.values()):
        return {}
    words = words_of(file.stem.rstrip("0123456789"))
    row = measured(item)
    if row and words and counts(words[-1]) and not any(map(counts, row)):
        row = {words[-1]: float(number), **row}
    return row
