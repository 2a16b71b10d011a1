"""Logs as other people's tools write them: what must be read of each, and what must be said of it."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from torchdoctor import diagnose
from torchdoctor.errors import SourceError
from torchdoctor.records import INFORMATIVE
from torchdoctor.reports import html
from torchdoctor.reports.formats import FORMATS
from torchdoctor.sources import labels, read, read_all
from torchdoctor.sources.vital_series import vital_series

N = 40
NAN = float("nan")


def falling(start: float, end: float, wobble: float = 0.01) -> list[float]:
    return [round(end + (start - end) * math.exp(-i / 10) * (1 + wobble * math.sin(7 * i)), 4) for i in range(N)]


LOSS, HELD_OUT = falling(2.4, 0.4), falling(2.3, 0.5)
RATE = [round(0.01 * (1 - i / N), 6) for i in range(N)]
BLOWN_UP = [value if i < 30 else NAN for i, value in enumerate(LOSS)]
LEARNED_BY_HEART = [round(2.3 * math.exp(-i / 6), 4) for i in range(N)]
FORGOTTEN = [round(2.2 * math.exp(-i / 4) + 0.6 + max(0, i - 10) * 0.05, 4) for i in range(N)]


def lines(line: Callable[[int], str]) -> str:
    return "".join(line(i) for i in range(N))


class Sample(NamedTuple):
    """A log, and the right reading of it."""

    text: str
    clock: str
    steps: tuple[int, int]
    loss: Sequence[float] = LOSS
    val: Sequence[float] | None = None
    rate: Sequence[float] | None = None
    sick: str = ""
    name: str = "log"


def mmcv(i: int) -> str:
    epoch, place = divmod(i, 10)
    row = {"mode": "train", "epoch": epoch + 1, "iter": (place + 1) * 50, "lr": RATE[i], "loss": LOSS[i], "time": 0.2}
    val = {"mode": "val", "epoch": epoch + 1, "iter": 620, "lr": RATE[i], "bbox_mAP": 0.1 + i / 100}
    return json.dumps(row) + "\n" + (json.dumps(val) + "\n" if place == 9 else "")


def ultralytics(i: int) -> str:
    bars = (
        f"\r{f'{i + 1}/{N}':>11}{'2.31G':>11}{LOSS[i] + (100 - done):>11.5g}{1:>11}{640:>11}: {done:>3}%|#| {done}/9 []"
        for done in (0, 50, 100)
    )
    return (
        "\n      Epoch    GPU_mem   box_loss  Instances       Size\n"
        + "".join(bars)
        + "\n                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|##| 4/4 [0]"
        + f"\n                   all        128        929      0.5      0.5      {0.3 + i / 100:.3f}      0.2"
        + "\n                   cat        128        400      0.1      0.1      0.011      0.1\n"
    )


def caffe(i: int) -> str:
    step, head = i * 100, "I0717 21:06:08.612304  9965 "
    test = (
        f"{head}solver.cpp:337] Iteration {step}, Testing net (#0)\n"
        f"{head}solver.cpp:404]     Test net output #0: accuracy = 0.{50 + i}96\n"
        f"{head}solver.cpp:404]     Test net output #1: loss = {HELD_OUT[i]} (* 1 = {HELD_OUT[i]} loss)\n"
    )
    return (
        (test if i % 10 == 0 else "")
        + f"{head}solver.cpp:228] Iteration {step}, loss = {LOSS[i]}\n"
        + f"{head}solver.cpp:244]     Train net output #0: loss = {LOSS[i]} (* 1 = {LOSS[i]} loss)\n"
        + f"{head}sgd_solver.cpp:106] Iteration {step}, lr = {RATE[i]}\n"
    )


def tidy(kind: str) -> str:
    """All of one metric, then all of the next: the steps begin anew."""
    rows = [
        (name, i * 10, values[i])
        for name, values in (("train_loss", LOSS), ("val_loss", HELD_OUT), ("lr", RATE))
        for i in range(N)
    ]
    if kind == "csv":
        return "metric,step,value\n" + "".join(f"{name},{step},{value}\n" for name, step, value in rows)
    return "".join(json.dumps({"metricName": name, "metricValue": str(v), "step": s}) + "\n" for name, s, v in rows)


def notebook() -> str:
    rows = lines(lambda i: f"<tr>\n <td>{(i + 1) * 10}</td>\n <td>{LOSS[i]}</td>\n <td>{HELD_OUT[i]}</td>\n</tr>\n")
    head = "<tr><th>Step</th>\n<th>Training Loss</th>\n<th>Validation Loss</th></tr>"
    html = f"<div><progress value='3'></progress>[3/3 Epoch 3/3]</div>\n<table>{head}{rows}</table><p>"
    cell = {"cell_type": "code", "source": ["fit()"], "outputs": [{"data": {"text/html": [html], "text/plain": "?"}}]}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


SAMPLES = {
    "mmcv: batches of validation are no clock": Sample(lines(mmcv), "step", (50, 2000), rate=RATE, name="a.log.json"),
    "Ultralytics on a console": Sample(lines(ultralytics), "epoch", (1, N)),
    "Caffe: what comes before the first count": Sample(lines(caffe), "step", (0, 3900), val=HELD_OUT[::10], rate=RATE),
    "LightGBM": Sample(
        lines(lambda i: f"[{i + 1}]\ttraining's multi_logloss: {LOSS[i]}\tvalid_1's multi_logloss: {HELD_OUT[i]}\n"),
        *("step", (1, N)),
        val=HELD_OUT,
    ),
    "XGBoost": Sample(
        lines(lambda i: f"[{i}]\ttrain-mlogloss:{LOSS[i]}\teval-mlogloss:{HELD_OUT[i]}\n"),
        *("step", (0, N - 1)),
        val=HELD_OUT,
    ),
    "CatBoost, learned by heart": Sample(
        lines(lambda i: f"{i}:\tlearn: {LEARNED_BY_HEART[i]}\ttest: {FORGOTTEN[i]}\tbest: 0.7 (9)\ttotal: {i}ms\n"),
        *("step", (0, N - 1)),
        loss=LEARNED_BY_HEART,
        val=FORGOTTEN,
        sick="overfitting",
    ),
    "Darknet: names behind the numbers": Sample(
        lines(lambda i: f"{i + 1}: {LOSS[i]}, {LOSS[i]} avg, {RATE[i]} rate, 3.1 seconds, {i * 64} images\n"),
        *("step", (1, N)),
        rate=RATE,
    ),
    "spaCy": Sample(
        "ℹ Pipeline: ['ner']\nℹ Initial learn rate: 0.001\n"
        "E    #       LOSS NER  ENTS_F  SCORE \n---  ------  ------  ---\n"
        + lines(lambda i: f"{i // 4:>3}{i * 200:>8}{LOSS[i]:>10}{40 + i:>8}{0.4:>8}\n"),
        *("step", (0, (N - 1) * 200)),
    ),
    "skorch, in colours": Sample(
        "  epoch    train_loss    valid_loss     dur\n-------  ------------  ------------  ------\n"
        + lines(lambda i: f"{i + 1:>7}        \x1b[36m{LOSS[i]}\x1b[0m        \x1b[35m{HELD_OUT[i]}\x1b[0m  0.1\n"),
        *("epoch", (1, N)),
        val=HELD_OUT,
    ),
    "one value a row, a metric after the other": Sample(tidy("csv"), "step", (0, 390), val=HELD_OUT, rate=RATE),
    "the same as JSON Lines": Sample(tidy("json"), "step", (0, 390), val=HELD_OUT, rate=RATE),
    "curves by their axes": Sample(
        json.dumps({"loss": {"train": {"x": [*range(N)], "y": LOSS}, "val": {"x": [*range(N)], "y": HELD_OUT}}}),
        *("step", (0, N - 1)),
        val=HELD_OUT,
    ),
    "a notebook": Sample(notebook(), "step", (10, N * 10), val=HELD_OUT, name="train.ipynb"),
    "PaddleClas: seconds are called costs": Sample(
        lines(
            lambda i: (
                f"[2021/11/11 11:11:11] root: [Train][Epoch {i // 10 + 1}/4][Iter: {i % 10 * 10}/100]lr: {RATE[i]}, "
                f"CELoss: {LOSS[i]}, loss: {LOSS[i]}, batch_cost: 0.31s, reader_cost: 0.01, ips: 201 images/sec\n"
                + (
                    f"[Eval][Epoch {i // 10 + 1}][Iter: 0/20]loss: {HELD_OUT[i]}, batch_cost: 0.5s\n"
                    if i % 10 == 9
                    else ""
                )
            )
        ),
        *("step", (0, 390)),
        val=HELD_OUT[9::10],
        rate=RATE,
    ),
    "a bar shows the last validation again and again": Sample(
        lines(
            lambda i: f"Epoch {i // 10} | iter {i} | loss train: {LOSS[i]}, val: {2.4 - i // 10 * 0.5} | 310.21 ms\n"
        ),
        *("step", (0, N - 1)),
        val=(2.4, 1.9, 1.4, 0.9),
    ),
    "both in one": Sample(
        lines(lambda i: f"Epoch {i + 1} | loss (train/val): {LOSS[i]} / {HELD_OUT[i]}\n"),
        *("epoch", (1, N)),
        val=HELD_OUT,
    ),
    "what a graph network's example prints: accuracies without their name": Sample(
        lines(lambda i: f"Epoch: {i + 1:03d}, Loss: {LOSS[i]}, Train: 0.9, Val: 0.8, Test: 0.7\n"), "epoch", (1, N)
    ),
    "a sentence": Sample(lines(lambda i: f"Loss after epoch {i}: {LOSS[i]}\n"), "epoch", (0, N - 1)),
    "steps in thousands": Sample(lines(lambda i: f"step {1.5 + i:.1f}K | loss {LOSS[i]}\n"), "step", (1500, 40500)),
    "NaN as C on Windows writes it": Sample(
        lines(lambda i: f"Iteration {i}, loss = {'-1.#IND' if i >= 30 else LOSS[i]}\n"),
        *("step", (0, N - 1)),
        loss=BLOWN_UP,
        sick="nan-or-inf",
    ),
}


def close(values: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(values) == len(wanted) and values == pytest.approx(list(wanted), rel=1e-3, nan_ok=True)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_dialect_is_read_and_judged(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    path = tmp_path / sample.name
    path.write_text(sample.text, encoding="utf-8")
    run = read(path)
    series = vital_series(run.records)
    steps, values = series["loss"]
    assert close(values, sample.loss)
    assert (steps[0], steps[-1]) == sample.steps
    assert run.header["context"]["clock"] == sample.clock
    for vital, wanted in (("val_loss", sample.val), ("lr", sample.rate)):
        if wanted is not None:
            assert close(series[vital][1], wanted)
    assert sample.val is not None or "val_loss" not in series
    raised = {item.name for item in diagnose(run).symptoms if item.severity != "info"} - INFORMATIVE
    assert raised >= {sample.sick} if sample.sick else not raised


def test_several_runs_in_one_tidy_table(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("run_id,key,value,step\n" + lines(lambda i: f"a,loss,{LOSS[i]},{i}\nb,loss,{HELD_OUT[i]},{i}\n"))
    runs = {run.header["context"]["run"]: vital_series(run.records)["loss"][1] for run in read_all(path)}
    assert runs == {"a": LOSS, "b": HELD_OUT}


def test_a_packed_file_that_breaks_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.log.gz"
    text = "".join(f"step {i} loss {3 - i * 1e-4 + (i * 7919) % 101 * 1e-3:.5f}\n" for i in range(5000))
    path.write_bytes(gzip.compress(text.encode())[:-4000])
    run = read(path)
    assert 0 < run.step < 4999
    assert any("compressed and cut off" in note for note in run.notes)


@pytest.mark.parametrize("damaged", [slice(-8, None), slice(900, 909)])
def test_a_whole_packed_file_with_damage_is_not_called_cut_off(tmp_path: Path, damaged: slice) -> None:
    path = tmp_path / "train.log.gz"
    text = "".join(f"step {i} loss {3 - i * 1e-4 + (i * 7919) % 101 * 1e-3:.5f}\n" for i in range(5000))
    data = bytearray(gzip.compress(text.encode()))
    data[damaged] = b"\xff" * len(data[damaged])
    path.write_bytes(data)
    run = read(path)
    assert not run.torn and not any("cut off" in note for note in run.notes)
    assert any("compressed and damaged" in note for note in run.notes)


def test_what_a_small_packed_file_becomes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.sources.opening.SMALL", 2**16)
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(b"step 1 loss 2.5\n" * 500_000))
    assert any("too long" in note for note in read(path).notes)


def test_numbers_without_names_in_a_file_that_is_called_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "train_loss.csv"
    path.write_text(lines(lambda i: f"{float(i)},{1.7e12 + i},{LOSS[i]}\n"))
    assert vital_series(read(path).records)["loss"] == ([*range(N)], LOSS)


def test_binary_data_with_a_plausible_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    noise = bytes((i * i * 31 + i // 7) % 256 for i in range(100_000))
    path.write_bytes(b"step 1 loss 2\nstep 2 loss 1\n" + noise)
    with pytest.raises(SourceError, match="binary data"):
        read(path)


def test_a_broken_document_says_where(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text('{"loss": [3, 2, 1],\n "val_loss": [3, 2,, 1]}')
    with pytest.raises(SourceError, match=r"breaks at line 2, column 20"):
        read(path)


def test_a_log_of_a_million_lines_of_one_layout_is_read_by_its_layout(tmp_path: Path) -> None:
    """The same row whether a line is understood or only laid out like one that was."""
    path = tmp_path / "train.log"
    path.write_text(lines(lambda i: f"2024-01-01 10:00:{i:02d} | epoch 1 | step {i:5d} | loss {LOSS[i]:.4f}\n"))
    assert vital_series(read(path).records)["loss"] == ([*range(N)], LOSS)


EVIL = '\x1b]0;title\x07\x1b[31m<script>alert(1)</script>"><img src=x onerror=alert(1)>'


def test_names_with_escapes_and_markup_are_harmless_in_every_format(tmp_path: Path) -> None:
    path = tmp_path / "evil.csv"
    cell = EVIL.replace('"', '""')
    row = f'"{cell} {{0}}","{cell} loss",{{1}},{{2}}\n'
    path.write_text("run,metric,step,value\n" + lines(lambda i: row.format(1, i, BLOWN_UP[i]) + row.format(2, i, i)))
    runs = read_all(path)
    named = list(zip(labels(runs), map(diagnose, runs), strict=True))
    assert len(named) == 2
    for form, written in FORMATS.items():
        assert "\x1b" not in written(named), form
    page = html.render(named[0][1])
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    assert "\x1b" not in page


def test_one_file_an_epoch_is_one_run(tmp_path: Path) -> None:
    for i in range(N):
        metrics = {"epoch": i, "training_loss": LOSS[i], "validation_loss": HELD_OUT[i], "training_duration": "0:01:02"}
        (tmp_path / f"metrics_epoch_{i}.json").write_text(json.dumps(metrics, indent=2))
    series = vital_series(read(tmp_path).records)
    assert series["loss"] == ([*range(N)], LOSS)
    assert series["val_loss"] == ([*range(N)], HELD_OUT)


def test_steps_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n" + lines(lambda i: f"{i - 10},{LOSS[i]}\n"))
    run = read(path)
    assert run.step == N - 11
    assert any(note.startswith("10 points at steps below zero") for note in run.notes)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_in_a_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n" + lines(lambda i: f"{i},{LOSS[i]}\n"))
    (tmp_path / "b.csv").write_text("step,loss\n1,2\n2,1\n")
    (tmp_path / "b.csv").chmod(0)
    (tmp_path / "inner").mkdir(mode=0)
    assert [run.path.name for run in read_all(tmp_path)] == ["a.csv"]
    with pytest.raises(SourceError, match=r"b\.csv: Permission denied"):
        read(tmp_path / "b.csv")


def test_what_is_no_file_is_passed_over_and_never_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,loss\n" + lines(lambda i: f"{i},{LOSS[i]}\n"))
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "endless.log").symlink_to("/dev/zero")
    (tmp_path / "inner").symlink_to(tmp_path)
    (tmp_path / "self.csv").symlink_to(tmp_path / "self.csv")
    assert [run.path.name for run in read_all(tmp_path)] == ["a.csv"]
    for name in ("pipe.log", "endless.log"):
        with pytest.raises(SourceError, match="neither a file nor a folder"):
            read(tmp_path / name)


def test_an_error_that_is_called_accuracy_is_better_when_lower(tmp_path: Path) -> None:
    error = [0.02 + 0.04 * 0.8**i for i in range(N)]
    rows = [f"{i},{LOSS[i]},{HELD_OUT[i]},{error[i]:.5f},{0.6 * error[i]:.5f}\n" for i in range(N)]
    (tmp_path / "log.csv").write_text("".join(["epoch,loss,val_loss,acc,val_acc\n", *rows]))
    run = read(tmp_path / "log.csv")
    assert run.header["context"]["better"] == {"train_accuracy": "lower", "val_accuracy": "lower"}
    report = diagnose(run)
    assert report.health == "healthy", [str(item) for item in report.symptoms]
    assert any("read as an error, lower is better" in note for note in report.notes)
    risen = [f"{i},{LOSS[i]},{HELD_OUT[i]},{1 - error[i]:.5f},{1 - 2 * error[i]:.5f}\n" for i in range(N)]
    (tmp_path / "log.csv").write_text("".join(["epoch,loss,val_loss,acc,val_acc\n", *risen]))
    assert set(read(tmp_path / "log.csv").header["context"]["better"].values()) == {"higher"}


def test_a_term_that_was_never_computed_is_left_out_of_the_sum(tmp_path: Path) -> None:
    rows = [f"{i},{LOSS[i]},nan\n" for i in range(N)]
    (tmp_path / "log.csv").write_text("".join(["step,classification_loss,regression_loss\n", *rows]))
    run = read(tmp_path / "log.csv")
    assert run.header["context"]["columns"]["loss"] == "classification_loss"
    assert diagnose(run).health == "healthy" and "not used: regression_loss" in run.notes
    broken = [f"{i},{BLOWN_UP[i]},nan\n" for i in range(N)]
    (tmp_path / "log.csv").write_text("".join(["step,classification_loss,regression_loss\n", *broken]))
    assert "nan-or-inf" in {item.name for item in diagnose(tmp_path / "log.csv").symptoms}


def test_a_perplexity_that_is_infinite_is_said(tmp_path: Path) -> None:
    rows = [{"step": i, "eval_loss": 13.8 - i / 100, "eval_perplexity": math.inf} for i in range(5)]
    (tmp_path / "log.json").write_text(json.dumps(rows))
    [found] = [item for item in diagnose(tmp_path / "log.json").symptoms if item.severity != "info"]
    assert found.name == "nan-or-inf" and found.message == "perplexity is infinite from step 0 on"


def test_a_loss_of_exactly_zero_in_an_epoch_that_is_not_over(tmp_path: Path) -> None:
    rows = [f"{50 * i},0,{2.6e-5 if i < 5 else 0.0}\n" for i in range(60)]
    (tmp_path / "log.csv").write_text("".join(["step,epoch,train_loss_step\n", *rows]))
    raised = {item.name for item in diagnose(tmp_path / "log.csv").symptoms if item.severity != "info"}
    assert raised == {"suspiciously-low-loss"}
