"""optimizer-advice."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.optimizer_advice import OptimizerAdvice, shortened

ADAM = {"optimizer": "Adam", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}

SICK = {
    "Adam with weight decay": (ADAM | {"weight_decay": 0.01}, 0.0, 1e-3, "info"),
    "large eps, felt": (ADAM | {"eps": 0.1}, 0.9, 1e-6, "warning"),
    "large eps, not felt": (ADAM | {"eps": 0.1}, 0.9, 1e-3, "info"),
    "beta1": (ADAM | {"betas": [0.999, 0.999]}, 0.0, 1e-3, "info"),
    "betas in the wrong order": (ADAM | {"betas": [0.999, 0.9]}, 0.0, 1e-3, "warning"),
    "beta2": (ADAM | {"betas": [0.9, 0.5]}, 0.0, 1e-3, "info"),
    "momentum": ({"optimizer": "SGD", "momentum": 0.99, "weight_decay": 0.0}, 0.0, 1e-3, "info"),
    "decay that takes all": (ADAM | {"optimizer": "AdamW", "weight_decay": 50.0}, 0.0, 1e-3, "info"),
}
HEALTHY = {
    "Adam": ADAM,
    "AdamW": ADAM | {"optimizer": "AdamW", "weight_decay": 0.1},
    "RAdam that decouples": ADAM | {"optimizer": "RAdam", "weight_decay": 0.1, "decoupled_weight_decay": True},
    "beta2 of a language model": ADAM | {"betas": [0.9, 0.95]},
    "a GAN's beta1": ADAM | {"betas": [0.0, 0.9]},
    "SGD": {"optimizer": "SGD", "momentum": 0.9, "weight_decay": 5e-4},
    "something else": {"optimizer": "Shampoo", "betas": "adaptive", "eps": None},
}


def chart(group, share=0.0, ratio=1e-3, shrink=1.0):
    built = Chart.of(lr=[1e-3] * 100, adam_eps_share=[share])
    built.groups, built.names = [group], ("a.weight",)
    for step in range(5):
        rows = {"update_ratio": [ratio], "weight_norm": [shrink**step]}
        built.add({"type": "tensors", "step": 20 * step, "vitals": rows})
    return built


@pytest.mark.parametrize(("group", "share", "ratio", "severity"), SICK.values(), ids=SICK)
def test_fires(group, share, ratio, severity):
    assert OptimizerAdvice().check(chart(group, share, ratio)).severity == severity


@pytest.mark.parametrize("group", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(group):
    assert OptimizerAdvice().check(chart(group)) is None


@pytest.mark.parametrize(("decay", "last", "severity"), [(5.0, 2.8, "warning"), (5.0, 0.5, "info"), (0.5, 2.8, "info")])
def test_a_decay_that_keeps_the_loss_up(decay, last, severity):
    built = Chart.of(lr=[0.02] * 200, loss=[last + (3.5 - last) * 0.97**step for step in range(200)])
    built.groups = [ADAM | {"optimizer": "AdamW", "weight_decay": decay}]
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize("betas", [[0.9995, 0.9], [0.9995, 0.9999]])
def test_a_beta_near_one_is_not_rounded_to_it(betas):
    assert "0.9995" in OptimizerAdvice().check(chart(ADAM | {"betas": betas})).message


@pytest.mark.parametrize("group", [ADAM | {"betas": [0.999, 0.9999]}, ADAM | {"eps": 0.01}])
@pytest.mark.parametrize(("last", "severity"), [(2.8, "warning"), (0.5, "info")])
def test_what_keeps_the_loss_up_is_a_warning(group, last, severity):
    losses = [last + (3.5 - last) * 0.97**step for step in range(200)]
    built = Chart.of(lr=[1e-3] * 200, loss=losses, adam_eps_share=[0.95])
    built.groups = [group]
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize(("steps", "last", "severity"), [(99, 2.8, "warning"), (74, 2.8, "info"), (99, 0.5, "info")])
def test_what_keeps_the_loss_up_is_said_at_the_look_before_step_100(steps, last, severity):
    losses = [last + (3.5 - last) * 0.95**step for step in range(steps)]
    built = Chart.of(lr=[1e-3] * steps, loss=losses, adam_eps_share=[0.95])
    built.groups = [ADAM | {"eps": 0.01}]
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize(("momentum", "severity"), [(0.99, "warning"), (0.9, None)])
def test_a_long_momentum_beside_a_loss_that_leaves_is_a_warning(momentum, severity):
    built = Chart.of(lr=[0.1] * 100, loss=[2.0] * 100)
    built.groups = [{"optimizer": "SGD", "momentum": momentum}]
    built.open_episodes["loss-divergence"] = Symptom("loss-divergence", "LO02", "warning", 0.9, 95, 99)
    found = OptimizerAdvice().check(built)
    assert (found and found.severity) == severity


def test_each_group_is_judged_by_its_own_rate():
    built = Chart.of(**{"lr": [0.5] * 10, "lr/1": [1e-3] * 10})
    built.groups = [{"optimizer": "SGD", "weight_decay": 0.0}, {"optimizer": "AdamW", "weight_decay": 0.01}]
    assert OptimizerAdvice().check(built) is None


@pytest.mark.parametrize(
    ("kind", "slope", "severity"), [("mse", 0.1, "warning"), ("mse", -0.01, None), (None, 0.1, None)]
)
def test_a_loss_that_is_climbed(kind, slope, severity):
    built = chart(ADAM | {"maximize": True})
    built.add({"type": "facts", "step": 0, "facts": {"loss.kind": kind}})
    for step in range(20):
        built.put(step, "loss", 2.0 + slope * step)
    found = OptimizerAdvice().check(built)
    assert (found and found.severity) == severity


@pytest.mark.parametrize(("slope", "severity"), [(0.01, "warning"), (0.0, None)])
def test_a_loss_that_is_climbed_from_the_middle_on(slope, severity):
    built = chart(ADAM | {"maximize": True})
    built.add({"type": "facts", "step": 0, "facts": {"loss.kind": "bce"}})
    for step in range(164):
        fallen = 0.7 - 0.003 * min(step, 100) + slope * max(step - 100, 0) / 10
        built.put(step, "loss", fallen + 0.002 * (-1) ** step)
    found = OptimizerAdvice().check(built)
    assert (found and found.severity) == severity


def test_decay_that_is_felt_is_a_warning():
    group = ADAM | {"optimizer": "AdamW", "weight_decay": 50.0}
    assert OptimizerAdvice().check(chart(group, shrink=0.7)).severity == "warning"


@pytest.mark.parametrize(
    ("decay", "gradient", "severity"), [(0.5, 0.3, "warning"), (0.5, 5.0, "info"), (1e-4, 1e-5, "info")]
)
def test_decay_through_the_gradient_is_a_warning_where_it_outweighs_it(decay, gradient, severity):
    built = chart(ADAM | {"weight_decay": decay})
    for step in range(5):
        built.add({"type": "tensors", "step": 100 + step, "vitals": {"grad_norm": [gradient], "weight_norm": [1.0]}})
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize(("fall", "severity"), [(0.0, "warning"), (0.015, "info")])
def test_decay_that_takes_a_hundredth_a_step_is_a_warning_where_the_loss_stands_still(fall, severity):
    built = chart(ADAM | {"optimizer": "AdamW", "weight_decay": 10.0})
    for step in range(200):
        built.put(step, "loss", 3.3 - fall * step)
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize(
    ("momentum", "falls", "severity"), [(0.999, 0, "warning"), (0.999, 1, "info"), (0.99, 0, "info")]
)
def test_momentum_is_a_warning_where_the_loss_does_not_fall(momentum, falls, severity):
    built = chart({"optimizer": "SGD", "momentum": momentum, "weight_decay": 0.0})
    for step in range(200):
        built.put(step, "loss", 2.0 - 0.005 * falls * step + 0.05 * (step % 3))
    assert OptimizerAdvice().check(built).severity == severity


@pytest.mark.parametrize(("usual", "found"), [(1e-3, False), (0.2, True)])
def test_decay_is_not_blamed_for_what_a_leap_of_the_rate_makes_of_it(usual, found):
    built = chart(ADAM | {"optimizer": "AdamW", "weight_decay": 0.1, "lr": 0.2})
    for step in range(200):
        built.put(step, "lr", usual if step < 190 else 0.2)
    assert (OptimizerAdvice().check(built) is not None) == found


@pytest.mark.parametrize(("gradient", "decay", "fires"), [(1.0, 0.9, True), (1.0, 1e-3, False), (50.0, 0.9, False)])
def test_decay_through_the_gradient_of_other_adaptive_optimizers(gradient, decay, fires):
    chart = Chart.of(lr=[1e-3] * 10)
    chart.names = ("a.weight",)
    chart.groups = [{"optimizer": "RMSprop", "weight_decay": decay}]
    for step in (0, 1, 2, 4):
        chart.add({"type": "tensors", "step": step, "vitals": {"grad_norm": [gradient], "weight_norm": [3.0]}})
    found = OptimizerAdvice().check(chart)
    assert (found is not None) == fires
    assert not fires or found.severity == "warning"


@pytest.mark.parametrize(("eps", "said"), [(1.0, True), (1e-3, False), (1e-8, False)])
def test_an_eps_above_the_gradients_makes_the_steps_of_rmsprop_short(eps, said):
    assert bool(shortened({"optimizer": "RMSprop", "eps": eps}, 1e-3)) == said
