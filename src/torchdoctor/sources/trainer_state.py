"""Hugging Face: ``trainer_state.json``, and the output folders and checkpoints that contain it.

Rows of training and evaluation are mixed in its ``log_history``; the last row of a finished run holds means over the
whole run and is not a point of a curve. Of several checkpoints the latest contains everything in the others.
Hyper-parameters come from the state and from the model card next to it; ``training_args.bin`` is a pickle and is never
opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchdoctor.errors import SourceError
from torchdoctor.sources import tensorboard
from torchdoctor.sources.encodings import encoding_of
from torchdoctor.sources.json_numbers import number_of, numbers
from torchdoctor.sources.logged import STEP_LIMIT, Logged, NoLogError, Points, Wish
from torchdoctor.sources.opening import beginning, opened
from torchdoctor.sources.table import Table

FORMAT = "Hugging Face"
NAME = "trainer_state.json"
SIZE_LIMIT = 256 * 2**20
_HISTORY = '"log_history"'
_ROW = re.compile(r"\{[^{}]{0,100000}\}")
_WHOLE_RUN = frozenset({"train_runtime", "train_samples_per_second"})
"""A row with one of these summarizes the run."""
_SUMMED_UP = ("epoch", "step", "train_loss")
"""What such a row says of the run: the mean loss, at its last step."""
_SETTINGS = ("num_train_epochs", "max_steps", "train_batch_size", "logging_steps", "eval_steps", "save_steps")
_CARD_BEGINS = "hyperparameters were used"
_CARD_LINE = re.compile(r"^- (\w+): (.{1,200})$", re.MULTILINE)


def recognises(path: Path) -> bool:
    """Whether a file is a trainer's state, or a folder holds one or checkpoints with one."""
    if path.is_dir():
        return any(recognises(file) for file in _states(path))
    start = beginning(path).lstrip()
    return start.startswith("{") and _HISTORY in start


def read(path: Path) -> list[Logged]:
    """The run of a state, or of the latest state in a folder."""
    if not path.is_dir():
        return [_with_records(path, _read_state(path))]
    states = [_read_state(file) for file in _states(path) if recognises(file)]
    if not states:
        raise SourceError(f"{path} holds no {NAME}.")
    latest = max(states, key=_last_step)
    return [_gone_on(path, replace(_with_records(path, latest), name=path.name))]


def _with_records(path: Path, found: Logged) -> Logged:
    """The log, unless the trainer had not logged anything yet."""
    if not found.points:
        raise NoLogError(f"{path} holds no records: its log_history is empty. A smaller logging_steps logs sooner.")
    return found


def _states(folder: Path) -> Iterator[Path]:
    """The states in a folder and its checkpoints."""
    for file in (folder / NAME, *sorted(folder.glob(f"checkpoint-*/{NAME}"))):
        if file.is_file():
            yield file


def _read_state(path: Path) -> Logged:
    with opened(path) as file:
        data = file.read(SIZE_LIMIT)
    content = data.decode(encoding_of(data), "replace")
    table, summary = Table(), {}
    try:
        state = json.loads(content)
    except (ValueError, RecursionError):
        state = _salvaged(content)
        table.torn = True
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        raise SourceError(f"{path} is not the state of a Hugging Face trainer: it has no list log_history.")
    counted = False
    for number, row in enumerate(state["log_history"], 1):
        if not isinstance(row, Mapping):
            table.skip(number)
        elif _WHOLE_RUN.isdisjoint(row):
            values = numbers(row)
            counted |= "step" in values
            table.add(values)
        else:
            summary = numbers(row)
    if not table.rows and summary:  # a run shorter than its logging interval logs nothing else
        counted = "step" in summary
        table.add({name: value for name, value in summary.items() if name in _SUMMED_UP})
    found = table.logged(path, FORMAT, Wish({"step": "step"} if counted else {}), _config(state, path.parent))
    return replace(found, name=path.name, context={**found.context, **_context(state)})


def _salvaged(content: str) -> dict[str, Any]:
    """The rows of a state that is cut off or damaged, and the plain settings before them."""
    before, _, after = content.partition(_HISTORY)
    rows = []
    for match in _ROW.finditer(after):
        try:
            rows.append(json.loads(match.group()))
        except (ValueError, RecursionError):
            rows.append(None)
    settings = {key: number_of(_number(value)) for key, value in re.findall(r'"(\w+)":\s*([-\d.eE]+)', before[:10_000])}
    return {**settings, "log_history": rows}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _config(state: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    given = ((name, number_of(state.get(name))) for name in _SETTINGS)
    own = {name: state[name] for name, value in given if value is not None and 0 < value < STEP_LIMIT}
    return {**_model_card(folder / "README.md"), **own}


def _model_card(path: Path) -> dict[str, Any]:
    """The hyper-parameters that the trainer writes into a model card."""
    if path.is_symlink() or not path.is_file():
        return {}
    with path.open("rb") as file:
        text = file.read(2**20).decode("utf-8", "replace")
    listed = text.partition(_CARD_BEGINS)[2].split("\n#")[0]
    found: dict[str, Any] = {}
    for name, value in _CARD_LINE.findall(listed):
        number = _number(value)
        found[name] = value if number is None else int(number) if number.is_integer() and "." not in value else number
    return found


def _context(state: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    step, epoch = number_of(state.get("global_step")), number_of(state.get("epoch"))
    if step and epoch and 0 < epoch < STEP_LIMIT and 0 < step < STEP_LIMIT:
        found["steps_per_epoch"] = max(1, round(step / epoch))
    for ours, theirs in (
        ("max_steps", "max_steps"),
        ("epochs", "num_train_epochs"),
        ("batch_size", "train_batch_size"),
    ):
        value = number_of(state.get(theirs))
        if value is not None and 0 < value < STEP_LIMIT and value.is_integer():
            found[ours] = int(value)
    return found


def _last_step(logged: Logged) -> int:
    return max((int(points.steps.max()) for points in logged.points.values() if len(points)), default=-1)


def _gone_on(folder: Path, state: Logged) -> Logged:
    """What TensorBoard's log in the same folder has beyond the last checkpoint: the end of a killed run."""
    logs = folder / "runs"
    if not logs.is_dir():
        return state
    last = _last_step(state)
    for place in sorted(below for below in logs.iterdir() if below.is_dir()):
        if not tensorboard.recognises(place):
            continue
        for run in tensorboard.read(place):
            if _last_step(run) > last and "train/loss" in run.points:
                note = f"the last checkpoint ends at step {last}: read from TensorBoard's log in {place.name} instead"
                points: dict[str, Points] = dict(run.points)
                config = {**run.config, **state.config}
                state = replace(state, path=place, points=points, config=config, notes=(note,), torn=run.torn)
                last = _last_step(run)
    return state
