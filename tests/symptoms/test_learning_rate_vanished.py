import numpy as np
import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.learning_rate_vanished import LearningRateVanished

T = np.arange(600)


def check(rates, losses=None):
    losses = np.full(len(rates), 2.0) if losses is None else losses
    return LearningRateVanished().check(Chart.of(lr=rates, loss=losses))


FALLING = 5 - 0.005 * T

SICK = {
    "cut while the loss fell": (np.where(T < 300, 1e-3, 0.0), FALLING),
    "a floor of nothing, for most of the run": (np.where(T < 200, 1e-3, 1e-9), None),
    "led to its end too early": (np.maximum(0, 1 - T / 150), None),
    "cut by ten again and again": (0.09 ** np.minimum(1.0 + T // 80, 9.0), None),
    "long runs": (np.repeat(np.where(T < 500, 1e-3, 0.0), 10), np.repeat(FALLING, 10)),
}


@pytest.mark.parametrize(("rates", "losses"), SICK.values(), ids=SICK)
def test_fires(rates, losses):
    symptom = check(rates, losses)
    assert symptom.severity == "warning"
    assert symptom.first_step == int(np.argmax(rates <= 1e-4 * rates.max()))


def test_it_is_said_within_fifty_steps_or_so():
    rates = np.where(T < 300, 1e-3, 0.0)
    assert check(rates[:340]) is None
    assert check(rates[:351]) is not None


def test_a_run_that_is_kept_going_after_its_schedule_is_a_note():
    assert check(np.maximum(0, 0.5 + 0.5 * np.cos(np.pi * np.minimum(T / 500, 1))), FALLING).severity == "info"
    assert check(np.where(T < 500, 1e-3, 1e-8)).severity == "info"


@pytest.mark.parametrize(("best", "severity"), [(30, "info"), (200, "warning")])
def test_a_rate_that_was_lowered_at_a_plateau_is_a_note(best, severity):
    """Validation was best after 30 steps; or it was still getting better when the rate went."""
    chart = Chart.of(lr=np.where(T < 200, 1e-2, 1e-8), loss=2 - 0.001 * np.minimum(T, 5))
    chart.context["scheduler"] = "ReduceLROnPlateau"
    for step in range(0, 600, 20):
        chart.put(step, "val_loss", 1 + abs(min(step, 200) - best) / 100)
    assert LearningRateVanished().check(chart).severity == severity


def test_milestones_in_epochs_and_steps_in_batches():
    rates = 0.1 ** (1 + 2 * (T >= 60).astype(float))
    losses = 5 - 0.02 * np.minimum(T, 60)
    symptom = check(rates, losses)
    assert symptom.severity == "warning"
    assert symptom.first_step == 60
    assert check(rates[:170], losses[:170]) is not None
    assert check(rates[:120], losses[:120]) is None


@pytest.mark.parametrize(("decay", "steps"), [(0.9, 60), (0.96, 110), (0.97, 140)])
def test_a_rate_that_halves_at_every_few_batches_is_said_soon(decay, steps):
    symptom = check(0.1 * decay ** T[:steps])
    assert (symptom.severity, symptom.first_step) == ("warning", 0)
    assert check(0.1 * decay ** T[: steps // 2]) is None
    assert check(0.1 * decay ** T[:steps], 5 * 0.9 ** T[:steps] + 0.1) is None or decay == 0.9  # it has arrived


@pytest.mark.parametrize(("every", "factor", "told"), [(10, 0.5, 10), (1, 0.9, 7), (20, 0.25, 10)])
def test_the_time_in_which_it_halves_is_that_between_cuts(every, factor, told):
    found = check(0.001 * factor ** (T[:100] // every))
    assert found.message.startswith(f"the learning rate halves every {told} steps, and fell from 0.001 to ")


def test_by_steps_of_some_batches_too():
    assert check(0.1 * 0.5 ** (T[:140] // 20)).severity == "warning"


def test_a_rate_that_ran_out_before_the_loss_had_begun_to_fall_is_a_warning_soon():
    rates = 0.5 + 0.5 * np.cos(np.pi * np.minimum(T[:480] / 400, 1))
    assert check(rates, 0.69 - 0.0001 * np.minimum(T[:480], 400)).severity == "warning"
    assert check(rates, 0.69 * 0.996 ** np.minimum(T[:480], 400)).severity == "info"


def test_a_third_of_the_run_without_a_rate_is_a_warning():
    rates = 0.5 + 0.5 * np.cos(np.pi * np.minimum(T[:320] / 200, 1))
    assert check(rates, 0.69 * 0.995 ** np.minimum(T[:320], 200)).severity == "warning"


HEALTHY = {
    "no readings": np.zeros(0),
    "constant": np.full(600, 1e-3),
    "never anything else": np.zeros(600),
    "a warm-up from zero": np.minimum(1e-3, 1e-5 * T),
    "a cosine to zero": 0.5 + 0.5 * np.cos(np.pi * np.arange(20_000) / 20_000),
    "a line to zero": 1 - np.arange(5_000) / 5_000,
    "ends at zero": np.where(T < 570, 1e-3, 0.0),
    "step decay": 0.1 ** (1 + T // 150),
    "a decay in the last third": np.where(T < 400, 0.1, 1e-3),
    "a decay at half": np.where(T < 300, 0.1, 1e-4),
    "a slow decay at every batch": 0.1 * 0.995**T,
    "a power of a line": (1 - T / 600) ** 3,
    "a decay at a few milestones": 0.3 ** (T // 120 + 1.0),
    "restarts": 0.5 + 0.5 * np.cos(np.pi * (T % 100) / 100),
}


@pytest.mark.parametrize("rates", HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(rates):
    assert check(rates) is None


@pytest.mark.parametrize(("interval", "severity"), [(0, "warning"), (1, "info")])
def test_a_scheduler_stepped_at_each_micro_batch_is_a_warning_at_once(interval, severity):
    rates = np.maximum(0, 0.5 + 0.5 * np.cos(np.pi * np.minimum(T / 200, 1)))[:260]
    chart = Chart.of(lr=rates, loss=np.full(260, 2.0))
    chart.add({"type": "facts", "step": 8, "facts": {"schedule.interval": interval}})
    assert LearningRateVanished().check(chart).severity == severity


def test_a_rate_below_zero_is_critical():
    found = check(1 - T[:330] / 300)
    assert (found.severity, found.first_step) == ("critical", 300)


@pytest.mark.parametrize(("offset", "severity"), [(-1, None), (9, "warning")])
def test_a_rate_that_is_lowered_after_validations_is_not_stepped_by_batches(offset, severity):
    chart = Chart()
    for step in range(140):
        chart.add({"type": "vitals", "step": step, "vitals": {"loss": 2.0, "lr": 0.1 * 0.5 ** (step // 20)}})
        if (step - offset) % 20 == 0:
            chart.add({"type": "validation", "step": step, "vitals": {"val_loss": 2.0}})
    symptom = LearningRateVanished().check(chart)
    assert (symptom and symptom.severity) == severity
