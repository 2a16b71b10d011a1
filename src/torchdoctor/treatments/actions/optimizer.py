"""Actions on the optimizer, the schedule, the number format and the link between model and optimizer."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

OPTIMIZER: tuple[Action, ...] = (
    Action(
        "change-schedule",
        "optimizer",
        "ask",
        0.6,
        "Match the schedule to the run: its length, one step per batch or epoch, a drop or restart on a plateau.",
        when="The learning rate reaches zero while the loss still falls, falls every batch although the schedule "
        "counts epochs, never changes, or stays high on a plateau.",
        code="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))\n"
        "scheduler.step()  # once per epoch if its numbers count epochs, once per batch if they count batches\n"
        'scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min")  # if it is given a loss\n'
        'scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")  # if it is given an accuracy\n'
        "# for a plateau of the loss: factor=0.5, patience=10, and scheduler.step(val_loss) after each validation\n"
        "# or, to escape it: CyclicLR(optimizer, base_lr=1e-4, max_lr=1e-3), CosineAnnealingWarmRestarts",
        check="Plot the learning rate over the whole run before you train: the schedule ends when the run ends.",
        references=("https://arxiv.org/abs/1608.03983",),
    ),
    Action(
        "restart-warmup",
        "optimizer",
        "ask",
        0.6,
        "Raise the learning rate linearly over the first steps.",
        when="Problems in the first few hundred steps of a transformer, with Adam, with a large batch, or after a "
        "resume without optimizer state. Small networks rarely need it.",
        code="warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters={steps})\n"
        "warmup.step()  # after every batch",
        check="The loss falls from the first steps on and does not spike when the learning rate reaches its peak.",
        parameters={"steps": (10, 100_000)},
        references=("https://arxiv.org/abs/2002.04745", "https://arxiv.org/abs/1706.02677"),
    ),
    Action(
        "change-betas",
        "optimizer",
        "ask",
        0.6,
        "Set Adam's betas: (0.9, 0.95) after spikes, (0.9, 0.999) if the second moment is too noisy.",
        when="Spikes occur because the second moment lags behind the gradients (beta2 too high), every step is noisy "
        "because beta2 is below 0.9, or the loss swings slowly because beta1 is 0.99.",
        code='for group in optimizer.param_groups: group["betas"] = ({beta1}, {beta2})',
        check="No new spike in 1,000 steps, and update ratios change by less than a factor of 2 from step to step.",
        parameters={"beta1": (0.0, 0.99), "beta2": (0.8, 0.9999)},
        references=("https://arxiv.org/abs/2304.13013",),
    ),
    Action(
        "change-eps",
        "optimizer",
        "ask",
        0.7,
        "Set Adam's eps well below the square root of its second moment: 1e-8, or 1e-12 for tiny gradients.",
        when="Gradients are as small as eps or smaller: Adam then acts like SGD with a tiny learning rate.",
        code='for group in optimizer.param_groups: group["eps"] = {eps}',
        check="Update ratios rise to about the learning rate divided by the size of the weights, 1e-4 to 1e-2.",
        parameters={"eps": (1e-15, 1e-3)},
        references=("https://arxiv.org/abs/1412.6980",),
    ),
    Action(
        "set-momentum",
        "optimizer",
        "ask",
        0.6,
        "Set SGD's momentum, usually to 0.9.",
        when="Raise it from 0 on plateaus and in narrow valleys. Lower it from 0.99, which makes the loss swing with a "
        "period of about a hundred steps. Momentum multiplies the step by 1 / (1 - momentum), so adapt the learning "
        "rate.",
        code='for group in optimizer.param_groups: group["momentum"] = {value}',
        check="The loss falls faster with the same noise, or slow swings of the loss disappear.",
        parameters={"value": (0.0, 0.99)},
        references=("https://proceedings.mlr.press/v28/sutskever13.html",),
    ),
    Action(
        "use-adamw",
        "optimizer",
        "show",
        0.7,
        "Use AdamW instead of Adam with weight_decay: Adam rescales the decay, AdamW applies it directly.",
        when="Adam has weight_decay above zero. It then adds an L2 gradient, which is weakest for weights with large "
        "gradients.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)",
        check="Weight norms settle, and validation is no worse at the same learning rate.",
        references=("https://arxiv.org/abs/1711.05101",),
    ),
    Action(
        "switch-optimizer",
        "optimizer",
        "show",
        0.55,
        "Use another optimizer: AdamW for attention and sparse gradients, SGD with momentum for convolutions.",
        when="No learning rate works within three orders of magnitude. Search again after the switch: learning rates "
        "do not carry over.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)\n"
        "# or: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)",
        check="At its own best learning rate, the new optimizer reaches a lower loss in the same number of steps.",
        references=("https://arxiv.org/abs/1910.05446",),
    ),
    Action(
        "change-batch-size",
        "optimizer",
        "show",
        0.6,
        "Change the batch size and the learning rate together, with a warm-up.",
        when="Larger: gradients are mostly noise (noise scale far above the batch size), or BatchNorm sees four "
        "samples or fewer. Smaller: the run has few steps and poor validation.",
        code="batch_size = int(batch_size * {factor})\n"
        "learning_rate *= {factor}  # for SGD; for Adam its square root; with a warm-up",
        check="After the same number of samples, the loss is no worse and less noisy.",
        parameters={"factor": (1 / 64, 64.0)},
        references=("https://arxiv.org/abs/1706.02677", "https://arxiv.org/abs/1812.06162"),
    ),
    Action(
        "change-precision",
        "optimizer",
        "ask",
        0.6,
        "Guard log, sqrt and divisions against 0; use bfloat16 or float32 for values beyond the range of float16.",
        when="The run has float16 without a GradScaler, a loss scale that collapses, log(0), 0/0, sqrt at 0, or "
        "bfloat16 weights whose updates are rounded away.",
        code="y = torch.log(x.clamp_min(1e-7))  # if 0 occurs; also sqrt(x.clamp_min(1e-7)), a / b.clamp_min(1e-7)\n"
        "with torch.autocast(device_type, dtype=torch.bfloat16): ...  # weights in float32; float16 ends at 65504\n"
        "scaler.scale(loss).backward()  # scaler = torch.amp.GradScaler(); scaler.step(optimizer); scaler.update()",
        check="The same batch gives a finite loss and finite gradients that agree with float32 to two digits.",
        references=("https://pytorch.org/docs/stable/notes/amp_examples.html",),
    ),
    Action(
        "add-parameters-to-optimizer",
        "optimizer",
        "ask",
        0.95,
        "Give the optimizer the parameters that it is missing.",
        when="Parameters get gradients but no optimizer updates them, or the optimizer holds those of an earlier "
        "model: a head was replaced, layers were added, the model was rebuilt. Layers in a plain list need "
        "nn.ModuleList.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)  # when the model is complete\n"
        "# or, to continue the run:\n"
        'held = set(id(p) for group in optimizer.param_groups for p in group["params"])\n'
        "missing = [p for p in model.parameters() if p.requires_grad and id(p) not in held]\n"
        "optimizer.add_param_group(dict(params=missing))\n"
        "self.layers = torch.nn.ModuleList(layers)  # if they are in a plain list or dict\n"
        "self.head = torch.nn.Linear(width, classes)  # if forward() creates it: in __init__ instead\n"
        "for item in optimizers: item.step()  # if one of the optimizers never steps",
        check="`missing` is empty, and every trainable weight changes in one step.",
        references=("https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html",),
    ),
    Action(
        "unfreeze",
        "optimizer",
        "ask",
        0.8,
        "Let the parameters learn that were frozen by mistake: by requires_grad, or by a learning rate of 0.",
        when="Layers that should learn do not require gradients, or their parameter group has a learning rate of 0. In "
        "fine-tuning, a frozen backbone is right if it is pretrained and does not include the head.",
        code="for parameter in model.parameters(): parameter.requires_grad_(True)\n"
        "# then give them to the optimizer: torchdoctor explain add-parameters-to-optimizer\n"
        'for group in optimizer.param_groups: group["lr"] = group["lr"] or learning_rate  '
        "# instead of 0, before the scheduler is built",
        check="The layers named by the finding change in one step.",
    ),
    Action(
        "set-train-mode",
        "optimizer",
        "ask",
        0.9,
        "Call model.train() before training continues after an evaluation.",
        when="The whole model is in eval mode in training steps: dropout is off, and BatchNorm uses old statistics and "
        "does not update them. A frozen backbone may stay in eval mode on purpose.",
        code="model.train()  # after every evaluation, before the next training step",
        check="`model.training` is True at every training step.",
        references=("https://pytorch.org/docs/stable/notes/autograd.html",),
    ),
    Action(
        "reattach-graph",
        "optimizer",
        "show",
        0.9,
        "Connect the loss to the parameters again: no detach(), item(), no_grad() or numpy in between.",
        when="Trainable parameters cannot be reached from the loss, or backward() is called on an old loss again.",
        code="outputs = model(inputs)  # again at every step, not under torch.no_grad(), not outputs.detach()\n"
        "loss = loss_fn(outputs, targets)  # again at every step\n"
        "x = second(first(x))  # no detach(), data, item(), numpy() or torch.tensor(x) between two layers\n"
        "assert all(p.grad is not None for p in model.parameters() if p.requires_grad)  # after backward()\n"
        "doctor.log_loss(loss)  # the loss of this step, not one kept from before",
        check="Every trainable parameter has a gradient that is not None after backward().",
        references=("https://pytorch.org/docs/stable/notes/autograd.html",),
    ),
    Action(
        "restore-state",
        "optimizer",
        "show",
        0.85,
        "Resume with the complete state: optimizer, scheduler, scaler, sampler and random state, not only weights.",
        when="The loss jumps or the learning rate starts over when a run is resumed.",
        code='optimizer.load_state_dict(checkpoint["optimizer"])  # and model.load_state_dict(checkpoint["model"])\n'
        'scheduler.load_state_dict(checkpoint["scheduler"])  # and scaler, step, epoch, random state\n'
        "layer.reset_parameters()  # once, before the loop: inside it, only the optimizer writes to weights\n"
        "average.lerp_(parameter.detach(), 0.001)  # an average copies from the model, never into it",
        check="After saving and resuming, ten steps give the same losses and learning rates as the uninterrupted run.",
        references=("https://pytorch.org/tutorials/beginner/saving_loading_models.html",),
    ),
)
