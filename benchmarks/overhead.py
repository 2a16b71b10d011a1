"""What watching costs: the same loop unwatched, watched, and with what people do instead, interleaved in one process.

    python benchmarks/overhead.py                       # this machine, a size that it can train
    python benchmarks/overhead.py --size gpt2 --size shakespeare_char --compile   # on a GPU
    python benchmarks/overhead.py --only host,memory    # without the speed table

Parts: speed (step time by variant), clock (added host time by section of the step), syncs (host waits that watching
adds), memory (device bytes, host bytes over 100,000 steps), host (time a step at 150 tensors), identical (watched and
unwatched runs, bit for bit).
Numbers are ratios or differences to the unwatched loop of the same round; medians with a bootstrap interval.
"""

from __future__ import annotations

import functools
import gc
import platform
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np
import torch
from torch import nn

from torchdoctor import Doctor
from torchdoctor.clinic.patient import RECIPES, Patient
from torchdoctor.vitals import taps

PARTS = ("speed", "clock", "syncs", "memory", "host", "identical")
CUDA = torch.cuda.is_available()
YOUTH = 400
"""Steps before anything is timed: young runs are looked at more often."""
BLOCKS = 64
"""Batches that are drawn beforehand, so that drawing is not part of the step."""
Step = Callable[[], None]


def say(text: str = "") -> None:
    """Print at once: a benchmark that is cut off has still said what it knew."""
    print(text, flush=True)


def wait() -> None:
    """Let the device finish."""
    if CUDA:
        torch.cuda.synchronize()


def interval(values: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """The median and its bootstrap interval."""
    rng = np.random.default_rng(0)
    sample = np.median(rng.choice(values, (4000, len(values))), axis=1)
    low, high = np.quantile(sample, [(1 - level) / 2, (1 + level) / 2])
    return statistics.median(values), float(low), float(high)


# ── the loop and its companions ──────────────────────────────────────────────────────────────────────────────────────


class Loop:
    """One model and optimizer, trained on fixed batches; companions come and go between rounds."""

    def __init__(self, size: str, *, compiled: bool, batch: int | None) -> None:
        recipe = replace(RECIPES[size], data=None, compile=compiled)
        if batch is not None:
            recipe = replace(recipe, batch_size=batch)
        self.patient = Patient(recipe)
        # Real text: of random tokens there is nothing to learn, and a run that learns nothing is looked at longer.
        text, length, draw = self.patient.corpus.train, recipe.context + 1, torch.Generator().manual_seed(0)
        starts = torch.randint(len(text) - length, (BLOCKS * recipe.batch_size,), generator=draw).tolist()
        rows = torch.stack([text[start : start + length] for start in starts]).long()
        self.tokens = rows.view(BLOCKS, recipe.batch_size, length).to(self.patient.device)
        self.count = 0
        self.loss = self.norm = torch.zeros(())
        self.watcher: Watcher | None = None

    def step(self) -> None:
        """nanoGPT's step."""
        for _ in self.sections():
            pass

    def sections(self) -> Iterator[str]:
        """The same step, section by section; each is named when it is over."""
        patient = self.patient
        block = self.tokens[self.count % BLOCKS]
        self.count += 1
        with patient.autocast():
            self.loss = patient.model(block[:, :-1], block[:, 1:])[1]
        yield "forward"
        self.loss.backward()  # type: ignore[no-untyped-call]
        yield "backward"
        self.norm = nn.utils.clip_grad_norm_(patient.parameters, 1.0)
        yield "clip"
        patient.optimizer.step()
        yield "step"
        patient.optimizer.zero_grad(set_to_none=True)
        yield "zero_grad"


def pause(doctor: Doctor) -> None:
    """Take a doctor's hooks and taps off; `attach` of its monitor puts them on again."""
    monitor = doctor._monitor
    monitor.lane.leave()
    monitor.successors.detach()
    monitor.first_batch.detach()
    monitor.stopwatch.interrupted = True
    taps.remove(monitor.lane)


class Watcher:
    """One doctor that is put on for its rounds and taken off in between, so that rounds show the steady state."""

    def __init__(self, loop: Loop) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.doctor = Doctor(
            loop.patient.model, loop.patient.optimizer, journal=self._folder.name, settings={"quiet": True}
        )
        self._loop = loop

    def step(self) -> None:
        """A watched step."""
        self._loop.step()
        self.doctor.log_loss(self._loop.loss)

    def pause(self) -> None:
        """Take the hooks and taps off."""
        pause(self.doctor)

    def resume(self) -> None:
        """Put them on again."""
        self.doctor._monitor.attach()

    def stop(self) -> None:
        """End the run."""
        self.doctor.detach()
        self._folder.cleanup()


def watched(loop: Loop) -> tuple[Step, Step]:
    """Training Doctor, all defaults on, with a journal."""
    watcher = loop.watcher
    if watcher is None:
        watcher = loop.watcher = Watcher(loop)
        for _ in range(YOUTH):
            watcher.step()
    else:
        watcher.resume()
    return watcher.step, watcher.pause


def items(loop: Loop) -> tuple[Step, Step]:
    """Two numbers read at every step, as most loops do."""

    def step() -> None:
        loop.step()
        loop.loss.item()
        loop.norm.item()

    return step, lambda: None


def per_parameter(loop: Loop) -> tuple[Step, Step]:
    """Statistics of every gradient, each read by itself, as the seeds' script does."""

    def hook(*_: Any) -> None:
        for tensor in loop.patient.parameters:
            grad = tensor.grad
            if grad is not None:
                for value in (grad.mean(), grad.std(), grad.norm(), grad.max(), grad.min(), (grad == 0).sum()):
                    value.item()

    handle = loop.patient.optimizer.register_step_pre_hook(hook)
    return loop.step, handle.remove


def peer(loop: Loop) -> tuple[Step, Step]:
    """`training-doctor` from PyPI, fed with the two numbers that it needs."""
    from training_doctor import Doctor as Peer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    doctor = Peer()

    def step() -> None:
        loop.step()
        doctor.log(step=loop.count, loss=loop.loss.item(), lr=1e-3, grad_norm=loop.norm.item())

    return step, lambda: None


def underflow_overflow(loop: Loop) -> tuple[Step, Step]:
    """Hugging Face's DebugUnderflowOverflow on the eager model."""
    from transformers.debug_utils import DebugUnderflowOverflow  # type: ignore[import-not-found,unused-ignore]

    model = getattr(loop.patient.model, "_orig_mod", loop.patient.model)
    before = {module: dict(module._forward_hooks) for module in model.modules()}
    compiled, loop.patient.model = loop.patient.model, model
    debug = DebugUnderflowOverflow(model)  # type: ignore[no-untyped-call,unused-ignore]

    def stop() -> None:
        debug.detected_overflow = False
        for module, hooks in before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)
        loop.patient.model = compiled

    return loop.step, stop


COMPANIONS: dict[str, Callable[[Loop], tuple[Step, Step]]] = {
    "Training Doctor": watched,
    "loss.item() + norm.item()": items,
    "per-parameter .item()": per_parameter,
    "training-doctor (PyPI)": peer,
    "DebugUnderflowOverflow": underflow_overflow,
}


def seconds(step: Step, steps: int) -> float:
    """Seconds a step, device work included."""
    for _ in range(3):
        step()
    wait()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - began) / steps


def device_microseconds(step: Step, steps: int) -> float:
    """Microseconds of kernels and copies on the device, a step."""
    from torch.profiler import ProfilerActivity, profile

    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        wait()
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / steps


ENTRIES = ("before_step", "after_step", "total_computed", "clipped")


def inside(loop: Loop, steps: int) -> tuple[float, float, float]:
    """Microseconds a step that the loop's thread spends in our code: every way in is timed; mean and its interval."""
    from torchdoctor.vitals.lane import Lane

    spent = [0.0]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[-1] += time.perf_counter() - began

        return call

    owners = [(Lane, name) for name in ENTRIES] + [(Doctor, "log_loss")]
    originals = [getattr(owner, name) for owner, name in owners]
    for (owner, name), original in zip(owners, originals, strict=True):
        setattr(owner, name, timed(original))
    try:
        watcher = Watcher(loop)
        for _ in range(YOUTH):
            watcher.step()
        spent[:] = [0.0]
        for _ in range(steps):
            watcher.step()
            spent.append(0.0)
        watcher.stop()
    finally:
        for (owner, name), original in zip(owners, originals, strict=True):
            setattr(owner, name, original)
    values = 1e6 * np.array(spent[:-1])
    rng = np.random.default_rng(0)
    means = rng.choice(values, (2000, values.size)).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    median, mean = float(np.median(values)), float(values.mean())
    say(f"host time in our calls: median {median:.1f} µs a step, mean {mean:.1f} ({low:.1f}..{high:.1f})")
    return float(values.mean()), float(low), float(high)


def compare(
    loop: Loop, rounds: int, steps: int, slow_rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, str]]:
    """(unwatched, with companion) seconds a step of each round, by companion; and why some were not measured."""
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in COMPANIONS}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name, companion in COMPANIONS.items():
            slow = name not in ("Training Doctor", "loss.item() + norm.item()")
            if name in missing or (slow and number >= slow_rounds):
                continue
            count = max(5, steps // 10) if slow else steps
            try:
                step, stop = companion(loop)
            except ModuleNotFoundError as error:
                missing[name] = str(error)
                continue
            stop()
            before = seconds(loop.step, count)
            step, stop = companion(loop)
            other = seconds(step, count)
            stop()
            after = seconds(loop.step, count)  # on both sides: a machine that drifts must favour nobody
            pairs[name].append(((before + after) / 2, other))
    return pairs, missing


SECTIONS = ("forward", "backward", "clip", "step", "zero_grad", "log_loss")


def host_sections(loop: Loop, rounds: int, steps: int) -> None:
    """What watching adds to the host's time, by section of the step; nothing waits for the device in between.

    Watching takes place in the last four; what it adds to the whole drowns in how much the passes swing by themselves.
    """
    watcher = Watcher(loop)
    for _ in range(YOUTH):
        watcher.step()
    watcher.pause()
    plain, seen = [], []
    for _ in range(rounds):
        before = _by_section(loop, steps, None)
        watcher.resume()
        seen.append(_by_section(loop, steps, watcher.doctor))
        watcher.pause()
        plain.append((before + _by_section(loop, steps, None)) / 2)
    watcher.stop()
    added = 1e6 * (np.array(seen) - np.array(plain))
    rng = np.random.default_rng(0)
    drawn = added[rng.integers(rounds, size=(4000, rounds))].mean(axis=1)
    say(f"host time by section, {rounds} rounds of {steps} steps, means in µs a step:")
    rows = {name: [place] for place, name in enumerate(SECTIONS)}
    rows |= {"added": list(range(2, len(SECTIONS))), "passes too": list(range(len(SECTIONS)))}
    for name, places in rows.items():
        low, high = np.quantile(drawn[:, places].sum(axis=1), [0.025, 0.975])
        base, more = 1e6 * np.array(plain)[:, places].sum(axis=1).mean(), added[:, places].sum(axis=1).mean()
        say(f"  {name:10} {base:9.1f} unwatched  {more:+8.1f} ({low:+.1f}..{high:+.1f}) watched")


def _by_section(loop: Loop, steps: int, doctor: Doctor | None) -> np.ndarray[Any, Any]:
    """Mean seconds of a step's sections."""
    spent = np.zeros(len(SECTIONS))
    clock = time.perf_counter
    for number in range(-8, steps):
        times = [clock()]
        for _ in loop.sections():
            times.append(clock())
        if doctor is not None:
            doctor.log_loss(loop.loss)
        times.append(clock())
        if number >= 0:  # the first ones pay for the change
            spent += np.diff(times)
    wait()
    return spent / steps


def speed(loop: Loop, rounds: int, steps: int, slow_rounds: int) -> None:
    """The table of step times."""
    for _ in range(30):
        loop.step()
    inside(loop, 1000 if CUDA else 200)
    noise = [seconds(loop.step, steps) for _ in range(4)]
    pairs, missing = compare(loop, rounds, steps, slow_rounds)
    base = statistics.median(plain for values in pairs.values() for plain, _ in values)
    spread = (max(noise) - min(noise)) / statistics.median(noise)
    say(f"unwatched: {1e3 * base:.3f} ms a step; four rounds of it alone differ by {spread:.1%}")
    say(f"{'variant':28} {'step time':>10} {'95 % interval':>20} {'added µs a step':>26}  rounds")
    for name, values in pairs.items():
        if not values:
            say(f"{name:28} not measured: {missing.get(name, 'no rounds')}")
            continue
        ratio, low, high = interval([100 * (other / plain - 1) for plain, other in values])
        added, less, more = interval([1e6 * (other - plain) for plain, other in values])
        row = f"{name:28} {ratio:+9.2f}% {low:+9.2f}%..{high:+7.2f}%"
        say(f"{row} {added:+9.1f} ({less:+.1f}..{more:+.1f})  {len(values)}")
    if CUDA:
        without = device_microseconds(loop.step, 50)
        step, stop = watched(loop)
        for _ in range(10):
            step()
        with_doctor = device_microseconds(step, 50)
        stop()
        say(f"device time: {without:.1f} µs a step unwatched, {with_doctor - without:+.1f} µs watched (profiler)")


# ── the other promises ───────────────────────────────────────────────────────────────────────────────────────────────


def syncs(loop: Loop) -> None:
    """Host waits that watching adds, by torch's own debug mode and by the profiler."""
    if not CUDA:
        say("syncs: needs a CUDA device")
        return
    from torch.profiler import ProfilerActivity, profile

    def count(step: Step) -> tuple[int, dict[str, int]]:
        for _ in range(8):
            step()
        wait()
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(200):
                step()
        torch.cuda.set_sync_debug_mode("default")
        wait()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(100):
                step()
        names = {event.key: event.count for event in profiler.key_averages() if "Synchronize" in event.key}
        return sum("synchronizing" in str(item.message) for item in caught), names

    before = count(loop.step)
    step, stop = watched(loop)
    after = count(step)
    stop()
    say(f"synchronizing calls in 200 steps: {before[0]} unwatched, {after[0]} watched")
    say(f"profiler, 100 steps: {before[1]} unwatched, {after[1]} watched")


def memory(loop: Loop) -> None:
    """Device bytes that watching takes, and host bytes over a long run."""
    if CUDA:
        for _ in range(3):
            loop.step()
        wait()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(60):
            loop.step()
        wait()
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        watcher = Watcher(loop)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(220):
            watcher.step()
        wait()
        more = torch.cuda.memory_allocated() - held, torch.cuda.max_memory_allocated() - peak
        watcher.stop()
        say(f"device memory: {more[0] / 1e6:+.2f} MB held, {more[1] / 1e6:+.2f} MB at the peak")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with tempfile.TemporaryDirectory() as folder:
        doctor = Doctor(model, optimizer, journal=folder, settings={"quiet": True})
        sizes = []
        for number in range(100_001):
            for tensor in model.parameters():
                tensor.grad = torch.ones_like(tensor)
            optimizer.step()
            doctor.log_loss(1.0)
            if number % 20_000 == 0:
                gc.collect()
                sizes.append(_resident())
        doctor.detach()
    say("host memory over 100,000 steps: " + ", ".join(f"{size / 1e6:.1f}" for size in sizes) + " MB (every 20,000)")


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def host(rounds: int) -> None:
    """Host time a step at 150 tensors: a loop with almost no device work, so that the host alone is timed.

    Its loss falls, so that the run is a healthy one: while a finding is open, each step is judged by itself.
    """
    device = "cuda" if CUDA else "cpu"
    tensors = [nn.Parameter(torch.randn(8, device=device)) for _ in range(150)]
    optimizer = torch.optim.AdamW(tensors, lr=1e-4, fused=CUDA)
    grads = [tensor.detach().clone() for tensor in tensors]  # towards zero: the loss falls at every step

    def plain(clip: bool, doctor: Doctor | None = None) -> None:
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = grad
        if clip:
            nn.utils.clip_grad_norm_(tensors, 1e9)
        optimizer.step()
        loss = tensors[0].square().sum()  # has a graph, as a loss has
        if doctor is not None:
            doctor.log_loss(loss)

    for clip in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            doctor = Doctor(nn.ParameterList(tensors), optimizer, journal=folder, settings={"quiet": True})
            for _ in range(YOUTH):
                plain(clip, doctor)
            pause(doctor)
            added = []
            for _ in range(rounds):
                before = seconds(partial(plain, clip), 300)
                doctor._monitor.attach()
                during = seconds(partial(plain, clip, doctor), 300)
                pause(doctor)
                after = seconds(partial(plain, clip), 300)
                added.append(1e6 * (during - (before + after) / 2))
            doctor.detach()
        middle, low, high = interval(added)
        how = "the loop clips" if clip else "no clipping, own reduction"
        say(f"host time at 150 tensors on {device}, {how}: {middle:+.1f} µs a step ({low:+.1f}..{high:+.1f})")


def identical() -> None:
    """Watched and unwatched runs from the same seed: weights, optimizer state and random state."""
    device = "cuda" if CUDA else "cpu"
    torch.use_deterministic_algorithms(True)
    kinds = ("sgd", "adamw", "adamw clip", "adamw accumulate", "adamw bf16", "adamw fp16 scaler", "adamw compile")
    for kind in kinds:
        runs = [_train(kind, device, watch=watch) for watch in (False, False, True)]
        same = [_equal(runs[0], runs[1]), _equal(runs[0], runs[2])]
        say(f"identical, {kind:18}: two unwatched runs {same[0]}, watched and unwatched {same[1]}")
    torch.use_deterministic_algorithms(False)


def _train(kind: str, device: str, *, watch: bool) -> list[torch.Tensor]:
    recipe = replace(RECIPES["tiny"], data=None, steps=60, device=device, compile="compile" in kind, dropout=0.1)
    patient = Patient(replace(recipe, bf16="bf16" in kind))
    optimizer = patient.optimizer
    if kind == "sgd":
        optimizer = torch.optim.SGD(patient.parameters, lr=0.1, momentum=0.9)  # type: ignore[assignment]
    scaler = torch.amp.GradScaler(device, init_scale=2.0**30, enabled="scaler" in kind)
    half = (
        torch.autocast(device, dtype=torch.float16 if CUDA else torch.bfloat16) if "scaler" in kind else nullcontext()
    )
    doctor = Doctor(patient.model, optimizer, scaler=scaler, settings={"quiet": True}) if watch else None
    for _ in range(recipe.steps):
        for _ in range(2 if "accumulate" in kind else 1):
            x, y = patient._draw()
            with half, patient.autocast():
                loss = patient.model(x, y)[1]
            scaler.scale(loss).backward()
            if doctor is not None:
                doctor.log_loss(loss)
        if "clip" in kind:
            nn.utils.clip_grad_norm_(patient.parameters, 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if doctor is not None:
        doctor.detach()
    state = [value for item in optimizer.state.values() for value in item.values() if isinstance(value, torch.Tensor)]
    random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if CUDA else [])]
    return [*(tensor.detach() for tensor in patient.parameters), *state, *random]


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@click.command()
@click.option("--size", "sizes", multiple=True, help="Recipes to time; default: small, or the paper's on a GPU.")
@click.option("--compile/--no-compile", "compiled", default=False)
@click.option("--batch", type=int, help="Sequences a batch; default: the recipe's.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--steps", default=0, help="Steps a round; default: by device.")
@click.option("--slow-rounds", default=3, show_default=True, help="Rounds of the variants that are slow.")
@click.option("--only", default=",".join(PARTS), help="Parts, separated by commas.")
def main(
    sizes: tuple[str, ...], compiled: bool, batch: int | None, rounds: int, steps: int, slow_rounds: int, only: str
) -> None:
    """Measure what watching costs."""
    parts = only.split(",")
    name = torch.cuda.get_device_name() if CUDA else platform.processor() or platform.machine()
    say(f"python benchmarks/overhead.py {' '.join(sys.argv[1:])}")
    say(f"{name}, torch {torch.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    for size in sizes or (("shakespeare_char",) if CUDA else ("small",)):
        if set(parts) & {"speed", "clock", "syncs", "memory"}:
            loop = Loop(size, compiled=compiled, batch=batch)
            recipe = loop.patient.recipe
            millions = sum(tensor.numel() for tensor in loop.patient.parameters) / 1e6
            say(
                f"\n{size}: {millions:.1f}M parameters in {len(loop.patient.parameters)} tensors, "
                f"batch {recipe.batch_size} x {recipe.context}, {'compiled' if compiled else 'eager'}"
            )
            if "speed" in parts:
                speed(loop, rounds, steps or (100 if CUDA else 20), slow_rounds)
            if "clock" in parts:
                host_sections(loop, 3 * rounds, 256)
            if "syncs" in parts:
                syncs(loop)
            if "memory" in parts:
                memory(loop)
    say()
    if "host" in parts:
        host(rounds)
    if "identical" in parts:
        identical()


if __name__ == "__main__":
    main()
