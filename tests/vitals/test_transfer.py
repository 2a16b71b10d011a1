"""The way of the numbers to the host: order, details on demand, and scalars that their owner has written to since."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchdoctor.vitals.ledger import MOST_KEPT, Ledger
from torchdoctor.vitals.transfer import Part, Transfer


def never(slot) -> bool:
    return False


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_block_without_device_scalars_arrives(device):
    """A validation of plain floats has nothing to copy, whatever the device is."""
    transfer = Transfer(torch.device(device), 4)
    slot = transfer.open("validation", 3)
    slot.add("val_loss", 2.0)
    slot.finished = True
    assert list(transfer.arrived(never, wait=True)) == [slot]


def test_slots_arrive_in_order_and_only_when_finished():
    transfer = Transfer(torch.device("cpu"), 4)
    transfer.pace(0.001)
    slots = [transfer.open("vitals", number) for number in range(5)]
    for slot in slots[:3]:
        slot.keep("loss", torch.tensor(float(slot.number)))
        slot.finished = True
    assert list(transfer.arrived(never)) == []
    assert [slot.values["loss"] for slot in transfer.arrived(never, wait=True)] == [[0.0], [1.0], [2.0]]
    for slot in slots[3:]:
        slot.finished = True
    assert [slot.number for slot in transfer.arrived(never, wait=True)] == [3, 4]


def test_a_step_that_goes_on_does_not_hold_up_a_full_block():
    transfer = Transfer(torch.device("cpu"), 4)
    transfer.pace(0.005)
    for number in range(transfer.size):
        assert transfer.room(number) == transfer.size - number
        transfer.open("vitals", number).finished = number + 1 < transfer.size
    transfer.close()
    assert transfer.is_due() and transfer.room(transfer.size) == transfer.size - 1
    assert [slot.number for slot in transfer.arrived(never)] == list(range(transfer.size - 1))


def test_full_blocks_end_at_round_numbers_of_steps():
    transfer = Transfer(torch.device("cpu"), 4)
    transfer.pace(0.0001)
    ends = []
    for number in range(10, 300):
        slot = transfer.open("vitals", number)
        transfer.close()
        arrived = [slot.number for slot in transfer.arrived(never)]
        slot.finished = True
        if arrived:
            ends.append(arrived[-1] + 1)
    assert ends == [64, 128, 192, 256]


def test_details_travel_only_for_odd_steps():
    transfer = Transfer(torch.device("cpu"), 2)
    transfer.pace(0.001)
    for number in range(3):
        slot = transfer.open("vitals", number)
        slot.parts.append(Part("grad_norm", [torch.tensor(1.0), torch.tensor(2.0)], np.array([0, 1])))
        slot.finished = True
    found = {slot.number: slot.parts[0].values for slot in transfer.arrived(lambda slot: slot.number == 1, wait=True)}
    assert found[0] is None and found[2] is None
    assert found[1].tolist() == [1.0, 2.0]


def test_a_scalar_that_was_written_to_since_is_left_out():
    transfer = Transfer(torch.device("cpu"), 2)
    slot = transfer.open("vitals", 0)
    kept, copied = torch.tensor(1.0), torch.tensor(2.0)
    slot.keep("kept", kept)
    slot.keep("copied", copied, copy=True)
    kept.mul_(10)
    copied.mul_(10)
    slot.finished = True
    (arrived,) = transfer.arrived(never, wait=True)
    assert arrived.values == {"copied": [2.0]}


def test_what_cannot_be_sent_does_not_hold_up_what_comes_after_it():
    transfer = Transfer(torch.device("cpu"), 4)
    bad, good = (transfer.open("vitals", number) for number in range(2))
    bad.keep("loss", torch.empty((), device="meta"))  # as unreadable as a sharded tensor is
    good.keep("loss", torch.tensor(2.0))
    bad.finished = good.finished = True
    with pytest.raises(RuntimeError):
        list(transfer.arrived(never, wait=True))
    assert [slot.values["loss"] for slot in transfer.arrived(never, wait=True)] == [[2.0]]


def test_losses_without_a_step_are_not_kept_without_end():
    ledger = Ledger(1, torch.device("cpu"), 4, lambda key, text: None, lambda losses: True)
    for number in range(MOST_KEPT + 50):
        ledger.put_loss("loss", torch.tensor(float(number)), None)
    assert len(ledger.next.kept) == MOST_KEPT
