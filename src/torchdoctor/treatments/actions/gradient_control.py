"""Actions on gradients and on the size of a step: what protects the run."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

GRADIENT_CONTROL: tuple[Action, ...] = (
    Action(
        "set-clip-norm",
        "gradient control",
        "apply",
        0.7,
        "Clip the total gradient norm between backward() and step().",
        when="Rare gradients are far above the usual norm. Set the limit to one or two times the usual norm: then "
        "ordinary steps pass untouched. With Adam a limit far below it changes little, because Adam divides by the "
        "gradient's own scale.",
        code="grad_clip = {max_norm}\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)  # after backward(), before optimizer.step()",
        check="The norm before clipping still jumps now and then, the loss no longer follows it. If more than half of "
        "all steps are clipped, the limit is too low or the learning rate too high.",
        parameters={"max_norm": (1e-12, 1e12)},
        references=("https://arxiv.org/abs/1211.5063",),
    ),
    Action(
        "set-clip-value",
        "gradient control",
        "apply",
        0.55,
        "Clip each element of the gradients between backward() and step().",
        when="Single elements are huge and the norm is not: embeddings, sparse inputs, recurrent networks. It bends "
        "the direction of the gradient; clip by norm unless you know the reason.",
        code="torch.nn.utils.clip_grad_value_(model.parameters(), {limit})  # before optimizer.step()",
        check="No element of a gradient exceeds the limit, and the loss spikes are gone within 100 steps.",
        parameters={"limit": (1e-6, 1e6)},
        references=("https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html",),
    ),
    Action(
        "adaptive-clip",
        "gradient control",
        "apply",
        0.6,
        "Clip to a multiple of the recent typical norm instead of a fixed number.",
        when="The usual norm drifts over the run, so that a fixed limit is too tight early or too loose late.",
        code="norm = torch.nn.utils.clip_grad_norm_(model.parameters(), {factor} * typical)\n"
        "norms.append(float(norm)); typical = sorted(norms[-200:])[len(norms[-200:]) // 2]  # for the next step",
        check="Between 1 % and 10 % of the steps are clipped, early and late in the run alike.",
        parameters={"factor": (1.0, 10.0)},
        references=("https://arxiv.org/abs/2007.14469",),
    ),
    Action(
        "scale-lr",
        "gradient control",
        "apply",
        0.6,
        "Lower the learning rate after an explosion or divergence; raise it where nothing moves.",
        when="Down when weights move by more than a hundredth of themselves a step, or when the loss rises as the rate "
        "rises. Up when all layers move by less than a hundred-thousandth and the loss falls in a straight line.",
        code="learning_rate *= {factor}\n"
        'for group in optimizer.param_groups: group["lr"] *= {factor}  # and the base_lrs of a schedule',
        check="Down: no new spike in 200 steps, and the loss falls below its level before the trouble. Up: the loss "
        "falls faster over the next 200 steps and no spike appears.",
        parameters={"factor": (1e-4, 1e12)},
        references=("https://arxiv.org/abs/1506.01186",),
    ),
    Action(
        "skip-step",
        "gradient control",
        "apply",
        0.6,
        "Skip the update when the loss or a gradient is not finite.",
        when="Single batches give NaN or infinity and the weights are still finite. If it happens at more than one "
        "step in a thousand, look for the reason instead.",
        code="if torch.isfinite(loss) and torch.isfinite(grad_norm): optimizer.step()\n"
        "optimizer.zero_grad(set_to_none=True)  # also when the step was skipped",
        check="The run passes the step with finite weights, and the share of skipped steps stays under 0.1 %.",
    ),
    Action(
        "skip-window",
        "gradient control",
        "apply",
        0.6,
        "Pass over the batches around the trouble: restart before it and continue behind it.",
        when="A spike comes back at the same place in the data after a restart, with other weights. As the large "
        "language models were trained: go back about 100 steps and skip 200 to 500 batches.",
        code="if {first} <= step < {last}: continue  # draw the batch, and pass over it",
        check="The run passes the place and no spike appears there. If it appears later all the same, it was not the "
        "data.",
        parameters={"first": (0, 1e15), "last": (1, 1e15)},
        references=("https://arxiv.org/abs/2204.02311",),
    ),
    Action(
        "roll-back",
        "gradient control",
        "ask",
        0.7,
        "Go back to a checkpoint from before the trouble, and skip the batches that led into it.",
        when="Weights are no longer finite, or the loss has left and does not come back. Change something as well, or "
        "it happens again: the rate, the clipping, or the batches.",
        code="model.load_state_dict(checkpoint)  # from before step {step}; optimizer and scheduler as well",
        check="The run passes the step of the trouble at a loss that is no higher than before.",
        parameters={"step": (0, 1e15)},
        references=("https://arxiv.org/abs/2204.02311",),
    ),
    Action(
        "zero-gradients",
        "gradient control",
        "ask",
        0.9,
        "Clear the gradients that have piled up, now and after every step.",
        when="Gradients of earlier steps were never cleared. Accumulation on purpose clears once per step, after it.",
        code="optimizer.zero_grad(set_to_none=True)  # once after each optimizer.step()",
        check="The gradient norm of the next step is that of one batch, and no longer grows with the number of steps.",
        references=("https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",),
    ),
    Action(
        "fix-zero-grad",
        "gradient control",
        "show",
        0.9,
        "Call zero_grad() in the loop, once per optimizer step, for every optimizer.",
        when="The loop never clears gradients, clears those of another optimizer, or clears between backward and step.",
        code="optimizer.zero_grad(set_to_none=True)\n"
        "loss = loss_fn(model(inputs), targets)\n"
        "loss.backward()\n"
        "optimizer.step()",
        check="Train 50 steps on one batch: the gradient norm falls with the loss instead of growing.",
        references=("https://pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html",),
    ),
    Action(
        "fix-accumulation",
        "gradient control",
        "show",
        0.85,
        "Divide the loss by the number of micro-batches, once, and clear gradients once per step.",
        when="Several backward passes precede a step. Not divided: the step is as many times too large with SGD. "
        "Divided twice, or cleared in between: too small.",
        code="loss = loss_fn(model(inputs), targets) / accumulation  # once, before backward()\n"
        "loss.backward()\n"
        "if number % accumulation == 0:  # number counts micro-batches from 1\n"
        "    optimizer.step(); optimizer.zero_grad(set_to_none=True)",
        check="The gradient norm does not change when you halve the micro-batch and double the accumulation.",
    ),
)
