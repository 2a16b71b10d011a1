"""What is said, how often, and to whom: one message for an episode, silence for a healthy run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.sinks.sick import END, HEALTHY, HOSTILE, OPENED, OVER, SICK, WORSE, cause, event, spike

from torchdoctor.journal.lines import encode
from torchdoctor.reports.report import Report
from torchdoctor.reports.wording import printable
from torchdoctor.sinks.messages import Bulletin, as_markdown, as_records, in_one, summary
from torchdoctor.sinks.sink import Subject
from torchdoctor.sinks.webhook import as_discord, as_json, as_slack


def read(*batches, least="warning"):
    """The messages of batches that are sent one by one."""
    bulletin, found = Bulletin(Subject("exp-7", least)), []
    for records in batches:
        bulletin.read(records)
        found += bulletin.waiting
        bulletin.waiting.clear()
    return found


def test_an_episode_is_told_when_it_opens_gets_worse_and_is_over():
    messages = read(OPENED, WORSE, OVER)
    assert [(item.event, item.level) for item in messages] == [
        ("opened", "WARN"),
        ("changed", "ERROR"),
        ("closed", "INFO"),
    ]
    assert messages[0].text == (
        "exp-7: Sick at step 120: loss-spike, loss 9.1 is 4.2 times its recent 2.2.\n"
        "Most likely cause: lr-too-high (80 %). First change: learning_rate *= 0.5"
    )
    assert messages[0].code == "learning_rate *= 0.5\n# in every group"
    assert messages[1].text.startswith("exp-7: It got worse. Critical since step 120: loss-spike")
    assert messages[2].text == "exp-7: LO01 loss-spike is over: steps 120 to 140."


def test_what_got_worse_before_it_was_sent_is_one_message():
    bulletin = Bulletin(Subject())
    bulletin.read(OPENED)
    bulletin.read(WORSE)
    assert [(item.event, item.symptom.severity) for item in bulletin.waiting] == [("opened", "critical")]
    assert bulletin.waiting[0].report.diagnoses[0].probability == 0.9


def test_an_episode_that_only_goes_on_is_not_told_again():
    again = [event("changed", spike(last=step, where=("fc",))) for step in range(121, 200)]
    assert len(read(OPENED, again)) == 1


@pytest.mark.parametrize(("least", "told"), [("info", 1), ("warning", 0), ("critical", 0)])
def test_the_least_severity(least, told):
    assert len(read([event("opened", spike("info"))], least=least)) == told


def test_an_episode_is_told_when_it_becomes_severe_enough():
    rising = [[event("opened", spike("info"))], [event("changed", spike("warning"))]]
    assert [item.event for item in read(*rising)] == ["opened"]
    assert read(*rising, [event("closed", spike("warning"))])[-1].event == "closed"


def test_what_is_not_told_is_not_told_to_be_over():
    assert read([event("opened", spike("info"))], [event("closed", spike("info"))]) == []


@pytest.mark.parametrize("name", ["multiple-pathologies", "converged", "batch-size-advice"])
def test_what_is_merely_informative_is_not_told(name):
    assert read([event("opened", spike("info", name=name))], least="info") == []
    assert summary(Report(9, (spike("info", name=name),)), Subject(least="info")) is None


def test_a_hundred_episodes_are_not_a_hundred_messages():
    batches = [[event(kind, spike(first=step, last=step))] for step in range(100) for kind in ("opened", "closed")]
    opened = [item for item in read(*batches) if item.event == "opened"]
    assert [item.earlier + 1 for item in opened] == [1, 2, 3, 4, 5, 10, 20, 40, 80]
    assert "It is the 10th episode of this." in opened[5].headline
    critical = read(*batches, [event("opened", spike("critical", 500))])[-1]
    assert (critical.event, critical.level) == ("opened", "ERROR")


def test_what_ends_with_the_run_is_not_over():
    bulletin = Bulletin(Subject())
    bulletin.read([*OPENED, *END, event("closed", spike())])
    assert [item.event for item in bulletin.waiting] == ["opened"]
    assert list(bulletin.open) == ["loss-spike"]


def test_the_summary_of_a_healthy_run_is_silence():
    assert summary(HEALTHY, Subject()) is None
    assert summary(None, Subject()) is None
    assert summary(Report(9, (spike("info"),)), Subject()) is None


def test_the_summary_of_a_sick_run():
    message = summary(SICK, Subject("exp-7"))
    assert message.title == "Run ended critical at step 200"
    assert message.text.splitlines() == [
        "exp-7: Critical at step 120: loss-spike, loss 9.1 is 4.2 times its recent 2.2.",
        "Most likely cause: lr-too-high (90 %). First change: learning_rate *= 0.5",
        "LO01 loss-spike (critical), steps 120 to 140",
        "GR01 gradient-explosion (warning), steps 150 to 200",
    ]


def test_a_finished_report_tells_what_a_live_run_would_have():
    bulletin = Bulletin(Subject("exp-7"))
    bulletin.read(as_records(SICK))
    events = [(item.event, item.symptom.name) for item in bulletin.waiting]
    assert events == [("opened", "loss-spike"), ("closed", "loss-spike"), ("opened", "gradient-explosion")]
    assert bulletin.waiting[2].report.diagnoses[0].cause == "lr-too-high"
    assert list(bulletin.open) == ["gradient-explosion"]


def test_messages_sent_together_are_worst_first_and_advise_once():
    other = spike("critical", name="nan-or-inf", code="NU01")
    both = [*OPENED, event("opened", other), cause("nan-or-inf")]
    messages = in_one(read(both))
    assert [item.symptom.name for item in messages] == ["nan-or-inf", "loss-spike"]
    assert [bool(item.advice) for item in messages] == [True, False]
    assert [bool(item.code) for item in messages] == [True, False]
    assert as_slack(read(both))["text"].count("learning_rate *= 0.5") == 2  # in the sentence and in its code


def test_titles_are_short_and_levels_are_known():
    long = spike("critical", 10**12, 10**12, name="x" * 80)
    assert all(len(item.title) < 64 for item in read([event("opened", long)], [event("closed", long)]))


def test_many_messages_are_cut():
    batch = [event("opened", spike(name=f"finding-{number}", first=number)) for number in range(300)]
    messages = read(batch)
    assert len(messages) == 200  # a sink that takes nothing costs a bounded memory
    assert as_json(messages)["text"].endswith("and 190 more")
    assert len(as_slack(messages)["text"]) <= 3000
    assert len(as_discord(messages)["content"]) <= 2000


def hostile_messages():
    symptom = replace(spike(), message=HOSTILE, where=(HOSTILE,))
    blame = cause("loss-spike")
    blame["cause"] = HOSTILE
    blame["suggestions"] = [{**blame["suggestions"][0], "code": HOSTILE}]
    bulletin = Bulletin(Subject(HOSTILE))
    bulletin.read([event("opened", symptom), blame])
    return tuple(bulletin.waiting)


@pytest.mark.parametrize("form", [as_json, as_slack, as_discord])
def test_hostile_names_stay_text(form):
    body = json.loads(encode(form(hostile_messages())))
    text = body.get("text") or body.get("content")
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    if form is as_slack:
        assert "<" not in text and "&lt;!channel&gt;" in text
    if form is as_discord:
        assert body["allowed_mentions"] == {"parse": []}


def test_markdown_shows_hostile_names_as_they_are():
    text = as_markdown(hostile_messages()[0])
    prose = text.split("````")[0]  # the fence is longer than the one in the code
    assert "<script>" not in prose and "\\<script\\>" in prose
    assert printable(HOSTILE).split()[0] in text
