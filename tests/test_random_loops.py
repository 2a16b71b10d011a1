"""Random loops: whatever they mix, watching changes no bit, nothing fails inside, and the journal tells the same."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torchdoctor
from torchdoctor.doctor import Doctor
from torchdoctor.vitals import roots, taps

pytestmark = pytest.mark.usefixtures("no_other_doctors")
F = nn.functional
PROGRAMS, STEPS = 40, 36
KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class CaughtError(Exception):
    """What the loop raises and catches."""


class Program:
    """A loop whose habits are drawn from a seed; watched if it has a folder for journals."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        draw = random.Random(seed).choice
        self.draw, self.folder = draw, folder
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Linear(16, 1))
        self.change = draw(["never", "once", "often", "head", "unfrozen", "joins", "in turn", "by epoch"])
        self.net[0].requires_grad_(requires_grad=self.change != "unfrozen")
        self.closure = draw([None, None, "one call", "many calls"])
        many = self.closure == "many calls"
        params = self.net.parameters()
        first = torch.optim.LBFGS(params, lr=0.05, max_iter=3) if many else draw(KINDS)(params, lr=1e-2)
        self.stepping = [first]
        self.other = draw([None, draw(KINDS)(self.net.parameters(), lr=1e-3)])
        scaled = self.closure is None and draw([True, False])
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=6, enabled=scaled)
        self.given = draw([None, self.scaler])
        self.at, self.late = draw(range(1, 20)), draw(range(30))
        self.logs = draw(["never", "never", "late", "at times", "always"])
        self.name, self.as_graph = draw(["loss", "objective"]), draw([True, False])
        self.logged_at = draw(["forward", "backward", "step"])
        self.micro, self.divides = draw([1, 2, 4]), draw([True, False])
        self.clip, self.clears = draw([None, "norm", "value"]), draw([True, False])
        self.raises_in, self.attached_again = draw([None, "forward", "backward", "step"]), draw([None, 9, 25])
        self.doctors: list[Doctor] = []

    def run(self) -> list[bytes]:
        """Returns the weights and the random state."""
        torch.manual_seed(0)
        self.attach()
        for step in range(STEPS):
            if step == self.attached_again:
                self.attach()
            self.replace_optimizers(step)
            with contextlib.suppress(CaughtError):
                self.take(step)
            for optimizer in self.stepping:
                optimizer.zero_grad(set_to_none=self.clears)
            if step % 12 == 11:
                self.validate()
        for doctor in self.doctors:
            doctor.detach()
        return [tensor.detach().numpy().tobytes() for tensor in (*self.net.parameters(), torch.get_rng_state())]

    def attach(self) -> None:
        if self.doctors:
            self.doctors[-1].detach()
        if self.folder is not None:
            journal = self.folder / str(len(self.doctors))
            model, optimizer = self.net, self.stepping[0]
            self.doctors.append(Doctor(model, optimizer, scaler=self.given, journal=journal, settings={"quiet": True}))

    def replace_optimizers(self, step: int) -> None:
        change, params = self.change, list(self.net.parameters())
        due = {"often": step % 5 == 4, "in turn": step >= self.at, "by epoch": step % 13 == 12}
        if not due.get(change, step == self.at and change != "never"):
            return
        if change == "head":
            self.net[-1] = nn.Linear(16, 1)
            params = list(self.net.parameters())
        self.net.requires_grad_()
        if change == "joins":
            self.net.append(nn.Linear(1, 1))
            self.stepping.append(self.draw(KINDS)(self.net[-1].parameters(), lr=1e-3))
        elif change in ("in turn", "by epoch"):
            self.other = self.other or self.draw(KINDS)(params, lr=1e-3)
            self.stepping, self.other = [self.other], self.stepping[0]
        else:
            known = self.other if change == "once" else None
            self.stepping = [known or self.draw(KINDS)(params, lr=1e-3)]

    def take(self, step: int) -> None:
        raises_in = self.raises_in if step in (5, 17) else None
        if self.closure is not None:

            def closure() -> torch.Tensor:
                self.stepping[0].zero_grad(set_to_none=self.clears)
                return self.compute(step, raises_in)

            loss = self.stepping[0].step(closure)
        else:
            loss = self.compute(step, raises_in)
            for optimizer in self.stepping:
                self.scaler.step(optimizer)
            if raises_in == "step":
                raise CaughtError
            self.scaler.update()
        self.log(step, "step", loss)

    def compute(self, step: int, raises_in: str | None) -> torch.Tensor:
        for _ in range(self.micro):
            x = torch.randn(8, 8)
            loss = F.mse_loss(self.net(x), x.sum(1, keepdim=True))
            self.log(step, "forward", loss)
            if raises_in == "forward":
                raise CaughtError
            self.scaler.scale(loss / self.micro if self.divides else loss).backward()
            self.log(step, "backward", loss)
        if raises_in == "backward":
            raise CaughtError
        if self.scaler.is_enabled() and step in (8, self.at):
            self.net[-1].weight.grad.fill_(math.inf)  # the scaler skips this step
        elif self.clip == "norm":
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        elif self.clip == "value":
            nn.utils.clip_grad_value_(self.net.parameters(), 0.1)
        return loss

    def log(self, step: int, place: str, loss: torch.Tensor) -> None:
        due = {"late": step >= self.late, "at times": step % 5 == 0, "always": True}.get(self.logs, False)
        if self.doctors and due and place == self.logged_at:
            self.doctors[-1].log_loss(loss if self.as_graph else loss.item(), name=self.name)

    def validate(self) -> None:
        self.net.eval()
        with torch.no_grad():
            loss = self.net(torch.ones(4, 8)).square().mean()
        self.net.train()
        if self.doctors:
            self.doctors[-1].log_validation(loss)
            self.doctors[-1].diagnose()


def mistakes(program: Program) -> Iterator[str]:
    """What failed inside, and reports that differ from those of their journals."""
    for number, doctor in enumerate(program.doctors):
        live = doctor.diagnose()
        yield from (note for note in live.notes if "failed inside" in note)
        assert program.folder is not None
        if json.dumps(live.to_dict()) != json.dumps(torchdoctor.diagnose(program.folder / str(number)).to_dict()):
            yield "the journal gives another report"


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_random_loop_runs_as_if_it_were_not_watched(seed, tmp_path):
    before = roots._followers[:], taps._listeners[:]
    watched = Program(seed, tmp_path)
    same = Program(seed, None).run() == watched.run()
    assert same
    assert not list(mistakes(watched))
    assert (roots._followers, taps._listeners) == before
