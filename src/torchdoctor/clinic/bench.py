"""The clinic's benchmark: train every kind of run under a doctor's eyes, and keep what was found, a line a run.

The results file is JSON Lines. A run that is in it, with the same version of the doctor, is not trained again, so a
benchmark that was interrupted goes on where it stopped; `scoring` reads the file and says how good the doctor is.
Each run has a process of its own: one that crashes or never ends is an error in its line, and stops nothing.

Nobody looks at results of held-out kinds while working on detectors or causes (see `kinds.kind`).
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch

import torchdoctor
import torchdoctor.vitals.monitor  # now: a run's own process then finds all code loaded, of one version
from torchdoctor.clinic import peers
from torchdoctor.clinic.kinds import KINDS, Kind, Loop
from torchdoctor.doctor import Doctor
from torchdoctor.examination import Examination
from torchdoctor.records import SEVERITIES, Record
from torchdoctor.reports.report import Report
from torchdoctor.settings import Settings
from torchdoctor.sources import read

Line = dict[str, Any]
TIMEOUT = 180.0
"""Seconds after which a run is given up."""
ENDING = 20
"""Losses whose mean is how a run ended."""
OURS = ("default", "paper")
JUDGES = ("", "clinic", "cli", "reports")
"""Parts of the package that have no say in what is found: their code is not in the version of a result."""


class Case(NamedTuple):
    """One run: a kind, where it is trained, and its seed."""

    kind: str
    arena: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} on {self.arena}, seed {self.seed}"

    @property
    def draw(self) -> int:
        """The number that everything in the run is drawn from."""
        digest = hashlib.sha256(f"{self.kind} {self.arena} {self.seed}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


def cases(split: str = "development", pattern: str = "*", seeds: int = 2) -> list[Case]:
    """The runs of a split ("all" for both) whose kind matches a pattern; all kinds of a seed before the next seed.

    >>> cases(pattern="missing-zero-grad", split="all", seeds=1)
    [Case(kind='missing-zero-grad', arena='mlp', seed=0), Case(kind='missing-zero-grad', arena='cnn', seed=0), \
Case(kind='missing-zero-grad', arena='lstm', seed=0)]
    """
    chosen = [
        kind
        for kind in KINDS.values()
        if split in (kind.split, "all") and any(fnmatch(kind.slug, part) for part in pattern.split(","))
    ]
    return [Case(kind.slug, arena, seed) for seed in range(seeds) for kind in chosen for arena in kind.on]


def version() -> str:
    """The package's version and a fingerprint of the code that decides what is found."""
    folder = Path(torchdoctor.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        part = path.relative_to(folder).parts[0]
        if part not in JUDGES:
            digest.update(path.read_bytes())
    return f"{torchdoctor.__version__}+{digest.hexdigest()[:8]}"


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def loop_of(case: Case, *, healthy_twin: bool = False) -> Loop:
    """The loop of a case, fault and all; or its twin, the same in everything but the fault."""
    loop = Loop(case.arena, case.draw)
    if not healthy_twin:
        KINDS[case.kind].change(loop)
    return loop


def train(case: Case, folder: Path) -> tuple[Loop, Report | None]:
    """Train a case, with its journal in a folder; the report is that of the doctor who saw all of the run."""
    doctors: list[Doctor] = []

    def watch(model: Any, optimizer: Any, **options: Any) -> Doctor:
        doctors.append(Doctor(model, optimizer, journal=folder, settings={"quiet": True}, **options))
        return doctors[-1]

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several faults make torch warn, and loops of the clinic are not its users
        loop = loop_of(case)
        loop.train(watch)
    for doctor in doctors:
        doctor.detach()
    reports = [doctor.diagnose() for doctor in doctors]
    stumbled = [note for report in reports for note in report.notes if "inside torchdoctor" in note]
    if stumbled:  # no result, but a bug
        raise RuntimeError(stumbled[0])
    return loop, reports[0] if len(reports) == 1 else None


def ending(losses: Sequence[float]) -> float | None:
    """The mean of the last losses; None where there are none, or they are not finite."""
    tail = losses[-ENDING:]
    mean = sum(tail) / len(tail) if tail else float("nan")
    return mean if abs(mean) < float("inf") else None


def examine(records: Iterable[Record], preset: str) -> tuple[list[Record], Report]:
    """What a preset concludes from a run's records, and its report at the end."""
    examination = Examination(Settings(preset=preset, quiet=True))
    concluded: list[Record] = []
    for record in records:
        concluded += examination.take(record)
    return concluded, examination.report()


def told(concluded: Iterable[Record], report: Report) -> Line:
    """What was said, and when: findings as they opened or grew worse, causes when they first led, and the report."""
    findings: list[Line] = []
    known: dict[str, str] = {}
    leads: dict[str, Line] = {}
    for step, group in _by_step(concluded):
        for item in group:
            if item["type"] == "symptom" and item["event"] != "closed":
                name, severity = item["name"], item["severity"]
                if known.get(name) != severity:
                    findings.append({"step": step, "name": name, "severity": severity})
                known[name] = severity
            elif item["type"] == "symptom":
                known.pop(item["name"], None)
        causes = [item for item in group if item["type"] == "diagnosis" and item["cause"] != "unknown"]
        for problem in {item["problem"] for item in causes}:
            first = max((item for item in causes if item["problem"] == problem), key=lambda item: item["probability"])
            severity = max((known.get(name, "info") for name in first["symptoms"]), key=_rank, default="info")
            lead = leads.setdefault(first["cause"], {"step": step, "cause": first["cause"], "severity": severity})
            if _rank(severity) > _rank(lead["severity"]):
                lead.update(severity=severity, step=step)
    return {"findings": findings, "leads": list(leads.values()), "report": report.to_dict()}


def _rank(severity: str) -> int:
    return [*SEVERITIES].index(severity)  # type: ignore[arg-type]


def _by_step(records: Iterable[Record]) -> Iterator[tuple[int, list[Record]]]:
    """Conclusions in the order in which they were made, those of one step together."""
    group: list[Record] = []
    for record in records:
        if group and record["step"] != group[0]["step"]:
            yield group[0]["step"], group
            group = []
        group.append(record)
    if group:
        yield group[0]["step"], group


def run(case: Case, label: str, journals: Path | None = None, *, replay: bool = False) -> list[Line]:
    """Train a case, or read its journal again, and return one line for each who looked at it."""
    started = time.perf_counter()
    kept = journals / case.kind / f"{case.arena}-{case.seed}" if journals is not None else None
    folder = kept or Path(tempfile.mkdtemp(prefix="torchdoctor-clinic-"))
    base: Line = {**case._asdict(), "version": label, "split": KINDS[case.kind].split}
    report = None
    try:
        if not (replay and (folder / "run.json").exists()):
            shutil.rmtree(folder, ignore_errors=True)
            loop, report = train(case, folder)
            facts = {
                "steps": loop.steps,
                "first_loss": loop.losses[0] if loop.losses else None,
                "last_loss": ending(loop.losses),
                "validations": loop.validations,
            }
            (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
        base |= json.loads((folder / "run.json").read_text(encoding="utf-8"))
        base["seconds"] = round(time.perf_counter() - started, 2)
        return [base | line for line in _looked_at(list(read(folder)), report)]
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _looked_at(records: list[Record], live: Report | None) -> Iterator[Line]:
    """The live doctor's line (or, for want of one, that of reading the journal), the paper's and the peers'."""
    if live is not None:
        yield {"preset": "default", **told(records, live)}
    else:
        yield {"preset": "default", **told(*examine(records, "default"))}
    yield {"preset": "paper", **told(*examine(records, "paper"))}
    rows = peers.metrics(records)
    for name, ask in peers.available().items():
        yield {"preset": name, "findings": ask(rows), "leads": [], "report": {}}


# ── many runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Results:
    """A file of results: what is in it is done."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        if path.exists():
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.lines.append(json.loads(text))
                except ValueError:  # a line that was being written when the machine went down
                    continue

    def done(self, label: str) -> set[Case]:
        """The cases that this version of the doctor has seen; those that ended in an error are tried again."""
        return {
            Case(line["kind"], line["arena"], line["seed"])
            for line in self.lines
            if line["version"] == label and line["preset"] == "default" and "error" not in line
        }

    def add(self, lines: Sequence[Line]) -> None:
        """Append the lines of one run, whole."""
        self.lines.extend(lines)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def bench(
    todo: Sequence[Case],
    results: Results,
    *,
    jobs: int = 1,
    label: str | None = None,
    journals: Path | None = None,
    replay: bool = False,
    device: str = "cpu",
    progress: Callable[[Case, Sequence[Line]], None] = lambda case, lines: None,
) -> None:
    """Run what the results do not hold yet, a few at a time."""
    label = label or version()
    done = results.done(label)
    waiting = [case for case in todo if case not in done]
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(isolated, case, label, journals, replay=replay, device=device): case for case in waiting}
        try:
            for future in as_completed(futures):
                lines = future.result()
                results.add(lines)
                progress(futures[future], lines)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def isolated(case: Case, label: str, journals: Path | None, *, replay: bool, device: str = "cpu") -> list[Line]:
    """Run a case in a process of its own."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, case, label, journals, replay, device), daemon=True)
    process.start()
    theirs.close()
    error = f"no answer within {TIMEOUT:g} seconds"
    lines: list[Line] = []
    try:
        if ours.poll(TIMEOUT):
            answer = ours.recv()
            if isinstance(answer, str):
                error = answer
            else:
                lines = answer
    except EOFError:
        process.join(5)
        error = f"the process ended with exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        ours.close()
    failed: Line = {**case._asdict(), "version": label, "split": KINDS[case.kind].split, "preset": "default"}
    return lines or [failed | {"error": error}]


def _send(  # pragma: no cover
    pipe: Any, case: Case, label: str, journals: Path | None, replay: bool, device: str
) -> None:
    try:
        torch.set_default_device(device)
        pipe.send(run(case, label, journals, replay=replay))
    except Exception as error:  # noqa: BLE001  whatever it is, it belongs into the run's line
        pipe.send(f"{type(error).__name__}: {error}")
    finally:
        pipe.close()


def kind_of(line: Line) -> Kind | None:
    """The kind of a line; None where it has been renamed since."""
    return KINDS.get(line["kind"])
