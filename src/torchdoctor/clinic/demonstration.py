"""The run that `torchdoctor demo` shows: a small patient, two injected faults and one real mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import torch

from torchdoctor.clinic.detection import Alarm, Detection, match
from torchdoctor.clinic.faults import Fault, JumpLearningRate, ScaleGradients
from torchdoctor.clinic.injection import Injection, inject
from torchdoctor.clinic.patient import RECIPES, Patient
from torchdoctor.doctor import Doctor

PATIENT = replace(RECIPES["small"], width=96)
"""About 45 seconds for 1,000 steps on one slow core."""
TOO_HIGH = 300


class Act(NamedTuple):
    """Something that happens to the run, and how it is announced."""

    step: int
    fault: Fault
    announcement: str
    real: bool = False


@dataclass(frozen=True)
class Demonstration:
    """A patient, the acts of its run in order, and the training in which they happen."""

    patient: Patient
    steps: int
    acts: tuple[Act, ...]

    @classmethod
    def prepare(cls, steps: int, seed: int, data: str | None) -> Demonstration:
        """The small patient, with its acts spread over the run."""
        recipe = replace(
            PATIENT,
            data=data,
            steps=2 * steps,  # a run that is cut short: its learning rate has not yet faded when the real mistake comes
            seed=seed,
            warmup=steps // 10,
            validate_every=max(25, steps // 10),
        )
        explosion, vanishing, real = (int(steps * share) for share in (0.4, 0.6, 0.85))
        patient = Patient(recipe)
        return cls(
            patient,
            steps,
            (
                Act(
                    explosion,
                    ScaleGradients(20, at=explosion),
                    "Injected: the gradient of this one step is multiplied by 20.",
                ),
                Act(
                    vanishing,
                    ScaleGradients(1e-8, at=vanishing),
                    "Injected: the gradient of this one step is multiplied by 0.00000001.",
                ),
                Act(
                    real,
                    JumpLearningRate(TOO_HIGH, at=real),
                    f"For real: the learning rate is set {TOO_HIGH} times too high, and left there.",
                    real=True,
                ),
            ),
        )

    def run(self, doctor: Doctor) -> Iterator[tuple[int, float, Act | None]]:
        """Train, yielding each step with its loss and the act that comes next, just before it comes."""
        coming = {act.step: act for act in self.acts}
        injected = [act.fault for act in self.acts if not act.real]
        with _one_thread(), inject(*injected, model=self.patient.model, optimizer=self.patient.optimizer):
            for step, loss in islice(self.patient.train(doctor), self.steps):
                act = coming.get(step + 1)
                yield step, loss.item(), act
                if act is not None and act.real:
                    self._raise_learning_rate()

    def _raise_learning_rate(self) -> None:
        """Nothing is injected here: from now on the optimizer and its schedule use this rate."""
        scheduler = self.patient.scheduler
        scheduler.base_lrs = [rate * TOO_HIGH for rate in scheduler.base_lrs]
        for group in self.patient.optimizer.param_groups:
            group["lr"] *= TOO_HIGH

    def outcome(self, alarms: list[Alarm], last_step: int) -> list[Detection]:
        """What became of each act that the run has reached."""
        return [match(Injection(act.step, act.fault), alarms) for act in self.acts if act.step <= last_step]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small gain little from a second thread, and lose much where another process wants its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
