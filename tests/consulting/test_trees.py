"""The trees: every way leads to a leaf, and what a leaf names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from torchdoctor.consulting import testimony as said
from torchdoctor.consulting.complaints import BY_NAME
from torchdoctor.consulting.trees import MEASURES, TREES, Leaf, Node, evidence, printed, walk
from torchdoctor.diagnoses import CAUSES
from torchdoctor.treatments import ACTIONS


def leaves(place: Leaf | Node) -> Iterator[Leaf]:
    if isinstance(place, Leaf):
        yield place
    else:
        assert place.measure in MEASURES
        for words, following in place.branches.values():
            assert words
            yield from leaves(following)


def test_what_leaves_name_exists() -> None:
    causes, actions = {item.name for item in CAUSES}, {item.slug for item in ACTIONS}
    for tree in TREES.values():
        assert set(tree.complaints) <= set(BY_NAME)
        for root in tree.roots:
            for leaf in leaves(root):
                assert set(leaf.causes) <= causes and set(leaf.actions) <= actions
                assert leaf.says in printed(tree)


def test_evidence_says_what_was_seen_and_not_what_to_do() -> None:
    ends = [leaf for tree in TREES.values() for root in tree.roots for leaf in leaves(root)]
    for leaf in ends:
        told = evidence(leaf, {"nan_step": 12.0})
        assert told[0].islower() and ":" not in told and told not in leaf.says and "{" not in told
        assert not set(re.findall("[a-z]+", told)) & {"try", "add", "check", "reduce", "raise", "lower", "clip"}
    found = said.testimony({"nan_step": 12.0}, {"nan_step": 12.0}, [walk(TREES["nan"], {"nan_step": 12.0})])
    assert [item.text for item in found["lr-too-high"]] == ["the NaN appeared in the first steps (step 12)"]


WAYS = [
    ("plateau", {"grad_norm": 0.5}, "raise it 2 to 10 times"),
    ("plateau", {"grad_norm": 0.003, "activation": "saturating"}, "Vanishing gradients"),
    ("plateau", {"grad_level": "very-low", "activation": "relu"}, "add skip connections"),
    ("plateau", {"at_floor": "yes"}, "may have converged"),
    ("plateau", {"at_floor": "no"}, "restart with a warm-up"),
    ("nan", {"nan_step": 3.0}, "Initialization or learning rate"),
    ("nan", {"nan_early": "yes"}, "Initialization or learning rate"),
    ("nan", {"nan_step": 900.0, "norms_before": "grew"}, "clip them"),
    ("nan", {"nan_step": 900.0, "norms_before": "normal"}, "log(0)"),
    ("overfitting", {"parameters": 1e9, "dataset_size": 1e4}, "Use a smaller model, or get more data"),
    (
        "overfitting",
        {"model_larger": "no", "dropout": 0.0, "weight_decay": 0.0},
        "dropout of 0.1 to 0.3 and weight decay of 0.01",
    ),
    ("overfitting", {"model_larger": "no", "dropout": 0.4}, "already regularized"),
]


@pytest.mark.parametrize(("name", "answers", "says"), WAYS)
def test_ways(name: str, answers: dict[str, float | str], says: str) -> None:
    found = walk(TREES[name], answers)
    assert any(says in leaf.says for leaf in found.leaves)


def test_what_is_not_known_ends_the_way_and_is_said() -> None:
    found = walk(TREES["nan"], {})
    assert not found.leaves and found.missing == ("Did the NaN appear in the first few steps?",)


def test_a_gradient_that_vanishes_says_so_before_its_activations_are_known() -> None:
    found = walk(TREES["plateau"], {"grad_norm": 0.0005, "at_floor": "no"})
    assert "check the activation functions" in found.leaves[0].says
    assert "Which activation functions are between the layers?" in found.missing
