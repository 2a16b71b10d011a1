"""results.txt of YOLOv3, v5, v7 and their forks: rows without names, in a layout that the training scripts fix."""

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.sources import read
from torchdoctor.sources.vital_series import vital_series

EPOCHS = range(12)


def row(epoch, parts, evaluated, size=640, total=True, mean_precision=(0.5, 0.6, 0.4, 0.2)):
    numbers = [*parts, sum(parts)] if total else parts
    return (
        f"{f'{epoch}/11':>10}{'3.29G':>10}"
        + "".join(f"{value:10.4g}" for value in (*numbers, 17, size, *mean_precision, *evaluated))
        + "\n"
    )


def log(tmp_path, rows):
    path = tmp_path / "results.txt"
    path.write_text("".join(rows))
    return read(path)


def first(run):
    return {name: values[0] for name, (_, values) in vital_series(run.records).items()}


def falling(epoch, *parts):
    return [part / (1 + epoch) for part in parts]


@pytest.mark.parametrize("total", [True, False])
def test_the_columns_are_those_of_results_csv(tmp_path, total):
    rows = [row(e, falling(e, 0.1, 0.02, 0.03), falling(e, 0.11, 0.03, 0.02), total=total) for e in EPOCHS]
    run = log(tmp_path, rows)
    assert run.header["context"]["clock"] == "epoch"
    assert vital_series(run.records)["val_loss"][0] == [*EPOCHS]
    assert first(run) == pytest.approx(
        {
            **{"loss": 0.15, "box_loss": 0.1, "obj_loss": 0.02, "cls_loss": 0.03},
            **{"val_loss": 0.16, "val_box_loss": 0.11, "val_obj_loss": 0.03, "val_cls_loss": 0.02},
            **{"val_precision": 0.5, "val_recall": 0.6, "val_map_0_5": 0.4, "val_map_0_5_0_95": 0.2},
        }
    )


@pytest.mark.parametrize(
    ("parts", "evaluated", "val_loss"),
    [
        ((0.1, 0.02, 0.0, 0.3), (0.1, 0.02, 0.01), 0.13),  # landmarks, an angle
        ((0.1, 0.02, 0.0, 0.3, 0.1), (0.1, 0.02, 0.01), 0.13),  # key points
        ((0.1, 0.02, 0.03, 0.3), (0.1, 0.02, 0.03, 0.2, 0.35), 0.35),  # one that validates all of them
    ],
)
def test_where_a_fork_adds_parts_their_sum_is_read(tmp_path, parts, evaluated, val_loss):
    found = first(log(tmp_path, [row(epoch, parts, evaluated) for epoch in EPOCHS]))
    assert found["loss"] == pytest.approx(sum(parts), rel=1e-3)
    assert found["val_loss"] == pytest.approx(val_loss)


def test_the_fourth_metric_is_f1_where_it_is_that_of_the_first_two(tmp_path):
    parts = (1.5, 1.2, 0.4)
    found = first(log(tmp_path, [row(e, parts, parts, 416, mean_precision=(0.2, 0.3, 0.1, 0.24)) for e in EPOCHS]))
    assert found["val_f1"] == 0.24
    assert "val_map_0_5_0_95" not in found


def test_epochs_that_were_not_evaluated_have_no_validation(tmp_path):
    parts, nothing = (0.1, 0.02, 0.03), (0, 0, 0)
    rows = [row(epoch, parts, nothing, mean_precision=(0, 0, 0, 0)) for epoch in EPOCHS[:-1]]
    found = vital_series(log(tmp_path, [*rows, row(11, parts, parts)]).records)
    assert found["loss"][0] == [*EPOCHS]
    assert found["val_loss"][0] == found["val_map_0_5"][0] == [11]


def test_a_resumed_run_and_a_last_row_that_breaks_off(tmp_path):
    parts = (0.1, 0.02, 0.03)
    rows = [row(epoch, parts, parts) for epoch in (*range(8), *range(6, 12))]
    run = log(tmp_path, [*rows[:-1], rows[-1][:70]])
    assert vital_series(run.records)["loss"][0] == [*range(11)]
    assert run.sessions == 2
    assert (run.torn, run.skipped) == (True, 0)


@pytest.mark.parametrize(
    "rows",
    [
        [row(epoch, (0.1, 0.02, 0.03), (0.1, 0.02, 0.03), size=100) for epoch in EPOCHS],  # no size of images
        [row(epoch, (0.1, 0.02, 0.03, 0.5), (0.1, 0.02, 0.03), total=False) for epoch in EPOCHS],  # no sum
        [row(epoch, (0.1, 0.02, 0.03), (0.1, 0.02, 0.03)).replace("3.29G", "3.29 ") for epoch in EPOCHS],
    ],
)
def test_other_rows_without_names_are_not_guessed(tmp_path, rows):
    with pytest.raises(SourceError):
        log(tmp_path, rows)
