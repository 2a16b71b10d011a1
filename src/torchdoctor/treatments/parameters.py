"""The parameters of an action for one problem, or None if the action makes no sense for it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import lr_rise
from torchdoctor.diagnoses.configuration import configured
from torchdoctor.diagnoses.findings import dropout, optimizer_names, weight_decay, working_update
from torchdoctor.diagnoses.lr_too_low import ADAPTS, STILL
from torchdoctor.diagnoses.slow_data_loading import share_waited
from torchdoctor.series import median
from torchdoctor.symptoms.clipping_anomaly import clip_in_vain
from torchdoctor.symptoms.frozen_weights import FRESH as NEW
from torchdoctor.symptoms.optimizer_advice import COUPLED
from torchdoctor.symptoms.step_time_regression import STEADILY
from torchdoctor.symptoms.suspicious_loss import DROPPED, mistakes
from torchdoctor.symptoms.target_values import averaged_nothing, is_summed
from torchdoctor.treatments.case import ACUTE, FAST, Case, direction
from torchdoctor.treatments.configured import highest_rate, usual_rate

NEAR = 0.02
"""Relative difference of two validation losses that counts as noise."""
FRESH = {"step": 10, "epoch": 1, "row": 0}
"""By the unit of a run: the first step, epoch or row after which there is something worth going back to."""
CALM = 16
"""Buckets of the run before the problem that the usual gradient norm is taken from."""
OUTGROWN = 100.0
"""Multiple of the first norm above which the usual norm is itself part of the problem."""
LOWEST_RATE = 1e-5
"""The lowest learning rate at which models are usually trained further,"""
NEW_ADAM, NEW_SGD = 3e-4, 1e-2
"""and low ones for models that were never trained."""
WAITS = 0.2
"""Share of a step spent waiting for data below which faster loading does not help."""
LOWERED = 4
"""Times that a schedule which falls little by little has lowered the learning rate in the second half of the run."""
USUAL_MOVES, FURTHEST = 1e-3, 10.0
"""The usual relative change of weights per step, and the largest factor by which the learning rate is raised at once:
a rate that is still too low can be raised again, one that is too high ruins the weights."""
Values = dict[str, float]


def parameters(case: Case, slug: str) -> Values | None:
    """The parameters of an action in this case; None if it does not fit."""
    rule = RULES.get(slug)
    return {} if rule is None else rule(case)


def _scale_lr(case: Case) -> Values | None:
    """Lower: further with every repetition, and a jump or an absurd value at once. Raise: if nothing moves."""
    way = direction(case)
    if _reaches_slowly(case) or ADAPTS in optimizer_names(case.chart):
        return None
    if way == "down":
        rise = lr_rise(case.chart, case.problem.first_step)
        factor = float(f"{1 / rise:.1g}") if rise > 3 else (0.5, 0.25, 0.1)[min(case.repeats, 3) - 1]
        return {"factor": max(min(factor, float(f"{_far_too_high(case.chart):.1g}")), 1e-4)}
    if way != "up":
        return None
    moves = working_update(case.chart) if case.cause == "lr-too-low" else math.nan
    return {"factor": _up(highest_rate(case.chart), moves, _lowest_rate(case.chart))}


def _reaches_slowly(case: Case) -> bool:
    """Whether outputs approach large targets by steps that are too short: activations grow because they have to."""
    slow = case.cause == "unnormalized-targets" and case.problem.has("slow-learning")
    return slow and not case.problem.has(*ACUTE, "skipped-steps", "loss-oscillation")


def _lowest_rate(chart: Chart) -> float:
    """The learning rate to begin with if that of the run is practically zero."""
    if not chart["weights_fresh"].first > NEW:
        return LOWEST_RATE
    return NEW_ADAM if "Adam" in optimizer_names(chart) else NEW_SGD


def _up(rate: float, moves: float = math.nan, lowest: float = LOWEST_RATE) -> float:
    """Twice the learning rate; more if weights hardly move; to the lowest usual one if it is practically zero.

    >>> _up(3e-4), _up(1e-6, moves=8e-6), _up(1e-14)
    (2.0, 10.0, 1000000000.0)
    """
    if 0 < rate < STILL:
        return float(f"{lowest / rate:.1g}")
    return float(f"{min(max(USUAL_MOVES / moves, 2.0), FURTHEST):.1g}") if moves > 0 else 2.0


def _far_too_high(chart: Chart) -> float:
    """The factor to a usual learning rate if that of the run is far too high: half of 5.0 would not help; else 1.

    If the loss is a sum, the factor includes one over the batch size, except for Adam, which is not affected.
    """
    rate, size = highest_rate(chart), chart.context.get("batch_size")
    usual = usual_rate(chart, rate)
    added = is_summed(chart) and "Adam" not in optimizer_names(chart)
    part = 1 / size if added and isinstance(size, int) and size > 0 else 1.0
    return part * (usual / rate if usual < rate else 1.0)


def _set_clip_norm(case: Case) -> Values | None:
    """1.0, or about twice the usual norm if that is far from 1; tighter if the problem comes back.

    The present limit if the loop clips at the wrong place: after the step, or before gradients are unscaled. None if
    it already clips as tightly, or if hardly any gradient is left to clip.
    """
    norms = case.chart["grad_norm"]
    clip = case.chart["clip"].latest if case.chart["clip"] else configured(case.chart, "clip")
    in_vain = clip_in_vain(case.chart)
    misplaced = in_vain or any("unscale_" in text for text in case.calls)
    if isinstance(limit := case.chart.fact(in_vain), float):
        clip = limit  # it was never applied
    if misplaced and clip > 0:
        return {"max_norm": float(f"{clip:.3g}")}  # the limit may be right: clipping comes too late or too early
    if _reaches_slowly(case) or (case.cause == "unnormalized-targets" and not case.problem.has(*FAST)):
        return None
    base = norms.baseline(128, log=True)
    usual = math.exp(min(base.recent, 300.0)) if base else 1.0
    calm = norms.outline.means()[: norms.outline.before(case.problem.first_step)][-CALM:]
    if calm.size >= CALM:  # norms that grew with the problem are no reference
        usual = min(usual, median(calm))
    if usual > OUTGROWN * norms.first > 0:
        usual = norms.first
    if usual < 1e-5 * norms.first:
        return None
    limit = 1.0 if 0.02 < usual < 5 else float(f"{2 * usual:.1g}")
    limit /= (1, 2, 4)[min(case.repeats, 3) - 1]
    if case.cause == "clip-too-tight":
        limit = 2 * usual
    elif clip <= limit:
        limit = clip / 2 if case.repeats > 1 else 0.0
    return {"max_norm": float(f"{limit:.2g}")} if 1e-12 < limit < 1e12 else None


def _raise_dropout(case: Case) -> Values | None:
    rate = dropout(case.chart)
    if math.isnan(rate):
        return {}  # the present value is unknown: the code raises it by 0.1
    return None if rate >= 0.5 else {"rate": round(min(rate + 0.1, 0.5), 2)}


def _lower_dropout(case: Case) -> Values | None:
    rate = dropout(case.chart)
    return {"rate": round(min(rate / 2, 0.3), 2)} if rate > 0.05 else None


def _set_weight_decay(case: Case) -> Values | None:
    """Up by one level, or down into the usual range if there is too much."""
    decay = weight_decay(case.chart)
    if case.cause in ("over-regularized", "optimizer-misconfigured") or case.problem.has("underfitting"):
        return {"value": 0.01} if decay > 0.02 else None
    return None if decay >= 0.1 else {"value": 0.1 if decay >= 0.01 else 0.01}


def _stop_at_best(case: Case) -> Values | None:
    """The step at which validation was best: that of the finding, unless another one was clearly lower.

    None if validation is at its best now: there is nothing to go back to.
    """
    validation = case.chart["val_loss"]
    if not validation:
        return {}
    if len(validation) > 1 and validation.latest <= validation.lowest:
        return None
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
    """The start of the problem; None if there is nothing to go back to, or only time was lost."""
    clock = str(case.chart.context.get("clock", "step"))
    if case.problem.first_step <= FRESH.get(clock, 0):
        return None
    if set(case.problem.names) <= TIME_ONLY:
        return None
    if case.problem.names == ("nan-or-inf",) and averaged_nothing(case.chart, case.problem.first_step):
        return None  # all gradients were zero: no weight was harmed
    lost = case.problem.grave("loss-divergence", "nan-or-inf", "loss-spike") or case.cause
    return _onset(case) if lost or case.repeats >= 3 else None


def _skip_window(case: Case) -> Values:
    """200 steps, as for large models, but no more than a fifth of the steps of a short run."""
    first = max(case.problem.first_step - 10, 0)
    return {"first": float(first), "last": float(first + min(200, max(20, first // 5)))}


def _restart_warmup(case: Case) -> Values:
    """1,000 steps, or a tenth of the run if that is known to be shorter."""
    chart = case.chart
    total = configured(chart, "total_steps")
    if math.isnan(total) and "source" in chart.context and chart.context.get("clock") == "step":
        total = float(chart.step + 1)  # the end of a log is known
    return {"steps": 1000.0 if not total > 0 else min(max(float(f"{total / 10:.1g}"), 10.0), 1000.0)}


def _change_schedule(case: Case) -> Values | None:
    """None if a schedule without a fault already lowers the learning rate little by little, as a cosine does.

    >>> from torchdoctor.diagnoses import Problem
    >>> case = lambda *rates: Case(Chart.of(lr=rates), Problem(()))
    >>> _change_schedule(case(*(1 / step for step in range(1, 20)))), _change_schedule(case(*[1.0] * 9, *[0.4] * 9))
    (None, {})
    """
    levels = case.chart["lr"].outline.means()
    falls = np.diff(levels[levels.size // 2 :])
    faulty = case.problem.has("schedule-anomaly", "learning-rate-vanished")
    other = faulty or case.cause in ("schedule-error", "stopped-too-early")
    return None if not other and falls.size and falls.max() <= 0 and (falls < 0).sum() >= LOWERED else {}


def _lacks(chart: Chart, key: str) -> bool:
    """Whether the parameter groups were seen, not only told of, and none has such a setting: nothing would read it."""
    known = [group for group in chart.groups if "maximize" in group]  # a setting of all optimizers in torch
    return bool(known) and not any(key in group for group in known)


def _change_betas(case: Case) -> Values | None:
    if _lacks(case.chart, "betas"):
        return None
    calm = case.problem.has(*ACUTE)
    return {"beta1": 0.9, "beta2": 0.95 if calm else 0.999}


def _change_eps(case: Case) -> Values | None:
    if _lacks(case.chart, "eps"):
        return None
    return {"eps": 1e-8 if _of_groups(case.chart, "eps", 1.0) > 1e-8 else 1e-12}


def _use_adamw(case: Case) -> Values | None:
    """None if the optimizers are known, and none of them is a kind of Adam that adds weight decay to the gradient."""
    groups = [group for group in case.chart.groups if group.get("optimizer")]
    added = [group for group in groups if group["optimizer"] in COUPLED and not group.get("decoupled_weight_decay")]
    known = bool(groups) or "adamw" in optimizer_names(case.chart).lower()
    return {} if not known or any(group.get("weight_decay") for group in added) else None


def _set_momentum(case: Case) -> Values | None:
    right = _of_groups(case.chart, "momentum", math.nan) == 0.9
    return None if right or _lacks(case.chart, "momentum") else {"value": 0.9}


def _of_groups(chart: Chart, key: str, default: float) -> float:
    values: list[Any] = [group.get(key) for group in chart.groups]
    return float(max((value for value in values if isinstance(value, int | float)), default=default))


def _change_batch_size(case: Case) -> Values:
    size = case.chart.context.get("batch_size")
    return {"factor": 0.25 if isinstance(size, int) and size > 1024 else 4.0}


def _keep_training(case: Case) -> Values | None:
    return {} if case.problem.has("double-descent") else None


def _for_recurrent(case: Case) -> Values | None:
    """Only if the model has, or may have, a plain recurrent layer: not if it uses a GRU or an LSTM already."""
    kinds = case.chart.fact("modules.kinds") or ()
    plain = any(kind in ("RNN", "RNNCell") for kind in kinds) if kinds else True
    return {} if plain and any("weight_hh" in name for name in case.chart.names) else None


def _rebalance(case: Case) -> Values | None:
    """None for regression, or if there is a single class: no weight brings back missing classes."""
    numbers = case.chart.fact("loss.kind") in ("mse", "l1", "huber")
    return None if numbers or case.chart["pooled_classes"].latest == 1 else {}


def _check_labels(case: Case) -> Values | None:
    """None for class imbalance with several classes: only a single class suggests wrong labels."""
    return None if case.cause == "class-imbalance" and case.chart["pooled_classes"].latest > 1 else {}


def _fix_loss(case: Case) -> Values | None:
    """None if all that is suspicious is dropout before the loss: that is a fault of the model, not of the loss."""
    return None if case.problem.names == ("suspicious-loss",) and mistakes(case.chart) == [DROPPED] else {}


def _fix_zero_grad(case: Case) -> Values | None:
    """None for intended accumulation, unless the evidence says that gradients are cleared wrongly."""
    return None if case.cause == "accumulation-error" and not case.says("cleared") else {}


def _unless_clipped_in_vain(values: Values) -> Callable[[Case], Values | None]:
    """A rule that gives None if clipping comes at the wrong place: it must be moved, not replaced."""
    return lambda case: None if clip_in_vain(case.chart) else values


def _reinitialize(case: Case) -> Values | None:
    return {} if case.problem.has("dead-units") else None


def _free_memory(case: Case) -> Values | None:
    """None if memory was measured and neither memory nor the step time grows from step to step."""
    slower = case.problem.get("step-time-regression")
    grows = case.problem.has("memory-growth") or (slower is not None and STEADILY in slower.message)
    measured = case.chart["memory"] or case.chart["host_memory"]
    return {} if grows or case.cause or not measured else None


def _speed_up_data(case: Case) -> Values | None:
    """None for slower steps if hardly any of their time is spent waiting for data."""
    return None if share_waited(case.chart) < WAITS and case.problem.names == ("step-time-regression",) else {}


def _check_hardware(case: Case) -> Values | None:
    """None if the model is on the CPU: its check is one of GPUs."""
    return None if case.chart.context.get("devices") == ["cpu"] else {}


def _unless_out_of_range(case: Case) -> Values | None:
    """None if the last activation cannot give all targets: neither norms nor initial weights change its range."""
    return None if case.says("the model ends with") else {}


def _ask_for_help(case: Case) -> Values | None:
    return {} if case.repeats >= 4 else None


RULES: Mapping[str, Callable[[Case], Values | None]] = {
    "scale-lr": _scale_lr,
    "set-clip-norm": _set_clip_norm,
    "set-clip-value": _unless_clipped_in_vain({"limit": 0.5}),
    "adaptive-clip": _unless_clipped_in_vain({"factor": 2.0}),
    "skip-window": _skip_window,
    "skip-step": lambda case: None if case.says("rounded away") else {},
    "raise-dropout": _raise_dropout,
    "lower-dropout": _lower_dropout,
    "lower-penalty": lambda case: {} if case.says("penalty") else None,
    "rebalance-classes": _rebalance,
    "check-labels": _check_labels,
    "fix-loss": _fix_loss,
    "fix-zero-grad": _fix_zero_grad,
    "zero-gradients": lambda case: None if case.says("nothing is left to apply") else {},
    "set-weight-decay": _set_weight_decay,
    "stop-at-best": _stop_at_best,
    "keep-training": _keep_training,
    "balance-players": lambda case: {"factor": 0.25},
    "raise-entropy": lambda case: {"weight": 0.01},
    "restart-warmup": _restart_warmup,
    "change-schedule": _change_schedule,
    "change-betas": _change_betas,
    "change-eps": _change_eps,
    "set-momentum": _set_momentum,
    "use-adamw": _use_adamw,
    "change-batch-size": _change_batch_size,
    "clean-data": _onset,
    "resize-model": lambda case: {"factor": 0.5 if case.problem.has("overfitting") else 2.0},
    "roll-back": _roll_back,
    "train-longer": lambda case: {"factor": 2.0},
    "ask-for-help": _ask_for_help,
    "free-memory": _free_memory,
    "speed-up-data": _speed_up_data,
    "check-hardware": _check_hardware,
    "add-normalization": _unless_out_of_range,
    "initialize": _unless_out_of_range,
    "use-gru-or-layernorm-rnn": _for_recurrent,
    "reinitialize-dead-units": _reinitialize,
}
"""By action; an action without a rule has no parameters and always fits."""
