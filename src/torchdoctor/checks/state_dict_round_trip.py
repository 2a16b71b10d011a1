"""CK24 state-dict-round-trip."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.kept_beside import kept_beside
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.probing import answer, moved_by, whole_loss
from torchdoctor.checks.subject import Subject
from torchdoctor.records import names_text, number_text


@dataclass(frozen=True)
class StateDictRoundTrip(Check):
    """A checkpoint restores the trained model.

    ## What it checks
    After a few steps of training the state dict is saved (in memory), everything is reset, and the state dict is
    loaded: the outputs in eval mode must be those of the trained model. They differ if something is learned or counted
    outside parameters and buffers: layers in a list, statistics in a plain attribute. Then the check looks for plain
    attributes with random numbers that the outputs depend on: another process would draw different ones.

    ## How it is told apart
    Constants in plain attributes, caches, and non-persistent buffers are rebuilt by the constructor and pass, unless
    training changes them. Both passes use the same random numbers. A constant is told from random numbers by its
    values: equal ones, integers or short decimals (0.485), smooth or repeated ones (a mask, a range, a position table,
    a window). An attribute named like a constructor argument passes too.

    ## What to do
    Use `self.register_buffer("mean", ...)` for statistics, `nn.Parameter` and `nn.ModuleList` for what is learned, and
    `get_extra_state` for anything that is not a tensor.

    ## Example
    >>> class Counting(torch.nn.Linear):
    ...     mean = torch.zeros(())
    ...     def forward(self, x):
    ...         if self.training:
    ...             self.mean = x.detach().mean()
    ...         return super().forward(x - self.mean)
    >>> batch = torch.ones(4, 3), torch.randn(4, 1)
    >>> StateDictRoundTrip().run(Subject.of(Counting(3, 1), torch.nn.MSELoss(), batch)).passed
    False
    """

    code = "CK24"
    name = "state-dict-round-trip"
    quick = True
    suggests = ()
    references = ("https://pytorch.org/tutorials/beginner/saving_loading_models.html",)

    steps: int = 3
    """Steps of training before the checkpoint."""
    most: float = 1e-5
    """Largest allowed difference of the outputs, as a share of their size."""

    def applies(self, subject: Subject) -> str | None:
        """Models whose output is visible."""
        return whole_loss(subject)

    def run(self, subject: Subject) -> Outcome:
        """Train, save, reset, load."""
        with subject.fresh():
            if any(p.requires_grad for p in subject.parameters.values()):
                Practice(subject).go_on(self.steps)
            trained = answer(subject)
            if moved_by(trained, answer(subject)) > self.most:
                raise CannotTell("two passes in eval mode differ: see determinism")
            file = io.BytesIO()
            torch.save(subject.model.state_dict(), file)
        file.seek(0)
        try:
            kept: dict[str, Any] = torch.load(file, weights_only=True, map_location=subject.device)
        except pickle.UnpicklingError:
            others = [key for key, value in subject.model.state_dict().items() if not isinstance(value, Tensor)]
            message = f"the state dict holds more than tensors and plain data: {names_text(others)}"
            advice = (
                "Return only tensors, numbers, strings, lists and dicts from get_extra_state: safe loading needs this."
            )
            return self.failed(message, advice, where=tuple(others), severity="warning")
        try:
            subject.model.load_state_dict(kept)
        except (RuntimeError, KeyError) as error:
            message = f"the model does not load its own state dict: {' '.join(str(error).split())[:200]}"
            return self.failed(message, "Create all layers in __init__, and keep their names.")
        moved = moved_by(trained, answer(subject))
        if moved > self.most:
            message = f"after saving and loading, the model's outputs differ by {number_text(moved)} of their size"
            advice = "Register what training changes: nn.Parameter, nn.ModuleList, register_buffer or get_extra_state."
            return self.failed(message, advice, value=moved, limit=self.most)
        beside = kept_beside(subject, self.most)
        if beside:
            message = "the outputs depend on random numbers in a plain attribute, which checkpoints do not include: "
            message += names_text(beside)
            advice = "Register them: self.register_buffer(name, tensor), or nn.Parameter if they should be trained."
            return self.failed(message, advice, where=tuple(beside), severity="warning")
        return self.passed(
            f"{len(kept)} entries, saved and loaded, give the same outputs", value=moved, limit=self.most
        )
