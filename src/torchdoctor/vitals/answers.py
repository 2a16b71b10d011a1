"""Targets compared with inputs: does the input contain the answer, or does the answer belong to another position?"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdoctor.vitals.batch_numbers import (
    MOST_LABELS,
    ROWS,
    agreement,
    beyond_given,
    column_by_class,
    is_whole,
    one_in_place_of,
    padding,
)
from torchdoctor.vitals.passes import LARGEST, part_of

SHORTEST = 7
"""Sequences of up to this many tokens are skipped: a repeating end of them means nothing."""
FEW = 4
"""How many of a sample's target numbers are searched for in the inputs; the one that is found least counts."""
MOST_TOKENS = 16_384
"""Tokens of a batch in which a mask token is searched for."""
NEARLY = 0.9
"""Share of labels that must be next tokens for all of them to count as such."""
SAME = 0.999
"""Correlation of a column with a class that counts; a lower one is just a good feature, such as a bright pixel."""


def in_place(inputs: Tensor, target: Tensor, ignored: int) -> dict[str, Tensor]:
    """Share of counted labels that equal the input at their position; share of the other tokens that is one mask.

    >>> tokens, labels = torch.tensor([[5, 3, 7, 9]]), torch.tensor([[-100, 3, -100, 9]])
    >>> in_place(tokens, labels, -100)["target_is_input"]
    tensor(1.)
    """
    given, asked = inputs.detach().flatten(), target.detach().flatten()
    return {
        "target_masked": one_in_place_of(given[:MOST_TOKENS], asked[:MOST_TOKENS]),
        "target_is_input": agreement(given[None], asked[None], ignored),
    }


def along_a_sequence(
    inputs: Tensor, target: Tensor, ignored: int, first: int | None, also: Tensor | None = None
) -> dict[str, Tensor]:
    """Compare labels with the next and previous tokens; `first` is the token at which the outputs begin, if known.

    Labels that are the next tokens of what the model reads `also`, such as each token's successor, were not shifted
    twice.
    """
    samples = inputs.shape[0]
    if inputs.dim() != 2 or target.numel() % samples or target.numel() <= SHORTEST * samples:
        return {}
    labels = part_of(target.reshape(samples, -1))
    given = inputs.detach()[: len(labels)]
    measured = {"target_padding": padding(labels, ignored)}
    for ahead, vital in enumerate(("target_is_next", "target_after_next"), 1):
        if first is not None:
            measured[vital] = agreement(given[:, first + ahead :], labels, ignored)
    if first is not None and also is not None and also.shape == inputs.shape:
        follows = agreement(also.detach()[: len(labels), first + 1 :], labels, ignored)
        measured["target_after_next"] = measured["target_after_next"] * (follows < NEARLY)
    if first == 0 and inputs.shape[1] > 1:
        measured["target_beyond"] = beyond_given(given[:, 1:], labels, ignored)
        measured["target_is_before"] = agreement(given, labels[:, 1:], ignored)
    return measured


def in_a_column(inputs: Tensor, target: Tensor, distinct: Tensor | None) -> dict[str, Tensor]:
    """How closely one column of a table, or one place of an image, follows the label: 1 if it is the label.

    Sequences are left out: repeating what came first is a legitimate task.
    """
    labels = target.detach().flatten().float()
    if not inputs.is_floating_point() or inputs.dim() not in (2, 4) or inputs[0].numel() < 2:
        return {}
    columns = inputs.detach().flatten(1).float()
    several = {}
    if target.dim() == 2 and 1 < target.shape[1] < columns.shape[1] and len(target) == len(columns) >= ROWS:
        several = _in_columns(columns, target.detach().float())
    if columns.shape[0] != labels.numel() or labels.numel() < ROWS or columns.numel() > LARGEST:
        return several
    labels, columns = labels - labels.mean(), columns - columns.mean(0)
    sizes = columns.square().sum(0).sqrt() * labels.square().sum().sqrt()
    whole = (target == target.round()).all() if target.is_floating_point() else True
    closest, other = ((labels @ columns).abs() / sizes.clamp_min(1e-12)).topk(2).values.unbind()
    if is_whole(target):
        each = column_by_class(columns, target.detach().flatten())
        closest = torch.where(each > SAME, torch.maximum(closest, each), closest)
    if distinct is not None:  # with few different samples, some column follows anything
        closest = closest * (distinct >= ROWS)
    return {"label_in_input": closest * whole, "label_in_another": other * whole}


def _in_columns(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The same for several labels per sample: the label that is followed least, and the next best columns."""
    if inputs.numel() > LARGEST or labels.shape[1] > MOST_LABELS:
        return {}
    columns, labels = inputs - inputs.mean(0), labels - labels.mean(0)
    sizes = columns.square().sum(0).sqrt() * labels.square().sum(0).sqrt().unsqueeze(1)
    closest, other = ((labels.T @ columns).abs() / sizes.clamp_min(1e-12)).topk(2, 1).values.unbind(1)
    varies = sizes.amax(1) > 0  # a label that is constant in the batch says nothing
    return {
        "label_in_input": torch.where(varies, closest, torch.ones_like(closest)).amin() * varies.any(),
        "label_in_another": torch.where(varies, other, torch.zeros_like(other)).amax(),
    }


def copied_share(inputs: Tensor, target: Tensor) -> Tensor | None:
    """The largest share of samples in which one place of the input holds exactly the target number.

    >>> window = torch.rand(32, 24, 1)  # a series, and what comes after it
    >>> copied_share(window, window[:, -4:, 0]), copied_share(window, torch.rand(32, 4))
    (tensor(1.), tensor(0.))
    """
    if inputs.dim() == 3 and inputs.shape[2] == 1:
        inputs = inputs.squeeze(2)
    if inputs.dtype != target.dtype or inputs.dim() < 2 or inputs.numel() > LARGEST:
        return None
    samples, places = inputs.shape[0], inputs[0].numel()
    if target.shape[0] != samples or samples < ROWS or not (target.numel() == samples or target.dim() == 2):
        return None
    if target.numel() > samples and (inputs.dim() != 2 or 2 * target.shape[1] > places):
        return None  # a task that reproduces its input, or a shifted window
    shares = []
    for number in target.detach().reshape(samples, -1)[:, :FEW].unbind(1):
        asked = number.unsqueeze(1)
        counted = asked != asked.mode(0).values  # a column may equal the most common target by chance
        same = ((inputs.detach().flatten(1) == asked) & counted).sum(0).amax()
        shares.append(same / counted.sum().clamp_min(ROWS // 2))
    return torch.stack(shares).amin()
