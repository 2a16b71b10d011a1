"""Actions on data, labels and the loss that compares them."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

DATA: tuple[Action, ...] = (
    Action(
        "fix-loss",
        "data",
        "show",
        0.9,
        "Give the loss what it expects: raw logits, targets of the right shape and type, the right reduction.",
        when="Softmax before cross-entropy, sigmoid before BCE-with-logits, (N, 1) against (N,) which broadcasts, "
        "targets that are one-hot where indices are meant, a sum where a mean is meant.",
        code="loss = torch.nn.functional.cross_entropy(logits, labels)  # logits: no softmax; labels: class indices\n"
        "loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float())  # no sigmoid\n"
        "assert outputs.shape == targets.shape  # before a regression loss\n"
        'loss = loss_fn(outputs, targets) / len(targets)  # divided by the batch: reduction="mean"',
        check="The first loss is near ln(number of classes), or near the variance of the targets; one batch can be "
        "learnt to under 0.01 within 1,000 steps.",
        references=("https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",),
    ),
    Action(
        "fix-mask",
        "data",
        "show",
        0.8,
        "Hide from the model what it must predict: a causal mask, no target among the inputs, no shared samples.",
        when="The training loss is below what the data allows, within a fraction of an epoch.",
        code="mask = torch.nn.Transformer.generate_square_subsequent_mask(length)\n"
        "inputs, targets = tokens[:, :-1], tokens[:, 1:]  # predict the next, not the same\n"
        "inputs = table.drop(columns=answers)  # nothing that is made from the target; a window ends before it\n"
        "train_set, val_set = torch.utils.data.random_split(dataset, [0.9, 0.1])  # no sample in both, copies included",
        check="Change a token behind position t: the output at t stays the same. The loss rises to an honest level.",
        references=("https://arxiv.org/abs/1706.03762",),
    ),
    Action(
        "shuffle-data",
        "data",
        "show",
        0.85,
        "Shuffle the training data anew in every epoch.",
        when="Batches hold one class in turn, the loss swings with the period of an epoch, or the same batch comes "
        "again and again.",
        code="loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)\n"
        "for inputs, targets in loader: ...  # a new batch at each step, not one that was drawn before the loop\n"
        "# distributed: sampler.set_epoch(epoch) at the start of each epoch",
        check="The share of classes in a batch is that of the whole set, and two batches are never the same.",
        references=("https://pytorch.org/docs/stable/data.html",),
    ),
    Action(
        "normalize-inputs",
        "data",
        "show",
        0.8,
        "Bring inputs to mean 0 and standard deviation 1, with the training set's numbers.",
        when="Inputs are far from that and the model does not begin with a normalization layer.",
        code="inputs = (inputs - mean) / std\n"
        "# mean, std = train_inputs.mean(0), train_inputs.std(0).clamp_min(1e-6): of the training set, for all sets",
        check="`input_std` is near 1, the first loss is near what it should be, and the gradient norm has a size that "
        "a usual learning rate can live with.",
    ),
    Action(
        "normalize-targets",
        "data",
        "show",
        0.8,
        "Bring regression targets to mean 0 and standard deviation 1, and undo it after predicting.",
        when="A squared error on targets in thousands: loss and gradients are a million times too large.",
        code="loss = loss_fn(model(inputs), (targets - mean) / std)  # prediction * std + mean when used\n"
        "# mean, std = train_targets.mean(0), train_targets.std(0).clamp_min(1e-6)",
        check="The first loss is near 1, the variance of what is to be predicted.",
    ),
    Action(
        "clean-data",
        "data",
        "show",
        0.6,
        "Look at the batch of the step, repair or drop it, and check batches before the model sees them.",
        when="A batch holds values that are not finite, out of range, wrongly labelled, or labels do not belong to "
        "their inputs. Print twenty pairs of input and label and judge them yourself.",
        code="assert torch.isfinite(inputs).all() and inputs.abs().max() < 1e4  # the batch of step {step}",
        check="The same place in the data passes without the finding, in the next epoch too.",
        parameters={"step": (0, 1e15)},
    ),
    Action(
        "check-labels",
        "data",
        "show",
        0.6,
        "Look at pairs of input and label, and find where they part: a shuffle, an offset, a join, a wrong column.",
        when="The loss stays at what guessing gives although weights move: labels do not belong to their inputs.",
        code="for place in torch.randperm(len(dataset))[:20].tolist(): print(dataset[place])  # is each label right?\n"
        "# then follow one sample from the file to the loss; inputs and labels must be shuffled together",
        check="Twenty pairs in a row are right, and the loss falls under that of a guess.",
    ),
    Action(
        "rebalance-classes",
        "data",
        "show",
        0.7,
        "Draw rare classes more often, or weigh them in the loss.",
        when="One class makes up most of the labels and the model predicts nothing else.",
        code="loss_fn = torch.nn.CrossEntropyLoss(weight=class_counts.sum() / (classes * class_counts))\n"
        "loss_fn = torch.nn.BCEWithLogitsLoss(pos_weight=negatives / positives)  # of two classes, with one output\n"
        "# or: torch.utils.data.WeightedRandomSampler(1.0 / class_counts[labels], num_samples=len(labels))",
        check="Predictions hold every class, and the balanced accuracy rises above 1 / classes.",
        references=("https://arxiv.org/abs/1901.05555",),
    ),
    Action(
        "augment-data",
        "data",
        "show",
        0.6,
        "Augment the training data: changes that leave the label right.",
        when="The model knows a small data set by heart. Images: crops, flips, colour. Text: dropped or replaced "
        "words. Tables: noise.",
        code="transform = torchvision.transforms.v2.Compose([RandomResizedCrop(size), RandomHorizontalFlip()])",
        check="The training loss rises, the validation loss falls, and its best comes later.",
    ),
    Action(
        "more-data",
        "data",
        "show",
        0.6,
        "Get more training data.",
        when="Validation still improves when you go from half of the data to all of it.",
        code="dataset = torch.utils.data.ConcatDataset([dataset, more_data])",
        check="The gap between training and validation shrinks at the same number of steps.",
    ),
    Action(
        "match-validation",
        "data",
        "show",
        0.75,
        "Prepare validation data exactly as training data, without augmentation, in eval mode.",
        when="Validation is far from training from the first evaluation on, constant, or spikes.",
        code="val_inputs = preprocess(val_inputs)  # as training inputs: the same scale, mean and std, the same order\n"
        "model.eval()  # while validating\n"
        "with torch.no_grad():\n"
        "    val_loss = loss_fn(model(val_inputs), val_targets)  # the same loss, the same reduction",
        check="Validate on a batch of the training set: the loss is that of training, up to dropout.",
    ),
    Action(
        "speed-up-data",
        "data",
        "show",
        0.8,
        "Let workers prepare the next batches while the device computes.",
        when="The time between two steps is spent waiting for data.",
        code="loader = torch.utils.data.DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=True)\n"
        "# with batch_size, shuffle and the rest as they are; prefetch_factor=4 where some batches take longer",
        check="The wait for data falls under a tenth of the step's time.",
        references=("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    ),
)
