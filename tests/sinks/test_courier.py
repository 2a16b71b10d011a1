"""The loop feels nothing: not a slow sink, a failing one, a hanging one, a fork or an exit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.sinks.sick import END, HEALTHY, OPENED, OVER, SICK, WORSE, event, spike

from torchdoctor.sinks import courier as module
from torchdoctor.sinks.courier import Couriers

NOTE = {"type": "note", "step": 3, "text": "something"}
VITALS = {"type": "vitals", "step": 7, "vitals": {"loss": 1.0}}


class Recorder:
    """A sink that keeps what it is given, and fails when told to."""

    def __init__(self, fails=()):
        self.fails, self.calls, self.records, self.reports = set(fails), 0, [], []

    def take(self, records):
        self.records += records
        self.calls += 1
        if self.calls in self.fails:
            raise OSError("no room")

    def close(self, report):
        self.reports.append(report)


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(module, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(module, "PAUSES", (0.01, 0.01))


def started(sink):
    couriers = Couriers()
    couriers.add(sink, "the sink test")
    return couriers


def test_records_arrive_in_order_and_then_the_report():
    sink = Recorder()
    couriers = started(sink)
    for step in range(500):
        couriers.take({**NOTE, "step": step}, [])
    couriers.close(SICK)
    assert [record["step"] for record in sink.records] == list(range(500))
    assert sink.reports == [SICK]
    assert couriers.troubles() == []


def test_measurements_are_not_queued_but_what_follows_from_them_is():
    sink = Recorder()
    couriers = started(sink)
    couriers.take(VITALS, [])
    couriers.take(VITALS, OPENED)
    couriers.close(HEALTHY)
    assert sink.records == OPENED


def test_a_sink_that_wants_values_is_shown_the_latest():
    sink = Recorder()
    sink.vitals = True
    couriers = started(sink)
    for step in range(100):
        couriers.take({**VITALS, "step": step}, [])
    couriers.take(NOTE, [])
    couriers.close(None)
    steps = [record["step"] for record in sink.records if record["type"] == "vitals"]
    assert steps[-1] == 99
    assert len(steps) <= 3


def test_what_comes_within_the_interval_is_one_call(monkeypatch):
    monkeypatch.setattr(module, "GATHER_SECONDS", 30.0)
    sink = Recorder()
    couriers = started(sink)
    for step in range(50):
        couriers.take({**NOTE, "step": step}, [])
    couriers.close(SICK)
    assert (sink.calls, len(sink.records)) == (1, 50)


@pytest.mark.parametrize("fails", [{1}, {2}, {1, 2}, {2, 3}, {1, 3, 5}])
def test_a_sink_that_recovers_is_kept(fails):
    sink = Recorder(fails)
    couriers = started(sink)
    for step in range(6):
        couriers.take({**NOTE, "step": step}, [])
        wait_until(lambda: len(sink.records) == step + 1)  # noqa: B023
    wait_until(lambda: not (sink.calls in fails or sink.calls < max(fails)))
    couriers.close(HEALTHY)
    assert [record["step"] for record in sink.records] == list(range(6))
    assert couriers.troubles() == []


def test_three_failures_in_a_row_switch_a_sink_off_with_one_note():
    sink, other = Recorder(range(100)), Recorder()
    couriers = started(sink)
    couriers.add(other, "the sink other")
    couriers.take(NOTE, [])
    wait_until(lambda: couriers._troubles)
    assert couriers.take(NOTE, []) == [
        ("the sink test", "the sink test was switched off: it failed 3 times (OSError: no room).")
    ]
    for _ in range(10):
        assert couriers.take(NOTE, []) == ()
    couriers.close(SICK)
    assert couriers.troubles() == []
    assert (sink.calls, sink.reports) == (3, [None])
    assert len(other.records) == 12 and other.reports == [SICK]


def test_a_sink_that_fails_at_the_end_is_noted_and_still_closed():
    class Last(Recorder):
        def close(self, report):
            super().close(report)
            raise ValueError("late")

    couriers = started(Last())
    couriers.close(SICK)
    assert couriers.troubles() == [
        ("the sink test", "the sink test did not accept the last messages of the run (ValueError: late).")
    ]


def test_a_hanging_sink_holds_neither_the_loop_nor_the_end_nor_another_sink(monkeypatch):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 100)
    gate, sink, other = threading.Event(), Recorder(), Recorder()
    monkeypatch.setattr(sink, "take", lambda records: gate.wait(60))
    couriers = started(sink)
    couriers.add(other, "the sink other")
    for step in range(5000):
        couriers.take({**NOTE, "step": step}, [])
        if step % 50 == 0:
            wait_until(lambda: other.records and other.records[-1]["step"] == step)  # noqa: B023
    thread = couriers._couriers[0]._thread
    assert couriers._couriers[0]._queue.qsize() <= 100
    couriers.close(SICK, timeout=0.05)
    assert thread.is_alive()
    assert "had not answered when the run ended" in couriers.troubles()[0][1]
    gate.set()
    thread.join(10)
    assert not thread.is_alive()


def test_dropped_messages_are_noted(monkeypatch):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 0)
    couriers = started(Recorder())
    couriers.take(NOTE, [])
    couriers.close(SICK)
    assert "1 of its messages were dropped" in couriers.troubles()[0][1]


def test_closing_twice_and_taking_after_closing_do_nothing():
    sink = Recorder()
    couriers = started(sink)
    couriers.close(SICK)
    couriers.close(SICK)
    couriers.take(NOTE, [])
    assert (sink.records, sink.reports) == ([], [SICK])


def test_an_abandoned_run_is_sent_and_its_thread_ends():
    sink = Recorder()
    couriers = started(sink)
    thread = couriers._couriers[0]._thread
    couriers.take(NOTE, [])
    del couriers
    gc.collect()
    assert not thread.is_alive()
    assert (sink.records, sink.reports) == ([NOTE], [None])


CHILD = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from sick import *
from torchdoctor.sinks import Couriers
NOTE = {NOTE!r}
class Printing:
    def take(self, records):
        for record in records: print(record["step"], flush=True)
    def close(self, report): print("closed", report is not None, flush=True)
couriers = Couriers()
couriers.add(Printing(), "the sink test")
"""


def child(code):
    return subprocess.run([sys.executable, "-c", CHILD + code], capture_output=True, text=True, timeout=60, check=False)


def test_an_exit_without_closing_sends_what_is_waiting_and_keeps_the_exit_code():
    done = child("couriers.take(NOTE, [])\nsys.exit(7)")
    assert (done.returncode, done.stdout.split(), done.stderr) == (7, ["3", "closed", "False"], "")


def test_an_exit_does_not_wait_for_ever():
    code = (
        "import torchdoctor.sinks.courier as c\nc.GATHER_SECONDS, c.CLOSE_SECONDS = 0, 0.1\n"
        "Printing.take = lambda self, records: time.sleep(3600)\n"
        "couriers = Couriers()\ncouriers.add(Printing(), 'the sink test')\ncouriers.take(NOTE, [])\ntime.sleep(0.3)\n"
    )
    done = child(code)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_sends_nothing():
    code = (
        "import warnings\nwarnings.simplefilter('ignore')\ncouriers.take(NOTE, [])\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        before = couriers._couriers[0]._queue.qsize()\n"
        "        couriers.take({**NOTE, 'step': 10**6}, [])\n"
        "        assert couriers._couriers[0]._queue.qsize() == before\n"
        "        couriers.close(SICK)\n"
        "        sys.exit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "couriers.take({**NOTE, 'step': 4}, [])\ncouriers.close(SICK)\n"
    )
    done = child(code)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["3", "4", "closed", "True"], "")


def test_the_story_of_an_episode_reaches_a_sink_whatever_fails():
    """Every call fails once, one after the other: nothing is lost and nothing is told twice."""
    story = [OPENED, WORSE, OVER, [event("opened", spike(first=170))], END]
    for nth in range(1, 6):
        sink = Recorder({nth})
        couriers = started(sink)
        for batch in story:
            couriers.take(VITALS, batch)
            seen = len(sink.records)
            wait_until(lambda: len(sink.records) >= seen)  # noqa: B023
        couriers.close(SICK)
        assert sink.records == [record for batch in story for record in batch]
