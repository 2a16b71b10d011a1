"""The benchmark on real logs: how it counts; and, where the labelled logs are there, that its goals are reached."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOGS = Path(os.environ.get("TORCHDOCTOR_DATA", "/no/such/folder")) / "real_logs"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("real_logs", ROOT / "benchmarks" / "real_logs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_verdict_is_right_or_wrong(benchmark, tmp_path):
    (tmp_path / "LABELS.csv").write_text(
        "file,half,expected\nfine.csv,a,healthy\nsick.csv,b,sick: nan-or-inf lr-too-high\nodd.csv,a,arguable\n"
    )
    (tmp_path / "fine.csv").write_text("epoch,loss\n" + "".join(f"{n},{3 * 0.9**n}\n" for n in range(20)))
    (tmp_path / "sick.csv").write_text("epoch,loss\n" + "".join(f"{n},{'nan' if n > 5 else 1}\n" for n in range(20)))
    (tmp_path / "odd.csv").write_text("a,b\nx,y\n")
    labelled = {label.file: label for label in benchmark.labels(tmp_path)}
    assert [label.file for label in benchmark.labels(tmp_path, half="a")] == ["fine.csv", "odd.csv"]
    verdicts = {name: benchmark.judge(tmp_path / name) for name in labelled}
    assert verdicts["fine.csv"].is_right(labelled["fine.csv"])
    assert verdicts["sick.csv"].is_right(labelled["sick.csv"])
    assert not verdicts["sick.csv"].is_right(labelled["fine.csv"])
    assert not verdicts["fine.csv"].is_right(labelled["sick.csv"])
    assert verdicts["odd.csv"].error


@pytest.mark.skipif(not LOGS.is_dir(), reason="the labelled logs are not there: set TORCHDOCTOR_DATA")
def test_the_goals_are_reached_on_the_labelled_logs(benchmark):
    counted = [label for label in benchmark.labels(LOGS) if label.expected != "arguable"]
    wrong = [label.file for label in counted if not benchmark.judge(LOGS / label.file).is_right(label)]
    healthy = [label for label in counted if label.expected == "healthy"]
    assert len(wrong) <= 0.05 * len(counted), wrong
    assert sum(label.file in wrong for label in healthy) <= 0.02 * len(healthy), wrong
