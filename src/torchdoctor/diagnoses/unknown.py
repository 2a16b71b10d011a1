"""unknown."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.records import INFORMATIVE
from torchdoctor.symptoms import DETECTORS

NEXT = {
    "activation-explosion": "print the RMS of each layer's output on one batch: the first one that grows is the place",
    "batch-anomaly": "print the labels and a checksum of ten batches in a row: order and repetition show at once",
    "clipping-anomaly": "print the norm that clip_grad_norm_ returns beside its limit, and look where in the loop "
    "it is called",
    "collapsed-output": "feed two very different inputs and compare each layer: where they become equal is the place",
    "data-starvation": "time one pass over the loader alone: if it is as slow as training, it is the loader",
    "dead-units": "count dead units at step 0 and after the first 50 steps: there from the start, it is the "
    "initialization; later, a step was too large",
    "double-descent": "go on for as long again as it took to the peak, and keep the weights of the best validation",
    "entropy-collapse": "roll out with random actions: if the return is as good, the policy has learnt nothing",
    "frozen-weights": "compare id(p) of model.parameters() with those in optimizer.param_groups; print requires_grad",
    "gradient-explosion": "compute the gradient of that step's batch again: if it is large again, it is the batch",
    "gradient-instability": "repeat some hundred steps at a tenth of the rate: if the norm calms down, it was the rate",
    "gradient-vanishing": "look at what that step did differently: a cut graph, a loss scale, a mask that hides all",
    "gradients-not-cleared": "print the gradient norm before backward() of each step: it must be None or 0",
    "identical-units": "compare the rows of that layer's weight: equal rows stay equal, whatever is learnt",
    "input-anomaly": "print mean, standard deviation and range of each input feature as the model gets them",
    "learning-rate-vanished": "print scheduler.get_last_lr() over the whole plan, and count how often step() is called",
    "lopsided-losses": "print how often the discriminator is right on real and on made samples: above 95 % it has won",
    "loss-divergence": "repeat from a checkpoint at a tenth of the learning rate: if it passes, it was the rate",
    "loss-oscillation": "compare its period with the length of an epoch, then halve the rate: the period tells data "
    "order from rate",
    "loss-plateau": "log update ratios and a validation loss: they separate a finished run from one that cannot move",
    "loss-spike": "compute the loss of that step's batch with weights from before: if it stands out, it is the batch",
    "memory-growth": "log torch.cuda.memory_allocated() after each part of a step: the part that grows keeps a graph",
    "nan-or-inf": "check the batch with torch.isfinite, then repeat the step under torch.autograd.detect_anomaly()",
    "no-gradient": "walk from loss.grad_fn back to the parameter: a detach(), item() or an unused branch is in between",
    "not-learning": "overfit one batch for 1,000 steps: if its loss does not go under 0.01, it is loop or loss, "
    "else the data",
    "optimizer-advice": "run 500 steps with the usual setting beside it, from the same checkpoint",
    "overfitting": "compare with more dropout, and with half of the data: the gap tells which of both is short",
    "rank-divergence": "print a checksum of the weights on every rank after each of the first ten steps",
    "saturated-activations": "print the pre-activations of that layer at step 0 and now: beyond 3 they are saturated",
    "schedule-anomaly": "print scheduler.get_last_lr() over the whole plan, and count how often step() is called",
    "skipped-steps": "log the loss scale, and find the step's largest gradient in float32: over 65,504 it overflows",
    "slow-learning": "run a learning-rate range test, from 1e-7 to 10: it says which rate would be fast",
    "small-normalization-batch": "validate on a training batch in train and in eval mode: if they differ much, it "
    "is the norm",
    "step-time-regression": "profile one slow and one fast step with torch.profiler and compare",
    "straggler-rank": "swap the slow rank's device with another: if the slowness moves with it, it is the machine",
    "suspicious-loss": "print the shapes and the first values of what enters the loss, and its grad_fn",
    "suspiciously-low-loss": "change what the model must not see (later tokens, the target column): if the output "
    "changes, it leaks",
    "target-anomaly": "print the labels' counts, or mean and range of the targets, as the loss gets them",
    "underfitting": "overfit one batch: if that works, it is regularization or too few steps, else capacity or loop",
    "unexpected-initial-loss": "print the first outputs and targets: scale and shape tell initialization from loss",
    "uneven-position-loss": "change the tokens behind a position: if the output there changes, the mask leaks",
    "update-ratio-abnormal": "divide the learning rate by ten for a hundred steps and look at the ratios by layer",
    "validation-anomaly": "validate on a batch of the training set in eval mode: if it differs from training, it is "
    "the mode or the preprocessing",
    "weight-growth": "plot the weight norms by layer: all of them, it is the rate or the decay; one, it is that layer",
    "wrong-mode": "print model.training at the first line of a training step",
}
"""By finding, the measurement that would decide."""
ELSE = "repeat from a checkpoint with one thing changed at a time: the batch, a tenth of the rate, float32"


class Unknown(Cause):
    """The evidence does not decide.

    ## What it is
    A cause that is not in the list, or two that look the same in what was measured.

    ## How to confirm it
    Its first line of evidence says which measurement would decide.

    ## What to change
    Nothing yet, beyond what protects the run: measure first.

    ## How to see it cured
    Another cause takes the first place.

    ## When to stop
    When three measurements have not decided: show the report to somebody else, or change the approach.
    """

    name = "unknown"
    explains = tuple(detector.name for detector in DETECTORS if detector.name not in INFORMATIVE)
    prior = 0.0
    suggests = ("ask-for-help",)
    references = ("https://karpathy.github.io/2019/04/25/recipe/",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """What to measure next; no weight of its own, so that other causes are weighed against it."""
        names = [name for name in problem.names if name in NEXT]
        yield Evidence(0.0, NEXT[names[0]] if names else ELSE)
