"""What CatBoost leaves in its folder, in four forms, all of one run."""

import json

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read, read_all
from torchdoctor.sources.vital_series import vital_series

LEARN = [round(2 / (1 + i), 4) for i in range(20)]
TEST = [round(2.5 / (1 + i), 4) for i in range(20)]
AUC = [round(0.9 - 0.4 / (1 + i), 4) for i in range(20)]


def document(rows):
    names = [{"best_value": "Min", "name": "MultiClass"}, {"best_value": "Max", "name": "AUC"}]
    meta = {"test_sets": ["test"], "learn_metrics": names[:1], "test_metrics": names, "learn_sets": ["learn"]}
    return json.dumps({"meta": meta, "iterations": rows})


ROWS = [
    {"learn": [a], "iteration": i, "passed_time": 0.1 * i, "remaining_time": 5.0, "test": [b, c]}
    for i, (a, b, c) in enumerate(zip(LEARN, TEST, AUC, strict=True))
]


def table(values):
    return "iter\tMultiClass\n" + "".join(f"{i}\t{value}\n" for i, value in enumerate(values))


def values(run):
    return {name: list(found) for name, (_, found) in vital_series(run.records).items()}


def test_its_json_names_the_metrics_once(tmp_path):
    path = tmp_path / "catboost_training.json"
    path.write_text(document(ROWS))
    run = read(path)
    assert values(run) == {"loss": LEARN, "val_loss": TEST, "val_auc": AUC}
    assert run.header["context"]["better"]["val_auc"] == "higher"


def test_its_tables_are_of_what_they_are_called(tmp_path):
    (tmp_path / "learn_error.tsv").write_text(table(LEARN))
    (tmp_path / "test_error.tsv").write_text(table(TEST))
    assert values(read(tmp_path / "learn_error.tsv")) == {"loss": LEARN}
    assert values(read(tmp_path / "test_error.tsv")) == {"val_loss": TEST}
    assert values(read(tmp_path / "test_error.tsv", mapping={"loss": "MultiClass"})) == {"loss": TEST}


def test_what_lightgbm_prints_of_its_objective_is_the_loss(tmp_path):
    path = tmp_path / "lgb.log"
    rows = (
        f"[{i + 1}]\ttraining's l2: {a}\tvalid_1's l2: {b}\n" for i, (a, b) in enumerate(zip(LEARN, TEST, strict=True))
    )
    path.write_text("[LightGBM] [Info] Total Bins 2550\n" + "".join(rows))
    assert values(read(path)) == {"loss": LEARN, "val_loss": TEST}


def test_its_folder_is_one_run(tmp_path):
    (tmp_path / "catboost_training.json").write_text(document(ROWS))
    (tmp_path / "learn_error.tsv").write_text(table(LEARN))
    (tmp_path / "test_error.tsv").write_text(table(TEST))
    (tmp_path / "time_left.tsv").write_text("iter\tPassed\tRemaining\n0\t1\t9\n1\t2\t8\n")
    (run,) = read_all(tmp_path)
    assert run.path.name == "catboost_training.json"


@pytest.mark.parametrize(
    "rows",
    [[None, 3, "x"], [{"learn": "x", "test": [None]}], [{"learn": [[1]], "iteration": {}}], [{"learn": [1.0] * 9}] * 3],
)
def test_odd_iterations_do_no_harm(rows, tmp_path):
    path = tmp_path / "catboost_training.json"
    path.write_text(document([*rows, *ROWS]))
    assert values(read(path))["val_loss"] == TEST
    path.write_text(document(ROWS)[:600])
    with pytest.raises(SourceError, match="cut off"):
        read(path)
