"""The text of a consultation, block by block, for the terminal and the transcript."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchdoctor.consulting.complaints import BY_NAME
from torchdoctor.consulting.complaints import seen as seen_in_run
from torchdoctor.consulting.consultation import Consultation
from torchdoctor.consulting.document import Block
from torchdoctor.consulting.evidence import is_reported
from torchdoctor.consulting.fixes import Plan, Proposal
from torchdoctor.consulting.question import Value, answer_text
from torchdoctor.consulting.questions import QUESTIONS
from torchdoctor.consulting.stopping import INSTEAD
from torchdoctor.consulting.trees import Leaf
from torchdoctor.records import Diagnosis, Suggestion
from torchdoctor.reports.problem import NAMED, NOTABLE, Problem, meaning, problems, stands_out, story, weighed
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import first_line, percent
from torchdoctor.treatments.prescription import BY_SLUG

POSSIBLE = 0.1
"""If all causes of a leaf are less likely than this, the report says that the run contradicts the leaf."""
RECORD_IT = (
    'record the run with Doctor(model, optimizer, journal="runs/today"), then run: torchdoctor consult runs/today.'
)
NOTHING_FOUND = f"What you report matches no known finding. Choose the closest of the nine symptoms, or {RECORD_IT}"
NOT_THIS_RUN = (
    "The run contradicts what you report. Give the run in which you saw it, or no run: torchdoctor consult then uses "
    "your answers alone."
)
OUTCOME_WORDS = {"helped": "helped", "nothing": "did nothing", "worse": "made it worse", "not-tried": "not tried yet"}


def asked(given: dict[str, Value], known: dict[str, Value]) -> Iterator[Block]:
    """Questions and answers, including those that the run answered."""
    for question in QUESTIONS:
        if question.name in given:
            yield Block("question", question.text)
            words = dict(question.choices)
            value = given[question.name]
            if isinstance(value, list) and question.choices:
                yield Block("answer", "; ".join(words.get(str(item), str(item)) for item in value) or "none")
            else:
                yield Block("answer", words.get(str(value), answer_text(value)))
    if known:
        yield Block("heading", "Answers from the run")
        for question in QUESTIONS:
            if question.name in known:
                yield Block("item", f"{question.text} {answer_text(known[question.name])}")


def seen(consultation: Consultation) -> Iterator[Block]:
    """What was observed, compared with healthy ranges and followed along the trees."""
    yield Block("title", "What was observed")
    report = consultation.report
    if consultation.run:
        yield Block("text", verdict(report))
    shown = seen_in_run(report.symptoms) if consultation.run else {}
    for name in consultation.complaints:
        title = BY_NAME[name].title.removesuffix(" (describe it)")
        told = shown.get(name)
        if told is not None and not is_reported(told):
            yield Block("item", f"The run shows: {title} ({told.name})")
        else:
            words = consultation.given.get("description") if name == "other" else None
            yield Block("item", f"You say: {words or title}")
    if not consultation.run:
        for item in report.symptoms:
            yield Block("item", f"{item.name}: {item.message}")
    if consultation.contradicted:
        yield Block("heading", "Where the run disagrees (the measurement counts)")
        for sentence in consultation.contradicted.values():
            yield Block("item", sentence)
    yield from _held_against(consultation)


def _held_against(consultation: Consultation) -> Iterator[Block]:
    """The healthy ranges, and the paths through the trees."""
    if consultation.readings:
        yield Block("heading", "Compared with healthy ranges (rules of thumb that depend on the scale of the loss)")
        for reading in consultation.readings:
            yield Block("item", reading.words)
    for walk in consultation.walks:
        yield Block("heading", f"Diagnosis tree: {walk.tree.title}")
        for asks, words in walk.way:
            yield Block("item", f"{asks} {words}")
        for leaf in walk.leaves:
            yield Block("item", f"→ {leaf.says}{_against(consultation, leaf)}")
        for asks in walk.missing:
            yield Block("item", f"{asks} Not known: find out first.")


def _against(consultation: Consultation, leaf: Leaf) -> str:
    """A remark on a leaf if the run's measurements point to an entirely different cause."""
    ranked = consultation.report.diagnoses
    likely = {item.cause for item in ranked if item.probability >= POSSIBLE}
    if not consultation.run or not ranked or not leaf.causes or likely & set(leaf.causes) or not stands_out(ranked[0]):
        return ""
    best = ranked[0]
    return f" Not in this run: the measurements point to {best.cause} ({percent(best.probability)})."


def diagnosed(consultation: Consultation) -> Iterator[Block]:
    """The ranked hypotheses."""
    yield Block("title", "Diagnosis")
    found = [item for item in problems(consultation.report) if item.diagnoses]
    if not found:
        told = NOTHING_FOUND if consultation.complaints else "Nothing was found and nothing was reported."
        yield Block("text", NOT_THIS_RUN if "nan_step" in consultation.contradicted else told)
    for problem in found:
        measured = tuple(item for item in problem.symptoms if not is_reported(item))
        if len(found) > 1:
            when = f", {problem.steps}" if consultation.run else ""
            names = ", ".join(problem.names) if measured or not consultation.run else f"you say: {problem.names[0]}"
            yield Block("heading", f"{problem.title} ({problem.severity}{when}): {names}")
        if consultation.run and (way := story(replace(problem, symptoms=measured))):
            yield Block("text", f"What happened: {way}")
        yield from _problem(problem)


def _problem(problem: Problem) -> Iterator[Block]:
    known = [item for item in problem.diagnoses if item.cause != "unknown"]
    if known and not stands_out(known[0]):
        yield from _undecided(known)
        return
    full = [item for place, item in enumerate(known[:2]) if place == 0 or item.probability >= NOTABLE]
    for words, diagnosis in zip(("Most likely cause", "Alternative hypothesis"), full, strict=False):
        yield Block("heading", f"{words} ({percent(diagnosis.probability)} confidence): {diagnosis.cause}")
        yield from _hypothesis(diagnosis)
    also = [item for item in known[len(full) :] if item.probability >= NOTABLE][:NAMED]
    for item in also:
        yield Block(
            "heading" if item is also[0] else "text", f"Also consider ({percent(item.probability)}): {item.cause}"
        )
    for item in problem.diagnoses:
        if item.cause == "unknown" and item.evidence and item.probability >= NOTABLE:
            share = percent(item.probability)
            yield Block("heading", f"None of these ({share}). To find out: {item.evidence[0].rstrip('.')}.")


def _undecided(known: list[Diagnosis]) -> Iterator[Block]:
    """The likeliest causes if none stands out: a guess must not look like an answer."""
    yield Block("heading", "No cause stands out: what is known so far fits many causes. The likeliest:")
    for item in known[: NAMED + 2]:
        if item.probability >= NOTABLE:
            yield Block("item", f"{item.cause} ({percent(item.probability)}): {meaning(item)}")
            for heading, texts in weighed(item):
                yield Block("text", f"    {heading}: {'; '.join(text.rstrip('.') for text in texts)}.")


def _hypothesis(diagnosis: Diagnosis) -> Iterator[Block]:
    if sentence := meaning(diagnosis):
        yield Block("text", sentence)
    for heading, texts in weighed(diagnosis):
        yield Block("text", f"{heading}: {'; '.join(text.rstrip('.') for text in texts)}.")
    if diagnosis.suggestions:
        fix = Proposal(diagnosis.suggestions[0], diagnosis.cause, diagnosis.probability)
        worth = f" (worth trying: {fix.range})" if fix.range else ""
        yield Block("text", f"Fix: {first_line(fix.suggestion.code)}{worth}")


def remembered(consultation: Consultation) -> Iterator[Block]:
    """What was tried before, and reasons to stop."""
    told = [case for case in consultation.history if case.outcome is not None]
    if told:
        yield Block("title", "What was tried")
        for case in told:
            note = f": {case.note}" if case.note else ""
            done = OUTCOME_WORDS[str(case.outcome)]
            yield Block("item", f"{case.day}: {case.action} ({first_line(case.code)}){case.against}: {done}{note}")
    if consultation.stop:
        yield Block("title", "Reasons to stop")
        for reason in consultation.stop:
            yield Block("item", reason)
        yield Block("text", INSTEAD)


def proposed(consultation: Consultation) -> Iterator[Block]:
    """The proposed changes, in order."""
    if not consultation.report.symptoms:
        return
    yield Block("title", "What to try: one change at a time")
    if not consultation.proposals:
        asks = list(dict.fromkeys(text for walk in consultation.walks for text in walk.missing))
        first = f"find out first: {' '.join(asks)}" if asks else RECORD_IT
        yield Block("text", f"No change is likely enough to be proposed; {first}")
    for number, item in enumerate(consultation.proposals, 1):
        yield Block("step", f"{number}. {proposal_text(item)}")


def proposal_text(item: Proposal) -> str:
    """A proposal as one line."""
    worth = f"; worth trying: {item.range}" if item.range else ""
    tried = f"; tried without success on {item.tried.day}" if item.tried is not None else ""
    return f"{item.suggestion.action} against {item.reason}: {first_line(item.suggestion.code)}{worth}{tried}"


def what(fix: Suggestion) -> str:
    """What a change does; for the learning rate, in which direction."""
    if fix.action != "scale-lr":
        return BY_SLUG[fix.action].summary
    return f"{'Lower' if _lowers(fix) else 'Raise'} the learning rate, and nothing else."


def _lowers(fix: Suggestion) -> bool:
    return float(fix.parameters["factor"]) < 1


def how_to_see(fix: Suggestion) -> str:
    """How to see that a change helped; for the learning rate, in the direction of the change."""
    check = BY_SLUG[fix.action].check
    if fix.action != "scale-lr":
        return check
    down, _, up = check.removeprefix("Down: ").partition(" Up: ")
    text = down if _lowers(fix) else up
    return text[:1].upper() + text[1:]


def planned(plan: Plan) -> Iterator[Block]:
    """The chosen change: what to write and how to test it."""
    fix = plan.proposal.suggestion
    yield Block("title", f"The change: {fix.action}")
    yield Block("text", what(fix))
    yield Block("code", plan.code, "python")
    if plan.proposal.range:
        yield Block("text", f"Worth trying: {plan.proposal.range}.")
    if plan.settings:
        told = ", ".join(f"{name} = {value}" for name, value in plan.settings.items())
        yield Block("text", f"As settings: {told}")
    if plan.patch is not None and plan.patch.diff:
        yield Block("text", "As a patch to review (it is not applied):")
        yield Block("code", plan.patch.diff, "diff")
        if plan.patch.where:
            yield Block("text", plan.patch.where)
    elif plan.patch is not None:
        yield Block("text", f"No patch: {plan.patch.where}")
    yield Block("title", "How to test it")
    for command, words in plan.commands:
        yield Block("text", words)
        yield Block("code", command, "sh")
    yield Block("text", f"How to see that it helped: {how_to_see(fix)}")
    yield Block("text", "If it does not help, undo it before the next change.")


def told(consultation: Consultation) -> Iterator[Block]:
    """The whole consultation, without its questions."""
    yield from seen(consultation)
    yield from diagnosed(consultation)
    yield from remembered(consultation)
    yield from proposed(consultation)
    if consultation.plan is not None:
        yield from planned(consultation.plan)


def transcript(consultation: Consultation) -> Iterator[Block]:
    """The whole consultation with its questions, to send to somebody."""
    yield Block("title", "Consultation" + (f" about {consultation.run}" if consultation.run else ""))
    yield from asked(consultation.given, consultation.known)
    yield from told(consultation)
