"""policy-collapse."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.entropy_collapse import ENTROPIES, REWARDS, has_risen


class PolicyCollapse(Cause):
    """The policy has settled on one action before exploring the others.

    ## What it is
    Early rewards made one action more likely until only that action was tried, so nothing is learned about the others.
    Causes are large steps, too many passes over one batch, or advantages that are not normalized.

    ## How to confirm it
    The entropy of the policy falls to near zero within a small part of the run, and the return is flat. Roll out with
    random actions: if the return is as good, the policy has learned nothing.

    ## What to change
    An entropy bonus of 0.01 (decayed later), a lower learning rate, normalized advantages, clipped updates (PPO), fewer
    passes over a batch. Restart from before the collapse: a collapsed policy rarely recovers.

    ## How to see it cured
    Entropy falls slowly over most of the run, and the return rises meanwhile.

    ## When to stop
    If entropy stays high and the return is still flat, the reward is too sparse, or the observation lacks information
    that the decision needs.
    """

    name = "policy-collapse"
    explains = ("entropy-collapse", "collapsed-output", "not-learning", "loss-plateau", "gradient-vanishing")
    prior = -1.0
    suggests = ("raise-entropy", "scale-lr", "set-clip-norm", "roll-back")
    references = ("https://arxiv.org/abs/1602.01783", "https://arxiv.org/abs/1707.06347")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """How far the entropy fell, and whether the reward rose."""
        entropy = next((chart[name] for name in ENTROPIES if chart[name]), None)
        if entropy is None:
            if not problem.has("entropy-collapse"):
                yield Evidence(-4.0, "no policy entropy was logged")
            return
        now = last_level(entropy)
        if 0 <= now < 0.1 * entropy.first:
            yield Evidence(3.5, f"the entropy fell from {number_text(entropy.first)} to {number_text(now)}")
        elif now > 0.3 * entropy.first > 0:
            yield Evidence(-3.0, f"the entropy is still {number_text(now)}")
        reward = next((name for name in REWARDS if chart[name].count >= 20), None)
        if reward is not None:
            if has_risen(chart, reward):
                yield Evidence(-3.0, f"{reward} has risen")
            else:
                yield Evidence(1.5, f"{reward} has not risen")
