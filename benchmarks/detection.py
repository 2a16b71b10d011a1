"""Injected faults on the patient: is each found within three steps, and is the run without them left in peace?

    python benchmarks/detection.py                 # the small patient: some minutes on two cores
    python benchmarks/detection.py --size shakespeare_char --seeds 3   # the paper's patient, for a GPU

Prints a table and exits with 1 if an acute fault was missed or a run without faults was warned about.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import torch

from torchdoctor.clinic import RECIPES, Patient, Recipe, paper_schedule
from torchdoctor.clinic.data import Corpus, load_text
from torchdoctor.clinic.detection import IN_TIME, Detection, acute_faults, chronic_faults, watched_run

AFTERWARDS = 12
"""Steps that a run goes on after its last fault: later alarms are no answer to it."""
LONGEST = 5000
"""Steps of a run without faults: the paper's shortest, whole."""
COLUMNS = "{:<38} {:>5} {:>9}  {:<22} {:<9} {:>6}"


def main() -> int:
    """Run the grid and print what came of it."""
    arguments = _arguments()
    recipe, at = _plan(arguments.size, arguments.data)
    corpus = Corpus(load_text(recipe.data))
    parameters = sum(p.numel() for p in Patient(recipe, corpus).parameters)
    place = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{arguments.size} patient, {parameters:,} parameters, torch {torch.__version__}, {place}; faults at {at}\n")
    print(COLUMNS.format("fault", "seed", "injected", "found as", "severity", "delay"))
    seeds = range(arguments.seeds)
    acute: list[Detection] = []
    for faults in acute_faults(at):
        for seed in seeds:
            found, _ = watched_run(replace(recipe, seed=seed), faults, until=at[-1] + AFTERWARDS, corpus=corpus)
            acute += found
            for detection in found:
                _print_row(detection, seed, len(faults))
    if arguments.chronic:
        for faults in chronic_faults(at[0]):
            for seed in seeds:
                found, _ = watched_run(replace(recipe, seed=seed), faults, corpus=corpus)
                for detection in found:
                    _print_row(detection, seed, len(faults))
    length = min(recipe.steps, LONGEST)
    warnings = []
    for seed in seeds:
        _, alarms = watched_run(replace(recipe, seed=seed), until=length, corpus=corpus)
        warnings += [(seed, alarm) for alarm in alarms]
    in_time = sum(detection.in_time for detection in acute)
    print(f"\nfound at warning or above within {IN_TIME} steps: {in_time} of {len(acute)} ({in_time / len(acute):.0%})")
    print(f"warnings in {len(seeds)} runs of {length} steps without faults: {len(warnings)}")
    for seed, alarm in warnings:
        print(f"  seed {seed}, step {alarm.step}: {alarm.name} ({alarm.severity})")
    return 0 if in_time == len(acute) and not warnings else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(RECIPES), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default=None, help="a data set or a text file; default: the recipe's")
    parser.add_argument("--chronic", action="store_true", help="also the faults that need a whole run to show")
    return parser.parse_args()


def _plan(size: str, data: str | None) -> tuple[Recipe, tuple[int, ...]]:
    """The recipe, and when the faults come: as in the paper where the run is long enough, else after each third."""
    recipe = RECIPES[size]
    if data is not None:
        recipe = replace(recipe, data=data)
    if recipe.steps >= 3000:
        return recipe, paper_schedule()
    if size == "small":
        recipe = replace(recipe, steps=300, warmup=30)
    return recipe, (recipe.steps // 3, recipe.steps // 3 * 2)


def _print_row(detection: Detection, seed: int, together: int) -> None:
    alarm, fault = detection.alarm, str(detection.injection.fault)
    if together > 1:
        fault += f" ({together} at once)"
    found = (alarm.name, alarm.severity, str(detection.delay)) if alarm else ("not found", "", "")
    print(COLUMNS.format(fault, seed, detection.injection.step, *found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
