"""CK13 causal-leakage."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdoctor.checks.batch_independence import time_first
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.probing import SAME, altered, answer, awaken, moved_by, next_along, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text


@dataclass(frozen=True)
class CausalLeakage(Check):
    """A model that predicts what comes next must not see it.

    ## What it checks
    Inputs are replaced from some position on, and the outputs before it must not change. A mask that is missing, off by
    one or applied to the wrong dimension lets the model copy the answer: the loss is very low, but generated text is
    nonsense. If the model is also given the targets, they must not show in its output either.

    ## How it is told apart
    Only models whose targets are the inputs shifted by one, or labels that the model shifts itself, are checked:
    taggers, masked language models and encoders may look both ways. For a classifier that is given its labels, only the
    scores of other classes must not change: a margin (ArcFace) changes only the score of the label. The model runs in
    eval mode, with weights that are initialized to zero replaced by random ones.

    ## What to do
    Use `F.scaled_dot_product_attention(..., is_causal=True)`, or mask with `torch.triu(..., diagonal=1)`. Pad
    convolutions over time on the left only, and do not normalize with statistics over time.

    ## Example
    >>> model = nn.Sequential(nn.Embedding(7, 8), nn.LSTM(8, 8, batch_first=True, bidirectional=True))
    >>> class Tagger(nn.Sequential):
    ...     def forward(self, x):
    ...         return super().forward(x)[0]
    >>> tokens = torch.randint(7, (4, 12))
    >>> subject = Subject.of(Tagger(*model), None, (tokens[:, :-1], tokens[:, 1:]))
    >>> CausalLeakage().run(subject).passed
    False
    """

    code = "CK13"
    name = "causal-leakage"
    quick = True
    suggests = ("fix-mask",)
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    most: float = SAME
    """Largest allowed change of the outputs, as a share of their size."""

    def applies(self, subject: Subject) -> str | None:
        """Sequences whose targets are what comes next, and classifiers that are given labels."""
        if (reason := whole_loss(subject)) is not None:
            return reason
        if _is_handed_labels(subject):
            return None
        if not subject.predicts_next and not next_along(subject, 1):
            return "the targets are not the inputs shifted by one, so looking ahead may be intended"
        if time_first(subject) is True:
            return "judging by the targets, inputs are time first"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Replace the inputs after several positions, or the labels if the model is given them."""
        if _is_handed_labels(subject):
            awaken(subject)
            return self._told(_shown_by_others(subject))
        inputs = subject.tokens if subject.tokens is not None else leading(subject.inputs)
        if inputs is None:
            raise CannotTell("the batch holds no tensor")
        samples, length = inputs.shape[:2]
        awaken(subject)
        before = _by_position(answer(subject), samples, length)
        worst, since = 0.0, 0
        for cut in sorted({1, length // 2, length - 1}):
            later = (torch.arange(length, device=inputs.device) >= cut).expand(samples, length)
            after = _by_position(answer(subject, altered(subject, later), subject.targets), samples, length)
            moved = moved_by(before[:, :cut], after[:, :cut])
            if moved > worst:
                worst, since = moved, cut
        if worst > self.most:
            message = (
                f"changing inputs from position {since} on changes the outputs before it by {number_text(worst)} of "
                "their size"
            )
            advice = "Hide later positions: `is_causal=True`, or a mask with `torch.triu(..., diagonal=1)`; pad "
            advice += "convolutions over time on the left; do not normalize with statistics over time."
            return self.failed(message, advice, where=_mixers(subject), value=worst, limit=self.most)
        shown = self._told(self._shown(subject, before))
        if not shown.passed:
            return shown
        return self.passed(f"no output depends on a later input ({length} positions)", value=worst, limit=self.most)

    def _told(self, shown: float) -> Outcome:
        if shown > self.most:
            message = f"other targets change the outputs by {number_text(shown)} of their size: the model sees them"
            advice = "In `forward`, use the targets only to compute the loss."
            return self.failed(message, advice, value=shown, limit=self.most)
        return self.passed("the targets passed to the model do not affect its outputs", value=shown)

    @staticmethod
    def _shown(subject: Subject, before: Tensor) -> float:
        """How much the last target changes the outputs, if the model is given targets."""
        targets = subject.targets
        if not subject.calling.feeds_targets or not isinstance(targets, Tensor) or targets.dim() < 2:
            return 0.0
        others = targets.clone()
        others[:, -1] = torch.where(targets[:, -1] == targets[0, 0], targets.amax(), targets[0, 0])
        if torch.equal(others, targets):
            return 0.0
        after = _by_position(answer(subject, subject.inputs, others), *before.shape[:2])
        return moved_by(before, after)


def _is_handed_labels(subject: Subject) -> bool:
    """Whether a classifier is given the label of each sample along with its inputs."""
    outputs, targets = subject.outputs, subject.targets
    if not subject.calling.feeds_targets or subject.kind != "classification" or outputs is None:
        return False
    labelled = outputs.dim() == 2 and targets.shape == outputs.shape[:1] and outputs.shape[1] > 2
    return labelled and bool(((targets >= 0) & (targets < outputs.shape[1])).all())


def _shown_by_others(subject: Subject) -> float:
    """How much swapping labels changes the scores of all other classes: a margin (ArcFace) changes only its label's."""
    targets = subject.targets
    before = answer(subject, subject.inputs, targets)
    others = (targets + 1) % before.shape[1]
    after = answer(subject, subject.inputs, others)
    kept = torch.ones_like(before, dtype=torch.bool)
    for label in (targets, others):
        kept.scatter_(1, label[:, None], False)
    return moved_by(before[kept], after[kept])


def _by_position(output: Tensor, samples: int, length: int) -> Tensor:
    """Outputs as (samples, positions, rest)."""
    if output.shape[:2] == (samples, length):
        return output.reshape(samples, length, -1)
    if output.shape[0] == samples * length:
        return output.reshape(samples, length, -1)
    if output.dim() == 3 and (output.shape[0], output.shape[2]) == (samples, length):  # classes first
        return output.transpose(1, 2)
    raise CannotTell(f"the output, {tuple(output.shape)}, has no entry for each of {length} positions")


def _mixers(subject: Subject) -> tuple[str, ...]:
    """Layers that mix positions, and so may be the leak."""
    found = [name for name, _ in subject.of_type(nn.RNNBase, nn.MultiheadAttention, nn.Conv1d)]
    found += [name for name, item in subject.modules.items() if type(item).__name__.lower().endswith("attention")]
    return tuple(dict.fromkeys(found))[:3]
