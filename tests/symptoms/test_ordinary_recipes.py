"""What tutorials and courses train: saddles, teachers, critics, fine-tuning; and what must still be found beside it."""

import math

import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.batch_anomaly import BatchAnomaly
from torchdoctor.symptoms.collapsed_output import CollapsedOutput
from torchdoctor.symptoms.data_starvation import DataStarvation
from torchdoctor.symptoms.not_learning import NotLearning
from torchdoctor.symptoms.overfitting import Overfitting
from torchdoctor.symptoms.progress import is_game
from torchdoctor.symptoms.slow_learning import SlowLearning
from torchdoctor.symptoms.update_ratio_abnormal import UpdateRatioAbnormal

RNG = np.random.default_rng(0)
TEN = math.log(10)


def at_a_guess(steps: int, deviations: list[float]) -> Chart:
    """A loss that stays at ln 10, while outputs differ over a batch by so much at each look."""
    chart = Chart.of(loss=TEN + 0.005 * RNG.standard_normal(steps), lr=[0.9] * steps)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": TEN}})
    for place, value in enumerate(deviations):
        chart.put(steps - 1 - 25 * (len(deviations) - 1 - place), "output_std", value)
    return chart


SADDLES = {
    "outputs differ by more at each look": (150, [3e-4, 4e-4, 5e-4, 8e-4], "info"),
    "the same, for very long": (450, [3e-4, 4e-4, 5e-4, 8e-4], "warning"),
    "by a little more": (150, [0.10, 0.11, 0.12, 0.13], "warning"),
    "now more, now less": (150, [0.1, 0.3, 0.1, 0.4], "warning"),
    "little, after they had collapsed": (150, [0.1, 3e-4, 4e-4, 5e-4, 8e-4], "warning"),
    "not known": (150, [], "warning"),
}


@pytest.mark.parametrize(("steps", "deviations", "severity"), SADDLES.values(), ids=SADDLES)
def test_a_saddle_is_left_by_growth(steps, deviations, severity):
    assert NotLearning().check(at_a_guess(steps, deviations)).severity == severity


@pytest.mark.parametrize(("deviations", "severity"), [([1e-2, 2e-2, 4e-2, 8e-2], "info"), ([0.08] * 4, "warning")])
def test_one_class_for_now(deviations, severity):
    chart = at_a_guess(260, deviations)
    for step in range(9, 260, 25):
        for name, value in {
            "prediction_top_share": 1.0,
            "pooled_classes": 10.0,
            "pooled_top_share": 0.11,
            "output_spread": 0.05,
            "guess_loss": TEN,
            "criterion": TEN + 0.003 * (-1) ** step,
        }.items():
            chart.put(step, name, value)
    assert CollapsedOutput().check(chart).severity == severity


@pytest.mark.parametrize(("lowest", "severity"), [(2.05, "info"), (2.29, "warning")], ids=["below a guess", "at it"])
def test_evaluations_that_fall_below_a_guess_count(lowest, severity):
    chart = at_a_guess(220, [])
    for place, step in enumerate(range(20, 220, 25)):
        chart.put(step, "guess_loss", TEN)
        chart.put(step, "criterion", TEN + 0.002 * (-1) ** place)
    for step, value in zip((49, 99, 149, 199), np.linspace(TEN + 0.03, lowest, 4), strict=True):
        chart.put(step, "val_loss", value)
    assert NotLearning().check(chart).severity == severity


def fine_tuned(start: float, fresh: float, signal: float, ratio: float = 1e-5) -> Chart:
    losses = start - 1e-4 * np.arange(250)
    chart = Chart.of(loss=losses, lr=[1e-5] * 250, weights_fresh=[fresh], course=[0.9] * 8, gradient_snr=[signal] * 8)
    chart.names = ("a.weight", "b.weight")
    for step in range(0, 250, 25):
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": [ratio, ratio]}})
    chart.add({"type": "facts", "step": 0, "facts": {"loss.chance": 4.6}})
    return chart


TUNED = {
    "a trained model that knows half": (2.5, 0.0, 0.0, 1e-5, False),
    "a new model there": (2.5, 1.0, 1.0, 1e-5, True),
    "a trained model at a guess": (4.5, 0.0, 1.0, 1e-5, True),
    "batches agree on nothing": (4.5, 0.5, 0.0, 1e-4, False),
    "batches agree": (4.5, 0.5, 1.0, 1e-4, True),
}


@pytest.mark.parametrize(("start", "fresh", "signal", "ratio", "sick"), TUNED.values(), ids=TUNED)
def test_gentle_steps_of_a_model_that_knows_something(start, fresh, signal, ratio, sick):
    found = SlowLearning().check(fine_tuned(start, fresh, signal, ratio))
    assert (found is not None and found.severity == "warning") == sick


@pytest.mark.parametrize(("trained", "severity"), [(0.33, None), (0.1, "warning")], ids=["above", "below"])
def test_a_lucky_evaluation_below_training(trained, severity):
    losses = np.concatenate([np.linspace(2.3, 1.2, 160), np.linspace(1.2, trained, 60)])
    chart = Chart.of(loss=losses)
    values = [2.2, 2.1, 1.7, 1.2, 0.87, 0.58, 0.35, 0.26, 0.25, 0.44, 0.45]
    for step, value in zip(range(19, 220, 20), values, strict=True):
        chart.put(step, "val_loss", value)
    found = Overfitting().check(chart)
    assert (found.severity if found and found.severity != "info" else None) == severity


@pytest.mark.parametrize(("worked", "severity"), [(0.006, "info"), (0.0015, "warning")], ids=["works", "waits"])
def test_a_teacher_before_the_forward_pass_is_no_wait(worked, severity):
    chart = Chart.of(seconds=[0.0132] * 200)
    for step in range(24, 200, 25):
        chart.put(step, "data_seconds", 0.0116)
        chart.put(step, "processor_seconds", worked * step)
    assert DataStarvation().check(chart).severity == severity


@pytest.mark.parametrize(("parts", "severity"), [(0.5, "info"), (0.0, "warning")], ids=["a critic", "sorted rows"])
def test_returns_that_a_critic_foretells(parts, severity):
    errors = 400 + 50 * RNG.standard_normal(500)
    chart = Chart.of(loss=(1 - parts) * errors + parts * 300 * RNG.standard_normal(500), lr=[1e-3] * 500)
    chart.add({"type": "facts", "step": 0, "facts": {"loss.kind": "mse"}})
    for place, step in enumerate(range(24, 500, 25)):
        chart.put(step, "criterion", float(errors[step]))
        chart.put(step, "target_std", 3.0)
        chart.put(step, "target_mean", 4.0 * place)
    assert BatchAnomaly().check(chart).severity == severity
    chart.context["batch_size"] = 2  # two differ less than all do
    assert BatchAnomaly().check(chart) is None


@pytest.mark.parametrize(("names", "plays"), [(("G", "D"), True), (("encoder", "decoder"), False)])
def test_players_are_known_by_their_names_where_one_loss_is_logged(names, plays):
    chart = Chart.of(loss=[1.4], context={"optimizer": [{}, {}]})
    chart.names = tuple(f"{name}.0.weight" for name in names)
    assert is_game(chart) == plays


@pytest.mark.parametrize("joins", [True, False], ids=["layers join", "steps are cut"])
def test_layers_that_join_at_a_lower_rate_shorten_no_steps(joins):
    chart = Chart.of(loss=2.3 - 1e-3 * np.arange(400), lr=[1e-3] * 400, course=[0.95] * 8)
    chart.names = ("a.weight", "b.weight", "head.weight")
    for step in range(0, 400, 25):
        late = step >= 200
        trunk = 1e-5 if late else math.nan
        ratios = [trunk, trunk, 1e-3] if joins else [1e-5 if late else 1e-3] * 3
        chart.add({"type": "tensors", "step": step, "vitals": {"update_ratio": ratios}})
    assert (UpdateRatioAbnormal().check(chart) is None) == joins


@pytest.mark.parametrize(("step", "severity"), [(0.0012, "info"), (0.0, "warning")], ids=["they part", "they stay"])
def test_embeddings_that_come_together_and_part_slowly(step, severity):
    chart = Chart.of(loss=[0.6] + [0.3] * 150)
    for place, value in enumerate([0.22, 0.1, 0.03, 0.0124, 0.0124, 0.0124 + step, 0.0124 + 2 * step]):
        chart.put(25 * place, "output_directions", value)
        chart.put(25 * place, "output_std", 0.1)
        chart.put(25 * place, "output_spread", 0.3)
    assert CollapsedOutput().check(chart).severity == severity


@pytest.mark.parametrize("names", [("d_loss", "g_loss"), ("loss", "other")], ids=["players", "sorted"])
def test_players_are_told_one_answer_a_batch(names):
    chart = Chart.of(**{name: [0.7] * 300 for name in names})
    for place, step in enumerate(range(0, 300, 15)):
        for vital, value in {"target_mean": float(place % 3 > 0), "target_std": 0.0, "target_min": 0.0}.items():
            chart.put(step, vital, value)
        chart.put(step, "target_max", 1.0)
    assert (BatchAnomaly().check(chart) is None) == (names[0] == "d_loss")
