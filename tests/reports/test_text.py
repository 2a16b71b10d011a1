"""The text: understood in ten seconds, safe for a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.reports.samples import CLIP, HALVE, HEALTHY, SICK, XSS, poisoned

from torchdoctor.diagnoses import CAUSES
from torchdoctor.records import Diagnosis, Symptom
from torchdoctor.reports import text
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import change_words, verdict


def test_the_first_two_lines_say_what_why_and_what_to_do():
    first, second = str(SICK).splitlines()[:2]
    assert first == "Critical since step 1730: loss-divergence, loss 7.4 is 5.2 times its best 1.42."
    assert second == "Most likely cause: lr-too-high (81 %). First change: learning_rate *= 0.5"


def test_causes_are_announced_by_rank_with_evidence_and_fix():
    told = str(SICK)
    for part in (
        "Most likely cause (81 %): lr-too-high\n"
        "    The learning rate is too high for this model, batch size and optimizer.\n"
        "    Evidence: the learning rate rose 30-fold at step 1700.\n"
        "    Against it: the norm had not moved.\n"
        "    Fix: ",
        "Alternative (14 %): clip-missing\n",
        "    Evidence: no clipping was seen.\n    Fix: grad_clip = 1.0",
        "Also consider: unknown (5 %)",
        "1. scale-lr (confidence 0.90)",
        "- the raw gradient norm is unknown",
        "steps 0 to 999: stable, loss decreasing",
        "Also found (info, steps 1730 to 1999)",
    ):
        assert part in told


def test_where_names_a_few_places_and_counts_the_rest():
    told = " ".join(str(SICK).split())
    assert (
        "Where: blocks.0.weight, blocks.1.weight, blocks.2.weight, blocks.3.weight, blocks.4.weight and 3 more, rank 2"
        in told
    )


def test_an_episode_belongs_to_one_problem():
    early = Symptom("gradient-explosion", "GR01", "info", 0.9, 100, 100)
    late = Symptom("gradient-explosion", "GR01", "warning", 0.9, 1700, 1700)
    spike = Symptom("loss-spike", "LO01", "warning", 0.9, 1701, 1705)
    names = ("gradient-explosion", "loss-spike")
    told = str(
        Report(
            1999,
            (early, late, spike),
            (
                Diagnosis(1, "lr-too-high", 1.0, (), names, episodes=(1, 2)),
                Diagnosis(2, "unknown", 1.0, (), names[:1], episodes=(0,)),
            ),
        )
    )
    assert told.index("Problem 1 (warning, steps 1700 to 1705)") < told.index("Problem 2 (info, step 100)")
    assert "What happened: gradient-explosion (step 1700) → loss-spike (step 1701)" in told
    assert told.count("GR01 gradient-explosion") == 2


@pytest.mark.parametrize(
    ("last_step", "label"),
    [(600, "If it happens again: learning_rate *= "), (640, "To limit the damage: learning_rate *= ")],
)
def test_without_a_cause_a_single_odd_step_asks_for_no_change_yet(last_step, label):
    odd = Symptom("gradient-vanishing", "GR02", "warning", 0.9, 600, last_step)
    cause = Diagnosis(1, "unknown", 0.9, ("look at that step",), ("gradient-vanishing",), (HALVE,))
    assert label in str(Report(1999, (odd,), (cause,)))


@pytest.mark.parametrize(
    ("name", "last_step", "now", "words"),
    [
        ("loss-spike", 434, 30_000, "Sick at step 433: loss-spike. Not seen again in the 29566 steps since."),
        ("loss-spike", 434, 700, "Sick at step 433: loss-spike."),
        ("validation-anomaly", 2_000, 9_000, "Sick from step 433 to 2000: validation-anomaly. Not seen again in the"),
        ("information-leak", 434, 30_000, "Sick at step 433: information-leak."),
    ],
)
def test_the_verdict_says_that_a_finding_is_long_past(name, last_step, now, words):
    told = verdict(Report(now, (Symptom(name, "LO01", "warning", 0.9, 433, last_step),)))
    assert told.startswith(words) and ("Not seen again" in told) == ("Not seen again" in words)


def test_without_a_cause_the_second_line_says_how_to_find_one():
    flat = Symptom("not-learning", "LO04", "warning", 0.9, 0, 900)
    unknown = Diagnosis(1, "unknown", 0.2, ("overfit one batch",), ("not-learning",), (CLIP,))
    second = str(Report(999, (flat,), (unknown,), (CLIP,))).splitlines()[1]
    assert second == "No cause stands out. To find out: overfit one batch."
    told = str(Report(999, (flat,), (replace(unknown, suggestions=(replace(CLIP, action="fix-loss"),)),)))
    assert "To limit the damage" not in told and "Worth a try: grad_clip" in told


def test_the_first_two_lines_are_of_one_problem():
    early = Symptom("suspicious-loss", "GP04", "warning", 0.9, 0, 299, message="dropout")
    late = Symptom("wrong-mode", "GP03", "warning", 0.9, 123, 299, message="eval")
    worse = replace(early, severity="critical")
    own = replace(CLIP, action="set-train-mode", code="model.train()", reason="eval-mode-in-training (98 %): Call.")
    found = (
        Diagnosis(1, "eval-mode-in-training", 0.98, ("so",), ("wrong-mode",), (own,), episodes=(1,)),
        Diagnosis(2, "unknown", 0.93, (), ("suspicious-loss",), (CLIP,), episodes=(0,)),
    )
    report = Report(299, (early, late), found, (own, CLIP))
    assert str(report).startswith(
        "Sick since step 123: wrong-mode, eval.\nMost likely cause: eval-mode-in-training (98"
    )
    assert verdict(replace(report, symptoms=(worse, late))).startswith("Critical since step 0: suspicious-loss")
    other = replace(report, suggestions=(replace(own, reason="other (60 %): Call."),))
    assert change_words(report) == "First change" and change_words(other) == "First change, against other (60 %)"


def test_several_problems_are_summed_up_first_a_line_each():
    lines = str(SICK).splitlines()
    assert lines[3:6] == [
        "2 problems, worst first",
        "  1. critical lr-too-high (81 %): loss-divergence, steps 1730 to 1999",
        "  2. warning  bad-batch (100 %): gradient-explosion, step 600",
    ]
    one = replace(SICK, diagnoses=SICK.diagnoses[:3])
    assert "problems, worst first" not in str(one)


def test_a_count_of_findings_is_left_out_beside_more_of_them():
    two, three = (replace(SICK, symptoms=(*SICK.symptoms[:2], replace(SICK.symptoms[2], value=n))) for n in (1.0, 2.0))
    assert "MU01" not in str(two) and "Also found" not in str(two)
    assert "MU01" in str(three)


def test_what_was_seen_at_every_step_is_not_counted():
    told = str(SICK)
    assert "steps 1730 to 1999, seen 90 times" in told
    always = replace(SICK, symptoms=(SICK.symptoms[0], replace(SICK.symptoms[1], count=300)))
    assert "steps 1730 to 1999\n" in str(always) and "seen" not in str(always).partition("Most likely cause (")[0]


def test_changes_of_any_confidence_are_in_the_order_to_try_them():
    told = str(replace(SICK, suggestions=(CLIP, HALVE)))
    assert "What to change, in this order; change one thing at a time\n  1. set-clip-norm (confidence 0.80)" in told


def test_many_causes_and_changes_stay_short():
    names = [item.name for item in CAUSES][:8]
    ranked = tuple(Diagnosis(1, name, 0.125, (), ("loss-divergence",)) for name in names)
    changes = tuple(replace(HALVE, action=f"change-{letter}") for letter in "abcdefgh")
    told = str(replace(SICK, diagnoses=ranked, suggestions=changes))
    assert told.count(" (12 %)") == 2 + 3  # eight that are as likely: the advice names none
    assert " and 3 more\n" in told
    assert told.count("learning_rate *= 0.5") == 6  # once in the advice, five times with its code
    assert "Then: change-f (0.90), change-g (0.90), change-h (0.90)" in told


def test_the_worst_problem_comes_first_and_lines_fit_a_terminal():
    told = str(SICK)
    assert told.index("Problem 1 (critical") < told.index("Problem 2 (warning")
    assert max(map(len, told.splitlines())) <= text.WIDTH


def test_a_healthy_run_is_one_line():
    assert str(HEALTHY) == "Healthy at step 899: nothing was found."
    assert str(Report(step=-1)) == "Nothing to judge yet: no training step was seen."


def test_a_log_of_one_record_is_not_called_healthy():
    curves = {"loss": [(2490, 1.77, 1.77, 1.77)], "val_loss": [(2490, 1.81, 1.81, 1.81)]}
    first = " ".join(str(Report(step=2490, context={"source": "JSON"}, curves=curves)).splitlines())
    assert first.startswith("Too little to judge: the log holds the values of step 2490 only (loss 1.77, validation")
    more = {**curves, "loss": [(0, 2.0, 2.0, 2.0), (2490, 1.77, 1.77, 1.77)]}
    assert str(Report(step=2490, context={"source": "JSON"}, curves=more)).startswith("Healthy at step 2490")


def test_informative_findings_leave_the_verdict_healthy():
    report = Report(
        step=9, symptoms=(Symptom("converged", "LO09", "info", 0.9, 5, 9, message="the loss is at its floor"),)
    )
    assert str(report).startswith("Healthy at step 9: nothing was found.\n\nAlso found")


def test_many_episodes_of_one_finding_are_summed_up():
    spikes = tuple(
        Symptom("loss-spike", "LO01", "critical" if step == 50 else "info", 0.9, step, step) for step in range(60)
    )
    told = str(Report(step=99, symptoms=spikes))
    assert told.count("LO01 loss-spike") == 4 and "(critical), step 50" in told
    assert "and 56 more like this, steps 3 to 59" in told


@pytest.mark.parametrize("string", XSS)
def test_nothing_reaches_the_terminal_but_printable_text(string):
    out = io.StringIO()
    text.show(poisoned(string), Console(file=out, width=100, color_system=None, force_terminal=False))
    for told in (str(poisoned(string)), out.getvalue()):
        assert all(char == "\n" or char.isprintable() for char in told)
        told.encode("utf-8")


def test_a_terminal_gets_colour_and_the_same_words():
    coloured, plain = io.StringIO(), io.StringIO()
    text.show(SICK, Console(file=coloured, width=100, force_terminal=True, color_system="standard"))
    text.show(SICK, Console(file=plain, width=100, force_terminal=False))
    assert "\x1b[" in coloured.getvalue()
    assert plain.getvalue().rstrip("\n") == text.render(SICK)


def test_what_has_done_no_harm_asks_for_no_change():
    note = replace(SICK.symptoms[0], name="loss-spike", severity="info")
    for cause, probability, words in (
        ("bad-batch", 0.8, "Worth a try: "),
        ("bad-batch", 0.3, ""),
        ("unknown", 0.8, ""),
    ):
        ranked = Diagnosis(1, cause, probability, (), ("loss-spike",), (HALVE,), (0,))
        told = str(replace(SICK, symptoms=(note,), diagnoses=(ranked,), suggestions=(HALVE,)))
        second = told.splitlines()[1]
        assert "First change" not in told and second.endswith("learning_rate *= 0.5") == bool(words) and words in second
        assert "nothing has to change" in told
