"""The fit of the calibration's constants: it finds what was put in, and writes what the package reads."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from torchdoctor.diagnoses import calibration

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def calibrate():
    spec = importlib.util.spec_from_file_location("calibrate", ROOT / "benchmarks/calibrate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibrate"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["calibrate"]


def made(calibrate, boast, gain, count=600):
    """Runs whose scores boast by a factor, and in which one cause is right more often than it says."""
    rng = np.random.default_rng(0)
    names = ["lr-too-high", "bad-batch", "unknown"]
    runs = []
    for _ in range(count):
        honest = rng.normal(0, 1.5, 3)
        odds = np.exp(honest + np.array([0, gain, 0]))
        truth = rng.choice(3, p=odds / odds.sum())
        scores = np.full(len(calibrate.NAMES), -np.inf)
        right = np.zeros(len(calibrate.NAMES), dtype=bool)
        for place, name in enumerate(names):
            scores[calibrate.NAMES.index(name)] = boast * honest[place]
            right[calibrate.NAMES.index(name)] = place == truth
        runs.append(calibrate.Run(scores, right))
    return runs


def test_a_boastful_ranking_is_cooled_and_a_modest_cause_raised(calibrate):
    runs = made(calibrate, boast=2.0, gain=1.0)
    temperature, shifts = calibrate.fit(runs, calibrate.EVERYTHING, steps=1500)
    assert 1.6 < temperature < 2.5
    by_name = dict(zip(calibrate.NAMES, shifts, strict=True))
    assert by_name["bad-batch"] - by_name["lr-too-high"] > 0.8
    before, _ = calibrate.reliability(runs, calibrate.probabilities(runs, 1.0, 0 * shifts))
    after, _ = calibrate.reliability(runs, calibrate.probabilities(runs, temperature, shifts))
    assert after < 0.05 < before


def test_an_honest_ranking_is_left_alone(calibrate):
    temperature, shifts = calibrate.fit(made(calibrate, boast=1.0, gain=0.0), calibrate.EVERYTHING, steps=1500)
    assert 0.85 < temperature < 1.15
    assert np.abs(shifts).max() < 0.25


def test_the_temperature_stays_above_its_floor(calibrate):
    temperature, _ = calibrate.fit(made(calibrate, boast=0.3, gain=0.0), calibrate.EVERYTHING, steps=500)
    assert temperature == pytest.approx(calibrate.FLOOR)


def test_kinds_count_alike(calibrate):
    runs = [calibrate.Run(None, None, kind) for kind in ("often", "often", "often", "once")]
    assert calibrate.weights(runs).tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])


def test_a_shift_that_only_one_kind_asks_for_does_not_carry_over(calibrate):
    runs = [run._replace(kind=f"k{number % 20}") for number, run in enumerate(made(calibrate, 1.0, 0.0, count=200))]
    place = calibrate.NAMES.index("bad-batch")
    right = np.arange(len(calibrate.NAMES)) == place
    runs = [run._replace(right=right) if run.kind == "k0" else run for run in runs]
    plain, moved = (calibrate.elsewhere(runs, moving) for moving in (calibrate.NOTHING, calibrate.EVERYTHING))
    odd = [number for number, run in enumerate(runs) if run.kind == "k0"]
    assert np.allclose(plain.sum(axis=1), 1) and np.allclose(moved.sum(axis=1), 1)
    assert moved[odd, place].mean() == pytest.approx(plain[odd, place].mean(), abs=0.1)
    assert not calibrate.helps(runs, plain, moved)
    truth = np.stack([run.right for run in runs]).astype(float)
    assert calibrate.helps(runs, plain, truth)


def line(kind, preset="default", **causes):
    ranked = [
        {"problem": 1, "cause": name.replace("_", "-"), "probability": share, "evidence": []}
        for name, share in causes.items()
    ]
    return json.dumps({"kind": kind, "preset": preset, "report": {"diagnoses": ranked}})


def test_only_development_runs_with_an_uncertain_cause_count(calibrate, tmp_path):
    kinds = {kind.split: kind for kind in calibrate.KINDS.values() if kind.cause}
    known = kinds["development"]
    cause = known.cause[0]
    certain = json.loads(line(known.slug, **{cause: 0.99, "unknown": 0.01}))
    certain["report"]["diagnoses"][0]["evidence"] = ["certain: it is so"]
    path = tmp_path / "results.jsonl"
    texts = [
        line(known.slug, **{cause: 0.8, "unknown": 0.2}),
        line(known.slug, unknown=1.0),
        line(known.slug, preset="paper", unknown=1.0),
        line(kinds["held-out"].slug, unknown=1.0),
        line("gone", unknown=1.0),
        line(known.slug),
        json.dumps(certain),
    ]
    path.write_text("\n".join(texts), encoding="utf-8")
    first, second = calibrate.read(path)
    assert first.right[calibrate.NAMES.index(cause)]
    assert second.right[calibrate.NAMES.index("unknown")]


def test_first_runs_are_read_with_the_constants_of_their_time(calibrate, tmp_path):
    lines = [
        {"run": "a", "sick": True, "first": True, "lead": "bad-batch", "p": 0.8},
        {"run": "b", "sick": True, "first": False, "lead": "bad-batch", "p": 0.8},
        {"run": "c", "sick": True, "first": True, "lead": "detached-graph", "p": 0.995},
        {"run": "d", "sick": True, "first": False, "lead": None, "p": None},
        {"run": "e", "sick": False, "first": None, "lead": "bad-batch", "p": 0.4},
        {"run": "f", "sick": True, "first": False, "lead": "unknown", "p": 0.6},
    ]
    ranked = {
        "ranked": [["unknown", 0.6], ["bad-batch", 0.3]],
        "cause": ["bad-batch"],
        "temperature": 2.0,
        "unknown": 0.5,
    }
    path = tmp_path / "first.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, lines[-1] | ranked])), encoding="utf-8")
    right, wrong, whole = calibrate.read_first(path)
    place, unknown = calibrate.NAMES.index("bad-batch"), calibrate.NAMES.index("unknown")
    assert right.right[place] and wrong.right[unknown] and whole.right[place]
    assert whole.scores[unknown] - whole.scores[place] == pytest.approx(2 * np.log(2) - 0.5)


def test_what_is_written_is_what_the_package_reads(calibrate):
    source = Path(calibration.__file__).read_text(encoding="utf-8")
    changed = calibrate.written(source, 1.7, {"bad-batch": -0.4})
    again = calibrate.written(changed, 1.2, {})
    assert "TEMPERATURE: float = 1.7\n" in changed
    assert 'SHIFTS: Mapping[str, float] = {\n    "bad-batch": -0.4,\n}' in changed
    assert "TEMPERATURE: float = 1.2\n" in again and "SHIFTS: Mapping[str, float] = {}\n" in again
