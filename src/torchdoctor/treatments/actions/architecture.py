"""Actions on the model itself: what reshapes it."""

from __future__ import annotations

from torchdoctor.treatments.action import Action

ARCHITECTURE: tuple[Action, ...] = (
    Action(
        "use-relu-family",
        "architecture",
        "show",
        0.7,
        "LeakyReLU, PReLU, ELU or GELU between layers, instead of sigmoid, tanh or dead ReLUs.",
        when="Sigmoid or tanh between layers divide the gradient at each of them; ReLU units that are dead for good "
        "come back with LeakyReLU, PReLU or ELU. Gates and outputs keep their sigmoid.",
        code="activation = torch.nn.LeakyReLU(0.01)  # between layers, for Sigmoid, Tanh, or dead ReLU units\n"
        "# or torch.nn.PReLU(), which learns its slope; ELU, GELU",
        check="Gradient norms of first and last layer are within two orders of magnitude, and under 10 % of units are "
        "dead.",
        references=("https://arxiv.org/abs/1502.01852",),
    ),
    Action(
        "add-residuals",
        "architecture",
        "show",
        0.7,
        "Residual connections with normalization, so that the gradient has a short way back.",
        when="More than about ten layers in a row, and gradients that fall by the same factor at each of them.",
        code="x = x + layer(norm(x))  # instead of x = layer(x)",
        check="Gradient norms of first and last layer are within two orders of magnitude.",
        references=("https://arxiv.org/abs/1512.03385",),
    ),
    Action(
        "add-normalization",
        "architecture",
        "show",
        0.7,
        "A normalization layer before each block: LayerNorm for sequences, GroupNorm or BatchNorm for images.",
        when="Activations grow or shrink from layer to layer, or over time. BatchNorm needs at least eight samples a "
        "batch; GroupNorm and LayerNorm do not care.",
        code="block = torch.nn.Sequential(torch.nn.LayerNorm(width), block)  # images: GroupNorm(8, channels)\n"
        "norm = torch.nn.GroupNorm(8, channels)  # instead of BatchNorm2d; LayerNorm instead of BatchNorm1d",
        check="The RMS of activations is between 0.1 and 10 in every layer, from first to last.",
        references=("https://arxiv.org/abs/1607.06450", "https://arxiv.org/abs/1803.08494"),
    ),
    Action(
        "use-gru-or-layernorm-rnn",
        "architecture",
        "show",
        0.65,
        "A GRU, an LSTM or a recurrent cell with LayerNorm instead of a plain RNN.",
        when="A plain recurrent network over more than about twenty steps: its gradient vanishes or explodes in time.",
        code="rnn = torch.nn.GRU(inputs, hidden, batch_first=True)  # instead of torch.nn.RNN, and clip to 1.0",
        check="The gradient with respect to the first element of a sequence is not zero.",
        references=("https://arxiv.org/abs/1211.5063", "https://arxiv.org/abs/1406.1078"),
    ),
    Action(
        "spectral-norm",
        "architecture",
        "show",
        0.55,
        "Bound the largest singular value of weight matrices.",
        when="Weights or a discriminator run away although rate and clipping are sensible.",
        code="layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(inputs, outputs))",
        check="Weight norms stay in a band; a discriminator no longer separates perfectly.",
        references=("https://arxiv.org/abs/1802.05957",),
    ),
    Action(
        "initialize",
        "architecture",
        "show",
        0.75,
        "Initialize for the nonlinearity: He for ReLU, Xavier for tanh, orthogonal for recurrent weights.",
        when="Weights are all equal or zero, activations grow or shrink through depth at step 0, or the first loss is "
        "far above ln(classes). Zero is right for biases, the last layer of a residual branch and LoRA's B.",
        code='torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # tanh: xavier_normal_\n'
        "torch.nn.init.zeros_(layer.bias)  # 0.01 where ReLU units died from the start",
        check="At step 0 the RMS of activations is about the same in every layer, and the loss is near ln(classes).",
        references=("https://arxiv.org/abs/1502.01852", "https://proceedings.mlr.press/v9/glorot10a.html"),
    ),
    Action(
        "reinitialize-dead-units",
        "architecture",
        "ask",
        0.6,
        "Draw the incoming weights of dead units anew and set their outgoing weights to zero.",
        when="Units are zero for every input and what killed them (a large step) is over.",
        code="layer.weight.data[dead] = torch.nn.init.kaiming_normal_(torch.empty_like(layer.weight))[dead]\n"
        "layer.bias.data[dead] = 0.01; next_layer.weight.data[:, dead] = 0",
        check="The share of dead units falls and stays down for 500 steps; the loss does not jump.",
        references=("https://arxiv.org/abs/2306.13812",),
    ),
    Action(
        "resize-model",
        "architecture",
        "show",
        0.6,
        "A larger model where it cannot fit, a smaller one where it learns by heart.",
        when="Larger: one batch cannot be learnt to under 0.01 in 1,000 steps, and rate and data are fine. Smaller: "
        "ten parameters or more a sample, and regularization is not enough.",
        code="width = int(width * {factor})  # or add and remove layers",
        check="Larger: the training loss falls below its old floor. Smaller: the gap shrinks, validation is no worse.",
        parameters={"factor": (0.1, 10.0)},
        references=("https://arxiv.org/abs/2001.08361",),
    ),
    Action(
        "transfer-learning",
        "architecture",
        "show",
        0.6,
        "Start from a pretrained model and train its head first.",
        when="There are fewer than some thousand samples and somebody has trained on a similar task.",
        code='model = torchvision.models.resnet18(weights="DEFAULT")\n'
        "model.fc = torch.nn.Linear(model.fc.in_features, classes)  # before the optimizer is built",
        check="Validation after one epoch is better than the old model's best.",
        references=("https://arxiv.org/abs/1411.1792",),
    ),
    Action(
        "prevent-collapse",
        "architecture",
        "show",
        0.6,
        "Keep embeddings or samples apart: negatives, a variance term, a stop-gradient, minibatch statistics.",
        when="Outputs or embeddings become the same for every input, while the loss looks fine.",
        code="loss = loss + torch.relu(1 - torch.sqrt(embedding.var(dim=0) + 1e-4)).mean()\n"
        "# it costs when a dimension of the embedding does not vary over the batch",
        check="The standard deviation of outputs over a batch stays above a tenth of its first value.",
        references=("https://arxiv.org/abs/2105.04906", "https://arxiv.org/abs/1606.03498"),
    ),
)
