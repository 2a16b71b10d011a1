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
    """A checkpoint brings the trained model back.

    ## What it checks
    After a few steps of training the state dict is saved (in memory), everything is put back to the beginning, and the
    state dict is loaded: the answers in eval mode must be those of the trained model. What was learnt or counted
    outside of parameters and buffers is lost on the way: layers in a list, statistics in a plain attribute. Then it
    looks for tensors in plain attributes that look random and that the answers depend on: another process would draw
    others.

    ## How it is told apart
    Constants in plain attributes, caches, and buffers that are not persistent are made anew by the constructor and
    pass, as long as training does not change them. The same random numbers are used both times. A constant is told from
    random numbers by its values: equal ones, whole or written ones (0.485), smooth or repeated ones (a mask, a range, a
    table of positions, a window). What the constructor is handed by that name is handed over again.

    ## What to do
    `self.register_buffer("mean", ...)` for what is counted, `nn.Parameter` and `nn.ModuleList` for what is learnt. What
    is no tensor: `get_extra_state`.

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
    """Share of the outputs' size by which the answers may differ."""

    def applies(self, subject: Subject) -> str | None:
        """An output that can be compared."""
        return whole_loss(subject)

    def run(self, subject: Subject) -> Outcome:
        """Train, save, go back, load."""
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
                "Return tensors, numbers, strings, lists and dicts from get_extra_state: safe loading takes no others."
            )
            return self.failed(message, advice, where=tuple(others), severity="warning")
        try:
            subject.model.load_state_dict(kept)
        except (RuntimeError, KeyError) as error:
            message = f"the model does not load its own state dict: {' '.join(str(error).split())[:200]}"
            return self.failed(message, "Create all layers in __init__, and keep their names.")
        moved = moved_by(trained, answer(subject))
        if moved > self.most:
            message = f"a model that was saved and loaded answers differently, by {number_text(moved)} of its size"
            advice = "Register what training changes: nn.Parameter, nn.ModuleList, register_buffer or get_extra_state."
            return self.failed(message, advice, value=moved, limit=self.most)
        beside = kept_beside(subject, self.most)
        if beside:
            message = "the answers depend on random numbers in a plain attribute, which no checkpoint has: "
            message += names_text(beside)
            advice = "Register them: self.register_buffer(name, tensor), or nn.Parameter where they should learn."
            return self.failed(message, advice, where=tuple(beside), severity="warning")
        return self.passed(
            f"{len(kept)} entries, saved and loaded, give the same answers", value=moved, limit=self.most
        )
