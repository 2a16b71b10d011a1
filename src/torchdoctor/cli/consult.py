"""``torchdoctor consult [RUN]``: an interview about a sick run, one proposed change, and its test."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from torchdoctor.cli.material import as_json, exit_code, fails
from torchdoctor.cli.piped import not_piped

if TYPE_CHECKING:
    from torchdoctor.consulting.casebook import Casebook
    from torchdoctor.consulting.consultation import Consultation
    from torchdoctor.consulting.interview import Interview
    from torchdoctor.consulting.session import Wishes

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run", required=False, metavar="[RUN]", callback=not_piped)
@click.option(
    "--answers", type=FILE, metavar="FILE", help="Take the answers from JSON, {question: answer}; ask nothing."
)
@click.option(
    "--questions", is_flag=True, help="Print the questions as JSON, for RUN and --answers if given; ask nothing."
)
@click.option("--trees", is_flag=True, help="Print the diagnosis trees and the healthy ranges; ask nothing.")
@click.option("--fix", metavar="ACTION", help="The change to make, or 'none'; default: the first proposed.")
@click.option("--script", type=FILE, metavar="FILE", help="The training script to make a patch for; it is never run.")
@click.option("--patch", type=FILE, metavar="FILE", help="Write the patch to this file; it is never applied.")
@click.option(
    "--overrides", type=FILE, metavar="FILE", help="Write the change as settings to this file, .toml or .json."
)
@click.option(
    "--before", metavar="RUN", help="The run without the change; with --after: did the open case's change help?"
)
@click.option("--after", metavar="RUN", help="The run with the change.")
@click.option(
    "--casebook", type=FILE, metavar="FILE", help="The record of what was tried; default: in your data folder."
)
@click.option("--no-casebook", is_flag=True, help="Remember nothing and look nothing up.")
@click.option(
    "--transcript", type=FILE, metavar="FILE", help="Write questions, answers and result to this file as Markdown."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["full", "json", "markdown"]),
    default="full",
    show_default=True,
    help="Output format.",
)
@click.option("--output", type=FILE, metavar="FILE", help="Write the result to this file.")
@fails
def consult(run: str | None, fail_on: str, **given: Any) -> None:
    """Ask you about a run that goes wrong, and propose a change.

    RUN is anything that `diagnose` reads; you are asked only what it does not answer. Without RUN your answers alone
    count. The result is a ranking of causes, one change to try, and the commands that test it.

    Exit codes: 0, nothing at or above --fail-on; 1, something found; 2, wrong usage, or answers are missing and
    there is no terminal to ask on.

    \b
    torchdoctor consult runs/today
    torchdoctor consult --questions > questions.json
    torchdoctor consult runs/today --answers answers.json --script train.py --patch fix.patch --format json
    torchdoctor consult --before runs/before --after runs/after
    """
    from torchdoctor.consulting.casebook import Casebook, default_place, project_of
    from torchdoctor.consulting.interview import Interview, questions_json, read_answers
    from torchdoctor.consulting.session import Wishes, close_by_answer
    from torchdoctor.records import INFORMATIVE, worst
    from torchdoctor.settings import Settings
    from torchdoctor.sources import read

    if given["trees"]:
        _print_trees()
        return
    book = Casebook(None if given["no_casebook"] else given["casebook"] or default_place())
    project = project_of(Path.cwd())
    if given["before"] or given["after"]:
        _settle(book, project, given)
        return
    interview = Interview(read(run) if run else None, Settings.load(None))
    plan = interview.accept_all(read_answers(given["answers"])) if given["answers"] else {}
    if given["questions"]:
        click.echo(as_json({"questions": questions_json(interview)}))
        return
    if plan.get("case_outcome") is not None:
        close_by_answer(book, project, plan["case_outcome"])
    wishes = Wishes.of(plan, **{name: given[name] for name in ("fix", "script", "patch", "overrides")})
    asks = not given["answers"] and sys.stdin.isatty() and sys.stdout.isatty()
    consultation = _hold(interview, book, project, wishes, asks=asks)
    _deliver(consultation, given, shown=asks)
    severity = worst([item.severity for item in consultation.report.symptoms if item.name not in INFORMATIVE])
    click.get_current_context().exit(exit_code(severity, fail_on))


def _hold(interview: Interview, book: Casebook, project: str, wishes: Wishes, *, asks: bool) -> Consultation:
    from torchdoctor.consulting.session import converse, scripted
    from torchdoctor.consulting.terminal import LeavingError, Talk

    if not asks:
        return scripted(interview, book, project, wishes)
    try:
        return converse(interview, book, project, wishes, Talk(input, click.echo, get_terminal_size().columns))
    except LeavingError:
        kept = interview.given and book.path is not None
        click.echo("\nLeft." + (" Your answers are kept: `torchdoctor consult` continues from here." if kept else ""))
        click.get_current_context().exit(130)


def _deliver(consultation: Consultation, given: dict[str, Any], *, shown: bool) -> None:
    from torchdoctor.consulting.document import as_markdown, as_text
    from torchdoctor.consulting.telling import told, transcript
    from torchdoctor.reports.formats import write_whole

    forms = {
        "full": lambda: as_text(told(consultation)),
        "json": lambda: as_json(consultation.to_dict()),
        "markdown": lambda: as_markdown(told(consultation)).rstrip("\n"),
    }
    if given["output"] is not None:
        write_whole(given["output"], forms[given["form"]]() + "\n")
        click.echo(f"Wrote {given['output']}", err=True)
    elif not shown or given["form"] != "full":
        click.echo(forms[given["form"]]())
    if given["transcript"] is not None:
        write_whole(given["transcript"], as_markdown(transcript(consultation)))
        click.echo(f"Wrote {given['transcript']}", err=True)
    for name in consultation.plan.files if consultation.plan is not None else ():
        click.echo(f"Wrote {name}", err=True)


def _settle(book: Casebook, project: str, given: dict[str, Any]) -> None:
    from torchdoctor.consulting.session import settle, settled_text

    if not (given["before"] and given["after"]):
        raise click.UsageError("--before and --after go together: the run without the change and the one with it.")
    verdict, case, stop = settle(book, project, given["before"], given["after"])
    if given["form"] == "json":
        told = {"outcome": verdict.outcome, "note": verdict.note, "case": case.id if case is not None else None}
        click.echo(as_json(told | {"action": case.action if case is not None else None, "stop": list(stop)}))
    else:
        click.echo(settled_text(verdict, case, stop))


def _print_trees() -> None:
    from torchdoctor.consulting.ranges import RULES_OF_THUMB
    from torchdoctor.consulting.trees import TREES, printed

    for tree in TREES.values():
        click.echo(printed(tree) + "\n")
    click.echo("\n".join(["Healthy ranges (rules of thumb)", *(f"- {text}" for text in RULES_OF_THUMB)]))
