"""How a script clips gradients: with torch, with a gradient scaler, or through its training library.

>>> text = "a = Accelerator()\\nopt = AdamW(net.parameters())\\na.backward(loss)\\nopt.step()\\n"
>>> by_hand(Script.of("train.py", text), Suggestion("set-clip-norm", "", 0.9, parameters={"max_norm": 1.0}))
'a.clip_grad_norm_(net.parameters(), 1.0)'
"""

from __future__ import annotations

import ast

from torchdoctor.consulting.script import ARGUMENTS, Script, Step, called
from torchdoctor.records import Suggestion

CLIP = ("grad_clip", "max_grad_norm", "gradient_clip_val", "clip_grad_norm", "clip_norm", "max_norm")
"""Common names for the limit."""
LIGHTNING = ("lightning", "pytorch_lightning")
SOMEWHERE = "model.parameters()"
"""What to clip if the script does not show which parameters."""


def number(value: float) -> str:
    """A limit as it is written into a script."""
    return repr(float(f"{value:.6g}"))


def uses_lightning(script: Script) -> bool:
    """Whether Lightning runs the loop: then an argument of its Trainer clips."""
    return bool({name.split(".")[0] for name in script.imported} & set(LIGHTNING)) and not script.calls("Fabric")


def clip_lines(script: Script, step: Step, parameters: str, limit: float) -> list[str]:
    """The lines that clip before a step."""
    owners = {called(call): script.source(target) for target, call in script.made()}
    if name := owners.get("Accelerator"):
        clip = f"{name}.clip_grad_norm_({parameters}, {number(limit)})"
        return [f"if {name}.sync_gradients:", f"    {clip}"] if script.calls("accumulate") else [clip]
    if name := owners.get("Fabric"):
        model = parameters.removesuffix(".parameters()")
        return [f"{name}.clip_gradients({model}, {step.optimizer}, max_norm={number(limit)})"]
    clip = f"torch.nn.utils.clip_grad_norm_({parameters}, {number(limit)})"
    return (
        [f"{step.scaler}.unscale_({step.optimizer})", clip] if step.scaler and not script.calls("unscale_") else [clip]
    )


def by_hand(script: Script, suggestion: Suggestion) -> str:
    """The lines of a change, adapted to this script; unchanged if the script has a setting for it."""
    limit, steps = suggestion.parameters.get("max_norm"), script.steps()
    if suggestion.action != "set-clip-norm" or not isinstance(limit, int | float) or script.settings(*CLIP):
        return suggestion.code
    if uses_lightning(script):
        return f"trainer = Trainer(gradient_clip_val={number(limit)})  # keep your other arguments"
    if script.calls(*ARGUMENTS):
        return f"max_grad_norm={number(limit)}"
    if not steps:
        return suggestion.code
    step = next((item for item in steps if item.scaler), steps[0])
    given = {item.parameters for item in script.optimizers if item.parameters}
    return "\n".join(clip_lines(script, step, given.pop() if len(given) == 1 else SOMEWHERE, limit))


def lightning_trainer(script: Script) -> ast.Call | None:
    """The Trainer of a Lightning script, if there is exactly one."""
    trainers = script.calls("Trainer") if uses_lightning(script) else []
    return trainers[0] if len(trainers) == 1 else None
