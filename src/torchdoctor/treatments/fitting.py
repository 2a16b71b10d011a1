"""Which actions the evidence speaks of, and which of their lines comes first: that is what is read in a hurry."""

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
)
"""A fact of the run, what it may be (anything, if nothing is said), and words of the line of code that comes first."""
SAID: tuple[tuple[str, str], ...] = (
    (r"float16|loss scale|overflow|rounded away", "torch.autocast"),
    (r"loss is a sum", "divided by the batch"),
    (r"shows broadcast", "before a regression loss"),
    (r"stepped at every batch|takes one every|never stepped|not stepped once", "scheduler.step()"),
    (r"seen in training", "no sample in both"),
    (r"next tokens|last position|last place", "subsequent_mask"),
    (r"of the input holds|column of the inputs", "made from the target"),
    (r"in training mode whenever", "model.eval()"),
    (r"the module runs", "between two layers"),
    (r"are the same .* samples|different ones, of", "a new batch"),
    (r"BatchNorm layer", "instead of BatchNorm"),
    (r"steps are undone|one and the same state", "copies from the model"),
)
"""What the evidence says, and words of the line of code that comes first then; of several the last."""
SWAPS = ("use-adamw", "switch-optimizer")
"""Another optimizer is no answer to a setting of this one that is wrong."""
TORCH = ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
"""Optimizers that torch brings along."""


def in_question(slugs: Iterable[str], evidence: Iterable[str]) -> list[str]:
    """Without the settings that the evidence does not speak of, where it speaks of one: a cause may have several.

    >>> in_question(["lower-dropout", "set-weight-decay"], ["weight decay takes 0.02 of each weight a step"])
    ['set-weight-decay']
    """
    text = spoken(evidence)
    words = {slug: slug.partition("-")[2].replace("-", " ").replace("betas", "beta") for slug in slugs}
    settings = {slug for slug in words if slug.startswith(("set-", "change-", "raise-", "lower-")) or slug in SWAPS}
    named = {slug for slug in settings if re.search(rf"\b{words[slug]}", text, re.IGNORECASE)}
    return [slug for slug in words if not named or slug in named or slug not in settings]


def spoken(evidence: Iterable[str]) -> str:
    """What speaks for a cause, in one string."""
    return " ".join(item for item in evidence if not item.startswith("against:"))


def fitting(chart: Chart, code: str, evidence: Sequence[str] = ()) -> str:
    """The code with the line first that fits what is known of the run, and with its own optimizer.

    >>> fitting(Chart(), "model.train()\\nmodel.eval()", ["the model is in training mode whenever it is validated"])
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
    """A line of a block stays where it is."""
    lines.sort(key=lambda line: words not in line or line.startswith(" "))


def _own_optimizer(chart: Chart, code: str) -> str:
    """A model that is complete at last is given to the optimizer that the run has, not to another."""
    names = {str(group.get("optimizer") or "") for group in chart.groups}
    name = names.pop() if len(names) == 1 else ""
    if not name.isidentifier() or "when the model is complete" not in code:
        return code
    return code.replace("torch.optim.AdamW(", f"torch.optim.{name}(" if name in TORCH else f"{name}(")
