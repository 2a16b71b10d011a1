"""unknown."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import INFORMATIVE
from torchdoctor.symptoms import DETECTORS
from torchdoctor.symptoms.frozen_weights import UNSTEPPED

NEXT = {
    "activation-explosion": "print the RMS of each layer's output on one batch: the fault is at the first layer "
    "where it jumps",
    "batch-anomaly": "print the labels and a checksum of ten consecutive batches: this shows sorted labels and "
    "repeated batches",
    "clipping-anomaly": "print the norm that clip_grad_norm_ returns next to its limit, and check where in the loop "
    "it is called",
    "collapsed-output": "feed two very different inputs and compare each layer's output: the fault is where they "
    "become equal",
    "data-starvation": "time one pass over the loader alone: if it is as slow as training, the loader is too slow",
    "dead-units": "count dead units at step 0 and after the first 50 steps: if they are dead from the start, the "
    "initialization is the cause, otherwise a step was too large",
    "double-descent": "train for twice as long as it took to reach the peak, and keep the weights with the best "
    "validation loss",
    "entropy-collapse": "roll out with random actions: if the return is as good, the policy has learned nothing",
    "frozen-weights": "compare id(p) of model.parameters() with those in optimizer.param_groups, and print "
    "requires_grad",
    "gradient-explosion": "compute the gradient of that step's batch again: if it is large again, the batch is the "
    "cause",
    "gradient-instability": "repeat a few hundred steps at a tenth of the learning rate: if the gradient norm becomes "
    "stable, the learning rate was too high",
    "gradient-vanishing": "check what that step did differently: a cut graph, a loss scale, or a mask that hides "
    "everything",
    "gradients-not-cleared": "print the gradients just before backward() at each step: they must be None or 0",
    "identical-units": "compare the rows of that layer's weight: equal rows get equal gradients and stay equal",
    "input-anomaly": "print mean, standard deviation and range of each input feature as the model receives it",
    "learning-rate-vanished": "print scheduler.get_last_lr() over the whole schedule, and count how often "
    "scheduler.step() is called",
    "lopsided-losses": "print how often the discriminator is right on real and on generated samples: above 95 % it "
    "is too strong for the generator",
    "loss-divergence": "repeat from a checkpoint at a tenth of the learning rate: if the loss stays down, the learning "
    "rate was too high",
    "loss-oscillation": "compare the period with the length of an epoch: if they agree, the data order is the cause, "
    "otherwise halve the learning rate",
    "loss-plateau": "log update ratios and a validation loss: they show whether the run has converged or is stuck",
    "loss-spike": "compute the loss of that step's batch with the weights from before the spike: if it is high, the "
    "batch is the cause",
    "memory-growth": "log torch.cuda.memory_allocated() after each part of a step: the part where it grows keeps "
    "tensors or graphs",
    "nan-or-inf": "check the batch with torch.isfinite, then repeat the step under torch.autograd.detect_anomaly()",
    "no-gradient": "walk from loss.grad_fn back to the parameter: look for a detach(), an item() or an unused branch",
    "not-learning": "overfit one batch for 1,000 steps: if its loss does not fall below 0.01, the loop or the loss is "
    "wrong, otherwise the data",
    "optimizer-advice": "run 500 steps with the usual setting from the same checkpoint, and compare",
    "overfitting": "train with more dropout, then with half of the data, and compare how the gap to validation changes",
    "rank-divergence": "print a checksum of the weights on every rank after each of the first ten steps",
    "saturated-activations": "print the inputs of that sigmoid, tanh or softmax at step 0 and now: values far beyond "
    "±3 are saturated",
    "schedule-anomaly": "print scheduler.get_last_lr() over the whole schedule, and count how often "
    "scheduler.step() is called",
    "skipped-steps": "log the loss scale, and compute the step's largest gradient in float32: above 65,504 it "
    "overflows float16",
    "slow-learning": "run a learning-rate range test from 1e-7 to 10: it shows at which learning rate the loss falls "
    "fastest",
    "small-normalization-batch": "evaluate one training batch in train and in eval mode: if the losses differ much, "
    "the batch statistics are the cause",
    "step-time-regression": "profile one slow and one fast step with torch.profiler, and compare them",
    "straggler-rank": "swap the slow rank's device with another: if the slowness moves with the device, the hardware "
    "is the cause",
    "suspicious-loss": "print the shapes and the first values of what enters the loss, and the grad_fn of the loss",
    "suspiciously-low-loss": "change what the model must not see (later tokens, the target column): if the output "
    "changes, it leaks",
    "target-anomaly": "print the label counts, or mean and range of the targets, as the loss receives them",
    "underfitting": "overfit one batch: if that works, the cause is regularization or too few steps, otherwise "
    "capacity or the loop",
    "unexpected-initial-loss": "print the first outputs and targets: if their scale and shape are right, the loss "
    "is wrong, otherwise the initialization or the data",
    "uneven-position-loss": "change the tokens after a position: if the output at that position changes, the mask "
    "leaks",
    "update-ratio-abnormal": "divide the learning rate by ten for 100 steps, and compare the update ratios of the "
    "layers",
    "validation-anomaly": "evaluate a batch of the training set in eval mode: if its loss differs from training, the "
    "mode or the preprocessing is the cause",
    "weight-growth": "plot the weight norms by layer: if all grow, the cause is the learning rate or the weight decay, "
    "otherwise that layer",
    "wrong-mode": "print model.training at the first line of a training step",
}
"""For each finding, the measurement that would decide between its causes."""
LAST_STEP = (
    "print whether the loop still reaches step(), and whether its optimizer is the one given to Doctor: if it was "
    "replaced, create it once"
)
"""The same if the optimizer steps no longer."""
ELSE = "repeat from a checkpoint and change one thing at a time: the batch, a tenth of the learning rate, float32"


class Unknown(Cause):
    """The evidence is not enough to name a cause.

    ## What it is
    The cause is not in the catalogue, or several causes look the same in what was measured.

    ## How to confirm it
    Its first line of evidence names the measurement that would decide.

    ## What to change
    Nothing yet, except what protects the run. Measure first.

    ## How to see it cured
    After the measurement, another cause ranks first.

    ## When to stop
    When three measurements have not decided: show the report to someone else, or change the approach.
    """

    name = "unknown"
    explains = tuple(detector.name for detector in DETECTORS if detector.name not in INFORMATIVE)
    prior = 0.0
    suggests = ("ask-for-help",)
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """What to measure next. It has no weight: `unknown` is the baseline that other causes are compared with."""
        still = problem.get("frozen-weights")
        if still is not None and UNSTEPPED in still.message:
            yield Evidence(0.0, LAST_STEP)
            return
        names = [name for name in problem.names if name in NEXT]
        yield Evidence(0.0, NEXT[names[0]] if names else ELSE)
