"""Targets compared with inputs: targets that the inputs contain, or that change while the inputs do not."""

from __future__ import annotations

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.series import median
from torchdoctor.symptoms.progress import Progress


def is_given_away(chart: Chart, close: float = 0.95, others: float = 0.7) -> bool:
    """Whether one column follows the label in every sampled batch, and no other comes near.

    The correlation of a normal variable with its own sign is 0.8: more means two separate groups of values.
    """
    closest, another = chart["label_in_input"].last(5), chart["label_in_another"].last(5)
    if closest.size < 5 or not float(closest.min()) > close:
        return False
    return close > 0.999 or (another.size == 5 and float(another.max()) < others)


def is_copied(chart: Chart, samples: int = 3) -> bool:
    """Whether one position of the input held exactly the targets of a regression in all of the last samples."""
    shares = chart["target_in_input"].last(samples)
    return shares.size == samples and float(shares.min()) > 0.99


def answers_changed(chart: Chart, least: float = 0.05, samples: int = 4) -> float:
    """The share of repeated samples that have a different target, if that cannot be intended; otherwise 0.

    It may be intended if the loop collects its own experience, if samples are alike from the start, or if the numbers
    differ every time: predicted noise, unless the model could predict the targets before and now only guesses. Numbers
    that differ little are repeated measurements.
    """
    changed = chart["answer_changed"].last(samples)
    if changed.size < samples or _are_alike(chart) or chart.fact("loop.acts"):
        return 0.0
    whole = bool(chart.fact("loss.classes"))
    always = float(changed.max()) > 0.9 and not whole
    meant = not float(changed.min()) > 0 or (always and not is_a_guess_again(chart, samples))
    moved = chart["answer_moved"].last(samples)
    share = float((moved if moved.size == samples else changed).mean())
    return share if share > least and not meant else 0.0


def _are_alike(chart: Chart, looks: int = 3) -> bool:
    """Whether samples repeat too early: in the first batch, or, for windows of tokens, in the first few samples.

    Different names often begin with the same letters, for example.

    >>> _are_alike(Chart.of(input_again=[0.0, 0.09, 0.06], token_top_share=[0.5] * 3))
    True
    >>> _are_alike(Chart.of(input_again=[0.0, 0.09, 0.06]))
    False
    """
    again = chart["input_again"]
    short = bool(chart["token_top_share"]) and not chart["input_std"]
    soon = short and again.steps[:1].sum() < looks and (again.values[:looks] > 0).any()
    return bool(again.first > 0 or soon)


def is_a_guess_again(chart: Chart, samples: int = 4, low: float = 0.5, near: float = 0.9) -> bool:
    """Whether the error is now that of a constant guess, sample after sample, and was far below it before.

    Error and guess are compared on the same batch, so hard batches do not matter.

    >>> guesses = [1.0, 0.5, 2.0, 1.0, 0.5, 2.0, 1.0, 0.5]
    >>> errors = [1.0, 0.3, 0.4, 0.2, 0.5, 2.1, 0.95, 0.5]
    >>> is_a_guess_again(Chart.of(criterion=errors, guess_loss=guesses))
    True
    """
    errors, guesses = chart["criterion"], chart["guess_loss"]
    _, here, there = np.intersect1d(errors.steps, guesses.steps, return_indices=True)
    if here.size < samples + 2 or not float(guesses.values[there].min()) > 0:
        return False
    shares = errors.values[here] / guesses.values[there]
    return float(shares[-samples:].min()) > near and float(np.sort(shares[:-samples])[1]) < low


def is_of_the_past(chart: Chart, samples: int = 3) -> bool:
    """Whether token labels are the previous tokens, and not the next ones as well."""
    before, following = chart["target_is_before"].last(samples), chart["target_is_next"].last(samples)
    same = before.size == following.size == samples
    return same and float(before.min()) > 0.99 and float(following.max()) < 0.5


def copies(chart: Chart, share: float = 0.35) -> bool:
    """Whether the loss has fallen too far for a language model; one that reads backwards has not seen its labels."""
    losses = chart["loss"]
    return losses.count >= 8 and median(losses.last(8)) < share * Progress.of(losses).start


def is_easy(chart: Chart, share: float = 0.3) -> bool:
    """Whether the loss is far below that of a guess by frequency, as when a model copies, or no loss is known."""
    loss, entropy = chart["loss"], chart["pooled_entropy"].latest
    if not loss:
        return True
    guess = entropy if entropy > 0 else Progress.of(loss).start
    return loss.count >= 16 and median(loss.last(8)) < share * guess


def counts_unmasked(chart: Chart, samples: int = 4) -> bool:
    """Whether most labels equal the token at their position, and nearly all other positions hold the mask token."""
    same, masked = chart["target_is_input"].last(samples), chart["target_masked"].last(samples)
    if not same.size == masked.size == samples:
        return False
    return float(same.min()) > 0.65 and float(same.max()) < 0.98 and float(masked.min()) > 0.7


def looks_ahead(chart: Chart) -> float:
    """The lowest share of attention to later tokens of all samples; 0 if unknown."""
    return chart["attention_ahead"].lowest if chart["attention_ahead"].count > 1 else 0.0
