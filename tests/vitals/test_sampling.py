"""When close looks are taken: by what they cost in a grown run, not by what the first ones did."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.vitals.looks import CloseLooks
from torchdoctor.vitals.sampling import YOUNG, Sampling


@pytest.mark.parametrize("first_look", [0.001, 5.0])
def test_what_compiling_took_is_not_held_against_later_looks(first_look: float) -> None:
    """A look of 1 ms in steps of 10 ms, and 0.15 % for looks: one in 67 steps, whatever the first one took."""
    sampling = Sampling(50, 0.01, lambda key, text: None, grace=0.0, share=0.15)
    sampling.spent, sampling.watched = first_look, 10 * first_look  # compilers work in the first step
    for number in range(1, 2001):
        sampling.watched += 0.01
        if number == sampling.next:
            sampling.next = sampling.after(number)
            sampling.looks += 1
            sampling.spent += 0.001
        elif number > sampling.next:
            sampling.next = sampling.after(number)
        if number % 100 == 0 or number == YOUNG:
            sampling.keep_budget(number)
    assert 50 <= sampling.every <= 70


@pytest.mark.parametrize(("excess", "every"), [(None, 667), (0.0, 50), (0.001, 67), (1.0, 667)])
def test_a_look_costs_no_more_than_its_step_took_longer(excess: float | None, every: int) -> None:
    """10 ms inside a look, in steps of 10 ms, and 0.15 % for looks; a busy device makes the host wait anywhere."""
    sampling = Sampling(50, 0.01, lambda key, text: None, grace=0.0, share=0.15)
    looks = CloseLooks(sampling, 1, lambda facts: None, cuda=False)
    for number in range(1, 1001):
        sampling.watched += 0.01
        if number >= sampling.next:
            looks.arm(number)
            sampling.spent += 0.01
            looks.took(excess)
            looks.disarm()
        if number % 100 == 0:
            sampling.keep_budget(number)
    assert sampling.every == pytest.approx(every, rel=0.2)


def test_one_dear_look_does_not_make_the_others_rare() -> None:
    """A look of 10 ms in steps of 10 ms, and 0.15 % for looks: one in 667 steps, though one of them took a second."""
    sampling = Sampling(50, 0.01, lambda key, text: None, grace=0.0, share=0.15)
    for number in range(1, 1001):
        sampling.watched += 0.01
        if number >= sampling.next:
            sampling.begin()
            sampling.next = sampling.after(number)
            sampling.spent += 1.0 if number == 273 else 0.01
        if number % 100 == 0:
            sampling.keep_budget(number)
    assert sampling.every == pytest.approx(667, rel=0.05)


def test_what_has_happened_is_looked_at_soon_but_not_again_and_again() -> None:
    looks = CloseLooks(Sampling(50, 0.01, lambda key, text: None), 1, lambda facts: None, cuda=False)
    looks.arm(398)
    assert looks.sampling.next == 448
    assert looks.hasten(405) and looks.sampling.next == 405
    looks.keep_up(406)
    assert looks.armed == 406 and looks.sampling.next == 448
    assert not looks.hasten(410) and looks.sampling.next == 448
    assert looks.hasten(431)


def test_a_leap_is_followed_by_a_close_look() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    records: list[dict[str, Any]] = []
    doctor.subscribe(records.append)
    for number in range(440):
        x = torch.randn(16, 4)
        loss = (net(x) - x.sum(1, keepdim=True) - torch.randn(16, 1)).square().mean()
        optimizer.zero_grad()
        (loss * (1000 if number == 405 else 1)).backward()
        optimizer.step()
        doctor.log_loss(loss)
        doctor.diagnose(wait=True)  # whatever the machine's pace: the leap is known at once
    doctor.detach()
    looked = [record["step"] for record in records if "weight_norm" in record.get("vitals", ())]
    assert any(406 <= step <= 410 for step in looked), looked
