"""How long it takes to read and diagnose long runs, how much memory, and how that grows.

    python benchmarks/reading.py                        # a million steps, in a journal and in a TensorBoard file
    python benchmarks/reading.py --steps 100000         # smaller
    python benchmarks/reading.py --sick                 # and journals of runs that are dead or wild
    python benchmarks/reading.py --runs 1000            # and so many runs of a thousand steps, compared

Each measurement is a process of its own: `diagnose` is what a user waits for, imports and report included; `parse` only
reads the numbers of the same file, with our reader for TensorBoard and with `json.loads` for the journal. Ratios are of
processor time, which a busy machine disturbs less. Memory is the process's peak. A step holds loss, gradient norm and
learning rate.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdoctor.sources.crc32c import contributions, crc32c, masked, masked_all

NAMES = ("train/loss", "train/grad_norm", "train/learning_rate")
CHUNK = 20_000
ROW = "{:<12} {:>9} {:>6} {:>11} {:>6} {:>8} {:>12} {:>6} "


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="of the longest run")
    parser.add_argument("--sick", action="store_true", help="journals of sick runs of as many steps, too")
    parser.add_argument("--runs", type=int, default=0, help="runs of 1,000 steps to compare")
    parser.add_argument("--measure", nargs=2, metavar=("WHAT", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure[0], Path(arguments.measure[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(ROW.format("file", "steps", "MB", "diagnose s", "CPU s", "peak MB", "parse CPU s", "ratio"), "verdict")
        for kind, write in (("journal", write_journal), ("tensorboard", write_events)):
            for steps in (arguments.steps // 100, arguments.steps // 10, arguments.steps):
                file = Path(folder) / f"{kind}.{steps}.tfevents"
                write(file, steps)
                whole, plain = apart("diagnose", file), apart(f"parse-{kind}", file)
                numbers = (
                    f"{file.stat().st_size / 1e6:.1f}",
                    *(f"{number:.2f}" for number in (whole["seconds"], whole["cpu"])),
                    f"{whole['peak'] / 1e6:.0f}",
                    f"{plain['cpu']:.2f}",
                    f"{whole['cpu'] / plain['cpu']:.1f}",
                )
                print(ROW.format(kind, f"{steps:,}", *numbers), whole["verdict"], flush=True)
                file.unlink()
        for kind, made in SICK.items() if arguments.sick else ():
            file = Path(folder) / f"{kind}.jsonl"
            write_journal(file, arguments.steps, made=made(arguments.steps))
            whole = apart("diagnose", file)
            numbers = (
                f"{file.stat().st_size / 1e6:.1f}",
                *(f"{number:.2f}" for number in (whole["seconds"], whole["cpu"])),
                f"{whole['peak'] / 1e6:.0f}",
            )
            print(ROW.format(kind, f"{arguments.steps:,}", *numbers, "", ""), whole["verdict"], flush=True)
            file.unlink()
        if arguments.runs:
            runs = Path(folder) / "runs"
            for number in range(arguments.runs):
                write_journal(runs / f"run{number}" / "journal.jsonl", 1000, seed=number)
            print(f"\n{arguments.runs:,} runs of 1,000 steps compared: {compared(runs):.1f} s")


def values(steps: int, seed: int = 0) -> Iterator[tuple[float, float, float]]:
    """A healthy run: a noisy power law, a warm-up, a cosine."""
    rng = random.Random(seed)
    for step in range(steps):
        share = step / steps
        loss = 2.5 + 7.5 * (1 + step) ** -0.25 * math.exp(0.03 * rng.gauss(0, 1))
        rate = 3e-4 * min(1.0, step / (0.01 * steps)) * (0.55 + 0.45 * math.cos(math.pi * share))
        yield loss, 0.5 * math.exp(0.2 * rng.gauss(0, 1)), rate


Values = Iterator[tuple[float, float, float]]


def _dead(steps: int) -> Values:
    """From a tenth on, everything is NaN."""
    for step, row in enumerate(values(steps)):
        yield row if step < steps // 10 else (math.nan, math.nan, row[2])


def _lossless(steps: int) -> Values:
    """From a tenth on, the loss is NaN and the norm stands still."""
    for step, row in enumerate(values(steps)):
        yield row if step < steps // 10 else (math.nan, 1.0, row[2])


def _broken(steps: int) -> Values:
    """One step in a hundred is NaN."""
    rng = random.Random(1)
    for row in values(steps):
        yield row if rng.random() > 0.01 else (math.nan, math.inf, row[2])


def _spiky(steps: int) -> Values:
    """One step in two hundred leaps."""
    rng = random.Random(2)
    for loss, norm, rate in values(steps):
        times = 1 if rng.random() > 0.005 else 6
        yield loss * times, norm * times**2, rate


def _heavy(steps: int) -> Values:
    """Losses and norms with long tails."""
    rng = random.Random(3)
    for _, _, rate in values(steps):
        yield rng.expovariate(1.0) + 1e-6, math.exp(1.3 * rng.gauss(0, 1)), rate


def _diverged(steps: int) -> Values:
    """From a tenth on, both are far above, and stay there."""
    for step, (loss, norm, rate) in enumerate(values(steps)):
        far = 1 if step < steps // 10 else 40
        yield far * loss, far * norm, rate


def _constant(steps: int) -> Values:
    """Nothing moves."""
    return ((2.3, 0.7, 1e-3) for _ in range(steps))


def _sawtooth(steps: int) -> Values:
    """The loss climbs for a thousand steps and falls back."""
    return ((1 + step % 1000 / 1000, math.exp(step % 37 / 10), 1e-3) for step in range(steps))


SICK: dict[str, Callable[[int], Values]] = {
    "all NaN": _dead,
    "loss NaN": _lossless,
    "NaN at times": _broken,
    "spiky": _spiky,
    "heavy tails": _heavy,
    "diverged": _diverged,
    "constant": _constant,
    "sawtooth": _sawtooth,
}


def write_journal(file: Path, steps: int, seed: int = 0, made: Values | None = None) -> None:
    """A run as our journal: the healthy one, or what is given."""
    file.parent.mkdir(parents=True, exist_ok=True)
    context = {"config": {"lr": 3e-4 * (1 + seed % 3), "seed": seed}}
    with file.open("w") as out:
        print(json.dumps({"type": "header", "step": -1, "schema": 1, "context": context}), file=out)
        for step, row in enumerate(made or values(steps, seed)):
            vitals = dict(zip(("loss", "grad_norm", "lr"), map(_strict, row), strict=True))
            print(json.dumps({"type": "vitals", "step": step, "vitals": vitals}), file=out)
        print(json.dumps({"type": "end", "step": steps - 1}), file=out)


def _strict(value: float) -> float | str:
    """A number as strict JSON has it."""
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity"


def write_events(file: Path, steps: int) -> None:
    """The run as TensorBoard keeps it: one event a value, those of each step one after another."""
    table = np.array(list(values(steps)), dtype="<f4")
    borders = [0, 1, *(2 ** (7 * width) for width in range(1, 5) if 2 ** (7 * width) < steps), steps]
    with file.open("wb") as out:
        out.write(_events([b"\x09", np.full((1, 8), 0, np.uint8), b"\x1a\x0dbrain.Event:2"]).tobytes())
        for width, (first, last) in enumerate(pairwise(borders)):  # steps whose numbers take as many bytes
            for start in range(first, last, CHUNK):
                counted = np.arange(start, min(start + CHUNK, last))
                columns = [_scalars(name, counted, width, table[counted, place]) for place, name in enumerate(NAMES)]
                out.write(np.concatenate(columns, axis=1).tobytes())


def _scalars(name: str, steps: NDArray[np.int64], width: int, column: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Records with one scalar each."""
    times = (1.7e9 + steps / 10).astype("<f8").view(np.uint8).reshape(-1, 8)
    digits = steps[:, None] >> 7 * np.arange(width) & 0x7F
    digits[:, :-1] |= 0x80
    scalar = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x15"
    size = len(scalar) + 4
    head = b"\x2a" + bytes([size + 2]) + b"\x0a" + bytes([size]) + scalar
    value = column.copy().view(np.uint8).reshape(-1, 4)
    step: list[bytes | NDArray[np.uint8]] = [b"\x10", digits.astype(np.uint8)]
    return _events([b"\x09", times, *(step if width else []), head, value])


def _events(parts: Sequence[bytes | NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Framed records out of what is the same in all of them and of what is not."""
    count = max(len(part) for part in parts if not isinstance(part, bytes))
    rows = np.concatenate(
        [np.tile(np.frombuffer(part, np.uint8), (count, 1)) if isinstance(part, bytes) else part for part in parts],
        axis=1,
    )
    length = rows.shape[1]
    header = struct.pack("<Q", length)
    header += struct.pack("<I", masked(crc32c(header)))
    checks = masked_all(contributions(rows, np.arange(length), length) ^ np.uint32(crc32c(bytes(length))))
    ends = checks.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.concatenate([np.tile(np.frombuffer(header, np.uint8), (count, 1)), rows, ends], axis=1)


def apart(what: str, file: Path) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--measure", what, str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{what} failed: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(what: str, file: Path) -> None:
    """Run one of the measured things and print what it took."""
    work: Callable[[Path], str] = {
        "diagnose": _diagnose,
        "parse-journal": _parse_journal,
        "parse-tensorboard": _parse_events,
    }[what]
    began = time.perf_counter()
    verdict = work(file)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": time.process_time(), "peak": peak, "verdict": verdict}))


def _diagnose(file: Path) -> str:
    import torchdoctor

    return torchdoctor.diagnose(file).health


def _parse_journal(file: Path) -> str:
    with file.open() as lines:
        return str(sum(json.loads(line)["step"] >= 0 for line in lines))


def _parse_events(file: Path) -> str:
    from torchdoctor.sources import tensorboard

    return str(sum(len(points) for points in tensorboard.read(file)[0].points.values()))


def compared(runs: Path) -> float:
    """Seconds of the command that compares all runs of a folder."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "torchdoctor", "compare", str(runs), "--format", "json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
