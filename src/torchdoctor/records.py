"""The records passed between stages: frozen, convertible to and from JSON, and independent of torch.

Everything that the doctor learns is a *journal record*: a dict with ``type`` and ``step``. The chart is built from
these records alone, live and offline, so both give the same report:

==============  ====================================================================================
type            further keys
==============  ====================================================================================
``header``      ``schema``, ``created``, ``versions``, ``tensors`` (names, in the order of every
                per-tensor list), ``context`` (model, optimizer, ...: see ``vitals/context.py``)
``context``     ``context``: learned later (batch size, precision); ``tensors``, ``modules`` when they changed
``groups``      ``groups``: a list of {"lr": .., ...} per parameter group, whenever one changed
``vitals``      ``vitals``: {name: number} of one training step
``validation``  ``vitals``: {"val_loss": .., "val_<metric>": ..}
``tensors``     ``vitals``: {"grad_norm": [..], "weight_norm": [..], "update_ratio": [..]}: sampled steps;
               "start_norm": the weights before the first of them
``modules``     ``vitals``: {"act_rms": [..], ...}: sampled steps, in the order of ``modules`` in a context
``facts``       ``facts``: {dotted key: value}: structural observations, when first made and when changed
``origin``      ``module``, ``kind``: where a non-finite value first appeared in a forward pass
``symptom``     ``event`` ("opened", "changed", "closed") and the fields of `Symptom`
``diagnosis``   the fields of `Diagnosis` (one record for each cause, when the ranking changed)
``phase``       ``first_step``, ``stable``, ``trend``, ``message``: see ``phases.py``
``check``       the fields of `CheckResult`: one record for each check of a check-up before the run
``note``        ``text``: a note for the report (for example what could not be measured, and why)
``end``         the run ended normally
==============  ====================================================================================

Facts about the structure of the loop (names are those in ``tensors``; lists by optimizer are in the order of the
optimizers; "up to 5" means that counting stops there):

==============================  ====================================================================
key                             value
==============================  ====================================================================
``graph.not_in_optimizer``      trainable tensors that contribute to the loss, are in no optimizer and do not change
``graph.not_in_model``          attributes of the model whose tensors contribute to the loss but are not in
                                ``parameters()``
``graph.absent``                trainable tensors that an optimizer holds and that never had a gradient
``graph.cut``                   those of ``graph.absent`` whose module runs nevertheless
``graph.thawed``                those of ``graph.not_in_optimizer`` that were frozen before
``graph.idle``                  tensors with gradients whose only optimizer never stepped, while others did
``graph.resting``               {"tensors": .., "since": .., "frozen": ..}: their optimizer steps, but they have no
                                gradient anymore
``graph.copied``                {"tensors": .., "samples": ..}: the loss comes from so many other tensors with the same
                                shapes as the optimizer's, which have no gradient; None if no longer
``graph.made_anew``             the shapes of weights between known layers that are new tensors at each step
``graph.criterion_left_out``    parameters of ``loss_fn`` itself with gradients that no optimizer holds
``graph.stale``                 tensors that an optimizer holds but that never had a gradient and are in no model
``graph.detached``              whether no trainable tensor ever had a gradient
``graph.kept``                  the first step since which the graphs of all samples are kept; None: they were freed
``graph.frozen``                consecutive frozen modules that run after a trainable module
``graph.frozen_behind``         whether any frozen module runs after a trainable module
``graph.frozen_share``          share of the models' elements that do not require gradients
``loss.kind``                   "cross-entropy", "nll", "mse", "l1", "bce" ...: from the nodes of the loss's graph
``loss.reduction``              "mean" or "sum", if the node of the loss shows it
``loss.divided``                whether backward begins at a sum that was divided by a count: then it is a mean
``loss.lint``                   mistakes in the order of nodes: see ``symptoms/suspicious_loss.py``
``loss.ending``                 "ReLU", "Tanh" ...: the bounded activation, module or function, before an error
``loss.fragile``                operations next to the loss that may be undefined: "log", "sqrt", "norm", "division" ...
``loss.hidden``                 whether a compiled function hides a part of the graph
``loss.detached``               true: the loss requires gradients but has no graph
``loss.stale``                  true: the same graph was logged at different steps; "outputs": new, but of old outputs
``zeroing.kept``                by optimizer: samples at which old gradients were still there at backward (up to 5)
``zeroing.cleared``             by optimizer: samples at which old gradients had been cleared (up to 5)
``zeroing.kept_in_a_row``       by optimizer: consecutive latest samples at which they were still there (up to 5)
``zeroing.between_backwards``   by optimizer: samples at which they were cleared between two backwards (up to 5)
``zeroing.mixed``               by optimizer: samples at which another one stepped between two accumulated backwards
``zeroing.backwards``           by optimizer: the fewest backward passes per step at the last three samples
``zeroing.most_backwards``      by optimizer: the most of them; the last step of an epoch may have fewer
``mode.eval``                   modules in eval mode during training for which the mode makes a difference
``mode.whole``                  whether a whole model was in eval mode
``mode.batchnorm``              {"layers": .., "most_values": .. (per channel), "most_samples": ..} of the "worst" layer
``mode.batchnorm_momentum``     weight of a new batch in the running statistics of the last BatchNorm layer; None: the
                                mean of all batches
``state.written``               ranges of steps in which code outside the optimizer wrote to all weights
``state.written_in_part``       ranges in which it wrote to some weights, and the first of these
``state.written_always``        samples at which it wrote to the weights at every step (up to 5)
``state.loaded``                the steps before which a state was loaded into a model (the last 8)
``state.restarted``             the step at which the optimizer's own step count restarted
``state.begun_anew``            those restarts before which all weights were also overwritten, without a load
``state.at_start``              number of steps in the optimizer's state when it was first seen; 0 if it was empty
``state.forgotten``             consecutive latest samples at which its state covered only a few steps (up to 5)
``loop.changes``                [step, what] of the last changes that the loop has made in mid-run (the last 16)
``loop.built``                  [step, class] of an optimizer of the same parameters that has not stepped yet
``schedule.elsewhere``          {"old": .., "new": .., "rates": ..} if the learning rate of an optimizer that no longer
                                steps is still changed, and not that of the one that took over
``schedule.class``              the scheduler's class; ``schedule.total``, ``schedule.milestones``: its settings
``schedule.stepped``            whether it was ever stepped; ``schedule.per_batch``: whether at every batch
``schedule.interval``           optimizer steps between two scheduler steps
``schedule.times``              scheduler steps per optimizer step, if there are two or more
``schedule.mode``               "min" or "max" of a plateau schedule; ``schedule.best``: its best value so far
``schedule.rounds``             how often a cosine schedule has passed its T_max (up to 5)
==============================  ====================================================================

Facts about the data in the model, from the gauges of activations, batches and outputs:

==============================  ====================================================================
key                             value
==============================  ====================================================================
``modules.names``               the watched modules, in the order in which the first sampled pass ran them
``modules.kinds``               their classes; ``modules.outputs``: those whose output is the model's output
``modules.squashed``            {module: "Tanh" or "Sigmoid"} if its output enters tanh or sigmoid as a function
``modules.repeated``            {module: runs} of those that ran several times in the first sampled pass
``modules.normalized``          number of normalization layers; ``modules.widths``: units of each module
``modules.entering``            input units that each layer is built for; 0 if unknown
``modules.batch_as_time``       layers with ``batch_first=False`` whose input has the batch first
``activations.hidden``          what a compiled function hides; ``activations.left_out``: modules beyond 256
``data.normalized_first``       whether one of the first two layers normalizes
``data.same_tensor``            whether the input is the same tensor as at the previous sample, or a view of all its
                                rows
``data.differentiated``         true: the loop takes derivatives with respect to inputs
``loop.passes``                 the largest number of forward passes with a graph in one step
``loop.acts``                   true: the model chooses actions and learns from their results
``loss.function``               class of ``loss_fn``, or of the loss at backward; ``loss.classes``: number of classes
``loss.chance``                 chance level of the loss (ln C), if the kind of loss determines it
``loss.label_smoothing``        share of each label that ``loss_fn`` spreads over all classes
``loss.shapes``                 shapes of output and target that an elementwise loss will broadcast
``loss.between_outputs``        true: the loss compares two outputs that both get gradients
``mode.idle``                   {"train": .., "eval": ..}: passes without gradients, by mode (up to 5 each)
``mode.depends``                whether the model behaves differently in training mode
``outputs.classes``             size of the output's last dimension, if ``loss_fn`` is not known
``gauges.<name>``               why a gauge was switched off
``curvature.every``             steps between two curvature measurements; ``curvature.hidden``: why there are none
==============================  ====================================================================

By module, at sampled steps: ``act_rms``, ``act_absmax``, ``act_zero``, ``act_saturated`` and

* ``act_spread``: share of the activations that depends on the input
* ``act_dead``: share of units that were zero for every input of the last samples
* ``attention_entropy``: relative to uniform attention
* ``weight_same``: whether all rows of the weight are equal

Scalars of the inputs and of the first layers:

* ``input_*``: statistics of the batch; ``pooled_*``: of all samples so far
* ``entry_rms``, ``entry_absmax``, ``entry_ratio``: of the input of the first layer
* ``entry_spread``: how much samples differ at the first layer, as a share of their size
* ``side_entry_rms``: the largest input of a later layer that does not come from a trainable layer
* ``input_blank``: share of samples whose values are all equal; ``input_zero``: share of zeros
* ``input_content``: a checksum that does not depend on the order of samples; ``input_size``: numbers in the batch
* ``input_distinct``: share of the batch's samples that are not copies of others in it
* ``input_again``: share of the batch's samples that came before, unchanged
* ``answer_changed``, ``answer_moved``: share of those that now have another target, or a very different number
* ``idle_input_mean``, ``idle_input_std``: of the latest input in a pass without gradients
* ``idle_output_low``, ``idle_output_high``: range of what a loss of scores gets in such passes
* ``idle_target_mean``, ``idle_target_std``, ``idle_target_whole``: of the numeric targets in such passes
* ``idle_known``: share of the samples in such passes that training had before

Scalars of targets, outputs and the loss:

* ``target_*``: statistics of the batch; ``output_*``: of the model's output
* ``criterion``: the value that ``loss_fn`` returned
* ``guess_loss``: the loss of a constant guess based on all targets so far
* ``target_probability``, ``prediction_top_share``
* ``logit_drift``: mean log-sum-exp; ``attention_logit``
* ``last_position_loss``, ``other_position_loss`` (``_error`` if the targets are the next values of a series)
* ``output_directions``: share of the outputs that is not along their mean direction
* ``target_is_next``, ``target_after_next``, ``target_is_before``: share of labels that are the next token, the one
  after it, or the previous one
* ``target_beyond``: share of labels, other than the next token, that are larger than all input tokens
* ``target_masked``: where tokens differ from labels, the share that is one token
* ``attention_ahead``: share of attention on later tokens; ``attention_fixed``: share of queries that attend to one
  token alone
* ``label_in_input``: the strongest correlation of an input column with the label, or with one class;
  ``label_in_another``: that of the next best column
* ``target_in_input``: the largest share of samples whose numeric target is at one position of the input
* ``weight_of_common``: class weight of the most common class relative to the others
* ``weight_by_count``: the power of a class's count that its weight follows
* ``part_target_size``, ``part_loss_ratio``: of a loss that is a sum: its largest targets, and how unequal its parts are
* ``binary_outside``: share of a binary loss's targets outside 0 to 1
* ``label_ignored``: share of samples whose class the loss ignores
* ``views_same``: 1 if both sides of an all-pairs comparison are equal

Scalars of the loop:

* ``loss_weight``: the factor with which backward starts at the loss of a micro-batch
* ``adam_staleness``: root mean square of gradient divided by Adam's running estimate of its size
* ``adam_eps_share``: share of elements whose estimate is below eps; ``momentum_cosine``
* ``update_lost``: share of half-precision weights with a gradient that did not change
* ``update_kept``: distance of the weights from the previous sample, in lengths of its step
* ``course``: cosine of that movement with the previous one; 1 means straight on
* ``update_away``: distance of the weights from much earlier ones, relative to a random walk with such steps
* ``outside_scaled``, ``outside_cosine``: relative change of the weights between two steps, and its cosine with them
* ``state_same``: 1 if the last loaded state equals the first loaded one
* ``frozen_fresh``, ``weights_fresh``: share of frozen layers, or of trainable layers at the first sample, whose weights
  are distributed like those of a new layer
* ``resting_as_new``: share of BatchNorm layers in eval mode whose statistics are those of a new layer
* ``gradient_snr``: signal-to-noise ratio of the batch's gradient (batch size over gradient noise scale);
  ``gradient_samples``: samples in that batch
* ``curvature``: of the loss along the step, for a step of length 1; ``step_curvature``: curvature over slope along the
  step; at 1 the step reaches the minimum along its direction, above 2 it increases the loss. Both only if
  ``settings.curvature`` is set
* ``forward_seconds``: of this rank, and ``rank_*`` on the first rank (see ``ranks.py``), if several processes train
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""The version of the journal's format, written in its header."""

Severity = Literal["info", "warning", "critical"]
Safety = Literal["show", "ask", "apply"]
Health = Literal["healthy", "watch", "sick", "critical"]
Status = Literal["passed", "failed", "skipped"]
Record = Mapping[str, Any]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
INFORMATIVE = frozenset({"multiple-pathologies", "converged", "batch-size-advice"})
"""Findings that do not affect the health of a run: a summary, good news, and advice on speed."""
NO_LOSS = "no loss was logged"
"""How the note begins if no loss was logged."""
ANEW = "loss.anew"
"""The fact that the loss begins anew: before, it was what backward began from, which may be in another unit."""
NOT_SOUGHT = "not looked for, as requested: "
"""How the note begins that names the findings which `select` or `ignore` leave out."""
UNKNOWN_LOSS = "no column was recognized as the loss"
"""How the note begins if a log has other values, but none that is called a loss."""
DIED = "the log ends with an error: "
"""How the note begins that quotes the error at the end of a printed log."""
NO_STEP = "no training step was seen while "
"""How the note begins if losses were logged without a step of the watched optimizer."""
LET_GO = "this run is no longer watched."
"""How the note ends if the doctor stopped watching after too many internal errors."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One episode of one pathology.

    >>> print(Symptom("loss-spike", "LO01", "warning", 0.9, 120, 122, message="loss 9.1 is 4.2 times its recent 2.2"))
    step 120: LO01 loss-spike (warning): loss 9.1 is 4.2 times its recent 2.2
    """

    name: str
    code: str
    severity: Severity
    confidence: float
    first_step: int
    last_step: int
    count: int = 1
    where: tuple[str, ...] = ()
    rank: int | None = None
    value: float | None = None
    limit: float | None = None
    message: str = ""

    def __str__(self) -> str:
        return f"step {self.first_step}: {self.code} {self.name} ({self.severity}): {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored in the journal."""
        return asdict(self) | {"where": list(self.where)}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One suggested change: data, never executed."""

    action: str
    code: str
    confidence: float
    safety: Safety = "show"
    parameters: Mapping[str, float | str | bool] = field(default_factory=dict)
    priority: int = 0
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.code}  ({self.action}, confidence {self.confidence:.2f}): {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored in the journal."""
        return asdict(self) | {"parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One possible cause of one problem; probabilities sum to 1 within a problem, ``unknown`` included."""

    problem: int
    cause: str
    probability: float
    evidence: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    episodes: tuple[int, ...] = ()
    """The indexes of the problem's symptoms in `Report.symptoms`, because one finding may have several episodes."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored in the journal."""
        return {
            "problem": self.problem,
            "cause": self.cause,
            "probability": self.probability,
            "evidence": list(self.evidence),
            "symptoms": list(self.symptoms),
            "episodes": list(self.episodes),
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
        }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of a check-up.

    >>> print(CheckResult("initial-loss", "CK11", "failed", "loss 9.2 at the start; chance level is 2.3"))
    CK11 initial-loss failed: loss 9.2 at the start; chance level is 2.3
    """

    name: str
    code: str
    status: Status
    message: str = ""
    where: tuple[str, ...] = ()
    advice: str = ""
    severity: Severity | None = None
    """The severity of a failure; None if the check passed or was skipped."""
    value: float | None = None
    limit: float | None = None
    seconds: float = 0.0
    suggests: tuple[str, ...] = ()
    """Actions of the catalogue that help against a failure."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> CheckResult | None:
        """The result in a journal record, or None if it is invalid: journals are untrusted."""
        texts = {key: record.get(key, "") for key in ("name", "code", "status", "message", "advice")}
        severity, where = record.get("severity"), record.get("where", [])
        known = texts["status"] in ("passed", "failed", "skipped") and severity in (None, *SEVERITIES)
        if not known or not isinstance(where, list) or not all(isinstance(text, str) for text in texts.values()):
            return None
        return cls(**texts, severity=severity, where=tuple(str(name) for name in where))

    def __str__(self) -> str:
        return f"{self.code} {self.name} {self.status}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as stored in the journal."""
        return asdict(self) | {
            "where": list(self.where),
            "suggests": list(self.suggests),
            "details": dict(self.details),
        }


def worst(severities: list[Severity]) -> Severity | None:
    """The most severe of some severities; None if there are none.

    >>> worst(["info", "critical", "warning"])
    'critical'
    """
    return max(severities, key=SEVERITIES.index, default=None)


def number_text(value: float) -> str:
    """A number formatted for a sentence.

    >>> number_text(0.0003), number_text(1e-5), number_text(1234567.0), number_text(2.5), number_text(float("nan"))
    ('0.0003', '1e-05', '1.23e+06', '2.5', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


def share_text(share: float, digits: int = 0) -> str:
    """A share formatted for a sentence; never rounded up to 100 %.

    >>> share_text(0.3), share_text(0.00512, 2), share_text(0.9971)
    ('30 %', '0.51 %', '99.7 %')
    """
    return f"{share:.{1 if 0.995 <= share < 1 else digits}%}".replace("%", " %")


def names_text(names: Sequence[str], most: int = 3) -> str:
    """A list of names for a sentence.

    >>> names_text(["a", "b"]), names_text(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
