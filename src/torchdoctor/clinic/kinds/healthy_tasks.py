"""Nothing is wrong: tasks, data and architectures that look odd in a chart."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchdoctor.clinic.arenas import Convolutions, EvidenceBound, Residual, Transformer, perceptron
from torchdoctor.clinic.kinds.kind import Kind
from torchdoctor.clinic.kinds.loop import Loop, backward, cosine
from torchdoctor.clinic.kinds.players import adversaries, bandit, values


def _pretrain(loop: Loop, steps: int = 200) -> None:
    """Train the model on its own task first, unwatched; what follows is fine-tuning."""
    optimizer = torch.optim.Adam(loop.model.parameters(), lr=loop.arena.adam)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(loop.forward(*next(loop.batches)))
        optimizer.step()


def dropout_above_validation(loop: Loop) -> None:
    """Dropout of 0.5: the training loss is well above that of validation, as it should be."""
    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = perceptron([given, 256, 256, classes], dropout=0.5)
    loop.validate_every = 25


def head_fine_tuned(loop: Loop) -> None:
    """A trained trunk is frozen on purpose, and the optimizer is given the new head only."""
    _pretrain(loop)
    assert isinstance(loop.model, Convolutions)
    loop.model.trunk.requires_grad_(False)
    head = loop.model.head
    loop.model.head = nn.Linear(head.in_features, head.out_features)
    loop.use("adam")
    loop.parameters = loop.model.head.parameters


def trunk_frozen_in_eval(loop: Loop) -> None:
    """A trained trunk with BatchNorm is frozen and kept in eval mode; the optimizer holds all parameters."""
    _pretrain(loop)
    model = loop.model
    assert isinstance(model, Convolutions)
    model.trunk.requires_grad_(False)
    model.head = nn.Linear(model.head.in_features, model.head.out_features)

    def train(mode: bool = True) -> Convolutions:
        nn.Module.train(model, mode)
        model.trunk.eval()
        return model

    model.train = train  # type: ignore[method-assign]
    loop.use("adam")


def unfrozen_gradually(loop: Loop) -> None:
    """The head is trained first; after 100 steps the trunk, trained before, joins it at a lower rate."""
    _pretrain(loop)
    model = loop.model
    assert isinstance(model, Convolutions)
    model.trunk.requires_grad_(False)
    model.head = nn.Linear(model.head.in_features, model.head.out_features)
    loop.use("adam")
    loop.constant()
    loop.parameters = model.head.parameters

    def join() -> None:
        assert loop.optimizer is not None
        model.trunk.requires_grad_(True)
        loop.optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": loop.arena.adam / 10})

    loop.events[100] = join


def fine_tuned_gently(loop: Loop) -> None:
    """A model that has learnt its task goes on at a hundredth of the rate: there is little left to gain."""
    _pretrain(loop, 500)
    loop.use("adamw", 0.01)
    loop.schedule = cosine(loop.steps, 20)


def low_rank(loop: Loop) -> None:
    """Low-rank adapters on a frozen net: one half of each begins at zero."""
    _pretrain(loop)
    loop.model.requires_grad_(False)

    class Adapted(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner
            self.down = nn.Parameter(torch.randn(4, inner.in_features) / inner.in_features**0.5)
            self.up = nn.Parameter(torch.zeros(inner.out_features, 4))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x)
            return made + x @ self.down.T @ self.up.T

    assert isinstance(loop.model, nn.Sequential)
    loop.model = nn.Sequential(*(Adapted(m) if isinstance(m, nn.Linear) else m for m in loop.model))
    mixing = torch.eye(loop.arena.x.shape[1]) + 0.3 * torch.randn(loop.arena.x.shape[1], loop.arena.x.shape[1])
    loop.replace_batches(lambda x, y: (x @ mixing, y))
    loop.validated = (loop.validated[0] @ mixing, loop.validated[1])
    loop.parameters = lambda: [p for p in loop.model.parameters() if p.requires_grad]
    loop.use("adam")
    loop.constant()


def residuals_from_zero(loop: Loop) -> None:
    """Residual branches whose last layer begins at zero: their first gradients are zero too."""
    given, width = loop.arena.x.shape[1], 48
    blocks = [Residual(width, zero=True) for _ in range(4)]
    loop.model = nn.Sequential(nn.Linear(given, width), *blocks, nn.Linear(width, loop.arena.classes))
    loop.use("adamw", 0.5)


def contrastive(loop: Loop) -> None:
    """InfoNCE: the loss begins at the logarithm of the batch size and has no zero to go to."""


def temperature_learnt(loop: Loop) -> None:
    """A contrastive loss whose temperature is learnt, as CLIP's."""

    class Learnt(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.scale = nn.Parameter(torch.tensor(2.6))

        def forward(self, x: Tensor) -> Tensor:
            codes = functional.normalize(self.inner(x), dim=-1)
            first, second = codes.unbind(1)
            return self.scale.exp() * first @ second.T

    loop.model = Learnt(loop.model)
    loop.loss_fn = lambda scores, y: functional.cross_entropy(scores, torch.arange(len(scores)))
    loop.use("adam")
    loop.validated = (loop.validated[0][: loop.arena.batch_size], loop.validated[1][: loop.arena.batch_size])


def sparse_embeddings(loop: Loop) -> None:
    """Embeddings of some hundred users and items, of which a batch touches a few, with sparse gradients."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(400, 4, sparse=True)
            self.items = nn.Embedding(200, 4, sparse=True)
            nn.init.normal_(self.users.weight, std=0.5)
            nn.init.normal_(self.items.weight, std=0.5)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = (self.users(x[:, 0]) * self.items(x[:, 1])).sum(1)
            return scores

    users, items = torch.randn(400, 4), torch.randn(200, 4)
    pairs = torch.stack([torch.randint(400, (60512,)), torch.randint(200, (60512,))], 1)
    liked = ((users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) > 0).float()
    loop.model, loop.loss_fn = Pairs(), nn.BCEWithLogitsLoss()
    loop.arena.x, loop.arena.y, loop.validated = pairs[512:], liked[512:], (pairs[:512], liked[:512])
    loop.arena.batch_size = 64
    loop.constant()
    loop.make_optimizer = lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.04)
    loop.batches = loop.arena.batches()
    loop.steps = 500


def curriculum(loop: Loop) -> None:
    """At first the samples are mostly of the easier classes; half-way all come, and the loss steps up."""
    easy = loop.arena.classes // 2
    count = iter(range(100_000))
    everything = loop.batches

    def chosen(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if next(count) >= loop.steps // 2:
            return x, y
        kept = (y < easy) | (torch.rand(len(y)) < 0.15)
        return x[kept], y[kept]

    loop.batches = (chosen(x, y) for x, y in everything)
    loop.use("adam")
    loop.constant()
    loop.validate_every = 0


def noise_shrinks(loop: Loop) -> None:
    """Augmentation is strong at first and fades: the loss falls by itself."""
    count = iter(range(100_000))
    loop.replace_batches(lambda x, y: (x + torch.randn_like(x) * max(0.0, 1 - next(count) / 200), y))


def converged(loop: Loop) -> None:
    """A regression that has reached its noise floor, and is kept running."""
    loop.arena.y = loop.arena.y + 0.5 * torch.randn_like(loop.arena.y)
    loop.validated = (loop.validated[0], loop.validated[1] + 0.5 * torch.randn_like(loop.validated[1]))
    loop.use("adam")
    loop.schedule = cosine(600, 20, floor=0.05)
    loop.steps = 900


def converged_separable(loop: Loop) -> None:
    """Classes that can be told apart without error: the loss goes to zero and stays."""
    loop.arena.x = loop.arena.x + 3 * functional.one_hot(loop.arena.y, loop.arena.x.shape[1]).float()
    x, y = loop.validated
    loop.validated = (x + 3 * functional.one_hot(y, x.shape[1]).float(), y)
    loop.constant()
    loop.steps = 800


def adversaries_balanced(loop: Loop) -> None:
    """A generator and a critic that keep each other in balance: neither loss goes anywhere."""
    adversaries(loop, generator_lr=5e-4, critic_lr=1e-3)


def critic_ahead(loop: Loop) -> None:
    """A critic that takes three steps for one of the generator's."""
    adversaries(loop, generator_lr=1e-3, critic_lr=5e-4, critics=3)


def policy_learns(loop: Loop) -> None:
    """REINFORCE: a loss of noise around zero, while the reward rises."""
    bandit(loop, lr=5e-3, entropy=0.01)


def policy_explores(loop: Loop) -> None:
    """REINFORCE with much entropy and a small rate."""
    bandit(loop, lr=2e-3, entropy=0.1)


def values_chase(loop: Loop) -> None:
    """A value net whose targets jump whenever its copy is brought up to date."""
    values(loop)


def noisy_targets(loop: Loop) -> None:
    """A regression of which nine tenths are noise: the loss falls a little and that is right."""
    loop.arena.y = loop.arena.y + 2.5 * torch.randn_like(loop.arena.y)
    loop.validated = (loop.validated[0], loop.validated[1] + 2.5 * torch.randn_like(loop.validated[1]))
    loop.use("adam", 0.5)


def wrong_labels_some(loop: Loop) -> None:
    """A third of the labels are wrong, as in data from the street; the rest is learnt."""
    wrong = torch.rand(len(loop.arena.y)) < 0.35
    loop.arena.y = torch.where(wrong, torch.randint(loop.arena.classes, wrong.shape), loop.arena.y)


def imbalanced(loop: Loop) -> None:
    """More than half of the samples are of one class, in validation too; the others are learnt as well."""

    def drawn(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rest = torch.rand(len(x)) < 0.4
        common = (y == 0).nonzero().flatten()
        chosen = torch.where(rest, torch.arange(len(rest)), common[torch.randint(len(common), (len(rest),))])
        return x[chosen], y[chosen]

    loop.arena.x, loop.arena.y = drawn(loop.arena.x, loop.arena.y)
    loop.validated = drawn(*loop.validated)


def rare_positives(loop: Loop) -> None:
    """Twenty labels for each sample, of which one in twenty is true."""
    given = loop.arena.x.shape[1]
    scores = torch.cat([loop.validated[0], loop.arena.x]) @ torch.randn(given, 20)
    labels = (scores > 1.65 * scores.std(0)).float()
    loop.model, loop.loss_fn = perceptron([given, 96, 96, 20]), nn.BCEWithLogitsLoss()
    loop.validated, loop.arena.y = (loop.validated[0], labels[:512]), labels[512:]
    loop.use("adam")


def sparse_units(loop: Loop) -> None:
    """Only the eight strongest of 128 units may answer: nearly everything is zero, and nothing is dead."""

    class Strongest(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            kept = x.topk(8, dim=1)
            return torch.zeros_like(x).scatter(1, kept.indices, kept.values.relu())

    given, classes = loop.arena.x.shape[1], loop.arena.classes
    loop.model = nn.Sequential(nn.Linear(given, 128), Strongest(), nn.Linear(128, classes))
    loop.use("adam")


def experts(loop: Loop) -> None:
    """Four experts, of which a router takes one: some of them have no gradient at some steps."""

    class Experts(nn.Module):
        def __init__(self, given: int, classes: int) -> None:
            super().__init__()
            self.router = nn.Linear(given, 4)
            self.experts = nn.ModuleList(perceptron([given, 32, classes]) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            shares = self.router(x).softmax(1)
            best = shares.argmax(1)
            made = 0.0
            for index, expert in enumerate(self.experts):
                taken = (best == index).unsqueeze(1)
                if taken.any():
                    made = made + expert(x) * taken * shares[:, index : index + 1]
            assert isinstance(made, Tensor)
            return made

    loop.model = Experts(loop.arena.x.shape[1], loop.arena.classes)
    loop.use("adam")
    loop.arena.batch_size = 32


def two_tasks(loop: Loop) -> None:
    """Two heads, trained in turns: each has no gradient every other step."""

    class Heads(nn.Module):
        def __init__(self, given: int, classes: int) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(given, 64), nn.ReLU())
            self.first, self.second = nn.Linear(64, classes), nn.Linear(64, classes)
            self.turn = 0

        def forward(self, x: Tensor) -> Tensor:
            self.turn += self.training
            made: Tensor = (self.first if self.turn % 2 else self.second)(self.trunk(x))
            return made

    loop.model = Heads(loop.arena.x.shape[1], loop.arena.classes)
    loop.use("adam")


def tied(loop: Loop) -> None:
    """Embedding and output share their weights."""
    assert isinstance(loop.model, Transformer)
    loop.model.head.weight = loop.model.embed.weight


def distilled(loop: Loop) -> None:
    """A small net learns from a trained one, which sits in the same module, frozen and in eval mode."""
    _pretrain(loop)
    teacher = copy.deepcopy(loop.model).requires_grad_(False).eval()

    class Student(nn.Module):
        def __init__(self, given: int, classes: int) -> None:
            super().__init__()
            self.teacher = teacher
            self.student = perceptron([given, 32, classes])

        def train(self, mode: bool = True) -> Student:
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.student(x), wanted

    student = Student(loop.arena.x.shape[1], loop.arena.classes)

    def loss(made: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores, wanted = made
        return functional.kl_div(scores.log_softmax(1), wanted.softmax(1), reduction="batchmean")

    loop.model, loop.loss_fn = student, loss
    loop.shows_loss_fn = False
    loop.parameters = student.student.parameters


def averaged_weights(loop: Loop) -> None:
    """A running average of the weights is kept beside the model, and validated instead of it."""
    decay: Any = torch.optim.swa_utils.get_ema_multi_avg_fn  # untyped
    average = torch.optim.swa_utils.AveragedModel(loop.model, multi_avg_fn=decay(0.95))
    inner = loop.apply

    def apply(optimizer: torch.optim.Optimizer) -> None:
        inner(optimizer)
        average.update_parameters(loop.model)

    @torch.no_grad()
    def validate() -> float:
        x, y = (tensor[:256] for tensor in loop.validated)
        average.eval()
        return float(loop.loss_of(average(x), y))

    loop.apply, loop.validate = apply, validate


def small_validation(loop: Loop) -> None:
    """Validation of sixteen samples, each time others: its loss jumps about."""
    x, y = loop.validated
    inner = loop.validate

    def validate() -> float:
        chosen = torch.randperm(len(x))[:16]
        loop.validated = (x[chosen], y[chosen])
        return inner()

    loop.validate = validate
    loop.validate_every = 20


def denoiser(loop: Loop) -> None:
    """A net learns to predict the noise in a sample, at a level that is drawn anew: most of the loss stays."""
    width = loop.arena.x.shape[1]
    loop.model = perceptron([width + 1, 128, 128, width], nn.SiLU)
    loop.loss_fn = nn.MSELoss()

    def noised(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        level = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        return torch.cat([x * (1 - level).sqrt() + noise * level.sqrt(), level], 1), noise

    loop.replace_batches(noised)
    loop.validated = noised(*loop.validated)
    loop.use("adam", 0.5)


def annealed(loop: Loop) -> None:
    """The distance term of a variational autoencoder is phased in: the loss rises while it does."""
    bound = EvidenceBound(beta=0.0)
    loop.loss_fn = bound

    def backward_and_anneal(loss: Tensor) -> None:
        backward(loss)
        bound.beta = min(1.0, bound.beta + 1 / 200)

    loop.backward = backward_and_anneal
    loop.validate_every = 0
    loop.use("adam")


def auxiliary(loop: Loop) -> None:
    """Two further terms are logged by their own names, one of them constant, one growing."""
    inner = loop.log
    count = iter(range(100_000))

    def log(loss: Tensor, name: str = "loss") -> None:
        inner(loss, name)
        inner(torch.tensor(0.25), "commitment")
        inner(torch.tensor(0.01 * next(count)), "beta")

    loop.log = log


def mixed_samples(loop: Loop) -> None:
    """Mixup: every sample is a blend of two, and so is its target; the training loss stays high."""

    def blended(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.distributions.Beta(0.4, 0.4).sample().item()
        order = torch.randperm(len(x))
        targets = functional.one_hot(y, loop.arena.classes).float()
        return share * x + (1 - share) * x[order], share * targets + (1 - share) * targets[order]

    loop.replace_batches(blended)


def reused_each_epoch(loop: Loop) -> None:
    """A data set of twenty batches, read many times, by a net that is small enough not to mind."""
    kept = 20 * loop.arena.batch_size
    loop.arena.x, loop.arena.y = loop.arena.x[:kept], loop.arena.y[:kept]
    last = [m for m in loop.model.modules() if isinstance(m, nn.Linear)][-1]
    loop.model = nn.Linear(loop.arena.x.shape[1], last.out_features)
    loop.use("adam", 1.0, lr=0.01)


HEALTHY = (
    Kind("dropout-above-validation", dropout_above_validation, on=("mlp", "dropout-mlp")),
    Kind("head-fine-tuned", head_fine_tuned, on=("cnn", "batchnorm")),
    Kind("trunk-frozen-in-eval", trunk_frozen_in_eval, on=("batchnorm", "cnn")),
    Kind("unfrozen-gradually", unfrozen_gradually, on=("cnn",)),
    Kind("fine-tuned-gently", fine_tuned_gently, on=("mlp", "transformer"), learns=False),
    Kind("low-rank", low_rank, on=("mlp", "regression")),
    Kind("residuals-from-zero", residuals_from_zero, on=("mlp",)),
    Kind("contrastive", contrastive, on=("contrastive",)),
    Kind("temperature-learnt", temperature_learnt, on=("contrastive",)),
    Kind("sparse-embeddings", sparse_embeddings, on=("mlp",)),
    Kind("curriculum", curriculum, on=("mlp", "cnn"), learns=False),
    Kind("noise-shrinks", noise_shrinks, on=("mlp", "cnn")),
    Kind("converged", converged, on=("regression",)),
    Kind("converged-separable", converged_separable, on=("mlp",)),
    Kind("adversaries-balanced", adversaries_balanced, on=("mlp",), learns=False),
    Kind("critic-ahead", critic_ahead, on=("mlp",), learns=False),
    Kind("policy-learns", policy_learns, on=("mlp",), learns=False),
    Kind("policy-explores", policy_explores, on=("mlp",), learns=False),
    Kind("values-chase", values_chase, on=("mlp",), learns=False),
    Kind("noisy-targets", noisy_targets, on=("regression",), learns=False),
    Kind("wrong-labels-some", wrong_labels_some, on=("mlp", "cnn")),
    Kind("imbalanced", imbalanced, on=("mlp", "cnn")),
    Kind("rare-positives", rare_positives, on=("mlp",)),
    Kind("sparse-units", sparse_units, on=("mlp",)),
    Kind("experts", experts, on=("mlp",)),
    Kind("two-tasks", two_tasks, on=("mlp",)),
    Kind("tied-weights", tied, on=("transformer", "post-norm")),
    Kind("distilled", distilled, on=("mlp",)),
    Kind("averaged-weights", averaged_weights, on=("mlp", "cnn")),
    Kind("small-validation", small_validation, on=("mlp", "cnn", "regression")),
    Kind("denoiser", denoiser, on=("mlp",)),
    Kind("annealed", annealed, on=("vae",)),
    Kind("auxiliary-terms", auxiliary, on=("mlp", "transformer")),
    Kind("mixed-samples", mixed_samples, on=("mlp", "cnn")),
    Kind("reused-each-epoch", reused_each_epoch, on=("linear",)),
)
