"""Actions on data, labels and the loss."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

DATA: tuple[Action, ...] = (
    Action(
        "fix-loss",
        "data",
        "show",
        0.9,
        "Give the loss what it expects: raw logits, targets of the right shape and type, the right reduction.",
        when="The code has softmax before cross-entropy, sigmoid before BCE-with-logits, shapes (N, 1) and (N,) that "
        "broadcast, one-hot targets instead of class indices, a sum instead of a mean, a batch of which all labels are "
        "ignored, or padding that counts.",
        code="loss = torch.nn.functional.cross_entropy(logits, labels)  # logits: no softmax; labels: class indices\n"
        "loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets.float())  # no sigmoid\n"
        "outputs, targets = outputs.squeeze(-1), targets.squeeze(-1)  # (N, 1) against (N,): both become (N,)\n"
        "assert outputs.shape == targets.shape  # before a regression loss\n"
        'loss = loss_fn(outputs, targets) / len(targets)  # divided by the batch: reduction="mean"\n'
        "assert (labels != -100).any()  # a batch needs labels that count: look at the mask and at truncation\n"
        "labels = labels.masked_fill(attention_mask == 0, -100)  # padding does not count",
        check="The first loss is near ln(number of classes), or near the variance of the targets. The loss of a single "
        "batch falls below 0.01 within 1,000 steps.",
        references=("https://pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",),
    ),
    Action(
        "fix-mask",
        "data",
        "show",
        0.8,
        "Hide the answer from the model: a causal mask, no target among the inputs, no samples in both sets.",
        when="Within a fraction of an epoch, the training loss is lower than the data allow.",
        code="mask = torch.nn.Transformer.generate_square_subsequent_mask(length)\n"
        "inputs, targets = tokens[:, :-1], tokens[:, 1:]  # predict the next token, not the same one\n"
        "inputs = table.drop(columns=answers)  # no column made from the target; a window ends before it\n"
        "train_set, val_set = torch.utils.data.random_split(dataset, [0.9, 0.1])  # no sample in both, copies included",
        check="Changing a token after position t leaves the output at t unchanged. The loss rises to a realistic "
        "level.",
        references=("https://arxiv.org/abs/1706.03762",),
    ),
    Action(
        "shuffle-data",
        "data",
        "show",
        0.85,
        "Shuffle the training data again in every epoch.",
        when="Each batch holds a single class, the loss oscillates with the period of an epoch, or the same batch "
        "comes again and again.",
        code="loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)\n"
        "for inputs, targets in loader: ...  # a new batch at each step, not one that was drawn before the loop\n"
        "# distributed: sampler.set_epoch(epoch) at the start of each epoch",
        check="Batches have the same class shares as the whole set, and no two batches are the same.",
        references=("https://pytorch.org/docs/stable/data.html",),
    ),
    Action(
        "normalize-inputs",
        "data",
        "show",
        0.8,
        "Scale inputs to mean 0 and standard deviation 1, using the statistics of the training set.",
        when="Inputs are far from this, and the model does not begin with a normalization layer.",
        code="inputs = (inputs - mean) / std\n"
        "# mean, std = train_inputs.mean(0), train_inputs.std(0).clamp_min(1e-6): from the training set, for all sets",
        check="`input_std` is near 1, the first loss is near chance level, and the gradient norm suits a common "
        "learning rate.",
    ),
    Action(
        "normalize-targets",
        "data",
        "show",
        0.8,
        "Scale regression targets to mean 0 and standard deviation 1, and scale predictions back.",
        when="Regression targets are far from this scale: with targets in the thousands, a squared error is about a "
        "million times too large, and its gradients a thousand times.",
        code="loss = loss_fn(model(inputs), (targets - mean) / std)  # in use: prediction * std + mean\n"
        "# mean, std = train_targets.mean(0), train_targets.std(0).clamp_min(1e-6)",
        check="The first loss is near 1, the variance of the scaled targets.",
    ),
    Action(
        "clean-data",
        "data",
        "show",
        0.6,
        "Look at the batch of that step, repair or drop it, and check every batch before the model sees it.",
        when="A batch holds values that are not finite or out of range, or wrong labels. Print twenty pairs of input "
        "and label, and check them yourself.",
        code="assert torch.isfinite(inputs).all() and inputs.abs().max() < 1e4  # the batch at or just before "
        "step {step}",
        check="The run passes the same place in the data without the finding, in the next epoch too.",
        parameters={"step": (0, 1e15)},
    ),
    Action(
        "check-labels",
        "data",
        "show",
        0.6,
        "Look at pairs of input and label, and find where they get mixed up: a shuffle, an offset, a join or a column.",
        when="The loss stays at chance level although the weights move: the labels may not belong to their inputs.",
        code="for place in torch.randperm(len(dataset))[:20].tolist(): print(dataset[place])  # is each label right?\n"
        "# then follow one sample from the file to the loss; inputs and labels must be shuffled together",
        check="Twenty pairs in a row are right, and the loss falls below chance level.",
    ),
    Action(
        "rebalance-classes",
        "data",
        "show",
        0.7,
        "Sample rare classes more often, or give them more weight in the loss.",
        when="One class makes up most of the labels, and the model predicts nothing else.",
        code="loss_fn = torch.nn.CrossEntropyLoss(weight=class_counts.sum() / (classes * class_counts))\n"
        "loss_fn = torch.nn.BCEWithLogitsLoss(pos_weight=negatives / positives)  # two classes, one output\n"
        "# or: torch.utils.data.WeightedRandomSampler(1.0 / class_counts[labels], num_samples=len(labels))",
        check="The model predicts every class, and the balanced accuracy rises above 1 / classes.",
        references=("https://arxiv.org/abs/1901.05555",),
    ),
    Action(
        "augment-data",
        "data",
        "show",
        0.6,
        "Augment the training data with changes that keep the label valid.",
        when="The model memorizes a small data set. Images: crops, flips, color changes. Text: dropped or replaced "
        "words. Tables: noise.",
        code="transform = torchvision.transforms.v2.Compose([RandomResizedCrop(size), RandomHorizontalFlip()])",
        check="The training loss rises, the validation loss falls, and its best value comes later.",
    ),
    Action(
        "more-data",
        "data",
        "show",
        0.6,
        "Get more training data.",
        when="Training on all data gives a better validation loss than training on half of them.",
        code="dataset = torch.utils.data.ConcatDataset([dataset, more_data])",
        check="The gap between training and validation shrinks at the same number of steps.",
    ),
    Action(
        "match-validation",
        "data",
        "show",
        0.75,
        "Prepare validation data like training data but without augmentation, and evaluate in eval mode.",
        when="The validation loss is far from the training loss from the first evaluation on, is constant, or spikes.",
        code="val_inputs = preprocess(val_inputs)  # like training inputs: same scale, mean and std, same order\n"
        "model.eval()  # while validating\n"
        "with torch.no_grad():\n"
        "    val_loss = loss_fn(model(val_inputs), val_targets)  # same loss, same reduction",
        check="On a batch of the training set, the evaluation gives the training loss, except for the effect of "
        "dropout.",
    ),
    Action(
        "speed-up-data",
        "data",
        "show",
        0.8,
        "Let workers prepare the next batches while the device computes.",
        when="Much of the time of a step is spent waiting for data.",
        code="loader = torch.utils.data.DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=True)\n"
        "# keep batch_size, shuffle and the rest; add prefetch_factor=4 if some batches take longer",
        check="The wait for data is less than a tenth of the step time.",
        references=("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    ),
)
