"""Models that are given their labels and make the loss themselves."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.vitals.loops import adam, chart_of, found
from torch import nn

from torchdoctor.doctor import Doctor
from torchdoctor.symptoms.target_values import is_summed
from torchdoctor.vitals.batch_numbers import padding


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


def ended(text, lengths):
    """Texts that end early: token 0 follows."""
    return text.clamp(min=1) * (torch.arange(text.shape[1])[None] < lengths[:, None])


LENGTHS = torch.randint(4, 15, (16,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("masked", "fires"), [(False, True), (True, False)])
def test_padding_that_a_model_counts_although_it_shifts_its_labels(masked, fires):
    def labels(text):
        asked = ended(text, LENGTHS)
        return asked.masked_fill(asked == 0, -100) if masked else asked

    doctor = trained(lambda text: ended(text, LENGTHS), labels)
    assert ("target-anomaly" in found(doctor)) is fires


def test_ignored_padding_after_words_without_a_name():
    """Labels of words: nearly all of them are 0, "no name", and the ends of shorter texts are ignored."""
    ends = torch.tensor([9, 12, 7, 11])[:, None]
    labels = (torch.arange(12) == 0).long().expand(4, -1).masked_fill(torch.arange(12) >= ends - 1, -100)
    assert float(padding(labels, -100)) < 0.25
    assert float(padding(labels.masked_fill(labels == -100, 0), -100)) > 0.9


@pytest.mark.parametrize("given", [False, True], ids=["a function", "a module"])
@pytest.mark.parametrize("divided", [False, True])
def test_a_loss_that_is_summed_and_divided_by_its_items_is_no_sum(given, divided):
    model, summed = nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="sum")
    optimizer = adam(model, 1e-2)
    with Doctor(model, optimizer, loss_fn=summed if given else None, settings={"quiet": True}) as doctor:
        for _ in range(12):
            labels = torch.randint(0, 3, (16,))
            loss = summed(model(torch.randn(16, 4)), labels) / (torch.tensor(16) if divided else 1)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss / 16)  # what is logged for display does not matter
    chart = chart_of(doctor)
    assert chart.fact("loss.reduction") == "sum"
    assert is_summed(chart) is not divided


@pytest.mark.parametrize("clipped", [False, True])
def test_one_batch_without_a_label_that_counts(clipped):
    torch.manual_seed(0)
    model = Language()
    optimizer = adam(model, 1e-2)
    with Doctor(model, optimizer, settings={"quiet": True}) as doctor:
        for step in range(60):
            text = torch.randint(0, 24, (4, 12))
            loss = model(input_ids=text, labels=torch.full_like(text, -100) if step == 41 else text)
            loss.backward()
            if clipped:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            doctor.log_loss(loss)
    first = doctor.diagnose().diagnoses[0]
    assert first.cause == "loss-misuse"
    assert any("ignores all labels" in text for text in first.evidence)
