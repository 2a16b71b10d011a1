"""memory-leak."""

from __future__ import annotations

from collections.abc import Iterator

from torchdoctor.chart import Chart
from torchdoctor.diagnoses.cause import CERTAIN, Cause, Evidence, Problem


class MemoryLeak(Cause):
    """The loop keeps tensors or objects from earlier steps, so memory grows.

    ## What it is
    Usually a graph: `total_loss += loss` keeps every step's activations alive. Outputs in a list, a hidden state passed
    on without `detach()` and `retain_graph=True` do the same. On the host: growing lists, a cache in every worker,
    open figures.

    ## How to confirm it
    Memory grows by the same amount at every step, for example between step 200 and step 1,000.
    `torch.cuda.memory._record_memory_history()` shows which lines allocated the memory that is still in use.

    ## What to change
    `total_loss += loss.item()`; `hidden = hidden.detach()`; `outputs.append(output.detach().cpu())`, or keep none.

    ## How to see it cured
    Memory is flat after the first hundred steps.

    ## When to stop
    If memory levels off below the limit, it is a cache, not a leak.
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
            yield Evidence(CERTAIN, f"graphs of earlier steps are kept since step {chart.fact('graph.kept')}")
            return
        if growth is None:
            seen = chart["memory"] or chart["host_memory"]
            yield Evidence(-3.0 if seen else -1.5, "memory does not grow much" if seen else "memory was not measured")
            if slower is not None and "grows with every step" in slower.message and not chart["memory"]:
                # Host memory is measured coarsely only; on a device, every tensor is counted.
                yield Evidence(
                    4.5, f"steps get slower at a constant rate since step {slower.first_step}: something grows"
                )
            return
        # Weak evidence: buffers and caches grow like this too, and a kept graph is detected separately.
        yield Evidence(1.0, f"memory has grown at a constant rate since step {growth.first_step}, and none was freed")
        if slower is not None:
            yield Evidence(1.0, "steps get slower at the same time")
