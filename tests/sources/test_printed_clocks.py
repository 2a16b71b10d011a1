"""What people print: which column counts, which lines are of validation, several runs in one file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from torchdoctor.sources import labels, read, read_all
from torchdoctor.sources.vital_series import vital_series

FALLING = [2.0 / (1 + step) for step in range(12)]

LOGS = {
    "a bar that is always full does not count": (
        "".join(f"Epoch {e}/12: 100%|####| 935/935 [01:10<00:00, loss={v:.4f}]\n" for e, v in enumerate(FALLING, 1)),
        {"loss": 12},
        "epoch",
    ),
    "epochs of which every process prints its losses": (
        "".join(
            f"INFO - END {phase} EPOCH {e}, {name}: {v + rank / 1e4:.4f}\n"
            for e, v in enumerate(FALLING)
            for phase, name in (("TRAIN LOOP", "Loss"), ("VALIDATION", "Validation Loss"))
            for rank in range(4)
        ),
        {"loss": 12, "val_loss": 12},
        "epoch",
    ),
    "a count that comes seldom does not count": (
        "Update[100]: now\nUpdate[200]: now\n"
        + "".join(f"Epoch[{e}] Batch [{b}] loss={v + b / 1e4:.4f}\n" for e, v in enumerate(FALLING) for b in (20, 40)),
        {"loss": 24},
        "step",
    ),
    "a title names the phase of the lines under it": (
        "".join(
            f"Epoch {e} loss: {v:.4f}\nValidation metrics:\naccuracy: {1 - v / 3:.4f}\n" for e, v in enumerate(FALLING)
        ),
        {"loss": 12, "val_accuracy": 12},
        "epoch",
    ),
    "an evaluation after the epoch is not training": (
        "".join(
            f"Epoch {e}/12\n9/9 [=====] - ETA: 0s - loss: {v:.4f}\n"
            f"9/9 [=====] - 1s - loss: {v:.4f} - val_loss: {v:.4f}\n"
            for e, v in enumerate(FALLING, 1)
        )
        + "4/4 [=====] - 0s - loss: 9.0\n",
        {"loss": 12, "val_loss": 12},
        "epoch",
    ),
    "a run whose epochs are counted anew goes on": (
        "".join(f"Epoch {1 + e % 3}/3\nloss: {v:.4f}\n" for e, v in enumerate(FALLING)),
        {"loss": 12},
        "epoch",
    ),
    "a number that rises evenly counts": (
        "".join(f"Snapshot {2000 * e} saved, average loss: {v:.4f}\n" for e, v in enumerate(FALLING)),
        {"loss": 12},
        "step",
    ),
    "epoch and batch with a stroke between them": (
        "".join(f"TRAIN Batch {e // 6}/{100 * (e % 6)} loss {v:.4f} lr 0.001\n" for e, v in enumerate(FALLING)),
        {"loss": 12},
        "step",
    ),
    "a table whose sum is called total": (
        "Starting training for 12 epochs\n" * 6
        + "     Epoch   gpu_mem       box       obj     total    labels\n"
        + "".join(
            f"      {e}/11     3.01G   {v:.4f}   {v:.4f}   {2 * v:.4f}   12: 100%|##| 9/9 [00:01<00:00]\n"
            for e, v in enumerate(FALLING)
        ),
        {"loss": 12},
        "epoch",
    ),
    "Deeplearning4j and Python 2": (
        "".join(f"[main] INFO listeners.Listener - Score at iteration {9 * e} is {v}\n" for e, v in enumerate(FALLING)),
        {"loss": 12},
        "step",
    ),
    "spaCy's losses": (
        "".join(f"('Epoch : ', {e}, ' batch : ', 436)\n('Losses', {{u'ner': {v}}})\n" for e, v in enumerate(FALLING)),
        {"loss": 12},
        "epoch",
    ),
    "a bar of validation before another's line": (
        "".join(
            f"Validation: |   | 0/? [00:00<?, ?it/s]INFO Epoch {e}: v_kl {v} kl {v} v_loss {v + 1} loss {v}\n"
            for e, v in enumerate(FALLING)
        ),
        {"loss": 12, "val_loss": 12},
        "epoch",
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_printed(name: str, tmp_path: Path) -> None:
    text, wanted, clock = LOGS[name]
    path = tmp_path / "train.log"
    path.write_text(text)
    run = read(path)
    series = vital_series(run.records)
    assert {vital: len(series[vital][1]) for vital in wanted} == wanted
    assert run.header["context"]["clock"] == clock
    assert series[next(iter(wanted))][1][-1] < series[next(iter(wanted))][1][0]


def test_what_a_bar_of_lightning_holds_is_of_the_epoch_before(tmp_path):
    lines = []
    for epoch in range(4):
        held = f", val_loss={0.7 + 0.1 * epoch:.3f}, train_loss={0.6 - 0.1 * epoch:.3f}" if epoch else ""
        fresh = f", val_loss={0.8 + 0.1 * epoch:.3f}, train_loss={0.5 - 0.1 * epoch:.3f}"
        lines += [
            f"Epoch {epoch}: {place * 50}%|##| {place}/2 [00:01<00:01, 2it/s, v_num=3{held}]" for place in (0, 1, 2)
        ]
        lines += ["Validation DataLoader 0: 100%|####| 4/4 [00:00<00:00, 41.78it/s]"]
        lines += [f"Epoch {epoch}: 100%|####| 2/2 [00:01<00:00, 2it/s, v_num=3{fresh}]"]
        lines += [f"Epoch {epoch}:   0%|    | 0/2 [00:00<?, ?it/s, v_num=3{fresh}]"]
    path = tmp_path / "nohup.out"
    path.write_text("\n".join(lines))
    found = vital_series(read(path).records)
    assert list(found["val_loss"][1]) == pytest.approx([0.8, 0.9, 1.0, 1.1])
    assert list(found["loss"][1]) == pytest.approx([0.5, 0.4, 0.3, 0.2])


def test_objects_that_are_kept_by_split_and_a_loss_of_cross_validation(tmp_path):
    history = {
        "train": [{"loss": 0.9}, {"loss": 0.5}, {"loss": 0.3}],
        "val": [{"loss": 1.0}, {"loss": 1.1}, {"loss": 1.3}],
    }
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history))
    found = vital_series(read(path).records)
    assert (found["loss"][1], found["val_loss"][1]) == ([0.9, 0.5, 0.3], [1.0, 1.1, 1.3])
    path = tmp_path / "train.log"
    path.write_text(
        "\n".join(f"[epoch {place}] training loss: {1.6 / place:.2f}, cv loss: 0.8{place}" for place in range(1, 6))
    )
    assert {"loss", "val_loss"} <= set(vital_series(read(path).records))


def test_epochs_that_are_named_after_their_batches(tmp_path):
    lines = []
    for epoch in range(4):
        lines += [f"train --- Current batch:{100 * b}/200  loss:[ {1 / (2 * epoch + b):.4f}]" for b in (1, 2)]
        lines += [f"Epoch [{epoch}]/[3]  Training Phase Accuracy: 0.{5 + epoch}"]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*lines, "train --- Current batch:100/200  loss:[ 0.1]"]))
    steps, values = vital_series(read(path).records)["loss"]
    assert list(steps) == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert values[-1] == 0.1


def test_how_many_epochs_there_will_be_does_not_count(tmp_path):
    path = tmp_path / "search.log"
    rows = [(run, epoch) for run in range(3) for epoch in range(1, 11)]
    path.write_text(
        "\n".join(
            f"Config: {{'num_epochs': 10, 'lr': 0.1}}, Epoch {epoch}/10, Train Loss: {run + 2 / epoch:.4f}"
            for run, epoch in rows
        )
    )
    for number, run in enumerate(read_all(path)):
        assert run.header["context"]["clock"] == "epoch"
        losses = [number + round(2 / epoch, 4) for epoch in range(1, 11)]
        assert vital_series(run.records)["loss"][1] == pytest.approx(losses)


def test_runs_that_were_appended_are_judged_each_though_one_was_resumed_in_its_midst(tmp_path):
    path = tmp_path / "train.log"
    epochs = [*range(1, 21), *range(1, 16), *range(12, 21), *range(1, 13)]
    path.write_text("\n".join(f"Epoch: {epoch}, Avg_loss: {5 / epoch:.3f}, Duration: 3.6s" for epoch in epochs))
    runs = read_all(path)
    assert [run.header["context"]["clock"] for run in runs] == ["epoch"] * 3
    assert [run.sessions for run in runs] == [1, 2, 1]
    steps = [list(vital_series(run.records)["loss"][0]) for run in runs]
    assert steps == [list(range(1, 21)), list(range(1, 21)), list(range(1, 13))]


@pytest.mark.parametrize(
    "title",
    [
        "===== Fold {} =====",
        "Fold {}/5",
        "========== fold: {} training ==========",
        "2024-01-01 10:00:00 INFO Training fold {}...",
        "Starting fold {} of 5",
    ],
)
def test_every_fold_of_a_printed_log_is_a_run(title, tmp_path):
    path = tmp_path / "train.log"
    losses = {fold: [math.nan if fold == 2 and e > 6 else 2 / e for e in range(1, 31)] for fold in (1, 2, 3)}
    path.write_text(
        "".join(
            f"{title.format(fold)}\n" + "".join(f"Epoch {e}/30 - loss: {v:.4f}\n" for e, v in enumerate(values, 1))
            for fold, values in losses.items()
        )
    )
    runs = read_all(path)
    assert labels(runs) == [f"{path} (fold {fold})" for fold in (1, 2, 3)]
    broken = [int(np.isnan(vital_series(run.records)["loss"][1]).sum()) for run in runs]
    assert broken == [0, 24, 0]
    assert read(f"{path} (fold 2)").remarks == runs[1].remarks


def test_a_trial_that_is_named_at_its_end_is_a_run(tmp_path):
    path = tmp_path / "train.log"
    told = "[I 2024-01-01 10:00:00,123] Trial {} finished with value: 0.87 and parameters: {{'lr': 0.001}}.\n"
    lines = "".join(f"epoch {e} loss {v:.4f}\n" for e, v in enumerate(FALLING))
    path.write_text("".join(lines + told.format(trial) for trial in range(4)))
    assert labels(read_all(path)) == [f"{path} (trial {trial})" for trial in range(4)]


@pytest.mark.parametrize(("begins", "runs"), [((2.3, 1.4), [5, 5]), ((2.3, 0.4), [10])])
def test_a_second_fit_is_a_run_unless_the_loss_goes_on(begins, runs, tmp_path):
    bar = "100/100 [==============================] - 5s 50ms/step - loss: {:.4f} - val_loss: {:.4f}\n"
    path = tmp_path / "train.log"
    path.write_text(
        "".join(f"Epoch {e}/5\n" + bar.format(first / e, first / e + 0.1) for first in begins for e in range(1, 6))
    )
    assert [len(vital_series(run.records)["val_loss"][0]) for run in read_all(path)] == runs


def test_a_count_at_the_end_of_a_block_of_lines_is_of_this_block(tmp_path):
    block = (
        "#####\n   Learning iteration {}/1500\n\n       Value function loss: {:.4f}\n        Surrogate loss: -0.0109\n"
        "           Mean reward: {:.2f}\n-----\n      Total timesteps: {}\n       Iteration time: 1.32s\n\n"
    )
    path = tmp_path / "train.log"
    path.write_text("".join(block.format(i, 0.5 / (1 + i), i, 98304 * (i + 1)) for i in range(20)))
    run = read(path)
    steps, values = vital_series(run.records)["reward"]
    assert (steps, values) == ([98304 * (i + 1) for i in range(20)], [*range(20)])
    assert not any("two values" in note for note in run.notes)


def test_a_count_that_is_wrapped_with_everything_counts(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [{"data": {"step": step, "metrics": {"loss": loss}}} for step, loss in enumerate(FALLING)]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read(path).header["context"]["clock"] == "step"


PRETRAINED = [f"  dino pretrain ep {epoch:2}/12  loss=6.93{epoch:02}" for epoch in range(1, 13)]


def test_pretraining_and_fine_tuning_are_two_runs(tmp_path):
    path = tmp_path / "ssl.log"
    tuned = [f"  ft ep {epoch:2}/10  train={0.2 / epoch:.4f}  val_acc=0.5{epoch % 10}" for epoch in range(1, 11)]
    path.write_text("\n".join([*PRETRAINED, "saved the encoder", *tuned]))
    first, second = read_all(path)
    assert len(vital_series(first.records)["loss"][1]) == 12
    assert len(vital_series(second.records)["loss"][1]) == 10
    assert second.header["context"]["run"] == "part 2 of 2"


@pytest.mark.parametrize(
    "tail",
    [
        [f"  pretrain ep {epoch:2}/30  total_loss={1 / epoch:.4f}" for epoch in range(13, 25)],  # goes on
        [f"  pretrain ep {epoch:2}/12  val_loss={1 / epoch:.4f}" for epoch in range(1, 13)],  # of validation
        [f"  pretrain ep {epoch:2}/12  train loss={1 / epoch:.4f}" for epoch in range(1, 4)],  # too few
    ],
)
def test_one_run_of_which_other_things_are_printed_later_is_one(tail, tmp_path):
    path = tmp_path / "train.log"
    path.write_text("\n".join([*PRETRAINED, *tail]))
    assert len(read_all(path)) == 1


def test_a_file_that_is_called_val_loss_is_of_validation(tmp_path):
    lines = "\n".join(
        f"epoch: {epoch} iter: {750 * epoch} loss: {1 / epoch:.4f} accuracy: 0.8" for epoch in range(1, 9)
    )
    for name, vital in (("val_loss_deeper.txt", "val_loss"), ("loss_deeper.txt", "loss"), ("train_loss.txt", "loss")):
        path = tmp_path / name
        path.write_text(lines)
        found = vital_series(read(path).records)
        assert vital in found and len({"loss", "val_loss"} & found.keys()) == 1


def test_a_count_and_a_loss_with_a_stroke_under_them(tmp_path):
    path = tmp_path / "train_loss.txt"
    path.write_text("\n".join(f"{epoch}_{2 / epoch:.4f}" for epoch in range(1, 9)))
    assert vital_series(read(path).records)["loss"][1] == pytest.approx([round(2 / epoch, 4) for epoch in range(1, 9)])


@pytest.mark.parametrize(("missing", "kept"), [({3, 4, 6, 7, 8, 10}, True), ({1, 2, 4, 5, 7, 8, 10, 11}, False)])
def test_a_validation_that_is_nan_beside_an_accuracy_is_nan_unless_it_comes_at_regular_epochs(missing, kept, tmp_path):
    path = tmp_path / "history.csv"
    rows = [f"{e},{2 / (1 + e):.3f},{'nan' if e in missing else 0.5},0.{50 + e}" for e in range(13)]
    path.write_text("epoch,loss,val_loss,val_acc\n" + "\n".join(rows))
    assert bool(np.isnan(vital_series(read(path).records)["val_loss"][1]).any()) is kept


def test_a_count_that_starts_over_where_a_run_was_resumed_goes_on(tmp_path):
    rows = [(epoch, 7142 * (epoch if epoch < 9 else epoch - 8)) for epoch in range(1, 17)]
    lines = [{"epoch": epoch, "step": step, "loss": 4.0 / epoch} for epoch, step in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = read(tmp_path / "log.jsonl")
    assert [record["step"] for record in run.records if record["type"] == "vitals"] == [
        7142 * place for place in range(1, 17)
    ]


CODE = """
def log_step():
    print(f"step:{step}/{steps} train_loss:{loss:.4f}")
    print(f"{step}/{steps} val_loss: {val_loss:.4f} val_bpb: {val_bpb:8.4f}")
"""


@pytest.mark.parametrize(
    ("step", "later"),
    [
        ("step:{}/9000 ", "  ttt_chunk [{}/1893] bpb=1.2 time=1.5s\n"),
        ("{}/9000 ", "tttg: c{}/250 lr:0.001000 t:2.5s\n"),
        ("step {}/9000 | ", "eval window {} running_bpb: 1.2\n"),
    ],
)
def test_what_is_evaluated_in_many_pieces_after_the_end_does_not_count_the_steps(step, later, tmp_path):
    steps, evaluated = [1, 2, 3, *range(500, 5001, 500)], {0: 6.9, 2500: 3.1, 5000: 2.2}
    rows = {at: [f"train_loss: {5.0 / (i + 1):.4f} train_time: 100ms"] for i, at in enumerate(steps)}
    for at, loss in evaluated.items():
        rows[at] = [*rows.get(at, []), f"val_loss: {loss} val_bpb: 2.1"]
    lines = "".join(f"{step.format(at)}{text}\n" for at in sorted(rows) for text in rows[at])
    path = tmp_path / "train.log"
    path.write_text(CODE + lines + "".join(later.format(1 + 5 * i) for i in range(300)))
    run = read(path)
    found = vital_series(run.records)
    assert run.header["context"]["clock"] == "step"
    assert found["loss"][0] == steps
    assert found["val_loss"] == ([*evaluated], [*evaluated.values()])
    assert found["val_bpb"] == ([*evaluated], [2.1, 2.1, 2.1])


@pytest.mark.parametrize(("start", "last"), [([6.9, 6.9, 6.9], 2000), ([6.9, 4.1, 3.3], 6000)])
def test_a_count_that_starts_over_counts_on_unless_training_begins_anew_with_it(start, last, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"step:{100 * i}/2000 train_loss:{first - (first - 2.5 - first / 4) * i / 20:.4f}\n"
            for first in start
            for i in range(1, 21)
        )
    )
    assert {run.step for run in read_all(path)} == {last}
