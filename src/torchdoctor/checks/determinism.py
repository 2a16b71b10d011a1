"""CK17 determinism."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdoctor.checks.check import Check, Outcome
from torchdoctor.checks.probing import answer, moved_by, seed, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text


@dataclass(frozen=True)
class Determinism(Check):
    """The same seed gives the same loss and the same gradients.

    ## What it checks
    Loss and gradients are computed twice from the same weights and the same seed of Python, numpy and torch. Then the
    model is asked twice in a row in eval mode: a second answer that differs is a state that was carried over.

    ## How it is told apart
    Dropout and sampling come from the seed, and are the same both times. On a GPU sums may be added in another order:
    a ten-thousandth is allowed there. Running statistics are put back between the passes, and eval mode does not use
    new ones.

    ## What to do
    Draw random numbers from torch's, numpy's or Python's global state, or from a generator that the run seeds. Fill
    what `torch.empty` gives. Reset a hidden state at the beginning of `forward`.

    ## Example
    >>> import torch
    >>> secret = torch.Generator()
    >>> class Moody(torch.nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x + torch.rand(x.shape, generator=secret))
    >>> batch = torch.ones(4, 3), torch.ones(4, 1)
    >>> Determinism().run(Subject.of(Moody(3, 1), torch.nn.MSELoss(), batch)).passed
    False
    """

    code = "CK17"
    name = "determinism"
    quick = True
    suggests = ()
    references = ("https://pytorch.org/docs/stable/notes/randomness.html",)

    most: float = 1e-6
    """Share by which two passes may differ on a CPU; a hundred times as much on other devices."""

    def run(self, subject: Subject) -> Outcome:
        """The same pass twice."""
        limit = self.most * (1 if subject.device.type == "cpu" else 100)
        first, second = (self._pass(subject) for _ in range(2))
        moved = {name: moved_by(first[name], second[name]) for name in first}
        worst = max(moved.values())
        if worst > limit:
            where = [name for name, value in moved.items() if value > limit and name]
            message = f"with the same seed the loss differs by {number_text(moved[''])} of its size"
            if where:
                message += f", gradients by up to {number_text(worst)}: {names_text(where)}"
            advice = "Draw random numbers from a state that the run seeds; fill what torch.empty gives."
            return self.failed(message, advice, where=tuple(where), value=worst, limit=limit, severity="warning")
        carried = self._carried(subject)
        if carried > limit:
            message = (
                f"a second pass in eval mode gives another output, by {number_text(carried)} of its size: the model "
            )
            message += "carries something over"
            advice = "Reset hidden states at the beginning of `forward`, or detach them between batches."
            return self.failed(message, advice, value=carried, limit=limit, severity="warning")
        return self.passed(f"two passes with one seed agree within {number_text(worst)}", value=worst, limit=limit)

    @staticmethod
    def _pass(subject: Subject) -> dict[str, Tensor]:
        """The loss, by the name "", and the gradients."""
        with subject.fresh():
            subject.model.train()
            seed()
            loss = subject.loss()
            kept = {"": loss.detach().clone()}
            if loss.requires_grad:
                found = subject.gradients(loss)
                kept.update(
                    (name, grad.detach().to_dense().clone()) for name, grad in found.items() if grad is not None
                )
            return kept

    @staticmethod
    def _carried(subject: Subject) -> float:
        if whole_loss(subject) is not None:
            return 0.0
        return moved_by(answer(subject), answer(subject))
