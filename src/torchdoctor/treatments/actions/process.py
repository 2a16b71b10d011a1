"""Actions on the run and the machine: train longer, free memory, check hardware, ask for help."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

PROCESS: tuple[Action, ...] = (
    Action(
        "train-longer",
        "process",
        "ask",
        0.6,
        "Train longer, with a schedule that is as long as the run.",
        when="Training and validation loss were still falling when the run ended, or the learning rate reached zero "
        "too early.",
        code="steps = int(steps * {factor})  # and pass the new number to the scheduler",
        check="The validation loss falls below its earlier best. Stop when it has been flat for a fifth of the run.",
        parameters={"factor": (1.1, 10.0)},
        references=("https://arxiv.org/abs/2203.15556",),
    ),
    Action(
        "free-memory",
        "process",
        "show",
        0.75,
        "Keep numbers from one step to the next, not tensors with their graphs.",
        when="Device or host memory grows from step to step.",
        code="losses.append(loss.detach())  # not loss, which keeps its whole graph\n"
        "# state that is carried over: hidden = hidden.detach()",
        check="Memory use is the same after 100 and after 1,000 steps.",
        references=("https://pytorch.org/docs/stable/notes/faq.html",),
    ),
    Action(
        "check-hardware",
        "process",
        "show",
        0.6,
        "Repeat the step on another device, and look at temperature, ECC errors and clocks.",
        when="A rank or a step gives different numbers than the same computation elsewhere, or a device throttles.",
        code="nvidia-smi --query-gpu=temperature.gpu,clocks_throttle_reasons.active,"
        "ecc.errors.uncorrected.volatile.total --format=csv",
        check="The same step gives the same checksum on two devices, and step times are stable.",
        references=("https://arxiv.org/abs/2102.11245",),
    ),
    Action(
        "synchronize-ranks",
        "process",
        "show",
        0.7,
        "Start all ranks with the same weights, and average their gradients at every step.",
        when="Ranks that should hold the same weights hold different ones.",
        code="model = DistributedDataParallel(model)  # and call model(x), never model.module(x)\n"
        "# without DDP, after backward(): for p in model.parameters(): dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)\n"
        "# and once, before the first step: for t in model.state_dict().values(): dist.broadcast(t, src=0)",
        check="The checksum of the weights is the same on every rank, also after 1,000 steps.",
        references=("https://pytorch.org/docs/stable/notes/ddp.html",),
    ),
    Action(
        "ask-for-help",
        "process",
        "show",
        0.6,
        "Do not just change one more setting: change the approach, or show this report to somebody else.",
        when="Three changes in a row did not help, the same problem came back several times, or finding the cause "
        "costs more than another architecture, another formulation of the task, or better data would.",
        code="torchdoctor diagnose JOURNAL --format markdown  # and show it to a colleague",
        check="Someone else has looked at the data, the loop and this report.",
    ),
)
