"""gradients-not-cleared."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradients_not_cleared import GradientsNotCleared


def ledger(kept, cleared, between=None, backwards=None):
    count = len(kept)
    return {
        "zeroing.kept": kept,
        "zeroing.cleared": cleared,
        "zeroing.between_backwards": between or [0] * count,
        "zeroing.backwards": backwards or [1] * count,
    }


SICK = {
    "never": (ledger([3], [0]), [], "SGD", "critical"),
    "one player of two": (ledger([0, 4], [5, 0]), [], "SGD", "critical"),
    "now and then": (ledger([5], [1]), [], "SGD", "warning"),
    "between micro-batches": (ledger([0], [5], [3], [4]), [], "SGD", "warning"),
    "undivided": (ledger([0], [5], [0], [4]), [1.0] * 3, "SGD", "warning"),
    "undivided, and Adam does not feel it": (ledger([0], [5], [0], [4]), [1.0] * 3, "AdamW", "info"),
    "undivided, and Adafactor does not feel it": (ledger([0], [5], [0], [4]), [1.0] * 3, "Adafactor", "info"),
    "divided twice": (ledger([0], [5], [0], [4]), [0.0625] * 3, "SGD", "warning"),
}
HEALTHY = {
    "nothing known": ({}, [], "SGD"),
    "cleared": (ledger([0], [5]), [], "SGD"),
    "too early to say": (ledger([2], [0]), [], "SGD"),
    "accumulated and divided": (ledger([0], [5], [0], [4]), [0.25] * 5, "SGD"),
    "the last step of an epoch has fewer": (
        ledger([0], [5], [0], [2]) | {"zeroing.most_backwards": [4]},
        [0.25] * 5,
        "SGD",
    ),
    "weights that differ": (ledger([0], [5], [0], [2]), [0.7, 0.3, 0.5], "SGD"),
    "one backward": (ledger([0], [5]), [1.0] * 5, "SGD"),
    "a scaler that is not known": (ledger([0], [5], [0], [4]), [16384.0] * 5, "SGD"),
    "a sum on purpose": (ledger([0], [5], [0], [4]) | {"loss.reduction": "sum"}, [1.0] * 5, "SGD"),
    "two players clear each other's": (ledger([0, 0], [5, 5], [5, 5], [2, 2]), [], "SGD"),
}


def chart(facts, weights, optimizer):
    built = Chart.of(loss_weight=weights)
    built.groups = [{"optimizer": optimizer}]
    built.add({"type": "facts", "step": 4, "facts": facts})
    return built


@pytest.mark.parametrize(("facts", "weights", "optimizer", "severity"), SICK.values(), ids=SICK)
def test_fires(facts, weights, optimizer, severity):
    assert GradientsNotCleared().check(chart(facts, weights, optimizer)).severity == severity


@pytest.mark.parametrize(("norm", "severity"), [(0.1, "critical"), (0.0, None)])
def test_zeros_that_are_kept_are_no_old_gradients(norm, severity):
    kept = chart(ledger([5], [0]), [], "SGD")
    for step in range(9):
        kept.put(step, "grad_norm", norm)
    found = GradientsNotCleared().check(kept)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("facts", "weights", "optimizer"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(facts, weights, optimizer):
    assert GradientsNotCleared().check(chart(facts, weights, optimizer)) is None
