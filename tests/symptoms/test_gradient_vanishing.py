import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.examination import Examination
from torchdoctor.settings import Settings
from torchdoctor.symptoms.gradient_vanishing import GradientVanishing

STEADY = [1.0, 1.2, 0.9, 1.1] * 16
FLAT = [2.0] * 64

SICK = {
    "one step": ([*STEADY, 1e-8], [*FLAT, 2.0]),
    "exactly zero": ([*STEADY, 0.0], [*FLAT, 2.0]),
    "of a large norm": ([1e4 * norm for norm in STEADY] + [1e-4], [*FLAT, 2.0]),
    "of a tiny norm": ([1e-6 * norm for norm in STEADY] + [1e-14], [*FLAT, 2.0]),
    "without a loss": ([*STEADY, 1e-8], []),
    "negative loss": ([*STEADY, 1e-8], [-900.0] * 65),
}
HEALTHY = {
    "no readings": ([], []),
    "too short to judge": ([*STEADY[:10], 1e-8], FLAT[:11]),
    "nan": ([*STEADY, float("nan")], [*FLAT, 2.0]),
    "a hundredth": ([*STEADY, 0.01], [*FLAT, 2.0]),
    "the loss fell with it": ([*STEADY, 0.0], [*FLAT, 0.0]),
    "nothing left to learn": ([*STEADY, 1e-8], [*FLAT, 1e-4]),
    "convergence": ([0.9**step for step in range(300)], [2 * 0.9**step for step in range(300)]),
    "convergence to a floor": ([0.9**step for step in range(300)], [1 + 0.9**step for step in range(300)]),
}


@pytest.mark.parametrize(("norms", "losses"), SICK.values(), ids=SICK)
def test_fires(norms, losses):
    symptom = GradientVanishing().check(Chart.of(grad_norm=norms, loss=losses))
    assert symptom is not None
    assert (symptom.severity, symptom.first_step) == ("warning", len(norms) - 1)


@pytest.mark.parametrize(("norms", "losses"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(norms, losses):
    assert GradientVanishing().check(Chart.of(grad_norm=norms, loss=losses)) is None


def deep(factors, updates=None, samples=6, names=None):
    """A chart of a deep stack, whose last record is a sample of its tensors."""
    rng = np.random.default_rng(0)
    names = names or [f"layers.{index}.{kind}" for index in range(len(factors)) for kind in ("weight", "bias")]
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": names})
    for step in range(samples):
        norms = np.repeat(factors, 2) * np.exp(0.3 * rng.standard_normal(2 * len(factors)))
        vitals = {"grad_norm": norms.tolist(), "weight_norm": [1.0, 0.0] * len(factors)}
        if updates is not None:
            vitals["update_ratio"] = np.repeat(updates, 2).tolist()
        chart.add({"type": "tensors", "step": 50 * step, "vitals": vitals})
        if step < samples - 1:
            chart.add({"type": "vitals", "step": 50 * step, "vitals": {"grad_norm": 1.0}})
    return GradientVanishing().check(chart)


DECAY = 4.0 ** np.arange(-9, 1)


def test_decay_through_depth():
    symptom = deep(DECAY, 1e-3 * DECAY)
    assert symptom.severity == "warning"
    assert symptom.where == ("layers.0.weight", "layers.1.weight", "layers.2.weight")
    assert "powers of ten from the last to the first of 10 layers" in symptom.message


def test_decay_whose_consequence_is_not_known_is_a_note():
    assert deep(DECAY).severity == "info"


def test_healthy_depth():
    assert deep(np.ones(10), 1e-3 * np.ones(10)) is None
    assert deep(DECAY, 1e-3 * np.ones(10)) is None, "Adam moves the early layers all the same"
    assert deep(DECAY[::-1], 1e-3 * DECAY[::-1]) is None, "early layers with larger gradients"
    assert deep(DECAY, 1e-3 * DECAY, samples=3) is None, "not yet persistent"
    assert deep(DECAY[-4:], 1e-3 * DECAY[-4:]) is None, "too shallow for a line"
    scaled = np.where(np.arange(10) == 4, 1e-7, 1.0)
    assert deep(scaled, 1e-3 * scaled) is None, "one zero-initialized branch"


def test_a_step_that_was_thrown_away_because_its_loss_was_not_finite():
    norms = [*[0.4, 0.45, 0.5] * 30, 0.0]
    assert GradientVanishing().check(Chart.of(grad_norm=norms, loss=[1.0] * 91)) is not None
    assert GradientVanishing().check(Chart.of(grad_norm=norms, loss=[*[1.0] * 90, float("nan")])) is None


def test_decay_through_depth_is_one_episode_however_far_apart_the_samples():
    names = [f"layers.{place}.weight" for place in range(10)]
    examination = Examination(Settings())
    examination.take({"type": "header", "step": 0, "tensors": names})
    for step in range(1200):
        if step % 150 == 0:
            vitals = {"grad_norm": DECAY.tolist(), "weight_norm": [1.0] * 10, "update_ratio": (1e-3 * DECAY).tolist()}
            examination.take({"type": "tensors", "step": step, "vitals": vitals})
        examination.take({"type": "vitals", "step": step, "vitals": {"grad_norm": 1.0 + step % 3 / 10}})
    assert [item.name for item in examination.chart.episodes] == ["gradient-vanishing"]


@pytest.mark.parametrize(
    ("optimizer", "decay", "fires"), [("Adam", 5e-4, True), ("Adam", 0.0, False), ("AdamW", 5e-4, False)]
)
def test_decay_that_adam_blows_up_is_no_learning(optimizer, decay, fires):
    names = [f"layers.{index}.weight" for index in range(12)]
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": names})
    chart.add({"type": "groups", "step": 0, "groups": [{"optimizer": optimizer, "lr": 0.01, "weight_decay": decay}]})
    for step in range(6):
        norms = [10.0 ** (index - 12) for index in range(12)]
        row = {"grad_norm": norms, "weight_norm": [1.0] * 12, "update_ratio": [0.02] * 12}
        chart.add({"type": "tensors", "step": 50 * step, "vitals": row})
        if step < 5:
            chart.add({"type": "vitals", "step": 50 * step, "vitals": {"grad_norm": 1.0}})
    found = GradientVanishing().check(chart)
    assert (found is not None and found.message.endswith("only weight decay moves the early weights")) is fires


def test_a_critic_whose_margins_are_all_kept_has_nothing_to_learn_from_a_batch():
    sides = [{"class": "Adam"}, {"class": "Adam"}]
    players = Chart.of(grad_norm=[*STEADY, 0.0], d_loss=[*FLAT, 2.0], g_loss=[*FLAT, 2.0], context={"optimizer": sides})
    assert GradientVanishing().check(players) is None
    alone = Chart.of(grad_norm=[*STEADY, 0.0], loss=[*FLAT, 2.0])
    assert GradientVanishing().check(alone).severity == "warning"


def followed(norm, loss=lambda step: 2.0, steps=600, moved=None, preset="default"):
    """The episodes of a run whose norm and loss are functions of the step; `moved` is its update ratio, if sampled."""
    rng = np.random.default_rng(0)
    examination = Examination(Settings.load({"preset": preset}))
    examination.take({"type": "header", "step": 0, "tensors": ["weight"]})
    for step in range(steps):
        if moved is not None and step % 25 == 0:
            examination.take({"type": "tensors", "step": step, "vitals": {"update_ratio": [moved(step)]}})
        vitals = {"loss": loss(step), "grad_norm": norm(step) * np.exp(0.2 * rng.standard_normal())}
        examination.take({"type": "vitals", "step": step, "vitals": vitals})
    return [item for item in examination.chart.episodes if item.name == "gradient-vanishing"]


def from_200_on(before, after):
    return lambda step: before if step < 200 else after


def test_a_collapse_lasts_as_long_as_norms_stay_collapsed():
    (episode,) = followed(from_200_on(1.0, 1e-8))
    assert (episode.first_step, episode.last_step, episode.count) == (200, 599, 400)
    (episode,) = followed(from_200_on(1.0, 1e-8), moved=from_200_on(1e-3, 1e-11))
    assert episode.last_step == 599
    (episode,) = followed(lambda step: 1e-8 if 200 <= step < 300 else 1.0)
    assert (episode.first_step, episode.last_step) == (200, 299)
    (episode,) = followed(lambda step: 1e-8 if step == 200 else 1.0)
    assert (episode.first_step, episode.last_step) == (200, 200)


@pytest.mark.parametrize(
    "learns",
    [
        {"loss": lambda step: 2 * 0.5 ** (max(0, step - 200) / 50)},
        {"moved": from_200_on(1e-3, 9e-4)},
    ],
    ids=["the loss goes on falling", "weights move as far as before"],
)
def test_a_collapse_is_over_where_the_run_learns_without_it(learns):
    (episode,) = followed(from_200_on(1.0, 1e-8), **learns)
    assert episode.first_step == 200 and episode.last_step < 400


def test_convergence_after_a_collapse_is_no_part_of_it():
    (episode,) = followed(lambda step: 1e-8 if step == 200 else 0.97**step)
    assert episode.last_step == 200


@pytest.mark.parametrize(("policy", "value", "fires"), [(0.0, None, False), (-0.3, None, True), (0.0, 0.5, True)])
def test_a_policy_whose_rewards_are_all_equal_has_no_gradient_at_that_step(policy, value, fires):
    losses = {"policy_loss": [-0.3] * 64 + [policy]} | ({} if value is None else {"value_loss": [value] * 65})
    assert (GradientVanishing().check(Chart.of(grad_norm=[*STEADY, 0.0], **losses)) is not None) is fires
