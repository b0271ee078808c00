"""Training metrics, metrics.jsonl, and the times of steps."""

import json
import threading
import time
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from heartbeats import NO_HEARTBEAT
from machine import until

from mxscale.distributed.communicators import Local
from mxscale.rundir.directory import RunDir
from mxscale.train.metrics import Accumulator, MetricsLog
from mxscale.train.timing import ThroughputTimer

GATES = []  # of arrays that the device computes until their gate is open


class Held(mx.operator.CustomOp):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, is_train, req, in_data, out_data, aux):
        assert self.gate.wait(60)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("held")
class HeldProp(mx.operator.CustomOpProp):
    def __init__(self, gate):
        super().__init__(need_top_grad=False)
        self.gate = GATES[int(gate)]

    def create_operator(self, ctx, shapes, dtypes):
        return Held(self.gate)


@pytest.fixture
def held():
    """held(after=None) -> (an array that the device computes until its gate is open, once `after` is ready; gate)."""

    def make(after=None):
        GATES.append(threading.Event())
        array = mx.nd.Custom(mx.nd.ones(1) if after is None else after, op_type="held", gate=len(GATES) - 1)
        return array, GATES[-1]

    yield make
    for gate in GATES:
        gate.set()
    mx.nd.waitall()  # an interpreter that exits while the device computes such an array hangs
    GATES.clear()


@pytest.fixture
def metrics_log(tmp_path):
    return MetricsLog(RunDir(tmp_path), Local(), 1, NO_HEARTBEAT)


@pytest.fixture
def accumulator():
    return Accumulator([mx.cpu()])


@pytest.fixture
def timer():
    return ThroughputTimer()


# ---------------------------------------------------------------- accumulator


def test_accumulator_sums_losses_and_correct_predictions_until_taken(accumulator):
    logits = mx.nd.array([[0, 1, 0], [3, 1, 0], [0, 0, 9], [1, 0, 0]])
    accumulator.add(mx.nd.array([0.5, 1.5, 1, 1]), logits, mx.nd.array([1, 0, 1, 2]))
    accumulator.add(mx.nd.array([2, 2]), logits[:2], mx.nd.array([1, 1]))
    assert accumulator.take()().tolist() == [8.0, 3.0, 6.0]
    assert accumulator.take()().tolist() == [0.0, 0.0, 0.0]


def test_accumulator_counts_thousands_of_float16_scores(accumulator):
    logits = mx.nd.array([[0, 1]] * 3000, dtype="float16")
    accumulator.add(mx.nd.ones(3000), logits, mx.nd.ones(3000))
    assert accumulator.take()().tolist() == [3000.0, 3000.0, 3000.0]


def test_accumulator_knows_classes_beyond_float16s_whole_numbers(accumulator):
    classes = mx.nd.array([2049, 5001])
    accumulator.add(mx.nd.ones(2), mx.nd.one_hot(classes, 6000, dtype="float16"), classes)
    assert accumulator.take()()[1] == 2


# ---------------------------------------------------------------- throughput timer


# Clocks are read by several threads, on machines whose cores' clocks may differ by some microseconds
SKEW_S = 0.01


def test_idle_device_waits_for_its_batch(timer):
    asked_at = time.perf_counter()
    time.sleep(0.1)
    timer.fetched(asked_at, 32)
    images, seconds, waited = timer.lap()()
    assert images == 32
    assert 0.1 - SKEW_S <= waited <= seconds


def test_wait_is_at_most_the_interval(timer):
    asked_at = time.perf_counter()
    time.sleep(0.05)
    timer.restart()
    timer.fetched(asked_at, 32)  # the batch was requested before the interval began
    _, seconds, waited = timer.lap()()
    assert 0 < waited <= seconds


def test_fetch_during_compute_is_no_wait(timer, held):
    array, gate = held()
    timer.dispatched(array)  # the first call returns at once
    asked_at = time.perf_counter()
    time.sleep(0.02)
    timer.fetched(asked_at, 32)
    gate.set()
    assert timer.lap()()[2] == 0.0


def test_wait_begins_when_the_device_is_done(timer, held):
    asked_at = time.perf_counter()
    array, gate = held()
    timer.dispatched(array)
    time.sleep(0.05)
    opened_at = time.perf_counter()
    gate.set()
    until(lambda: timer._done == 1, 60)
    done_by = time.perf_counter()
    time.sleep(0.05)
    fetched_at = time.perf_counter()
    timer.fetched(asked_at, 32)
    waited = timer.lap()()[2]
    assert fetched_at - done_by - SKEW_S <= waited <= time.perf_counter() - opened_at + SKEW_S


def test_one_step_in_flight_while_the_next_is_dispatched(timer, held):
    (first, first_gate), (second, second_gate) = held(), held()
    timer.dispatched(first)  # returns at once
    next_step = threading.Thread(target=timer.dispatched, args=(second,))
    next_step.start()
    next_step.join(0.1)
    assert next_step.is_alive()
    first_gate.set()
    next_step.join(60)
    assert not next_step.is_alive() and not second_gate.is_set()


def test_device_error_reaches_the_loop(timer):
    timer.dispatched(mx.nd.random.normal(0, -1, shape=2))  # the device refuses it some time later
    with pytest.raises(mx.MXNetError):
        timer.dispatched(mx.nd.ones(1))


def test_interval_ends_when_its_last_step_is_done(held):
    began = time.perf_counter()
    timer = ThroughputTimer()
    timer.fetched(time.perf_counter(), 32)
    array, gate = held()
    timer.dispatched(array)
    lap = timer.lap()
    time.sleep(0.1)
    gate.set()
    after = timer.lap()  # without images
    images, seconds, _ = lap()
    assert images == 32 and seconds >= 0.1 - SKEW_S
    assert seconds + after()[1] <= time.perf_counter() - began + SKEW_S


def test_restart_excludes_the_time_since_the_last_lap(timer):
    timer.fetched(time.perf_counter(), 8)
    time.sleep(0.1)
    restarted_at = time.perf_counter()
    timer.restart()
    images, seconds, waited = timer.lap()()
    assert (images, waited) == (0, 0) and seconds <= time.perf_counter() - restarted_at + SKEW_S


# ---------------------------------------------------------------- metrics log


def test_torn_last_line_is_ended_before_the_next(tmp_path):
    run = RunDir(tmp_path)
    run.metrics_file.write_bytes(b'{"attempt":1,"step":1,"time_ms":1,"metrics":{"lr":0.1}}\n{"attempt":1,"step":2,"ti')
    for attempt in (2, 3):  # the last line is complete when attempt 3 begins
        MetricsLog(run, Local(), attempt, NO_HEARTBEAT).write(attempt, {"lr": 0.2})
    assert [(line["attempt"], line["step"]) for line in run.lines()] == [(1, 1), (2, 2), (3, 3)]
    assert run.metrics_file.read_bytes().count(b"\n") == 4


def test_line_is_flushed_when_written(metrics_log, tmp_path):
    metrics_log.write(7, {"lr": 0.5})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["attempt"], entry["step"], entry["metrics"]) == (1, 7, {"lr": 0.5})
    assert abs(entry["time_ms"] / 1000 - time.time()) < 60


def test_other_ranks_write_nothing(tmp_path):
    class Second(Local):
        rank = 1

    MetricsLog(RunDir(tmp_path), Second(), 1, NO_HEARTBEAT).write(1, {"lr": 0.1})
    assert not RunDir(tmp_path).metrics_file.exists()


def record(metrics_log, step, accumulator, timer):
    metrics_log.record(step, 0.25, accumulator.take(), timer.lap())


def test_line_has_means_over_the_images_of_its_interval(metrics_log, tmp_path, accumulator):
    accumulator.add(mx.nd.array([1, 3]), mx.nd.array([[0, 1], [1, 0]]), mx.nd.array([1, 1]))
    images_seconds_waited = partial(np.array, [100, 2.0, 0.5])
    metrics_log.record(3, 0.25, accumulator.take(), images_seconds_waited)
    assert metrics_log.drain() == [(3, 2.0)]
    (line,) = RunDir(tmp_path).lines()
    assert (line["metrics"]["train/loss"], line["metrics"]["train/top1"], line["metrics"]["lr"]) == (2.0, 50.0, 0.25)
    assert (line["metrics"]["throughput/images_per_s"], line["metrics"]["time/data_wait"]) == (50.0, 0.25)


def test_loss_that_is_not_finite_is_returned(metrics_log, accumulator, timer):
    accumulator.add(mx.nd.array([np.nan]), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    record(metrics_log, 1, accumulator, timer)
    ((step, loss),) = metrics_log.drain()
    assert step == 1 and np.isnan(loss)


def test_line_is_written_two_steps_after_it_is_recorded(metrics_log, tmp_path, accumulator, timer):
    steps = []
    for step in range(1, 5):  # each has a line
        steps += [at for at, _ in metrics_log.poll()]
        accumulator.add(mx.nd.full(1, step), mx.nd.array([[0, 1]]), mx.nd.ones(1))
        record(metrics_log, step, accumulator, timer)
    assert steps == [1, 2]
    assert metrics_log.drain() == [(3, 3.0), (4, 4.0)] and metrics_log.drain() == []
    assert [(line["step"], line["metrics"]["train/loss"]) for line in RunDir(tmp_path).lines()] == [
        (step, step) for step in range(1, 5)
    ]


def test_record_and_poll_wait_for_neither_device_nor_ranks(tmp_path, accumulator, timer, held):
    class Slow(Local):
        def total_later(self, values, name):
            return lambda: pytest.fail("no rank has to wait for the others yet")

    metrics_log = MetricsLog(RunDir(tmp_path), Slow(), 1, NO_HEARTBEAT)
    accumulator.add(mx.nd.ones(1), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    array, gate = held()
    timer.dispatched(array)
    record(metrics_log, 1, accumulator, timer)
    assert timer._done == 0
    gate.set()  # `poll` is called after the next step, when the device is done with this one
    assert metrics_log.poll() == []
