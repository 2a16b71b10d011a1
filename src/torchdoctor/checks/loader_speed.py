"""CK27 loader-speed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from torchdoctor.checks.calling import split
from torchdoctor.checks.check import CannotTell, Check, Outcome
from torchdoctor.checks.nested import leading
from torchdoctor.checks.practice import Practice
from torchdoctor.checks.rows import is_one_shot
from torchdoctor.checks.subject import Subject
from torchdoctor.records import number_text
from torchdoctor.symptoms.data_starvation import DataStarvation


@dataclass(frozen=True)
class LoaderSpeed(Check):
    """Batches load as fast as training uses them.

    ## What it checks
    The time between two batches of the loader is compared with the time of a training step on the batch. While a step
    waits for its data, the device idles.

    ## How it is told apart
    The first batch, which starts the workers, does not count, and the median of several times is used. The check fails
    if a batch takes longer to load than to train on: with workers the device then waits, without them it waits more
    than half of the time. A few milliseconds are ignored. If the check-up reduced the batch, the time of a step is
    scaled up to the loader's batch size.

    ## What to do
    Use `DataLoader(num_workers=4, pin_memory=True, persistent_workers=True)`; decode and resize once, before training.

    ## Example
    >>> class Slow(torch.utils.data.Dataset):
    ...     def __len__(self): return 64
    ...     def __getitem__(self, index):
    ...         time.sleep(0.02)
    ...         return torch.ones(3), torch.ones(1)
    >>> loader, batch = torch.utils.data.DataLoader(Slow(), 4), (torch.ones(4, 3), torch.ones(4, 1))
    >>> LoaderSpeed().run(Subject.of(torch.nn.Linear(3, 1), torch.nn.MSELoss(), batch, loader=loader)).passed
    False
    """

    code = "CK27"
    name = "loader-speed"
    suggests = ()
    references = ("https://pytorch.org/docs/stable/data.html#multi-process-data-loading",)

    batches: int = 6
    """Batches that are timed after the first."""
    ratio: float = 1.0
    """Loading time of a batch, as a multiple of the step time, above which it fails."""
    least: float = 0.01
    """Seconds per batch up to which nothing is reported."""
    seconds: float = 6.0
    """Time limit in seconds."""

    def applies(self, subject: Subject) -> str | None:
        """A loader that can be read more than once, and a single model."""
        if subject.loader is None:
            return "no data loader was given"
        if is_one_shot(subject.loader):
            return "the loader can be read only once, and training needs it"
        if len(subject.models) > 1:
            return "with several models, only the training loop knows what a step is"
        return None

    def run(self, subject: Subject) -> Outcome:
        """Time loading and training."""
        end = time.monotonic() + min(self.seconds, subject.seconds_left / 3)
        fetch, samples = self._fetch(subject.loader, end)
        step = self._step(subject) * max(1.0, samples / max(1, subject.samples))
        share = fetch / (fetch + step)
        message = f"a batch takes {number_text(1000 * fetch)} ms to load and {number_text(1000 * step)} ms to train on"
        if fetch > max(self.least, DataStarvation().least) and fetch > self.ratio * step:
            advice = "Use DataLoader(num_workers=4, pin_memory=True, persistent_workers=True); decode and resize once."
            return self.failed(message, advice, value=share, limit=0.5, severity="warning")
        return self.passed(message, value=share, limit=0.5)

    def _fetch(self, loader: Any, end: float) -> tuple[float, int]:
        times, samples = [], 1
        batches = iter(loader)
        for number in range(self.batches + 1):
            begun = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                break
            if number:
                times.append(time.perf_counter() - begun)
            samples = max(samples, _samples(batch))
            if times and time.monotonic() > end:
                break
        if not times:
            raise CannotTell("the loader has only one batch")
        return statistics.median(times), samples

    def _step(self, subject: Subject) -> float:
        practice = Practice(subject)
        times = []
        for number in range(4):
            begun = time.perf_counter()
            if not practice.go_on(1):
                raise CannotTell("no training step is possible: see initial-loss and gradient-flow")
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
            if number:
                times.append(time.perf_counter() - begun)
        return min(times)  # other load on the machine makes a step longer, never shorter


def _samples(batch: Any) -> int:
    found = leading(split(batch)[0])
    return int(found.shape[0]) if found is not None else 1
