"""The check-up on models that are sound, and on models with one thing wrong each.

    python benchmarks/checkup.py                        # the development half
    python benchmarks/checkup.py --split held-out       # only ever reported

Found: a check that was declared right for the model fails. False: any other check that fails and was not declared to be
a consequence; on a sound model, every one. Prints a line a model, then the shares with their intervals.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch

from torchdoctor.checks.checkup import Checkup, checkup
from torchdoctor.checks.nested import moved
from torchdoctor.clinic.candidates import CANDIDATES, Candidate
from torchdoctor.clinic.candidates.candidate import Visit
from torchdoctor.clinic.kinds import SPLITS
from torchdoctor.clinic.scoring import share
from torchdoctor.clinic.tables import share_text


def main() -> None:
    """Check every candidate of a half and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=[*SPLITS, "both"], default="development")
    parser.add_argument("--only", default="", help="candidates whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu", help="where models and batches are moved to before they are checked")
    parser.add_argument("--ignore", default="", help="checks to leave out, with commas between them")
    arguments = parser.parse_args()
    chosen = [
        item for item in CANDIDATES.values() if arguments.split in (item.split, "both") and arguments.only in item.slug
    ]
    device = torch.device(arguments.device)
    print(f"torch {torch.__version__}; {arguments.split} candidates, seed {arguments.seed}, on {device}\n")
    found = broken = false = checked = 0
    longest = (0.0, "")
    for candidate in chosen:
        began = time.perf_counter()
        visit = arrived(candidate, arguments.seed, device)
        result = examine(visit, quick=arguments.quick, ignore=tuple(filter(None, arguments.ignore.split(","))))
        longest = max(longest, (time.perf_counter() - began, candidate.slug))
        failed = {item.name: item for item in result.results if item.status == "failed"}
        right = [name for name in failed if name in candidate.right]
        wrong = [name for name in failed if name not in (*candidate.right, *candidate.secondary)]
        if candidate.sound:
            false += len(wrong)
            checked += sum(item.status != "skipped" for item in result.results)
        else:
            broken += 1
            found += bool(right)
        verdict = ("sound" if candidate.sound else "found") if right or candidate.sound else "MISSED"
        print(f"{verdict:<7} {candidate.slug:<32} {', '.join(right)}", flush=True)
        for name in wrong:
            print(f"        FALSE {name}: {failed[name].message}", flush=True)
    print(f"\nbroken models found: {share_text(share(found, broken))}   [goal 95 %]")
    print(f"checks that failed on sound models: {share_text(share(false, checked))}   [goal 0.5 %]")
    print(f"longest: {longest[1]}, {longest[0]:.1f} s")


def arrived(candidate: Candidate, seed: int, device: torch.device) -> Visit:
    """What a candidate brings along, on the device."""
    torch.manual_seed(seed)
    visit = candidate.build()
    if device.type == "cpu":
        return visit
    for item in (visit.model, visit.loss_fn):
        for module in item.values() if isinstance(item, dict) else [item]:
            if isinstance(module, torch.nn.Module):
                module.to(device)  # in place, so that the optimizer still holds its parameters
    return visit._replace(batch=moved(visit.batch, device), validation=moved(visit.validation, device), loader=None)


def examine(visit: Visit, *, quick: bool, ignore: tuple[str, ...]) -> Checkup:
    """One candidate's check-up."""
    more: dict[str, Any] = {"loader": visit.loader, "validation": visit.validation, "memory": visit.memory}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own word on a loss that broadcasts is not ours
        return checkup(visit.model, visit.loss_fn, visit.batch, visit.optimizer, quick=quick, ignore=ignore, **more)


if __name__ == "__main__":
    main()
