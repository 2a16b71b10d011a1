"""The fit of the calibration's constants: it finds what was put in, and writes what the package reads."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import torchdoctor
from torchdoctor.clinic.kinds import KINDS
from torchdoctor.diagnoses import calibration

ROOT = Path(__file__).parents[1]
BOTH = ("unknown", "temperature")


@pytest.fixture(scope="module")
def calibrate():
    spec = importlib.util.spec_from_file_location("calibrate", ROOT / "benchmarks/calibrate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["calibrate"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["calibrate"]


def made(calibrate, boast=1.0, timid=0.0, count=400):
    """Runs of four authors whose scores boast by a factor, and give `unknown` too much."""
    rng = np.random.default_rng(0)
    names = ["lr-too-high", "bad-batch", "unknown"]
    runs = []
    for number in range(count):
        honest = rng.normal(0, 1.5, 3)
        truth = rng.choice(3, p=np.exp(honest) / np.exp(honest).sum())
        scores = {name: [score] for name, score in zip(names, boast * honest + np.array([0, 0, timid]), strict=True)}
        right = frozenset(names[truth : truth + 1]) if truth < 2 else frozenset({"memory-leak"})
        runs.append(calibrate.Run(str(number), scores, right, "made", f"author {number % 4}"))
    return runs


def fitted(calibrate, runs, moving=BOTH):
    return calibrate.fit(calibrate.parts_of(runs), np.ones(len(runs)), moving)


def error(calibrate, runs, constants):
    made = [calibrate.claim(run, constants) for run in runs]
    return calibrate.error([(item.said, item.first) for item in made])


def is_better(calibrate, runs, constants):
    return error(calibrate, runs, constants) < 0.7 * error(calibrate, runs, calibrate.Constants())


def test_a_boastful_ranking_is_cooled(calibrate):
    runs = made(calibrate, boast=2.0)
    found = fitted(calibrate, runs)
    assert found.temperature >= 1.4 and abs(found.unknown) <= 0.5
    assert is_better(calibrate, runs, found)


def test_an_unknown_that_is_given_too_much_is_lowered(calibrate):
    runs = made(calibrate, timid=1.5)
    found = fitted(calibrate, runs)
    assert 0.9 <= found.temperature <= 1.2 and -2.0 <= found.unknown <= -1.0
    assert is_better(calibrate, runs, found)


def test_wrong_claims_however_sure_ask_for_a_reserve(calibrate):
    runs = made(calibrate, boast=1.0)
    surer = [run._replace(evidence={"bad-batch": [6.0], "unknown": [0.0]}) for run in runs]
    odd = [
        run._replace(cause=frozenset({"bad-batch"} if place % 5 else {"memory-leak"}))
        for place, run in enumerate(surer)
    ]
    found = fitted(calibrate, odd, ("unknown", "reserve"))
    assert 0.12 <= found.reserve <= 0.2
    assert is_better(calibrate, odd, found)


def test_evidence_that_repeats_itself_is_found_to_be_an_echo(calibrate):
    """Each piece of evidence comes twice: what it says, and the same again."""
    runs = []
    for run in made(calibrate):
        doubled = {}
        for name, (score,) in run.evidence.items():
            doubled[name] = [-5.0, score + 5.0, score + 5.0] if name != "unknown" else [score]
        runs.append(run._replace(evidence=doubled))
    assert fitted(calibrate, runs, ("echo",)).echo <= 0.1
    assert is_better(calibrate, runs, fitted(calibrate, runs, ("echo",)))


def test_an_honest_ranking_is_left_alone(calibrate):
    runs = made(calibrate)
    found = fitted(calibrate, runs)
    assert 0.9 <= found.temperature <= 1.1 and abs(found.unknown) <= 0.25
    parts = calibrate.parts_of(runs)
    before, after = calibrate.losses(parts, calibrate.Constants()), calibrate.abroad(runs, parts, BOTH)
    better, doubt = calibrate.gain(before, after, parts.weight)
    assert better < doubt


def test_what_does_not_move_stays_at_nothing(calibrate):
    runs = made(calibrate, boast=1.5, timid=1.5, count=100)
    assert fitted(calibrate, runs, ("unknown",)).temperature == 1.0
    assert fitted(calibrate, runs, ("temperature",)).unknown == 0.0
    assert fitted(calibrate, runs, ()) == calibrate.Constants()


def test_what_only_one_author_asks_for_is_not_taken_for_a_gain(calibrate):
    runs = made(calibrate, count=120)
    odd = [run._replace(cause=frozenset({"memory-leak"})) if run.fold == "author 0" else run for run in runs]
    parts = calibrate.parts_of(odd)
    others = dict(zip([run.fold for run in odd], calibrate.elsewhere(odd, parts, BOTH), strict=True))
    assert others["author 0"] == fitted(calibrate, [run for run in odd if run.fold != "author 0"])
    assert others["author 1"] != others["author 0"]


def test_a_certain_cause_is_left_alone(calibrate):
    run = calibrate.Run("a", {"stale-loss": [5.0], "unknown": [0.0]}, frozenset(), "made", "b", certain=True)
    assert run.ranked(calibrate.Constants(-3.0, 0.1, 0.5, 1.5)) == run.ranked(calibrate.Constants())


def test_even_bins_hold_about_as_many_claims_each(calibrate):
    claims = [(0.9, True)] * 30 + [(0.5, False)] * 30
    assert calibrate.error(claims) == calibrate.error(claims, even=True) == pytest.approx(0.3)


def line(kind, preset="default", evidence="", **causes):
    ranked = [
        {"problem": 1, "cause": name.replace("_", "-"), "probability": share, "evidence": [evidence]}
        for name, share in causes.items()
    ]
    return json.dumps({"kind": kind, "preset": preset, "report": {"diagnoses": ranked, "symptoms": []}})


def test_only_development_runs_with_a_known_cause_count(calibrate, tmp_path):
    kinds = {kind.split: kind for kind in KINDS.values() if kind.cause}
    known = kinds["development"]
    texts = [
        line(known.slug, bad_batch=0.8, unknown=0.2),
        line(known.slug, evidence="certain: it is so", stale_loss=0.99, unknown=0.01),
        line(known.slug),
        line(known.slug, preset="paper", unknown=1.0),
        line(kinds["held-out"].slug, unknown=1.0),
        line("gone", unknown=1.0),
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(texts), encoding="utf-8")
    doubtful, certain, silent = calibrate.of_the_clinic(path)
    assert doubtful.cause == frozenset(known.cause)
    assert certain.certain and not doubtful.certain and not silent.evidence
    # What is read, and calibrated again with the same constants, is what was said.
    assert dict(doubtful.ranked(calibrate.now())) == pytest.approx({"bad-batch": 0.8, "unknown": 0.2})


def test_first_runs_are_kept_and_read_again(calibrate, tmp_path):
    path = tmp_path / "first.jsonl"
    evidence = {"bad-batch": [-1.25, 3.0, -0.5], "unknown": [0.0]}
    run = calibrate.Run("a", evidence, frozenset({"bad-batch"}), "labels", "somebody")
    path.write_text("\n".join(calibrate.kept(run, number) for number in (1, 3)), encoding="utf-8")
    old, new = calibrate.of_first_runs(path)
    assert (new.evidence, new.cause, new.fold, new.weight) == (run.evidence, run.cause, "somebody", 1.0)
    assert old.weight == pytest.approx(calibrate.OLDER**2)


def test_the_first_runs_of_the_project_can_be_read(calibrate):
    runs = calibrate.of_first_runs(calibrate.FIRST_RUNS)
    assert len(runs) > 1000 and len({run.fold for run in runs}) >= 15
    assert all(run.cause or run.spoke for run in runs), "of healthy runs only false alarms are kept"
    assert all("unknown" in run.evidence for run in runs if run.evidence)


def test_a_labelled_journal_is_weighed_as_the_report_says(calibrate, tmp_path):
    """What is kept of a run at first sight, put together again, is what its report said."""
    loss = [2.0 + 0.01 * (step % 7) for step in range(150)] + [900.0] + [2.0] * 150
    log = tmp_path / "run.jsonl"
    log.write_text("".join(json.dumps({"step": step, "loss": value}) + "\n" for step, value in enumerate(loss)))
    labels = tmp_path / "labels.jsonl"
    line = {"run": "a", "journal": str(log), "cause": ["bad-batch"], "author": "somebody"}
    labels.write_text(json.dumps(line), encoding="utf-8")
    (run,) = calibrate.of_labels(labels)
    said = {item.cause: item.probability for item in torchdoctor.diagnose(log).diagnoses if item.problem == 1}
    told = dict(run.ranked(calibrate.now()))
    assert said and all(told[name] == pytest.approx(share, abs=0.02) for name, share in said.items())


def test_what_is_written_is_what_the_package_reads(calibrate):
    source = Path(calibration.__file__).read_text(encoding="utf-8")
    changed = calibrate.written(source, calibrate.Constants(-0.75, 0.12, 0.3, 1.2))
    again = calibrate.written(changed, calibrate.Constants())
    for line in ("TEMPERATURE: float = 1.2\n", "ECHO: float = 0.3\n", "RESERVE: float = 0.12\n"):
        assert line in changed
    assert 'SHIFTS: Mapping[str, float] = {"unknown": -0.75}\n' in changed
    assert "TEMPERATURE: float = 1.0\n" in again and "SHIFTS: Mapping[str, float] = {}\n" in again
