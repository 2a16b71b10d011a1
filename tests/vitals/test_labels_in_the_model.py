"""Models that are given their labels and make the loss themselves."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.vitals.loops import adam, chart_of, found
from torch import nn

from torchdoctor.doctor import Doctor


class Language(nn.Module):
    """Shifts its labels by one, as those of libraries do."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, 16), nn.Linear(16, 24)

    def forward(self, input_ids, labels):
        labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(self.head(self.embedding(input_ids)).flatten(0, 1), labels.flatten(), ignore_index=-100)


def trained(inputs, labels, steps=12):
    model = Language()
    optimizer = adam(model, 1e-2)
    doctor = Doctor(model, optimizer, settings={"quiet": True})
    for _ in range(steps):
        text = torch.randint(0, 24, (16, 33))
        model(input_ids=inputs(text), labels=labels(text)).backward()
        optimizer.step()
        optimizer.zero_grad()
    doctor.detach()
    return doctor


def test_labels_are_compared_with_the_tokens():
    doctor = trained(lambda text: text[:, :-1], lambda text: text[:, :-1])
    assert chart_of(doctor)["target_is_next"].latest == pytest.approx(1.0)
    assert chart_of(doctor)["guess_loss"]
    assert not {"target-anomaly", "input-anomaly"} & set(found(doctor))


def test_labels_that_the_loop_has_shifted_already():
    assert "target-anomaly" in found(trained(lambda text: text[:, :-1], lambda text: text[:, 1:]))


def test_tokens_that_were_clipped_and_labels_that_were_not():
    assert "input-anomaly" in found(trained(lambda text: text[:, :-1].clamp(max=9), lambda text: text[:, :-1]))


@pytest.mark.parametrize(("padded", "fires"), [(False, False), (True, True)])
def test_one_label_for_a_whole_sequence_is_no_padding(padded, fires):
    model, loss_of = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 24)), nn.CrossEntropyLoss()
    optimizer = adam(model, 1e-2)
    with Doctor(model, optimizer, loss_fn=loss_of, settings={"quiet": True}) as doctor:
        for _ in range(12):
            text = torch.randint(1, 24, (16, 12))
            labels = text.amax(1, keepdim=True).expand(-1, 12)
            labels = F.pad(text[:, :3], (0, 9)) if padded else labels
            loss = loss_of(model(text).transpose(1, 2), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert ("target-anomaly" in found(doctor)) == fires
