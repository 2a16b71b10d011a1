"""``torchdoctor clinic``: the benchmark of Training Doctor itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchdoctor.errors import PatientError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchdoctor.clinic.bench import Case, Line
    from torchdoctor.clinic.kinds import Kind


@click.group(short_help="Train runs known to be sick or healthy, and score the diagnoses.")
def clinic() -> None:
    """Train runs that are known to be sick or healthy, and see how they are diagnosed."""


def _needs_torch() -> None:
    try:
        import torchdoctor.clinic.bench  # noqa: F401
    except ModuleNotFoundError as error:
        raise PatientError("the clinic trains models and needs torch: pip install 'torchdoctor[torch]'.") from error


def _shard(ctx: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    part, _, whole = text.partition("/")
    if not (part.isdigit() and whole.isdigit() and 1 <= int(part) <= int(whole)):
        raise click.BadParameter("write a shard as 1/2: the first of two.")
    return int(part), int(whole)


@clinic.command()
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("clinic.jsonl"),
    show_default=True,
    help="Where to keep the results, one line per run; runs already in it are not repeated.",
)
@click.option(
    "--split",
    type=click.Choice(["development", "held-out", "all"]),
    default="development",
    show_default=True,
    help="Which kinds to run. Held-out ones are for reporting: do not look at them while you work on findings.",
)
@click.option("--kinds", default="*", metavar="PATTERN", help="Only kinds with a matching name, such as 'lr-*,nan-*'.")
@click.option("--seeds", type=click.IntRange(1), default=2, show_default=True, help="Runs per kind and arena.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs in parallel.")
@click.option("--device", default="cpu", show_default=True, help="Where to train, such as 'cuda'.")
@click.option("--shard", callback=_shard, default="1/1", metavar="N/M", help="Run only the N-th of M parts.")
@click.option("--label", help="Name of this version of the doctor; default: its version and a fingerprint.")
@click.option(
    "--journals",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the runs' journals in this folder.",
)
@click.option("--replay", is_flag=True, help="Examine the journals in --journals again instead of training.")
@click.option("--score-only", is_flag=True, help="Run nothing; score the results so far.")
@click.option("--format", "form", type=click.Choice(["full", "json"]), default="full", show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Also write the score to a file.")
def bench(  # noqa: PLR0913  one argument an option
    results: Path,
    split: str,
    kinds: str,
    seeds: int,
    jobs: int,
    device: str,
    shard: tuple[int, int],
    label: str | None,
    journals: Path | None,
    replay: bool,
    score_only: bool,
    form: str,
    output: Path | None,
) -> None:
    """Run the benchmark, or continue it, and print its score."""
    _needs_torch()
    from torchdoctor.clinic import scoring, tables
    from torchdoctor.clinic.bench import Case, Results, bench, cases

    todo = cases(split, kinds, seeds)[shard[0] - 1 :: shard[1]]
    if replay and journals is None:
        raise click.UsageError("--replay needs --journals DIR, the folder that an earlier `--journals DIR` has filled.")
    if not todo:
        raise PatientError(f"no {split} kind matches {kinds!r}; `torchdoctor clinic list` shows them.")
    kept = Results(results)
    if not score_only:
        done = [0]

        def progress(case: Case, lines: Sequence[Line]) -> None:
            done[0] += 1
            click.echo(f"{done[0]:>4}  {case}: {_said(lines)}", err=True)

        bench(todo, kept, jobs=jobs, label=label, journals=journals, replay=replay, device=device, progress=progress)
    wanted = set(todo)
    lines = [line for line in kept.lines if Case(line["kind"], line["arena"], line["seed"]) in wanted]
    score = scoring.score(lines)
    text = json.dumps(tables.plain(score), indent=1) if form == "json" else tables.render(score)
    click.echo(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")


def _said(lines: Sequence[Line]) -> str:
    """A run in a few words; for a held-out kind only that it was run."""
    first = lines[0]
    if "error" in first:
        return f"failed, {first['error']}"
    if first["split"] == "held-out":
        return f"{first['seconds']} s"
    names = dict.fromkeys(item["name"] for item in first["findings"] if item["severity"] != "info")
    return f"{first['seconds']} s; {', '.join(names) or 'nothing found'}"


@clinic.command("list")
@click.option(
    "--split", type=click.Choice(["development", "held-out", "all"]), default="development", show_default=True
)
def list_kinds(split: str) -> None:
    """List the kinds of run, by theme."""
    _needs_torch()
    from torchdoctor.clinic.kinds import THEMES

    for theme, kinds in THEMES.items():
        chosen = [kind for kind in kinds if split in (kind.split, "all")]
        click.echo(f"\n{theme} ({len(chosen)})")
        for kind in chosen:
            click.echo(f"  {kind.slug:<32}{kind.split:<13}{', '.join(kind.on):<32}{kind.summary}")


@clinic.command()
@click.argument("name")
@click.option("--arena", help="Which task to train; default: the first that the kind runs on.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--find", is_flag=True, help="Also print what the doctor finds. Not for held-out kinds during development."
)
def show(name: str, arena: str | None, seed: int, find: bool) -> None:
    """Train one run of a kind and its healthy twin, and show how both ended."""
    _needs_torch()
    from torchdoctor.clinic.bench import Case
    from torchdoctor.clinic.kinds import KINDS

    kind = KINDS.get(name)
    if kind is None:
        raise PatientError(f"there is no kind {name!r}. {did_you_mean(name, KINDS)}")
    case = Case(name, arena or kind.on[0], seed)
    _describe(kind)
    _compare(case)
    if find:
        _find(case)


def _describe(kind: Kind) -> None:
    click.echo(f"{kind.slug}: {kind.summary}")
    click.echo(f"  {'healthy' if kind.healthy else 'sick'}, {kind.split}, trained on {', '.join(kind.on)}")
    for title, names in (
        ("right", kind.right),
        ("and", kind.also),
        ("root cause", kind.cause),
        ("secondary", kind.secondary),
    ):
        if names:
            click.echo(f"  {title}: {', '.join(names)}")
    if not kind.healthy:
        click.echo(f"  onset: {kind.onset}, {'acute' if kind.acute else 'chronic'}")


def _compare(case: Case) -> None:
    import warnings

    from torchdoctor.clinic.bench import ending, loop_of

    for title, twin in (("this run", False), ("its healthy twin", True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop = loop_of(case, healthy_twin=twin)
            loop.train(lambda *args, **kwargs: None)
        first = loop.losses[0] if loop.losses else float("nan")
        last = ending(loop.losses)
        validation = f"{loop.validations[-1][1]:.4g}" if loop.validations else "none"
        said = "not finite" if last is None else f"{last:.4g}"
        click.echo(f"  {title}: loss {first:.4g} -> {said} in {loop.steps} steps, last validation {validation}")


def _find(case: Case) -> None:
    import tempfile

    from torchdoctor import diagnose
    from torchdoctor.clinic.bench import train

    with tempfile.TemporaryDirectory() as folder:
        report = train(case, Path(folder))[1]
        click.echo(str(report if report is not None else diagnose(folder)))
