"""The doctor: the whole pipeline on one screen.

    loop ─→ monitor ─→ records ─→ examination ─→ findings
                          └────→ journal, sinks, listeners, log

After construction, no exception of Training Doctor reaches the training loop. Errors are logged once and listed in the
report.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from torchdoctor.errors import PatientError, check_loss
from torchdoctor.examination import Examination
from torchdoctor.guard import guarded
from torchdoctor.journal import Journal, check_writable, journal_place
from torchdoctor.outlets import Outlets
from torchdoctor.records import LET_GO, NO_LOSS, NO_STEP, SCHEMA, Record
from torchdoctor.reports.report import Report
from torchdoctor.settings import Settings
from torchdoctor.stretch import Stretch

if TYPE_CHECKING:
    from types import TracebackType

    from torchdoctor.reports.checkup import Checkup
    from torchdoctor.vitals.monitor import Monitor
    from torchdoctor.vitals.patient import Setup

logger = logging.getLogger("torchdoctor")

TREATMENTS = ("show", "ask", "apply")
OVERWRITTEN = "overwritten by a subsequent run"
"""Part of torch's error message for a tensor that a later run of its CUDA graph has overwritten."""
COPIED = "this is a copy of a Doctor, which watches nothing: create a new Doctor for the run to watch."
LEAPS = frozenset({"loss-spike", "gradient-explosion", "gradient-vanishing"})
"""Sudden findings that trigger a closer look even as info."""
SILENT = 20
"""Steps without any loss after which the report says that no loss was logged."""
TOLERATED_FAILURES = 10
"""Internal errors after which the doctor stops watching the run."""
Call = TypeVar("Call", bound=Callable[..., None])


def logging_call(method: Call) -> Call:
    """Keep a call's errors out of the loop, and its work out of a graph that Dynamo is tracing."""
    safe = guarded(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_traced():
            self._eagerly(safe, self, *args, **kwargs)
        else:
            safe(self, *args, **kwargs)

    return cast(Call, call)


class Doctor:
    """Watch a training run.

    Creating a `Doctor` attaches it to the run; ``with Doctor(...) as doctor:`` detaches it at the end. See the quick
    start for a complete loop.

    Args:
        model: the module to train, or a list or dict of modules.
        optimizer: the optimizer of the model, or a list of optimizers; others that take over or join are followed.
        loss_fn: the loss function, if it is a module.
        scheduler: the learning rate scheduler, if there is one.
        scaler: the gradient scaler of mixed precision; if not given, it is detected at its first update.
        journal: a folder or .jsonl file for the journal; None keeps the run in memory only.
        treat: "show" only suggests changes; "ask" and "apply" are reserved, and this version treats them like "show".
        settings: a `Settings`, a dict, or the path of a TOML file; None uses the nearest configuration file.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loss_fn: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        journal: str | Path | None = None,
        treat: str = "show",
        settings: Settings | Mapping[str, Any] | str | Path | None = None,
    ) -> None:
        _check_arguments(loss_fn, scheduler, scaler, treat)
        self.settings = Settings.load(settings)
        self._examination = Examination(self.settings)
        try:
            from torchdoctor.vitals import context, hooks, patient  # imported here, so that reading logs needs no torch
            from torchdoctor.vitals.given import Given
            from torchdoctor.vitals.monitor import Monitor
        except ModuleNotFoundError as error:
            raise PatientError(
                "watching a run needs torch 2.6 or newer: pip install 'torchdoctor[torch]'. Reading logs works without."
            ) from error
        models = patient.named_models(model)
        optimizers = patient.matched(models, patient.listed_optimizers(optimizer), scheduler)
        self._is_traced, self._eagerly = hooks.is_traced, hooks.eagerly
        self._given = Given(self._note)
        self._outlets = Outlets(self._note)
        self._said: set[str] = set()
        self._failures = 0
        self._attached = False
        place = None if journal is None else journal_place(journal)
        self.rank = context.rank()
        parts = models, optimizers, loss_fn, scheduler, scaler
        self._setup = patient.Setup(*parts, folder=place, curvature=self.settings.curvature)
        self._monitor: Monitor = Monitor(self._setup, self.settings, self._take_all, self._note, self.failed)
        self._take_loss = self._monitor.lane.take_loss
        header: Record = {
            "type": "header",
            "step": 0,
            "schema": SCHEMA,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": context.versions(_own_version()),
            "tensors": list(self._monitor.names),
            "context": context.describe(models, optimizers, scheduler, scaler),
            "settings": self.settings.judging(),
        }
        if place is not None:
            check_writable(place, self.rank)
        # Only now, because a Doctor that cannot be made must not end the watch of the one before it.
        _dismiss_older(optimizers, quiet=self.settings.quiet)
        for name in self.settings.sinks:
            self._open_sink(name)
        written = self._outlets.journal = None if place is None else Journal(place, header, rank=self.rank)
        self._examination.take(header)
        np.median([0.0])  # numpy loads a module at the first median: do it now, not during the run
        self._monitor.owner = self
        self._monitor.attach()
        self._attached = True
        for text in (*patient.other_networks(self._setup), *patient.repeated_layers(self._setup)):
            self._note(text, text)
        if written is not None and written.taken is not None:
            self._note(
                "taken",
                f"another process is writing to {written.taken}, so this run is written to {written.path}: give each "
                "run its own folder.",
            )
        if treat != "show":
            self._note(
                "treat", f"treat={treat!r} was requested, but this version only shows suggestions: nothing is changed."
            )

    # ── calls for the training loop ──────────────────────────────────────────────────────────────────────────────

    def log_loss(self, loss: Any, name: str = "loss", step: int | None = None) -> None:
        """Log a training loss: a tensor or number, before or after backward or step. Never waits for the device.

        It may be left out of a loop with one optimizer: until its first call, a loss is what `backward` began from.

        `step` is for loops with their own step count, for example resumed runs. It is used as long as it is a whole
        number that does not decrease. If it decreases (a position within an epoch, or an epoch number), optimizer
        steps are counted from then on, and the report says so. If each micro-batch has its own number, the last one
        becomes the number of the step.
        """
        if self._is_traced():
            self._eagerly(self.log_loss, loss, name, step)
            return
        try:  # not `guarded`: its overhead matters in a call made at every step
            if type(name) is not str:
                name = self._given.name(name)
            if self._take_loss(loss, name, step) or not (self._attached or self._on_duty("log_loss")):
                return
            if not self._given.is_fit(name):
                name = self._given.name(name)
                if self._take_loss(loss, name, step):
                    return
            self._monitor.leave_roots()  # before the loss is read: one that cannot be read was logged as well
            value, graph = self._given.scalar(loss, name)
            if value is not None:
                self._monitor.log_loss(value, graph, name, step)
        except Exception as error:  # noqa: BLE001  a measurement must never stop the run
            if OVERWRITTEN in str(error):
                self._note(
                    f"overwritten {name}",
                    f"{name} was overwritten by the next run of its CUDA graph before it was logged, and is missing: "
                    "log it earlier, or log a clone.",
                )
            else:
                self.failed("log_loss", error)

    @logging_call
    def log_gradients(self) -> None:
        """Measure the gradients now: call this before clipping if the clipping cannot be detected."""
        if self._on_duty("log_gradients") and not self._monitor.log_gradients():
            self._note(
                "no gradients", "log_gradients() was called while no parameter had a gradient: call it after backward."
            )

    @logging_call
    def log_validation(self, val_loss: Any = None, step: int | None = None, **metrics: Any) -> None:
        """Log a validation loss, and any metrics by name, at the latest step.

        `step` works as in `log_loss`; if `log_loss` was called with steps, those take precedence.
        """
        if not self._on_duty("log_validation"):
            return
        values = {}
        for name, given in {"val_loss": val_loss, **{f"val_{key}": item for key, item in metrics.items()}}.items():
            if name != "val_loss" or given is not None or not metrics:
                value, _ = self._given.scalar(given, name)
                if value is not None:
                    values[name] = value
        if values:
            self._monitor.log_validation(values, step)

    @logging_call
    def log_batch(self, *tensors: Any) -> None:
        """Log the batch of the next step: inputs first and targets last, or a dict. Its content is not kept."""
        if self._on_duty("log_batch") and not self._monitor.log_batch(tensors):
            kinds = ", ".join(type(item).__name__ for item in tensors) or "nothing"
            self._note("no batch", f"log_batch() was given {kinds:.80}, expected tensors: no batch is recorded.")

    def checkup(self, batch: Any, loss_fn: Any = None, **options: Any) -> Checkup:
        """Check model, loss and optimizer on a batch before the first step, and write the results to the journal.

        The check-up leaves the run unchanged. See `torchdoctor.checkup` for further options.
        """
        from torchdoctor.checks.checkup import checkup

        setup = self._setup
        models = setup.models[""] if list(setup.models) == [""] else dict(setup.models)
        loss_fn = setup.loss_fn if loss_fn is None else loss_fn
        done = checkup(models, loss_fn, batch, list(setup.optimizers), scheduler=setup.scheduler, **options)
        if self._attached:
            for record in done.records():
                self._take(record)
        return done

    def diagnose(self, *, wait: bool = True) -> Report:
        """A report on the run so far; with ``wait=False``, pending measurements are not waited for."""
        try:
            self._mind_the_steps()
            self._monitor.drain(wait=wait)
            if wait:
                self._monitor.tell_strays()
            self._mind_the_loss()
            self._outlets.mind()
        except Exception as error:  # noqa: BLE001
            self.failed("diagnose", error)
        try:
            return self._examination.report()
        except Exception as error:  # noqa: BLE001
            self.failed("the report", error)
            return self._bare_report()

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Call a function with every record of the run as it is made, both measurements and findings."""
        self._outlets.subscribe(listener)

    def send_to(self, sink: Any) -> None:
        """Send findings to a sink, given by name or as an existing object.

        Names are those of the setting `sinks`: "tensorboard:runs/exp", "slack:$SLACK_URL", "wandb". An object is a
        SummaryWriter, a W&B, MLflow or Trackio run, or a function that takes a record; it is used on another thread.
        """
        if self._on_duty("send_to"):
            self._open_sink(sink)

    @property
    def journal(self) -> Path | None:
        """The path of the journal, if there is one."""
        return self._outlets.place

    def detach(self) -> None:
        """Remove all hooks and close the journal; `diagnose` still works afterwards."""
        if not self._attached:
            return
        self._attached = False
        try:
            self._mind_the_steps()
            self._monitor.detach()
            self._mind_the_loss()
        except Exception as error:  # noqa: BLE001
            self.failed("detach", error)
        try:
            self._take({"type": "end", "step": max(self._examination.chart.step, 0)})
        except Exception as error:  # noqa: BLE001
            self.failed("detach", error)
        self._close_sinks()
        self._outlets.close_journal()

    def __enter__(self) -> Doctor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "attached" if self._attached else "detached"
        return (
            f"<Doctor {state}, step {self._examination.chart.step}, {len(self._examination.chart.episodes)} findings>"
        )

    def __reduce__(self) -> tuple[type[Doctor], tuple[Settings]]:
        return Bystander, (self.settings,)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, record: Record) -> None:
        """Examine one measured record, and pass it on with the findings that follow from it."""
        self._pass_on(record, self._examination.take(record))

    def _take_all(self, pieces: Sequence[Record | Stretch]) -> None:
        """Examine measured records in order; steps with the same vitals come as stretches."""
        for piece, found in self._examination.take_all(pieces):
            if isinstance(piece, Stretch):
                self._outlets.pass_by(piece)
            else:
                self._pass_on(piece, found)

    def _pass_on(self, record: Record, found: list[Record]) -> None:
        self._outlets.pass_on(record, found)
        if found:
            if any(map(_is_news, found)):
                self._monitor.hasten()
            if not self.settings.quiet and self.rank == 0:
                self._outlets.announce(found)

    def _open_sink(self, sink: Any) -> None:
        if self.rank == 0:
            self._outlets.open_sink(sink, _run_name(self._setup), self.settings.sinks_from)

    @guarded
    def _close_sinks(self) -> None:
        self._outlets.close_sinks(self._examination.report)

    def _on_duty(self, call: str) -> bool:
        if not self._attached:
            self._note("detached", f"{call}() was called after detach(): nothing is recorded anymore.")
        return self._attached

    def _bare_report(self) -> Report:
        """A report with findings and notes only, for when the full report fails."""
        chart = self._examination.chart
        return Report(
            step=chart.step,
            symptoms=tuple(chart.episodes),
            notes=tuple(dict.fromkeys(text for _, text in chart.notes)),
            context=dict(chart.context),
        )

    def _mind_the_loss(self) -> None:
        """Add a note if no loss was logged: without one, a report without findings means little."""
        steps = self._monitor.silent_for
        if steps >= SILENT:
            self._note(
                "no loss",
                f"{NO_LOSS} in {steps} steps, so spikes, divergence, plateaus and overfitting could not be detected: "
                "call doctor.log_loss(loss) at each step.",
            )

    @guarded
    def _mind_the_steps(self) -> None:
        """Add a note if losses were logged, but no step is seen: without steps, hardly anything is judged."""
        losses, after = self._monitor.stranded()
        if losses:
            since = f" after step {after}" if after >= 0 else ""
            self._note(
                f"{NO_STEP}{after}",
                f"{NO_STEP}at least {losses} losses were logged{since}: step() was not called, or not on the optimizer "
                "given to Doctor.",
            )

    def _note(self, key: str, text: str) -> None:
        """Add a note to the log and the report, once per key."""
        if key in self._said:
            return
        self._said.add(key)
        if not self.settings.quiet and self.rank == 0:
            # Notes on how it is measured and on changes by the loop are minor; all others are logged as a warning.
            level = logging.INFO if key.startswith(("budget", "change", "root loss")) else logging.WARNING
            logger.log(level, "%s", text)
        self._take({"type": "note", "step": max(self._examination.chart.step, 0), "text": text})

    def failed(self, call: str, error: Exception) -> None:
        """Report an internal error once, and stop watching the run if errors continue."""
        self._failures += 1
        logger.debug("%s failed", call, exc_info=error)
        try:
            self._note(
                f"error {call}",
                f"{call} failed inside torchdoctor ({type(error).__name__}: {error}); training continues.",
            )
            if self._failures == TOLERATED_FAILURES and self._attached:
                self._note("gave up", f"after {TOLERATED_FAILURES} internal errors {LET_GO}")
                self.detach()
        except Exception:
            logger.debug("the failure could not be recorded", exc_info=True)


class Bystander(Doctor):
    """A copied or unpickled doctor, which watches no run.

    It allows objects that hold a doctor (a trainer, a callback) to be copied and saved, and the copies to be called.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._examination = Examination(settings)
        self._attached = False
        self._outlets = Outlets(self._note)
        self._examination.take({"type": "note", "step": 0, "text": COPIED})

    def log_loss(self, loss: Any, name: str = "loss", step: int | None = None) -> None:
        """Do nothing."""

    def log_gradients(self) -> None:
        """Do nothing."""

    def log_validation(self, val_loss: Any = None, step: int | None = None, **metrics: Any) -> None:
        """Do nothing."""

    def log_batch(self, *tensors: Any) -> None:
        """Do nothing."""

    def subscribe(self, listener: Callable[[Record], None]) -> None:
        """Do nothing."""

    def send_to(self, sink: Any) -> None:
        """Do nothing."""

    def checkup(self, batch: Any, loss_fn: Any = None, **options: Any) -> Checkup:
        """Fail, because a copy has no model."""
        raise PatientError(f"{COPIED} Call torchdoctor.checkup with the model.")

    def diagnose(self, *, wait: bool = True) -> Report:
        """A report that says that this is a copy."""
        return self._examination.report()


def _is_news(record: Record) -> bool:
    """Whether a finding that a closer look may explain was just made: above info, or a sudden jump."""
    if record["type"] != "symptom" or record["event"] != "opened":
        return False
    return record["severity"] != "info" or record["name"] in LEAPS


def _check_arguments(loss_fn: Any, scheduler: Any, scaler: Any, treat: str) -> None:
    if treat not in TREATMENTS:
        raise PatientError(f"treat must be one of {', '.join(TREATMENTS)}, not {treat!r}.")
    check_loss(loss_fn)
    if scheduler is not None and not hasattr(scheduler, "step"):
        raise PatientError(f"scheduler must have a step() method; {type(scheduler).__name__} has none.")
    if scaler is not None and not (hasattr(scaler, "update") and hasattr(scaler, "is_enabled")):
        raise PatientError(f"scaler must be a torch.amp.GradScaler, not {type(scaler).__name__}.")


def _run_name(setup: Setup) -> str:
    """The name of the run in messages: the journal's folder or file, else the class of the model."""
    folder = setup.folder
    if folder is None:
        return ", ".join(type(model).__name__ for model in setup.models.values())
    named = folder.parent if folder.name == "journal.jsonl" else folder
    return (named.stem if named.suffix == ".jsonl" else named.name) or "run"


def _dismiss_older(optimizers: list[Any], *, quiet: bool) -> None:
    """Detach older doctors of the same optimizers, so that notebook cells can be run again."""
    for optimizer in optimizers:
        hooks = list(optimizer._optimizer_step_pre_hooks.values())
        for hook in hooks:
            owner = getattr(getattr(hook, "monitor", None), "owner", None)
            if isinstance(owner, Doctor) and owner._attached:
                logger.log(
                    logging.DEBUG if quiet else logging.WARNING,
                    "a newer Doctor now watches this optimizer: the older one was detached.",
                )
                owner.detach()


def _own_version() -> str:
    from torchdoctor import __version__

    return __version__
