import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.gradient_explosion import GradientExplosion

STEADY = [1.0, 1.2, 0.9, 1.1] * 16
RNG = np.random.default_rng(2)
NAN, INF = float("nan"), float("inf")

SICK = {
    "one leap": [*STEADY, 20.0],
    "of a large norm": [1e5 * norm for norm in STEADY] + [2e6],
    "of a tiny norm": [1e-9 * norm for norm in STEADY] + [2e-8],
    "of a constant norm": [1.0] * 64 + [20.0],
    "on a noisy run": [*np.exp(0.3 * np.random.default_rng(0).standard_normal(128)), 20.0],
    "built up over three steps": [*STEADY, 3.9, 9.9],
    "after a NaN": [*STEADY, NAN, INF, *STEADY, 20.0],
    "among swings that go down, not up": [*np.exp(-np.abs(1.3 * RNG.standard_normal(400))), 20.0],
    "among slow swings": [*np.exp(1.2 * np.sin(np.arange(300) / 9) + 0.1 * RNG.standard_normal(300)), 60.0],
    "after a violent start": [100.0 * 0.8**step + 1 for step in range(60)] + [20.0],
}
HEALTHY = {
    "no readings": [],
    "too short to judge": [*STEADY[:10], 80.0],
    "nan is nan-or-inf's business": [*STEADY, NAN],
    "infinity as well": [*STEADY, INF],
    "zero history": [0.0] * 64 + [1.0],
    "half of the steps without gradient": [0.0, 1.0] * 40 + [1.0],
    "slow growth": [1.05**step for step in range(200)],
    "heavy tails": [*np.exp(0.8 * np.random.default_rng(1).standard_normal(128)), 12.0],
    "heavy tails on one side": [*np.exp(0.8 * RNG.exponential(size=400)), 60.0],
    "three times as much": [*STEADY, 3.0],
    "a level shift, two weeks on": [*STEADY, *[20.0] * 64],
}


@pytest.mark.parametrize("norms", SICK.values(), ids=SICK)
def test_fires(norms):
    symptom = GradientExplosion().check(Chart.of(grad_norm=norms))
    assert symptom is not None
    assert (symptom.severity, symptom.first_step) == ("warning", len(norms) - 1)


@pytest.mark.parametrize("norms", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(norms):
    assert GradientExplosion().check(Chart.of(grad_norm=norms)) is None


def test_a_rare_jump_is_a_habit_once_it_has_come_three_times():
    """Far apart: none of the earlier ones is among the last few hundred norms."""
    norms = STEADY * 12
    rare = [*norms, 15.0, *norms, 15.0, *norms, 15.0, *norms, 12.0]
    assert GradientExplosion().check(Chart.of(grad_norm=rare)).severity == "info"
    twice = [*norms, 15.0, *norms, 15.0, *norms, *norms, 12.0]
    assert GradientExplosion().check(Chart.of(grad_norm=twice)).severity == "warning"


@pytest.mark.parametrize(("left", "severity"), [(0.02, "info"), (0.8, "warning")])
def test_with_a_clip_the_last_wrong_samples_of_a_nearly_solved_run_are_info(left, severity):
    norms, losses = [0.1 * norm for norm in STEADY * 2], list(np.geomspace(2.0, 2.0 * left, 128))
    chart = Chart.of(grad_norm=[*norms, 4.0], loss=losses, clip=[1.0] * 129)
    chart.groups = [{"optimizer": "AdamW"}]
    assert GradientExplosion().check(chart).severity == severity


@pytest.mark.parametrize(("others", "severity"), [(1.0, "info"), (8.0, "warning")])
def test_with_adam_a_jump_of_few_tensors_is_info_until_the_loss_is_hurt(others, severity):
    chart = Chart.of(grad_norm=[*STEADY, 12.0], loss=[2.0, 2.1, 1.9] * 21 + [2.0, 2.1])
    chart.add({"type": "header", "step": 0, "tensors": ["first", "second", "third"]})
    chart.groups = [{"optimizer": "AdamW"}]
    for step, row in ((32, [1.0, 0.1, 0.1]), (64, [9.0, 0.1 * others, 0.1 * others])):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": row}})
    assert GradientExplosion().check(chart).severity == severity


def test_a_smaller_outlier_is_a_note_until_the_loss_is_hurt():
    chart = Chart.of(grad_norm=[*STEADY, 5.0], loss=[2.0] * 65)
    assert GradientExplosion().check(chart).severity == "info"
    chart.open_episodes["loss-spike"] = Symptom("loss-spike", "LO01", "warning", 0.9, 63, 64)
    assert GradientExplosion().check(chart).severity == "warning"


@pytest.mark.parametrize(("loss", "severity"), [(2e-3, "info"), (1e-5, "warning")])
def test_a_leap_that_the_loss_explains_and_survives_is_a_note(loss, severity):
    """A target network is renewed in a run that has arrived: new targets, and a loss that is still next to nothing."""
    falling = [max(0.5 * 0.7**step, 1e-5) for step in range(128)]
    chart = Chart.of(grad_norm=[*STEADY, *STEADY, 60.0], loss=[*falling, loss])
    assert GradientExplosion().check(chart).severity == severity


@pytest.mark.parametrize(("loss", "severity"), [(0.012, "info"), (0.1, "info"), (0.001, "warning")])
def test_one_sample_that_is_not_fitted_yet_is_a_note(loss, severity):
    """Norms and losses of a run that has fitted nearly all: both rise together, or the norm alone."""
    falling = [max(0.5 * 0.7**step, 1e-3) for step in range(128)]
    norms = 20.0 if loss < 0.05 else 200.0
    chart = Chart.of(grad_norm=[*STEADY, *STEADY, norms], loss=[*falling, loss])
    assert GradientExplosion().check(chart).severity == severity


@pytest.mark.parametrize(("optimizer", "severity"), [("Rprop", "info"), ("Lion", "info"), ("SGD", "warning")])
def test_the_size_of_a_gradient_whose_signs_are_taken_is_a_note(optimizer, severity):
    chart = Chart.of(grad_norm=[*STEADY, 40.0], loss=[1.0] * 65)
    chart.groups = [{"optimizer": optimizer}]
    assert GradientExplosion().check(chart).severity == severity


@pytest.mark.parametrize(("leap", "severity"), [(8.0, "info"), (20.0, "warning")])
def test_norms_that_grow_while_a_young_run_takes_off_are_a_note(leap, severity):
    norms = [
        0.28,
        0.3,
        0.27,
        0.32,
        0.28,
        0.26,
        0.3,
        0.28,
        0.3,
        0.32,
        0.4,
        0.48,
        0.57,
        0.63,
        0.8,
        0.8,
        1.1,
        1.6,
        1.8,
        2.7,
    ]
    losses = [2.3 - 0.005 * step for step in range(10)] + [2.2 - 0.12 * step for step in range(10)]
    chart = Chart.of(grad_norm=[*norms, leap], loss=[*losses, 1.5])
    assert GradientExplosion().check(chart).severity == severity


def test_among_wide_swings_the_loss_says_which_leap_did_harm():
    """The leap of two steps ago is within what this run is used to; the loss that followed it is not."""
    norms = [*np.exp(0.9 * np.random.default_rng(5).standard_normal(200)), 30.0, 3.0, 1.0]
    chart = Chart.of(grad_norm=norms, loss=[2.0] * 203)
    assert GradientExplosion().check(chart) is None
    chart.open_episodes["loss-spike"] = Symptom("loss-spike", "LO01", "warning", 0.9, 201, 202)
    found = GradientExplosion().check(chart)
    assert (found.severity, found.first_step, found.value) == ("warning", 200, 30.0)


@pytest.mark.parametrize(("trunk", "fires"), [([NAN] * 8, False), ([1.0] * 8, True)])
def test_a_trunk_that_is_released_is_no_explosion(trunk, fires):
    chart = Chart.of(grad_norm=[*STEADY, 20.0])
    chart.names = ("trunk", "head")
    for number, norm in enumerate([*trunk, 20.0]):
        chart.add({"type": "tensors", "step": 8 * (number + 1) - 8, "vitals": {"grad_norm": [norm, 1.0]}})
    assert (GradientExplosion().check(chart) is not None) == fires


def test_divergence_with_it_is_critical():
    chart = Chart.of(grad_norm=[*STEADY, 50.0], loss=[2.0] * 65)
    chart.open_episodes["loss-divergence"] = Symptom("loss-divergence", "LO02", "warning", 0.9, 63, 64)
    assert GradientExplosion().check(chart).severity == "critical"


def test_twice_the_norm_is_enough_after_a_leap_of_the_learning_rate():
    norms = [*STEADY, 1.0, 2.8]
    assert GradientExplosion().check(Chart.of(grad_norm=norms, lr=[1e-3] * 66)) is None
    assert GradientExplosion().check(Chart.of(grad_norm=norms, lr=[1e-3] * 65 + [0.1])) is not None


def with_tensors(rows, names=("first", "second", "third")):
    chart = Chart()
    chart.add({"type": "header", "step": 0, "tensors": list(names)})
    for step, norm in enumerate([*STEADY, 20.0]):
        if step % 16 == 0 or step == 64:
            chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": rows[step == 64]}})
        chart.add({"type": "vitals", "step": step, "vitals": {"grad_norm": norm}})
    return GradientExplosion().check(chart)


def test_says_where():
    assert with_tensors([[0.1, 1.0, 0.5], [0.1, 20.0, 0.6]]).where == ("second",)
    everywhere = with_tensors([[0.1, 1.0, None], [2.0, 20.0, None]])
    assert set(everywhere.where) == {"first", "second"}
    assert "across most tensors" in everywhere.message


def test_mentions_the_clip():
    chart = Chart.of(grad_norm=[*STEADY, 20.0], clip=[1.0] * 65)
    assert "(clipped to 1)" in GradientExplosion().check(chart).message


@pytest.mark.parametrize(("usual", "facts"), [([2.0] * 64, {}), ([*STEADY], {"zeroing.kept": [3]})])
def test_a_constant_norm_that_was_taken_for_a_clip_is_not_quoted(usual, facts):
    chart = Chart.of(clip=[2.0])
    chart.add({"type": "facts", "step": 0, "facts": facts})
    for step, norm in enumerate([*usual, 40.0]):
        chart.add({"type": "vitals", "step": step, "vitals": {"grad_norm": norm}})
    message = GradientExplosion().check(chart).message
    assert "jumped to 40" in message and "clipped" not in message


def test_a_warm_restart_lifts_the_norm():
    rates = [*np.linspace(0.1, 1e-4, 60), *[0.1] * 5]
    assert GradientExplosion().check(Chart.of(grad_norm=[*STEADY, 8.0], lr=rates)).severity == "info"
    assert GradientExplosion().check(Chart.of(grad_norm=[*STEADY, 8.0], lr=[0.1] * 65)).severity == "warning"
    assert GradientExplosion().check(Chart.of(grad_norm=[*STEADY, 20.0], lr=rates)).severity == "warning"


def swinging(seed: int, count: int = 400) -> tuple[list[float], list[float]]:
    """Losses of easy and hard batches, and gradient norms that follow them with a little noise of their own."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0.0, 1.0, count)
    return list(np.exp(difficulty)), list(np.exp(0.7 * difficulty + rng.normal(0.0, 0.15, count)))


@pytest.mark.parametrize("seed", range(5))
def test_wide_swings_alone_are_silent(seed):
    losses, norms = swinging(seed)
    for end in range(100, 400, 7):
        found = GradientExplosion().check(Chart.of(loss=losses[:end], grad_norm=norms[:end]))
        assert found is None or found.severity == "info"


@pytest.mark.parametrize(("times", "severity"), [(6.5, None), (60.0, "warning")])
def test_norms_that_were_calm_at_first_may_swing_later(times, severity):
    """Errors of one sign give one gradient, until some samples are above and some below."""
    rng = np.random.default_rng(3)
    norms = np.concatenate([6.6 + 0.1 * rng.standard_normal(140), 2.5 * np.exp(0.45 * rng.standard_normal(110))])
    norms[-4:] = 2.5
    chart = Chart.of(grad_norm=[*norms, 2.5 * times], loss=1 + 0.1 * rng.standard_normal(251))
    chart.groups = [{"optimizer": "Adam"}]
    found = GradientExplosion().check(chart)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(
    ("optimizer", "clip", "severity"), [("SGD", [], "warning"), ("AdamW", [], "info"), ("SGD", [1.0], "info")]
)
def test_a_leap_of_a_young_run_that_does_no_harm_is_a_note_where_it_is_held(optimizer, clip, severity):
    chart = Chart.of(grad_norm=[1.0, 1.2, 0.9, 1.1] * 8 + [18.0], loss=[3.0] * 33, clip=clip)
    chart.groups = [{"optimizer": optimizer}]
    assert GradientExplosion().check(chart).severity == severity


@pytest.mark.parametrize(("precedents", "severity"), [(3, "info"), (2, "warning")])
def test_three_norms_as_high_are_a_habit(precedents, severity):
    norms = [*STEADY, *STEADY]
    for number in range(precedents):
        norms[40 + 21 * number] = 16.0
    assert GradientExplosion().check(Chart.of(grad_norm=[*norms, 20.0])).severity == severity


@pytest.mark.parametrize(("losses", "severity"), [([0.5] * 128 + [5.0], "info"), ([0.5] * 128 + [0.55], "warning")])
def test_a_leap_that_came_with_the_loss_is_the_losss_matter(losses, severity):
    assert GradientExplosion().check(Chart.of(grad_norm=[*STEADY, *STEADY, 20.0], loss=losses)).severity == severity


@pytest.mark.parametrize(("before", "severity"), [([2.0, 3.0, 5.0, 8.0], "info"), ([1.0, 1.0, 1.0, 1.0], "warning")])
def test_norms_that_grow_towards_it_are_a_note_where_the_step_is_held(before, severity):
    chart = Chart.of(grad_norm=[*STEADY, *STEADY, *before, 20.0], loss=[2.0] * 133)
    chart.groups = [{"optimizer": "AdamW"}]
    assert GradientExplosion().check(chart).severity == severity


def arrived(optimizer, leap, loss, level=0.01):
    """A run that has learnt what it can, with norms that have fallen to a level, and then one leap."""
    step = np.arange(600)
    losses = 0.9 + 5.6 * np.exp(-step / 40) + 1e-4 * RNG.standard_normal(600)
    norms = np.where(step < 200, 1.0, level) * np.exp(0.1 * RNG.standard_normal(600))
    chart = Chart.of(loss=[*losses, loss], grad_norm=[*norms, leap])
    chart.groups = [{"optimizer": optimizer}]
    return chart


ARRIVED = {
    "the gain is hardly touched": (("AdamW", 0.5, 0.93), "info"),
    "nothing holds the step, and it learnt with such": (("SGD", 0.5, 0.93), "info"),
    "nothing holds the step": (("SGD", 5.0, 0.93), "warning"),
    "norms are those it learnt with": (("AdamW", 50.0, 0.93, 1.0), "warning"),
}


@pytest.mark.parametrize(("made", "severity"), ARRIVED.values(), ids=ARRIVED)
def test_a_leap_from_next_to_nothing(made, severity):
    assert GradientExplosion().check(arrived(*made)).severity == severity


def test_a_leap_from_next_to_nothing_is_a_warning_once_the_loss_is_hurt():
    chart = arrived("AdamW", 0.5, 3.0)
    chart.open_episodes["loss-spike"] = Symptom("loss-spike", "LO01", "warning", 0.9, 600, 600)
    assert GradientExplosion().check(chart).severity == "warning"


@pytest.mark.parametrize(
    ("hard", "times", "severity"),
    [
        pytest.param(1.0, 20.0, "warning", id="multiplied"),
        pytest.param(0.3, 20.0, "warning", id="an easy batch, multiplied"),
        pytest.param(20.0, 1.0, None, id="a hard batch"),
        pytest.param(1.0, 3.0, None, id="hardly more"),
    ],
)
def test_where_norms_follow_the_loss_of_their_batch_what_does_not_is_found(hard, times, severity):
    """Small batches near the end: norms swing by a hundred, and so do losses."""
    rng = np.random.default_rng(0)
    losses = np.exp(1.2 * rng.standard_normal(300))
    losses[-1] = hard
    norms = losses * np.exp(0.2 * rng.standard_normal(300))
    norms[-1] = times * hard
    chart = Chart.of(loss=losses, grad_norm=norms)
    chart.groups = [{"optimizer": "AdamW"}]
    found = GradientExplosion().check(chart)
    assert (found.severity if found and found.severity != "info" else None) == severity


@pytest.mark.parametrize(("collision", "severity"), [(0.0, "info"), (1.0, "warning")])
def test_a_rare_error_of_one_sample_whose_loss_is_not_logged(collision, severity):
    chart = Chart.of(grad_norm=[*STEADY, *STEADY, 20.0], loss=[0.5] * 64)
    chart.put(chart.step, "target_top_share", 1.0)
    chart.put(chart.step, "target_collision", collision)
    assert GradientExplosion().check(chart).severity == severity


SHORT = {"batch_size": 64, "epoch_batches": 65, "last_batch": 8}


@pytest.mark.parametrize(
    ("context", "norm", "found"),
    [
        (SHORT, 7.5, False),
        (SHORT, 9.0, True),
        (SHORT | {"last_batch": 32}, 7.5, True),
        (SHORT | {"epoch_batches": 60}, 7.5, True),
        ({"batch_size": 64}, 7.5, True),
    ],
    ids=["of an eighth", "more than that", "of a half", "in the middle of an epoch", "of an unknown size"],
)
def test_the_short_last_batch_of_an_epoch_may_be_noisier(context, norm, found):
    chart = Chart.of(grad_norm=[*STEADY, norm], context=context)
    assert (GradientExplosion().check(chart) is not None) == found


@pytest.mark.parametrize(("loss", "size", "fires"), [(0.0, 1e-10, False), (1e-3, 1e-10, True), (0.0, 0.1, True)])
def test_beside_a_loss_of_exactly_zero_a_tiny_norm_is_nothing(loss, size, fires):
    norms = [1.0, 0.5, *[size * norm for norm in STEADY], 30 * size]
    chart = Chart.of(grad_norm=norms, loss=[2.0, 1.0, *[loss] * 65])
    assert (GradientExplosion().check(chart) is not None) is fires


@pytest.mark.parametrize(("norm", "grave"), [(0.3, False), (5.0, True)], ids=["as while it learned", "as never before"])
def test_a_sample_that_a_nearly_solved_run_still_gets_wrong(norm, grave):
    rng = np.random.default_rng(0)
    losses = np.maximum(1.1 * 0.97 ** np.arange(600), 0.002) * np.exp(0.2 * rng.standard_normal(600))
    norms = np.maximum(0.5 * 0.98 ** np.arange(600), 0.01) * np.exp(0.4 * rng.standard_normal(600))
    chart = Chart.of(loss=[*losses, 0.0044], grad_norm=[*norms, norm])
    chart.groups = ({"optimizer": "Adam"},)
    found = GradientExplosion().check(chart)
    assert (found is not None and found.severity != "info") == grave
