"""Actions on the optimizer, the schedule, the number format and the wiring between model and optimizer."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

OPTIMIZER: tuple[Action, ...] = (
    Action(
        "change-schedule",
        "optimizer",
        "ask",
        0.6,
        "Fit the schedule to the run: its real length and cadence; a cut, or a restart, when the loss stops falling.",
        when="The rate reaches zero while the loss still falls, falls per batch though it counts epochs, never moves, "
        "or stays high on a plateau.",
        code="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))\n"
        "scheduler.step()  # once an epoch if its numbers count epochs, once a batch if they count batches\n"
        "# on a plateau: ReduceLROnPlateau(optimizer, factor=0.5, patience=10)  with scheduler.step(val_loss)\n"
        "# or, to get away from it: CyclicLR(optimizer, base_lr=1e-4, max_lr=1e-3), CosineAnnealingWarmRestarts",
        check="Plot the rate over the whole run before you train: it ends where the run ends.",
        references=("https://arxiv.org/abs/1608.03983",),
    ),
    Action(
        "restart-warmup",
        "optimizer",
        "ask",
        0.6,
        "Raise the learning rate linearly over the first steps.",
        when="Trouble in the first few hundred steps of a transformer, of Adam, of a large batch, or after a resume "
        "without optimizer state. Small networks rarely need it.",
        code="warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters={steps})\n"
        "warmup.step()  # after every batch",
        check="The loss falls from the first steps on and shows no spike when the rate reaches its peak.",
        parameters={"steps": (10, 100_000)},
        references=("https://arxiv.org/abs/2002.04745", "https://arxiv.org/abs/1706.02677"),
    ),
    Action(
        "change-betas",
        "optimizer",
        "ask",
        0.6,
        "Set Adam's betas: (0.9, 0.95) after spikes, (0.9, 0.999) where the second moment is too nervous.",
        when="Spikes follow a second moment that lags behind the gradients (beta2 too high for this noise), or every "
        "step is noisy because beta2 is under 0.9, or slow swings come from beta1 of 0.99.",
        code='for group in optimizer.param_groups: group["betas"] = ({beta1}, {beta2})',
        check="No new spike in 1,000 steps; update ratios vary by less than a factor of two from step to step.",
        parameters={"beta1": (0.0, 0.99), "beta2": (0.8, 0.9999)},
        references=("https://arxiv.org/abs/2304.13013",),
    ),
    Action(
        "change-eps",
        "optimizer",
        "ask",
        0.7,
        "Set Adam's eps well below the square root of its second moment: 1e-8, or 1e-12 for tiny gradients.",
        when="Gradients are as small as eps or smaller: Adam has become SGD with a tiny rate and barely moves.",
        code='for group in optimizer.param_groups: group["eps"] = {eps}',
        check="Update ratios rise to about the learning rate divided by the weights' size, 1e-4 to 1e-2.",
        parameters={"eps": (1e-15, 1e-3)},
        references=("https://arxiv.org/abs/1412.6980",),
    ),
    Action(
        "set-momentum",
        "optimizer",
        "ask",
        0.6,
        "Set SGD's momentum, usually to 0.9.",
        when="Up from 0 on plateaus and in narrow valleys. Down from 0.99, which swings with a period of about a "
        "hundred steps. Momentum multiplies the step by 1 / (1 - momentum): scale the rate with it.",
        code='for group in optimizer.param_groups: group["momentum"] = {value}',
        check="The loss falls faster at the same noise, or slow swings of the loss disappear.",
        parameters={"value": (0.0, 0.99)},
        references=("https://proceedings.mlr.press/v28/sutskever13.html",),
    ),
    Action(
        "use-adamw",
        "optimizer",
        "show",
        0.7,
        "AdamW instead of Adam with weight_decay: Adam scales the decay away, AdamW does not.",
        when="Adam has weight_decay above zero. What it does then is L2 on the gradient, weakest where gradients are "
        "large.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)",
        check="Weight norms settle, and validation is as good or better at the same learning rate.",
        references=("https://arxiv.org/abs/1711.05101",),
    ),
    Action(
        "switch-optimizer",
        "optimizer",
        "show",
        0.55,
        "Another optimizer: AdamW for attention and sparse gradients, SGD with momentum for convolutions.",
        when="The rate has been searched over three decades and none works. Search it again after the switch: rates "
        "do not carry over.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)\n"
        "# or: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)",
        check="At its own best rate, the new one is lower at the same number of steps.",
        references=("https://arxiv.org/abs/1910.05446",),
    ),
    Action(
        "change-batch-size",
        "optimizer",
        "show",
        0.6,
        "Change the batch size, and the learning rate with it, after a warm-up.",
        when="Larger when gradients are mostly noise (noise scale far above the batch size) or BatchNorm sees four "
        "samples or fewer. Smaller when steps are few and validation is poor.",
        code="batch_size = int(batch_size * {factor})\n"
        "learning_rate *= {factor}  # linear for SGD, the square root of it for Adam, after a warm-up",
        check="The loss at the same number of samples is no worse, and less noisy.",
        parameters={"factor": (1 / 64, 64.0)},
        references=("https://arxiv.org/abs/1706.02677", "https://arxiv.org/abs/1812.06162"),
    ),
    Action(
        "change-precision",
        "optimizer",
        "ask",
        0.6,
        "An epsilon inside log, sqrt and divisions; what leaves the range of float16 in bfloat16 or float32.",
        when="float16 without a GradScaler, a loss scale that collapses, log(0), 0/0, sqrt at 0, or bfloat16 weights "
        "whose updates are rounded away.",
        code="y = torch.log(x.clamp_min(1e-7))  # and sqrt(x.clamp_min(1e-7)), a / b.clamp_min(1e-7), where 0 comes\n"
        "with torch.autocast(device_type, dtype=torch.bfloat16): ...  # on weights in float32; float16 ends at 65504",
        check="The same batch gives a finite loss and finite gradients, and agrees with float32 to two digits.",
        references=("https://pytorch.org/docs/stable/notes/amp_examples.html",),
    ),
    Action(
        "add-parameters-to-optimizer",
        "optimizer",
        "ask",
        0.95,
        "Give the optimizer the parameters that it does not hold.",
        when="Parameters get gradients and no optimizer steps them, or the optimizer holds those of an earlier model: "
        "a head was replaced, layers were added, the model was rebuilt. Layers in a plain list need nn.ModuleList.",
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)  # when the model is complete\n"
        "# or, in a run that goes on:\n"
        'held = set(id(p) for group in optimizer.param_groups for p in group["params"])\n'
        "missing = [p for p in model.parameters() if p.requires_grad and id(p) not in held]\n"
        "optimizer.add_param_group(dict(params=missing))",
        check="`missing` is empty, and after one step every trainable weight has changed.",
        references=("https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.add_param_group.html",),
    ),
    Action(
        "unfreeze",
        "optimizer",
        "ask",
        0.8,
        "Set requires_grad on the parameters that were frozen by mistake.",
        when="Layers that should learn do not require gradients. In fine-tuning a frozen trunk is right: then the "
        "frozen part is pretrained and the head is not in it.",
        code="for parameter in model.parameters(): parameter.requires_grad_(True)\n"
        "# then give them to the optimizer: torchdoctor explain add-parameters-to-optimizer",
        check="After one step the layers named by the finding have changed.",
    ),
    Action(
        "set-train-mode",
        "optimizer",
        "ask",
        0.9,
        "Call model.train() before training goes on after an evaluation.",
        when="The whole model is in eval mode in training steps: dropout is off, BatchNorm uses and keeps old "
        "statistics. A frozen trunk may stay in eval on purpose.",
        code="model.train()  # after every evaluation, before the next training step",
        check="`model.training` is True at every training step.",
        references=("https://pytorch.org/docs/stable/notes/autograd.html",),
    ),
    Action(
        "reattach-graph",
        "optimizer",
        "show",
        0.9,
        "Let the loss depend on the parameters again: no detach(), item(), no_grad() or numpy on the way.",
        when="Trainable parameters are never reached from the loss, or the same old loss is sent backward again.",
        code="outputs = model(inputs)  # anew at every step, not under torch.no_grad(), not outputs.detach()\n"
        "loss = loss_fn(outputs, targets)  # anew at every step\n"
        "x = second(first(x))  # no detach(), data, item(), numpy() or torch.tensor(x) between two layers\n"
        "assert all(p.grad is not None for p in model.parameters() if p.requires_grad)  # after backward()",
        check="Every trainable parameter has a gradient that is not None after backward().",
        references=("https://pytorch.org/docs/stable/notes/autograd.html",),
    ),
    Action(
        "restore-state",
        "optimizer",
        "show",
        0.85,
        "Load everything with a checkpoint: optimizer, schedule, scaler, sampler and random state, not weights alone.",
        when="The loss jumps, or the rate starts over, where a run was resumed.",
        code='optimizer.load_state_dict(checkpoint["optimizer"])  # beside model.load_state_dict(checkpoint["model"])\n'
        'scheduler.load_state_dict(checkpoint["scheduler"])  # and scaler, step, epoch, random state\n'
        "layer.reset_parameters()  # once, before the loop: nothing but the optimizer writes to weights inside it\n"
        "average.lerp_(parameter.detach(), 0.001)  # an average copies from the model, never into it",
        check="Save, resume and train ten steps: loss and learning rate are those of the run that was not interrupted.",
        references=("https://pytorch.org/tutorials/beginner/saving_loading_models.html",),
    ),
)
