"""Training metrics, metrics.jsonl, and the times of steps."""

import json
import time
from functools import partial

import mxnet as mx
import numpy as np
import pytest

from mxscale.distributed.communicators import Local
from mxscale.rundir.directory import RunDir
from mxscale.train.metrics import Accumulator, MetricsLog
from mxscale.train.timing import ProfiledStep, StepProfiler, ThroughputTimer, UnprofiledStep


class Sleep(mx.operator.CustomOp):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, is_train, req, in_data, out_data, aux):
        time.sleep(self.seconds)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("sleep")
class SleepProp(mx.operator.CustomOpProp):
    def __init__(self, seconds):
        super().__init__(need_top_grad=False)
        self.seconds = float(seconds)

    def create_operator(self, ctx, shapes, dtypes):
        return Sleep(self.seconds)


def busy(seconds, after=None):
    """Return an array that the device computes for `seconds`, once `after` is ready."""
    return mx.nd.Custom(mx.nd.ones(1) if after is None else after, op_type="sleep", seconds=seconds)


@pytest.fixture(autouse=True)
def wait_for_the_device():
    """An interpreter that exits while the device computes such an array hangs."""
    yield
    mx.nd.waitall()


@pytest.fixture
def metrics_log(tmp_path):
    return MetricsLog(RunDir(tmp_path), Local(), attempt=1)


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


def test_idle_device_waits_for_its_batch(timer):
    asked_at = time.perf_counter()
    time.sleep(0.1)
    timer.fetched(asked_at, 32)
    images, seconds, waited = timer.lap()()
    assert images == 32
    assert 0.1 <= waited <= seconds < 1


def test_fetch_during_compute_is_no_wait(timer):
    timer.dispatched(busy(0.5))  # the first call returns at once
    asked_at = time.perf_counter()
    time.sleep(0.05)
    timer.fetched(asked_at, 32)
    assert timer.lap()()[2] == 0.0


def test_wait_begins_when_the_device_is_done(timer):
    asked_at = time.perf_counter()
    result = busy(0.3)
    timer.dispatched(result)
    result.wait_to_read()
    time.sleep(0.1)
    timer.fetched(asked_at, 32)
    assert 0.08 < timer.lap()()[2] < time.perf_counter() - asked_at - 0.25


def test_one_step_in_flight_while_the_next_is_dispatched(timer):
    began = time.perf_counter()
    timer.dispatched(busy(0.4))
    assert time.perf_counter() - began < 0.3
    timer.dispatched(busy(0.4))
    assert 0.4 <= time.perf_counter() - began < 0.7


def test_device_error_reaches_the_loop(timer):
    timer.dispatched(mx.nd.random.normal(0, -1, shape=2))  # the device refuses it some time later
    with pytest.raises(mx.MXNetError):
        timer.dispatched(mx.nd.ones(1))


def test_interval_ends_when_its_last_step_is_done(timer):
    found, work, began = [], None, time.perf_counter()
    timer.restart()
    for _ in range(4):  # a line at each step, read after the next one is dispatched
        timer.fetched(time.perf_counter(), 32)
        work = busy(0.2, after=work)
        timer.dispatched(work)
        found.append(timer.lap())
    laps = [lap() for lap in found]
    assert [lap[0] for lap in laps] == [32] * 4
    assert all(lap[1] > 0.15 for lap in laps) and sum(lap[1] for lap in laps) <= time.perf_counter() - began


def test_restart_excludes_the_time_since_the_last_lap(timer):
    timer.fetched(time.perf_counter(), 8)
    time.sleep(0.2)
    timer.restart()
    images, seconds, waited = timer.lap()()
    assert (images, waited) == (0, 0) and seconds < 0.2


# ---------------------------------------------------------------- step profiler


def test_every_50th_step_is_profiled(timer):
    profiler = StepProfiler(50, timer)
    profiled = [step for step in range(200) if isinstance(profiler.begin(step), ProfiledStep)]
    assert profiled == [49, 99, 149, 199]
    assert isinstance(profiler.begin(0), UnprofiledStep)


def test_profiled_step_does_not_count_in_throughput(timer):
    profiler = StepProfiler(1, timer)
    timer.fetched(time.perf_counter(), 8)
    waited, began = timer.waited_s, time.perf_counter()
    step = profiler.begin(0)
    asked_at = time.perf_counter()
    time.sleep(0.1)
    timer.fetched(asked_at, 32)
    step.record("time/compute")
    time.sleep(0.2)
    step.record("time/exchange")
    step.end()
    medians = profiler.take()
    assert 0.1 <= medians["time/compute"] < 0.2 <= medians["time/exchange"]
    after = timer.lap()()
    assert (after[0], after[2]) == (8, waited)
    assert after[1] < time.perf_counter() - began - 0.2
    assert profiler.take() == {}


def test_profiled_step_waits_for_the_device(timer):
    profiler = StepProfiler(1, timer)
    step = profiler.begin(0)
    busy(0.2)
    step.record("time/compute")
    step.record("time/exchange")
    medians = profiler.take()
    assert medians["time/compute"] >= 0.2 and medians["time/exchange"] < 0.1


def test_several_profiled_steps_give_their_median(timer):
    profiler = StepProfiler(1, timer)
    profiler.seconds = {"time/compute": [0.1, 0.9, 0.2], "time/exchange": [0.01, 0.02, 0.03]}
    assert profiler.take() == {"time/compute": 0.2, "time/exchange": 0.02}


# ---------------------------------------------------------------- metrics log


def test_torn_last_line_is_ended_before_the_next(tmp_path):
    run = RunDir(tmp_path)
    run.metrics_file.write_bytes(b'{"attempt":1,"step":1,"time_ms":1,"metrics":{"lr":0.1}}\n{"attempt":1,"step":2,"ti')
    for attempt in (2, 3):  # the last line is complete when attempt 3 begins
        MetricsLog(run, Local(), attempt).write(attempt, {"lr": 0.2})
    assert [(line["attempt"], line["step"]) for line in run.lines()] == [(1, 1), (2, 2), (3, 3)]
    assert run.metrics_file.read_bytes().count(b"\n") == 4


def test_line_is_flushed_when_written(metrics_log, tmp_path):
    metrics_log.write(7, {"lr": 0.5})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["attempt"], entry["step"], entry["metrics"]) == (1, 7, {"lr": 0.5})
    assert abs(entry["time_ms"] / 1000 - time.time()) < 5


def test_other_ranks_write_nothing(tmp_path):
    class Second(Local):
        rank = 1

    MetricsLog(RunDir(tmp_path), Second(), 1).write(1, {"lr": 0.1})
    assert not RunDir(tmp_path).metrics_file.exists()


def record(metrics_log, step, accumulator, timer):
    metrics_log.record(step, 0.25, accumulator.take(), timer and timer.lap(), {})


def test_line_has_means_over_the_images_of_its_interval(metrics_log, tmp_path, accumulator, timer):
    timer.excluded_s = -2.0  # as if the interval had lasted for 2 s
    accumulator.add(mx.nd.array([1, 3]), mx.nd.array([[0, 1], [1, 0]]), mx.nd.array([1, 1]))
    timer.images, timer.waited_s = 100, 0.5
    record(metrics_log, 3, accumulator, timer)
    assert metrics_log.drain() == [(3, 2.0)]
    (line,) = RunDir(tmp_path).lines()
    assert (line["metrics"]["train/loss"], line["metrics"]["train/top1"], line["metrics"]["lr"]) == (2.0, 50.0, 0.25)
    assert line["metrics"]["throughput/images_per_s"] == pytest.approx(50, rel=0.05)
    assert line["metrics"]["time/data_wait"] == pytest.approx(0.25, rel=0.05)


def test_interval_without_images_has_no_throughput(metrics_log, tmp_path, accumulator, timer):
    accumulator.add(mx.nd.ones(1), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    record(metrics_log, 1, accumulator, timer)
    metrics_log.drain()
    (line,) = RunDir(tmp_path).lines()
    assert set(line["metrics"]) == {"train/loss", "train/top1", "lr"}


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


def test_record_and_poll_wait_for_neither_device_nor_ranks(tmp_path, accumulator, timer):
    class Slow(Local):
        def total_later(self, values, name):
            return lambda: pytest.fail("no rank has to wait for the others yet")

    metrics_log = MetricsLog(RunDir(tmp_path), Slow(), 1)
    accumulator.add(mx.nd.ones(1), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    timer.dispatched(busy(0.3))
    began = time.perf_counter()
    record(metrics_log, 1, accumulator, timer)
    assert time.perf_counter() - began < 0.2
    assert metrics_log.poll() == []


def test_synchronised_line_covers_all_steps_since_the_last(metrics_log, tmp_path):
    sums = iter(([10, 5, 10], [10, 5, 10], [2, 1, 1], [3, 1, 1]))
    times = iter(([42, 2, 1], [2, 2, 1]))

    def later(values):
        return partial(np.array, next(values), "float64")

    for step, together in ((10, False), (20, False), (21, True), (22, True)):
        metrics_log.record(step, 0.1, later(sums), later(times) if together else None, {})
        metrics_log.drain()
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/loss"] for line in lines] == [1.0, 1.0, 22 / 21, 3.0]
    assert lines[2]["train/top1"] == pytest.approx(100 * 11 / 21) and lines[2]["throughput/images_per_s"] == 21.0
