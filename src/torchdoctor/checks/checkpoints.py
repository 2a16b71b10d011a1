"""Checkpoints: finding the weights in them, loading these into a model, and a table of differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchdoctor.checks.files import read_tensors
from torchdoctor.errors import PatientError
from torchdoctor.reports.wording import printable

NESTS = ("state_dict", "model_state_dict", "model", "model_state", "module", "net", "network", "weights", "params")
"""Keys under which a checkpoint may hold the weights along with other things."""
PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
"""Prefixes that wrappers add to parameter names."""
ROWS = 20
"""Most rows shown in a table of differences."""


class MismatchError(PatientError):
    """A checkpoint does not fit the model; the text is a table."""

    lines = True


def weights_in(checkpoint: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The state dict in a checkpoint, wherever it is; empty if there is none."""
    if checkpoint and all(isinstance(key, str) and isinstance(item, Tensor) for key, item in checkpoint.items()):
        return dict(checkpoint)
    for name in NESTS:
        inner = checkpoint.get(name)
        if isinstance(inner, nn.Module):
            return dict(inner.state_dict())
        if isinstance(inner, Mapping) and (found := weights_in(inner)):
            return found
    # A state dict may also hold what modules return from get_extra_state.
    return {key: item for key, item in checkpoint.items() if isinstance(key, str) and isinstance(item, Tensor)}


def fill(model: nn.Module, path: str | Path, *, trust_pickle: bool = False) -> None:
    """Load the weights of a checkpoint into a model, all of them or none.

    Prefixes that wrappers add (``module.``, ``_orig_mod.``) are added or removed as needed; any other difference
    raises an error with a table.
    """
    own = model.state_dict()
    weights = _unwrapped(read_weights(path, trust_pickle=trust_pickle), own)
    if rows := differences(weights, own):
        raise MismatchError(_table(path, rows, len(own)))
    model.load_state_dict(weights)


def read_weights(path: str | Path, *, trust_pickle: bool = False) -> dict[str, Tensor]:
    """The weights in a checkpoint by name."""
    found = read_tensors(Path(path), trust_pickle=trust_pickle)
    if isinstance(found, nn.Module):
        found = found.state_dict()
    weights = weights_in(found) if isinstance(found, Mapping) else {}
    if not weights:
        raise PatientError(f"{path} holds {type(found).__name__} without weights. Save model.state_dict().")
    return weights


def _unwrapped(weights: dict[str, Tensor], own: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights renamed, with wrapper prefixes added or removed, so that most names fit."""
    choices = [weights]
    for _ in range(2):  # DDP around a compiled model has two
        for prefix in PREFIXES:
            choices += [
                {name.removeprefix(prefix): item for name, item in known.items()}
                for known in choices[: len(PREFIXES) + 1]
                if all(name.startswith(prefix) for name in known)
            ]
    choices += [{prefix + name: item for name, item in weights.items()} for prefix in PREFIXES]
    return max(choices, key=lambda choice: len(choice.keys() & own.keys()))


def differences(weights: Mapping[str, Tensor], own: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The differences between a checkpoint and a model: (name, in the file, in the model).

    >>> layer = nn.Linear(2, 3, bias=False)
    >>> differences({"weight": Tensor(3, 4), "scale": Tensor(1)}, layer.state_dict())
    [('weight', '(3, 4)', '(3, 2)'), ('scale', '(1,)', 'missing')]
    """
    rows = [
        (name, _shape(weights[name]), _shape(item))
        for name, item in own.items()
        if name in weights and isinstance(item, Tensor) and weights[name].shape != item.shape
    ]
    rows += [(name, "missing", _shape(item)) for name, item in own.items() if name not in weights]
    rows += [(name, _shape(item), "missing") for name, item in weights.items() if name not in own]
    return rows


def _shape(item: Any) -> str:
    return str(tuple(item.shape)) if isinstance(item, Tensor) else type(item).__name__


def _table(path: str | Path, rows: list[tuple[str, str, str]], known: int) -> str:
    shown = [("name", "in the file", "in the model"), *rows[:ROWS]]
    cells = [[printable(cell) for cell in row] for row in shown]
    widths = [max(len(row[column]) for row in cells) for column in range(2)]
    lines = [f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in cells]
    if len(rows) > ROWS:
        lines.append(f"  and {len(rows) - ROWS} more")
    return "\n".join(
        [
            f"{printable(path)} does not fit the model, which has {known} tensors. {len(rows)} differ:",
            *lines,
            "Build the model with the arguments it had when the weights were saved: --args key=value.",
        ]
    )
