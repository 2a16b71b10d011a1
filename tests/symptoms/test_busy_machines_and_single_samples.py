"""What a busy machine, a batch of one sample or a short warm-up look like, each beside what it must not hide."""

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.gradient_explosion import GradientExplosion
from torchdoctor.symptoms.gradient_instability import GradientInstability
from torchdoctor.symptoms.loss_divergence import LossDivergence
from torchdoctor.symptoms.memory_growth import MemoryGrowth
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.step_time_regression import StepTimeRegression

MEGABYTE = 2.0**20
LOOKS = [0, 1, 2, 4, 8, 16, *range(23, 223, 25)]
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("rate", "fires"),
    [(np.minimum((np.arange(17) + 0.2) / 8, 1.0), False), (np.where(np.arange(17) < 12, 0.05, 1.0), True)],
    ids=["a warm-up of eight steps", "a leap"],
)
def test_a_short_warm_up_is_no_leap_of_the_rate(rate, fires):
    norms = [1.0, 1.1, 0.9, 1.0] * 4 + [2.4]
    assert (GradientExplosion().check(Chart.of(grad_norm=norms, lr=0.01 * rate)) is not None) is fires


@pytest.mark.parametrize(
    ("megabytes", "fires"),
    [
        ([274, 278, 280, 281.4, 283, 284, 286, 290, 292.7, 292.8, 293, 294.6, 298, 298.1], False),
        ([274 + 0.4 * step for step in LOOKS], True),
    ],
    ids=["an allocator that fills", "a leak"],
)
def test_samples_are_dense_where_allocators_fill(megabytes, fires):
    chart = Chart()
    for step, size in zip([*LOOKS, *range(223, 400, 25)], [*megabytes, *megabytes[-1:] * 8], strict=False):
        if step <= 198 or fires:
            chart.put(step, "host_memory", size * MEGABYTE if step <= 198 else (274 + 0.4 * step) * MEGABYTE)
    assert (MemoryGrowth().check(chart) is not None) is fires


@pytest.mark.parametrize(("worked", "severity"), [(0.0, "info"), (0.0005, "warning")], ids=["waits", "works more"])
def test_a_machine_that_gets_busy(worked, severity):
    steps = np.arange(600)
    chart = Chart.of(seconds=(0.05 + 0.0005 * steps) * np.exp(0.1 * RNG.standard_normal(600)))
    for step in range(0, 600, 25):
        chart.put(step, "processor_seconds", 0.05 * step + worked * step**2 / 2)
    symptom = StepTimeRegression().check(chart)
    assert symptom.severity == severity
    assert ("busy" in symptom.message) is (severity == "info")


@pytest.mark.parametrize(
    ("rise", "severity"), [(0.01, None), (0.016, "info"), (0.08, "warning")], ids=["the same", "not begun", "worse"]
)
def test_validation_that_moves_by_less_than_a_hundredth(rise, severity):
    chart = Chart.of(loss=np.linspace(1.42, 1.3, 240))
    risen = [1.379, 1.377, 1.375, 1.374, *(1.374 + rise * np.array([0.33, 0.5, 1, 1, 1]))]
    for number, loss in enumerate(risen):
        chart.put(25 * number + 24, "val_loss", loss + 1e-4 * number)
    found = Overfitting().check(chart)
    assert (found and found.severity) == severity


FACTS = {"loss.chance": 1.0, "zeroing.backwards": [1]}


def not_learning(losses, samples, optimizer="Adam", **facts):
    chart = Chart.of(loss=losses, lr=[1e-3] * len(losses), input_size=[8.0 * samples] * 5)
    chart.context["input_shape"] = [256, 8]
    chart.groups = [{"optimizer": optimizer}]
    chart.add({"type": "facts", "step": 0, "facts": FACTS | facts})
    symptom = NotLearning().check(chart)
    return symptom and symptom.severity


@pytest.mark.parametrize(
    ("samples", "passes", "optimizer", "severity"),
    [(1, 1, "Adam", None), (1, 8, "Adam", "warning"), (32, 1, "Adam", "warning"), (32, 1, "RAdam", None)],
    ids=["single samples", "of eight passes", "batches", "a slow start of its own"],
)
def test_steps_of_little_count_for_less(samples, passes, optimizer, severity):
    flat = 1.0 + 0.02 * RNG.standard_normal(120)
    assert not_learning(flat, samples, optimizer, **{"zeroing.backwards": [passes]}) == severity


@pytest.mark.parametrize(
    ("steps", "classes", "severity"),
    [(700, 1, "info"), (2400, 1, "warning"), (700, 3, "warning")],
    ids=["single labels", "for long", "several labels"],
)
def test_the_input_of_a_recurrent_loop_may_be_the_steps_of_one_sample(steps, classes, severity):
    chart = Chart.of(loss=1.0 + 0.02 * RNG.standard_normal(steps), lr=[1e-3] * steps, input_size=[8.0 * 7] * 5)
    chart.context["input_shape"] = [7, 8]
    chart.add({"type": "facts", "step": 0, "facts": FACTS})
    chart.put(steps - 1, "target_classes", classes)
    chart.put(steps - 1, "target_collision", 0.0)
    found = NotLearning().check(chart)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("level", "frozen", "severity"),
    [(0.94, 0.5, "info"), (0.94, 0.0, "warning"), (1.0, 0.5, "warning")],
    ids=["a head below a guess", "all of a model", "a head at a guess"],
)
def test_a_head_alone_may_learn_little(level, frozen, severity):
    losses = level + 0.01 * RNG.standard_normal(260)
    assert not_learning(losses, 32, **{"graph.frozen_share": frozen}) == severity


def single_samples(steps=120):
    """Most losses alike, the rest far below, as of counts that are mostly zero."""
    losses = np.where(np.random.default_rng(1).random(steps) < 0.3, -2.0, 1.0)
    losses[:5], losses[70:80] = -2.0, 1.05
    losses[40:46] = -3.0
    return losses[:80]


def test_where_most_losses_are_alike_their_level_is_no_departure():
    assert LossDivergence().check(Chart.of(loss=single_samples())) is None
    learnt = np.concatenate([np.linspace(-1, -3, 30), np.full(40, -3.0), np.full(10, 1.05)])
    assert LossDivergence().check(Chart.of(loss=learnt)).severity in ("warning", "critical")


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (np.concatenate([single_samples(), single_samples()]), "info"),
        (np.concatenate([np.linspace(3, 1, 64), np.linspace(1, 3.5, 96)]), "warning"),
    ],
    ids=["single samples", "given back"],
)
def test_norms_that_swing_with_single_samples(losses, severity):
    norms = np.exp(2.5 * np.random.default_rng(2).standard_normal(160))
    assert GradientInstability().check(Chart.of(grad_norm=norms, loss=losses)).severity == severity
