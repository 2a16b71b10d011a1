"""clipping-anomaly."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.clipping_anomaly import IN_VAIN, ClippingAnomaly

SICK = {
    "cut to nothing": ([50.0] * 100, 0.01, "SGD", 1e-7, "warning"),
    "cut to nothing, movement unknown": ([50.0] * 100, 0.01, "SGD", None, "info"),
}
HEALTHY = {
    "no clipping": ([50.0] * 100, None, "SGD", 1e-7),
    "cut to a tenth": ([10.0] * 100, 1.0, "SGD", 1e-7),
    "Adam does not feel it": ([50.0] * 100, 0.01, "AdamW", 1e-7),
    "the rate makes up for it": ([50.0] * 100, 0.01, "SGD", 1e-3),
    "an outlier now and then": (([1.0] * 4 + [500.0]) * 20, 1.0, "SGD", 1e-7),
    "a norm that is only asked for": ([50.0] * 100, float("inf"), "SGD", 1e-7),
    "too few steps": ([50.0] * 40, 0.01, "SGD", 1e-7),
}


def chart(norms, clip, optimizer, ratio):
    built = Chart.of(grad_norm=norms, clip=[] if clip is None else [clip])
    built.groups = [{"optimizer": optimizer}]
    if ratio is not None:
        built.names = ("a.weight",)
        built.add({"type": "tensors", "step": len(norms) - 1, "vitals": {"update_ratio": [ratio]}})
    return built


@pytest.mark.parametrize(("norms", "clip", "optimizer", "ratio", "severity"), SICK.values(), ids=SICK)
def test_fires(norms, clip, optimizer, ratio, severity):
    assert ClippingAnomaly().check(chart(norms, clip, optimizer, ratio)).severity == severity


@pytest.mark.parametrize(("norms", "clip", "optimizer", "ratio"), HEALTHY.values(), ids=HEALTHY)
def test_stays_silent(norms, clip, optimizer, ratio):
    assert ClippingAnomaly().check(chart(norms, clip, optimizer, ratio)) is None


@pytest.mark.parametrize(("slope", "fires"), [(0.99, False), (0.9999, True)])
def test_a_summed_loss_that_falls_is_clipped_as_it_should_be(slope, fires):
    built = chart([150.0] * 300, 1.0, "SGD", 5e-5)
    for step in range(300):
        built.put(step, "loss", 2000 * slope**step)
    assert (ClippingAnomaly().check(built) is not None) == fires


@pytest.mark.parametrize(
    ("slope", "ratio", "fires"),
    [(0.9999, 3e-4, True), (0.99, 3e-4, False), (0.9999, 5e-3, False), (0.9999, 2e-5, False)],
)
def test_a_twentieth_is_too_little_where_the_loss_hardly_falls_and_whole_steps_would_be_useful(slope, ratio, fires):
    built = chart([2.0] * 150, 0.1, "SGD", ratio)
    for step in range(150):
        built.put(step, "loss", 2.3 * slope**step)
        built.put(step, "lr", 0.1)
    assert (ClippingAnomaly().check(built) is not None) == fires


@pytest.mark.parametrize("fact", IN_VAIN)
def test_a_clip_in_vain_is_a_fact(fact):
    built = chart([1.0] * 10, 1.0, "AdamW", 1e-3)
    built.add({"type": "facts", "step": 7, "facts": {fact: True}})
    found = ClippingAnomaly().check(built)
    assert (found.severity, found.first_step) == ("warning", 7)


@pytest.mark.parametrize(
    ("norm", "scale", "fires"),
    [(6e4, 65536.0, True), (0.9, 65536.0, False), (6e4, 1.0, False), (150.0, 65536.0, False)],
)
def test_gradients_that_still_carry_the_loss_scale(norm, scale, fires):
    built = chart([norm] * 100, 1.0, "AdamW", 1e-3)
    built.put(99, "loss_scale", scale)
    assert (ClippingAnomaly().check(built) is not None) == fires


def begun(norms, clips, rates=None, optimizer="SGD"):
    """A run whose loss has fallen far before clipping changes."""
    built = Chart.of(loss=[3 * 0.98**step + 0.1 for step in range(len(norms))])
    built.groups = [{"optimizer": optimizer}]
    for step, norm in enumerate(norms):
        built.put(step, "grad_norm", norm)
        built.put(step, "lr", 0.1 if rates is None else rates[step])
        built.put(step, "input_checksum", float(step))
    for step, clip in clips.items():
        built.put(step, "clip", clip)
    return built


NOISY = [1.0, 0.7, 1.4] * 100
LATE = {
    "clipping begins": (begun(NOISY, {200: 0.01}), 200),
    "a threshold becomes tighter": (begun(NOISY, {0: 1.0, 200: 0.01}), 200),
    "by value: all norms are one": (begun(NOISY[:200] + [0.002] * 100, {}), 200),
}
AS_IT_SHOULD = {
    "at the start": begun(NOISY, {0: 0.01}),
    "a threshold about the norm": begun(NOISY, {200: 0.5}),
    "a threshold that was tight before": begun(NOISY, {0: 0.02, 200: 0.01}),
    "Adam": begun(NOISY, {200: 0.01}, optimizer="AdamW"),
    "the rate makes up for it": begun(NOISY, {200: 0.01}, [0.1] * 200 + [5.0] * 100),
    "too few steps": begun(NOISY, {260: 0.01}),
    "gradients of one length, as before": begun([1.0] * 300, {}),
    "gradients of one length, somewhat smaller": begun(NOISY[:200] + [0.3] * 100, {}),
}


@pytest.mark.parametrize(("built", "since"), LATE.values(), ids=LATE)
def test_clipping_that_cuts_to_nothing_from_the_middle_of_a_run_on(built, since):
    found = ClippingAnomaly().check(built)
    assert (found.severity, found.first_step) == ("warning", since)


@pytest.mark.parametrize("built", AS_IT_SHOULD.values(), ids=AS_IT_SHOULD)
def test_clipping_that_begins_late_and_leaves_enough(built):
    assert ClippingAnomaly().check(built) is None
