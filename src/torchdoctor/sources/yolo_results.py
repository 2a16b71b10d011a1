"""The results.txt of YOLOv3, v5, v7, YOLOR and their forks: one row per epoch, without names.

The layout is fixed by their training scripts: epoch, memory, the parts of the loss and their sum, labels, the image
size, four metrics and the losses of validation. The columns get the names of Ultralytics' results.csv.

>>> row = "0/99 3.29G 0.0775 0.0191 0.0162 0.1129 69 640 0.4 0.3 0.2 0.1 0.0966 0.0252 0.0166".split()
>>> found = _row(row)
>>> found["epoch"], found["train/cls_loss"], found["metrics/mAP_0.5"], found["val/box_loss"]
(0.0, 0.0162, 0.2, 0.0966)
>>> _row(["0/99", "3.29G", *row[2:5], "0.9", *row[6:]])  # the fourth is not the sum of those before it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torchdoctor.errors import SourceError
from torchdoctor.sources.cells import number
from torchdoctor.sources.count_names import TOTAL
from torchdoctor.sources.logged import Logged, Wish
from torchdoctor.sources.opening import beginning, ends_cleanly
from torchdoctor.sources.table import Table

PARTS = ("box", "obj", "cls")
METRICS = ("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95")
MOST_PARTS = 6
STRIDE = 32
"""Image sizes are a multiple of this."""
ROUNDED = 0.01
"""Share of a sum that may be missing, because its parts are rounded to three digits."""
ALIKE = 0.05
_EPOCH = re.compile(r"(\d+)/(\d+)\Z")
_MEMORY = re.compile(r"\d[\d.]*(?:e[+-]\d+)?G\Z")


def recognises(path: Path) -> bool:
    """Whether the file begins with only such rows; the last of them may be cut off."""
    rows = [line.split() for line in beginning(path).splitlines() if line.strip()]
    return bool(rows) and all(_row(cells) is not None for cells in rows[: max(1, len(rows) - 1)])


def read(path: Path, wish: Wish | None = None) -> list[Logged]:
    """The run in such a file."""
    table, rows, row = Table(), list[dict[str, float]](), None
    for line, text in table.whole(path):
        row = _row(text.split())
        if row is not None:
            rows.append(row)
        elif text.strip():
            table.skip(line)
    if not rows:
        raise SourceError(f"{path} holds no row of a results.txt.")
    if row is None and table.skipped and not ends_cleanly(path):
        table.tear()
    for named in _with_f1(rows):
        table.add(named)
    return [table.logged(path, "YOLO results.txt", wish)]


def _row(cells: Sequence[str]) -> dict[str, float] | None:
    """The numbers of a row by name; None if it is not such a row."""
    epoch = _EPOCH.match(cells[0]) if len(cells) > 2 and _MEMORY.match(cells[1]) else None
    numbers = [value for cell in cells[2:] if (value := number(cell)) is not None]
    if epoch is None or len(numbers) < len(cells) - 2:
        return None
    for many in range(len(PARTS), MOST_PARTS + 2):  # of training; then labels, size, and what validation gives
        trained, found = _parts("train", numbers[:many]), numbers[many + 2 :]
        shown = len(found) - len(METRICS) in (len(PARTS), many)
        if trained and shown and numbers[many].is_integer() and _is_size(numbers[many + 1]):
            counted = {"epoch": float(epoch[1]), "epoch" + TOTAL: float(epoch[2])}
            evaluated = _parts("val", found[len(METRICS) :])
            if not any(evaluated.values()):  # nothing was evaluated in this epoch
                return counted | trained
            if len(trained) < len(evaluated):  # only the sum of the loss has a known name
                evaluated["val/total_loss"] = sum(evaluated.values())
            return counted | trained | dict(zip(METRICS, found, strict=False)) | evaluated
    return None


def _parts(split: str, numbers: Sequence[float]) -> dict[str, float]:
    """Parts of a loss, or their sum if there are more than three: forks add a fourth, YOLOv3 of 2019 had others.

    >>> _parts("val", [0.1, 0.2, 0.3]), _parts("train", [0.1, 0.2, 0.3, 0.4, 1.0]), _parts("train", [0.1, 0.2, 0.3, 9])
    ({'val/box_loss': 0.1, 'val/obj_loss': 0.2, 'val/cls_loss': 0.3}, {'train/total_loss': 1.0}, {})
    """
    if len(numbers) > len(PARTS):
        *numbers, total = numbers
        if abs(sum(numbers) - total) > ROUNDED * abs(total):  # NaN passes
            return {}
        if len(numbers) > len(PARTS):
            return {f"{split}/total_loss": total}
    return {f"{split}/{name}_loss": value for name, value in zip(PARTS, numbers, strict=True)}


def _is_size(value: float) -> bool:
    return value >= STRIDE and value % STRIDE == 0


def _with_f1(rows: Sequence[dict[str, float]]) -> Sequence[dict[str, float]]:
    """Rows with the fourth metric named: YOLOv3 of 2019 and 2020 gives the F1 of precision and recall there."""
    given = [row for row in rows if METRICS[0] in row and row[METRICS[0]] + row[METRICS[1]] > 0]
    if sum(map(_is_f1, given)) * 2 <= len(given):
        return rows
    return [{"metrics/F1" if name == METRICS[3] else name: value for name, value in row.items()} for row in rows]


def _is_f1(row: dict[str, float]) -> bool:
    precision, recall, _, fourth = (row[name] for name in METRICS)
    return abs(fourth - 2 * precision * recall / (precision + recall)) <= ALIKE * fourth
