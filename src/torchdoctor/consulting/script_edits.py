"""The edits that each action makes in a training script; only if the place is certain."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchdoctor.consulting.clipping import CLIP, clip_lines, lightning_trainer, number
from torchdoctor.consulting.script import ARGUMENTS, Optimizer, Place, Script, Step, literal
from torchdoctor.records import Suggestion

RATE = ("learning_rate", "lr", "base_lr", "max_lr")
DROPOUT = ("dropout", "dropout_rate", "dropout_p", "drop_rate", "hidden_dropout_prob")
WARMUP = ("warmup_steps", "warmup_iters", "num_warmup_steps")
LENGTH = ("max_steps", "max_iters", "total_steps", "num_train_epochs", "num_epochs", "epochs", "n_epochs")


class PlaceError(Exception):
    """The place is not certain; the message says why."""


@dataclass(frozen=True)
class Edit:
    """A replacement; an empty place makes it an insertion."""

    place: Place
    text: str


def _only(places: list[Place], what: str) -> Place:
    """The only place of a setting; of several, the argument of the optimizer or the trainer."""
    if len(places) == 1:
        return places[0]
    if not places:
        raise PlaceError(f"no {what} is written as a number in the script")
    leading = [item for item in places if item.leading]
    if len(leading) == 1:
        return leading[0]
    raise PlaceError(f"the {what} is set on several lines ({', '.join(str(item.line) for item in places[:5])})")


def _the_optimizer(script: Script) -> Optimizer:
    if len(script.optimizers) != 1:
        raise PlaceError(f"{len(script.optimizers) or 'no'} optimizers were found in the script")
    return script.optimizers[0]


def _the_step(script: Script) -> Step:
    steps = script.steps()
    if len(steps) != 1:
        raise PlaceError(f"{len(steps) or 'no'} optimizer steps after a backward() were found")
    if script.line(steps[0].node.lineno)[: steps[0].node.col_offset].strip():
        raise PlaceError("the optimizer step shares its line with another statement")
    return steps[0]


def _before(script: Script, node: ast.stmt, *texts: str) -> Edit:
    """New lines before a statement, indented like it."""
    indent = script.line(node.lineno)[: node.col_offset]
    ending = "\r\n" if "\r\n" in script.text else "\n"
    place = Place(node.lineno, 0, node.lineno, 0)
    return Edit(place, "".join(f"{indent}{text}{ending}" for text in texts))


def _after(script: Script, node: ast.stmt, text: str) -> Edit:
    """A new line after a statement that ends its line."""
    line, column = node.end_lineno or node.lineno, node.end_col_offset or 0
    rest = script.lines[line - 1].encode()[column:].decode()
    if rest.strip() and not rest.strip().startswith("#"):
        raise PlaceError("another statement follows on the same line")
    indent = script.line(node.lineno)[: node.col_offset]
    end = len(script.lines[line - 1].rstrip("\r").encode())
    ending = "\r\n" if "\r\n" in script.text else "\n"
    return Edit(Place(line, end, line, end), f"{ending}{indent}{text}")


def _set(place: Place, value: float) -> list[Edit]:
    whole = isinstance(place.value, int) and not isinstance(place.value, bool) and value == int(value)
    return [Edit(place, str(int(value)) if whole else number(value))]


def _add_argument(call: ast.Call, text: str) -> list[Edit]:
    """Add a keyword at the end of a call."""
    given: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given or any(keyword.arg is None for keyword in call.keywords):
        raise PlaceError("the call gets its arguments from elsewhere")
    last = max(given, key=lambda item: (item.end_lineno or 0, item.end_col_offset or 0))
    line, column = last.end_lineno or 0, last.end_col_offset or 0
    return [Edit(Place(line, column, line, column), f", {text}")]


def _trainer(script: Script) -> ast.Call | None:
    calls = script.calls(*ARGUMENTS)
    return calls[0] if len(calls) == 1 else None


# One function per action


def _parameter(suggestion: Suggestion, name: str) -> float:
    value = suggestion.parameters.get(name)
    if not isinstance(value, int | float):
        raise PlaceError(f"the change gives no {name}")
    return float(value)


def _rate(script: Script, suggestion: Suggestion) -> list[Edit]:
    place = _only(script.settings(*RATE), "learning rate")
    return _set(place, place.value * _parameter(suggestion, "factor"))


def _longer(script: Script, suggestion: Suggestion) -> list[Edit]:
    place = _only(script.settings(*LENGTH), "number of steps or epochs")
    value = place.value * _parameter(suggestion, "factor")
    return _set(place, max(int(value), 1) if isinstance(place.value, int) else value)


def _clip(script: Script, suggestion: Suggestion) -> list[Edit]:
    limit = _parameter(suggestion, "max_norm")
    if places := script.settings(*CLIP):
        known = _only(places, "limit")
        if 0 < known.value < limit and "clip-too-tight" not in suggestion.reason:
            raise PlaceError(f"the script already clips at {known.value}, on line {known.line}")
        return _set(known, limit)
    if (trainer := _trainer(script)) is not None:
        return _add_argument(trainer, f"max_grad_norm={number(limit)}")
    if (trainer := lightning_trainer(script)) is not None:
        return _add_argument(trainer, f"gradient_clip_val={number(limit)}")
    if called := script.calls("clip_grad_norm_"):
        if len(called) == 1 and len(called[0].args) == 2 and (place := literal(called[0].args[1])) is not None:
            return _set(place, limit)
        raise PlaceError(f"the script already clips, on line {called[0].lineno}")
    step, optimizer = _the_step(script), _the_optimizer(script)
    if not optimizer.parameters:
        raise PlaceError("the optimizer does not get the parameters of one model")
    if not script.reaches(optimizer.parameters.split(".")[0], optimizer.call, step.node):
        raise PlaceError("the model has another name at the optimizer step")
    texts = clip_lines(script, step, optimizer.parameters, limit)
    if any(text.startswith("torch.") for text in texts):
        _needs_torch(script)
    return [_before(script, step.node, *texts)]


def _needs_torch(script: Script) -> None:
    imports = [node for node in ast.walk(script.tree) if isinstance(node, ast.Import)]
    if not any((alias.asname or alias.name) == "torch" for node in imports for alias in node.names):
        raise PlaceError("the script does not import torch under that name")


def _dropout(script: Script, suggestion: Suggestion) -> list[Edit]:
    places = script.settings(*DROPOUT)
    for call in script.calls("Dropout", "Dropout1d", "Dropout2d"):
        given = [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "p")]
        places += [place for node in given if (place := literal(node)) is not None]
    if len({place.value for place in places}) != 1:  # equal rates count as one setting
        places = [_only(places, "dropout rate")]
    unknown = suggestion.action == "raise-dropout" and not suggestion.parameters  # start from the script's own rate
    rate = min(places[0].value + 0.1, 0.5) if unknown else _parameter(suggestion, "rate")
    return [edit for place in places for edit in _set(place, rate)]


def _optimizer_setting(name: str, parameter: str) -> Callable[[Script, Suggestion], list[Edit]]:
    def make(script: Script, suggestion: Suggestion) -> list[Edit]:
        value = _parameter(suggestion, parameter)
        if places := script.settings(name):
            return _set(_only(places, name), value)
        trainer = _trainer(script)
        call = trainer if trainer is not None and name == "weight_decay" else _the_optimizer(script).call
        if any(keyword.arg == name for keyword in call.keywords):
            raise PlaceError(f"{name} is computed elsewhere")
        return _add_argument(call, f"{name}={number(value)}")

    return make


def _warmup(script: Script, suggestion: Suggestion) -> list[Edit]:
    steps = _parameter(suggestion, "steps")
    if places := script.settings(*WARMUP):
        place = _only(places, "warm-up")
        if place.value >= steps:
            raise PlaceError(f"the script already warms up for {place.value} steps, on line {place.line}")
        return _set(place, steps)
    if (trainer := _trainer(script)) is not None:
        return _add_argument(trainer, f"warmup_steps={steps:.0f}")
    if "lr_scheduler" in script.text or "get_lr" in script.text or 'param_group["lr"]' in script.text.replace("'", '"'):
        raise PlaceError("the script has a schedule of its own: add the warm-up to it")
    optimizer, step = _the_optimizer(script), _the_step(script)
    _needs_torch(script)
    if not script.reaches("", optimizer.call, step.node):
        raise PlaceError("the optimizer is created in another function than its step")
    made = next(node for node in ast.walk(script.tree) if isinstance(node, ast.Assign) and node.value is optimizer.call)
    text = f"warmup = torch.optim.lr_scheduler.LinearLR({optimizer.name}, start_factor=0.01, total_iters={steps:.0f})"
    return [_after(script, made, text), _after(script, step.node, "warmup.step()")]


def _skip(script: Script, suggestion: Suggestion) -> list[Edit]:
    step = _the_step(script)
    if not step.loss or step.scaler:
        raise PlaceError(
            "the gradient scaler skips such steps by itself" if step.scaler else "the step has no loss of its own"
        )
    _needs_torch(script)
    node = step.node
    place = Place(node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
    return [Edit(place, f"if torch.isfinite({step.loss}): {script.source(node)}")]


def _zero(script: Script, suggestion: Suggestion) -> list[Edit]:
    if called := script.calls("zero_grad"):
        raise PlaceError(f"zero_grad() is called on line {called[0].lineno}: check whether that is the right place")
    step = _the_step(script)
    return [_after(script, step.node, f"{step.optimizer}.zero_grad(set_to_none=True)")]


def _shuffle(script: Script, suggestion: Suggestion) -> list[Edit]:
    loaders = script.calls("DataLoader")
    chosen = [call for call in loaders if "train" in script.line(call.lineno).lower()] or loaders
    words = (script.source(chosen[0]) + script.line(chosen[0].lineno)).lower() if chosen else ""
    if len(chosen) != 1 or any(word in words for word in ("sampler", "val", "test", "eval")):
        raise PlaceError(f"{len(loaders) or 'no'} data loaders were found, and none is clearly the training loader")
    given = next((keyword.value for keyword in chosen[0].keywords if keyword.arg == "shuffle"), None)
    if given is None:
        return _add_argument(chosen[0], "shuffle=True")
    place = literal(given)
    if place is None or place.value is not False:
        raise PlaceError("shuffle is already set")
    return [Edit(place, "True")]


def _adamw(script: Script, suggestion: Suggestion) -> list[Edit]:
    call = _the_optimizer(script).call
    name = call.func
    if not (isinstance(name, ast.Attribute) and name.attr == "Adam"):
        raise PlaceError("the optimizer is not created as torch.optim.Adam")
    end = name.end_col_offset or 0
    line = name.end_lineno or 0
    return [Edit(Place(line, end - len("Adam"), line, end), "AdamW")]


MAKERS: Mapping[str, Callable[[Script, Suggestion], list[Edit]]] = {
    "scale-lr": _rate,
    "train-longer": _longer,
    "set-clip-norm": _clip,
    "raise-dropout": _dropout,
    "lower-dropout": _dropout,
    "set-weight-decay": _optimizer_setting("weight_decay", "value"),
    "set-momentum": _optimizer_setting("momentum", "value"),
    "change-eps": _optimizer_setting("eps", "eps"),
    "restart-warmup": _warmup,
    "skip-step": _skip,
    "fix-zero-grad": _zero,
    "zero-gradients": _zero,
    "shuffle-data": _shuffle,
    "use-adamw": _adamw,
}
"""By action, the function that makes its edits; it raises `PlaceError` if the place is not certain."""
STEPWISE = frozenset(
    {"set-clip-norm", "set-clip-value", "adaptive-clip", "skip-step", "fix-zero-grad", "zero-gradients"}
)
"""Actions whose edits belong next to the optimizer step."""
AT_OPTIMIZER = frozenset(
    {
        "scale-lr",
        "set-weight-decay",
        "set-momentum",
        "change-betas",
        "change-eps",
        "restart-warmup",
        "change-schedule",
        "use-adamw",
        "switch-optimizer",
        "add-parameters-to-optimizer",
    }
)
"""Actions whose edits belong where the optimizer and its schedule are created."""
