"""label-noise-or-misalignment."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import (
    breaking_step,
    dropout,
    is_absent,
    last_level,
    level_about,
    thrown_at_first,
    working_update,
)
from torchdoctor.diagnoses.insufficient_capacity import TINY
from torchdoctor.diagnoses.lasting_leaps import is_other_since
from torchdoctor.records import number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.progress import goes_straight
from torchdoctor.symptoms.suspicious_loss import ONLY_LINEAR
from torchdoctor.symptoms.target_anomaly import OTHER_TARGET
from torchdoctor.symptoms.targets_given import is_of_the_past
from torchdoctor.symptoms.validation_anomaly import ASKED_WRONG

BROKEN = ("no-gradient", "frozen-weights", "gradient-vanishing", "dead-units")
"""What would keep a sound data set from being learnt."""
AT_FIRST = ("saturated-activations", "unexpected-initial-loss", "activation-explosion")
"""What is wrong with a model before it has seen a label."""
ELEMENTWISE = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss")
UNLEARNT = ("not-learning", "slow-learning", "overfitting")
"""What wrong labels do where they were wrong from the start."""
SILENT = 0.5
"""Share of what outputs said of inputs that is left where weights are lost, and not labels."""
LASTING, AT_GUESS = 32, (0.6, 1.5)
"""Losses after a leap, and the shares of what guessing gives between which they lie where labels say nothing more."""
EARLY = 100
"""Steps within which it must have begun."""
SHORT = 0.05
"""Share of themselves by which weights must have moved before labels can be blamed: steps times updates."""


class LabelNoiseOrMisalignment(Cause):
    """Labels are wrong, or do not belong to the inputs that they come with.

    ## What it is
    Inputs were shuffled or filtered and labels were not, two files are off by one row, an index was reset, or a part
    of the labels is wrong. The model can then learn how often each label occurs, and nothing else.

    ## How to confirm it
    Print twenty pairs of input and label *as the loop sees them* and judge them yourself. The training loss stays at
    the entropy of the labels while weights move; or it falls only by learning each sample by heart, and validation
    is never better than guessing.

    ## What to change
    Shuffle inputs and labels together (one index for both), sort files on both sides, check the label map. For noise:
    clean the labels that the model contradicts most surely, or use label smoothing.

    ## How to see it cured
    The loss falls below the labels' entropy within the first epoch, and validation falls with it.

    ## When to stop
    When twenty pairs in a row are right and 1,000 samples can be learnt by heart: then look at loss and features.
    """

    name = "label-noise-or-misalignment"
    explains = (
        "not-learning",
        "loss-plateau",
        "underfitting",
        "slow-learning",
        "overfitting",
        "collapsed-output",
        "validation-anomaly",
        "target-anomaly",
        "loss-spike",
        "loss-divergence",
    )
    prior = -1.2
    suggests = ("check-labels", "cross-validate")
    references = ("https://arxiv.org/abs/1611.03530", "https://arxiv.org/abs/2103.14749")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether labels are a place off, where both losses are against guessing, and whether the model could learn."""
        if apart := _shift(chart) or _pairing(problem):
            yield Evidence(CERTAIN, apart)
            return
        yield from _about_the_targets(chart, problem)
        chance = guessing(chart)
        if problem.has("loss-spike", "loss-divergence") and not problem.has(*UNLEARNT):
            yield from _about_a_leap(chart, problem, chance)
            return
        if math.isnan(chance):
            yield Evidence(-0.8, "it is not known what loss guessing would give")
        else:
            yield from _about_the_losses(chart, chance)
        yield from _about_the_start(problem)
        ratio = working_update(chart)
        if goes_straight(chart):
            yield Evidence(-2.5, "weights keep one direction over dozens of steps: wrong labels give none")
        if ratio * chart.step < SHORT:
            yield Evidence(-0.8, f"weights have moved by at most {number_text(ratio * chart.step)} of themselves")
        elif 1e-4 < ratio < 1e-1:
            yield Evidence(0.7, f"weights move, by {number_text(ratio)} of themselves a step")
        elif ratio < 1e-5:
            against = -2.0 if ratio < 1e-6 else -1.2
            yield Evidence(against, f"weights hardly move, by {number_text(ratio)} of themselves a step")
        yield from _about_the_model(chart)
        if _was_broken(chart, problem):
            yield Evidence(-1.5, "the model itself is not able to learn")
        elif all(is_absent(chart, name, 0, 100) for name in ("gradient-vanishing", "gradient-explosion")):
            yield Evidence(0.4, "gradients are neither too small nor too large")


def _about_a_leap(chart: Chart, problem: Problem, chance: float) -> Iterator[Evidence]:
    """Labels that were right, and are not from some step on."""
    step = breaking_step(problem)
    if not is_other_since(chart, step):
        yield Evidence(-4.0, "the loss did not rise in one step that nothing came before, and stay there")
        return
    spread = chart["output_spread"]
    before, after = spread.values[spread.steps < step], spread.values[spread.steps >= step]
    if before.size and after.size and float(after[0]) < SILENT * median(before[-3:]):
        yield Evidence(-4.0, "outputs say less of inputs since then: it is the model that has changed")
        return
    now = level_about(chart["loss"], step, step + LASTING)
    words = f"since step {step} the loss is at {number_text(now)}, and no unusual step came before"
    if math.isnan(chance):
        yield Evidence(0.5, words)
    elif AT_GUESS[0] * chance < now < AT_GUESS[1] * chance:
        yield Evidence(3.5, f"{words}; a guess gives {number_text(chance)}")
    else:
        yield Evidence(-2.0, f"{words}; a guess would give {number_text(chance)}")


def _about_the_model(chart: Chart) -> Iterator[Evidence]:
    size = (chart.context.get("model") or {}).get("trainable")
    if isinstance(size, int) and size < TINY:
        yield Evidence(-1.0, f"a model of {size} parameters learns little of any labels")
    if ONLY_LINEAR in (chart.fact("loss.lint") or ()):
        yield Evidence(-3.0, "no activation stands between the layers: what is not linear cannot be learnt")
    if "RNN" in (chart.fact("modules.kinds") or ()):
        yield Evidence(-1.0, "a plain RNN learns little over many places of a sequence, whatever the labels")


def _shift(chart: Chart) -> str:
    """Which token each label is, where it is a wrong one, and why; empty where that is not known."""
    if last_level(chart["target_after_next"], 3) > 0.99 and last_level(chart["target_is_next"], 3) < 0.5:
        return "each label is the token after the next: shifted in the data and in the model"
    return "each label is the token before: shifted the wrong way" if is_of_the_past(chart) else ""


def _pairing(problem: Problem) -> str:
    """What was found when it was found: once all targets are wrong, they look like noise that is to be told."""
    for found in problem.symptoms:
        if found.name == "target-anomaly" and found.message.endswith(OTHER_TARGET):
            return f"{found.message} than before"
    return ""


def _about_the_targets(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.names == ("target-anomaly",):
        yield Evidence(-5.0, "labels are not a place off")
    found = problem.get("validation-anomaly")
    if found is not None and found.message.endswith(ASKED_WRONG):
        known = bool(chart.fact("loss.kind"))  # of a loss of one's own, a mean of more samples may be less
        words = "training does worse than validation, and nothing but its targets makes it harder"
        yield Evidence(6.0 if known else 1.0, words)


def _about_the_start(problem: Problem) -> Iterator[Evidence]:
    for item in problem.symptoms:
        if item.name in AT_FIRST and item.severity != "info" and item.first_step <= 2:
            yield Evidence(-2.5, f"{item.name} was there before any label was learnt")
            return


def _was_broken(chart: Chart, problem: Problem) -> bool:
    """Whether something kept the model from learning from early on: units that die of wrong labels die late."""
    if (collapsed := problem.get("collapsed-output")) is not None and collapsed.first_step <= 2:
        return True  # before any label was learnt
    if collapsed is not None and 0 < chart["output_spread"].first < 5e-3:
        return True
    if thrown_at_first(chart, problem) > 0:
        return True
    found = [item for item in (*problem.symptoms, *chart.open_episodes.values()) if item.name in BROKEN]
    return any(item.first_step < EARLY or item.first_step <= problem.first_step for item in found)


def fell_at_once(chart: Chart, chance: float) -> bool:
    """Whether training was well below guessing within a fifth of the run: wrong labels take time to store."""
    return level_about(chart["loss"], chart.step // 10, max(chart.step // 5, 40)) < 0.85 * chance


def guessing(chart: Chart) -> float:
    """The loss of always saying how common each label is: the labels' entropy, else chance; NaN where unknown."""
    entropy = chart["target_entropy"]
    if entropy and str(chart.fact("loss.kind") or "cross-entropy") in ("cross-entropy", "nll"):
        return float(max(bucket[2] for bucket in entropy.outline.buckets()))
    guesses = chart["guess_loss"].last(8)
    if guesses.size >= 4 and chart["criterion"] and chart.fact("loss.reduction") == "mean":
        return float(guesses.mean())
    chance = chart.fact("loss.chance")
    return float(chance) if isinstance(chance, int | float) else math.nan


def _about_the_losses(chart: Chart, chance: float) -> Iterator[Evidence]:
    own = chart["criterion"] if chart.fact("loss.function") in ELEMENTWISE else chart["loss"]  # of several terms
    now, best = last_level(own, 8 if own is not chart["loss"] else 20), chart["val_loss"].lowest
    guess, level = f"a guess gives {number_text(chance)}", f"the {number_text(chance)} of a guess"
    lowest = _lowest_level(own)
    if lowest < 0.85 * chance and now > 0.95 * chance:
        yield Evidence(-5.0, f"the training loss had come down to {number_text(lowest)} before: labels were learnt")
    if abs(now - chance) < 0.03 * chance:
        yield Evidence(1.3, f"the training loss stays at {number_text(now)}; {guess}")
    elif 0.9 * chance < now < chance:
        yield Evidence(0.9, f"the training loss is still {number_text(now)}; {guess}")
    elif now > 1.1 * chance:
        yield Evidence(-1.0, f"the training loss is {number_text(now)}, worse than {level}")
    elif now < 0.9 * chance and math.isfinite(best) and best > 0.97 * chance:
        strength, low = 3.0 if now < 0.7 * chance else 2.0, number_text(now)
        yield Evidence(strength, f"training fell to {low}, yet validation was never under {number_text(best)}; {guess}")
        if fell_at_once(chart, chance):
            yield Evidence(-2.0, "the training loss fell within the first fifth: these labels can be learnt")
    elif now < 0.7 * chance:
        if math.isfinite(best):
            yield Evidence(-2.5, f"validation reached {number_text(best)}, better than {level}")
        else:
            yield Evidence(-1.0, f"the training loss fell to {number_text(now)}, well below {level}")
    if math.isfinite(best) and best < 0.9 * chance <= now and dropout(chart) > 0:
        # without dropout, the labels of the training set alone may be wrong
        yield Evidence(-1.5, f"validation reached {number_text(best)}, better than {level}")


def _lowest_level(series: Series, width: int = 16) -> float:
    """The lowest mean of neighbouring stretches of a run; NaN where it is short."""
    means = series.outline.means()
    parts = means[: means.size - means.size % width].reshape(-1, width)
    return float(parts.mean(1).min()) if parts.size else math.nan
