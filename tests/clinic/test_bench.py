"""The benchmark itself: that kinds are what they say, that results survive, and that scoring can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from torchdoctor.cli import group
from torchdoctor.clinic import arenas, bench, peers, scoring, tables
from torchdoctor.clinic.bench import Case, Line, Results
from torchdoctor.clinic.kinds import KINDS, THEMES, Kind, Loop
from torchdoctor.diagnoses import CAUSES
from torchdoctor.symptoms import DETECTORS

NAMES = {item.name for item in (*DETECTORS, *CAUSES)}
SICK = [kind for kind in KINDS.values() if not kind.healthy]
HEALTHY = [kind for kind in KINDS.values() if kind.healthy]


# ── the kinds ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_there_are_enough_kinds_in_both_parts() -> None:
    assert len(SICK) >= 60
    assert len(HEALTHY) >= 40
    for theme, kinds in THEMES.items():
        held = theme.startswith(("sealed", "everyday"))
        assert {kind.split for kind in kinds} == {"held-out" if held else "development"}, theme
    held_out = [kind for kind in KINDS.values() if kind.split == "held-out"]
    sick = sum(not kind.healthy for kind in held_out)
    assert sick >= 60 and len(held_out) - sick >= 40


def test_no_slug_is_used_twice() -> None:
    assert len(KINDS) == sum(len(kinds) for kinds in THEMES.values())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_says_what_it_is(kind: Kind) -> None:
    assert kind.summary.endswith(".")
    assert set(kind.on) <= set(arenas.makers())
    assert kind.healthy == (kind.slug in {item.slug for item in HEALTHY})
    if kind.healthy:
        assert not (kind.cause or kind.secondary or kind.acute or kind.advice or kind.onset)
    else:
        assert {*kind.right, *kind.also, *kind.cause, *kind.secondary} <= NAMES


@pytest.mark.parametrize("name", arenas.makers())
def test_an_arena_is_the_same_for_the_same_seed(name: str) -> None:
    first, second = (arenas.build(name, 3) for _ in range(2))
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert one.equal(other)
    (x, y), (again, _) = next(first.batches()), next(second.batches())
    assert x.equal(again)
    assert Loop(name, 3).loss_of(first.model(x), y).isfinite()


def test_a_twin_differs_in_the_fault_alone() -> None:
    case = Case("lr-too-high-sgd", "mlp", 0)
    sick, twin = (bench.loop_of(case, healthy_twin=healthy) for healthy in (False, True))
    assert next(sick.model.parameters()).equal(next(twin.model.parameters()))
    assert next(sick.batches)[0].equal(next(twin.batches)[0])


# ── runs and their results ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop of three dozen steps."""
    inner = bench.loop_of

    def cut(case: Case, *, healthy_twin: bool = False) -> Loop:
        loop = inner(case, healthy_twin=healthy_twin)
        loop.steps = 36
        return loop

    monkeypatch.setattr(bench, "loop_of", cut)


@pytest.mark.usefixtures("short")
def test_a_run_gives_a_line_for_each_who_looked(tmp_path: Path) -> None:
    case = Case("detached-loss", "regression", 0)
    lines = bench.run(case, "a", tmp_path)
    assert [line["preset"] for line in lines] == ["default", "paper", *peers.available()]
    assert all(line["steps"] == 36 and line["version"] == "a" for line in lines)
    assert json.loads(json.dumps(lines)) == lines
    again = bench.run(case, "a", tmp_path, replay=True)
    assert again[0]["report"]["symptoms"] == lines[0]["report"]["symptoms"]
    assert again[0]["findings"] == lines[0]["findings"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("slug", ["resumed-without-state", "critic-overwhelms", "policy-learns", "quasi-newton"])
def test_loops_of_another_shape_are_watched_too(slug: str) -> None:
    kind = KINDS[slug]
    [first, *_] = bench.run(Case(slug, kind.on[0], 0), "a")
    assert first["report"]["step"] >= 30


def test_a_run_that_is_in_the_results_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Case] = []

    def run(case: Case, label: str, journals: Path | None, *, replay: bool, device: str) -> list[Line]:
        ran.append(case)
        line = _line(case.kind, case.arena, case.seed) | {"version": label}
        return [line | {"error": "broke"} if case.arena == "cnn" else line]

    monkeypatch.setattr(bench, "isolated", run)
    todo = bench.cases("all", "lr-jump", 1)
    path = tmp_path / "results.jsonl"
    for _ in range(2):
        bench.bench(todo, Results(path), label="a")
    assert ran == [*todo, Case("lr-jump", "cnn", 0)]
    path.write_text(path.read_text() + '{"kind": "lr-ju')
    assert len(Results(path).lines) == 4
    bench.bench(todo[:1], Results(path), label="b")
    assert ran[-1] == todo[0]


def test_a_run_that_dies_is_an_error_and_no_more() -> None:
    [line] = bench.isolated(Case("plain-nets", "no-such-arena", 0), "a", None, replay=False)
    assert line["error"].startswith("PatientError: there is no arena 'no-such-arena'")


# ── scoring ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _line(kind: str, arena: str = "mlp", seed: int = 0, **found: Any) -> Line:
    """A line of results; ``found`` may hold findings as (step, name, severity), leads and causes."""
    return {
        "kind": kind,
        "arena": arena,
        "seed": seed,
        "version": "a",
        "preset": "default",
        "split": KINDS[kind].split,
        "steps": 400,
        "validations": [[49, 1.0], [99, 0.5], [149, 0.9], [299, 1.2]],
        "findings": [dict(zip(("step", "name", "severity"), item, strict=True)) for item in found.get("findings", ())],
        "leads": [dict(zip(("step", "cause", "severity"), item, strict=True)) for item in found.get("leads", ())],
        "report": {
            "step": 399,
            "symptoms": [{"name": "loss-spike", "severity": found.get("severity", "info")}],
            "diagnoses": [
                {"problem": problem, "cause": cause, "probability": probability, "symptoms": ["loss-spike"]}
                for problem, cause, probability in found.get("causes", ())
            ],
        },
    }


FOUND = {
    "right symptom": (_line("lr-jump", findings=[(151, "loss-spike", "warning")]), True, 1),
    "right cause": (_line("missing-zero-grad", leads=[(7, "missing-zero-grad", "critical")]), True, 7),
    "right cause, in the report": (
        _line("missing-zero-grad", severity="warning", causes=[(1, "missing-zero-grad", 0.6), (1, "unknown", 0.4)]),
        True,
        399,
    ),
    "in the report, of something minor": (
        _line("missing-zero-grad", causes=[(1, "missing-zero-grad", 0.6)]),
        False,
        None,
    ),
    "before the first step": (_line("layers-in-a-list", findings=[(-1, "frozen-weights", "warning")]), True, 0),
    "nothing": (_line("lr-jump"), False, None),
    "only info": (_line("lr-jump", findings=[(151, "loss-spike", "info")]), False, None),
    "a cause of something minor": (_line("lr-jump", leads=[(151, "lr-too-high", "info")]), False, None),
    "too early for an acute fault": (_line("lr-jump", findings=[(149, "loss-spike", "warning")]), False, None),
    "another name": (_line("lr-jump", findings=[(151, "overfitting", "critical")]), False, None),
    "one of two faults": (_line("frozen-layer-and-nan", findings=[(150, "nan-or-inf", "critical")]), False, None),
    "both faults": (
        _line("frozen-layer-and-nan", findings=[(9, "no-gradient", "warning"), (152, "nan-or-inf", "critical")]),
        True,
        2,
    ),
    "advice": (_line("adam-with-l2", leads=[(20, "optimizer-misconfigured", "info")]), True, 20),
    "onset told by validation": (_line("few-samples", findings=[(149, "overfitting", "warning")]), True, 50),
}


@pytest.mark.parametrize(("line", "found", "delay"), FOUND.values(), ids=FOUND)
def test_what_counts_as_found(line: Line, found: bool, delay: int | None) -> None:
    verdict = scoring.judge(line)
    assert verdict is not None
    assert (verdict.found, verdict.delay) == (found, delay)


def test_what_counts_as_false() -> None:
    findings = [
        (20, "loss-spike", "warning"),
        (151, "loss-spike", "warning"),
        (160, "dead-units", "warning"),
        (170, "overfitting", "warning"),
        (180, "memory-growth", "info"),
        (190, "multiple-pathologies", "warning"),
    ]
    verdict = scoring.judge(_line("lr-jump", findings=findings))
    assert verdict is not None
    assert verdict.false == ("loss-spike", "overfitting")
    healthy = scoring.judge(_line("plain-nets", findings=findings))
    assert healthy is not None
    assert len(healthy.false) == 4


def test_in_time_is_three_steps_or_a_hundred_or_two_validations() -> None:
    def in_time(kind: str, name: str, step: int) -> bool:
        verdict = scoring.judge(_line(kind, findings=[(step, name, "warning")]))
        assert verdict is not None
        return verdict.in_time

    assert in_time("lr-jump", "loss-spike", 153)
    assert not in_time("lr-jump", "loss-spike", 154)
    assert in_time("detached-loss", "no-gradient", 100)
    assert not in_time("detached-loss", "no-gradient", 101)
    assert in_time("few-samples", "overfitting", 299)
    assert not in_time("few-samples", "overfitting", 300)


def test_the_root_cause_is_that_of_the_first_problem() -> None:
    causes = [(2, "unknown", 0.5), (2, "lr-too-high", 0.3), (2, "bad-batch", 0.2), (1, "stale-loss", 0.9)]
    verdict = scoring.judge(_line("lr-jump", causes=causes))
    assert verdict is not None
    assert verdict.ranked == (("lr-too-high", 0.3), ("bad-batch", 0.2))
    assert verdict.first
    behind = scoring.judge(_line("outlier-batch", causes=causes))
    assert behind is not None
    assert (behind.first, behind.among_three) == (False, True)
    elsewhere = scoring.judge(_line("stale-loss", causes=causes))
    assert elsewhere is not None
    assert not elsewhere.among_three


def test_calibration_compares_what_was_said_with_what_was_right() -> None:
    def lines(right: int, wrong: int, said: float) -> list[Line]:
        alarm = [(151, "loss-spike", "warning")]
        names = ["lr-too-high"] * right + ["bad-initialization"] * wrong
        return [_line("lr-jump", seed=i, findings=alarm, causes=[(1, name, said)]) for i, name in enumerate(names)]

    assert scoring.score(lines(8, 2, 0.8))["calibration_error"]["value"] == pytest.approx(0)
    assert scoring.score(lines(2, 8, 0.8))["calibration_error"]["value"] == pytest.approx(0.6)
    luck = [scoring.score(lines(count, 0, 0.8))["calibration_error_by_chance"] for count in (4, 100)]
    assert luck[0] == pytest.approx(0.16, abs=0.02)  # four tosses: 0.2 off, or more, as a rule
    assert luck[1] < 0.05


def test_the_last_line_of_a_run_counts() -> None:
    old = _line("lr-jump") | {"version": "old"}
    new = _line("lr-jump", findings=[(151, "loss-spike", "warning")])
    assert scoring.score([old, new])["recall"]["count"] == 1
    assert scoring.score([new, old])["recall"]["count"] == 0


def test_the_score_is_printed_whole() -> None:
    lines = [
        _line("lr-jump", findings=[(151, "loss-spike", "warning")], causes=[(1, "lr-too-high", 0.8)]),
        _line("plain-nets", findings=[(20, "overfitting", "warning")]),
        _line("plain-nets", seed=1),
        _line("plain-nets", seed=1) | {"preset": "paper"},
        _line("plain-images", "cnn") | {"error": "ValueError: no"},
    ]
    text = tables.render(scoring.score(lines))
    assert "faults found, with a right name  100.0 % (20.7 .. 100.0), 1 of 1 runs" in text
    assert "healthy runs without a warning   50.0 %" in text
    assert "plain-nets     2  overfitting 1" in text
    assert "Runs that failed: 1" in text


# ── peers and the command ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_sees_a_run_that_breaks(name: str) -> None:
    ask = peers.available().get(name)
    if ask is None:
        pytest.skip(f"{name} is not installed")
    rows = {step: {"loss": 2.0 / (1 + step / 50), "grad_norm": 1.0, "lr": 1e-3} for step in range(200)}
    broken = rows | {step: {"loss": 1e6 * step, "grad_norm": 1e6, "lr": 1e-3} for step in range(150, 200)}
    assert len(ask(broken)) > len([item for item in ask(rows) if item["severity"] != "info"])
    assert {item["severity"] for item in ask(broken)} <= {"info", "warning", "critical"}


def test_the_command_lists_shows_and_scores(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(group, ["clinic", "list", "--split", "development"])
    assert listed.exit_code == 0
    assert "held-out" not in listed.output
    shown = runner.invoke(group, ["clinic", "show", "detached-loss", "--arena", "regression"])
    assert shown.exit_code == 0
    assert "its healthy twin: loss" in shown.output
    path = tmp_path / "results.jsonl"
    slug = next(kind.slug for kind in SICK if kind.split == "development")
    path.write_text(json.dumps(_line(slug, KINDS[slug].on[0])) + "\n")
    scored = runner.invoke(group, ["clinic", "bench", "--results", str(path), "--score-only", "--format", "json"])
    assert scored.exit_code == 0
    assert json.loads(scored.output)["recall"]["runs"] == 1
    assert runner.invoke(group, ["clinic", "show", "missing-zero-gard"]).exit_code == 2
