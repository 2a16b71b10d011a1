"""A fix as settings: names and values to override, as TOML or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from torchdoctor.consulting.question import Answers, ConsultError
from torchdoctor.records import Suggestion
from torchdoctor.reports.wording import printable

Setting = float | int | str | bool
WHOLE = frozenset({"warmup_steps", "batch_size", "max_steps", "num_workers"})


def overrides(suggestion: Suggestion, answers: Answers) -> dict[str, Setting]:
    """The settings that a fix changes; empty for a change of code.

    >>> fix = Suggestion("scale-lr", "learning_rate *= 0.5", 0.9, parameters={"factor": 0.5})
    >>> overrides(fix, {"lr": 0.003}), overrides(fix, {})
    ({'learning_rate': 0.0015}, {'learning_rate_factor': 0.5})
    """
    values = {key: float(value) for key, value in suggestion.parameters.items() if isinstance(value, int | float)}
    match suggestion.action:
        case "scale-lr":
            return _scaled("learning_rate", answers.get("lr"), values.get("factor"))
        case "change-batch-size":
            return _scaled("batch_size", answers.get("batch_size"), values.get("factor"))
        case "train-longer":
            return _scaled("max_steps", answers.get("total_steps"), values.get("factor"))
        case "change-betas":
            return {"beta1": values.get("beta1", 0.9), "beta2": values.get("beta2", 0.999)}
        case "change-precision":
            return {"dtype": "bfloat16"}
        case "use-adamw":
            return {"optimizer": "AdamW"}
        case "shuffle-data":
            return {"shuffle": True}
        case "speed-up-data":
            return {"num_workers": 4, "pin_memory": True, "persistent_workers": True}
    plain = PLAIN.get(suggestion.action)
    if plain is None or plain[1] not in values:
        return {}
    return {plain[0]: _rounded(plain[0], values[plain[1]])}


PLAIN: Mapping[str, tuple[str, str]] = {
    "set-clip-norm": ("grad_clip", "max_norm"),
    "set-clip-value": ("grad_clip_value", "limit"),
    "raise-dropout": ("dropout", "rate"),
    "lower-dropout": ("dropout", "rate"),
    "set-weight-decay": ("weight_decay", "value"),
    "restart-warmup": ("warmup_steps", "steps"),
    "change-eps": ("eps", "eps"),
    "set-momentum": ("momentum", "value"),
}
"""By action: the setting, and the parameter that gives its value."""


def _scaled(name: str, value: object, factor: float | None) -> dict[str, Setting]:
    if factor is None:
        return {}
    if isinstance(value, float) and value > 0:
        return {name: _rounded(name, value * factor)}
    return {f"{name}_factor": factor}


def _rounded(name: str, value: float) -> Setting:
    return int(value) if name in WHOLE else float(f"{value:.6g}")


def overrides_text(settings: Mapping[str, Setting], suffix: str, reason: str) -> str:
    """The file's content: TOML with the reason as a comment, or JSON.

    >>> print(overrides_text({"grad_clip": 1.0}, ".toml", "clip-missing (70 %)"))
    # One change, to test alone: clip-missing (70 %)
    grad_clip = 1.0
    <BLANKLINE>
    """
    if suffix.lower() == ".json":
        return json.dumps(settings, indent=2) + "\n"
    if suffix.lower() != ".toml":
        raise ConsultError(f"settings can be written as .toml or .json, not {suffix or 'without a suffix'!r}.")
    lines = [f"# One change, to test alone: {printable(reason)}"]
    lines += [f"{name} = {_toml(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def _toml(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value) if math.isfinite(value) else "nan"


def check_place(path: Path) -> Path:
    """The path of a settings file; raises `ConsultError` if its suffix is not known."""
    overrides_text({}, path.suffix, "")
    return path
