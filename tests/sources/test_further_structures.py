"""Structured files as other trainers leave them: rewards of a monitor, curves named by their split, epochs as steps."""

import json

from torchdoctor import diagnose
from torchdoctor.chart import Chart
from torchdoctor.diagnoses.findings import dropout, optimizer_names, weight_decay
from torchdoctor.sources import read
from torchdoctor.sources.naming import understand


def columns(run):
    return run.header["context"]["columns"]


def test_the_monitor_of_stable_baselines_holds_rewards(tmp_path):
    path = tmp_path / "monitor.csv"
    rows = "".join(f"{place / 2},{place},{place}.5\n" for place in range(30))
    path.write_text('#{"t_start": 1.5, "env_id": "CartPole-v1"}\nr,l,t\n' + rows)
    assert columns(read(path))["reward"] == "reward"


def test_columns_that_name_a_split_are_of_what_the_file_is_called(tmp_path):
    path = tmp_path / "loss.csv"
    path.write_text("eval,train\n" + "".join(f"{3 - place / 10},{2 - place / 10}\n" for place in range(12)))
    found = columns(read(path))
    assert found["loss"].startswith("train") and found["val_loss"].startswith("eval")


def test_objects_beside_lists_are_read(tmp_path):
    path = tmp_path / "training_history.json"
    metrics = [{"accuracy": 41.2, "mean_precision": 0.1} for _ in range(11)]
    losses = [2.7 - place / 50 for place in range(11)]
    path.write_text(json.dumps({"train_loss": losses, "val_loss": losses, "val_metrics": metrics}))
    report = diagnose(read(path))
    assert any(item.name == "collapsed-output" and item.severity == "warning" for item in report.symptoms)


def test_the_entropy_of_stable_baselines_is_a_loss_below_zero():
    found = understand({"train/entropy_loss": 9, "train/loss": 9, "rollout/ep_rew_mean": 9})
    assert found.columns["entropy"] == ("train/entropy_loss",) and found.scales["entropy"] == -1.0


def test_the_configuration_of_a_log_counts():
    chart = Chart.of(context={"config": {"optim": "adamw_torch", "weight_decay": 0.01, "attn_pdrop": 0.1}})
    assert (optimizer_names(chart), weight_decay(chart), dropout(chart)) == ("adamw_torch", 0.01, 0.1)
