"""TensorBoard: an event file, or a folder with the files of one run or of many.

Every point is read; TensorBoard's own reader keeps a sample of ten thousand and loses spikes. The event files of a
folder are one run, in the order in which they were started. Folders below are separate runs, except for parts of a run
that some writers put there: ``train`` and ``validation`` (Keras), a tag of ``add_scalars``, hyper-parameters of
``add_hparams``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.sources import plain_yaml
from torchdoctor.sources.crc32c import crc32c, masked
from torchdoctor.sources.event_shapes import shape_of
from torchdoctor.sources.events import Read, scalars
from torchdoctor.sources.logged import NAME_LENGTH, NAMES_LIMIT, Clock, Logged, Points
from torchdoctor.sources.tfrecords import HEADER, RecordFile
from torchdoctor.sources.words import taken_apart

FORMAT = "TensorBoard"
FILES_LIMIT = 10_000
"""Most event files that are read below one folder."""
DEPTH_LIMIT = 12
SPLITS = frozenset({"train", "training", "validation", "valid", "val", "eval", "evaluation", "test", "dev"})
_FIRST_LIMIT = 2**16


def recognises(path: Path) -> bool:
    """Whether a file begins with an event, or a folder holds such files, directly or in several split folders."""
    if not path.is_dir():
        return _begun(path) is not None
    parts = [place for place in path.iterdir() if place.name.lower() in SPLITS and place.is_dir()]
    return _holds_events(path) or sum(map(_holds_events, parts)) > 1


def read(path: Path) -> list[Logged]:
    """The runs in an event file or below a folder."""
    if not path.is_dir():
        part = _part_of(path.parent, [path])
        split = _split_of(path)
        if split and any(tag.startswith("epoch_") for tag in part.points):  # Keras: a folder for each split
            part.points = {f"{split}/{tag}": points for tag, points in part.points.items()}
            part.clock = _keras_clock(part)
        elif split and not any(taken_apart(tag, 0).split for tag in part.points):
            part.points = {f"{split}/{tag}": points for tag, points in part.points.items()}
        return [_logged(path, path.name, part)]
    folders: dict[Path, list[Path]] = {}
    for count, file in enumerate(_event_files(path)):
        if count == FILES_LIMIT:
            raise SourceError(f"{path} holds more than {FILES_LIMIT} event files. Give the folder of some of the runs.")
        folders.setdefault(file.parent, []).append(file)
    parts = [_part_of(folder, files) for folder, files in sorted(folders.items())]
    runs = _joined({part.folder: part for part in parts})
    return [_logged(part.folder, _name(part.folder, path), part) for part in runs if part.points or len(runs) == 1]


def _split_of(path: Path) -> str:
    """The split that a file belongs to, by its folder, or by its former folder if its path was made its name.

    >>> _split_of(Path("logs/validation/events.out.tfevents.1.v2")), _split_of(Path("a__train__events.out.tfevents.1"))
    ('validation', 'train')
    """
    places = [path.parent.name, *path.name.split("__")[:-1]]
    return next((place.lower() for place in reversed(places) if place.lower() in SPLITS), "")


@dataclass
class _Part:
    """The content of the event files of one folder."""

    folder: Path
    points: dict[str, Points]
    config: dict[str, Any] = field(default_factory=dict)
    files: list[RecordFile] = field(default_factory=list)
    left_out: int = 0
    """Names beyond the limit."""
    clock: Clock = "step"


def _holds_events(folder: Path) -> bool:
    return any(file.is_file() and _begun(file) is not None for file in folder.glob("*tfevents*"))


def _event_files(folder: Path) -> Iterator[Path]:
    """The event files in a folder and below it; links to folders are not followed."""
    top = len(folder.parts)
    for place, below, names in os.walk(folder):
        below[:] = sorted(below) if len(Path(place).parts) - top < DEPTH_LIMIT else []
        for name in sorted(names):
            file = Path(place, name)
            if "tfevents" in name and file.is_file() and _begun(file) is not None:
                yield file


def _begun(path: Path) -> float | None:
    """When the first event of a file was written; None if the file does not begin with one."""
    with path.open("rb") as file:
        start = file.read(HEADER + _FIRST_LIMIT)
    length = int.from_bytes(start[:8], "little")
    if len(start) < HEADER or masked(crc32c(start[:8])) != int.from_bytes(start[8:HEADER], "little"):
        return None
    shape = shape_of(start[HEADER : HEADER + length]) if HEADER + length <= len(start) else None
    if shape is None or shape.wall_time is None:
        return None
    row = np.frombuffer(start, dtype=np.uint8, count=length, offset=HEADER)[None, :]
    return float(shape.wall_times(row)[0])


def _part_of(folder: Path, files: Sequence[Path]) -> _Part:
    part = _Part(folder, {}, plain_yaml.beside(folder))
    gathered: dict[str, list[Points]] = {}
    for path in sorted(files, key=lambda path: (_begun(path) or 0.0, path.name)):
        file = RecordFile(path)
        reads: dict[str, list[Read]] = {}
        for found in scalars(file, part.config):
            reads.setdefault(found.tag[:NAME_LENGTH], []).append(found)
        for tag, several in reads.items():
            if tag in gathered or len(gathered) < NAMES_LIMIT:
                gathered.setdefault(tag, []).append(_in_order(several))
            else:
                part.left_out += 1
        part.files.append(file)
    part.points = {tag: _one_after_another(several) for tag, several in gathered.items()}
    return part


def _in_order(several: Sequence[Read]) -> Points:
    """The values of a tag in the order of the file."""
    if len(several) == 1:
        return Points(several[0].steps, several[0].values)
    order = np.argsort(np.concatenate([found.records for found in several]), kind="stable")
    return Points(
        np.concatenate([found.steps for found in several])[order],
        np.concatenate([found.values for found in several])[order],
    )


def _one_after_another(several: Sequence[Points]) -> Points:
    if len(several) == 1:
        return several[0]
    return Points(
        np.concatenate([points.steps for points in several]), np.concatenate([points.values for points in several])
    )


ULTRALYTICS = frozenset({"metrics/precision", "metrics/recall", "train/box_loss", "val/box_loss"})
"""Names that Ultralytics writes once per epoch, with epochs as steps."""


def _joined(parts: dict[Path, _Part]) -> list[_Part]:
    """The runs: folders with a part of the run above them, or next to them, are merged into it."""
    for folder in sorted(parts, key=lambda folder: len(folder.parts), reverse=True):
        above = parts.get(folder.parent) or parts.get(_above_the_tag(parts[folder]) or folder.parent)
        if above is not None and _join(parts[folder], above):
            del parts[folder]
    for whole in {folder.parent for folder in parts}:
        splits = [parts[folder] for folder in parts if folder.parent == whole and folder.name.lower() in SPLITS]
        if len(splits) > (whole not in parts):
            run = parts.setdefault(whole, _Part(whole, {}))
            for part in splits:
                _add(run, part, {tag: f"{part.folder.name}/{tag}" for tag in part.points})
                del parts[part.folder]
            run.clock = _keras_clock(run)
    for run in parts.values():
        if ULTRALYTICS.issubset(tag.partition("(")[0] for tag in run.points):
            run.clock = "epoch"
    return [parts[folder] for folder in sorted(parts)]


def _join(part: _Part, above: _Part) -> bool:
    """Merge what `add_scalars` or `add_hparams` wrote into the run of the folder above."""
    if part.config and all(len(points) == 1 for points in part.points.values()):
        _add(above, part, {})
        return True
    tags = list(part.points)
    if above.folder == _above_the_tag(part):
        _add(above, part, {tags[0]: f"{tags[0]}/{part.folder.name}"})
        return True
    begin = f"{tags[0].replace('/', '_')}_" if len(tags) == 1 else ""
    if begin and part.folder.name.startswith(begin):
        _add(above, part, {tags[0]: f"{tags[0]}/{part.folder.name[len(begin) :]}"})
        return True
    return False


def _above_the_tag(part: _Part) -> Path | None:
    """The folder of the run if tensorboardX wrote this part, otherwise None.

    Its `add_scalars` writes the tag "a/loss" into RUN/a/loss/train and RUN/a/loss/val.

    >>> _above_the_tag(_Part(Path("run/a/loss/train"), {"a/loss": Points.of([0], [1.0])})).as_posix()
    'run'
    """
    words = next(iter(part.points), "").split("/")
    place = part.folder.parent
    fits = len(part.points) == 1 and place.parts[-len(words) :] == tuple(words)
    return place.parents[len(words) - 1] if fits else None


def _add(run: _Part, part: _Part, names: dict[str, str]) -> None:
    run.points.update({names[tag]: points for tag, points in part.points.items() if tag in names})
    run.config = {**part.config, **run.config}
    run.files.extend(part.files)
    run.left_out += part.left_out


def _keras_clock(run: _Part) -> Clock:
    """Keras counts epochs under ``epoch_*`` and batches under the other names; only one of them can be used."""
    by_epoch = [name for name in run.points if name.partition("/")[2].startswith("epoch_")]
    if not by_epoch:
        return "step"
    by_batch = [name for name in run.points if "/batch_" in name or name.endswith("_vs_iterations")]
    if any("/batch_" in name for name in by_batch) and any(name.endswith("_vs_iterations") for name in by_batch):
        run.points = {name: points for name, points in run.points.items() if name not in by_epoch}
        return "step"
    run.points = {name: points for name, points in run.points.items() if name not in by_batch}
    return "epoch"


def _logged(path: Path, name: str, part: _Part) -> Logged:
    notes = []
    if part.left_out:
        notes.append(f"{part.left_out} series beyond the first {NAMES_LIMIT} are left out")
    damaged = [file for file in part.files if file.skipped]
    return Logged(
        path=path,
        name=name,
        format=FORMAT,
        points=part.points,
        config=part.config,
        clock=part.clock,
        notes=tuple(notes),
        skipped=sum(file.skipped for file in damaged),
        first_skipped=damaged[0].first_skipped if damaged else None,
        unit="record",
        torn=bool(part.files) and part.files[-1].torn,
    )


def _name(folder: Path, top: Path) -> str:
    return folder.name if folder == top else str(folder.relative_to(top))
