"""What a loss of scores is given in passes without gradients."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor


def trained(loss_fn, shown, targets):
    """A short run that validates by what `shown` makes of the scores."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    model.weight.data *= 20
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Doctor(model, optimizer, loss_fn=loss_fn, settings={"quiet": True}) as doctor:
        for step in range(120):
            inputs = torch.randn(16, 6)
            loss = loss_fn(model(inputs), targets(inputs))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log_loss(loss)
            if step % 20 == 9:
                with torch.no_grad():
                    doctor.log_validation(loss_fn(shown(model(inputs)), targets(inputs)))
        doctor.diagnose()
        chart = doctor._examination.chart
        return {name: chart[name].values for name in ("idle_output_low", "idle_output_high")}


def classes(inputs):
    return inputs[:, :4].argmax(1)


def signs(inputs):
    return (inputs[:, :4] > 0).float()


@pytest.mark.parametrize(
    ("loss_fn", "shown", "targets"),
    [
        (nn.CrossEntropyLoss(), lambda scores: scores.softmax(1), classes),
        (nn.BCEWithLogitsLoss(), torch.sigmoid, signs),
    ],
)
def test_probabilities_lie_between_0_and_1(loss_fn, shown, targets):
    seen = trained(loss_fn, shown, targets)
    assert seen["idle_output_low"].size > 1
    assert seen["idle_output_low"].min() >= 0
    assert seen["idle_output_high"].max() <= 1


def test_scores_do_not():
    seen = trained(nn.CrossEntropyLoss(), lambda scores: scores, classes)
    assert seen["idle_output_low"].max() < 0 < 1 < seen["idle_output_high"].min()


def test_another_loss_is_not_looked_at():
    assert not trained(nn.MSELoss(), torch.sigmoid, signs)["idle_output_low"].size
