"""Actions against too little and too much regularization."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

REGULARIZATION: tuple[Action, ...] = (
    Action(
        "raise-dropout",
        "regularization",
        "ask",
        0.6,
        "Raise dropout by 0.1, up to 0.5.",
        when="Validation gets worse while training improves. Begin with 0.1 to 0.3; more than 0.5 hinders learning. It "
        "helps little in convolutional networks with BatchNorm.",
        code="dropout += 0.1  # to {rate}; if there is none yet, torch.nn.Dropout({rate}) before the last layers\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Dropout): module.p = {rate}",
        blind="dropout += 0.1  # 0.5 at most\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Dropout): module.p = min(module.p + 0.1, 0.5)",
        check="Over the next evaluations the gap shrinks and the best validation loss improves. It is normal that the "
        "training loss rises a little.",
        parameters={"rate": (0.05, 0.5)},
        references=("https://jmlr.org/papers/v15/srivastava14a.html",),
    ),
    Action(
        "lower-dropout",
        "regularization",
        "ask",
        0.65,
        "Lower dropout: the model sees too little to fit the data.",
        when="Training and validation loss are both high, and the training loss in eval mode is far below that in "
        "train mode. Rates of 0.7 and above rarely help.",
        code="dropout = {rate}\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Dropout): module.p = {rate}",
        check="The training loss falls at once and validation follows. If the gap between them grows, go halfway back.",
        parameters={"rate": (0.0, 0.5)},
        references=("https://jmlr.org/papers/v15/srivastava14a.html",),
    ),
    Action(
        "lower-penalty",
        "regularization",
        "show",
        0.75,
        "Lower the weight of the penalty, or raise it slowly from zero.",
        when="A penalty dominates the loss: the codes of an autoencoder collapse to the prior, or weights are pulled "
        "to zero.",
        code="loss = main_loss + weight * penalty  # weight: a tenth of its value, or from 0 up over the first epochs",
        check="The main loss falls again, and the penalty settles above zero.",
        references=("https://arxiv.org/abs/1511.06349",),
    ),
    Action(
        "set-weight-decay",
        "regularization",
        "ask",
        0.55,
        "Set weight decay on the weight matrices, between 0.01 and 0.1.",
        when="Raise it if the model overfits; lower it if weight norms shrink and the loss stays high. Do not apply it "
        "to biases, norms and embeddings. Use AdamW: Adam rescales the decay.",
        code="weight_decay = {value}\n"
        'for group in optimizer.param_groups: group["weight_decay"] = weight_decay  # and 0 again for biases and norms',
        check="Weight norms settle instead of growing or shrinking without end, and validation improves over the next "
        "evaluations.",
        parameters={"value": (0.01, 0.1)},
        references=("https://arxiv.org/abs/1711.05101",),
    ),
    Action(
        "stop-at-best",
        "regularization",
        "ask",
        0.7,
        "Keep the weights that gave the best validation loss.",
        when="Validation has become worse over several evaluations, by more than its noise. Not in a double descent "
        "that you want to train through.",
        code='model.load_state_dict(torch.load("best.pt", weights_only=True))  # of step {step}\n'
        "# and at each validation:\n"
        'if val_loss < best: best = val_loss; torch.save(model.state_dict(), "best.pt")',
        blind='model.load_state_dict(torch.load("best.pt", weights_only=True))  # of the best validation\n'
        "# and at each validation:\n"
        'if val_loss < best: best = val_loss; torch.save(model.state_dict(), "best.pt")',
        check="The weights that you keep give the best logged validation loss.",
        parameters={"step": (0, 1e15)},
    ),
    Action(
        "keep-training",
        "regularization",
        "show",
        0.6,
        "Do not stop at the peak: the validation loss is in its second descent.",
        when="The validation loss rose and then fell below its earlier best, and the model is large enough to fit all "
        "training data.",
        code="patience = 10 * evaluations_so_far  # early stopping would have ended the run at the peak",
        check="The validation loss keeps falling. If it rises again for as long as it fell, stop at its best.",
        references=("https://arxiv.org/abs/1912.02292",),
    ),
    Action(
        "ensemble",
        "regularization",
        "show",
        0.5,
        "Average the predictions of several models, or the weights of one run.",
        when="The errors are mostly variance: runs with different seeds differ by more than the gain that you need.",
        code="average = torch.optim.swa_utils.AveragedModel(model)  # average.update_parameters(model) each epoch\n"
        "prediction = torch.stack([member(inputs).softmax(-1) for member in members]).mean(0)",
        check="The average is better on validation than the best single model.",
        references=("https://arxiv.org/abs/1803.05407",),
    ),
    Action(
        "cross-validate",
        "regularization",
        "show",
        0.5,
        "Measure on several splits before you trust a difference.",
        when="The validation set is small: with a few hundred samples, its noise exceeds the differences that you "
        "compare.",
        code="folds = torch.utils.data.random_split(dataset, [0.2] * 5)\n"
        "# train five times, each time without one of them; compare mean and spread",
        check="The difference between two settings is larger than the spread over the folds.",
    ),
    Action(
        "balance-players",
        "regularization",
        "show",
        0.6,
        "Slow down the winning player: fewer steps, a lower learning rate, label smoothing or a gradient penalty.",
        when="One of two adversarial losses goes to zero while the other rises, or the discriminator is always right.",
        code='for group in d_optimizer.param_groups: group["lr"] *= {factor}\n'
        "real_labels = torch.full_like(d_real, 0.9)  # one-sided label smoothing",
        check="Both losses stay in a narrow range, and the discriminator is right in 60 to 80 % of the cases.",
        parameters={"factor": (0.01, 1.0)},
        references=("https://arxiv.org/abs/1706.08500", "https://arxiv.org/abs/1704.00028"),
    ),
    Action(
        "raise-entropy",
        "regularization",
        "show",
        0.6,
        "Add an entropy bonus, so that the policy keeps exploring.",
        when="The entropy of a policy falls to almost zero while the return is still flat.",
        code="loss = policy_loss + value_loss - {weight} * entropy.mean()",
        check="Entropy falls slowly over the run, and the return rises while it falls.",
        parameters={"weight": (1e-4, 0.1)},
        references=("https://arxiv.org/abs/1602.01783",),
    ),
)
