"""The records that cross stages: frozen, JSON in and out, free of torch.

Everything that the doctor learns is a *journal record*: a dict with ``type`` and ``step``. The chart is
fed by these records alone, live and offline, which is why both give the same report:

==============  ====================================================================================
type            further keys
==============  ====================================================================================
``header``      ``schema``, ``created``, ``versions``, ``tensors`` (names, in the order of every
                per-tensor list), ``context`` (model, optimizer, ...: see ``vitals/context.py``)
``context``     ``context``: learnt later (batch size, precision); ``tensors``, ``modules`` when they changed
``groups``      ``groups``: a list of {"lr": .., ...} per parameter group, whenever one changed
``vitals``      ``vitals``: {name: number}: one training step
``validation``  ``vitals``: {"val_loss": .., "val_<metric>": ..}
``tensors``     ``vitals``: {"grad_norm": [..], "weight_norm": [..], "update_ratio": [..]}: sampled steps
``modules``     ``vitals``: {"act_rms": [..], ...}: sampled steps, in the order of ``modules`` in a context
``facts``       ``facts``: {dotted key: value}: structural observations, when first made and when changed
``origin``      ``module``, ``kind``: where a non-finite value was first seen in a forward pass
``symptom``     ``event`` ("opened", "changed", "closed") and the fields of `Symptom`
``diagnosis``   the fields of `Diagnosis` (one record for each cause, when the ranking changed)
``phase``       ``first_step``, ``stable``, ``trend``, ``message``: see ``phases.py``
``check``       the fields of `CheckResult`: one record for each check of a check-up before the run
``note``        ``text``: something that the report must say (what could not be measured, and why)
``end``         the run was closed in good order
==============  ====================================================================================

Facts about the structure of the loop (names are those of ``tensors``; lists by optimizer are in their order):

==============================  ====================================================================
key                             value
==============================  ====================================================================
``graph.not_in_optimizer``      trainable tensors that take part in the loss, that no optimizer holds and nobody changes
``graph.not_in_model``          attributes of the model with tensors that take part and that ``parameters()`` lacks
``graph.absent``                trainable tensors that an optimizer holds and that never had a gradient
``graph.cut``                   those of them whose module runs nevertheless
``graph.thawed``                those of ``graph.not_in_optimizer`` that were frozen before
``graph.idle``                  tensors with gradients that only an optimizer holds that never stepped, while others did
``graph.resting``               {"tensors": .., "since": .., "frozen": ..}: of an optimizer that steps without gradients
``graph.copied``                {"tensors": .., "samples": ..}: the loss is that of as many tensors of the same shapes
                                as those of the optimizer, which have no gradient; None where it is not any more
``graph.made_anew``             the shapes of weights between known layers that are other tensors at each step
``graph.criterion_left_out``    parameters of ``loss_fn`` itself with gradients, that no optimizer holds
``graph.stale``                 tensors that an optimizer holds, that never had a gradient and are in no model
``graph.detached``              whether no trainable tensor ever had a gradient
``graph.kept``                  the first step since which the graphs of all samples are still held; None: let go
``graph.frozen``                one stretch of frozen modules that run behind something that learns
``graph.frozen_behind``         whether any frozen module runs behind something that learns
``graph.frozen_share``          share of the models' elements that do not require gradients
``loss.kind``                   "cross-entropy", "nll", "mse", "l1", "bce" ...: from the nodes of its graph
``loss.reduction``              "mean" or "sum", where the loss's own node says it
``loss.lint``                   mistakes in the order of its nodes: see ``symptoms/suspicious_loss.py``
``loss.ending``                 "ReLU", "Tanh" ...: the bounded activation, module or function, before an error
``loss.fragile``                operations next to it that may be undefined: "log", "sqrt", "norm", "division" ...
``loss.hidden``                 whether a compiled function hides a part of its graph
``loss.detached``               true: it requires gradients and has no graph
``loss.stale``                  true: the same graph was logged at different steps; "outputs": new, but of old outputs
``zeroing.kept``                by optimizer: samples at which old gradients were there when backward came (up to 5)
``zeroing.cleared``             by optimizer: samples at which they had been cleared (up to 5)
``zeroing.kept_in_a_row``       by optimizer: the last samples, in a row, at which they were there (up to 5)
``zeroing.between_backwards``   by optimizer: samples at which they were cleared between two backwards (up to 5)
``zeroing.mixed``               by optimizer: samples at which another one stepped between two backwards that add up
``zeroing.backwards``           by optimizer: the fewest backward passes a step at the last three samples
``mode.eval``                   modules in eval mode in a training pass that behave otherwise there
``mode.whole``                  whether a whole model was
``mode.batchnorm``              {"layers": .., "most_values": ..  a channel, "most_samples": ..}: of the "worst" layer
``mode.batchnorm_momentum``     share of a new batch in the running statistics of its last layer; None: the mean of all
``state.written``               stretches of steps in which something else than the optimizer wrote to all weights
``state.written_in_part``       stretches in which it wrote to some weights, and the first of these
``state.written_always``        samples at which that happened at every step (up to 5)
``state.loaded``                the steps before which a state was loaded into a model (the last 8)
``state.restarted``             the step at which the optimizer's own count of steps began anew
``state.begun_anew``            those of such steps before which all weights were written to as well, without a load
``state.at_start``              steps that the optimizer's memory was of when it was first seen, 0 where it was empty
``state.forgotten``             the last samples, in a row, at which its memory was of a few steps only (up to 5)
``schedule.class``              the scheduler's class; ``schedule.total``, ``schedule.milestones``: what it declares
``schedule.stepped``            whether it was ever stepped; ``schedule.per_batch``: at every batch
``schedule.interval``           optimizer's steps between two of the scheduler's
``schedule.mode``               "min" or "max": what a plateau schedule waits for; ``schedule.best``: its best so far
``schedule.rounds``             how often a cosine went through its T_max (up to 5)
==============================  ====================================================================

Facts about what flows through the model, from the gauges of activations, batches and outputs:

==============================  ====================================================================
key                             value
==============================  ====================================================================
``modules.names``               the watched modules, in the order in which the first sampled pass ran them
``modules.kinds``               their classes; ``modules.outputs``: those whose output is the model's
``modules.squashed``            {module: "Tanh" or "Sigmoid"} where its output enters one that is a function
``modules.repeated``            {module: runs} of those that ran several times in the first sampled pass
``modules.normalized``          how many normalization layers run; ``modules.widths``: units of each module
``modules.entering``            units that each layer is made for to take in, 0 where it does not say
``modules.batch_as_time``       layers with ``batch_first=False`` that are fed with the batch first
``activations.hidden``          what a compiled function hides; ``activations.left_out``: modules beyond 256
``data.normalized_first``       whether one of the first two layers normalizes
``data.same_tensor``            whether the input is the very tensor of the sample before, or a view of all its rows
``data.differentiated``         true: the loop takes derivatives with respect to its inputs
``loop.passes``                 the most passes of the model that make a graph, for one step, that were seen so far
``loop.acts``                   true: the model is asked what to do, and learns from what came of it
``loss.function``               class of ``loss_fn``, or of the loss at backward; ``loss.classes``: how many it tells
``loss.chance``                 the loss of a guess (ln C), where the kind of loss says it
``loss.label_smoothing``        share of each label that ``loss_fn`` spreads over all classes
``loss.shapes``                 shapes of output and target that an elementwise loss will broadcast
``loss.between_outputs``        true: it compares two outputs that both learn
``mode.idle``                   {"train": .., "eval": ..}: passes without gradients, by mode (up to 5 each)
``mode.depends``                whether the model computes something else in training mode
``outputs.classes``             size of the output's last dimension, where ``loss_fn`` is not seen
``gauges.<name>``               why a gauge was switched off
``curvature.every``             steps between two looks at curvature; ``curvature.hidden``: why there are none
==============================  ====================================================================

By module at sampled steps: ``act_rms``, ``act_absmax``, ``act_spread`` (share that depends on the input), ``act_zero``,
``act_dead`` (units that were zero for every input of the last samples), ``act_saturated``, ``attention_entropy``
(relative to an even one), ``weight_same`` (all rows of the weight are equal). Scalars: ``entry_rms``, ``entry_absmax``,
``entry_ratio`` (what enters the first layer), ``input_blank`` (share of samples whose values are all one number),
``input_zero`` (share of zeros), ``entry_spread`` (share of its size by which samples differ at the first layer),
``input_content`` (a checksum that the order of samples does not change), ``input_size`` (numbers in the batch),
``side_entry_rms`` (the largest input of a later layer that nothing that learns has made), ``input_*``, ``target_*``
(of the batch), ``guess_loss`` (what a guess by all targets so far costs on it), ``pooled_*`` (of all samples so far),
``output_*``, ``prediction_top_share``,
``target_probability``, ``criterion`` (what ``loss_fn`` returned), ``logit_drift`` (mean log-sum-exp),
``attention_logit``, ``last_position_loss`` and ``other_position_loss`` (``_error`` where the next values of a series
are asked for), ``output_directions`` (share of outputs that is
not along their mean direction), ``target_is_next``, ``target_after_next`` and ``target_is_before`` (share of labels
that are the next token, the one after it, or the one before), ``target_beyond`` (share of labels that are not the
next token that is above all tokens given), ``attention_ahead`` (share of attention that goes to
later tokens),
``label_in_input`` (the closest correlation of an input column with the label, or of one with each class),
``target_masked`` (where tokens differ from labels, the share that is one token),
``label_in_another`` (the next column's), ``target_in_input`` (the largest share of samples whose number asked for is
in one place of the input), ``weight_of_common`` (the loss's weight of the most common class over that of
the others), ``weight_by_count`` (the power of a class's count that its weight follows),
``part_target_size`` and ``part_loss_ratio`` (of a loss that is a sum: the largest targets, and how unequal
its parts are), ``idle_input_mean`` and ``idle_input_std`` (of what the model was last fed without gradients),
``idle_output_low`` and ``idle_output_high`` (of what a loss of scores was given there), ``idle_target_mean``,
``idle_target_std`` and ``idle_target_whole`` (of the numbers that were asked for there),
``idle_known`` (share of such samples that training had before), ``input_again`` (share of the batch that came before,
unchanged), ``answer_changed`` (share of those that came with another target) and ``answer_moved`` (with a number that
is far from the one before), ``input_distinct`` (share of the batch's samples that are no copies of others in it),
``binary_outside`` (share of a binary loss's targets that are not between 0 and 1), ``label_ignored`` (share of samples
whose class the loss ignores), ``views_same`` (1 where both sides of a comparison of all with all are equal).

From the gauges of the loop: ``loss_weight`` (what backward begins with at a micro-batch's loss),
``adam_staleness`` (root mean square of gradient over Adam's expectation), ``adam_eps_share`` (share of elements under
eps), ``momentum_cosine``, ``update_lost`` (share of half-precision weights that a gradient did not move),
``update_kept`` (how far weights came since the sample before, in lengths of its one step), ``course`` (cosine of the
way that they came since then with the way before it: 1 where they go straight on), ``update_away`` (how far they came
from where they were long ago, over what a walk at random by such steps would), ``outside_scaled`` and
``outside_cosine`` (the share of themselves by which weights grew between two steps, and the cosine of that change with
them), ``state_same`` (1 where the state that was loaded last is the one that was loaded first),
``frozen_fresh`` (share of layers that do not learn whose weights are spread as those of a new layer are),
``weights_fresh`` (the same of those that learn, at the first look),
``resting_as_new`` (share of BatchNorm layers in eval mode whose statistics are those of a new layer),
``gradient_snr`` (signal over noise of the batch's gradient, which is batch size over gradient noise scale) and
``gradient_samples`` (samples of that batch). Where ``settings.curvature`` asks for it: ``curvature`` (of the loss along
the step, for a step of length 1) and ``step_curvature`` (curvature over slope along it: at 1 the step ends in the
valley's floor, above 2 it ends higher than it began). Where several processes train: ``forward_seconds`` (of this
rank), and on the first rank ``rank_*`` (how the ranks compare: see ``ranks.py``).
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
"""Findings that describe the report, good news or a way to be faster, and leave a run's health alone."""
NO_LOSS = "no loss was logged"
"""How the note begins that says so of a run."""
LET_GO = "this run is no longer watched."
"""How the note ends that says so of a run, after too many internal errors."""


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
        """Plain data, as the journal keeps it."""
        return asdict(self) | {"where": list(self.where)}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change to make: data, never code that is run."""

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
        """Plain data, as the journal keeps it."""
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
    """The places of the problem's symptoms in `Report.symptoms`: of several episodes of one name, those meant."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the journal keeps it."""
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
    """What one check of a check-up said.

    >>> print(CheckResult("initial-loss", "CK11", "failed", "loss 9.2 at the start; a guess costs 2.3"))
    CK11 initial-loss failed: loss 9.2 at the start; a guess costs 2.3
    """

    name: str
    code: str
    status: Status
    message: str = ""
    where: tuple[str, ...] = ()
    advice: str = ""
    severity: Severity | None = None
    """Of a failure; None where it passed or was skipped."""
    value: float | None = None
    limit: float | None = None
    seconds: float = 0.0
    suggests: tuple[str, ...] = ()
    """Actions of the catalogue that fit a failure."""
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> CheckResult | None:
        """The result in a journal record, None where it is not one: a journal may be anybody's."""
        texts = {key: record.get(key, "") for key in ("name", "code", "status", "message", "advice")}
        severity, where = record.get("severity"), record.get("where", [])
        known = texts["status"] in ("passed", "failed", "skipped") and severity in (None, *SEVERITIES)
        if not known or not isinstance(where, list) or not all(isinstance(text, str) for text in texts.values()):
            return None
        return cls(**texts, severity=severity, where=tuple(str(name) for name in where))

    def __str__(self) -> str:
        return f"{self.code} {self.name} {self.status}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as the journal keeps it."""
        return asdict(self) | {
            "where": list(self.where),
            "suggests": list(self.suggests),
            "details": dict(self.details),
        }


def worst(severities: list[Severity]) -> Severity | None:
    """The most severe of some severities, None where there are none.

    >>> worst(["info", "critical", "warning"])
    'critical'
    """
    return max(severities, key=SEVERITIES.index, default=None)


def number_text(value: float) -> str:
    """A number as a person would write it in a sentence.

    >>> number_text(0.0003), number_text(1e-5), number_text(1234567.0), number_text(2.5), number_text(float("nan"))
    ('0.0003', '1e-05', '1.23e+06', '2.5', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinity" if value > 0 else "-infinity"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


def names_text(names: Sequence[str], most: int = 3) -> str:
    """Some names as a person would list them.

    >>> names_text(["a", "b"]), names_text(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
