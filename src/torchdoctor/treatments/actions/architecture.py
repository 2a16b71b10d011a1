"""Actions that change the model itself."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

ARCHITECTURE: tuple[Action, ...] = (
    Action(
        "use-relu-family",
        "architecture",
        "show",
        0.7,
        "Use LeakyReLU, PReLU, ELU or GELU between layers instead of sigmoid, tanh or dead ReLUs, and none after "
        "the last layer.",
        when="Sigmoid or tanh between layers: each of them shrinks the gradient. ReLU units that are permanently dead: "
        "LeakyReLU, PReLU or ELU revive them. Gates keep their sigmoid, and so do outputs if it can give all "
        "targets.",
        code="activation = torch.nn.LeakyReLU(0.01)  # between layers, instead of Sigmoid, Tanh or dead ReLU\n"
        "# or torch.nn.PReLU(), which learns its slope; ELU, GELU\n"
        "output = self.last(x)  # no activation after the last layer; softplus if outputs must be positive",
        check="The gradient norms of the first and last layer are within two orders of magnitude, and less than 10 % "
        "of the units are dead.",
        references=("https://arxiv.org/abs/1502.01852",),
    ),
    Action(
        "add-residuals",
        "architecture",
        "show",
        0.7,
        "Add residual connections with normalization, so that the gradient has a short path back.",
        when="The model has more than about ten layers in a row, and gradients shrink by the same factor at each.",
        code="x = x + layer(norm(x))  # instead of x = layer(x)",
        check="The gradient norms of the first and last layer are within two orders of magnitude.",
        references=("https://arxiv.org/abs/1512.03385",),
    ),
    Action(
        "add-normalization",
        "architecture",
        "show",
        0.7,
        "Add a normalization layer before each block: LayerNorm for sequences, GroupNorm or BatchNorm for images.",
        when="Activations grow or shrink from layer to layer, or over time. BatchNorm needs at least eight samples per "
        "batch; GroupNorm and LayerNorm work with any batch size.",
        code="block = torch.nn.Sequential(torch.nn.LayerNorm(width), block)  # images: GroupNorm(8, channels)\n"
        "norm = torch.nn.GroupNorm(8, channels)  # instead of BatchNorm2d; LayerNorm instead of BatchNorm1d",
        check="The RMS of the activations is between 0.1 and 10 in every layer.",
        references=("https://arxiv.org/abs/1607.06450", "https://arxiv.org/abs/1803.08494"),
    ),
    Action(
        "use-gru-or-layernorm-rnn",
        "architecture",
        "show",
        0.65,
        "Use a GRU, an LSTM or a recurrent cell with LayerNorm instead of a plain RNN.",
        when="A plain recurrent network runs over more than about twenty time steps: its gradient vanishes or "
        "explodes.",
        code="rnn = torch.nn.GRU(inputs, hidden, batch_first=True)  # instead of torch.nn.RNN; clip the norm to 1.0",
        check="The gradient with respect to the first element of a sequence is not zero.",
        references=("https://arxiv.org/abs/1211.5063", "https://arxiv.org/abs/1406.1078"),
    ),
    Action(
        "spectral-norm",
        "architecture",
        "show",
        0.55,
        "Bound the largest singular value of weight matrices by spectral normalization.",
        when="Weights grow without limit, or a discriminator becomes too strong, although learning rate and clipping "
        "are reasonable.",
        code="layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(inputs, outputs))",
        check="Weight norms stay in a narrow range; a discriminator no longer separates perfectly.",
        references=("https://arxiv.org/abs/1802.05957",),
    ),
    Action(
        "initialize",
        "architecture",
        "show",
        0.75,
        "Initialize to fit the nonlinearity: He for ReLU, Xavier for tanh, orthogonal for recurrent weights.",
        when="Weights are all equal or zero, activations grow or shrink with depth at step 0, or the first loss is far "
        "above ln(classes). Zero is right for biases, the last layer of a residual branch and LoRA's B.",
        code='torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # tanh: xavier_normal_\n'
        "torch.nn.init.zeros_(layer.bias)  # 0.01 if ReLU units are dead from the start",
        check="At step 0 the RMS of activations is about the same in every layer, and the loss is near ln(classes).",
        references=("https://arxiv.org/abs/1502.01852", "https://proceedings.mlr.press/v9/glorot10a.html"),
    ),
    Action(
        "reinitialize-dead-units",
        "architecture",
        "ask",
        0.6,
        "Reinitialize the incoming weights of dead units and set their outgoing weights to zero.",
        when="Units are zero for every input, and the cause (such as a step that was too large) is fixed.",
        code="layer.weight.data[dead] = torch.nn.init.kaiming_normal_(torch.empty_like(layer.weight))[dead]\n"
        "layer.bias.data[dead] = 0.01; next_layer.weight.data[:, dead] = 0",
        check="The share of dead units falls and stays low for 500 steps; the loss does not jump.",
        references=("https://arxiv.org/abs/2306.13812",),
    ),
    Action(
        "resize-model",
        "architecture",
        "show",
        0.6,
        "Use a larger model if it cannot fit the data, a smaller one if it memorizes them.",
        when="Larger: the loss of a single batch does not fall below 0.01 in 1,000 steps, although learning rate and "
        "data are fine. Smaller: there are ten parameters or more per sample, and regularization is not enough.",
        code="width = int(width * {factor})  # or add and remove layers",
        check="Larger: the training loss falls below its old floor. Smaller: the gap between training and validation "
        "shrinks, and validation is no worse.",
        parameters={"factor": (0.1, 10.0)},
        references=("https://arxiv.org/abs/2001.08361",),
    ),
    Action(
        "transfer-learning",
        "architecture",
        "show",
        0.6,
        "Start from a pretrained model and train its head first.",
        when="There are fewer than a few thousand samples, and a model pretrained on a similar task exists.",
        code='model = torchvision.models.resnet18(weights="DEFAULT")\n'
        "model.fc = torch.nn.Linear(model.fc.in_features, classes)  # before the optimizer is built",
        check="Validation after one epoch is better than the best of the old model.",
        references=("https://arxiv.org/abs/1411.1792",),
    ),
    Action(
        "prevent-collapse",
        "architecture",
        "show",
        0.6,
        "Keep embeddings or samples apart: negatives, a variance term, a stop-gradient, minibatch statistics.",
        when="Outputs or embeddings become the same for every input although the loss looks fine.",
        code="loss = loss + torch.relu(1 - torch.sqrt(embedding.var(dim=0) + 1e-4)).mean()\n"
        "# a penalty if a dimension of the embedding does not vary within the batch\n"
        "target = target.detach()  # a stop-gradient on one of the two branches; a predictor on the other",
        check="The standard deviation of the outputs within a batch stays above a tenth of its first value.",
        references=("https://arxiv.org/abs/2105.04906", "https://arxiv.org/abs/1606.03498"),
    ),
)
