"""memory-leak."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem


class MemoryLeak(Cause):
    """The loop keeps what it should let go.

    ## What it is
    Most often a graph: `total_loss += loss` keeps every step's activations alive; so do outputs in a list, a hidden
    state that is carried on without `detach()`, and `retain_graph=True`. On the host: lists that grow, caches in every
    worker, open figures.

    ## How to confirm it
    Memory after 1,000 steps is above that after 200, by the same amount for every step.
    `torch.cuda.memory._record_memory_history()` shows the lines that allocated what is still there.

    ## What to change
    `total_loss += loss.item()`; `hidden = hidden.detach()`; `outputs.append(output.detach().cpu())`, or do not keep it.

    ## How to see it cured
    Memory is flat after the first hundred steps.

    ## When to stop
    When memory levels off below the limit: then it is a cache, not a leak.
    """

    name = "memory-leak"
    explains = ("memory-growth", "step-time-regression")
    prior = -0.3
    suggests = ("free-memory",)
    references = ("https://pytorch.org/docs/stable/notes/faq.html",)

    def weigh(self, chart: Chart, problem: Problem) -> Iterator[Evidence]:
        """Whether memory grows, and whether steps become slower with it."""
        growth = problem.get("memory-growth")
        slower = problem.get("step-time-regression")
        if growth is not None and chart.fact("graph.kept") is not None:
            yield Evidence(CERTAIN, f"graphs of steps that are over are held since step {chart.fact('graph.kept')}")
            return
        if growth is None:
            seen = chart["memory"] or chart["host_memory"]
            yield Evidence(-3.0 if seen else -1.5, "memory does not grow much" if seen else "memory is not known")
            if slower is not None and "grows with every step" in slower.message and not chart["memory"]:
                # A host's memory is known in rough pieces only; every tensor that a device holds is counted.
                yield Evidence(4.5, f"steps become slower at one pace since step {slower.first_step}: something grows")
            return
        # Buffers and caches grow like that too, and a graph that is held is a fact of its own.
        yield Evidence(1.0, f"memory has grown at one pace since step {growth.first_step}, and nothing was given back")
        if slower is not None:
            yield Evidence(1.0, "steps become slower at the same time")
