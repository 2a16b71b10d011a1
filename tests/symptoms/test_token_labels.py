"""target-anomaly, of labels that are tokens: shifted twice, or there to be read."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.target_anomaly import TargetAnomaly

SICK = {
    "shifted twice": ([0.05] * 3, [1.0] * 3, [], "shifted twice"),
    "nothing is masked": ([1.0] * 3, [0.05] * 3, [0.49, 0.48, 0.5], "can be read"),
    "the mask is upside down": ([1.0] * 3, [0.05] * 3, [0.93, 0.95], "can be read"),
}
HEALTHY = {
    "next tokens, nothing known of attention": ([1.0] * 3, [0.05] * 3, []),
    "next tokens behind a mask": ([1.0] * 3, [0.05] * 3, [0.0, 0.0, 0.0]),
    "masked in one of the samples": ([1.0] * 3, [0.05] * 3, [0.49, 0.0]),
    "one look is no proof": ([1.0] * 3, [0.05] * 3, [0.49]),
    "masked words, which are to be looked for on both sides": ([0.02] * 3, [0.03] * 3, [0.5, 0.5, 0.5]),
    "all tokens are one and the same": ([1.0] * 3, [1.0] * 3, []),
    "too few samples": ([0.05] * 2, [1.0] * 2, []),
}


def check(following, second, ahead):
    vitals = {"target_is_next": following, "target_after_next": second, "attention_ahead": ahead}
    return TargetAnomaly().check(Chart.of(**vitals))


@pytest.mark.parametrize(("following", "second", "ahead", "words"), SICK.values(), ids=SICK)
def test_fires(following, second, ahead, words):
    found = check(following, second, ahead)
    assert found.severity == "warning"
    assert words in found.message


@pytest.mark.parametrize(("following", "second", "ahead"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(following, second, ahead):
    assert check(following, second, ahead) is None


@pytest.mark.parametrize(("share", "fires"), [(0.2, True), (0.99, False)])
def test_texts_of_one_token_are_not_copied(share, fires):
    found = TargetAnomaly().check(Chart.of(target_is_input=[1.0] * 3, token_top_share=[share] * 3))
    assert (found is not None) == fires
