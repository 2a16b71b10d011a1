"""Which runs a folder holds."""

import json

import pytest

from torchdoctor.errors import SourceError
from torchdoctor.journal import Journal
from torchdoctor.sources import labels, read, read_all

CSV = "step,loss\n" + "".join(f"{step},{3 - step / 10}\n" for step in range(9))


def put(path, text=CSV):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def found(folder):
    return [str(run.path.relative_to(folder)) for run in read_all(folder)]


def test_versions_in_the_order_of_their_numbers(tmp_path):
    for version in (10, 2, 0):
        put(tmp_path / "lightning_logs" / f"version_{version}" / "metrics.csv")
        put(tmp_path / "lightning_logs" / f"version_{version}" / "hparams.yaml", "lr: 0.1\n")
    assert found(tmp_path) == [f"lightning_logs/version_{version}/metrics.csv" for version in (0, 2, 10)]
    with pytest.raises(SourceError, match="holds 3 runs: .*version_0"):
        read(tmp_path)
    assert read(tmp_path / "lightning_logs" / "version_2").step == 8


def test_files_beside_each_other_are_runs_and_what_is_no_log_is_passed_over(tmp_path):
    for name in ("a.csv", "b.csv"):
        put(tmp_path / name)
    put(tmp_path / "config.json", json.dumps({"lr": [0.1, 0.2]}))
    put(tmp_path / "README.md", "loss: 3\nloss: 2\nloss: 1\n")
    put(tmp_path / ".hidden" / "c.csv")
    assert found(tmp_path) == ["a.csv", "b.csv"]


def test_printed_text_counts_only_where_nothing_better_is(tmp_path):
    put(tmp_path / "nohup.out", "step 1 loss 2\nstep 2 loss 1\nstep 3 loss 0.5\n")
    assert found(tmp_path) == ["nohup.out"]
    put(tmp_path / "run" / "metrics.csv")
    assert found(tmp_path) == ["run/metrics.csv"]


def test_a_journal_comes_before_all_else(tmp_path):
    put(tmp_path / "metrics.csv")
    Journal(tmp_path, {"type": "header", "step": -1, "schema": 1}).close()
    assert found(tmp_path) == ["journal.jsonl"]


def test_runs_of_one_file_are_told_apart(tmp_path):
    path = put(tmp_path / "h.json", json.dumps({name: {"loss": [3.0, 2.0, 1.0]} for name in ("adam", "sgd")}))
    assert labels(read_all(path)) == [f"{path} (adam)", f"{path} (sgd)"]


def test_a_folder_with_a_damaged_log_says_what_is_wrong_with_it(tmp_path):
    put(tmp_path / "log.csv", "a,b\n" + "1,2\n" * 5)
    with pytest.raises(SourceError, match="Its numeric columns: a, b"):
        read_all(tmp_path)


def test_a_folder_that_leads_to_itself_ends(tmp_path):
    put(tmp_path / "run" / "metrics.csv")
    (tmp_path / "run" / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert found(tmp_path) == ["run/metrics.csv"]


def test_the_configuration_beside_a_table_is_its_own(tmp_path):
    put(tmp_path / "version_0" / "metrics.csv")
    put(tmp_path / "version_0" / "hparams.yaml", "lr: 0.1\nbatch_size: 32\nauth_token: abc\n")
    context = read(tmp_path).header["context"]
    assert context["config"] == {"lr": 0.1, "batch_size": 32}
    assert context["batch_size"] == 32


@pytest.mark.parametrize("name", ["metrics.dat", "train.metrics", "job.o12345", "loss.history", "train.log-20240501"])
def test_what_is_a_log_by_its_content_is_read_whatever_it_is_called(tmp_path, name):
    put(tmp_path / name)
    put(tmp_path / "weights.weird", "PAR1 \x15\x00 step 3 loss 2")
    assert found(tmp_path) == [name]


def test_beside_a_log_that_is_called_like_one_it_is_named(tmp_path):
    put(tmp_path / "metrics.dat")
    put(tmp_path / "other.jsonl", "".join(json.dumps({"step": step, "loss": 3 - step / 9}) + "\n" for step in range(9)))
    assert found(tmp_path) == ["other.jsonl"]
    assert "also here, not read: metrics.dat" in read(tmp_path).notes


@pytest.mark.parametrize("name", ["train.py", "net.yaml", "notes.md", "metrics.csv.bak", "metrics.csv~", "page.html"])
def test_code_settings_and_copies_are_none(tmp_path, name):
    put(tmp_path / name)
    put(tmp_path / "metrics.csv")
    assert found(tmp_path) == ["metrics.csv"]
    assert read(tmp_path).notes == ()


def test_nor_is_a_data_set(tmp_path):
    put(tmp_path / "iris.data", "".join(f"5.{n},3.5,1.4,0.2\n" for n in range(9)))
    put(tmp_path / "prices.dat", "date,open,close\n" + "".join(f"{n},1.5,1.4\n" for n in range(9)))
    put(tmp_path / "metrics.csv")
    assert found(tmp_path) == ["metrics.csv"]
    assert read(tmp_path).notes == ()
