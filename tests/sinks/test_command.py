"""`torchdoctor diagnose RUN --send SINK`: for the jobs of the night."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from torchdoctor.cli import group
from torchdoctor.journal import Journal


@pytest.fixture
def runs(tmp_path):
    for name, last in (("sick", "NaN"), ("healthy", 0.9)):
        with Journal(tmp_path / name, {"type": "header", "schema": 1}) as journal:
            for step in range(60):
                journal.write({"type": "vitals", "step": step, "vitals": {"loss": 1.0 + step % 3 / 10}})
            journal.write({"type": "vitals", "step": 60, "vitals": {"loss": float(last)}})
    return tmp_path


def diagnose(*arguments):
    return CliRunner().invoke(group, ["diagnose", *map(str, arguments)])


def test_findings_are_sent_and_the_exit_code_is_that_of_the_diagnosis(runs):
    done = diagnose(runs / "sick", "--send", f"prometheus:{runs}/sick.prom")
    assert done.exit_code == 1
    text = (runs / "sick.prom").read_text()
    assert 'name="nan-or-inf",severity="critical"' in text
    assert f'torchdoctor_running{{run="{runs}/sick"}} 0' in text
    assert "Critical" in done.stdout


def test_a_healthy_run_needs_no_working_webhook(runs):
    assert diagnose(runs / "healthy", "--send", "webhook:http://127.0.0.1:9/x").exit_code == 0


def test_a_sink_that_does_not_take_it_is_an_error_after_the_report(runs, monkeypatch):
    monkeypatch.setattr("torchdoctor.sinks.PATIENCE", (0.0, 0.0))
    done = diagnose(runs / "sick", "--send", "slack:http://127.0.0.1:9/T0-SECRET")
    assert done.exit_code == 2
    assert "Critical" in done.stdout
    assert "the sink slack did not accept the report: Connection refused" in done.stderr
    assert "SECRET" not in done.output


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ("slak:x", "Did you mean 'slack'?"),
        ("slack:$TD_NOT_SET", "TD_NOT_SET for the sink slack is not set"),
        ("prometheus:x", "ending in .prom"),
        ("https://hooks.slack.com/services/T0-HIDDEN", "put the sink before the address: webhook:ADDRESS"),
        ("$TD_NOT_SET", "put the sink before the address: webhook:ADDRESS"),
    ],
)
def test_what_is_no_sink_is_refused(runs, sink, says):
    done = diagnose(runs / "sick", "--send", sink)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "HIDDEN" not in done.output


def test_what_a_sink_prints_does_not_stand_among_the_reports(runs, monkeypatch):
    def chatty(reports, sinks, least):
        print("uploading")
        return []

    monkeypatch.setattr("torchdoctor.sinks.send_all", chatty)
    done = diagnose(runs / "sick", "--format", "json", "--send", "slack:https://example.org/x")
    assert json.loads(done.stdout)["health"] == "critical" and "uploading" in done.stderr


def test_a_place_for_one_run_does_not_take_two(runs):
    done = diagnose(runs / "sick", runs / "healthy", "--send", f"prometheus:{runs}/a.prom")
    assert done.exit_code == 2
    assert "the sink prometheus takes one run at a time, not 2" in done.stderr
    assert not (runs / "a.prom").exists()


def test_a_configuration_file_that_came_with_the_run_sends_nothing(runs, monkeypatch):
    (runs / "torchdoctor.toml").write_text(f'sinks = ["prometheus:{runs}/planted.prom"]\n')
    monkeypatch.chdir(runs)
    assert diagnose(runs / "sick").exit_code == 1
    assert not (runs / "planted.prom").exists()
