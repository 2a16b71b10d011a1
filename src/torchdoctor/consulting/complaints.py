"""The nine symptoms that a person can choose, and the findings that correspond to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchdoctor.consulting.question import Answers
from torchdoctor.records import Severity, Symptom
from torchdoctor.symptoms import DETECTORS

Pick = Callable[[Answers], str]


@dataclass(frozen=True)
class Complaint:
    """One of the nine symptoms."""

    name: str
    title: str
    findings: tuple[str, ...]
    """Findings of a run that count as this complaint."""
    reported: Pick
    """The finding that it is recorded as if only the answers mention it; empty if none fits."""
    severity: Severity = "warning"

    def seen_in(self, symptoms: Iterable[Symptom]) -> list[Symptom]:
        """The findings of a run that count as this complaint."""
        return [item for item in symptoms if item.name in self.findings]


def _plateau(answers: Answers) -> str:
    return "not-learning" if answers.get("fell_before") == "no" else "loss-plateau"


def _unstable(answers: Answers) -> str:
    shape = answers.get("shape")
    return {"spike": "loss-spike", "rising": "loss-divergence"}.get(str(shape), "loss-oscillation")


def _slow_machine(answers: Answers) -> str:
    if answers.get("pace") == "memory":
        return "memory-growth"
    if answers.get("pace") == "slower":
        return "step-time-regression"
    share, busy = answers.get("waiting_share"), answers.get("device_busy")
    waits = isinstance(share, float) and share < 0.3
    works = isinstance(busy, float) and busy > 0.8
    return "step-time-regression" if waits or works else "data-starvation"


WORDS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("nan", "not a number", "infinite"), "nan-or-inf"),
    (("diverg", "blows up", "blew up", "goes up", "went up", "rising", "rises"), "loss-divergence"),
    (("spike", "jump"), "loss-spike"),
    (("dead", "dying relu", "all zero"), "dead-units"),
    (("saturat",), "saturated-activations"),
    (
        (
            "same class",
            "one class",
            "same output",
            "constant output",
            "same prediction",
            "collapse",
            "same image",
            "same sample",
            "same picture",
        ),
        "collapsed-output",
    ),
    (("too good", "too low", "leak", "suspicious"), "suspiciously-low-loss"),
    (("underfit", "both high"), "underfitting"),
    (("validation", "val loss", "eval"), "validation-anomaly"),
    (("scaler", "skipped step", "loss scale"), "skipped-steps"),
    (("memory", "oom"), "memory-growth"),
    (("frozen", "not updat", "do not change", "don't change"), "frozen-weights"),
    (("none gradient", "no gradient", "grad is none"), "no-gradient"),
    (("learning rate is zero", "lr is 0", "lr reached zero", "schedule"), "learning-rate-vanished"),
    (("initial loss", "first loss", "starts at"), "unexpected-initial-loss"),
    (("weights grow", "weight norm"), "weight-growth"),
    (("random", "chance", "accuracy"), "not-learning"),
)
"""Words in a description, and the finding that they indicate; the first match counts."""


def told_by(description: str) -> str:
    """The finding that a free-text description indicates; empty if none fits.

    >>> told_by("accuracy stays at chance level"), told_by("my ReLUs are dead"), told_by("it is odd")
    ('not-learning', 'dead-units', '')
    """
    text = description.lower()
    named = next((item.name for item in DETECTORS if item.name in text or item.name.replace("-", " ") in text), "")
    return named or next((slug for words, slug in WORDS if any(word in text for word in words)), "")


COMPLAINTS: tuple[Complaint, ...] = (
    Complaint(
        "plateau",
        "Loss not decreasing, or stuck on a plateau",
        ("loss-plateau", "not-learning", "underfitting", "learning-rate-vanished", "collapsed-output"),
        _plateau,
    ),
    Complaint("slow-loss", "Loss decreasing very slowly", ("slow-learning",), lambda answers: "slow-learning"),
    Complaint(
        "unstable",
        "Loss oscillating or unstable",
        ("loss-oscillation", "loss-spike", "loss-divergence", "gradient-instability"),
        _unstable,
    ),
    Complaint(
        "nan",
        "Loss went to NaN or Inf",
        ("nan-or-inf", "skipped-steps"),
        lambda answers: "nan-or-inf",
        severity="critical",
    ),
    Complaint(
        "exploding",
        "Gradient explosion (very large gradients)",
        ("gradient-explosion", "activation-explosion"),
        lambda answers: "gradient-explosion",
    ),
    Complaint(
        "vanishing",
        "Gradient vanishing (near-zero gradients)",
        ("gradient-vanishing", "no-gradient", "frozen-weights", "dead-units", "saturated-activations"),
        lambda answers: "gradient-vanishing",
    ),
    Complaint(
        "overfitting",
        "Overfitting (training good, validation bad)",
        ("overfitting", "double-descent", "validation-anomaly", "suspiciously-low-loss"),
        lambda answers: "overfitting",
    ),
    Complaint(
        "slow-machine",
        "Training is very slow",
        ("data-starvation", "step-time-regression", "memory-growth", "straggler-rank"),
        _slow_machine,
    ),
    Complaint("other", "Something else (describe it)", (), lambda answers: told_by(str(answers.get("description")))),
)
BY_NAME = {item.name: item for item in COMPLAINTS}
LOSS_TROUBLE = ("plateau", "slow-loss", "unstable")
"""The complaints about the loss itself."""


FAILED = (("not-learning", "warning"), ("not-learning", "critical"), ("nan-or-inf", "critical"))
"""Findings, with their severity, of a run whose training failed."""


def seen(symptoms: Iterable[Symptom]) -> dict[str, Symptom]:
    """By complaint, the most severe finding of a run that counts as it; findings of no other complaint are `other`.

    Bad validation is no overfitting if training failed as well.

    >>> chance = [Symptom(name, "", "warning", 0.9, 1, 9) for name in ("validation-anomaly", "not-learning")]
    >>> list(seen(chance[:1])), list(seen(chance))
    (['overfitting'], ['plateau'])
    """
    order = ("info", "warning", "critical")
    found: dict[str, Symptom] = {}
    symptoms = list(symptoms)
    if any((item.name, item.severity) in FAILED for item in symptoms):
        symptoms = [item for item in symptoms if item.name != "validation-anomaly"]
    for symptom in sorted(symptoms, key=lambda item: (-order.index(item.severity), item.first_step)):
        owner = next((item.name for item in COMPLAINTS if symptom.name in item.findings), "other")
        found.setdefault(owner, symptom)
    return {item.name: found[item.name] for item in COMPLAINTS if item.name in found}
