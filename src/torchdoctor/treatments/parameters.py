"""What to put into an action for one problem: its parameters, or nothing where it makes no sense."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchdoctor.chart import Chart
from torchdoctor.diagnoses import Problem
from torchdoctor.diagnoses.configuration import configured
from torchdoctor.diagnoses.findings import dropout, is_brief, is_over, lr_rise, weight_decay
from torchdoctor.diagnoses.lr_too_low import STILL
from torchdoctor.records import Severity, Symptom, worst
from torchdoctor.series import median
from torchdoctor.treatments.configured import highest_rate, usual_rate

WINDOW = 1000
"""Steps within which the same finding coming back counts as repeated."""
ACUTE = ("gradient-explosion", "gradient-instability", "loss-spike", "loss-divergence", "nan-or-inf")
FAST = (*ACUTE, "loss-oscillation", "weight-growth", "activation-explosion", "skipped-steps", "dead-units")
"""Findings that ask for a lower learning rate."""
SLOW = ("gradient-vanishing", "loss-plateau", "slow-learning", "learning-rate-vanished")
"""Findings that, if any, ask for a higher one."""
LEAPS = ("gradient-explosion", "gradient-vanishing", "loss-spike")
"""Findings that are over in a step or a few, and may come back while their episode is still open."""
DIRECTIONS = {"lr-too-high": "down", "warmup-missing": "down", "lr-too-low": "up"}
"""Causes that know which way the rate must go, whatever was found."""
NEAR = 0.02
"""Share of the best validation loss within which another is as good: noise decides between them."""
FRESH = {"step": 10, "epoch": 1, "row": 0}
"""By what a log counts, until when a run has hardly more to go back to than its beginning."""
CALM = 16
"""Pieces of the run before the trouble that tell what a norm was."""
LOWEST_RATE = 1e-5
"""The lowest learning rate at which models are usually trained."""
Values = dict[str, float]


@dataclass(frozen=True)
class Case:
    """One problem, the cause that is being treated ("" for none), and what the engine asks about them."""

    chart: Chart
    problem: Problem
    cause: str = ""

    @property
    def severity(self) -> Severity:
        """The worst of its symptoms."""
        return worst([symptom.severity for symptom in self.problem.symptoms]) or "info"

    @property
    def repeats(self) -> int:
        """How often the finding that came back most was seen in the window: 1 is the first time."""
        return self._most_seen[1]

    @property
    def repeated(self) -> str:
        """The finding that came back most."""
        return self._most_seen[0]

    @functools.cached_property
    def _most_seen(self) -> tuple[str, int]:
        """Of the problem's findings, those that make a problem of their own nearby included: it is the same trouble."""
        last, seen = self.problem.last_step, dict.fromkeys(self.problem.names, 0)
        others = (item for item in self.chart.episodes if item.severity != "info")
        for item in {id(item): item for item in (*self.problem.symptoms, *others)}.values():
            if item.name in seen and abs(last - item.last_step) <= WINDOW:
                seen[item.name] += sightings(self.chart, item)
        return max(seen.items(), key=lambda item: item[1])

    @property
    def healed(self) -> bool:
        """Whether it was brief, is over, and the loss took no harm."""
        hurt = self.problem.grave("loss-spike", "loss-divergence", "nan-or-inf")
        return is_over(self.chart, self.problem) and is_brief(self.problem) and not hurt


def sightings(chart: Chart, episode: Symptom) -> int:
    """How often a leap came within one episode: in a row it is one, after as many calm steps as that it is another.

    >>> chart = Chart.of(grad_norm=[1.0] * 400)
    >>> in_a_row = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 303, count=4)
    >>> apart = Symptom("gradient-explosion", "GR01", "warning", 0.9, 300, 330, count=4)
    >>> sightings(chart, in_a_row), sightings(chart, apart)
    (1, 4)
    """
    if episode.name not in LEAPS or episode.count < 2:
        return 1
    steps = chart["loss" if episode.name == "loss-spike" else "grad_norm"].steps
    every = float(steps[-1] - steps[0]) / (steps.size - 1) if steps.size > 1 else 1.0  # a log may have every tenth step
    looks = 1 + round((episode.last_step - episode.first_step) / max(every, 1.0))
    return min(episode.count, 1 + max(looks - episode.count, 0) // episode.count)


def direction(case: Case) -> str:
    """Which way the learning rate must go: "down", "up", or "" where nothing says so.

    Something that grows outweighs what does not move, unless it is no more than a note.
    """
    if case.cause in DIRECTIONS:
        return DIRECTIONS[case.cause]
    problem = case.problem
    if problem.has(*FAST) and (problem.grave(*FAST) or not problem.grave(*SLOW)):
        return "down"
    return "up" if problem.has(*SLOW) else ""


def parameters(case: Case, slug: str) -> Values | None:
    """The parameters of an action in this case; None where it is out of place."""
    rule = RULES.get(slug)
    return {} if rule is None else rule(case)


def _scale_lr(case: Case) -> Values | None:
    """Down, further each time that the trouble comes back, a leap or an absurd height whole; up where nothing moves."""
    way = direction(case)
    if way == "down":
        rise = lr_rise(case.chart, case.problem.first_step)
        factor = float(f"{1 / rise:.1g}") if rise > 3 else (0.5, 0.25, 0.1)[min(case.repeats, 3) - 1]
        return {"factor": max(min(factor, float(f"{_far_too_high(case.chart):.1g}")), 1e-4)}
    return {"factor": _up(highest_rate(case.chart))} if way == "up" else None


def _up(rate: float) -> float:
    """Twice the rate; of one at which nothing can move, the factor to the lowest at which models are trained.

    >>> _up(3e-4), _up(1e-14)
    (2.0, 1000000000.0)
    """
    return float(f"{LOWEST_RATE / rate:.1g}") if 0 < rate < STILL else 2.0


def _far_too_high(chart: Chart) -> float:
    """The factor to a usual rate where the run's is beyond all usual ones: half of 5.0 would cure nothing; else 1."""
    rate = highest_rate(chart)
    usual = usual_rate(chart, rate)
    return usual / rate if usual < rate else 1.0


def _set_clip_norm(case: Case) -> Values | None:
    """1.0, tighter when the trouble comes back; about twice the usual norm where that is far from 1.

    None where the loop clips as tightly already, and where hardly any gradient is left to clip.
    """
    norms = case.chart["grad_norm"]
    base = norms.baseline(128, log=True)
    usual = math.exp(min(base.recent, 300.0)) if base else 1.0
    calm = norms.outline.means()[: norms.outline.before(case.problem.first_step)][-CALM:]
    if calm.size >= CALM:  # norms that have grown with the trouble are no scale for what it should be held at
        usual = min(usual, median(calm))
    if usual < 1e-5 * norms.first:
        return None
    limit = 1.0 if 0.02 < usual < 5 else float(f"{2 * usual:.1g}")
    limit /= (1, 2, 4)[min(case.repeats, 3) - 1]
    clip = case.chart["clip"].latest if case.chart["clip"] else configured(case.chart, "clip")
    if case.cause == "clip-too-tight":
        limit = 2 * usual
    elif clip <= limit:
        limit = clip / 2 if case.repeats > 1 else 0.0
    return {"max_norm": float(f"{limit:.2g}")} if 1e-12 < limit < 1e12 else None


def _raise_dropout(case: Case) -> Values | None:
    rate = dropout(case.chart)
    if math.isnan(rate):
        return {}  # the code says by how much, and not from where
    return None if rate >= 0.5 else {"rate": round(min(rate + 0.1, 0.5), 2)}


def _lower_dropout(case: Case) -> Values | None:
    rate = dropout(case.chart)
    return {"rate": round(min(rate / 2, 0.3), 2)} if rate > 0.05 else None


def _set_weight_decay(case: Case) -> Values | None:
    """Up one notch, or down into the range where there is too much of it."""
    decay = weight_decay(case.chart)
    if case.cause in ("over-regularized", "optimizer-misconfigured") or case.problem.has("underfitting"):
        return {"value": 0.01} if decay > 0.02 else None
    return None if decay >= 0.1 else {"value": 0.1 if decay >= 0.01 else 0.01}


def _stop_at_best(case: Case) -> Values:
    """The step from which on the finding says that validation got worse, unless it was lower yet elsewhere."""
    validation = case.chart["val_loss"]
    if not validation:
        return {}
    steps, lows, *_ = zip(*validation.outline.buckets(), strict=True)
    lowest = min(range(len(lows)), key=lows.__getitem__)
    found = case.problem.get("overfitting")
    if found is not None and found.first_step >= steps[0]:
        named = bisect.bisect_right(steps, found.first_step) - 1
        if lows[named] <= lows[lowest] + NEAR * abs(lows[lowest]):
            return {"step": float(max(found.first_step, 0))}
    return {"step": float(max(steps[lowest], 0))}


def _onset(case: Case) -> Values:
    return {"step": float(max(case.problem.first_step, 0))}


TIME_ONLY = {"straggler-rank", "step-time-regression", "data-starvation", "memory-growth"}
"""Findings that cost time and leave the weights as they are."""


def _roll_back(case: Case) -> Values | None:
    """To before the trouble; None where there is nothing to go back to, or nothing was lost but time."""
    clock = str(case.chart.context.get("clock", "step"))
    if "source" in case.chart.context and case.problem.first_step <= FRESH.get(clock, 0):
        return None
    if set(case.problem.names) <= TIME_ONLY:
        return None
    lost = case.problem.grave("loss-divergence", "nan-or-inf", "loss-spike") or case.cause
    return _onset(case) if lost or case.repeats >= 3 else None


def _skip_window(case: Case) -> Values:
    first = max(case.problem.first_step - 10, 0)
    return {"first": float(first), "last": float(first + 200)}


def _restart_warmup(case: Case) -> Values:
    """A thousand steps; a tenth of the run where that is known to be shorter."""
    chart = case.chart
    total = configured(chart, "total_steps")
    if math.isnan(total) and "source" in chart.context and chart.context.get("clock") == "step":
        total = float(chart.step + 1)  # of a log the end is known
    return {"steps": 1000.0 if not total > 0 else min(max(float(f"{total / 10:.1g}"), 10.0), 1000.0)}


def _change_betas(case: Case) -> Values:
    calm = case.problem.has(*ACUTE)
    return {"beta1": 0.9, "beta2": 0.95 if calm else 0.999}


def _change_eps(case: Case) -> Values:
    return {"eps": 1e-8 if _of_groups(case.chart, "eps", 1.0) > 1e-8 else 1e-12}


def _set_momentum(case: Case) -> Values | None:
    return None if _of_groups(case.chart, "momentum", math.nan) == 0.9 else {"value": 0.9}


def _of_groups(chart: Chart, key: str, default: float) -> float:
    values: list[Any] = [group.get(key) for group in chart.groups]
    return float(max((value for value in values if isinstance(value, int | float)), default=default))


def _change_batch_size(case: Case) -> Values:
    size = case.chart.context.get("batch_size")
    return {"factor": 0.25 if isinstance(size, int) and size > 1024 else 4.0}


def _keep_training(case: Case) -> Values | None:
    return {} if case.problem.has("double-descent") else None


def _for_recurrent(case: Case) -> Values | None:
    return {} if any("weight_hh" in name for name in case.chart.names) else None


def _reinitialize(case: Case) -> Values | None:
    return {} if case.problem.has("dead-units") else None


def _ask_for_help(case: Case) -> Values | None:
    return {} if case.repeats >= 4 else None


RULES: Mapping[str, Callable[[Case], Values | None]] = {
    "scale-lr": _scale_lr,
    "set-clip-norm": _set_clip_norm,
    "set-clip-value": lambda case: {"limit": 0.5},
    "adaptive-clip": lambda case: {"factor": 2.0},
    "skip-window": _skip_window,
    "raise-dropout": _raise_dropout,
    "lower-dropout": _lower_dropout,
    "set-weight-decay": _set_weight_decay,
    "stop-at-best": _stop_at_best,
    "keep-training": _keep_training,
    "balance-players": lambda case: {"factor": 0.25},
    "raise-entropy": lambda case: {"weight": 0.01},
    "restart-warmup": _restart_warmup,
    "change-betas": _change_betas,
    "change-eps": _change_eps,
    "set-momentum": _set_momentum,
    "change-batch-size": _change_batch_size,
    "clean-data": _onset,
    "resize-model": lambda case: {"factor": 0.5 if case.problem.has("overfitting") else 2.0},
    "roll-back": _roll_back,
    "train-longer": lambda case: {"factor": 2.0},
    "ask-for-help": _ask_for_help,
    "use-gru-or-layernorm-rnn": _for_recurrent,
    "reinitialize-dead-units": _reinitialize,
}
"""By action; one that is not named has no parameters and always fits."""
