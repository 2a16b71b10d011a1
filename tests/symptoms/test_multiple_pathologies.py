from torchdoctor.chart import Chart
from torchdoctor.records import Symptom
from torchdoctor.symptoms.multiple_pathologies import MultiplePathologies


def check(*found):
    chart = Chart.of(loss=[1.0] * 200)
    for name, severity, last_step in found:
        chart.open_episodes[name] = Symptom(name, "", severity, 0.9, last_step, last_step)
    return MultiplePathologies().check(chart)


def test_two_at_once():
    symptom = check(("loss-spike", "warning", 199), ("gradient-explosion", "critical", 190))
    assert symptom.severity == "info"
    assert "2 findings at once: gradient-explosion, loss-spike" in symptom.message


def test_stays_silent():
    assert check() is None
    assert check(("loss-spike", "critical", 199)) is None
    assert check(("loss-spike", "warning", 199), ("loss-plateau", "info", 199)) is None
    assert check(("loss-spike", "warning", 199), ("overfitting", "warning", 100)) is None
    assert check(("loss-spike", "warning", 199), ("multiple-pathologies", "info", 199)) is None
