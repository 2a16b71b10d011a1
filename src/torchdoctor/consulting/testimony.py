"""What answers say for and against causes if no vital can express it: extra evidence for the same ranking."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from torchdoctor.chart import Chart
from torchdoctor.consulting.complaints import BY_NAME
from torchdoctor.consulting.evidence import UNDATED
from torchdoctor.consulting.question import Answers
from torchdoctor.consulting.trees import Walk, evidence
from torchdoctor.diagnoses import CAUSES, Cause, Evidence, Problem
from torchdoctor.records import number_text
from torchdoctor.treatments.configured import FAR, LARGE, usual_of_size

Testimony = Mapping[str, tuple[Evidence, ...]]
"""By cause, the evidence from answers."""

_BROKEN_LOOP = ("loss-misuse", "detached-graph", "parameters-not-in-optimizer", "label-noise-or-misalignment")
_BY_HEART = "the model cannot overfit a single batch: the training loop, the loss or the model is broken"

SAID: Mapping[tuple[str, str], tuple[tuple[str, float, str], ...]] = {
    ("one_batch", "no"): tuple((cause, 1.2, _BY_HEART) for cause in _BROKEN_LOOP[:3]),
    ("one_batch", "yes"): (
        *((cause, -2.0, "the model can overfit a single batch: the training loop works") for cause in _BROKEN_LOOP[:3]),
        ("insufficient-capacity", -0.5, "the model can overfit a single batch"),
        ("label-noise-or-misalignment", 0.7, "the model can overfit a single batch, but not the dataset"),
    ),
    ("shuffled", "no"): (("data-order", 5.0, "the training data is not shuffled"),),
    ("shuffled", "yes"): (("data-order", -3.0, "the training data is shuffled"),),
    ("activation", "saturating"): (
        (
            "saturating-nonlinearity",
            1.5,
            "there are sigmoid or tanh activations between the layers, and each shrinks the gradient",
        ),
    ),
    ("activation", "relu"): (("saturating-nonlinearity", -3.0, "the activations between the layers do not saturate"),),
    ("skips", "no"): (("missing-skip-connections", 1.0, "there are no skip connections"),),
    ("skips", "yes"): (("missing-skip-connections", -4.0, "there are skip connections"),),
    ("data_checked", "checked"): (("nan-in-data", -3.0, "inputs and targets were checked and are all finite"),),
    ("data_checked", "unchecked"): (("nan-in-data", 0.5, "inputs and targets are not checked"),),
    ("data_checked", "risky"): (
        ("nan-in-data", 1.5, "preprocessing divides or takes a logarithm, and the result is not checked"),
    ),
    ("loss_operations", "library"): (("numeric-precision", -1.0, "the loss is a built-in PyTorch loss"),),
    ("schedule", "warmup"): (("warmup-missing", -4.0, "the schedule begins with a warm-up"),),
    ("schedule", "constant"): (
        ("warmup-missing", 0.5, "the learning rate is constant from the first step"),
        ("schedule-error", -2.0, "there is no schedule"),
    ),
    ("changed", "rate"): (
        ("lr-too-high", 1.0, "the learning rate or its schedule was changed just before"),
        ("lr-too-low", 0.5, "the learning rate or its schedule was changed just before"),
        ("schedule-error", 1.0, "the learning rate or its schedule was changed just before"),
    ),
    ("changed", "batch"): (
        ("batch-size-unsuited", 1.5, "batch size or accumulation was changed just before"),
        ("accumulation-error", 1.5, "batch size or accumulation was changed just before"),
    ),
    ("changed", "data"): tuple(
        (cause, 1.2, "the data or its preprocessing was changed just before")
        for cause in ("bad-batch", "nan-in-data", "unnormalized-inputs", "label-noise-or-misalignment", "data-order")
    ),
    ("changed", "model"): tuple(
        (cause, 1.2, "the model or the loss was changed just before")
        for cause in ("loss-misuse", "bad-initialization", "missing-normalization", "detached-graph")
    ),
    ("changed", "resumed"): (("resume-error", 5.5, "the run was resumed from a checkpoint just before"),),
    ("changed", "machine"): (
        ("numeric-precision", 1.2, "precision, machine or library was changed just before"),
        ("hardware-fault", 1.0, "precision, machine or library was changed just before"),
    ),
    ("shape", "swings"): (("lr-too-high", 1.2, "the loss swings, as with a learning rate that is too high"),),
    ("shape", "spike"): (("bad-batch", 1.0, "the loss spikes and recovers, as after an outlier in the data"),),
    ("shape", "rising"): (("lr-too-high", 1.2, "the loss rises and does not recover"),),
    ("clip", "0.0"): (("clip-missing", 1.5, "gradients are not clipped"),),
    ("pace", "always"): (("memory-leak", -2.0, "it was slow from the start"),),
}
"""By question and answer: the cause, the weight in log-odds and the evidence sentence."""


PLAYERS = {
    "adversarial-imbalance": ("gan", "adversarial", "discriminator", "generator", "critic"),
    "mode-collapse": ("gan", "adversarial", "discriminator", "generator", "mode"),
    "policy-collapse": ("policy", "reward", "agent", "ppo", "reinforcement"),
}
"""Causes specific to GANs and reinforcement learning, and words in a description that suggest them."""
HIGH = 1.0
"""A learning rate above this is high for every common optimizer."""
MEASURED = 0.4
"""Factor on a leaf's weight if only measurements led to it: the causes have already weighed the same numbers."""


def _of_the_rate(answers: Answers) -> Iterator[tuple[str, Evidence]]:
    """Whether the learning rate is far above what is usual for models of this size."""
    rate, size = answers.get("lr"), answers.get("parameters")
    if isinstance(rate, float) and rate > HIGH and answers.get("optimizer") is None:
        yield "lr-too-high", Evidence(1.5, f"a learning rate of {number_text(rate)} is high for any optimizer")
    if not isinstance(rate, float) or not isinstance(size, float) or answers.get("optimizer") not in ("adam", "adamw"):
        return
    usual = usual_of_size(size)
    if size >= LARGE and rate > FAR * usual:
        told = f"models of {size:,.0f} parameters are trained with Adam at about {number_text(usual)}"
        yield "lr-too-high", Evidence(1.5, f"a learning rate of {number_text(rate)} is high: {told}")
        yield "lr-too-low", Evidence(-1.5, f"a learning rate of {number_text(rate)} is not low: {told}")


def _of_players(given: Answers) -> Iterator[tuple[str, Evidence]]:
    """What a description says about a GAN or a policy."""
    told = re.findall(r"[a-z]+", str(given.get("description") or "").lower())
    for cause, words in PLAYERS.items():
        if heard := next((word for word in told if word in words), ""):
            yield cause, Evidence(0.5, f"you mention: {heard}")


def of_complaints(complaints: Sequence[str], answers: Answers) -> Iterator[tuple[str, Evidence]]:
    """What the chosen symptoms say if there is no run, including the symptoms that were not chosen.

    Without this, common causes of other symptoms would lead the ranking.

    >>> [(cause, item.text) for cause, item in of_complaints(["slow-loss"], {})][-1]
    ('numeric-precision', 'you do not report NaN: all values are finite')
    """
    found = {BY_NAME[name].reported(answers) for name in complaints}
    if "slow-loss" in complaints:
        yield "lr-too-low", Evidence(0.7, "a loss that falls slowly is usually due to steps that are too short")
    if "vanishing" in complaints and not {"plateau", "slow-loss"} & set(complaints):
        yield "lr-too-low", Evidence(-1.5, "you do not report a loss that is stuck")
    if found and not found & {"nan-or-inf", "skipped-steps", ""}:
        yield "numeric-precision", Evidence(-2.0, "you do not report NaN: all values are finite")


class Informed(Cause):
    """A cause with evidence from answers added to its own evidence.

    >>> heard = Informed(next(cause for cause in CAUSES if cause.name == "lr-too-low")(), (Evidence(2.0, "said"),))
    >>> heard.name, [item.text for item in heard.weigh(Chart(), Problem(()))][-1]
    ('lr-too-low', 'said')
    """

    def __init__(self, cause: Cause, said: tuple[Evidence, ...], *, measured: bool = True) -> None:
        self.__dict__.update(name=cause.name, explains=cause.explains, prior=cause.prior, suggests=cause.suggests)
        self._cause, self._said, self._measured = cause, said, measured

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Its own evidence, then the evidence from answers.

        Without a run, evidence that the cause would also give for an empty chart, such as "no clipping was seen", is
        left out.
        """
        empty = [] if self._measured else [item.text for item in self._cause.weigh(Chart(), _elsewhere(problem))]
        yield from (item for item in self._cause.weigh(chart, problem) if item.text not in empty)
        yield from self._said


def _elsewhere(problem: Problem) -> Problem:
    """The same problem one step later if its onset is known: evidence that names the onset then stays."""
    return Problem(
        tuple(
            item
            if item.message.endswith(UNDATED)
            else replace(item, first_step=item.first_step + 1, last_step=item.last_step + 1)
            for item in problem.symptoms
        )
    )


def testimony(
    given: Answers, answers: Answers, walks: Iterable[Walk], more: Iterable[tuple[str, Evidence]] = ()
) -> Testimony:
    """By cause, the evidence from answers and from the leaves reached in the trees.

    >>> list(testimony({"shuffled": "no"}, {}, ()))
    ['data-order']
    """
    found: dict[str, list[Evidence]] = {}
    for question, answer in given.items():
        for value in answer if isinstance(answer, list) else [answer]:
            for cause, weight, text in SAID.get((question, str(value)), ()):
                found.setdefault(cause, []).append(Evidence(weight, f"you say: {text}"))
    if given.get("lr") is not None and answers.get("schedule") is None:
        doubt = Evidence(-1.0, "it is not known whether there is a warm-up")
        found.setdefault("warmup-missing", []).append(doubt)
    for walk in walks:
        for leaf, read in zip(walk.leaves, walk.reads, strict=True):
            share = MEASURED if read.isdisjoint(given) else 1.0
            for cause, weight in leaf.causes.items():
                found.setdefault(cause, []).append(Evidence(share * weight, evidence(leaf, answers)))
    for cause, item in (*_of_the_rate(answers), *_of_players(given), *more):
        found.setdefault(cause, []).append(item)
    return {cause: tuple(items) for cause, items in found.items()}


def informed(said: Testimony, *, measured: bool = True) -> list[Cause]:
    """Every cause, with the evidence from answers; `measured`: whether there is a run.

    Without a run, causes specific to GANs and policies are considered only if an answer mentions them.
    """
    known = [cause for cause in CAUSES if measured or cause.name not in PLAYERS or cause.name in said]
    return [Informed(cause(), said.get(cause.name, ()), measured=measured) for cause in known]
