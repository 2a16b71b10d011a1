"""CK21 train-validation-overlap."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.rows import ENOUGH, hashes, information, inputs_of, is_one_shot, training_inputs
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text, share_text
from torchdoctor.vitals.batch_numbers import is_whole


@dataclass(frozen=True)
class TrainValidationOverlap(Check):
    """No validation sample is among the training samples.

    ## What it checks
    Samples are compared by their hashes. Token sequences are also compared in stretches of 32, because windows of one
    text overlap without being equal. A validation loss on training samples says nothing about new data.

    ## How it is told apart
    If samples hold so little information that equality may be chance, there is no verdict. Copies inside the training
    data are counted too, and an overlap about as frequent as these is normal for the data. Only the given data is
    compared: the batch, some batches of the loader, and the validation batch or loader. The message says how many
    samples that is.

    ## What to do
    First drop duplicates. Then split by group (patient, author, document), before windows are cut and before anything
    is augmented.

    ## Example
    >>> import torch
    >>> x = torch.randn(16, 8)
    >>> subject = Subject.of(torch.nn.Linear(8, 1), None, x, validation=x[:4])
    >>> print(TrainValidationOverlap().run(subject).message)
    4 of 4 validation samples are among 16 training samples
    """

    code = "CK21"
    name = "train-validation-overlap"
    quick = True
    needs_loss = False
    suggests = ("clean-data", "cross-validate")
    references = ("https://arxiv.org/abs/1902.00423",)

    share: float = 0.01
    """Share of validation samples that may be among the training samples, beyond twice the rate of copies in these."""
    stretch: int = 32
    """Length in tokens of the stretches that are compared."""
    stretches: float = 0.1
    """Share of such stretches that may be among the training data, because texts quote each other."""
    batches: int = 32
    """Batches of a loader that are read."""
    seconds: float = 2.0
    """Time limit in seconds for reading a loader."""

    def applies(self, subject: Subject) -> str | None:
        """A validation batch or loader."""
        if subject.validation is None:
            return "no validation batch was given"
        if not isinstance(subject.validation, Tensor | tuple | list | dict) and is_one_shot(subject.validation):
            return "the validation loader can be read only once, and training needs it"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Hash both sides and compare."""
        train = training_inputs(subject, batches=self.batches, seconds=self.seconds)
        held_out = [
            item.detach().cpu() for item in inputs_of(subject.validation, batches=self.batches, seconds=self.seconds)
        ]
        if not train or not held_out:
            raise CannotTell("the training or validation data has no tensor")
        if information(train[0]) < ENOUGH:
            raise CannotTell("samples hold so little information that equal ones may be chance")
        seen = [row for item in train for row in hashes(item)]
        if subject.loader is not None:  # the batch may come from the loader
            seen = [row for item in train[1:] for row in hashes(item)] or seen
        asked = [row for item in held_out for row in hashes(item)]
        known = set(seen) | set(hashes(train[0]))
        common = sum(row in known for row in asked)
        share, natural = common / len(asked), 1 - len(set(seen)) / len(seen)
        message = f"{common} of {len(asked)} validation samples are among {len(known)} training samples"
        advice = "Drop duplicates first, split by group, and split before windows are cut or samples augmented."
        limit = self.share + 2 * natural
        if share > limit:
            return self.failed(message, advice, value=share, limit=limit)
        if is_whole(train[0]) and train[0].dim() == 2 and train[0].shape[1] >= self.stretch:
            quoted = self._quoted(train, held_out)
            if quoted > self.stretches:
                message = f"{share_text(quoted)} of the {self.stretch}-token stretches in the validation data are also "
                message += "in the training data"
                return self.failed(message, advice, value=quoted, limit=self.stretches)
            message += f"; {number_text(100 * quoted)} % of {self.stretch}-token stretches are"
        return self.passed(message, value=share, limit=limit)

    def _quoted(self, train: list[Tensor], held_out: list[Tensor]) -> float:
        known = {row for item in train for row in hashes(item.unfold(1, self.stretch, 1).flatten(0, 1))}
        wide = [item for item in held_out if item.dim() == 2 and item.shape[1] >= self.stretch]
        asked = [row for item in wide for row in hashes(item.unfold(1, self.stretch, self.stretch).flatten(0, 1))]
        return sum(row in known for row in asked) / len(asked) if asked else 0.0
