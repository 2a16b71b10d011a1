"""What changes in the middle of a run and stays so: sick where it costs something, and near-misses that do not."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing
from torchdoctor.symptoms.input_anomaly import InputAnomaly
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.memory_growth import MemoryGrowth

RNG = np.random.default_rng(0)
NOISE = RNG.standard_normal(600)
NORMS = np.exp(0.3 * NOISE[:80])
LOSSES = 0.5 + 0.05 * NOISE[:80]
LEARNT = 0.1 + 1.5 * np.exp(-np.arange(300) / 20) + 0.02 * NOISE[:300]

DIVIDED = {
    "by 256": ("SGD", NORMS[:6] / 256, LOSSES[:6], 80),
    "by 256, for a dozen steps": ("SGD", NORMS[:12] / 256, LOSSES[:12], 80),
    "for three steps so far": ("SGD", NORMS[:3] / 256, LOSSES[:3], None),
    "by 20": ("SGD", NORMS[:6] / 20, LOSSES[:6], None),
    "by an optimizer that divides by their size": ("Adam", NORMS[:6] / 256, LOSSES[:6], None),
    "and the loss with them": ("SGD", NORMS[:6] / 256, LOSSES[:6] / 16, None),
    "one after another": ("SGD", [0.3, 0.1, 0.03, 0.01, 0.003, 0.001], LOSSES[:6], None),
    "and back": ("SGD", [*NORMS[:2] / 256, *NORMS[2:6]], LOSSES[:6], None),
}


@pytest.mark.parametrize(("optimizer", "norms", "losses", "since"), DIVIDED.values(), ids=DIVIDED)
def test_gradients_that_somebody_divides_from_some_step_on(optimizer, norms, losses, since):
    chart = Chart.of(grad_norm=[*NORMS, *norms], loss=[*LOSSES, *losses])
    chart.groups = [{"optimizer": optimizer}]
    found = GradientVanishing().check(chart)
    assert (found and (found.severity, found.first_step)) == (since and ("warning", since))


BACK = {
    "labels that are any, from here on": ([*np.linspace(8, 1.6, 20), *(1.6 + 0.05 * NOISE[:80])], "warning"),
    "noise that grows": (np.linspace(0.1, 1.5, 160) + 0.16 * NOISE[:160], "warning"),
    "a new task that is learnt": (0.1 + 1.5 * np.exp(-np.arange(100) / 40) + 0.02 * NOISE[:100], None),
    "a new task, not for long": (1.6 + 0.05 * NOISE[:50], None),
    "a harder task, under the start": (1.0 + 0.05 * NOISE[:100], None),
}


@pytest.mark.parametrize(("after", "severity"), BACK.values(), ids=BACK)
def test_a_loss_that_is_back_where_it_began(after, severity):
    losses, norms = np.concatenate([LEARNT, after]), [*np.ones(300), *np.full(len(after), 3.0)]
    charts = [Chart.of(loss=losses[:size], grad_norm=norms[:size]) for size in range(302, losses.size + 1, 2)]
    found = [LossDivergence().check(chart) for chart in charts]
    assert ("warning" if any(found) else None) == severity


def test_a_task_whose_start_took_long_may_take_as_long_again():
    late = np.concatenate([1.6 + 0.02 * NOISE[:200], LEARNT[:100]])
    losses = np.concatenate([late, 1.6 + 0.02 * NOISE[:420]])
    assert LossDivergence().check(Chart.of(loss=losses[:600])) is None
    assert LossDivergence().check(Chart.of(loss=losses)).severity == "warning"


LEAKS = {
    "far, in five samples": ([80.0] * 5, True),
    "not far, in five samples": ([10.0] * 5, False),
    "in two lumps": ([0.0, 0.0, 200.0, 0.0, 200.0], False),
    "by less each time": ([200.0, 90.0, 40.0, 20.0, 10.0], False),
}


@pytest.mark.parametrize(("rises", "fires"), LEAKS.values(), ids=LEAKS)
def test_a_process_that_stood_still_grows(rises, fires):
    steps = [0, 1, 2, 4, 8, 16, *range(23, 23 + 25 * 14, 25)]
    grown = np.concatenate([[0, 1, 2, 4, 12, 3], np.full(14 - len(rises), 15.0), 15 + np.cumsum(rises)])
    chart = Chart()
    for step, megabytes in zip(steps, grown, strict=False):
        chart.put(step, "host_memory", 2.0**20 * (250 + megabytes))
    assert (MemoryGrowth().check(chart) is not None) == fires


def _drifting(shift, risen, kinds=("Linear",), validated=None):
    """Inputs whose mean goes away from the tenth look on, and what becomes of the loss and of validation."""
    chart = Chart()
    for step in range(400):
        look, away = step // 20, max(0.0, step / 20 - 9) / 10
        if step % 20 == 0:
            vitals = {"input_mean": 0.1 * (look % 2) + shift * away, "input_std": 1.0, "entry_rms": 1.0 + abs(away)}
            chart.add({"type": "vitals", "step": step, "vitals": vitals})
        chart.put(step, "loss", 0.5 + 2 * 0.9**step + risen * away + 0.02 * NOISE[step])
        if validated is not None and step in (150, 399):
            told = {"val_loss": 0.6 if step == 150 else validated, "idle_input_mean": 0.0, "idle_input_std": 1.0}
            chart.add({"type": "vitals", "step": step, "vitals": told})
    chart.add({"type": "facts", "step": 0, "facts": {"modules.kinds": list(kinds)}})
    return InputAnomaly().check(chart)


def test_a_mean_that_moves_away_costs_something_or_nothing():
    assert "mean of inputs has moved by" in _drifting(4.0, 0.3).message
    assert _drifting(-4.0, 0.3).severity == "warning"
    assert _drifting(4.0, 0.0) is None
    assert _drifting(1.0, 0.3) is None
    assert _drifting(4.0, 0.3, kinds=("BatchNorm1d", "Linear")) is None
    assert _drifting(4.0, 0.3, validated=0.6) is None  # as planned: a curriculum
    assert "the validation loss got worse" in _drifting(4.0, 0.0, validated=1.5).message


def _growing(times, cost, idle=1.0, lost=None):
    """Inputs whose scale grows to so many times what it was over a hundred steps, and what that costs.

    In validation they are of the size `idle` at the end, and the loss is `lost` above what it was, where one is known.
    """
    chart = Chart()
    for step in range(300):
        share = min(max(step - 150, 0) / 100, 1.0)
        chart.put(step, "loss", 0.5 + 2 * 0.9**step + cost * share + 0.02 * NOISE[step])
        if step % 15 == 14:
            chart.put(step, "entry_rms", 1.0 + (times - 1) * share)
            for kind, size in (("input", times), ("idle_input", idle)):
                chart.put(step, f"{kind}_mean", 0.0)
                chart.put(step, f"{kind}_std", 1.0 + (size - 1) * share)
        if lost is not None and step % 30 == 29:
            chart.put(step, "val_loss", 0.6 + lost * share)
    return InputAnomaly().check(chart)


def test_a_scale_that_drifts_costs_something_or_nothing():
    assert "inputs went from a size of 1" in _growing(4.0, 0.3).message
    assert _growing(4.0, 0.0) is None
    assert _growing(2.0, 0.3) is None
    assert "inputs went from a size of 1" in _growing(4.0, 0.3, lost=0.2).message


def test_a_scale_that_drifts_in_training_alone_may_cost_validation_alone():
    assert "inputs went from a size of 1" in _growing(4.0, 0.0, lost=0.3).message
    assert _growing(4.0, 0.0, lost=0.08) is None
    assert _growing(4.0, 0.0, idle=4.0, lost=0.3) is None


@pytest.mark.parametrize(
    ("idle", "lost"),
    [(4.0, 0.3), (1.0, 0.0), (1.0, 0.05)],
    ids=["validation is fed the same", "validation is as good as it was", "it has lost little of what was gained"],
)
def test_a_scale_that_drifts_as_planned(idle, lost):
    assert _growing(4.0, 0.3, idle=idle, lost=lost) is None


def _pointing(deviation, facts=()):
    """Outputs that point one way by and by, and by how much they differ."""
    directions, looks = [0.3, 0.25, *[0.03] * 12], range(0, 14 * 25, 25)
    chart = Chart()
    for step, direction, spread in zip(looks, directions, deviation, strict=True):
        vitals = {"output_directions": direction, "output_std": spread, "output_spread": 0.2, "loss": 1.0}
        chart.add({"type": "vitals", "step": step, "vitals": vitals})
    chart.add({"type": "facts", "step": 0, "facts": dict(facts)})
    return CollapsedOutput().check(chart)


def test_parameters_of_a_density_may_share_a_direction_and_differ_more_than_at_first():
    assert _pointing(np.linspace(0.1, 0.5, 14)) is None
    assert "point in the same direction" in _pointing(np.full(14, 0.1)).message
    assert "point in the same direction" in _pointing(np.linspace(0.1, 0.5, 14), {"loss.between_outputs": True}).message
