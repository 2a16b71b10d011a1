"""mode-collapse."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import Cause, Evidence, Problem
from torchdoctor.diagnoses.findings import last_level
from torchdoctor.records import number_text
from torchdoctor.symptoms.lopsided_losses import players


class ModeCollapse(Cause):
    """The generator makes the same few samples, whatever it is given.

    ## What it is
    It has found an answer that the discriminator accepts and gives it always. The losses may look healthy, or cycle
    as the discriminator learns one answer and the generator moves to the next.

    ## How to confirm it
    Make 64 samples from different noise and look at them. Compare their standard deviation over the batch with that
    of real samples: far less, or a few clusters, is collapse.

    ## What to change
    Minibatch statistics in the discriminator, a lower generator rate, a Wasserstein loss with a gradient penalty, or
    several discriminator steps for each of the generator's.

    ## How to see it cured
    The spread of made samples comes back to that of real ones, and stays for 1,000 steps.

    ## When to stop
    When it comes back after two of these: train a likelihood or diffusion model instead.
    """

    name = "mode-collapse"
    explains = ("collapsed-output", "lopsided-losses", "loss-oscillation")
    prior = -1.2
    suggests = ("prevent-collapse", "balance-players", "scale-lr")
    references = ("https://arxiv.org/abs/1606.03498", "https://arxiv.org/abs/1704.00028")

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether there are two players, and how much their outputs still vary."""
        pair = players(chart)
        if pair is None:
            if not problem.has("lopsided-losses"):
                yield Evidence(-4.0, "no losses of two players were logged")
            return
        if problem.has("collapsed-output"):
            yield Evidence(
                2.5, f"two players train against each other ({pair[0]}, {pair[1]}), and outputs are all alike"
            )
        won, alike = problem.get("lopsided-losses"), problem.get("collapsed-output")
        if won is not None and alike is not None and won.first_step < alike.first_step:
            yield Evidence(-1.5, "one player had won before outputs were all alike")
        name, shrunk = _most_shrunk(chart)
        if shrunk < 0.2:
            what = name.removeprefix("output_spread").lstrip("/") or "the model"
            yield Evidence(
                2.5, f"the outputs of {what} vary {number_text(1 / max(shrunk, 1e-9))} times less than before"
            )
        elif shrunk > 0.5:
            yield Evidence(-2.0, "outputs vary over a batch as much as they did")


def _most_shrunk(chart: Chart) -> tuple[str, float]:
    """The model whose outputs' spread has shrunk most, and to which share; 1 to 1 where none was measured."""
    shares = []
    for name in chart.vitals:
        if name.split("/")[0] == "output_spread":
            series = chart[name]
            highest = max(bucket[2] for bucket in series.outline.buckets()) if series else 0.0
            if highest > 0 and series.count >= 3:
                shares.append((name, last_level(series, 3) / highest))
    return min(shares, key=lambda item: item[1], default=("", float("nan")))
