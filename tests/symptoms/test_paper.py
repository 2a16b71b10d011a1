import pytest

from torchdoctor.chart import Chart
from torchdoctor.errors import SettingsError
from torchdoctor.settings import Settings
from torchdoctor.symptoms import build


def found(rule="either", validation=None, **vitals):
    chart = Chart.of(**vitals)
    if validation is not None:
        chart.put(chart.step, "val_loss", validation)
    checks = [detector.check(chart) for detector in build(Settings(preset="paper", rule=rule))]
    return {symptom.name: symptom for symptom in checks if symptom is not None}


STEADY = [1.0, 1.2, 0.9, 1.1] * 16
FALLING = [3 - 0.05 * step for step in range(50)]


@pytest.mark.parametrize(
    ("rule", "norm", "fires"),
    [
        ("fixed", 10.1, True),
        ("fixed", 10.0, False),
        ("fixed", 2.0, False),
        ("adaptive", 2.0, True),
        ("adaptive", 1.3, False),
        ("either", 2.0, True),
        ("either", 1.2, False),
    ],
)
def test_explosion(rule, norm, fires):
    assert ("gradient-explosion" in found(rule, grad_norm=[*STEADY, norm])) is fires


@pytest.mark.parametrize(
    ("rule", "norm", "fires"),
    [
        ("fixed", 0.9e-7, True),
        ("fixed", 1e-7, False),
        ("adaptive", 0.5, True),
        ("adaptive", 0.9, False),
        ("either", 0.5, True),
    ],
)
def test_vanishing(rule, norm, fires):
    assert ("gradient-vanishing" in found(rule, grad_norm=[*STEADY, norm])) is fires


def test_the_adaptive_rule_needs_its_window_and_never_goes_below_the_floor():
    assert "gradient-explosion" not in found("adaptive", grad_norm=[*STEADY[:40], 5.0])
    assert "gradient-vanishing" not in found("adaptive", grad_norm=[1.0, 9.0] * 30 + [0.01])


def test_instability():
    assert "gradient-instability" in found(grad_norm=[0.1] * 49 + [9.0])
    assert "gradient-instability" not in found(grad_norm=STEADY)


def test_losses():
    assert "loss-spike" in found("fixed", loss=[*FALLING, 1.2])
    assert "loss-spike" not in found("fixed", loss=[*FALLING, 1.0])
    assert "loss-spike" in found("adaptive", loss=[2.0, 2.1] * 25 + [2.5])
    assert "loss-divergence" in found(loss=[9.0, 10.1])
    assert "loss-divergence" not in found(loss=[9.0, 10.0])
    assert "loss-divergence" not in found("adaptive", loss=[9.0, 10.1])
    assert "loss-plateau" in found(loss=[1.0, 1.01] * 10)
    assert "loss-plateau" not in found(loss=[1.0, 1.03] * 10)


@pytest.mark.parametrize(("gap", "severity"), [(0.19, None), (0.3, "warning"), (0.6, "critical")])
def test_overfitting(gap, severity):
    symptom = found(loss=[1.0] * 60, validation=1.0 + gap).get("overfitting")
    assert (symptom.severity if symptom else None) == severity


def test_non_finite_values_are_found_and_enter_no_statistic():
    assert "nan-or-inf" in found(loss=[*FALLING, float("nan")])
    poisoned = found("adaptive", grad_norm=[*STEADY, float("nan"), float("inf"), 2.0])
    assert set(poisoned) == {"gradient-explosion"}


def test_the_rule_can_be_set_for_one_finding():
    settings = Settings(preset="paper", thresholds={"gradient-explosion": {"rule": "fixed"}})
    assert build(settings)[0].check(Chart.of(grad_norm=[*STEADY, 2.0])) is None
    with pytest.raises(SettingsError, match="must be 'either', 'fixed' or 'adaptive', not 'both'"):
        build(Settings(preset="paper", thresholds={"gradient-explosion": {"rule": "both"}}))


@pytest.mark.parametrize(
    ("name", "vitals", "says"),
    [
        ("gradient-explosion", {"grad_norm": [*STEADY, 2.0]}, "exceeds μ + 3σ = 1.38"),
        ("gradient-explosion", {"grad_norm": [*STEADY, 12.0]}, "exceeds 10"),
        ("gradient-vanishing", {"grad_norm": [*STEADY, 0.5]}, "is below μ - 3σ = 0.71"),
        ("loss-spike", {"loss": [*STEADY, 1.6]}, "exceeds μ + 3σ = 1.38"),
    ],
)
def test_messages_say_the_limit(name, vitals, says):
    assert says in found(**vitals)[name].message


def test_a_project_s_settings_bear_the_preset():
    """What the preset does not have need not be ignored; what cannot be, is said of the preset."""
    assert "loss-spike" not in {rule.name for rule in build(Settings(preset="paper", ignore=("dead-units", "LO01")))}
    with pytest.raises(SettingsError, match="the preset 'paper' has no finding 'dead-units'"):
        build(Settings(preset="paper", select=("dead-units",)))
    with pytest.raises(SettingsError, match=r"no threshold 'ratio' with the preset 'paper'. Known: k, limit"):
        build(Settings(preset="paper", thresholds={"gradient-explosion": {"ratio": 3}}))
    with pytest.raises(SettingsError, match="there is no finding 'dead-unit'"):
        build(Settings(preset="paper", ignore=("dead-unit",)))
