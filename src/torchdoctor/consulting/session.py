"""A consultation from the first question to the saved case: with a person at a terminal, or from an answers file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchdoctor.consulting.casebook import Case, Casebook
from torchdoctor.consulting.consultation import Consultation, conclude
from torchdoctor.consulting.fixes import Plan, Proposal, with_files, work_out
from torchdoctor.consulting.interview import Interview
from torchdoctor.consulting.outcomes import Verdict, judge_runs
from torchdoctor.consulting.question import ConsultError
from torchdoctor.consulting.settings_file import check_place, overrides_text
from torchdoctor.consulting.stopping import INSTEAD, reasons_to_stop
from torchdoctor.consulting.telling import OUTCOME_WORDS, diagnosed, planned, proposal_text, proposed, remembered, seen
from torchdoctor.consulting.terminal import LeavingError, Talk, ask_outcome, hold
from torchdoctor.errors import TorchDoctorError, did_you_mean
from torchdoctor.reports.formats import write_whole
from torchdoctor.reports.report import Report
from torchdoctor.reports.verdict import verdict
from torchdoctor.reports.wording import first_line, printable

NOTHING = "none"


@dataclass(frozen=True)
class Wishes:
    """What to do with the result, if requested beforehand."""

    fix: str = ""
    """The action to take; empty for the first proposed one."""
    script: Path | None = None
    patch: Path | None = None
    overrides: Path | None = None

    @classmethod
    def of(cls, answers: Mapping[str, Any], **options: Any) -> Wishes:
        """Wishes from an answers file; command-line options override it."""
        given = {name: options.get(name) or answers.get(name) for name in ("script", "patch", "overrides")}
        for name, value in given.items():
            if value is not None and not isinstance(value, str | Path):
                raise ConsultError(f"{name}: {printable(value)[:60]!r} is not a path.")
        fix = options.get("fix") or answers.get("fix") or ""
        return cls(str(fix), **{name: Path(value) for name, value in given.items() if value})


def scripted(interview: Interview, casebook: Casebook, project: str, wishes: Wishes) -> Consultation:
    """Conclude without asking anybody; raises `MissingError` if answers are missing."""
    if lacking := interview.missing():
        names = ", ".join(item.name for item in lacking)
        lines = [f"answers are missing: {names}. Give them with --answers FILE (null if not known):"]
        lines += [f"  {item.name}: {item.text}{_offered(item.choices)}" for item in lacking]
        raise MissingError("\n".join(lines))
    consultation = conclude(interview, _history(casebook, project, interview))
    chosen = _chosen(consultation, wishes.fix)
    if chosen is not None:
        plan = work_out(chosen, interview.answers, wishes.script)
        consultation = replace(consultation, plan=_written(plan, wishes))
        _save(consultation, casebook, project)
    elif wishes.patch or wishes.overrides:
        raise ConsultError("there is no change to write: none is proposed.")
    return consultation


class MissingError(ConsultError):
    """Required answers are missing."""

    lines = True


def _offered(choices: tuple[tuple[str, str], ...]) -> str:
    return f" ({', '.join(name for name, _ in choices)})" if choices else ""


def _history(casebook: Casebook, project: str, interview: Interview) -> tuple[Case, ...]:
    return tuple(item for item in casebook.cases() if item.concerns(project, interview.complaints))


def _chosen(consultation: Consultation, fix: str) -> Proposal | None:
    settled = consultation.stop or not consultation.complaints or not consultation.proposals
    if fix == NOTHING or (not fix and settled):
        return None
    if not fix:
        return consultation.proposals[0]
    by_name = {item.suggestion.action: item for item in consultation.proposals}
    if fix not in by_name:
        raise ConsultError(f"{fix!r} is not one of the proposed changes. {did_you_mean(fix, [*by_name, NOTHING])}")
    return by_name[fix]


def _written(plan: Plan, wishes: Wishes) -> Plan:
    """Write the requested files."""
    patch_file = settings_file = ""
    if wishes.patch is not None:
        if plan.patch is None:
            raise ConsultError("a patch needs a script. Give --script FILE.")
        if plan.patch.diff:
            patch_file = str(_write(wishes.patch, plan.patch.diff))
    if wishes.overrides is not None and plan.settings:
        check_place(wishes.overrides)
        text = overrides_text(plan.settings, wishes.overrides.suffix, plan.proposal.reason)
        settings_file = str(_write(wishes.overrides, text))
    return with_files(plan, patch_file=patch_file, settings_file=settings_file)


def _write(path: Path, content: str) -> Path:
    """Write a new file; an existing file is never overwritten: it may be somebody's configuration."""
    if path.exists() or path.is_symlink():
        raise ConsultError(f"{path} exists. Give another name.")
    return write_whole(path, content)


def _save(consultation: Consultation, casebook: Casebook, project: str) -> None:
    """Open a case for the chosen change, unless the same one is already open."""
    plan = consultation.plan
    if plan is None:
        return
    fix = plan.proposal.suggestion
    known = (fix.action, first_line(fix.code))
    if not any((case.action, case.code) == known for case in casebook.open_cases(project)):
        casebook.open_case(
            project=project,
            complaints=consultation.complaints,
            run=str(Path(consultation.run).resolve()) if consultation.run else "",
            cause=plan.proposal.cause,
            action=fix.action,
            code=first_line(fix.code),
        )
    casebook.end_draft(project)


def converse(interview: Interview, casebook: Casebook, project: str, wishes: Wishes, talk: Talk) -> Consultation:
    """The whole consultation at a terminal; if the person quits, saves the answers and raises `LeavingError`."""
    run = str(interview.run.path) if interview.run is not None else ""
    try:
        if interview.measured is not None:
            talk.say(f"{printable(run)}: {verdict(interview.measured.report())}")
        _ask_about_cases(casebook, project, talk)
        _resume(interview, casebook, project, talk)
        hold(interview, talk)
        consultation = conclude(interview, _history(casebook, project, interview))
        parts = (seen, diagnosed, remembered) if consultation.proposals else (seen, diagnosed, remembered, proposed)
        for part in parts:
            talk.show(part(consultation))
        chosen = _ask_for_fix(consultation, wishes, talk)
        if chosen is not None:
            plan = _ask_for_files(work_out(chosen, interview.answers, wishes.script), talk)
            plan = _ask_for_script(plan, interview, wishes, talk)
            consultation = replace(consultation, plan=plan)
            talk.show(planned(plan))
    except LeavingError:
        if interview.given:
            casebook.keep_draft(project, run, interview.given)
        raise
    _save(consultation, casebook, project)
    return consultation


def _ask_about_cases(casebook: Casebook, project: str, talk: Talk) -> None:
    """Ask for the outcomes of the open cases."""
    for case in casebook.open_cases(project):
        outcome = ask_outcome(case, talk)
        if outcome != case.outcome:
            casebook.close_case(case.id, outcome, by="answer")


def _resume(interview: Interview, casebook: Casebook, project: str, talk: Talk) -> None:
    draft = casebook.draft(project)
    if draft is None:
        return
    day = printable(draft.left).replace("T", " ")[:16]
    if talk.agrees(f"You left an interview on {day} after {len(draft.answers)} answers. Continue it?"):
        for name, value in draft.answers.items():
            try:
                interview.answer(name, value)
            except TorchDoctorError:  # from another version, or edited: ask again
                continue
    casebook.end_draft(project)


def _ask_for_fix(consultation: Consultation, wishes: Wishes, talk: Talk) -> Proposal | None:
    if wishes.fix or not consultation.complaints or not consultation.proposals:
        return _chosen(consultation, wishes.fix)
    offered = [(item.suggestion.action, proposal_text(item)) for item in consultation.proposals]
    text = "What to try, one change at a time. Which change would you like to try?"
    default = len(offered) + 1 if _chosen(consultation, "") is None else 1
    return _chosen(consultation, talk.choose(text, [*offered, (NOTHING, "none of them")], default))


def _ask_for_files(plan: Plan, talk: Talk) -> Plan:
    """Offer to write the change to a settings file."""
    if not plan.settings:
        return plan
    told = ", ".join(f"{name} = {value}" for name, value in plan.settings.items())
    name = talk.line(f"\nWrite it to a settings file ({told})? Give a file name, .toml or .json; Enter to skip\n> ")
    if not name:
        return plan
    try:
        return _written(plan, Wishes(overrides=Path(name)))
    except TorchDoctorError as error:
        talk.regret(error)
        return _ask_for_files(plan, talk)


def _ask_for_script(plan: Plan, interview: Interview, wishes: Wishes, talk: Talk) -> Plan:
    """Offer a patch against a script that the person names."""
    while plan.patch is None:
        name = talk.line("\nMake a patch to review? Give the path of the training script; Enter to skip\n> ")
        if not name:
            return plan
        try:
            made = work_out(plan.proposal, interview.answers, Path(name))
        except TorchDoctorError as error:
            talk.regret(error)
            continue
        plan = replace(made, files=plan.files, test=replace(made.test, settings=plan.test.settings))
    if plan.patch.diff:
        talk.show_code(printable(plan.patch.diff, lines=True))
        return _ask_where(plan, talk, str(wishes.patch or "fix.patch"))
    talk.say(f"\nNo patch: {printable(plan.patch.where)}")
    return plan


def _ask_where(plan: Plan, talk: Talk, default: str) -> Plan:
    while True:
        name = (
            talk.line(f"Write this patch to a file? It is not applied. File name [{default}], or n for no\n> ")
            or default
        )
        if plan.patch is None or name.lower() in ("n", "no"):
            return plan
        try:
            written = str(_write(Path(name), plan.patch.diff))
        except TorchDoctorError as error:
            talk.regret(error)
            continue
        return replace(plan, files=(*plan.files, written), test=replace(plan.test, patch=written))


def settle(casebook: Casebook, project: str, before: str, after: str) -> tuple[Verdict, Case | None, tuple[str, ...]]:
    """Close the open case of a run by comparing it with another: the verdict, the case, and reasons to stop.

    If no case is about this run, the only open case is closed, or else the latest one that was opened without a run.
    """
    found = judge_runs(before, after)
    waiting = casebook.open_cases(project)
    places = {Path(name).resolve() for name in (before, found.before)}  # the given folder and the journal in it
    own = [item for item in waiting if item.run and Path(item.run).resolve() in places]
    others = waiting if len(waiting) == 1 else [item for item in waiting if not item.run]
    case = next(reversed(own or others), None)
    if case is not None:
        casebook.close_case(case.id, found.outcome, by="comparison", note=found.note)
    history = [item for item in casebook.cases() if case is not None and item.concerns(project, case.complaints)]
    stop = reasons_to_stop({}, Report(step=-1), history)
    return found, case, (*stop, INSTEAD) if stop else ()


def close_by_answer(casebook: Casebook, project: str, outcome: object) -> None:
    """Close the latest open case with the outcome from an answers file."""
    waiting = casebook.open_cases(project)
    if not waiting:
        raise ConsultError("case_outcome: there is no open case in this project.")
    casebook.close_case(waiting[-1].id, str(outcome), by="answer")


def settled_text(found: Verdict, case: Case | None, stop: tuple[str, ...]) -> str:
    """The result of a comparison, in words."""
    what = f"{case.action} ({case.code}){case.against}" if case is not None else "The change"
    lines = [f"{printable(what)}: {OUTCOME_WORDS[found.outcome]}. {printable(found.note)}."]
    if case is None:
        lines.append("No open case of this project is about this run: nothing was written to the casebook.")
    return "\n".join([*lines, *stop])
