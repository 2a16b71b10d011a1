"""MU01 multiple-pathologies."""

from __future__ import annotations

from dataclasses import dataclass

from torchdoctor.chart import Chart
from torchdoctor.records import INFORMATIVE, Symptom
from torchdoctor.symptoms.detector import Detector


@dataclass(frozen=True)
class MultiplePathologies(Detector):
    """Several pathologies are seen at the same time.

    ## What it means
    Several findings at the same time usually have one cause: a learning rate that is too high shows as explosion,
    spike and divergence. Treat the cause that explains them together, not each finding separately.

    ## How it is told apart
    Only findings of severity warning or higher within the same window count, and each name counts once. This is info
    and does not change the run's health.

    ## What to do
    Follow the first suggestion of the merged list: gradient control comes before regularization, and that before
    changes of architecture.

    ## How to see that it is cured
    At most one finding remains.

    ## Example
    >>> chart = Chart.of(loss=[2.0] * 10)
    >>> for name in ("gradient-explosion", "loss-spike"):
    ...     chart.open_episodes[name] = Symptom(name, "", "warning", 0.9, 8, 9)
    >>> print(MultiplePathologies().check(chart))
    step 9: MU01 multiple-pathologies (info): 2 findings at once: gradient-explosion, loss-spike
    """

    code = "MU01"
    name = "multiple-pathologies"
    reads = ("symptoms",)
    suggests = ("ask-for-help",)
    references = ("https://arxiv.org/abs/2204.02311",)
    closes_after = 1

    window: int = 50
    """Latest steps within which the findings must have been seen."""

    def check(self, chart: Chart) -> Symptom | None:
        """Count the open episodes seen within the window."""
        together = [
            episode
            for episode in chart.open_episodes.values()
            if episode.name not in INFORMATIVE
            and episode.severity != "info"
            and episode.last_step > chart.step - self.window
        ]
        if len(together) < 2:
            return None
        together.sort(key=lambda episode: episode.first_step)
        message = f"{len(together)} findings at once: {', '.join(episode.name for episode in together)}"
        return self.symptom(chart, "info", message, value=float(len(together)), limit=1.0)
