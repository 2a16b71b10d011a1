"""label-noise-or-misalignment."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.at_the_break import breaking_step, level_about
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import dropout, is_absent, last_level, thrown_at_first, working_update
from torchdoctor.diagnoses.insufficient_capacity import TINY
from torchdoctor.diagnoses.lasting_leaps import NORMS, is_not_one_batch, is_other_since, norms_before
from torchdoctor.records import number_text
from torchdoctor.series import Series, median
from torchdoctor.symptoms.hindsight.constant import NO_TARGET, UNMATCHED
from torchdoctor.symptoms.progress import goes_straight
from torchdoctor.symptoms.suspicious_loss import ONLY_LINEAR
from torchdoctor.symptoms.target_anomaly import OTHER_TARGET
from torchdoctor.symptoms.targets_given import is_of_the_past
from torchdoctor.symptoms.validation_anomaly import ASKED_WRONG

BROKEN = ("no-gradient", "frozen-weights", "gradient-vanishing", "dead-units")
"""Findings that would keep even a sound data set from being learned."""
AT_FIRST = ("saturated-activations", "unexpected-initial-loss", "activation-explosion")
"""Findings about a model before it has seen any label."""
ELEMENTWISE = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss")
UNLEARNT = ("not-learning", "slow-learning", "overfitting")
"""Findings that labels cause if they were wrong from the start."""
SILENT = 0.5
"""If outputs vary with inputs by less than this share of before, the model has changed, not the labels."""
LASTING, AT_GUESS = 32, (0.6, 1.5)
"""Steps after a jump over which the loss is taken, and multiples of chance level between which labels are blamed."""
EARLY = 100
"""Steps before which a finding must begin to have kept the model from learning."""
SHORT = 0.05
"""Update ratio times steps below which the weights have moved too little to blame the labels."""


class LabelNoiseOrMisalignment(Cause):
    """Labels are wrong, or do not belong to their inputs.

    ## What it is
    Inputs were shuffled or filtered but labels were not, two files are off by one row, an index was reset, labels were
    not found where the loader looks for them, or some labels are wrong. The model can then learn only how often each
    label occurs.

    ## How to confirm it
    Print twenty pairs of input and label *as the loop sees them*, and check them by eye. The training loss stays at
    the entropy of the labels although the weights move. Or it falls only because the model memorizes each sample, and
    the validation loss never falls below chance level.

    ## What to change
    Shuffle inputs and labels together (one index for both), sort the files of both, and check the label map. Against
    noise, correct the labels that the model contradicts with the highest confidence, or use label smoothing.

    ## How to see it cured
    The loss falls below the entropy of the labels within the first epoch, and the validation loss falls with it.

    ## When to stop
    If twenty pairs in a row are right and the model can memorize 1,000 samples, look at the loss and the features.
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
        """Whether labels are shifted, how both losses compare with chance level, and whether the model could learn."""
        if apart := _shift(chart) or _pairing(problem) or _ends(problem, NO_TARGET):
            yield Evidence(CERTAIN, apart)
            return
        yield from _about_the_targets(chart, problem)
        chance = guessing(chart)
        if problem.has("loss-spike", "loss-divergence") and not problem.has(*UNLEARNT):
            yield from _about_a_leap(chart, problem, chance)
            return
        if math.isnan(chance):
            yield Evidence(-0.8, "the chance level of this loss is unknown")
        else:
            yield from _about_the_losses(chart, chance)
        yield from _about_the_start(problem)
        ratio = working_update(chart)
        if goes_straight(chart):
            yield Evidence(
                -2.5, "the weights move in one direction over dozens of steps: with wrong labels they would not"
            )
        if ratio * chart.step < SHORT:
            yield Evidence(
                -0.8, f"so far the weights have changed by at most {number_text(ratio * chart.step)} of their norm"
            )
        elif 1e-4 < ratio < 1e-1:
            yield Evidence(0.7, f"each step changes the weights by {number_text(ratio)} of their norm")
        elif ratio < 1e-5:
            against = -2.0 if ratio < 1e-6 else -1.2
            yield Evidence(against, f"each step changes the weights by only {number_text(ratio)} of their norm")
        yield from _about_the_model(chart)
        if _was_broken(chart, problem):
            yield Evidence(-1.5, "something in the model keeps it from learning, whatever the labels")
        elif all(is_absent(chart, name, 0, 100) for name in ("gradient-vanishing", "gradient-explosion")) and not any(
            item.name == "no-gradient" and item.severity != "info" for item in chart.episodes
        ):
            yield Evidence(0.4, "gradients are neither too small nor too large")


def _about_a_leap(chart: Chart, problem: Problem, chance: float) -> Iterator[Evidence]:
    """Whether labels were right at first and are wrong from some step on."""
    step = breaking_step(problem)
    if is_not_one_batch(chart, step) and norms_before(chart, step).size < NORMS:
        yield Evidence(-2.0, "too few gradient norms are known to rule out an unusual step")
        return
    if not is_other_since(chart, step):
        yield Evidence(-4.0, "the loss did not jump and stay high, or an unusual step explains the jump")
        return
    stale = chart.facts.get("graph.stale")
    if stale is not None and stale.value and stale.step >= step:
        yield Evidence(-4.0, "tensors of the model were replaced since then: the model has changed, not the labels")
        return
    spread = chart["output_spread"]
    before, after = spread.values[spread.steps < step], spread.values[spread.steps >= step]
    if before.size and after.size and float(after[0]) < SILENT * median(before[-3:]):
        yield Evidence(-4.0, "outputs depend less on inputs since then: the model has changed, not the labels")
        return
    now = level_about(chart["loss"], step, step + LASTING)
    words = f"since step {step} the loss is at {number_text(now)}, and no unusual step came before"
    if math.isnan(chance):
        yield Evidence(0.5, words)
    elif AT_GUESS[0] * chance < now < AT_GUESS[1] * chance:
        yield Evidence(3.5, f"{words}; chance level is {number_text(chance)}")
    else:
        yield Evidence(-2.0, f"{words}; chance level is {number_text(chance)}, which does not match")


def _about_the_model(chart: Chart) -> Iterator[Evidence]:
    size = (chart.context.get("model") or {}).get("trainable")
    if isinstance(size, int) and size < TINY:
        yield Evidence(-1.0, f"a model of {size} parameters can learn little from any labels")
    if ONLY_LINEAR in (chart.fact("loss.lint") or ()):
        yield Evidence(-3.0, "there is no activation function between the layers: only linear functions can be learned")
    if "RNN" in (chart.fact("modules.kinds") or ()):
        yield Evidence(-1.0, "a plain RNN learns little over long sequences, whatever the labels")


def _shift(chart: Chart) -> str:
    """That labels are the wrong tokens of the sequence, as a sentence; "" if that is not seen."""
    if last_level(chart["target_after_next"], 3) > 0.99 and last_level(chart["target_is_next"], 3) < 0.5:
        return "each label is the token after the next: targets are shifted in the data and again in the model"
    return "each label is the previous token: targets are shifted the wrong way" if is_of_the_past(chart) else ""


def _pairing(problem: Problem) -> str:
    """That samples come again with another target, as a sentence; "" if that was never found in this problem."""
    for found in problem.symptoms:
        if found.name == "target-anomaly" and found.message.endswith(OTHER_TARGET):
            return found.message
    return ""


def _ends(problem: Problem, words: str) -> str:
    """The message of `not-learning`, if it ends with these words; "" otherwise."""
    found = problem.get("not-learning")
    return found.message if found is not None and found.message.endswith(words) else ""


def _about_the_targets(chart: Chart, problem: Problem) -> Iterator[Evidence]:
    if problem.names == ("target-anomaly",):
        yield Evidence(-5.0, "labels are not shifted by a position")
    if _ends(problem, UNMATCHED):
        yield Evidence(5.0, "a part of the loss is exactly 0, as it is without labels, and no prediction is right")
    found = problem.get("validation-anomaly")
    if found is not None and found.message.endswith(ASKED_WRONG):
        known = bool(chart.fact("loss.kind"))  # a custom loss may be lower for larger batches
        words = "training loss is above validation loss, and only wrong training targets would explain that"
        yield Evidence(6.0 if known else 1.0, words)


def _about_the_start(problem: Problem) -> Iterator[Evidence]:
    for item in problem.symptoms:
        if item.name in AT_FIRST and item.severity != "info" and item.first_step <= 2:
            yield Evidence(-2.5, f"{item.name} was there before anything was learned from labels")
            return


def _was_broken(chart: Chart, problem: Problem) -> bool:
    """Whether something kept the model from learning early on: if wrong labels kill units, they do so late."""
    if (collapsed := problem.get("collapsed-output")) is not None and collapsed.first_step <= 2:
        return True  # before anything was learned from labels
    if collapsed is not None and 0 < chart["output_spread"].first < 5e-3:
        return True
    if thrown_at_first(chart, problem) > 0:
        return True
    found = [item for item in (*problem.symptoms, *chart.open_episodes.values()) if item.name in BROKEN]
    return any(item.first_step < EARLY or item.first_step <= problem.first_step for item in found)


def fell_at_once(chart: Chart, chance: float) -> bool:
    """Whether the loss was well below chance level within a fifth of the run: memorizing wrong labels takes longer."""
    return level_about(chart["loss"], chart.step // 10, max(chart.step // 5, 40)) < 0.85 * chance


def guessing(chart: Chart) -> float:
    """The loss of always predicting how common each label is: the entropy of labels, else chance; NaN if unknown."""
    entropy = chart["target_entropy"]
    if entropy and str(chart.fact("loss.kind") or "cross-entropy") in ("cross-entropy", "nll"):
        return float(max(bucket[2] for bucket in entropy.outline.buckets()))
    guesses = chart["guess_loss"].last(8)
    if guesses.size >= 4 and chart["criterion"] and chart.fact("loss.reduction") == "mean":
        return float(guesses.mean())
    chance = chart.fact("loss.chance")
    return float(chance) if isinstance(chance, int | float) else math.nan


def _about_the_losses(chart: Chart, chance: float) -> Iterator[Evidence]:
    # the loss may contain further terms, which the criterion does not
    own = chart["criterion"] if chart.fact("loss.function") in ELEMENTWISE else chart["loss"]
    now, best = last_level(own, 8 if own is not chart["loss"] else 20), chart["val_loss"].lowest
    guess, level = f"chance level is {number_text(chance)}", f"the chance level of {number_text(chance)}"
    lowest = _lowest_level(own)
    if lowest < 0.85 * chance and now > 0.95 * chance:
        yield Evidence(-5.0, f"the training loss had fallen to {number_text(lowest)} before: labels were learned")
    if abs(now - chance) < 0.03 * chance:
        yield Evidence(1.3, f"the training loss stays at {number_text(now)}; {guess}")
    elif 0.9 * chance < now < chance:
        yield Evidence(0.9, f"the training loss is still {number_text(now)}; {guess}")
    elif now > 1.1 * chance:
        yield Evidence(-1.0, f"the training loss is {number_text(now)}, above {level}")
    elif now < 0.9 * chance and math.isfinite(best) and best > 0.97 * chance:
        strength, fell = 3.0 if now < 0.7 * chance else 2.0, f"training loss fell to {number_text(now)}"
        yield Evidence(strength, f"{fell}, but validation loss never below {number_text(best)}; {guess}")
        if fell_at_once(chart, chance):
            yield Evidence(
                -2.0, "the training loss fell within the first fifth of the run: these labels can be learned"
            )
    elif now < 0.7 * chance:
        if math.isfinite(best):
            yield Evidence(-2.5, f"validation loss fell to {number_text(best)}, below {level}")
        else:
            yield Evidence(-1.0, f"the training loss fell to {number_text(now)}, well below {level}")
    if math.isfinite(best) and best < 0.9 * chance <= now and dropout(chart) > 0:
        # without dropout, only the labels of the training set may be wrong
        yield Evidence(-1.5, f"validation loss fell to {number_text(best)}, below {level}")


def _lowest_level(series: Series, width: int = 16) -> float:
    """The lowest mean of the loss over equal stretches of the run; NaN if the run is short."""
    means = series.outline.means()
    parts = means[: means.size - means.size % width].reshape(-1, width)
    return float(parts.mean(1).min()) if parts.size else math.nan
