"""Each sink with the real library, offline: what was sent is read back as its users would see it.

W&B, MLflow and Trackio run in a process of their own: they start threads and servers that outlive a test.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.sinks.sick import END, HEALTHY, HOSTILE, OPENED, OVER, SICK, WORSE, event, spike

from torchdoctor.errors import SettingsError
from torchdoctor.sinks import Subject, open_sink, send

SUBJECT = Subject("exp-7")
STORY = [OPENED, WORSE, OVER, [event("opened", spike(first=170, last=170))], END]

PROGRAM = f"""
import random, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from sick import *
import numpy
from torchdoctor.errors import SettingsError
from torchdoctor.sinks import Couriers, Subject, courier, open_sink, send
courier.GATHER_SECONDS = 0.0
STORY = [OPENED, WORSE, OVER, [event("opened", spike(first=170, last=170))], END]
VITALS = {{"type": "vitals", "step": 1, "vitals": {{}}}}

def states():
    return random.getstate(), numpy.random.get_state()[1].tolist()

def tell(given, report=SICK, story=STORY):
    before = states()
    couriers = Couriers()
    couriers.add(*open_sink(given, Subject("exp-7")))
    for batch in story:
        couriers.take(VITALS, batch)
    couriers.close(report, timeout=30)
    assert couriers.troubles() == [], couriers.troubles()
    assert states() == before
"""


def run(code, folder, **environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ── TensorBoard ──────────────────────────────────────────────────────────────────────────────────────────────────


def tensorboard_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    texts = {
        tag: [(item.step, item.tensor_proto.string_val[0].decode()) for item in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }
    scalars = {tag: [(item.step, item.value) for item in found.Scalars(tag)] for tag in found.Tags()["scalars"]}
    return texts, scalars, found.PluginTagToContent("text")


@pytest.mark.parametrize("kind", ["folder", "writer"])
def test_tensorboard_shows_texts_a_curve_and_the_report(tmp_path, kind):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    given = SummaryWriter(tmp_path) if kind == "writer" else f"tensorboard:{tmp_path}"
    sink, label = open_sink(given, SUBJECT)
    assert label == "the sink tensorboard"
    for batch in STORY:
        sink.take(batch)
    sink.close(SICK)
    if kind == "writer":
        given.add_scalar("mine", 1.0, 3)  # it is still the loop's own
        given.close()
    texts, scalars, plugin = tensorboard_events(tmp_path)
    episodes = texts["torchdoctor/LO01 loss-spike/text_summary"]
    assert [step for step, _ in episodes] == [120, 120, 160, 170]
    assert episodes[0][1].startswith("**WARN** exp-7: Sick at step 120: loss-spike")
    assert "```python\nlearning_rate *= 0.5" in episodes[0][1]
    assert scalars["torchdoctor/open_findings"] == [(120, 1.0), (160, 0.0), (170, 1.0)]
    assert texts["torchdoctor/report/text_summary"][0][0] == 200
    assert "torchdoctor/report/text_summary" in plugin  # the text dashboard knows it
    assert ("mine" in scalars) == (kind == "writer")


def test_tensorboard_of_a_healthy_run_shows_a_curve_at_zero(tmp_path):
    pytest.importorskip("tensorboard")
    sink, _ = open_sink(f"tensorboard:{tmp_path / 'new'}", SUBJECT)
    sink.take(END)
    sink.close(HEALTHY)
    texts, scalars, _ = tensorboard_events(tmp_path / "new")
    assert scalars["torchdoctor/open_findings"] == [(200, 0.0)]
    assert list(texts) == ["torchdoctor/report/text_summary"]


def test_tensorboard_of_a_finished_run(tmp_path):
    pytest.importorskip("tensorboard")
    send(SICK, f"tensorboard:{tmp_path}", SUBJECT)
    texts, scalars, _ = tensorboard_events(tmp_path)
    assert "torchdoctor/GR01 gradient-explosion/text_summary" in texts
    assert scalars["torchdoctor/open_findings"][-1][1] == 1.0


def test_tensorboard_needs_a_folder_that_can_be_written(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match="cannot write TensorBoard events"):
        open_sink(f"tensorboard:{tmp_path / 'file' / 'runs'}", SUBJECT)
    with pytest.raises(SettingsError, match="needs a folder"):
        open_sink("tensorboard", SUBJECT)


# ── Weights & Biases ─────────────────────────────────────────────────────────────────────────────────────────────


def wandb_records(folder):
    """The records of an offline file: blocks of 32 KiB with a header of 7 bytes before each piece."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("**/*.wandb")
    data, place, piece, found = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        piece += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(piece)
            found.append(record)
            piece = b""
    return found


OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": ".", "WANDB_ERROR_REPORTING": "false"}


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.parametrize("given", ["'wandb'", "run"])
def test_wandb_gets_alerts_metrics_and_a_summary_and_loses_no_row(tmp_path, given):
    code = f"""
import threading, wandb
run = wandb.init(project="p")
sink, _ = open_sink({given}, Subject("exp-7"))

def on_a_thread(function, argument):
    thread = threading.Thread(target=function, args=(argument,))
    thread.start()
    thread.join()

for step in range(5):
    run.log({{"loss": float(step)}})
    on_a_thread(sink.take, STORY[step])
on_a_thread(sink.close, SICK)
run.log({{"loss": 5.0}})
run.finish()
"""
    run(code, tmp_path, **OFFLINE)
    records = wandb_records(tmp_path)
    alerts = [record.alert for record in records if record.HasField("alert")]
    assert [(item.level, item.title) for item in alerts] == [
        ("WARN", "LO01 loss-spike (warning) at step 120"),
        ("ERROR", "LO01 loss-spike (critical) at step 120"),
        ("WARN", "LO01 loss-spike (warning) at step 170"),
        ("ERROR", "Run ended critical at step 200"),
    ]
    assert "Most likely cause: lr-too-high (80 %). First change: learning_rate *= 0.5" in alerts[0].text
    rows = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert [row["loss"] for row in rows] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert [row.get("torchdoctor/open_findings") for row in rows] == [None, 1, None, 0, 1, None]
    assert [row.get("torchdoctor/step") for row in rows] == [None, 120, None, 160, 170, None]
    ours = {item.key or "/".join(item.nested_key): item.value_json for r in records for item in r.summary.update}
    assert json.loads(ours["torchdoctor/health"]) == "critical"


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_is_silent_for_a_healthy_run_and_says_where_no_run_is(tmp_path):
    code = """
import wandb
couriers = Couriers()
couriers.add(*open_sink("wandb", Subject("exp-7")))  # before there is a run, as many scripts do
run = wandb.init(project="p")
couriers.close(HEALTHY, timeout=30)
run.finish()
assert couriers.troubles() == []
tell("wandb", HEALTHY, [])  # nobody needs to hear of a healthy run whose W&B run is finished
try:
    send(SICK, "wandb", Subject())
except Exception as error:
    print(error)
"""
    assert "no W&B run is active: call wandb.init()" in run(code, tmp_path, **OFFLINE)
    records = wandb_records(tmp_path)
    assert not [record for record in records if record.HasField("alert")]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_makes_a_run_for_a_finished_report(tmp_path):
    run('send(SICK, "wandb:p", Subject("exp-7"))', tmp_path, **OFFLINE)
    alerts = [record.alert.title for record in wandb_records(tmp_path) if record.HasField("alert")]
    assert alerts == ["Run ended critical at step 200"]


# ── MLflow ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(find_spec("mlflow") is None or find_spec("alembic") is None, reason="mlflow is not installed")
def test_mlflow_gets_tags_a_metric_and_the_report(tmp_path):
    code = """
import mlflow
mlflow.set_tracking_uri("sqlite:///mlflow.db")
try:
    open_sink("mlflow", Subject())
except SettingsError as error:
    assert "call mlflow.start_run() first" in str(error), error
try:
    open_sink("mlflow:nonsense", Subject())
except SettingsError as error:
    assert "cannot get the MLflow run 'nonsense'" in str(error), error
ids = {}
with mlflow.start_run() as run:
    tell("mlflow"); ids["active"] = run.info.run_id
with mlflow.start_run() as run:
    tell(run); ids["object"] = run.info.run_id
with mlflow.start_run() as run:
    tell(mlflow.MlflowClient()); ids["client"] = run.info.run_id
with mlflow.start_run() as run:
    tell(mlflow, HEALTHY, []); ids["healthy"] = run.info.run_id
send(SICK, f"mlflow:{ids['healthy']}", Subject())
import json
print(json.dumps(ids))
"""
    ids = json.loads(run(code, tmp_path).splitlines()[-1])
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as store:
        for name in ids:
            tags = dict(store.execute("select key, value from tags where run_uuid = ?", [ids[name]]))
            metrics = list(
                store.execute(
                    "select key, value, step from metrics where run_uuid = ? order by step, timestamp", [ids[name]]
                )
            )
            assert tags["torchdoctor.health"] == "critical"
            assert tags["torchdoctor.findings"] == "LO01 loss-spike, GR01 gradient-explosion"
            assert tags["torchdoctor.verdict"].startswith("Critical at step 120: loss-spike")
            assert metrics[-1][:2] == ("torchdoctor/open_findings", 1.0)
            (page,) = tmp_path.glob(f"mlruns/*/{ids[name]}/artifacts/torchdoctor/report.html")
            assert "loss-spike" in page.read_text()
            assert json.loads(page.with_name("report.json").read_text())["health"] == "critical"


# ── Trackio ──────────────────────────────────────────────────────────────────────────────────────────────────────


def has_trackio_alerts():
    spec = find_spec("trackio")
    return spec is not None and Path(spec.origin).with_name("alerts.py").exists()


@pytest.mark.skipif(not has_trackio_alerts(), reason="no Trackio with alerts is installed: pip install trackio")
def test_trackio_gets_alerts(tmp_path):
    code = """
import trackio
try:
    open_sink("trackio", Subject())
except SettingsError as error:
    assert "call trackio.init() first" in str(error), error
run = trackio.init(project="p", name="sick")
tell("trackio", SICK, [OPENED])
trackio.finish()
run = trackio.init(project="p", name="object")
tell(run, SICK, [])
trackio.finish()
trackio.init(project="p", name="healthy")
tell(trackio, HEALTHY, [])
trackio.finish()
"""
    run(code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    with closing(sqlite3.connect(tmp_path / "trackio" / "p.db")) as store:
        alerts = list(store.execute("select run_name, level, title, step from alerts order by timestamp"))
    assert alerts == [
        ("sick", "warn", "LO01 loss-spike (warning) at step 120", 120),
        ("sick", "error", "Run ended critical at step 200", 200),
        ("object", "error", "Run ended critical at step 200", 200),
    ]


@pytest.mark.skipif(not has_trackio_alerts(), reason="no Trackio with alerts is installed: pip install trackio")
def test_trackio_begins_a_run_of_its_own_and_leaves_the_active_one_alone(tmp_path):
    """From a shell nobody can call `trackio.init()` before."""
    code = """
import trackio
active = trackio.init(project="mine", name="training")
send(HEALTHY, "trackio:nightly", Subject("healthy"))
tell("trackio:nightly", SICK, [OPENED])
send(SICK, "trackio:nightly", Subject("finished"))
assert trackio.context_vars.current_run.get() is active
trackio.log({"loss": 1.0})
trackio.finish()
try:
    send(SICK, "trackio:" + "x" * 999, Subject())
except Exception as error:
    assert "cannot start a Trackio run" in str(error), error
else:
    raise AssertionError
"""
    run(code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))
    with closing(sqlite3.connect(tmp_path / "trackio" / "nightly.db")) as store:
        alerts = list(store.execute("select run_name, level, step from alerts order by timestamp"))
    assert alerts == [("exp-7", "warn", 120), ("exp-7", "error", 200), ("finished", "error", 200)]
    with closing(sqlite3.connect(tmp_path / "trackio" / "mine.db")) as store:
        assert list(store.execute("select run_name from metrics")) == [("training",)]


# ── Prometheus ───────────────────────────────────────────────────────────────────────────────────────────────────


def prometheus_samples(path):
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(path.read_text()))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return {(item.name, *sorted(item.labels.items())): item.value for family in families for item in family.samples}


def finding(severity, code="LO01", name="loss-spike", run="exp-7"):
    return "torchdoctor_finding", ("code", code), ("name", name), ("run", run), ("severity", severity)


def test_prometheus_reads_findings_and_values(tmp_path):
    path = tmp_path / "torchdoctor.prom"
    sink, _ = open_sink(f"prometheus:{path}", SUBJECT)
    run_label = ("run", "exp-7")
    assert prometheus_samples(path)["torchdoctor_running", run_label] == 1
    assert path.stat().st_mode & 0o777 == 0o644  # the exporter is another user
    values = {"loss": float("nan"), "grad_norm": float("inf"), "lr": 1e-3}
    sink.take([{"type": "vitals", "step": 121, "vitals": values}, *OPENED])
    found = prometheus_samples(path)
    assert found[finding("warning")] == 1
    assert found["torchdoctor_health", run_label] == 2
    assert found["torchdoctor_step", run_label] == 121
    assert str(found["torchdoctor_loss", run_label]) == "nan"
    assert found["torchdoctor_grad_norm", run_label] == float("inf")
    sink.take(WORSE)
    found = prometheus_samples(path)
    assert (found[finding("warning")], found[finding("critical")]) == (0, 1)
    sink.take(OVER)
    assert prometheus_samples(path)["torchdoctor_health", run_label] == 0
    sink.close(SICK)
    found = prometheus_samples(path)
    assert found["torchdoctor_running", run_label] == 0
    assert found["torchdoctor_health", run_label] == 3
    assert list(tmp_path.iterdir()) == [path]


def test_prometheus_keeps_what_was_there_at_the_end(tmp_path):
    path = tmp_path / "torchdoctor.prom"
    sink, _ = open_sink(f"prometheus:{path}", SUBJECT)
    sink.take([*OPENED, *END, event("closed", spike())])
    sink.close(SICK)
    assert prometheus_samples(path)[finding("warning")] == 1
    send(SICK, f"prometheus:{path}", SUBJECT)  # a job of the night finds the same
    found = prometheus_samples(path)
    assert found[finding("warning", "GR01", "gradient-explosion")] == 1
    assert found[finding("critical")] == 0


def test_prometheus_survives_any_name(tmp_path):
    path = tmp_path / "torchdoctor.prom"
    sink, _ = open_sink(f"prometheus:{path}", Subject(HOSTILE))
    sink.take([event("opened", spike(name=HOSTILE, code='"} 1\nevil 1'))])
    found = prometheus_samples(path)
    assert not [key for key in found if key[0] == "evil"]
    assert sum(key[0] == "torchdoctor_finding" for key in found) == 1


def test_prometheus_files_are_whole_whenever_the_process_is_killed(tmp_path):
    pytest.importorskip("prometheus_client")
    path = tmp_path / "torchdoctor.prom"
    code = (
        f"sink, _ = open_sink('prometheus:{path}', Subject())\n"
        "for step in range(10**9):\n    sink.take([{'type': 'vitals', 'step': step, 'vitals': {'loss': 1.0}}])\n"
        "    step or print('on', flush=True)\n"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM + code], stdout=subprocess.PIPE, text=True)
        while process.stdout.readline() != "on\n":
            pass
        for _ in range(20):
            assert len(prometheus_samples(path)) == 5
        process.kill()
        process.communicate()
        assert len(prometheus_samples(path)) == 5


@pytest.mark.parametrize(
    ("target", "says"), [("", "ending in .prom"), ("a.txt", "ending in .prom"), ("file/a.prom", "cannot write")]
)
def test_prometheus_places_that_do_not_do(tmp_path, monkeypatch, target, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingsError, match=says):
        open_sink(f"prometheus:{target}", SUBJECT)
