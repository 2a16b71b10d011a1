"""The diagnosis trees for plateaus, NaN and overfitting, as data: an interview walks them, `--trees` prints them.

`MEASURES` choose the branch from the answers. A leaf gives an explanation and advice, and is evidence for causes.

>>> print(printed(TREES["nan"]).splitlines()[1])
Did the NaN appear in the first few steps?
>>> walk(TREES["nan"], {"nan_step": 3.0}).leaves[0].causes
{'lr-too-high': 1.5, 'bad-initialization': 1.5, 'warmup-missing': 1.0}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torchdoctor.consulting.question import Answers
from torchdoctor.reports.clock import clock_of

FEW_STEPS = 20
"""The last step that counts as one of the first few steps."""
LARGER = 10.0
"""Parameters per sample above which a model counts as much larger than its dataset."""


@dataclass(frozen=True)
class Leaf:
    """The end of a branch: an explanation, and what to do."""

    says: str
    shows: str
    """The evidence that led here, shown for its causes; `{when}` is replaced by the step of the NaN, if known."""
    causes: Mapping[str, float]
    """Weight of this evidence for each cause, in log-odds."""
    actions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """One question of a tree."""

    asks: str
    measure: str
    """The key in `MEASURES` of the function that chooses the branch."""
    branches: Mapping[str, tuple[str, Leaf | Node]]
    """By outcome: the wording of the answer, and what follows."""
    otherwise: Leaf | None = None
    """The leaf to use if the outcome is not known."""


@dataclass(frozen=True)
class Tree:
    """The questions for some complaints; each root is walked separately."""

    name: str
    title: str
    complaints: tuple[str, ...]
    roots: tuple[Node, ...]


@dataclass(frozen=True)
class Walk:
    """One path through a tree."""

    tree: Tree
    way: tuple[tuple[str, str], ...] = ()
    """Questions and answers, as far as they are known."""
    leaves: tuple[Leaf, ...] = ()
    reads: tuple[frozenset[str], ...] = ()
    """For each leaf, the questions whose answers led to it."""
    missing: tuple[str, ...] = ()
    """Questions at which the path ended because the answer is not known."""


def _gradient(answers: Answers) -> str | None:
    norm, level = answers.get("grad_norm"), answers.get("grad_level")
    if isinstance(norm, float):
        return "very-low" if norm < 0.01 else "low" if norm < 0.1 else "healthy" if norm <= 10 else "high"
    return str(level) if level is not None else None


def _early(answers: Answers) -> str | None:
    step, early = answers.get("nan_step"), answers.get("nan_early")
    if isinstance(step, float) and answers.get("clock") != "epoch":
        return "yes" if step <= FEW_STEPS else "no"
    if isinstance(step, float) and step >= 1:  # later than the first epoch: more than a few steps
        return "no"
    return str(early) if early is not None else None


def _larger(answers: Answers) -> str | None:
    size, samples, said = (answers.get(name) for name in ("parameters", "dataset_size", "model_larger"))
    if isinstance(size, float) and isinstance(samples, float):
        return "yes" if size > LARGER * samples else "no"
    return str(said) if said is not None else None


def _regularization(answers: Answers) -> str | None:
    rate, decay = answers.get("dropout"), answers.get("weight_decay")
    if not isinstance(rate, float) and not isinstance(decay, float):
        return None
    weak = (not isinstance(rate, float) or rate < 0.1) and (not isinstance(decay, float) or decay < 0.01)
    return "weak" if weak else "there"


def _said(name: str) -> Callable[[Answers], str | None]:
    return lambda answers: None if answers.get(name) is None else str(answers[name])


READS: Mapping[str, tuple[str, ...]] = {
    "gradient": ("grad_norm", "grad_level"),
    "early": ("nan_step", "nan_early"),
    "larger": ("parameters", "dataset_size", "model_larger"),
    "regularization": ("dropout", "weight_decay"),
}
"""The questions that a measure reads, if not just the question with its own name."""
MEASURES: Mapping[str, Callable[[Answers], str | None]] = {
    "gradient": _gradient,
    "early": _early,
    "larger": _larger,
    "regularization": _regularization,
    "at_floor": _said("at_floor"),
    "norms_before": _said("norms_before"),
    "activation": _said("activation"),
}
"""Functions that choose a branch from the answers; None if the outcome is not known."""

_VANISHING = Node(
    "Which activation functions are between the layers?",
    "activation",
    {
        "saturating": (
            "sigmoid or tanh",
            Leaf(
                "Vanishing gradients: replace sigmoid and tanh with ReLU, add skip connections.",
                "gradients are very small, and there are sigmoid or tanh activations between the layers",
                {"saturating-nonlinearity": 2.5, "missing-skip-connections": 1.0, "lr-too-low": -1.5},
                ("use-relu-family", "add-residuals"),
            ),
        ),
        "relu": (
            "ReLU or similar",
            Leaf(
                "Vanishing gradients: add skip connections and normalization, check the initialization.",
                "gradients are very small, although no activation function shrinks them",
                {"missing-skip-connections": 1.5, "missing-normalization": 1.0, "bad-initialization": 1.0},
                ("add-residuals", "add-normalization", "initialize"),
            ),
        ),
        "none": (
            "none",
            Leaf(
                "Very small gradients, but no activations that shrink them: look for a detached graph or scaled loss.",
                "gradients are very small, with no activation function between the layers",
                {"detached-graph": 1.5, "accumulation-error": 1.0},
                ("reattach-graph",),
            ),
        ),
    },
    otherwise=Leaf(
        "Vanishing gradients: check the activation functions, add skip connections.",
        "gradients are very small",
        {
            "saturating-nonlinearity": 1.5,
            "missing-skip-connections": 1.5,
            "bad-initialization": 0.5,
            "lr-too-high": -1.5,
        },
        ("add-residuals", "use-relu-family"),
    ),
)

TREES: Mapping[str, Tree] = {
    "plateau": Tree(
        "plateau",
        "Loss plateau",
        ("plateau", "slow-loss"),
        (
            Node(
                "Is the gradient norm healthy (0.1 to 10)?",
                "gradient",
                {
                    "healthy": (
                        "yes",
                        Leaf(
                            "The learning rate is likely too low: raise it 2 to 10 times.",
                            "the gradient norm is healthy, and the loss hardly moves",
                            {"lr-too-low": 2.0, "saturating-nonlinearity": -1.0, "missing-skip-connections": -1.0},
                            ("scale-lr",),
                        ),
                    ),
                    "low": (
                        "rather low (0.01 to 0.1)",
                        Leaf(
                            "Lower than usual, but not vanishing yet: look at the gradient norms per layer first.",
                            "the gradient norm is rather low",
                            {"lr-too-low": 0.7},
                            ("scale-lr",),
                        ),
                    ),
                    "very-low": ("no, very low (under 0.01)", _VANISHING),
                    "high": (
                        "no, high (over 10)",
                        Leaf(
                            "The steps overshoot, or every step is clipped: lower the learning rate.",
                            "the gradient norm is high",
                            {"lr-too-high": 1.5, "lr-too-low": -1.5},
                            ("scale-lr",),
                        ),
                    ),
                },
            ),
            Node(
                "Is the loss at its theoretical minimum?",
                "at_floor",
                {
                    "yes": (
                        "yes",
                        Leaf(
                            "The model may have converged: check validation.",
                            "the loss is at its theoretical minimum",
                            {"converged": 3.0},
                            (),
                        ),
                    ),
                    "no": (
                        "no",
                        Leaf(
                            "Stuck in a local minimum or at a saddle point: try a restart with a warm-up.",
                            "the loss is above its theoretical minimum",
                            {"converged": -2.0, "saddle-point": 1.0},
                            ("change-schedule", "restart-warmup"),
                        ),
                    ),
                },
            ),
        ),
    ),
    "nan": Tree(
        "nan",
        "NaN loss",
        ("nan",),
        (
            Node(
                "Did the NaN appear in the first few steps?",
                "early",
                {
                    "yes": (
                        "yes",
                        Leaf(
                            "Initialization or learning rate: check the initialization, lower the rate, add a warm-up.",
                            "the NaN appeared in the first steps{when}",
                            {"lr-too-high": 1.5, "bad-initialization": 1.5, "warmup-missing": 1.0},
                            ("scale-lr", "initialize", "restart-warmup"),
                        ),
                    ),
                    "no": (
                        "no, it came later",
                        Node(
                            "What did gradient norms do before the NaN?",
                            "norms_before",
                            {
                                "grew": (
                                    "they exploded",
                                    Leaf(
                                        "Exploding gradients: clip them, lower the learning rate.",
                                        "gradient norms had grown before the NaN{when}",
                                        {"lr-too-high": 1.5, "clip-missing": 1.5},
                                        ("set-clip-norm", "scale-lr"),
                                    ),
                                ),
                                "normal": (
                                    "they were normal",
                                    Leaf(
                                        "Look for log(0) or division by zero in the loss, and for NaN in the data.",
                                        "gradient norms were normal before the NaN{when}",
                                        {"numeric-precision": 1.5, "nan-in-data": 0.5, "lr-too-high": -1.0},
                                        ("change-precision", "clean-data", "skip-step"),
                                    ),
                                ),
                            },
                        ),
                    ),
                },
            ),
        ),
    ),
    "overfitting": Tree(
        "overfitting",
        "Overfitting",
        ("overfitting",),
        (
            Node(
                "Is the model much larger than the dataset?",
                "larger",
                {
                    "yes": (
                        "yes",
                        Leaf(
                            "Use a smaller model, or get more data.",
                            "the model is much larger than the dataset",
                            {"memorization": 1.5},
                            ("stop-at-best", "resize-model", "more-data"),
                        ),
                    ),
                    "no": (
                        "no",
                        Node(
                            "How much dropout and weight decay is there?",
                            "regularization",
                            {
                                "weak": (
                                    "hardly any",
                                    Leaf(
                                        "Try dropout of 0.1 to 0.3 and weight decay of 0.01 to 0.1.",
                                        "there is hardly any dropout or weight decay",
                                        {"under-regularized": 1.5},
                                        ("raise-dropout", "set-weight-decay"),
                                    ),
                                ),
                                "there": (
                                    "some",
                                    Leaf(
                                        "The model is already regularized: stop at the best step, or get more data.",
                                        "there is already dropout or weight decay",
                                        {"memorization": 0.7, "under-regularized": -1.0},
                                        ("stop-at-best", "augment-data", "more-data"),
                                    ),
                                ),
                            },
                        ),
                    ),
                },
            ),
        ),
    ),
}


def walk(tree: Tree, answers: Answers) -> Walk:
    """The path through a tree, as far as the answers lead."""
    way: list[tuple[str, str]] = []
    leaves: list[Leaf] = []
    reads: list[frozenset[str]] = []
    missing: list[str] = []
    for root in tree.roots:
        place: Leaf | Node = root
        read: set[str] = set()
        while isinstance(place, Node):
            branch = place.branches.get(MEASURES[place.measure](answers) or "")
            if branch is None:
                missing.append(place.asks)
                place = place.otherwise or place
                break
            way.append((place.asks, branch[0]))
            read.update(READS.get(place.measure, (place.measure,)))
            place = branch[1]
        if isinstance(place, Leaf):
            leaves.append(place)
            reads.append(frozenset(read))
    return Walk(tree, tuple(way), tuple(leaves), tuple(reads), tuple(missing))


def evidence(leaf: Leaf, answers: Answers) -> str:
    """The evidence of a leaf, with the step of the NaN if known.

    >>> evidence(walk(TREES["nan"], {"nan_step": 12.0}).leaves[0], {"nan_step": 12.0})
    'the NaN appeared in the first steps (step 12)'
    """
    step = answers.get("nan_step")
    return leaf.shows.format(when=f" ({clock_of(answers)} {step:.0f})" if isinstance(step, float) else "")


def printed(tree: Tree) -> str:
    """A tree as indented text."""
    return "\n".join([tree.title, *(line for root in tree.roots for line in _lines(root, 0))])


def _lines(place: Leaf | Node, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(place, Leaf):
        yield f"{pad}{place.says}"
        return
    yield f"{pad}{place.asks}"
    for words, following in place.branches.values():
        if isinstance(following, Leaf):
            yield f"{pad}- {words}: {following.says}"
        else:
            yield f"{pad}- {words}"
            yield from _lines(following, depth + 1)
