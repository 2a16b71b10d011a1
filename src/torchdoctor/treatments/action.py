"""The actions: what can be changed, as data; nothing here imports torch or is ever run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchdoctor.records import Safety

Kind = Literal["gradient control", "regularization", "optimizer", "data", "architecture", "process"]

PRIORITY: dict[Kind, int] = {
    "gradient control": 1,
    "regularization": 2,
    "optimizer": 3,
    "data": 3,
    "architecture": 4,
    "process": 5,
}
"""Which kind of change comes first when several troubles meet: what protects the run before what reshapes it."""


@dataclass(frozen=True)
class Action:
    """One thing that can be changed."""

    slug: str
    kind: Kind
    safety: Safety
    """"apply": may be done in the loop unasked; "ask": after a question; "show": by hand only."""
    prior: float
    """Confidence where no cause or finding has a better-founded one."""
    summary: str
    code: str
    """What to paste; ``{name}`` stands for a parameter."""
    parameters: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The valid range of each parameter."""

    @property
    def priority(self) -> int:
        """Its place in the queue, 1 first."""
        return PRIORITY[self.kind]


ACTIONS: tuple[Action, ...] = (
    Action(
        "set-clip-norm", "gradient control", "apply", 0.7,
        "Clip the total gradient norm between backward() and step().",
        "grad_clip = {max_norm}\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)  # before optimizer.step()",
        {"max_norm": (1e-12, 1e12)},
    ),
    Action(
        "scale-lr", "gradient control", "apply", 0.6,
        "Multiply the learning rate: 0.5 and less after explosion or divergence, 2 and more where nothing moves.",
        "learning_rate *= {factor}\n"
        'for group in optimizer.param_groups: group["lr"] *= {factor}  # and the base_lrs of a schedule',
        {"factor": (1e-4, 10.0)},
    ),
    Action(
        "skip-step", "gradient control", "apply", 0.6,
        "Skip the update when the loss or a gradient is not finite.",
        "if torch.isfinite(loss) and torch.isfinite(grad_norm): optimizer.step()",
    ),
    Action(
        "raise-dropout", "regularization", "ask", 0.6,
        "Raise dropout by 0.1, up to 0.5.",
        "dropout += 0.1  # to {rate}\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Dropout): module.p = {rate}",
        {"rate": (0.05, 0.5)},
    ),
    Action(
        "set-weight-decay", "regularization", "ask", 0.55,
        "Set weight decay on the weight matrices, between 0.01 and 0.1.",
        "weight_decay = {value}\n"
        'for group in optimizer.param_groups: group["weight_decay"] = weight_decay  # matrices only',
        {"value": (0.01, 0.1)},
    ),
    Action(
        "stop-at-best", "regularization", "ask", 0.7,
        "Keep the weights of the step with the best validation loss.",
        "model.load_state_dict(best_weights)  # of step {step}",
        {"step": (0, 1e15)},
    ),
    Action(
        "change-schedule", "optimizer", "ask", 0.6,
        "Fit the schedule to the run: its real length, or a cut when the loss stops falling.",
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5)  # scheduler.step(val_loss)",
    ),
    Action(
        "restart-warmup", "optimizer", "ask", 0.6,
        "Raise the learning rate linearly over the first steps.",
        "warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters={steps})\n"
        "warmup.step()  # after every batch",
        {"steps": (10, 100_000)},
    ),
    Action(
        "change-precision", "optimizer", "show", 0.6,
        "Compute the part that overflows in bfloat16 or float32, with an epsilon inside log, sqrt and divisions.",
        "with torch.autocast(device_type, dtype=torch.bfloat16): ...  # float16 ends at 65504",
    ),
    Action(
        "clean-data", "data", "show", 0.6,
        "Look at the batch of the step, repair or drop it, and check batches before the model sees them.",
        "assert torch.isfinite(inputs).all() and inputs.abs().max() < limit  # the batch of step {step}",
        {"step": (0, 1e15)},
    ),
    Action(
        "augment-data", "data", "show", 0.6,
        "Augment the training data, or get more of it.",
        "dataset = torch.utils.data.ConcatDataset([dataset, more_data])  # or augment in its transform",
    ),
    Action(
        "use-relu-family", "architecture", "show", 0.7,
        "ReLU, LeakyReLU, GELU or ELU instead of sigmoid and tanh between layers.",
        "activation = torch.nn.LeakyReLU()  # instead of Sigmoid or Tanh between layers",
    ),
    Action(
        "add-residuals", "architecture", "show", 0.7,
        "Residual connections with normalization, so that the gradient has a short way back.",
        "x = x + layer(norm(x))  # instead of x = layer(x)",
    ),
    Action(
        "roll-back", "process", "ask", 0.7,
        "Go back to a checkpoint from before the trouble, and skip the batches that led into it.",
        "model.load_state_dict(checkpoint)  # from before step {step}; optimizer and scheduler as well",
        {"step": (0, 1e15)},
    ),
    Action(
        "ask-for-help", "process", "show", 0.6,
        "Stop changing one number after the other: the same trouble came back several times. Change the approach.",
        "torchdoctor diagnose JOURNAL --format markdown  # and show it to a colleague",
    ),
)  # fmt: skip
