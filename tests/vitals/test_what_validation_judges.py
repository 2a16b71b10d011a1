"""What a loss is given in passes without gradients."""

import pytest
import torch
from torch import nn

from torchdoctor import Doctor


def trained(loss_fn, shown, targets, asked=None):
    """A short run that validates by what `shown` makes of the scores, and asks for what `asked` says there."""
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
                    doctor.log_validation(loss_fn(shown(model(inputs)), (asked or targets)(inputs)))
        doctor.diagnose()
        chart = doctor._examination.chart
        return {name: chart[name].values for name in chart.vitals if name.startswith("idle_")}


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


def test_outputs_of_another_loss_are_not_looked_at():
    assert "idle_output_low" not in trained(nn.MSELoss(), torch.sigmoid, signs)


def test_the_numbers_that_validation_asks_for():
    def exact(inputs):
        return 3 * inputs[:, :4] + 5

    seen = trained(nn.MSELoss(), lambda scores: scores, lambda inputs: exact(inputs).floor(), exact)
    assert seen["idle_target_mean"].mean() == pytest.approx(5, abs=1.0)
    assert seen["idle_target_std"].mean() == pytest.approx(3, abs=0.5)
    assert not seen["idle_target_whole"].any()


def test_labels_of_classes_have_no_scale():
    assert "idle_target_mean" not in trained(nn.CrossEntropyLoss(), lambda scores: scores, classes)
