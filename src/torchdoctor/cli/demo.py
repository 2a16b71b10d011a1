"""``torchdoctor demo``: Training Doctor in about a minute, on any computer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchdoctor.errors import PatientError
from torchdoctor.records import Record
from torchdoctor.reports.problem import NOTABLE
from torchdoctor.reports.text import STYLES
from torchdoctor.reports.verdict import advice, verdict
from torchdoctor.reports.wording import first_line, percent, printable

if TYPE_CHECKING:
    from rich.table import Table

    from torchdoctor.clinic.demonstration import Demonstration
    from torchdoctor.clinic.detection import Alarms, Detection
    from torchdoctor.doctor import Doctor
    from torchdoctor.reports.report import Report

INTERRUPTED = 130
CAUSES_SHOWN = 3
FEWEST_STEPS = 200
"""With fewer steps, the run would be too short to judge a fault, and the faults would overlap."""
INTRODUCTION = """\
A small GPT ({parameters:,} parameters) learns {subject}, on {device}.
Two faults will be injected into its training, and one mistake will be real. The doctor is not
told about them: it watches the loop and reports what it finds, why, and what to change.
"""


@click.command(short_help="Train a small GPT, break it three times, watch the diagnoses.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for the journal and the reports; default: a dated one under torchdoctor_runs/.",
)
@click.option(
    "--steps",
    type=click.IntRange(FEWEST_STEPS, 100_000),
    default=1000,
    show_default=True,
    help="How many steps to train.",
)
@click.option("--seed", type=int, default=1337, show_default=True, help="Seed of the weights, the batches and dropout.")
@click.option(
    "--data",
    metavar="NAME|FILE",
    help="A data set in the folder TORCHDOCTOR_DATA, or a text file; default: Python's documentation.",
)
@click.pass_context
def demo(ctx: click.Context, journal: Path | None, steps: int, seed: int, data: str | None) -> None:
    """Train a small GPT, break it three times, and watch the doctor find out why.

    Takes about a minute on a laptop's CPU. Ctrl-C ends it early: the journal and the reports are complete up to
    that step, and the exit code is 130 instead of 0.
    """
    try:
        demonstration, doctor, screen = _prepared(journal, steps, seed, data)
    except KeyboardInterrupt:
        click.echo("Interrupted before training began: nothing was recorded.", err=True)
        ctx.exit(INTERRUPTED)
    interrupted = False
    with doctor:
        try:
            for step, loss, act in demonstration.run(doctor):
                screen.advance(step, loss)
                if act is not None:
                    screen.announce(act.step, act.announcement)
        except KeyboardInterrupt:
            interrupted = True
        screen.finish()
        if interrupted:
            screen.say(f"Interrupted after step {screen.step}: the journal and the reports end here.")
        report = doctor.diagnose()
    screen.flush()
    screen.summarise(demonstration, report)
    _save(report, doctor, screen)
    ctx.exit(INTERRUPTED if interrupted else 0)


def _prepared(journal: Path | None, steps: int, seed: int, data: str | None) -> tuple[Demonstration, Doctor, Screen]:
    try:
        from torchdoctor.clinic.demonstration import Demonstration
    except ModuleNotFoundError as error:
        raise PatientError("the demo trains a model and needs torch: pip install 'torchdoctor[torch]'.") from error
    from torchdoctor.clinic.detection import Alarms
    from torchdoctor.doctor import Doctor

    demonstration = Demonstration.prepare(steps, seed, data)
    patient = demonstration.patient
    doctor = Doctor(
        patient.model,
        patient.optimizer,
        scheduler=patient.scheduler,
        journal=journal or Path("torchdoctor_runs") / time.strftime("%Y-%m-%d_%H-%M-%S_demo"),
        settings={"quiet": True},
    )
    screen = Screen(steps, Alarms())
    doctor.subscribe(screen.listen)
    screen.say(
        INTRODUCTION.format(
            parameters=sum(parameter.numel() for parameter in patient.parameters),
            subject=printable(data) if data else "Python's own documentation, character by character",
            device="the CPU" if patient.device == "cpu" else printable(patient.device),
        )
    )
    return demonstration, doctor, screen


def _save(report: Report, doctor: Doctor, screen: Screen) -> None:
    path = doctor.journal
    if path is None:
        return
    for name in ("report.html", "report.txt"):
        report.save(path.parent / name)
    screen.say(f"\nThe run's journal:     {path}")
    screen.say(f"A report with curves:  {path.parent / 'report.html'}")
    screen.say(f"The same as text:      {path.parent / 'report.txt'}")
    screen.say(f"Diagnose it again:     torchdoctor diagnose {path.parent}")


class Screen:
    """Results on stdout; the progress bar, or occasional lines without a terminal, on stderr."""

    def __init__(self, steps: int, alarms: Alarms) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.step = -1
        self._alarms = alarms
        self._found: list[Record] = []
        self._causes: list[Record] = []
        self._out = Console(highlight=False, markup=False, emoji=False)
        self._err = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=self._err,
            transient=True,
            redirect_stdout=False,  # otherwise rich would send results to stderr
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("training", total=steps, loss="")
        self._steps = steps

    def advance(self, step: int, loss: float) -> None:
        """Record that a step was taken."""
        self.step = step
        if self._err.is_terminal:
            self._bar.start()
            self._bar.update(self._task, completed=step + 1, loss=f"{loss:.3f}")
        elif (step + 1) % (self._steps // 10) == 0:
            self._err.print(f"step {step + 1} of {self._steps}, loss {loss:.3f}")

    def announce(self, step: int, text: str) -> None:
        """Announce something that is about to happen to the run."""
        self.flush()
        self.say(f"step {step}: {text}", "bold")

    def listen(self, record: Record) -> None:
        """Take one record of the run: a finding waits for the causes that follow it."""
        if self._alarms.hear(record):
            self._found.append(record)
        elif record["type"] == "diagnosis":
            self._causes.append(record)
        elif record["type"] != "symptom":
            self.flush()

    def flush(self) -> None:
        """Print what was found: what, where, why, and the line to change."""
        found, causes = self._found, self._causes
        self._found, self._causes = [], []
        by_problem: dict[int, list[Record]] = {}
        for item in found:
            # Of several problems with this symptom, the one with the latest episode is the current one.
            told = [cause for cause in causes if item["name"] in cause["symptoms"]]
            number = max(told, key=lambda cause: max(cause["episodes"]))["problem"] if told else 0
            by_problem.setdefault(number, []).append(item)
        for number, items in by_problem.items():
            for item in items:
                title = f"{item['code']} {printable(item['name'])} ({item['severity']})"
                self.say(f"  step {item['step']}, the doctor: {title}", STYLES[item["severity"]])
                self.say(f"      what   {printable(item['message'])}")
                if item["where"]:
                    self.say(f"      where  {', '.join(printable(name) for name in item['where'][:3])}")
            self._explain([cause for cause in causes if cause["problem"] == number])

    def _explain(self, causes: list[Record]) -> None:
        ranked = sorted(causes, key=lambda cause: -cause["probability"])
        ranked = ranked[:1] + [cause for cause in ranked[1:CAUSES_SHOWN] if cause["probability"] >= NOTABLE]
        for position, cause in enumerate(ranked):
            evidence = f": {printable(cause['evidence'][0])}" if cause["evidence"] and position == 0 else ""
            title = "why" if position == 0 else "or"
            self.say(f"      {title:<6} {printable(cause['cause'])} ({percent(cause['probability'])}){evidence}")
        cure = next((cause["suggestions"][0] for cause in ranked if cause["suggestions"]), None)
        if cure is not None:
            known = ranked[0]["cause"] != "unknown"  # without a cause, one odd step asks for no change yet
            title = "fix    " if known else "later  if it happens again: "
            self.say(f"      {title}{first_line(cure['code'])}", STYLES["code"])

    def summarise(self, demonstration: Demonstration, report: Report) -> None:
        """Compare what happened with what was found."""
        outcome = demonstration.outcome(self._alarms, self.step)
        if outcome:
            self._print(_table(outcome, real={act.step for act in demonstration.acts if act.real}))
        answers = {detection.alarm for detection in outcome}
        others = dict.fromkeys(f"{a.name} (step {a.step}, {a.severity})" for a in self._alarms if a not in answers)
        if others:
            self.say(f"Also found: {', '.join(others)}.")
        self.say(f"\n{verdict(report)}\n{advice(report)}".rstrip(), "bold")

    def say(self, text: str, style: str = "") -> None:
        """Print on stdout."""
        from rich.text import Text

        self._print(Text(text, style=style))

    def _print(self, what: Any) -> None:
        self.finish()
        self._out.print(what, soft_wrap=True)

    def finish(self) -> None:
        """Remove the progress bar, at the end or before printing: both streams may share a terminal."""
        if self._bar.live.is_started:
            self._bar.stop()


def _table(outcome: list[Detection], real: set[int]) -> Table:
    from rich import box
    from rich.table import Table

    title = "\nWhat happened, and what was found"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("what happened", "at step", "found as", "at step", "delay"):
        table.add_column(name, justify="left" if name in ("what happened", "found as") else "right", no_wrap=True)
    for detection in outcome:
        step, fault = detection.injection
        answer = ("not found", "", "")
        if detection.alarm is not None:
            answer = (detection.alarm.name, str(detection.alarm.step), str(detection.delay))
        table.add_row(f"{fault} ({'real' if step in real else 'injected'})", str(step), *answer)
    return table
