"""`torchdoctor compare`: journals and logs in, a table, JSON, Markdown, a page and answers to SQL out."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.comparing.worlds import write
from tests.reports.samples import XSS

from torchdoctor.cli import group
from torchdoctor.comparing import compare
from torchdoctor.comparing.naming import short_names
from torchdoctor.sources import plain_yaml

HOSTILE = "x\x1b[2J\x1b]0;owned\x07" + " ".join(XSS)


def call(*words):
    return CliRunner().invoke(group, ["compare", *map(str, words)])


def curve(steps=120, floor=1.0, rate=0.03, seed=0):
    noise = np.random.default_rng(seed).standard_normal(steps)
    return (floor + 2 * np.exp(-rate * np.arange(steps))) * np.exp(0.02 * noise)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two learning rates with four seeds each, and one run that breaks."""
    for number in range(8):
        lr, seed = (0.1, 0.3)[number % 2], number // 2
        loss = curve(floor=1 + lr, seed=number)
        context = {"model": {"class": "MLP", "parameters": 400}, "batch_size": 32, "seed": seed}
        write(tmp_path / f"lr{lr}_s{seed}", loss, context=context, lr=lr, validation=enumerate(loss))
    broken = curve(seed=9)
    broken[80:] = math.nan
    write(tmp_path / "lr0.9_s0", broken, context={"model": {"class": "MLP"}, "batch_size": 32, "seed": 0}, lr=0.9)
    return tmp_path


def test_the_whole_answer(runs: Path) -> None:
    done = call(runs)
    assert done.exit_code == 0, done.output
    text = done.stdout
    assert re.search(r"^Best: lr0\.1_s\d, by its best validation loss", text)
    assert "Best configuration: lr 0.1" in text and "lr matters" in text
    assert "lr0.9_s0 diverged: the loss is NaN from step 80 on" in text
    assert text.index("lr0.1_s0") < text.index("lr0.9_s0") and "nan-or-inf" in text


def test_it_shows_itself_in_a_notebook_and_in_print(runs: Path) -> None:
    found = compare([runs])
    shown = found._repr_html_()
    assert shown.startswith("<style>") and "<script" not in shown and "Best: lr0.1_s" in shown and "<svg" in shown
    assert str(found).startswith("Best: lr0.1_s")


def test_json_is_strict_and_complete(runs: Path) -> None:
    found = json.loads(call(runs, "--format", "json").stdout, parse_constant=pytest.fail)
    assert len(found["runs"]) == 9 and found["runs"][-1]["run"] == "lr0.9_s0"
    assert {"effects", "configurations", "partings", "learning_rate", "findings", "race"} <= set(found)
    assert found["metric"]["name"] == "val_loss"


@pytest.mark.parametrize(("form", "beginning"), [("markdown", "# Comparison"), ("concise", "1: lr0.1_s")])
def test_other_formats(runs: Path, form: str, beginning: str) -> None:
    assert call(runs, "--format", form).stdout.startswith(beginning)


def test_quick_leaves_out_the_diagnosis_and_nothing_else(runs: Path) -> None:
    full, quick = (json.loads(call(runs, "--format", "json", *more).stdout) for more in ((), ("--quick",)))
    assert [row["run"] for row in quick["runs"]] == [row["run"] for row in full["runs"]]
    assert quick["findings"] == [] and {row["health"] for row in quick["runs"]} == {""}
    assert quick["effects"] == full["effects"]


def test_a_page(runs: Path, tmp_path: Path) -> None:
    assert call(runs, "--output", tmp_path / "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "<script" not in page and "http://" not in page.replace("http://www.w3", "")
    assert page.count("<polyline") == 8 + 9 and "lr matters" in page
    assert 'style="' not in page  # which the page's own policy would refuse


def test_an_unknown_suffix_is_refused_before_anything_is_read(runs: Path) -> None:
    done = call(runs, "--output", "page.xyz")
    assert done.exit_code == 2 and ".html" in done.stderr


def test_one_unreadable_run_does_not_hide_the_others(runs: Path) -> None:
    done = call(runs, runs / "nothing")
    assert done.exit_code == 2 and "Best: lr0.1" in done.stdout and "does not exist" in done.stderr


def test_one_run_cannot_be_compared(runs: Path) -> None:
    done = call(runs / "lr0.1_s0", runs / "lr0.1_s0" / "journal.jsonl")  # the same, twice
    assert done.exit_code == 2 and "at least two runs" in done.stderr


def test_nothing_cannot_be_compared(tmp_path: Path) -> None:
    done = call(tmp_path / "nothing")
    assert done.exit_code == 2 and "0 could be read" in done.stderr and "does not exist" in done.stderr


def test_an_unknown_metric_gets_the_nearest(runs: Path) -> None:
    done = call(runs, "--by", "val_los")
    assert done.exit_code == 2 and "val_loss" in done.stderr


def test_several_processes_say_the_same(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / f"run{number}", curve(steps=12, seed=number), context={"seed": number})
    alone = compare([tmp_path], processes=1).to_dict()
    together = compare([tmp_path], processes=2).to_dict()
    assert json.dumps(alone) == json.dumps(together) and len(alone["runs"]) == 40


def test_logs_of_other_tools(tmp_path: Path) -> None:
    for number, level in enumerate((1.0, 1.5)):
        rows = "\n".join(f"{step},{value}" for step, value in enumerate(curve(floor=level, seed=number)))
        (tmp_path / f"log{number}.csv").write_text(f"step,train_loss\n{rows}\n", encoding="utf-8")
    done = call(tmp_path / "log0.csv", tmp_path / "log1.csv")
    assert done.exit_code == 0 and done.stdout.startswith("Best: log0")
    assert "separate at about step" in done.stdout and "cannot be said" in done.stdout


def test_strings_from_logs_do_no_harm(tmp_path: Path) -> None:
    for number in range(2):
        context = {"model": {"class": HOSTILE}, HOSTILE: f"{HOSTILE}{number}", "batch_size": 8 * number, "seed": 1}
        write(tmp_path / f"<img src=x onerror=alert(1)>{number}", curve(seed=number), context=context)
    text = call(tmp_path).stdout
    assert "\x1b" not in text and "\x07" not in text
    call(tmp_path, "--output", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img" not in page and "<script" not in page and "alert(1)&gt;0" in page
    assert "\x1b" not in call(tmp_path, "--format", "markdown").stdout


def test_questions_of_ones_own(runs: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra `compare` is not installed")
    asked = "SELECT lr, count(*) AS n, min(score) < 1.5 AS good FROM runs WHERE diverged = '' GROUP BY lr ORDER BY lr"
    found = json.loads(call(runs, "--format", "json", "--sql", asked).stdout)
    assert found == [{"lr": 0.1, "n": 4, "good": True}, {"lr": 0.3, "n": 4, "good": True}]
    counted = call(runs, "--sql", "SELECT vital, count(*) AS n FROM curves GROUP BY vital ORDER BY vital").stdout
    assert re.search(r"^loss\s+1080$", counted, re.MULTILINE)
    assert "nan-or-inf" in call(runs, "--sql", "SELECT DISTINCT name FROM findings").stdout


@pytest.mark.parametrize(
    "asked",
    ["SELECT * FROM read_csv('/etc/passwd')", "COPY runs TO 'out.csv'", "SELECT * FROM rows", "nonsense", "SET x = 1"],
)
def test_a_query_sees_the_tables_and_nothing_else(runs: Path, asked: str) -> None:
    pytest.importorskip("duckdb", reason="the extra `compare` is not installed")
    done = call(runs, "--quick", "--sql", asked)
    assert done.exit_code == 2 and "The tables:" in done.stderr and not Path("out.csv").exists()


def test_names_are_short_and_different() -> None:
    many = [f"/a/b/run{number}/version_0/metrics.csv" for number in range(3)]
    assert short_names(many) == ["run0", "run1", "run2"]
    assert short_names(["a/x/log.csv", "b/y/log.csv"]) == ["a/x", "b/y"]
    assert short_names(["a", "a", "a (2)"]) == ["a", "a (3)", "a (2)"]
    assert len(set(short_names([f"/r/{'x' * 90}{number}{'y' * 90}" for number in range(5)]))) == 5


def test_of_very_many_runs_a_sample_is_diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdoctor.comparing.comparison.ALL", 10)
    monkeypatch.setattr("torchdoctor.comparing.sampling.ALL", 10)
    monkeypatch.setattr("torchdoctor.comparing.sampling.BEST", 3)
    monkeypatch.setattr("torchdoctor.comparing.sampling.SPREAD", 4)
    for number in range(20):
        loss = curve(steps=40, floor=1 + number / 10, seed=number)
        if number == 7:
            loss[30:] = math.nan
        write(tmp_path / f"run{number:02}", loss, context={"seed": number})
    found = compare([tmp_path]).found
    judged = [row["run"] for row in found["runs"] if row["health"]]
    assert (
        judged[:3] == ["run00", "run01", "run02"] and judged[-1] == "run07" and len(judged) == found["diagnosed"] == 8
    )
    assert any("8 of 20 runs were diagnosed" in note for note in found["notes"])
    assert compare([tmp_path], examine=True).found["diagnosed"] == 20
    assert [row["run"] for row in compare([tmp_path], examine=True).found["runs"]] == [
        row["run"] for row in found["runs"]
    ]


def test_a_folder_of_journals_and_logs_is_read_whole(runs: Path) -> None:
    (runs / "elsewhere").mkdir()
    rows = "\n".join(f"{step},{value}" for step, value in enumerate(curve(floor=0.2)))
    (runs / "elsewhere" / "metrics.csv").write_text(f"step,loss\n{rows}\n", encoding="utf-8")
    assert len(compare([runs], examine=False).found["runs"]) == 10


def test_epochs_are_not_held_against_steps(tmp_path):
    loss = curve(steps=60)
    for name, column in (("a.csv", "epoch"), ("b.csv", "epoch"), ("c.csv", "step")):
        every = 50 if column == "step" else 1
        rows = [f"{every * place},{value:.4f},{value + 0.1:.4f}" for place, value in enumerate(loss)]
        (tmp_path / name).write_text("\n".join([f"{column},loss,val_loss", *rows]))
    alike = call(tmp_path / "a.csv", tmp_path / "b.csv").output
    assert "at epoch" in alike and "at step" not in alike
    mixed = call(tmp_path / "a.csv", tmp_path / "c.csv").output
    assert "The logs count in different units" in mixed
    assert "Which was faster" not in mixed and "Where they separate" not in mixed


def test_what_two_runs_differ_in_is_told_as_it_is(tmp_path):
    """Equal up to a step: another seed, another rate from there on, or nothing that the logs tell."""
    generator = np.random.default_rng(0)
    first = 1 + np.exp(-np.arange(400) / 60) + 0.01 * generator.standard_normal(400)
    second = first.copy()
    second[200:] += 1.0
    known = {"model": {"class": "MLP", "parameters": 40}, "batch_size": 32, "optimizer": [{"class": "SGD", "lr": 0.1}]}

    def told(seeds, **rates):
        place = tmp_path / f"{seeds}{rates}"
        for name, loss, seed in (("a", first, seeds[0]), ("b", second, seeds[1])):
            write(place / name, loss, context=known | {"seed": seed}, lr=rates.get(name, 0.1))
        return " ".join(str(compare([place])).split())

    assert "(they differ only in their seed)" in told((0, 1))
    assert "(no recorded setting differs)" in told((0, 0))
    raised = told((0, 0), b=3.0)
    assert (
        "lr: 0.1, 3" in raised
        and "only in their seed" not in raised
        and "All runs have the same settings" not in raised
    )
    lowered = told((0, 0), b=0.01)  # the configured rate was not reached: the settings are the same
    assert "learning rate 0.1 against 0.01" in lowered and "only in their seed" not in lowered


def test_tables_fit_the_terminal_and_what_is_left_out_is_in_the_data(tmp_path: Path, monkeypatch) -> None:
    for number in range(5):
        folder = tmp_path / f"a_rather_long_name_of_an_experiment_on_something__{number}__and_its_end"
        loss = curve(seed=number)
        write(folder, loss, context={"batch_size": 8 << number, "seed": number}, validation=enumerate(loss))
    for width in (60, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        text = call(tmp_path).stdout
        assert max(map(len, text.splitlines())) <= width
        assert "best val. loss" in text and "health" in text and "columns left out, shown by --format json" in text
        assert len({line.split()[0] for line in text.split("\n\n")[1].splitlines()[1:6]}) == 5
    assert all("roughness" in row for row in json.loads(call(tmp_path, "--format", "json").stdout)["runs"])
    assert "roughness" in call(tmp_path, "--format", "markdown").stdout


def test_runs_of_different_tasks_are_not_ranked_without_a_word(tmp_path: Path) -> None:
    for name, scale in (("mnist", 1.0), ("mnist_again", 1.0), ("translation", 4.0)):
        write(tmp_path / name, scale * curve(), context={"batch_size": 32, "seed": 0})
    text = call(tmp_path).stdout
    assert text.startswith("These runs do not seem to share one task: training begins at a loss of ")
    assert "None is best:" in text and "separate at" not in text and "is first at" not in text
    alike = call(tmp_path / "mnist", tmp_path / "mnist_again").stdout
    assert "one task" not in alike


def test_other_metrics_and_other_data_are_other_tasks(tmp_path: Path) -> None:
    logs = {"a": "step,loss,val_accuracy", "b": "step,loss,val_bleu"}
    for name, head in logs.items():
        rows = [f"{step},{2.0 - step / 100},{step / 100}" for step in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows]))
    assert "is measured by" in call(tmp_path).stdout.replace("\n  ", " ")
    for name in ("cifar10", "svhn"):
        write(tmp_path / "more" / name, curve(), context={"config": {"dataset": name}, "seed": 0})
    assert "their dataset differs" in call(tmp_path / "more").stdout


def test_runs_that_are_equal_are_not_ranked(tmp_path: Path) -> None:
    """Neither is the best; and where the seed alone differs, one line says that runs do not part."""
    for name in ("a", "b"):
        write(tmp_path / "same" / name, curve())
    text = call(tmp_path / "same").stdout
    assert text.startswith("None is best: a, b have exactly the same final loss ")
    assert "No run is faster than another at loss" in text and not re.search("is first|are first|Lowest", text)
    for seed in range(4):
        noise = 0.02 * np.random.default_rng(seed).standard_normal(120)
        write(tmp_path / "seeds" / f"s{seed}", curve() * (1 + noise), context={"seed": seed, "batch_size": 32})
    text = call(tmp_path / "seeds").stdout
    assert text.startswith("Best: s") and text.count("not separate from any of") == 1 and "do not separate" not in text


@pytest.mark.parametrize("first", [0, 1])
def test_steps_are_counted_whichever_way_the_log_counts(tmp_path: Path, first: int) -> None:
    for name in ("a", "b"):
        rows = [json.dumps({"step": step + first, "loss": 2.0 / (1 + step)}) for step in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert [row["steps"] for row in compare([tmp_path]).found["runs"]] == [50, 50]


@pytest.mark.parametrize("name", ["config.json", "args.json", "params.json", "hparams.yaml"])
def test_a_configuration_beside_a_log_is_read(tmp_path: Path, name: str) -> None:
    for rate in (0.1, 0.2):
        folder = tmp_path / f"run{rate}"
        folder.mkdir()
        rows = [f"{step},{2.0 / (1 + rate * step)}" for step in range(50)]
        (folder / "metrics.csv").write_text("\n".join(["step,loss", *rows]) + "\n", encoding="utf-8")
        told = {"optimizer": {"lr": rate}, "clip": None, "seed": 3}
        text = f"optimizer:\n  lr: {rate}\nseed: 3\n" if name.endswith("yaml") else json.dumps(told)
        (folder / name).write_text(text, encoding="utf-8")
    found = compare([tmp_path]).found
    assert [item["settings"] for item in found["differs"]] == [["lr"]] and "seed" in found["same"]


@pytest.mark.parametrize("text", ["[1, 2]", "{", "[" * 100_000, '"lr"', "3", "", '{"": 1, "a": {"b": [1e999]}}'])
def test_a_file_beside_a_log_that_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "params.json").write_text(text, encoding="utf-8")
    (tmp_path / "config.json").write_text('{"lr": 0.5}', encoding="utf-8")
    assert plain_yaml.beside(tmp_path) == {"lr": 0.5}


def test_a_setting_that_alone_differs_is_named_and_what_to_write_down(tmp_path: Path) -> None:
    for clip in (1.0, None):
        folder = tmp_path / f"clip{clip}"
        folder.mkdir()
        rows = [f"{step},{(2.0 if clip else 2.1) / (1 + step)}" for step in range(50)]
        (folder / "metrics.csv").write_text("\n".join(["step,loss", *rows]) + "\n", encoding="utf-8")
        (folder / "config.json").write_text(json.dumps({"lr": 0.1, "clip": clip}), encoding="utf-8")
    text = " ".join(call(tmp_path).stdout.split())
    assert (
        "Of the recorded settings, only clip differs. The logs record too few settings" in text
        and "into config.json" in text
    )


def test_training_loss_tells_which_run_was_faster_if_validation_does_not_fall(tmp_path: Path) -> None:
    for name, rate in (("slow", 0.02), ("fast", 0.06)):
        loss = curve(rate=rate)
        write(tmp_path / name, loss, validation=enumerate(3.0 + 0.01 * np.arange(len(loss))))
    race = compare([tmp_path]).found["race"]
    assert race["curve"] == "loss"
    reached = {Path(row["run"]).name: row["reached_at"] for row in compare([tmp_path]).found["runs"]}
    assert reached["fast"] < reached["slow"]


def test_a_run_whose_players_are_lost_wins_nothing(tmp_path: Path) -> None:
    rows = [f"{step},{1.4 - step / 500},{0.7 + step / 500}" for step in range(120)]
    broken = [*rows[:60], *(f"{step},nan,nan" for step in range(60, 120))]
    for name, lines in (("good", rows), ("lost", broken)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,d_loss,g_loss", *lines]))
    text = call(tmp_path / "good.csv", tmp_path / "lost.csv").stdout
    assert text.startswith("Best: good") and "lost diverged: nan-or-inf at step 60" in text
    assert "Lowest on average" not in text


def test_what_one_of_two_logs_lacks_is_not_held_against_the_other(tmp_path: Path) -> None:
    for name, head, rate, end in (("a", "step,loss,lr", 0.03, ",0.01"), ("b", "step,loss", 0.01, "")):
        rows = [f"{step},{value}{end}" for step, value in enumerate(curve(rate=rate))]
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *rows]))
    text = call(tmp_path / "a.csv", tmp_path / "b.csv").stdout
    assert "separate at about step" in text and "NaN" not in text


def test_why_none_is_the_best_is_true_of_all(tmp_path: Path) -> None:
    rising = [f"{step},{value}" for step, value in enumerate([*curve(), *([90.0] * 60)])]
    (tmp_path / "a.csv").write_text("\n".join(["step,loss", *rising]))
    (tmp_path / "b.csv").write_text("\n".join(["step,val_accuracy", *(f"{step},0.5" for step in range(60))]))
    text = call(tmp_path / "a.csv", tmp_path / "b.csv", "--by", "loss").stdout
    assert text.startswith("No run can be called the best: the others have no finite final loss, and 1 diverged.")
