"""Which of several actions the evidence names, and which line of an action's code fits the run best and comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from torchdoctor.chart import Chart

KNOWN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("loss.kind", ("bce",), "binary_cross_entropy_with_logits"),
    ("loss.kind", ("bce",), "BCEWithLogitsLoss(pos_weight"),
    ("loss.kind", ("mse", "l1", "huber"), "before a regression loss"),
    ("loss.kind", ("mse", "l1", "huber"), "made from the target"),
    ("state.written_in_part", (), "once, before the loop"),
    ("clip.after_step", (), "before optimizer.step()"),
    ("clip.no_gradients", (), "before optimizer.step()"),
    ("clip.no_parameters", (), "before optimizer.step()"),
)
"""A fact of the run, the values it must have (any true value if empty), and words of the line of code to put first."""
SAID: tuple[tuple[str, str], ...] = (
    (r"float16|loss scale|overflow|rounded away", "torch.autocast"),
    (r"loss is a sum", "divided by the batch"),
    (r"ignores all labels", "needs labels that count"),
    (r"loss counts are padding", "padding does not count"),
    (r"shows [\w, ]*broadcast", "before a regression loss"),
    (r"shows [\w, ]*broadcast", "both become (N,)"),
    (r"stepped (at every batch|\d+ times per)|takes one every|never stepped|not stepped once", "scheduler.step()"),
    (r'has mode="max" but', 'mode="min"'),
    (r'has mode="min" but', 'mode="max"'),
    (r"seen in training", "no sample in both"),
    (r"but not in model\.parameters", "torch.nn.ModuleList"),
    (r"created anew at each step", "in __init__ instead"),
    (r"optimizer that has not stepped", "never steps"),
    (r"has had a learning rate of 0", "before the scheduler is built"),
    (r"next tokens|last position|last place", "subsequent_mask"),
    (r"of the input holds|column of the inputs", "made from the target"),
    (r"targets are equal to the inputs", "predict the next token"),
    (r"in training mode whenever", "model.eval()"),
    (r"the module runs", "between two layers"),
    (r"an old value is logged", "the loss of this step"),
    (r"are the same .* samples|different ones, of", "a new batch"),
    (r"BatchNorm layer", "instead of BatchNorm"),
    (r"steps are undone|one and the same state", "copies from the model"),
    (r"the model ends with|at the end of the model", "after the last layer"),
    (r"both sides get gradients", "target.detach()"),
    (r"scaler\.unscale_|while still multiplied", "scaler.unscale_"),
    (r"no gradient scaler lifts", "scaler.scale(loss)"),
)
"""A pattern in the evidence, and words of the line of code to put first; of several matches the last one wins."""
SWAPS = ("use-adamw", "switch-optimizer")
"""Actions that replace the optimizer: dropped if the evidence names a wrong setting of the present one."""
TORCH = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""Optimizers in `torch.optim`."""


def in_question(slugs: Iterable[str], evidence: Iterable[str]) -> list[str]:
    """The actions, without settings that the evidence does not name if it names another one.

    >>> in_question(["lower-dropout", "set-weight-decay"], ["weight decay removes 0.02 of each weight per step"])
    ['set-weight-decay']
    """
    text = spoken(evidence)
    words = {slug: slug.partition("-")[2].replace("-", " ").replace("betas", "beta") for slug in slugs}
    settings = {slug for slug in words if slug.startswith(("set-", "change-", "raise-", "lower-")) or slug in SWAPS}
    named = {slug for slug in settings if re.search(rf"\b{words[slug]}", text, re.IGNORECASE)}
    return [slug for slug in words if not named or slug in named or slug not in settings]


def spoken(evidence: Iterable[str]) -> str:
    """The evidence for a cause, without that against it, as one string."""
    return " ".join(item for item in evidence if not item.startswith("against:"))


def fitting(chart: Chart, code: str, evidence: Sequence[str] = ()) -> str:
    """The code with the line first that fits the run, and with the optimizer of the run.

    >>> fitting(Chart(), "model.train()\\nmodel.eval()", ["the model is in training mode whenever validation runs"])
    'model.eval()\\nmodel.train()'
    """
    lines, text = _own_optimizer(chart, code).split("\n"), spoken(evidence)
    for fact, values, words in KNOWN:
        known = chart.fact(fact)
        if known in values if values else known:
            _put_first(lines, words)
    for said, words in SAID:
        if re.search(said, text):
            _put_first(lines, words)
    return "\n".join(lines)


def _put_first(lines: list[str], words: str) -> None:
    """Move the matching lines to the front; indented lines stay in their block."""
    lines.sort(key=lambda line: words not in line or line.startswith(" "))


def _own_optimizer(chart: Chart, code: str) -> str:
    """The code with the optimizer of the run instead of AdamW, if the code builds the optimizer again."""
    names = {str(group.get("optimizer") or "") for group in chart.groups}
    name = names.pop() if len(names) == 1 else ""
    if not name.isidentifier() or "when the model is complete" not in code:
        return code
    return code.replace("torch.optim.AdamW(", f"torch.optim.{name}(" if name in TORCH else f"{name}(")
