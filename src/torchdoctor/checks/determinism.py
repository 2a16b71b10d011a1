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
    Loss and gradients are computed twice from the same weights and the same Python, numpy and torch seeds. Then the
    model runs twice in a row in eval mode: if the second output differs, the model carries state from pass to pass.

    ## How it is told apart
    Dropout and sampling depend on the seed and repeat exactly. On a GPU sums may be added in another order, so a
    relative difference of 1e-4 is allowed there. Running statistics are restored between passes, and eval mode does
    not update them.

    ## What to do
    Draw random numbers from the global state of torch, numpy or Python, or from a generator that the run seeds.
    Initialize tensors made with `torch.empty`. Reset hidden states at the start of `forward`.

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
    """Largest allowed relative difference of two passes on a CPU; a hundred times as much on other devices."""

    def run(self, subject: Subject) -> Outcome:
        """Compare two identical training passes, then two eval passes."""
        limit = self.most * (1 if subject.device.type == "cpu" else 100)
        first, second = (self._pass(subject) for _ in range(2))
        moved = {name: moved_by(first[name], second[name]) for name in first}
        worst = max(moved.values())
        if worst > limit:
            where = [name for name, value in moved.items() if value > limit and name]
            message = f"with the same seed the loss differs by {number_text(moved[''])} of its size"
            if where:
                message += f", gradients by up to {number_text(worst)}: {names_text(where)}"
            advice = "Draw random numbers from a state that the run seeds, and initialize tensors from torch.empty."
            return self.failed(message, advice, where=tuple(where), value=worst, limit=limit, severity="warning")
        carried = self._carried(subject)
        if carried > limit:
            message = f"a second pass in eval mode changes the output by {number_text(carried)} of its size: the model "
            message += "keeps state between passes"
            advice = "Reset hidden states at the start of `forward`, or detach them between batches."
            return self.failed(message, advice, value=carried, limit=limit, severity="warning")
        return self.passed(f"two passes with one seed agree within {number_text(worst)}", value=worst, limit=limit)

    @staticmethod
    def _pass(subject: Subject) -> dict[str, Tensor]:
        """The loss under the name "", and the gradients."""
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
