"""Actions on gradients and step size: they protect the run."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

GRADIENT_CONTROL: tuple[Action, ...] = (
    Action(
        "set-clip-norm",
        "gradient control",
        "apply",
        0.7,
        "Clip the total gradient norm between backward() and step().",
        when="A few gradients are far above the usual norm. Set the limit to one or two times the usual norm, so that "
        "ordinary steps are not clipped. With Adam, a much lower limit changes little, because Adam divides by the "
        "scale of the gradient.",
        code="grad_clip = {max_norm}\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)  # after backward(), before optimizer.step()\n"
        "scaler.unscale_(optimizer)  # before clipping, if a GradScaler scales the loss",
        check="The norm before clipping may still jump, but the loss no longer does. If more than half of all steps "
        "are clipped, the limit is too low or the learning rate too high.",
        parameters={"max_norm": (1e-12, 1e12)},
        references=("https://arxiv.org/abs/1211.5063",),
    ),
    Action(
        "set-clip-value",
        "gradient control",
        "apply",
        0.55,
        "Clip each element of the gradients between backward() and step().",
        when="Single elements are huge but the norm is not: embeddings, sparse inputs, recurrent networks. It changes "
        "the direction of the gradient, so clip by norm unless you have a reason not to.",
        code="torch.nn.utils.clip_grad_value_(model.parameters(), {limit})  # before optimizer.step()",
        check="No element of a gradient exceeds the limit, and there are no loss spikes in the next 100 steps.",
        parameters={"limit": (1e-6, 1e6)},
        references=("https://pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_value_.html",),
    ),
    Action(
        "adaptive-clip",
        "gradient control",
        "apply",
        0.6,
        "Clip to a multiple of the typical recent norm instead of a fixed number.",
        when="The usual norm drifts during the run, so a fixed limit is too tight early or too loose late.",
        code="norm = torch.nn.utils.clip_grad_norm_(model.parameters(), {factor} * typical)\n"
        "norms.append(float(norm)); typical = sorted(norms[-200:])[len(norms[-200:]) // 2]  # for the next step",
        check="Between 1 % and 10 % of the steps are clipped, both early and late in the run.",
        parameters={"factor": (1.0, 10.0)},
        references=("https://arxiv.org/abs/2007.14469",),
    ),
    Action(
        "scale-lr",
        "gradient control",
        "apply",
        0.6,
        "Lower the learning rate after an explosion or divergence; raise it if the weights hardly move.",
        when="Lower it if a step changes the weights by more than 1 % of their norm, or if the loss rises when the "
        "learning rate rises. Raise it if steps change all layers by less than 0.001 % and the loss falls in a "
        "straight line.",
        code="learning_rate *= {factor}\n"
        'for group in optimizer.param_groups: group["lr"] *= {factor}  # and the base_lrs of a scheduler',
        check="Down: no new spike in 200 steps, and the loss falls below its level before the problem. Up: the loss "
        "falls faster over the next 200 steps, without spikes.",
        parameters={"factor": (1e-4, 1e12)},
        references=("https://arxiv.org/abs/1506.01186",),
    ),
    Action(
        "skip-step",
        "gradient control",
        "apply",
        0.6,
        "Skip the update when the loss or a gradient is not finite.",
        when="Single batches give NaN or infinity, but the weights are still finite. If it happens at more than one "
        "step in a thousand, find the cause instead.",
        code="if torch.isfinite(loss) and torch.isfinite(grad_norm): optimizer.step()\n"
        "optimizer.zero_grad(set_to_none=True)  # also if the step was skipped",
        check="The run passes this step with finite weights, and less than 0.1 % of the steps are skipped.",
    ),
    Action(
        "skip-window",
        "gradient control",
        "apply",
        0.6,
        "Restart before the problem and skip the batches around it.",
        when="A spike comes back at the same place in the data after a restart from earlier weights. PaLM was trained "
        "this way: go back about 100 steps and skip 200 to 500 batches.",
        code="if {first} <= step < {last}: continue  # load the batch, but do not train on it",
        check="The run passes this place without a spike. If the spike appears later anyway, the data were not the "
        "cause.",
        parameters={"first": (0, 1e15), "last": (1, 1e15)},
        references=("https://arxiv.org/abs/2204.02311",),
    ),
    Action(
        "roll-back",
        "gradient control",
        "ask",
        0.7,
        "Go back to a checkpoint from before the problem, and change what led to it.",
        when="The weights are no longer finite, or the loss rose and does not come back. Also change the learning "
        "rate, the clipping or the batches, or it happens again.",
        code="model.load_state_dict(checkpoint)  # from before step {step}; optimizer and scheduler as well",
        check="The run passes the step of the problem, and its loss is no higher than before.",
        parameters={"step": (0, 1e15)},
        references=("https://arxiv.org/abs/2204.02311",),
    ),
    Action(
        "zero-gradients",
        "gradient control",
        "ask",
        0.9,
        "Clear the accumulated gradients, now and after every step.",
        when="Gradients of earlier steps were never cleared. With intended accumulation, clear once after each step.",
        code="optimizer.zero_grad(set_to_none=True)  # once after each optimizer.step()",
        check="The gradient norm of the next step is that of a single batch and no longer grows with every step.",
        references=("https://pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",),
    ),
    Action(
        "fix-zero-grad",
        "gradient control",
        "show",
        0.9,
        "Call zero_grad() in the loop, once per optimizer step, for every optimizer; never between backward() and "
        "step().",
        when="The loop never clears gradients, clears those of another optimizer, or clears them between backward() "
        "and step().",
        code="optimizer.zero_grad(set_to_none=True)  # before backward(); move it if it is between backward() and "
        "step()\n"
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
        when="Several backward passes precede each step. If the loss is not divided, gradients are that many times too "
        "large. If it is divided twice, or gradients are cleared in between, they are too small.",
        code="loss = loss_fn(model(inputs), targets) / accumulation  # once, before backward()\n"
        "loss.backward()\n"
        "if number % accumulation == 0:  # number counts micro-batches from 1\n"
        "    optimizer.step(); optimizer.zero_grad(set_to_none=True)",
        check="The gradient norm stays the same if you halve the micro-batch and double the number of micro-batches.",
    ),
)
