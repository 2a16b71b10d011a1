"""clipping-anomaly."""

import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.clipping_anomaly import ClippingAnomaly

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


def test_a_clip_after_the_step_is_a_fact():
    built = chart([1.0] * 10, 1.0, "AdamW", 1e-3)
    built.add({"type": "facts", "step": 7, "facts": {"clip.after_step": True}})
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
