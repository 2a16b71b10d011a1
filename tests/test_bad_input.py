"""Bad input: a clear error at construction; afterwards the loop never sees an exception, and the report says why."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import torchdoctor
from torchdoctor import Doctor, JournalError, PatientError, Settings, SettingsError
from torchdoctor.outlets import Outlets
from torchdoctor.records import Symptom
from torchdoctor.vitals.given import RESERVED

QUIET = {"quiet": True}


def other() -> torch.optim.Optimizer:
    """The optimizer of another network."""
    return torch.optim.AdamW(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).parameters(), lr=0.5)


class Unready(torch.optim.Optimizer):
    def __init__(self):
        pass


@pytest.fixture
def pair(net):
    return net, torch.optim.SGD(net.parameters(), lr=0.01)


def step(model, optimizer) -> torch.Tensor:
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (lambda m, o: (m, o, None, torch.optim.lr_scheduler.StepLR(other(), 1)), "StepLR sets .* of another optimizer"),
        (lambda m, o: (nn.ReLU(), o), "no parameters"),
        (lambda m, o: ("model", o), "must be an nn.Module"),
        (lambda m, o: ([m, 3], o), "must be an nn.Module"),
        (lambda m, o: (m, "sgd"), "must be a torch.optim.Optimizer"),
        (lambda m, o: (nn.Linear, o), "not the class Linear"),
        (lambda m, o: (m, torch.optim.SGD), "not the class SGD"),
        (lambda m, o: (m, []), "no optimizer was given"),
        (lambda m, o: (nn.Linear(2, 2), o), "none of the model's parameters"),
        (lambda m, o: (nn.Sequential(m, nn.LazyLinear(2)), o), "run one batch through a lazy model"),
        (lambda m, o: (m.to("meta"), torch.optim.SGD(m.parameters(), lr=0.1)), r"meta device.*to_empty"),
        (lambda m, o: ([m, nn.Linear(2, 2, device="meta")], o), "meta device"),
        (lambda m, o: (iter([m]), o), "must be an nn.Module"),
        (lambda m, o: (m, Unready()), r"Unready is not ready: .* super"),
    ],
)
def test_a_patient_that_cannot_be_watched(pair, arguments, sentence):
    with pytest.raises(PatientError, match=sentence):
        Doctor(*arguments(*pair))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"treat": "aply"}, PatientError, "show, ask, apply"),
        ({"loss_fn": 3}, PatientError, "loss_fn must be callable"),
        ({"loss_fn": nn.MSELoss}, PatientError, r"the class MSELoss, not an instance: pass MSELoss\(\)"),
        ({"scheduler": 3}, PatientError, "scheduler must have a step"),
        ({"scaler": 3}, PatientError, "scaler must be a torch.amp.GradScaler, not int"),
        ({"settings": {"presett": "paper"}}, SettingsError, "Did you mean 'preset'"),
        ({"settings": {"preset": "papper"}}, SettingsError, "default, paper"),
        ({"settings": {"overhead": -1}}, SettingsError, "from 0 to 1"),
        ({"settings": {"thresholds": {"gradient-explsion": {"ratio": 3}}}}, SettingsError, "gradient-explosion"),
        ({"settings": {"thresholds": {"gradient-explosion": {"raito": 3}}}}, SettingsError, "ratio"),
        ({"settings": {"ignore": ["lossspike"]}}, SettingsError, "loss-spike"),
        ({"settings": "no/such/file.toml"}, SettingsError, "cannot read"),
        ({"settings": 7}, SettingsError, "a dict or the path"),
        ({"settings": {1: 2}}, SettingsError, "unknown setting 1"),
        ({"settings": {"quiet": "yes"}}, SettingsError, "true or false"),
        ({"settings": {"sample_every": 2.5}}, SettingsError, "a whole number"),
    ],
)
def test_options_that_make_no_sense(pair, options, error, sentence):
    with pytest.raises(error, match=sentence):
        Doctor(*pair, **options)
    assert not pair[1]._optimizer_step_pre_hooks


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        ({"thresholds": 3}, "must map findings"),
        ({"thresholds": {"gradient-explosion": 3}}, "must map findings"),
        ({"select": 3}, "a list of names"),
    ],
)
def test_settings_made_by_keywords_are_checked_too(keywords, sentence):
    with pytest.raises(SettingsError, match=sentence):
        Settings(**keywords)


def test_one_name_will_do_for_a_list_of_them():
    assert (
        Settings(ignore="loss-plateau").ignore == Settings.load({"ignore": "loss-plateau"}).ignore == ("loss-plateau",)
    )


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("pyproject.toml", "[tool]\ntorchdoctor = 3", "must be a table of settings"),
        ("torchdoctor.toml", "preset = 'papper'", "not 'papper' in .*torchdoctor.toml"),
    ],
)
def test_a_file_of_settings_that_makes_no_sense_is_named(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(SettingsError, match=sentence):
        Settings.load(tmp_path / name)


def test_a_pyproject_without_tools_sets_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("tool = 3")
    assert Settings.load(tmp_path / "pyproject.toml") == Settings()


def test_the_learning_rate_is_that_of_the_model_s_own_optimizer(pair):
    model, optimizer = pair
    with Doctor(model, [other(), optimizer], settings=QUIET) as doctor:
        for _ in range(3):
            doctor.log_loss(step(model, optimizer))
    report = doctor.diagnose()
    assert report.curves["lr"][0][2] == 0.01
    assert any("a given AdamW holds none of the model's parameters" in note for note in report.notes)


def test_a_doctor_that_cannot_be_made_leaves_the_one_before_it_alone(pair, tmp_path):
    model, optimizer = pair
    doctor = Doctor(model, optimizer, settings=QUIET)
    (tmp_path / "file").write_text("text")
    with pytest.raises(JournalError):
        Doctor(model, optimizer, journal=tmp_path / "file" / "run", settings=QUIET)
    doctor.log_loss(step(model, optimizer))
    assert doctor.diagnose().step == 0 and not doctor.diagnose().notes
    doctor.detach()


@pytest.mark.parametrize("given", [(), (None,), ("x", 3)])
def test_a_batch_without_tensors_is_noted(pair, given):
    with Doctor(*pair, settings=QUIET) as doctor:
        doctor.log_batch(*given)
    assert any("log_batch() was given" in note for note in doctor.diagnose().notes)


def test_a_journal_that_cannot_be_written(pair, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(JournalError):
        Doctor(*pair, journal=tmp_path / "file" / "run")
    assert not pair[1]._optimizer_step_pre_hooks


@pytest.mark.parametrize("journal", [3, b"run", "", "a\0b", ["run"]])
def test_a_journal_that_is_no_path(pair, journal):
    with pytest.raises(JournalError, match="journal must be the path of a folder"):
        Doctor(*pair, journal=journal)
    assert not pair[1]._optimizer_step_pre_hooks


def test_a_journal_at_home(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with Doctor(*pair, journal="~/run", settings=QUIET) as doctor:
        pass
    assert doctor.journal == tmp_path / "run" / "journal.jsonl"


def test_records_that_the_journal_has_lost_are_in_the_report(pair, tmp_path):
    doctor = Doctor(*pair, journal=tmp_path, settings=QUIET)
    doctor._outlets.journal._appender.lost = 7
    doctor.detach()
    assert [note for note in doctor.diagnose().notes if "7 records could not be written" in note]


def test_a_batch_in_a_dict_is_looked_at(pair):
    doctor = Doctor(*pair, settings=QUIET)
    seen = []
    doctor.subscribe(seen.append)
    doctor.log_batch({"ids": torch.tensor([1, 2]), "values": [torch.tensor([1.0, float("nan")])]})
    step(*pair)
    doctor.diagnose()
    assert [record["vitals"]["batch_nonfinite"] for record in seen if record["type"] == "vitals"] == [1.0]


@pytest.mark.parametrize(
    ("loss", "recorded", "note"),
    [
        (lambda t: 2.5, 2.5, None),
        (lambda t: 3, 3.0, None),
        (lambda t: torch.tensor([2.0]), 2.0, None),
        (lambda t: t, "attached", None),
        (lambda t: torch.tensor([1.0, 3.0]), 2.0, "its mean is recorded"),
        (lambda t: torch.zeros(0), None, "empty tensor"),
        (lambda t: torch.zeros((), device="meta"), None, "holds no number"),
        (lambda t: None, None, "given as NoneType"),
        (lambda t: "high", None, "given as str"),
        (lambda t: {"loss": t}, None, "given as dict"),
        (lambda t: 10**400, None, "given as int"),
        (lambda t: 1 + 2j, None, "given as complex"),
        (lambda t: torch.tensor(1 + 2j), None, "a tensor of complex numbers"),
        (lambda t: torch.ones(1).to_sparse(), None, "a tensor of sparse_coo"),
    ],
)
def test_losses_of_every_kind(pair, loss, recorded, note):
    doctor = Doctor(*pair, settings=QUIET)
    seen = []
    doctor.subscribe(seen.append)
    value = step(*pair)
    doctor.log_loss(loss(value))
    doctor.log_loss(loss(value))
    report = doctor.diagnose()
    found = [record["vitals"].get("loss") for record in seen if record["type"] == "vitals"]
    assert found == [pytest.approx(value.item(), rel=1e-6) if recorded == "attached" else recorded]
    assert [text for text in report.notes if note and note in text] == ([report.notes[0]] if note else [])


@pytest.mark.parametrize(
    ("name", "recorded"), [(5, "5"), (None, "None"), (["a"], "['a']"), (("d", 1), "('d', 1)"), ("a" * 1000, "a" * 200)]
)
def test_a_name_that_is_none_is_written_out(pair, tmp_path, name, recorded):
    with Doctor(*pair, journal=tmp_path, settings=QUIET) as doctor:
        for number in range(30):
            loss = step(*pair)
            doctor.log_loss(loss)
            doctor.log_loss(1.0 + number % 3, name=name)
        assert doctor.diagnose().notes[0].startswith("log_loss(name=")
    report = doctor.diagnose()
    assert len(report.curves[recorded]) and len(report.notes) == 1
    assert report.to_dict() == torchdoctor.diagnose(tmp_path).to_dict()


def test_a_report_that_cannot_be_made_is_a_bare_one(pair, monkeypatch):
    doctor = Doctor(*pair, settings=QUIET)
    step(*pair)
    doctor.log_loss(float("nan"))
    assert doctor.diagnose().health == "critical"

    def broken(*_):
        raise AttributeError("no such thing")

    monkeypatch.setattr(doctor._examination, "report", broken)
    for _ in range(3):
        report = doctor.diagnose()
    assert report.health == "critical" and report.step == 0
    assert len([note for note in report.notes if "no such thing" in note]) == 1
    monkeypatch.setattr(doctor._examination, "take", broken)
    doctor.detach()


@pytest.mark.parametrize("loss", [10**400, torch.tensor(1 + 2j), torch.ones(1).to_sparse()])
def test_losses_that_cannot_be_read_do_not_end_the_watch(pair, loss):
    doctor = Doctor(*pair, settings=QUIET)
    for _ in range(30):
        step(*pair)
        doctor.log_loss(loss)
    doctor.log_loss(2.0)
    report = doctor.diagnose()
    assert doctor._attached and report.curves["loss"] and len(report.notes) == 1


def test_a_complex_loss_on_the_short_way_is_left_out(pair):
    doctor = Doctor(*pair, settings=QUIET)
    for number in range(60):
        loss = step(*pair)
        doctor.log_loss(loss * (1 + 0j) if number > 40 else loss)
    assert doctor._attached and "complex" in doctor.diagnose().notes[0]


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_copy_of_whoever_holds_a_doctor_watches_nothing(pair, tmp_path, copied):
    holder = SimpleNamespace(doctor=Doctor(*pair, journal=tmp_path, settings=QUIET), step=1)
    doctor = copied(holder.doctor) if copied is copy.copy else copied(holder).doctor
    value = step(*pair)
    with doctor as entered:
        entered.log_loss(value)
        entered.log_gradients()
        entered.log_validation(1.0)
        entered.log_batch(torch.ones(2))
        entered.subscribe(print)
        entered.send_to(print)
    report = doctor.diagnose()
    assert isinstance(doctor, Doctor) and doctor.journal is None and "detached" in repr(doctor)
    assert report.health == "healthy" and "a copy of a Doctor" in report.notes[0]
    with pytest.raises(PatientError, match="watches nothing"):
        doctor.checkup(torch.ones(2, 8))
    holder.doctor.log_loss(value)
    assert holder.doctor.diagnose().step == 0 and not holder.doctor.diagnose().notes


def test_what_is_quiet_does_not_speak_of_its_predecessor(pair, caplog):
    with caplog.at_level(logging.INFO, "torchdoctor"):
        first = Doctor(*pair, settings=QUIET)
        Doctor(*pair, settings=QUIET)
    assert not first._attached and not caplog.records


def test_phases_are_told_as_they_end_to_those_who_ask_for_them(pair, caplog):
    doctor = Doctor(*pair, settings={"report_every": 1})
    with caplog.at_level(logging.INFO, "torchdoctor"):
        for _ in range(20):
            doctor.log_loss(step(*pair))
        doctor.log_validation(1.0)
        doctor.diagnose()
    told = [item for item in caplog.records if item.message.startswith("steps 0 to 19: ")]
    assert [item.levelname for item in told] == ["INFO"] and "loss decreasing" in told[0].message


def test_a_line_is_not_logged_again_word_for_word(caplog):
    outlets, item = (
        Outlets(lambda key, text: None),
        Symptom("dead-units", "AC01", "warning", 0.9, 5, 5, message="half are dead"),
    )
    news = [("opened", item), ("changed", replace(item, where=("b",))), ("changed", replace(item, severity="critical"))]
    with caplog.at_level(logging.WARNING, "torchdoctor"):
        for event, found in news:
            outlets.announce([{"type": "symptom", "event": event, **found.to_dict()}])
    assert [line.message.split(": ")[1] for line in caplog.records] == [
        "AC01 dead-units (warning)",
        "AC01 dead-units (critical)",
    ]


def test_what_somebody_keeps_in_a_parameter_group_stays_there(net, tmp_path):
    class Another(torch.optim.SGD):
        def __init__(self, params):
            super().__init__(params, lr=torch.tensor(0.1), momentum=0.9)
            for group in self.param_groups:
                group["coupling"] = 0.25
            self.defaults["coupling"] = 0.25

    optimizer = Another([{"params": net.parameters(), "api_key": "sk-SECRET", "note": "/home/me", "pin": 1234}])
    with Doctor(net, optimizer, journal=tmp_path, settings=QUIET):
        for _ in range(3):
            step(net, optimizer)
    text = (tmp_path / "journal.jsonl").read_text()
    assert not any(word in text for word in ("SECRET", "api_key", "/home/me", "1234", "pin"))
    records = [json.loads(line) for line in text.splitlines()]
    (groups,) = [record["groups"] for record in records if record["type"] == "groups"]
    assert groups[0]["momentum"] == 0.9 and groups[0]["coupling"] == 0.25 and groups[0]["nesterov"] is False
    assert records[0]["context"]["optimizer"][0]["lr"] == pytest.approx(0.1)


def test_a_nan_loss_is_a_finding_not_an_error(pair):
    doctor = Doctor(*pair, settings=QUIET)
    for number in range(5):
        step(*pair)
        doctor.log_loss(float("nan") if number == 3 else 1.0)
    report = doctor.diagnose()
    assert [symptom.name for symptom in report.symptoms] == ["nan-or-inf"]
    assert report.symptoms[0].first_step == 3 and report.health == "critical"


def test_calls_out_of_place_are_noted_once(pair, caplog):
    doctor = Doctor(*pair)
    with caplog.at_level(logging.WARNING, "torchdoctor"):
        doctor.log_gradients()
        doctor.log_gradients()
        doctor.detach()
        doctor.log_loss(1.0)
        doctor.log_validation(1.0)
        doctor.detach()
    assert caplog.text.count("no parameter had a gradient") == 1
    assert caplog.text.count("after detach()") == 1
    assert len(doctor.diagnose().notes) == 2


def test_frozen_weights_that_are_kept_elsewhere_may_be_on_the_meta_device(net):
    net.offloaded = nn.Linear(2, 2, device="meta").requires_grad_(False)
    optimizer = torch.optim.SGD([tensor for tensor in net.parameters() if not tensor.is_meta], lr=0.01)
    doctor = Doctor(net, optimizer, settings=QUIET)
    for _ in range(30):
        doctor.log_loss(step(net[:3], optimizer))
    report = doctor.diagnose()
    assert report.step == 29 and not any("inside torchdoctor" in note for note in report.notes)


def run_with(pair, *names: str) -> tuple[Doctor, list[dict]]:
    doctor, records = Doctor(*pair, settings=QUIET), []
    doctor.subscribe(records.append)
    for number in range(60):
        loss = pair[0](torch.ones(4, 8) + number % 3).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(pair[0].parameters(), 1.0)
        pair[1].step()
        pair[1].zero_grad()
        for name in names:
            doctor.log_loss(loss, name=name)
    doctor.diagnose()
    return doctor, [record["vitals"] for record in records if record["type"] == "vitals"]


@pytest.mark.parametrize("name", ["total", "skipped", "grad_nonfinite", "lr", "lr/1", "seconds", "grad_norm", "clip"])
def test_a_loss_that_is_called_as_a_number_of_ours(pair, name):
    doctor, vitals = run_with(pair, "loss", name)
    losses = [(step[f"{name}_loss"], step["loss"]) for step in vitals if "loss" in step]
    assert len(losses) == 60 and all(one == other for one, other in losses)
    assert all(step["lr"] == 0.01 for step in vitals if "lr" in step)
    report = doctor.diagnose()
    assert not {"skipped-steps", "nan-or-inf"} & {symptom.name for symptom in report.symptoms}
    notes = [note for note in report.notes if f"log_loss(name={name!r})" in note]
    assert len(notes) == 1 and f"recorded as '{name}_loss'" in notes[0]


@pytest.mark.parametrize("name", ["total_loss", "val_loss", "entropy", "lr_loss", "rank_loss", "kl"])
def test_names_that_are_free(pair, name):
    doctor, vitals = run_with(pair, name)
    assert sum(name in step for step in vitals) == 60 and not doctor.diagnose().notes


def test_all_numbers_of_ours_are_reserved(pair):
    _, vitals = run_with(pair, "loss")
    assert set().union(*vitals) - {"loss"} <= RESERVED


def test_an_internal_error_never_reaches_the_loop(pair, monkeypatch, caplog):
    doctor = Doctor(*pair)
    monkeypatch.setattr(doctor._monitor, "_advance", lambda *args: 1 / 0)
    for _ in range(20):
        doctor.log_loss(step(*pair))
    report = doctor.diagnose()
    assert any("ZeroDivisionError" in note for note in report.notes)
    assert any("no longer watched" in note for note in report.notes)
    assert "no longer watched" in str(report).splitlines()[0] and "ealthy" not in str(report).splitlines()[0]
    assert caplog.text.count("ZeroDivisionError") == 1
    assert not pair[1]._optimizer_step_pre_hooks


def test_a_listener_that_raises_is_dropped(pair):
    doctor = Doctor(*pair, settings=QUIET)
    calls = []

    def listener(record):
        calls.append(record)
        raise ValueError("full")

    doctor.subscribe(listener)
    for _ in range(5):
        doctor.log_loss(step(*pair))
    assert len(calls) == 1
    assert any("listener was dropped" in note for note in doctor.diagnose().notes)


def test_keyboard_interrupt_passes(pair):
    doctor = Doctor(*pair, settings=QUIET)
    pressed = []

    def listener(record):
        if not pressed:  # once: this doctor may live on into the next test
            pressed.append(record)
            raise KeyboardInterrupt

    doctor.subscribe(listener)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(5):
            doctor.log_loss(step(*pair))
    doctor.detach()


def test_treatment_that_is_not_there_is_admitted(pair):
    doctor = Doctor(*pair, treat="apply", settings=QUIET)
    assert any("only shows suggestions" in note for note in doctor.diagnose().notes)


@pytest.mark.parametrize("bad", ["NaN", "Inf"])
def test_one_bad_step_does_not_blind_the_doctor(net, bad):
    """One non-finite step, a thousand healthy ones, then a jump: the jump is seen and nothing else is claimed."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    doctor = Doctor(net, optimizer, settings=QUIET)
    generator = torch.Generator().manual_seed(0)
    for number in range(1300):
        scale = {200: float(bad), 1250: 100.0}.get(number, 1.0)
        for p in net.parameters():
            p.grad = scale * torch.randn(p.shape, generator=generator)
        optimizer.step()
        doctor.log_loss(1.0 + 0.01 * number % 7)
    report = doctor.diagnose()
    found = {(symptom.name, symptom.first_step) for symptom in report.symptoms if symptom.severity != "info"}
    assert found == {("nan-or-inf", 200), ("gradient-explosion", 1250)}


def test_a_healthy_run_is_not_talked_about(net, caplog):
    """Nothing is logged at warning, not even that samples were made rarer to keep the budget."""
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    doctor = Doctor(net, optimizer, settings={"overhead": 0.0, "sample_every": 2})
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        x = torch.randn(32, 8, generator=generator)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.log_loss(loss)
    report = doctor.diagnose()
    assert report.health == "healthy"
    assert any("a close look takes" in note for note in report.notes)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
