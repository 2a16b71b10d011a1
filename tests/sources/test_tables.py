"""CSV, JSON, JSON Lines and Parquet, as people and programs write them."""

import gzip
import json

import pytest

import torchdoctor
from torchdoctor.errors import SourceError
from torchdoctor.offline import diagnose
from torchdoctor.sources import labels, read, read_all
from torchdoctor.sources.vital_series import vital_series


def written(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def series(path, **wish):
    return vital_series(read(path, **wish))


def test_sparse_rows_of_lightning(tmp_path):
    rows = ["epoch,step,train_loss_step,train_loss_epoch,val_loss"]
    for step in range(0, 200, 10):
        rows.append(f"{step // 100},{step},{3 - step / 100},,")
        if step % 100 == 90:
            rows.append(f"{step // 100},{step},,2.5,")
            rows.append(f"{step // 100},{step},,,{3.5 - step / 100}")
    run = read(written(tmp_path, "\n".join(rows) + "\n"))
    found = vital_series(run)
    assert found["loss"][0] == list(range(0, 200, 10))
    assert found["val_loss"] == ([90, 190], [2.6, 1.6])
    assert run.header["context"]["logged_every"] == 10


@pytest.mark.parametrize(
    "text",
    [
        "epoch,loss,val_loss\n0,2.5,2.6\n1,1.5,1.7\n2,1.25,1.5\n",
        "epoch;loss;val_loss\n0;2,5;2,6\n1;1,5;1,7\n2;1,25;1,5\n",
        "epoch\tloss\tval_loss\n0\t2.5\t2.6\n1\t1.5\t1.7\n2\t1.25\t1.5\n",
        "| epoch | loss | val_loss |\n|:--:|:--:|:--:|\n| 0 | 2.5 | 2.6 |\n| 1 | 1.5 | 1.7 |\n| 2 | 1.25 | 1.5 |\n",
        "epoch     loss     val_loss\n0         2.5      2.6\n1         1.5      1.7\n2         1.25     1.5\n",
        "  epoch,   loss,  val_loss\n  0,   2.5,   2.6\n  1,   1.5,   1.7\n  2,   1.25,   1.5\n",
        "# made by us\n\nepoch,loss,val_loss\r\n0,2.5,2.6\r\n1,1.5,1.7\r\n2,1.25,1.5\r\n",
        "run:a=1,b=2,c=3\nepoch,loss,val_loss\n0,2.5,2.6\n1,1.5,1.7\n2,1.25,1.5\n",
        'epoch,"loss",val_loss\n0,"2.5",2.6\n1,tensor(1.5),1.7\n2,"1.25",1.5\n',
        "epoch,loss,val_loss\n0,2.5,2.6\n1,1.5,1.7\nepoch,loss,val_loss\n2,1.25,1.5\n",
        "epoch,phase,loss\n0,train,2.5\n0,val,2.6\n1,train,1.5\n1,val,1.7\n2,train,1.25\n2,val,1.5\n",
        "loss,val_loss\n2.5,2.6\n1.5,1.7\n1.25,1.5\n",
    ],
)
def test_dialects_of_one_table(tmp_path, text):
    run = read(written(tmp_path, text))
    assert vital_series(run) == {"loss": ([0, 1, 2], [2.5, 1.5, 1.25]), "val_loss": ([0, 1, 2], [2.6, 1.7, 1.5])}
    assert run.header["context"]["clock"] == "epoch"
    assert not run.skipped


ROWS = [{"step": step, "train": {"loss": 3.0 - step}, "eval_loss": 3.5 - step} for step in range(3)]
DOCUMENTS = [
    ROWS,
    {"meta": {"lr": 0.1}, "rows": ROWS},
    {"loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 1.5]},
    {"history": {"loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 1.5]}, "params": {"epochs": 3}},
    {"train": {"loss": [3.0, 2.0, 1.0]}, "val": {"loss": [3.5, 2.5, 1.5]}},
    {"loss": {"0": 3.0, "1": 2.0, "2": 1.0}, "val_loss": {"0": 3.5, "1": 2.5, "2": 1.5}},
    {f"epoch_{epoch}": {"loss": 3.0 - epoch, "val_loss": 3.5 - epoch} for epoch in range(3)},
    {"loss": [[0, 3.0], [1, 2.0], [2, 1.0]], "val_loss": [[0, 3.5], [1, 2.5], [2, 1.5]]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_shapes_of_one_document(tmp_path, document):
    found = series(written(tmp_path, json.dumps(document, indent=1), "history.json"))
    assert found == {"loss": ([0, 1, 2], [3.0, 2.0, 1.0]), "val_loss": ([0, 1, 2], [3.5, 2.5, 1.5])}


def test_a_shorter_list_is_spread_over_the_longer(tmp_path):
    document = {"train_losses": [float(9 - step) for step in range(8)], "val_losses": [7.0, 3.0]}
    assert series(written(tmp_path, json.dumps(document), "h.json"))["val_loss"] == ([3, 7], [7.0, 3.0])


def test_several_runs_in_one_document(tmp_path):
    document = {name: {"loss": [3.0, 2.0, 1.0]} for name in ("adam", "sgd")}
    runs = read_all(written(tmp_path, json.dumps(document), "h.json"))
    assert [run.header["context"]["run"] for run in runs] == ["adam", "sgd"]


def test_json_lines_with_phases_settings_and_a_torn_end(tmp_path):
    lines = [json.dumps({"config": {"lr": 0.1, "api_key": "s3cret", "batch_size": 32}})]
    for epoch in range(1, 5):
        lines.append(json.dumps({"mode": "train", "epoch": epoch, "loss": 4.0 / epoch}))
        lines.append(json.dumps({"mode": "val", "epoch": epoch, "loss": 5.0 / epoch, "bbox_mAP": 0.1 * epoch}))
    run = read(written(tmp_path, "\n".join(lines) + '\n{"mode": "tra', "log.jsonl"))
    assert vital_series(run)["val_loss"] == ([1, 2, 3, 4], [5.0, 2.5, 5.0 / 3, 1.25])
    context = run.header["context"]
    assert (context["batch_size"], context["config"]) == (32, {"lr": 0.1, "batch_size": 32})
    assert (run.torn, run.skipped) == (True, 0)


def test_numbers_may_be_words_and_missing(tmp_path):
    lines = [
        '{"step": 0, "loss": "NaN"}',
        '{"step": 1, "loss": null}',
        '{"step": 2, "loss": Infinity}',
        '{"step": 3, "loss": 1}',
    ]
    steps, values = series(written(tmp_path, "\n".join(lines), "log.jsonl"))["loss"]
    assert steps == [0, 2, 3]
    assert str(values) == "[nan, inf, 1.0]"


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow (extra parquet)")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"step": [0, 1, 2], "loss": [3.0, None, 1.0], "name": ["a", "b", "c"], "val_loss": [3.5, 2.5, 1.5]}
    )
    pq.write_table(table, tmp_path / "log.parquet")
    assert series(tmp_path / "log.parquet") == {"loss": ([0, 2], [3.0, 1.0]), "val_loss": ([0, 1, 2], [3.5, 2.5, 1.5])}
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "log.parquet").read_bytes()[:-20])
    with pytest.raises(SourceError, match="damaged Parquet"):
        read(tmp_path / "cut.parquet")


def test_gzip_is_unpacked_and_a_torn_one_read_as_far_as_it_goes(tmp_path):
    rows = "".join(f"{step},{3 - step / 1e4:.6f}\n" for step in range(20_000))
    packed = gzip.compress(f"step,loss\n{rows}".encode())
    (tmp_path / "log.csv.gz").write_bytes(packed)
    assert read(tmp_path / "log.csv.gz").step == 19_999
    (tmp_path / "torn.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert 1000 < read(tmp_path / "torn.csv.gz").step < 19_999


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    first = "".join(f"{step},{3 - step / 100}\n" for step in range(0, 100))
    second = "".join(f"{step},{2.2 - step / 100}\n" for step in range(60, 150))
    run = read(written(tmp_path, "step,loss\n" + first + second))
    steps, values = vital_series(run)["loss"]
    assert steps == list(range(150))
    assert (values[59], values[60]) == (3 - 59 / 100, 2.2 - 60 / 100)
    assert run.sessions == 2
    assert [record["step"] for record in run if record["type"] == "header"] == [-1, 59]
    assert any("steps go back from 99 to 60" in note for note in run.notes)


FOLDS = [(fold, epoch) for fold in range(3) for epoch in range(10)]
TOLD_APART = {
    "folds": ("fold,epoch,loss", [f"{fold},{epoch}" for fold, epoch in FOLDS], [f"fold {fold}" for fold in range(3)]),
    "words": ("run,step,loss", [f"{'abc'[fold]},{step}" for fold, step in FOLDS], [f"run {run}" for run in "abc"]),
    "mixed": (
        *("seed,epoch,loss", [f"{fold},{epoch}" for fold, epoch in sorted(FOLDS, key=lambda each: each[1])]),
        [f"seed {fold}" for fold in range(3)],
    ),
    "two columns": (
        *("seed,fold,epoch,loss", [f"7,{fold},{e}" for fold, e in FOLDS] + [f"8,{fold},{e}" for fold, e in FOLDS]),
        [f"seed {seed}, fold {fold}" for seed in (7, 8) for fold in range(3)],
    ),
}


@pytest.mark.parametrize("kind", TOLD_APART)
def test_a_column_tells_runs_apart(tmp_path, kind):
    names, rows, called = TOLD_APART[kind]
    path = written(tmp_path, f"{names}\n" + "".join(f"{row},{2 / (int(row[-1]) + 1)}\n" for row in rows))
    runs = read_all(path)
    assert labels(runs) == [f"{path} ({name})" for name in called]
    assert all(vital_series(run)["loss"][0] == list(range(10)) for run in runs)
    assert [label for label in labels(runs) if read(label).step == 9] == labels(runs)
    assert not any("not used" in note or "go back" in note for run in runs for note in run.notes)


def test_objects_that_name_their_runs_are_several_runs(tmp_path):
    lines = [json.dumps({"run": "abc"[fold], "step": step, "loss": 2 / (step + 1)}) for fold, step in FOLDS]
    assert len(read_all(written(tmp_path, "\n".join(lines), "log.jsonl"))) == 3


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("run", [(1, step) for step in range(60)] + [(2, step) for step in range(50, 120)]),  # resumed
        ("run", [(step, step) for step in range(60)]),  # counts
        ("seed", [(42, step) for step in range(60)]),
        ("seed", [(step // 20, step) for step in range(60)]),  # goes on
    ],
)
def test_a_column_that_tells_no_runs_apart(tmp_path, name, rows):
    text = f"{name},step,loss\n" + "".join(f"{run},{step},{3 - step / 100}\n" for run, step in rows)
    steps, _ = series(written(tmp_path, text))["loss"]
    assert steps == list(range(rows[-1][1] + 1))


def test_rows_of_one_step_are_averaged_and_any_order_is_sorted(tmp_path):
    ranks = "".join(f"{step},{loss}\n" for step in range(30) for loss in (1.0, 3.0))
    assert series(written(tmp_path, "step,loss\n" + ranks))["loss"] == (list(range(30)), [2.0] * 30)
    backwards = "".join(f"{step},{step / 10}\n" for step in range(29, -1, -1))
    assert series(written(tmp_path, "step,loss\n" + backwards))["loss"][0] == list(range(30))


def test_nan_that_comes_and_goes_is_an_empty_cell_and_nan_that_stays_is_not(tmp_path):
    rows = "".join(f"{step},{3 - step / 50},{3.5 - step / 50 if step % 5 == 4 else 'nan'}\n" for step in range(50))
    found = series(written(tmp_path, "step,loss,val_loss\n" + rows))
    assert found["val_loss"][0] == list(range(4, 50, 5))
    dead = "".join(f"{step},{3 - step / 50 if step < 20 else 'nan'}\n" for step in range(50))
    path = written(tmp_path, "step,loss\n" + dead)
    assert len(series(path)["loss"][0]) == 50
    assert "nan-or-inf" in {item.name for item in diagnose(path).symptoms}


def test_the_user_says_which_column_is_which(tmp_path):
    path = written(tmp_path, "tick,zeta,eta_rate\n" + "".join(f"{10 * n},{3 - n / 10},0.1\n" for n in range(9)))
    with pytest.raises(SourceError, match=r"columns: tick, zeta.*--map loss=COLUMN"):
        read(path)
    found = series(path, mapping={"loss": "zeta", "step": "tick"})
    assert found["loss"][0] == list(range(0, 90, 10))
    for mapping in ({"loss": "zetta"}, {"step": "tik", "loss": "zeta"}):
        with pytest.raises(SourceError, match="Did you mean"):
            read(path, mapping=mapping)


def test_exports_of_web_pages(tmp_path):
    wandb = '"Step","calm-sun-1 - train/loss","calm-sun-1 - train/loss__MIN","wild-sky-2 - train/loss"\n'
    wandb += "".join(f'"{step}","{3 - step / 10}","0","{4 - step / 10}"\n' for step in range(9))
    runs = read_all(written(tmp_path, wandb))
    assert [run.header["context"]["run"] for run in runs] == ["calm-sun-1", "wild-sky-2"]
    assert vital_series(runs[1])["loss"][1][0] == 4.0
    board = "Wall time,Step,Value\n" + "".join(f"{1.7e9 + step},{step},{3 - step / 10}\n" for step in range(9))
    assert series(written(tmp_path, board, "run-a-tag-train_loss.csv"))["loss"][1][0] == 3.0


def test_columns_without_names(tmp_path):
    rows = "".join(f"{3 - n / 10},{n}\n" for n in range(9))
    assert series(written(tmp_path, rows, "loss.csv"))["loss"][1][0] == 3.0
    with pytest.raises(SourceError, match="column 1, column 2"):
        read(written(tmp_path, rows, "data.csv"))
    assert series(tmp_path / "data.csv", mapping={"loss": "column 1"})["loss"][1][0] == 3.0


def test_values_that_were_never_counted_are_taken_in_order(tmp_path):
    rows = "".join(f"1,{3 - n / 10}\n" for n in range(9))
    assert series(written(tmp_path, "step,loss\n" + rows))["loss"][0] == list(range(9))


def test_some_columns_may_be_named_by_a_number(tmp_path):
    rows = ["epoch,set,step,loss,average_km,1,25,200"]
    rows += [f"0,train,{step},{1 / step},{900 - step},0.0,0.1,0.2" for step in range(1, 20)]
    rows += ["0,val,19,0.5,800,0.0,0.1,0.2"]
    found = series(written(tmp_path, "\n".join(rows)))
    assert list(found["loss"][1][:2]) == [1.0, 0.5] and list(found["val_loss"][1]) == [0.5]


def test_rows_that_name_their_values_are_no_table(tmp_path):
    rows = [f"epoch, {epoch}, loss, {1 / epoch}" for epoch in range(1, 20)]
    with pytest.raises(SourceError):
        read(written(tmp_path, "\n".join(rows)))


def test_names_may_end_with_a_comma_where_the_rows_do_not(tmp_path):
    rows = "\n".join(f"{epoch},{4.0 / (epoch + 1)},{50 + epoch}" for epoch in range(12))
    (tmp_path / "metrics.csv").write_text(f"epoch,train_loss,top1,\n{rows}\n")
    run = read(tmp_path / "metrics.csv")
    assert len([record for record in run.records if record["type"] == "vitals"]) == 12


def test_the_rate_of_the_weights_is_the_learning_rate_where_that_of_the_biases_stands_first(tmp_path):
    rates = [(0.067, 0.0002), (0.034, 0.0003), (0.0007, 0.0005), *[(0.0005, 0.0005)] * 9]
    rows = "\n".join(f"{epoch},{2.0 / (epoch + 1)},{one},{other}" for epoch, (one, other) in enumerate(rates))
    (tmp_path / "results.csv").write_text(f"epoch,train/loss,lr/pg0,lr/pg1\n{rows}\n")
    found = vital_series(read(tmp_path / "results.csv"))
    assert max(value for _, value in zip(*found["lr"], strict=True)) == 0.0005


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("unit", [1, 1000, 1_000_000])
def test_the_time_of_day_is_no_count(tmp_path, unit, every):
    rows = "".join(f"{(1731000000 + every * n) * unit},{2 - n / 100}\n" for n in range(50))
    run = read(written(tmp_path, f"timestamp,loss\n{rows}"))
    assert (run.header["context"]["clock"], run.step) == ("row", 49)


def test_numbers_at_the_end_of_their_range_are_judged_without_a_warning(tmp_path):
    rows = "".join(f"{step},{1e308 if 900 <= step < 910 else 0.5 + step % 7 / 99}\n" for step in range(3000))
    report = torchdoctor.diagnose(written(tmp_path, f"step,loss\n{rows}"))  # warnings are errors here
    assert any(item.name.startswith("loss-") for item in report.symptoms)


def falling(count, given=range(60), start=4.0):
    return [start / (1 + place / 20) if place in given else None for place in range(count)]


def rows_of(count, **columns):
    return [{"step": place, **{name: cells[place] for name, cells in columns.items()}} for place in range(count)]


def as_csv(rows):
    lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
    return "\n".join([",".join(rows[0]), *lines]) + "\n"


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


BROKEN = rows_of(90, loss=falling(90), val_loss=falling(90))
NESTED = [{"data": {"step": row["step"], "metrics": {"loss": row["loss"], "lr": 0.1}}} for row in BROKEN]
TIDY = [{"metric": "loss", "step": row["step"], "value": row["loss"]} for row in BROKEN]
EMPTY_TO_THE_END = {
    "pandas.csv": as_csv(BROKEN),
    "beside.csv": as_csv(rows_of(90, loss=falling(90), lr=[0.1] * 90, seconds=[0.5] * 90)),
    "game.csv": as_csv(rows_of(90, d_loss=falling(90), g_loss=falling(90), lr=[0.1] * 90)),
    "orjson.jsonl": as_lines(BROKEN),
    "structlog.jsonl": as_lines(NESTED),
    "records.json": json.dumps(BROKEN),
    "columns.json": json.dumps({key: {str(row["step"]): row[key] for row in BROKEN} for key in BROKEN[0]}),
    "keras.json": json.dumps({"loss": falling(90), "val_loss": falling(90)}),
    "short.json": json.dumps({"loss": falling(90, range(20)), "val_loss": falling(90, range(20))}),
    "tidy.csv": as_csv(TIDY),
    "tidy.jsonl": as_lines(TIDY),
}


@pytest.mark.parametrize("name", EMPTY_TO_THE_END)
def test_measures_that_are_empty_to_the_end_while_steps_go_on_are_nan(tmp_path, name):
    report = diagnose(written(tmp_path, EMPTY_TO_THE_END[name], name))
    (found,) = [item for item in report.symptoms if item.name == "nan-or-inf"]
    first = 20 if name == "short.json" else 60
    assert (found.severity, found.first_step, report.step) == ("critical", first, 89)
    if name not in ("keras.json", "short.json"):
        assert any("in the last 30 rows" in note and "read as NaN" in note for note in report.notes)


def test_empty_cells_of_parquet_are_nan_if_steps_go_on(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(BROKEN), tmp_path / "a.parquet")
    assert "nan-or-inf" in {item.name for item in diagnose(tmp_path / "a.parquet").symptoms}


SEEN = falling(60)
EMPTY_ANYWAY = {
    "padded.csv": as_csv(rows_of(60, loss=SEEN)) + ",\n" * 40,
    "two rows.csv": as_csv(rows_of(62, loss=falling(62))),
    "seldom.csv": as_csv(rows_of(590, loss=falling(590, range(49, 590, 50)), lr=[0.1] * 590)),
    "evaluations.csv": as_csv(rows_of(68, loss=falling(68, range(68)), val_loss=falling(68, range(9, 68, 10), 5.0))),
    "another part.csv": as_csv(rows_of(70, loss=falling(70), generated=falling(70, range(60, 70)))),
    "no count.csv": "loss,val_loss\n" + "".join(f"{value},{value}\n" for value in SEEN) + ",\n" * 9,
    "side by side.csv": as_csv(
        [{"Step": row["step"], "one - loss": 4 / (1 + row["step"] / 20), "two - loss": row["loss"]} for row in BROKEN]
    ),
    "events.jsonl": as_lines([*rows_of(60, loss=SEEN), *({"step": 60 + place, "saved": "x"} for place in range(9))]),
    "seldom.json": json.dumps({"loss": falling(60), "val_loss": [*falling(6, range(6), 5.0), *[None] * 54]}),
}


@pytest.mark.parametrize("name", EMPTY_ANYWAY)
def test_cells_are_empty_for_many_reasons(tmp_path, name):
    for run in read_all(written(tmp_path, EMPTY_ANYWAY[name], name)):
        report = diagnose(run)
        assert "nan-or-inf" not in {item.name for item in report.symptoms}
        assert not any("read as NaN" in note for note in report.notes)


def test_of_unnamed_runs_in_one_file_the_last_is_read_and_of_folds_none_is_chosen(tmp_path):
    path = tmp_path / "log.csv"
    rows = [(epoch, 2.0 / (1 + epoch)) for epoch in range(8)]
    path.write_text("epoch,loss\n" + "".join(f"{epoch},{loss}\n" for epoch, loss in rows + rows[:6]))
    last = read(path)
    assert len(read_all(path)) == 2
    assert "the last of the 2 runs" in last.remarks[-1]
    assert torchdoctor.diagnose(path).step == 5
    path.write_text(
        "fold,epoch,loss\n" + "".join(f"{fold},{epoch},{loss}\n" for fold in (1, 2) for epoch, loss in rows)
    )
    with pytest.raises(SourceError, match=r"holds 2 runs: .*fold 1.*fold 2"):
        read(path)
