"""Loads a model, its weights, its data and its loss as named on a command line.

    --model package.module:factory   a function or class that makes the model, or (model, loss_fn, batch, optimizer)
    --args key=value                 its arguments
    --checkpoint FILE                its weights: .pt or .safetensors
    --data FILE | module:factory     a batch, or something that yields batches: .pt, .safetensors, .npz
    --loss NAME | module:name        a loss of torch.nn (cross-entropy, mse ...), or a function of outputs and targets

Files are read by `torchdoctor.checks.files`, which executes nothing in them. A named module is imported as Python would
import it: name only code that you would run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdoctor.checks.checkpoints import fill, weights_in
from torchdoctor.checks.files import as_tensor, read_tensors
from torchdoctor.checks.subject import Subject
from torchdoctor.errors import PatientError, did_you_mean
from torchdoctor.reports.wording import printable

INPUT_NAMES = ("x", "inputs", "input", "data", "features", "images", "image", "tokens")
TARGET_NAMES = ("y", "targets", "target", "labels", "label")
PARTS = ("model", "loss_fn", "batch", "optimizer")
"""What a factory may return: these in this order, or a mapping with these keys."""
SAMPLES = 32
"""Samples taken from a data set for a batch."""


@dataclass(frozen=True)
class Material:
    """What a command works on; parts that were not named are None."""

    model: nn.Module
    loss_fn: Any = None
    batch: Any = None
    """(inputs, targets), or a dict as Hugging Face models take it."""
    optimizer: Any = None
    loader: Any = None
    """Yields further batches."""
    notes: tuple[str, ...] = ()
    """Assumptions to show to the user."""

    @property
    def batches(self) -> Iterable[Any]:
        """All batches: the loader's, or the single one."""
        return self.loader if self.loader is not None else [self.batch]


def load(
    model: str | None = None,
    arguments: Sequence[str] = (),
    *,
    checkpoint: str | Path | None = None,
    data: str | None = None,
    loss: str | None = None,
    trust_pickle: bool = False,
    needs_data: bool = True,
    needs_loss: bool = True,
) -> Material:
    """Load everything that the options of a command name.

    `trust_pickle` allows a checkpoint or data file to be a pickle, which can run any code when it is read.
    """
    if model is not None and checkpoint is None and Path(model).is_file():
        model, checkpoint = None, model  # a file is not a factory
    if model is None and checkpoint is None:
        raise PatientError("no model was named. Give --model package.module:factory.")
    material = _from_checkpoint(checkpoint, trust_pickle) if model is None else made_by(model, arguments)
    if model is not None and checkpoint is not None:
        fill(material.model, checkpoint, trust_pickle=trust_pickle)
    if data is not None:
        batch, loader = load_data(data, trust_pickle=trust_pickle)
        material = replace(material, batch=batch, loader=loader)
    if loss is not None:
        material = replace(material, loss_fn=load_loss(loss))
    if material.batch is None and needs_data:
        raise PatientError(
            "there is no data. Give --data sample.pt, or let the factory return (model, loss_fn, batch)."
        )
    if not needs_loss or material.loss_fn is not None or material.batch is None:
        return material
    return _with_usual_loss(material)


def made_by(name: str, arguments: Sequence[str] = ()) -> Material:
    """The model, and what comes with it, from a factory: `package.module:factory` or `file.py:factory`."""
    made = _called(name, keyword_arguments(arguments))
    parts = dict(zip(PARTS, made, strict=False)) if isinstance(made, tuple | list) else made
    if isinstance(parts, nn.Module):
        parts = {"model": parts}
    if not isinstance(parts, Mapping) or not isinstance(parts.get("model"), nn.Module):
        raise PatientError(
            f"{name} returned {type(made).__name__}; expected an nn.Module, or (model, loss_fn, batch, optimizer)."
        )
    batch, loader = (None, parts.get("loader")) if parts.get("batch") is None else as_batch(parts["batch"], name)
    if batch is None and loader is not None:
        batch, loader = as_batch(loader, name)
    return Material(parts["model"], parts.get("loss_fn"), batch, parts.get("optimizer"), loader)


def keyword_arguments(pairs: Iterable[str]) -> dict[str, Any]:
    """`key=value` texts as arguments: numbers, true, false, null and JSON are parsed, anything else is text.

    >>> keyword_arguments(["layers=2", "lr=1e-3", "name=gpt", "bias=False", "sizes=[1, 2]"])
    {'layers': 2, 'lr': 0.001, 'name': 'gpt', 'bias': False, 'sizes': [1, 2]}
    """
    words = {"True": True, "False": False, "None": None}
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            raise PatientError(f"--args {pair!r}: expected key=value, such as layers=2.")
        value: Any = words.get(text, text)
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(text)
        found[key.strip()] = value
    return found


def find(name: str) -> Any:
    """The object named by `package.module:name` or `file.py:name`; the current folder is searched first."""
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise PatientError(f"{name!r} is not a valid name. Expected package.module:factory or file.py:factory.")
    module = _imported(place, name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [item for item in vars(found) if not item.startswith("_")] if hasattr(found, "__dict__") else []
            raise PatientError(f"{place} has no {part!r}. {did_you_mean(part, known[:200])}")
        found = getattr(found, part)
    return found


def _imported(place: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        file = Path(place)
        if not file.is_file():
            raise PatientError(f"{file} does not exist, so {name!r} cannot be loaded.")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise PatientError(f"{file} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        spec.loader.exec_module(module)
        return module
    except PatientError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything, or be a script that exits
        missing = isinstance(error, ModuleNotFoundError) and str(error.name) == place.partition(".")[0]
        hint = ". Run this from the folder that contains it, or name its file: path/file.py:factory." if missing else ""
        raise PatientError(f"cannot import {place}: {_told(error)}{hint}") from error


def _called(name: str, arguments: Mapping[str, Any]) -> Any:
    found = find(name)
    if not callable(found) or isinstance(found, nn.Module):
        return found
    try:
        return found(**arguments)
    except (Exception, SystemExit) as error:
        raise PatientError(f"calling {name} failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """The error, and the line of the user's code where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace is not None else "<"
    theirs = trace is not None and not file.startswith("<") and file != __file__  # ours: the call itself failed
    place = f" ({Path(file).name}, line {trace.tb_lineno})" if trace is not None and theirs else ""
    return f"{type(error).__name__}: {error}{place}"


def _from_checkpoint(path: str | Path | None, trust_pickle: bool) -> Material:
    """A whole model from a file, which only a pickle can hold."""
    found = read_tensors(Path(str(path)), trust_pickle=trust_pickle)
    if isinstance(found, Mapping) and isinstance(found.get("model"), nn.Module):
        found = found["model"]
    if isinstance(found, nn.Module):
        return Material(found)
    if isinstance(found, Mapping) and (weights := weights_in(found)):
        first = printable(next(iter(weights)))
        raise PatientError(
            f"{path} holds weights ({len(weights)} tensors, the first is {first}) but not their model. Give --model "
            "package.module:factory as well."
        )
    raise PatientError(f"{path} holds {type(found).__name__}, not a model. Give --model package.module:factory.")


def load_data(name: str, *, trust_pickle: bool = False) -> tuple[Any, Any]:
    """A batch, and what yields further batches (None if there are none), from a file or a factory."""
    if Path(name).is_file():
        found = read_tensors(Path(name), trust_pickle=trust_pickle)
    elif re.fullmatch(r"[^:]+:[A-Za-z_][\w.]*", name):
        found = _called(name, {})
    else:
        raise PatientError(f"{name} does not exist. Give a .pt, .safetensors or .npz file, or package.module:factory.")
    return as_batch(found, name)


def as_batch(found: Any, name: str) -> tuple[Any, Any]:
    """A batch and a loader from whatever holds them: tensors, a pair, a dict, a list of batches, a loader, a data set.

    >>> x, y = torch.zeros(2, 3), torch.zeros(2)
    >>> [item is given for item, given in zip(as_batch({"x": x, "y": y}, "sample.pt")[0], (x, y))]
    [True, True]
    """
    found = _with_tensors(found)
    if isinstance(found, torch.utils.data.Dataset) and not isinstance(found, torch.utils.data.IterableDataset):
        found = torch.utils.data.DataLoader(found, batch_size=SAMPLES)
    if isinstance(found, Tensor):
        return (found, None), None
    if isinstance(found, Mapping):
        return _from_mapping(found, name), None
    if isinstance(found, tuple | list) and found and isinstance(found[0], Tensor | Mapping) and not _are_dicts(found):
        return (found[0], None) if len(found) == 1 else tuple(found), None
    first = next(iter(found), None) if isinstance(found, Iterable) and not isinstance(found, str) else None
    if first is None or isinstance(first, str | int | float):
        raise PatientError(f"{name} holds {type(found).__name__}, which contains no batch. Give (inputs, targets).")
    batch, _ = as_batch(first, name)
    return batch, found if hasattr(found, "__len__") or iter(found) is not found else None


def _with_tensors(found: Any) -> Any:
    """Convert arrays, alone or as parts of a batch, to tensors."""
    if isinstance(found, np.ndarray):
        return as_tensor(found)
    if isinstance(found, Mapping):
        return {key: _with_tensors(item) for key, item in found.items()}
    if type(found) in (tuple, list) and any(isinstance(item, np.ndarray) for item in found):
        return type(found)(_with_tensors(item) for item in found)
    return found


def drawn_from(batches: Any) -> tuple[Any, ...]:
    """What iterating over batches changes: a loader has state (its generator, its sampler), tensors have none."""
    return () if isinstance(batches, Tensor | Mapping | list | tuple) else (batches,)


def _are_dicts(found: Sequence[Any]) -> bool:
    return all(isinstance(item, Mapping) for item in found)


def _from_mapping(found: Mapping[Any, Any], name: str) -> Any:
    tensors = {str(key): item for key, item in found.items()}
    inputs = next((tensors[key] for key in INPUT_NAMES if key in tensors), None)
    targets = next((tensors[key] for key in TARGET_NAMES if key in tensors), None)
    if inputs is not None and len(tensors) <= 2:
        return inputs, targets
    if any(isinstance(item, Tensor) for item in tensors.values()):
        return tensors  # for a model that takes its batch as keywords, like Hugging Face's
    raise PatientError(f"{name} has the keys {', '.join(map(printable, tensors))}. Name them inputs and targets.")


def _loss_names() -> dict[str, Callable[[], Any]]:
    """The losses of torch.nn by name: `CrossEntropyLoss` is cross-entropy."""
    found: dict[str, Callable[[], Any]] = {}
    for name in nn.modules.loss.__all__:
        words = (
            name.removesuffix("Loss")
            .replace("BCEWith", "BCE-With")
            .replace("KLDiv", "KL-Div")
            .replace("NLL", "-NLL")
            .strip("-")
        )
        found[re.sub(r"(?<=[a-z])(?=[A-Z])", "-", words).lower()] = getattr(nn, name)
    return found | {"ce": nn.CrossEntropyLoss, "mae": nn.L1Loss}


def load_loss(name: str) -> Any:
    """The loss with a name (cross-entropy, mse, l1, bce-with-logits ...), or `package.module:name`.

    >>> load_loss("cross_entropy"), load_loss("MSELoss")
    (CrossEntropyLoss(), MSELoss())
    """
    if ":" in name:
        found = find(name)
        return found() if isinstance(found, type) else found
    known = _loss_names()
    wanted = name.strip().replace("_", "-")
    if hasattr(nn.modules.loss, wanted) and wanted in nn.modules.loss.__all__:
        return getattr(nn, wanted)()
    if wanted.lower() not in known:
        raise PatientError(f"there is no loss {name!r}. {did_you_mean(wanted.lower(), known)}")
    return known[wanted.lower()]()


def usual_loss(model: Any, batch: Any) -> Any:
    """The loss that fits the type of the targets, if none was named; None for a model that returns its own."""
    subject = Subject.of(model, None, batch)
    subject.find_calling()
    if not subject.no_loss or not isinstance(subject.targets, Tensor):
        return None
    return nn.MSELoss() if subject.targets.is_floating_point() else nn.CrossEntropyLoss()


def _with_usual_loss(material: Material) -> Material:
    loss = usual_loss(material.model, material.batch)
    if loss is None:
        return material
    note = f"no loss was named: {type(loss).__name__} was chosen from the type of the targets"
    return replace(material, loss_fn=loss, notes=(*material.notes, note))
