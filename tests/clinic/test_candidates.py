"""The check-up's candidates: enough of them, and each is what it says."""

from __future__ import annotations

import pytest
import torch

from torchdoctor.clinic.candidates import BROKEN, CANDIDATES, SOUND, Candidate


def test_there_are_enough_in_both_halves() -> None:
    assert len(BROKEN) >= 40
    assert len(SOUND) >= 25
    assert len(CANDIDATES) == len(BROKEN) + len(SOUND)  # no name twice
    for group in (BROKEN, SOUND):
        held_out = sum(item.split == "held-out" for item in group)
        assert 0.35 < held_out / len(group) < 0.65


@pytest.mark.parametrize("candidate", CANDIDATES.values(), ids=CANDIDATES)
def test_a_candidate_is_the_same_twice(candidate: Candidate) -> None:
    assert candidate.summary.endswith(".")
    visits = []
    for _ in range(2):
        torch.manual_seed(0)
        visits.append(candidate.build())
    models = [list(v.model.values()) if isinstance(v.model, dict) else [v.model] for v in visits]
    first, second = ([p for model in group for p in model.state_dict().values()] for group in models)
    assert len(first) == len(second) > 0
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))
