"""MLflow: the database ``mlflow.db``, and the folder ``mlruns`` that older versions write.

MLflow is not imported. A deleted run is left out, unless its own folder is given. NaN and infinity, which the database
cannot hold, are restored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torchdoctor.errors import SourceError
from torchdoctor.records import names_text
from torchdoctor.sources import plain_yaml
from torchdoctor.sources.logged import NAME_LENGTH, NAMES_LIMIT, Clock, Logged, Points
from torchdoctor.sources.sqlite_store import Store, columns, opened

FORMAT = "MLflow"
HUGE = 1.7976931348623e308
"""Stands for infinity, which the database cannot hold."""
RUNS_LIMIT = 10_000
PARAMETER_LENGTH = 500
FILE_LIMIT = 2**30
_METRICS = frozenset({"key", "value", "timestamp", "run_uuid", "step", "is_nan"})
_META = "meta.yaml"


def recognises(path: Path) -> bool:
    """Whether a file is MLflow's database, or a folder is its store, an experiment or a run."""
    if path.is_dir():
        return next(_run_folders(path), None) is not None
    return columns(path, "metrics") >= _METRICS


def read(path: Path) -> list[Logged]:
    """The runs in a database or a folder."""
    runs = _of_folders(path) if path.is_dir() else _of_database_file(path)
    measured = [run for run in runs if run.points]
    if not measured:
        raise SourceError(f"{path} holds {len(runs)} MLflow runs, none of which has a metric.")
    return measured


def _of_folders(path: Path) -> list[Logged]:
    return [_of_folder(folder) for folder in _run_folders(path)]


def _of_database_file(path: Path) -> list[Logged]:
    with opened(path) as store:
        alive = "WHERE lifecycle_stage = 'active'" if "lifecycle_stage" in store.columns("runs") else ""
        name = "name" if "name" in store.columns("runs") else "''"
        runs = store.rows(f"SELECT run_uuid, {name} FROM runs {alive}", order="start_time")[:RUNS_LIMIT]
        return [_of_database(store, str(run), str(called or run)) for run, called in runs]


def _of_database(store: Store, run: str, name: str) -> Logged:
    query = "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ?"
    series: dict[str, tuple[list[int], list[float]]] = {}
    skipped = 0
    for key, step, value, is_nan in store.rows(query, (run,), "key, timestamp, step"):
        if not (isinstance(key, str) and isinstance(step, int) and isinstance(value, int | float)):
            skipped += 1
        elif key in series or len(series) < NAMES_LIMIT:
            steps, values = series.setdefault(key, ([], []))
            steps.append(step)
            values.append(float("nan") if is_nan else float(value))
    config = {}
    if store.columns("params") >= {"key", "value", "run_uuid"}:
        config = dict(store.rows("SELECT key, value FROM params WHERE run_uuid = ?", (run,)))
    return _logged(store.path, name, series, config, skipped, store.damage)


def _logged(
    path: Path,
    name: str,
    series: dict[str, tuple[list[int], list[float]]],
    config: dict[str, Any],
    skipped: int,
    damage: str = "",
) -> Logged:
    points = {key[:NAME_LENGTH]: _points(steps, values) for key, (steps, values) in series.items() if steps}
    uncounted = [key for key, found in points.items() if len(found) > 1 and not found.steps.any()]
    clock: Clock = "row" if len(uncounted) == sum(len(found) > 1 for found in points.values()) > 0 else "step"
    for key in uncounted:
        points[key] = Points(np.arange(len(points[key])), points[key].values)
    notes = [f"logged without steps, so values are numbered in order: {names_text(uncounted)}"] if uncounted else []
    if damage:
        notes.append(f"the database is damaged ({damage}): only the undamaged part was read")
    return Logged(
        path=path,
        name=name,
        format=FORMAT,
        points=points,
        config={str(key): _plain(value) for key, value in config.items()},
        clock=clock,
        notes=tuple(notes),
        skipped=skipped,
        first_skipped=1 if skipped else None,
    )


def _points(steps: list[int], values: list[float]) -> Points:
    found = np.array(values, dtype=np.float64)
    found[found >= HUGE], found[found <= -HUGE] = np.inf, -np.inf
    return Points(np.array(steps, dtype=np.int64), found)


def _plain(value: object) -> Any:
    """A parameter, which MLflow stores as text, converted back.

    >>> _plain("1e-4"), _plain("32"), _plain("True"), _plain("adamw")
    (0.0001, 32, True, 'adamw')
    """
    text = str(value)[:PARAMETER_LENGTH]
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _run_folders(folder: Path, asked_for: bool = True) -> Iterator[Path]:
    """The folders of runs in a store, in an experiment, or of a run itself, which may be a deleted one.

    Links are not followed.
    """
    meta = _meta(folder)
    if "run_id" in meta or "run_uuid" in meta:
        if asked_for or meta.get("lifecycle_stage", "active") == "active":
            yield folder
        return
    count = 0
    for below in sorted(folder.iterdir()):
        if below.is_symlink() or not below.is_dir():
            continue
        inside = _meta(below)
        own = "experiment_id" in meta or folder.name.isdigit()  # its meta.yaml may not have been copied
        if "run_id" in inside or "run_uuid" in inside:
            runs = _run_folders(below, asked_for=False) if own else iter(())
        elif "experiment_id" in inside or (not own and below.name.isdigit()):
            runs = _run_folders(below, asked_for=False)
        else:
            continue
        for run in runs:
            yield run
            count += 1
            if count >= RUNS_LIMIT:
                return


def _meta(folder: Path) -> dict[str, plain_yaml.Plain]:
    """The plain entries in the description of a run or experiment."""
    file = folder / _META
    return plain_yaml.read(file) if file.is_file() and not file.is_symlink() else {}


def _of_folder(folder: Path) -> Logged:
    series: dict[str, tuple[list[int], list[float]]] = {}
    skipped = 0
    for file in _files(folder / "metrics"):
        if len(series) >= NAMES_LIMIT or file.stat().st_size > FILE_LIMIT:
            skipped += 1
            continue
        steps: list[int] = []
        values: list[float] = []
        for line in file.read_bytes().splitlines():
            try:
                _, value, *step = line.split()
                found, place = float(value), int(step[0]) if step else len(steps)
            except ValueError:
                skipped += 1
            else:
                steps.append(place if abs(place) < 2**62 else -1)
                values.append(found)
        series[file.relative_to(folder / "metrics").as_posix()] = (steps, values)
    parameters = folder / "params"
    config = {file.relative_to(parameters).as_posix(): _text(file) for file in _files(parameters)}
    name = str(_meta(folder).get("run_name") or "") or _text(folder / "tags" / "mlflow.runName") or folder.name
    return _logged(folder, name, series, config, skipped)


def _text(file: Path) -> str:
    """The beginning of a small file; empty if there is none."""
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as content:
        return content.read(PARAMETER_LENGTH).decode("utf-8", "replace").strip()


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from (file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink())
