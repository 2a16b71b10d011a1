"""Development kinds in places that they were not written for: does what was learnt of a kind carry over?

    python benchmarks/transplants.py --places 2 --jobs 2     # 590 runs, about 40 minutes of one core

Each kind is applied to arenas drawn at random among all but its own, and trained there once, watched, beside its
healthy twin, unwatched. Many a fault cannot be there (`eval()` in a model without modes, a mask where nothing is
masked), and some kinds of loop do not run at all: those are counted apart. A fault counts as harmful where the end of
its validation is worse than the twin's by a tenth of what the twin gained, or not finite. A healthy kind may well be
sick in another place; those that were warned about are listed, to be looked at.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import click

from torchdoctor.clinic.arenas import makers
from torchdoctor.clinic.bench import Case, Line, Results, loop_of, run
from torchdoctor.clinic.kinds import KINDS
from torchdoctor.clinic.scoring import judge

HARMFUL = 0.1
"""Share of the twin's gain that is lost."""


def drawn(places: int, seed: int) -> list[Case]:
    """The kinds of development, each in some places that are not its own."""
    names = sorted(makers())
    chosen: list[Case] = []
    for kind in KINDS.values():
        if kind.split == "development":
            others = [name for name in names if name not in kind.on]
            chosen += [
                Case(kind.slug, name, seed) for name in random.Random(f"{kind.slug} {seed}").sample(others, places)
            ]
    return chosen


def both(case: Case) -> Line:
    """What was found in the run, and how its twin ended."""
    try:
        line = run(case, "transplant")[0]
    except Exception as error:  # noqa: BLE001  whatever it is, this kind is not for this place
        return {**case._asdict(), "version": "transplant", "error": f"{type(error).__name__}: {error}"}
    if not KINDS[case.kind].healthy:
        twin = loop_of(case, healthy_twin=True)
        twin.steps = line["steps"]
        twin.train(lambda *args, **kwargs: None)
        line["twin"] = {"losses": [twin.losses[0], twin.losses[-1]], "validations": twin.validations}
    return line


def harm(line: Line) -> float:
    """Share of the twin's gain that the fault has cost; infinite where the run broke, NaN where it cannot be told."""
    mine, its = ([value for _, value in side["validations"]][-2:] for side in (line, line["twin"]))
    first, last = line["twin"]["losses"]
    if line["last_loss"] is None or not all(map(math.isfinite, mine)):
        return math.inf
    if not mine or not its or not first > last:
        return math.nan
    return float((sum(mine) / len(mine) - sum(its) / len(its)) / (first - last))


@click.command()
@click.option("--places", default=2, show_default=True, help="Arenas for each kind.")
@click.option("--seed", default=100, show_default=True)
@click.option("--jobs", default=1, show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default=Path("transplants.jsonl"), show_default=True)
def main(places: int, seed: int, jobs: int, results: Path) -> None:
    """Train, and print what was found."""
    kept = Results(results)
    done = kept.done("transplant")
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(both, case) for case in drawn(places, seed) if case not in done]):
            kept.add([future.result()])
    report(kept.lines)


def report(every: Sequence[Line]) -> None:
    """Print what was found, and what was not."""
    lines = [line for line in every if "error" not in line]
    told = [(line, verdict) for line in lines if (verdict := judge(line)) is not None]
    healthy = [(line, verdict) for line, verdict in told if verdict.kind.healthy]
    sick = [(line, verdict, harm(line)) for line, verdict in told if not verdict.kind.healthy]
    harmful = [item for item in sick if item[2] > HARMFUL]
    harmless = [item for item in sick if not item[2] > HARMFUL]
    rooted = [verdict for _, verdict, _ in sick if verdict.found and verdict.kind.cause]
    click.echo(f"{len(every) - len(lines)} of {len(every)} cannot be trained there")
    for name, some in (("faults that do harm", harmful), ("the others", harmless)):
        click.echo(f"{name}: {sum(verdict.found for _, verdict, _ in some)} of {len(some)} found")
    click.echo(f"of those found, the right cause first: {sum(verdict.first for verdict in rooted)} of {len(rooted)}")
    click.echo(f"healthy without a warning: {sum(not verdict.spoke for _, verdict in healthy)} of {len(healthy)}")
    for line, verdict, cost in harmful:
        if not verdict.found:
            click.echo(f"  missed: {line['kind']} on {line['arena']}, harm {cost:.2f}; said {verdict.ranked[:1]}")
    for line, verdict in healthy:
        if verdict.spoke:
            losses = f"loss {line['first_loss']} to {line['last_loss']}"
            click.echo(f"  warned: {line['kind']} on {line['arena']}: {', '.join(verdict.false)}; {losses}")


if __name__ == "__main__":
    main()
