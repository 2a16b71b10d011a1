import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared
from torchdoctor.symptoms.suspicious_loss import SuspiciousLoss


def ledger(times, looked, backwards=1):
    chart = Chart()
    for step in range(looked):
        chart.put(step, "input_checksum", float(step))
    facts = {"kept": [0], "cleared": [5], "between_backwards": [times], "backwards": [backwards]}
    chart.add({"type": "facts", "step": looked - 1, "facts": {f"zeroing.{key}": value for key, value in facts.items()}})
    return chart


@pytest.mark.parametrize(("times", "looked"), [(5, 8), (5, 20), (3, 20)])
def test_steps_that_are_left_out_are_found(times, looked):
    symptom = GradientsNotCleared().check(ledger(times, looked))
    assert symptom.severity == "warning"
    assert "step() is skipped" in symptom.message


@pytest.mark.parametrize(("times", "looked"), [(0, 40), (2, 8), (3, 60), (5, 200)])
def test_a_bad_batch_now_and_then_may_be_passed_over(times, looked):
    assert GradientsNotCleared().check(ledger(times, looked)) is None


@pytest.mark.parametrize(("share", "found"), [(0.95, True), (0.1, False), (0.4, False)])
def test_smoothing_that_leaves_nothing_of_a_label(share, found):
    chart = Chart()
    chart.add({"type": "facts", "step": 0, "facts": {"loss.label_smoothing": share}})
    assert (SuspiciousLoss().check(chart) is not None) is found
