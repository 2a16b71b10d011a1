"""Structured files as other trainers leave them: rewards of a monitor, curves named by their split, epochs as steps."""

import json

import pytest

from torchdoctor import diagnose
from torchdoctor.chart import Chart
from torchdoctor.diagnoses.findings import dropout, optimizer_names, weight_decay
from torchdoctor.errors import SourceError
from torchdoctor.reports.verdict import verdict
from torchdoctor.sources import read
from torchdoctor.sources.naming import understand
from torchdoctor.sources.vital_series import vital_series


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


def test_a_list_of_numbers_is_what_its_file_is_called(tmp_path):
    values = [2.0 * 0.9**place for place in range(12)]
    (tmp_path / "val_losses.json").write_text(json.dumps(values))
    run = read(tmp_path / "val_losses.json")
    assert list(columns(run)) == ["val_loss"]
    (tmp_path / "numbers.json").write_text(json.dumps(values))
    with pytest.raises(SourceError):
        read(tmp_path / "numbers.json")


def test_a_line_with_its_numbers_is_no_row_of_names(tmp_path):
    line = "Epoch {}: Train Loss={:.4f}, Train Acc={:.2f}%, Val Loss={:.4f}, Val Acc={:.2f}%\n"
    text = "".join(
        line.format(place + 1, 2 * 0.9**place, 50 + place, 2.1 * 0.9**place, 49 + place) for place in range(9)
    )
    (tmp_path / "training_log.txt").write_text(text)
    run = read(tmp_path / "training_log.txt")
    assert set(columns(run)) == {"loss", "val_loss", "train_accuracy", "val_accuracy"}
    assert run.header["context"]["clock"] == "epoch"


def test_an_epoch_without_a_name_before_the_loss_of_each_batch_is_none(tmp_path):
    (tmp_path / "loss.csv").write_text("".join(f"1,{1.2 - 0.01 * place}\n" for place in range(30)))
    run = read(tmp_path / "loss.csv")
    chart = Chart()
    for record in run.records:
        chart.add(record)
    assert chart["loss"].values[0] == 1.2


LOSSES = [(epoch, round(2 * 0.9**epoch + 0.1, 4), round(2.2 * 0.9**epoch + 0.2, 4)) for epoch in range(12)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.txt", "# epoch train_loss val_loss\n" + "".join(f"{e:.18e} {t} {v}\n" for e, t, v in LOSSES)),
        (
            "lcurve.out",
            "#  epoch   rmse_val  rmse_trn\n# nan where no data is\n"
            + "".join(f"   {e}   {v}   {t}\n" for e, t, v in LOSSES),
        ),
        ("r.csv", "# my run\n# epoch,train_loss,val_loss\n" + "".join(f"{e},{t},{v}\n" for e, t, v in LOSSES)),
        (
            "print.txt",
            "    epoch  train_loss  val_loss\n" + "".join(f"{e:<3}  {e:6}  {t:10}  {v:8}\n" for e, t, v in LOSSES),
        ),
        (
            "split.json",
            json.dumps({"columns": ["epoch", "train_loss", "val_loss"], "index": [*range(12)], "data": LOSSES}),
        ),
        (
            "grown.json",
            "".join(
                json.dumps(
                    [
                        {"name": n, "loss": x, "epoch": e}
                        for e, t, v in LOSSES[:end]
                        for n, x in (("train", t), ("test", v))
                    ],
                    indent=1,
                )
                for end in (1, 2, 3, *range(1, 13))  # the first run was stopped
            ),
        ),
        (
            "printed.csv",
            "2025-01-02 21:00:00,100 - INFO - read data.csv,,,,\n"
            + "1,,,,0.129,0.023,\n" * 9
            + "".join(
                f"2025-01-02 21:08:48,938 - INFO - Epoch [{e}/11], Train Loss: {t}, Validation Loss: {v}\n"
                for e, t, v in LOSSES
            ),
        ),
    ],
)
def test_both_losses_are_read_over_the_epochs(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    run = read(path)
    found = vital_series(run)
    assert found["loss"] == ([*range(12)], [loss for _, loss, _ in LOSSES])
    assert found["val_loss"] == ([*range(12)], [loss for _, _, loss in LOSSES])
    assert run.header["context"]["clock"] == "epoch"


def test_a_curve_of_tensorboard_is_what_its_file_is_called(tmp_path):
    text = "Wall time,Step,Value\n" + "".join(f"{1.7e9 + step},{step},{2 - step / 30}\n" for step in range(20))
    (tmp_path / "train_loss.csv").write_text(text)
    assert columns(read(tmp_path / "train_loss.csv"))["loss"] == "train_loss"
    (tmp_path / "export.csv").write_text(text)
    with pytest.raises(SourceError, match="--map loss=COLUMN"):
        read(tmp_path / "export.csv")


def test_a_time_that_never_changes_is_no_clock(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {n} loss 2.5 step_time 0.2{n % 7}s data_time 0.010s\n" for n in range(40)))
    assert columns(read(path))["data_seconds"] == "data_time"


def test_what_c_prints_on_windows_for_nan_is_nan(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("step,loss,lr\n" + "".join(f"{n},{'-nan(ind)' if n > 9 else 2.5},0.1\n" for n in range(20)))
    assert len(vital_series(read(path))["loss"][0]) == 20


def test_a_log_whose_loss_nobody_recognizes_is_not_called_healthy(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("step,lr,my_fit,psnr\n" + "".join(f"{n},0.1,{3 - n / 50},{20 + n / 9}\n" for n in range(60)))
    report = diagnose(read(path))
    assert report.health == "healthy"
    assert verdict(report) == "Nothing was found up to step 59, but no column was recognized as the loss."
