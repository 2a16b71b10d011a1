"""A live run with sinks: what reaches them, what the loop feels (nothing), and what is refused at the start."""

from __future__ import annotations

import random
import sys
import threading
import time

import numpy as np
import pytest
import torch
from tests.test_docs import PATIENT, ROOT, python_of, run

import torchdoctor
from torchdoctor import Doctor, Settings, SettingsError
from torchdoctor.sinks import SINKS, Subject, check_name, courier, open_sink

URL = "http://127.0.0.1:9/services/T0-SECRET-x7"


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(courier, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(courier, "PAUSES", (0.0, 0.0))


class Heard:
    """A sink that keeps everything, and fails at the n-th call."""

    def __init__(self, fails=None):
        self.records, self.report, self.fails, self.calls = [], None, fails, 0

    def take(self, records):
        self.records += records
        self._fail()

    def close(self, report):
        self.report = report
        self._fail()

    def _fail(self):
        self.calls += 1
        if self.fails in (self.calls, "always"):
            raise RuntimeError("this sink is broken")

    def events(self):
        return [(item["name"], item["event"]) for item in self.records if item["type"] == "symptom"]


def train(tmp_path=None, *, sinks=(), steps=150, sick=True, settings=None, watch=True):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    doctor = None
    if watch:
        doctor = Doctor(model, optimizer, journal=tmp_path, settings={"quiet": True, **(settings or {})})
        for sink in sinks:
            doctor.send_to(sink)
    for step in range(steps):
        if sick and step == steps - 30:
            optimizer.param_groups[0]["lr"] = 5.0
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if doctor:
            doctor.log_loss(loss)
    if doctor:
        doctor.detach()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return doctor, (weights, torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())


def test_a_sink_hears_of_every_episode_and_gets_the_report(tmp_path):
    heard, functions = Heard(), []
    doctor, _ = train(tmp_path / "exp-7", sinks=[heard, functions.append])
    names = [item.name for item in doctor.diagnose().symptoms]
    assert "nan-or-inf" in names
    assert [name for name, event in heard.events() if event == "opened"] == names
    assert heard.report.to_dict() == doctor.diagnose().to_dict()
    assert functions == heard.records
    assert {record["type"] for record in functions} <= {"symptom", "diagnosis", "note", "origin", "end"}


def test_a_healthy_run_is_silent():
    heard = Heard()
    train(sinks=[heard], sick=False)
    assert heard.events() == []
    assert heard.report.health == "healthy"


def test_the_run_is_bit_for_bit_the_same(tmp_path):
    pytest.importorskip("tensorboard")
    sinks = [f"prometheus:{tmp_path}/a.prom", f"tensorboard:{tmp_path}/tb", f"webhook:{URL}", Heard("always")]
    (plain, *states), (watched, *others) = (
        train(watch=False)[1],
        train(tmp_path / "run", settings={"sinks": sinks[:3]}, sinks=sinks[3:])[1],
    )
    assert all(torch.equal(plain[name].nan_to_num(), watched[name].nan_to_num()) for name in plain)
    assert torch.equal(states[0], others[0])
    assert states[1:] == others[1:]


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5])
def test_a_failure_at_the_nth_call_reaches_nobody(nth):
    broken, sound = Heard(nth), Heard()
    doctor, _ = train(sinks=[broken, sound])
    assert doctor.diagnose().health == "critical"
    assert broken.events() == sound.events()
    assert sound.report is not None


def test_a_broken_sink_is_one_note_in_the_report_and_in_the_journal(tmp_path):
    doctor, _ = train(tmp_path / "run", sinks=[Heard("always"), Heard()], steps=400)
    notes = [note for note in doctor.diagnose().notes if "sink" in note]
    assert len(notes) == 1
    assert "RuntimeError: this sink is broken" in notes[0]
    assert torchdoctor.diagnose(tmp_path / "run").to_dict() == doctor.diagnose().to_dict()


def test_nothing_stays_behind(tmp_path):
    before = threading.active_count()
    train(tmp_path / "run", sinks=[Heard(), print], settings={"sinks": [f"prometheus:{tmp_path}/a.prom"]})
    assert threading.active_count() == before


def test_a_hanging_sink_does_not_hold_the_end(monkeypatch):
    gate, waited = threading.Event(), []
    monkeypatch.setattr(courier.Couriers.close, "__defaults__", (0.05,))
    doctor, _ = train(sinks=[lambda record: waited.append(gate.wait(60))])
    assert waited == []  # it is still in its first call
    assert any("had not answered when the run ended" in note for note in doctor.diagnose().notes)
    gate.set()


def test_other_ranks_send_nothing(monkeypatch):
    from torchdoctor.vitals import context

    monkeypatch.setattr(context, "rank", lambda: 1)
    heard = Heard()
    train(sinks=[heard], settings={"sinks": ["tensorboard:never"]})
    assert (heard.records, heard.report) == ([], None)


def test_an_address_is_in_no_file_and_in_no_words(tmp_path, caplog):
    doctor, _ = train(tmp_path / "run", settings={"sinks": [f"slack:{URL}"], "quiet": False})
    report = doctor.diagnose()
    report.save(tmp_path / "report.html")
    kept = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "the sink slack" in kept  # it could not connect
    assert "SECRET" not in kept + caplog.text + repr(doctor.settings) + repr(doctor) + str(report)


def test_after_detach_a_sink_is_only_noted():
    doctor, _ = train(sick=False)
    doctor.send_to(print)
    assert any("send_to() was called after detach()" in note for note in doctor.diagnose().notes)


def test_the_run_is_named_by_its_journal(tmp_path):
    for place, name in [("exp-7", "exp-7"), ("a/journal.jsonl", "a"), ("b.jsonl", "b"), (None, "Sequential")]:
        path = tmp_path / "x.prom"
        train(None if place is None else tmp_path / place, settings={"sinks": [f"prometheus:{path}"]}, steps=2)
        assert f'torchdoctor_step{{run="{name}"}}' in path.read_text()


def test_the_settings_file(tmp_path):
    (tmp_path / "torchdoctor.toml").write_text('sinks = ["wandb", "slack:$SLACK_URL"]\nsinks_from = "critical"\n')
    settings = Settings.load(tmp_path / "torchdoctor.toml")
    assert (settings.sinks, settings.sinks_from) == (("wandb", "slack:$SLACK_URL"), "critical")
    assert Settings.load({"sinks": "wandb"}).sinks == ("wandb",)
    with pytest.raises(SettingsError, match="sinks_from must be one of info, warning, critical, not 'loud'"):
        Settings.load({"sinks_from": "loud"})
    for wrong in (5, [5], {"a": 1}):
        with pytest.raises(SettingsError, match="sinks must be a list of names"):
            Settings.load({"sinks": wrong})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensorbord:runs", "Did you mean 'tensorboard'"),
        ("slak", "Did you mean 'slack'"),
        ("", "Known: discord, mlflow, prometheus, slack, tensorboard, trackio, wandb, webhook"),
        ("https://hooks.slack.com/T0-SECRET", "put the sink before the address"),
        (7, "a sink is a name such as .* not int"),
        (None, "not NoneType"),
    ],
)
def test_what_is_no_sink_is_refused_before_training(name, says, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Doctor(net, optimizer) as doctor, pytest.raises(SettingsError, match=says) as caught:
        doctor.send_to(name)
    assert "SECRET" not in str(caught.value)
    if isinstance(name, str):
        with pytest.raises(SettingsError, match=says):
            Doctor(net, optimizer, settings={"sinks": [name]})
        assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_library_that_is_missing_is_named(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=f"pip install {name}"):
        open_sink(f"{name}:runs" if name == "tensorboard" else name, Subject())


def test_every_sink_can_be_named_and_is_documented():
    page = (ROOT / "docs/sinks.md").read_text(encoding="utf-8")
    for name in SINKS:
        assert check_name(name) == name
        assert f"`{name}" in page


def test_a_sink_hears_while_the_run_goes_on(net):
    heard = Heard()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    doctor = Doctor(net, optimizer, settings={"quiet": True})
    doctor.send_to(heard)
    doctor._note("a", "something to say")
    deadline = time.monotonic() + 10
    while not heard.records and time.monotonic() < deadline:
        time.sleep(0.01)
    assert heard.records[0]["text"] == "something to say"
    doctor.detach()


def test_the_example_of_the_page_runs_as_printed(tmp_path):
    (tmp_path / "example.py").write_text(f"{PATIENT}{python_of(ROOT / 'docs/sinks.md')}\ndoctor.detach()\n")
    done = run("-W", "error", "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "'type': 'end'" in done.stdout
    assert 'run="exp-7"' in (tmp_path / "torchdoctor.prom").read_text()
