import pytest

from torchdoctor.chart import Chart
from torchdoctor.symptoms.progress import Progress, is_restart, lr_jump


@pytest.mark.parametrize(
    ("rates", "jump"),
    [
        ([], 1.0),
        ([1e-3] * 10, 1.0),
        ([1e-3] * 100, 1.0),
        ([1e-3] * 99 + [0.1], 100.0),
        ([1e-3] * 90 + [0.1] * 10, 100.0),
        ([1e-3] * 50 + [0.1] * 50, 1.0),
        ([1e-5 * 1.1**step for step in range(100)], 1.0),
        ([0.1] * 50 + [1e-4] * 50 + [0.1], 1.0),
        ([0.0] * 100, 1.0),
    ],
)
def test_lr_jump(rates, jump):
    assert lr_jump(Chart.of(lr=rates)) == pytest.approx(jump)


def test_a_jump_beyond_a_rate_that_only_the_outline_remembers_is_none():
    assert lr_jump(Chart.of(lr=[0.1] * 100 + [1e-4] * 3000 + [0.1])) == 1.0


def test_restart():
    assert is_restart(Chart.of(lr=[0.1] * 50 + [1e-4] * 50 + [0.1]))
    assert not is_restart(Chart.of(lr=[1e-4] * 50 + [0.1]))
    assert not is_restart(Chart.of(lr=[0.1] * 100))
    assert not is_restart(Chart())


def test_one_lucky_batch_is_not_the_best_level():
    progress = Progress.of(Chart.of(loss=[4.0] + [2.0] * 60 + [0.1])["loss"])
    assert (progress.start, progress.best) == (4.0, 2.0)
