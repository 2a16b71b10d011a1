"""state-overwritten."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.state_overwritten import StateOverwritten

FALLING = [4.0 - 0.01 * step for step in range(200)]
"""From 4 to 2."""


def noisy(values, size=0.1):
    return [float(value) for value in np.array(values) + size * np.random.default_rng(0).standard_normal(len(values))]


SICK = {
    "a head is initialized anew in each epoch": (
        FALLING + [3.9] * 40,
        {"state.written_in_part": [[place, place + 25, "head"] for place in (115, 140, 165, 190)]},
        200,
    ),
    "weights of the start are back": (FALLING + [3.9] * 40, {"state.written": [[190, 215]]}, 200),
    "again and again": ((FALLING + [3.9] * 40), {"state.written": [[50, 75], [190, 215]]}, 200),
    "noise does not hide it": (noisy(FALLING + [3.5] * 40), {"state.written": [[190, 215]]}, 200),
    "Adam starts anew and loses a quarter": (noisy(FALLING + [2.5] * 40), {"state.restarted": 200}, 200),
    "the memory is emptied at each step": (FALLING + [2.0] * 16, {"state.forgotten": 3}, 215),
    "an old checkpoint was loaded": (noisy(FALLING + [2.8] * 40), {"state.loaded": [200]}, 200),
    "a loss in thousands": ([1000 * value for value in FALLING + [3.9] * 40], {"state.written": [[190, 215]]}, 200),
}
HEALTHY = {
    "no readings": ([], {}),
    "a table that is kept within bounds, now and then": (
        noisy(FALLING + [2.0] * 40),
        {"state.written_in_part": [[150, 175, "table"], [190, 215, "table"]]},
    ),
    "the memory was emptied twice": (FALLING + [2.0] * 16, {"state.forgotten": 2}),
    "emptied and written from task to task": (
        FALLING + [3.9] * 40,
        {"state.forgotten": 5, "state.restarted": 200, "state.written": [[150, 175], [176, 200], [201, 215]]},
    ),
    "nothing was written": (FALLING + [3.9] * 40, {}),
    "averaged weights, put back": (noisy(FALLING + [2.0] * 40), {"state.written": [[190, 215]]}),
    "Adam starts anew, and nothing happens": (noisy(FALLING + [2.0] * 40), {"state.restarted": 200}),
    "better weights were loaded": (noisy(FALLING + [1.0] * 40), {"state.written": [[190, 215]]}),
    "a small loss that pruning brings": (noisy(FALLING + [2.3] * 40), {"state.written": [[190, 215]]}),
    "the outer loop of meta-learning": (
        FALLING + [3.9] * 40,
        {"state.written": [[50, 75], [100, 125], [150, 175], [190, 215]]},
    ),
    "the outer loop of meta-learning, at its second turn": (
        [*np.linspace(11.0, 6.0, 8), *[0.35] * 8, *[5.6] * 8],
        {"state.written": [[5, 8], [9, 16]]},
    ),
    "the best checkpoint was loaded": (noisy(FALLING + [2.2] * 40), {"state.loaded": [200]}),
    "loaded at each turn": (FALLING + [3.9] * 40, {"state.loaded": [50, 100, 150, 190, 200]}),
    "the rise is elsewhere": (FALLING[:100] + [3.9] * 140, {"state.written": [[190, 215]]}),
    "long ago": (FALLING + [3.9] * 400, {"state.written": [[190, 215]]}),
    "noise alone": (noisy([4.0] * 240, 0.5), {"state.written": [[190, 215]]}),
    "too early to say": (FALLING + [3.9] * 3, {"state.restarted": 200}),
    "at the first step": ([4.0] * 20, {"state.restarted": 0}),
}


def chart(losses, facts):
    built = Chart.of(loss=losses)
    built.add({"type": "facts", "step": 215, "facts": facts})
    return built


@pytest.mark.parametrize(("losses", "facts", "step"), SICK.values(), ids=SICK)
def test_fires(losses, facts, step):
    found = StateOverwritten().check(chart(losses, facts))
    assert found.severity == "warning"
    assert abs(found.first_step - step) <= 2


@pytest.mark.parametrize(("losses", "facts"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(losses, facts):
    assert StateOverwritten().check(chart(losses, facts)) is None


@pytest.mark.parametrize(("kept", "fires"), [([0.1, 0.05, 0.1], True), ([0.1, 0.05, 1.2], False), ([0.1, 0.1], False)])
def test_steps_that_are_undone(kept, fires):
    assert (StateOverwritten().check(Chart.of(loss=FALLING, update_kept=kept)) is not None) == fires


@pytest.mark.parametrize(
    ("kept", "written", "fires"),
    [
        ([12.0, 11.0, 0.02], 1, True),
        ([12.0, 11.0, 0.02], 0, False),
        ([12.0, 11.0, 0.2], 1, False),
        ([1.1, 1.0, 0.9], 3, True),
        ([1.1, 1.0, 0.9], 0, False),
        ([3.5, 3.5, 1.1, 1.0, 0.9], 5, False),  # clamped: some weights have reached their bounds
    ],
)
def test_weights_that_are_written_to_at_every_step_and_come_nowhere(kept, written, fires):
    built = Chart.of(loss=[1.0] * 100)
    for place, value in enumerate(kept):
        built.put(25 * (place + 1) - 2, "update_kept", value)
    built.add({"type": "facts", "step": 73, "facts": {"state.written_always": written}})
    assert (StateOverwritten().check(built) is not None) == fires


@pytest.mark.parametrize(
    ("after", "fires"),
    [
        ([0.6, 0.7, 0.65], True),  # at more than twice what it was, each of them above all before
        ([0.6, 0.7], False),
        ([0.6, 0.3, 0.65], False),
        ([0.37, 0.36, 0.38], False),
    ],
)
def test_a_leap_where_a_state_was_loaded_is_said_after_a_few_steps(after, fires):
    chart = Chart.of(loss=[2.4 * 0.95**step + 0.25 + 0.05 * (-1) ** step for step in range(100)] + after)
    chart.add({"type": "facts", "step": 99, "facts": {"state.loaded": [100]}})
    assert (StateOverwritten().check(chart) is not None) == fires


@pytest.mark.parametrize(
    ("losses", "fresh", "memory", "fires"),
    [
        ([0.6, 1.4, 1.3, *[1.0] * 20], 0.0, 0, True),
        ([0.6, 1.4, 1.3, *[0.7] * 20], 0.0, 0, False),  # a bump
        ([0.6, 1.4, 1.3, *[1.0] * 20], 1.0, 0, False),  # new weights
        ([0.6, 1.4, 1.3, *[1.0] * 20], 0.0, 500, False),  # the memory came back
        ([2.2, 4.4, 4.3, *[4.0] * 20], 0.0, 0, False),  # knew nothing of this task
    ],
)
def test_weights_that_were_loaded_without_the_optimizer_and_unlearn(losses, fresh, memory, fires):
    built = Chart.of(loss=losses, criterion=losses[:1], weights_fresh=[fresh])
    built.groups = [{"betas": [0.9, 0.999]}]
    built.add({"type": "facts", "step": 0, "facts": {"state.at_start": memory, "loss.chance": 2.64}})
    assert (StateOverwritten().check(built) is not None) == fires


@pytest.mark.parametrize(("after", "fires"), [(0.62, True), (0.35, False)])
def test_medians_tell_a_noisy_loss_apart_where_a_state_was_loaded(after, fires):
    noise = np.random.default_rng(3).normal(0, 0.1, 120)
    falling = np.array([2.4 * 0.95**step + 0.3 for step in range(100)] + [after] * 20)
    built = Chart.of(loss=list(falling + noise))
    built.add({"type": "facts", "step": 99, "facts": {"state.loaded": [100]}})
    assert (StateOverwritten().check(built) is not None) == fires


@pytest.mark.parametrize(("ratio", "fires"), [(1e-3, True), (1e-9, False)])
def test_a_bias_that_is_drawn_to_its_mean_while_no_matrix_moves_is_not_a_step_undone(ratio, fires):
    built = Chart.of(loss=[1.0] * 200, update_kept=[0.1, 0.05, 0.1])
    built.names = ("0.weight", "2.weight", "2.bias")
    built.add({"type": "tensors", "step": 199, "vitals": {"update_ratio": [ratio, ratio, 0.2]}})
    assert (StateOverwritten().check(built) is not None) == fires


@pytest.mark.parametrize(("after", "noise", "fires"), [(2.35, 0.03, True), (2.35, 0.2, False), (2.15, 0.03, False)])
def test_a_seventh_of_the_gain_is_enough_where_no_loss_overlaps_those_before_a_state_was_loaded(after, noise, fires):
    built = chart(noisy(FALLING + [after] * 20, noise), {"state.loaded": [200]})
    assert (StateOverwritten().check(built) is not None) == fires


@pytest.mark.parametrize(
    ("times", "rate", "fires"),
    [
        (3.7, 1e-3, True),
        (1.9, 1e-3, False),
        (3.7, 1e-4, False),  # back to the best state, at a lower rate
    ],
)
def test_an_old_state_is_told_in_powers_of_ten_where_the_loss_came_down_by_some(times, rate, fires):
    noise = np.exp(0.2 * np.random.default_rng(4).standard_normal(240))
    levels = np.concatenate([1.7 * 0.96 ** np.arange(110) + 0.018, np.full(90, 0.018), np.full(40, 0.018 * times)])
    built = Chart.of(loss=list(levels * noise), lr=[1e-3] * 200 + [rate] * 40)
    built.add({"type": "facts", "step": 199, "facts": {"state.loaded": [200]}})
    assert (StateOverwritten().check(built) is not None) == fires
