"""mode-collapse."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.lopsided_losses import players


class ModeCollapse(Cause):
    """The generator produces the same few samples for every input.

    ## What it is
    The generator has found a sample that the discriminator accepts, and always returns it. The losses may look healthy,
    or cycle as the discriminator learns to reject one sample and the generator moves on to the next.

    ## How to confirm it
    Generate 64 samples from different noise and look at them. Compare their standard deviation over the batch with that
    of real samples: if it is far lower, or there are only a few clusters, the generator has collapsed.

    ## What to change
    Minibatch statistics in the discriminator, a lower learning rate for the generator, a Wasserstein loss with a
    gradient penalty, or several discriminator steps per generator step.

    ## How to see it cured
    The spread of generated samples returns to that of real ones and stays there for 1,000 steps.

    ## When to stop
    If the collapse comes back after two of these changes, train a likelihood or diffusion model instead.
    """

    name = "mode-collapse"
    explains = ("collapsed-output", "lopsided-losses", "loss-oscillation")
    prior = -1.2
    suggests = ("prevent-collapse", "balance-players", "scale-lr")
    references = ("https://arxiv.org/abs/1606.03498", "https://arxiv.org/abs/1704.00028")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether two players train against each other, and how much their outputs still vary."""
        pair = players(chart)
        if pair is None:
            if not problem.has("lopsided-losses"):
                yield Evidence(-4.0, "no pair of generator and discriminator losses was logged")
            return
        if problem.has("collapsed-output"):
            yield Evidence(
                2.5, f"two models train against each other ({pair[0]}, {pair[1]}), and outputs are all alike"
            )
        won, alike = problem.get("lopsided-losses"), problem.get("collapsed-output")
        if won is not None and alike is not None and won.first_step < alike.first_step:
            yield Evidence(-1.5, "one of the two models had won before the outputs became alike")
        name, shrunk = _most_shrunk(chart)
        if shrunk < 0.2:
            what = name.removeprefix("output_spread").lstrip("/") or "the model"
            yield Evidence(
                2.5, f"the outputs of {what} vary {number_text(1 / max(shrunk, 1e-9))} times less than at their peak"
            )
        elif shrunk > 0.5:
            yield Evidence(-2.0, "outputs vary over a batch about as much as before")


def _most_shrunk(chart: Chart) -> tuple[str, float]:
    """The model whose output spread has shrunk most, and its share of the peak; ("", NaN) if none was measured."""
    shares = []
    for name in chart.vitals:
        if name.split("/")[0] == "output_spread":
            series = chart[name]
            highest = max(bucket[2] for bucket in series.outline.buckets()) if series else 0.0
            if highest > 0 and series.count >= 3:
                shares.append((name, last_level(series, 3) / highest))
    return min(shares, key=lambda item: item[1], default=("", float("nan")))
