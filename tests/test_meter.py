"""Counts and times: what is measured, and what is left out."""

import json
import time
from functools import partial

import mxnet as mx
import numpy as np
import pytest

from mxscale.distributed.communicators import Local
from mxscale.rundir.directory import RunDir
from mxscale.train.meters import Clock, Moment, NoSample, Sample, Samples, Tally
from mxscale.train.metrics_log import Journal


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
    """An array that the device works on for so long, once it has the array `after`."""
    return mx.nd.Custom(mx.nd.ones(1) if after is None else after, op_type="sleep", seconds=seconds)


@pytest.fixture(autouse=True)
def idle_at_the_end():
    """An interpreter that ends while such an array is under way would hang."""
    yield
    mx.nd.waitall()


@pytest.fixture
def journal(tmp_path):
    return Journal(RunDir(tmp_path), Local(), attempt=1)


# ---------------------------------------------------------------- tally


def test_a_tally_adds_losses_and_right_answers_and_begins_anew_when_taken():
    tally = Tally([mx.cpu()])
    logits = mx.nd.array([[0, 1, 0], [3, 1, 0], [0, 0, 9], [1, 0, 0]])
    tally.add(mx.nd.array([0.5, 1.5, 1, 1]), logits, mx.nd.array([1, 0, 1, 2]))
    tally.add(mx.nd.array([2, 2]), logits[:2], mx.nd.array([1, 1]))
    assert tally.take()().tolist() == [8.0, 3.0, 6.0]
    assert tally.take()().tolist() == [0.0, 0.0, 0.0]


def test_a_tally_counts_float16_scores_by_the_thousand():
    tally = Tally([mx.cpu()])
    logits = mx.nd.array([[0, 1]] * 3000, dtype="float16")
    tally.add(mx.nd.ones(3000), logits, mx.nd.ones(3000))
    assert tally.take()().tolist() == [3000.0, 3000.0, 3000.0]


# ---------------------------------------------------------------- clock


def test_an_idle_device_waits_for_its_batch():
    clock = Clock()
    asked_at = time.perf_counter()
    time.sleep(0.1)
    clock.fetched(asked_at, 32)
    images, seconds, waited = clock.lap()()
    assert images == 32
    assert 0.1 <= waited <= seconds < 1


def test_fetching_while_the_device_works_is_no_wait():
    clock = Clock()
    clock.dispatched(busy(0.5))  # the first: returns at once
    asked_at = time.perf_counter()
    time.sleep(0.05)
    clock.fetched(asked_at, 32)
    assert clock.lap()()[2] == 0.0


def test_the_wait_begins_when_the_device_is_done():
    clock = Clock()
    asked_at = time.perf_counter()
    result = busy(0.3)
    clock.dispatched(result)
    result.wait_to_read()
    time.sleep(0.1)
    clock.fetched(asked_at, 32)
    assert 0.08 < clock.lap()()[2] < time.perf_counter() - asked_at - 0.25


def test_one_step_may_be_under_way_while_the_next_is_dispatched_but_not_two():
    clock = Clock()
    began = time.perf_counter()
    clock.dispatched(busy(0.4))
    assert time.perf_counter() - began < 0.3
    clock.dispatched(busy(0.4))
    assert 0.4 <= time.perf_counter() - began < 0.7


def test_an_error_of_the_device_reaches_the_loop():
    clock = Clock()
    clock.dispatched(mx.nd.random.normal(0, -1, shape=2))  # refused by the device, some time later
    with pytest.raises(mx.MXNetError):
        clock.dispatched(mx.nd.ones(1))


def test_an_interval_ends_when_its_last_step_is_done_though_the_next_is_dispatched_long_before():
    clock, found, work = Clock(), [], None
    for _ in range(4):  # a line at each step, read after the next one was dispatched
        clock.fetched(time.perf_counter(), 32)
        work = busy(0.2, after=work)
        clock.dispatched(work)
        found.append(clock.lap())
    laps = [lap() for lap in found]
    assert [lap[0] for lap in laps] == [32] * 4
    assert all(0.15 < lap[1] < 0.4 for lap in laps)


def test_to_end_an_interval_waits_for_nothing():
    clock = Clock()
    began = time.perf_counter()
    clock.dispatched(busy(0.4))
    lap = clock.lap()
    assert time.perf_counter() - began < 0.3
    assert lap()[1] >= 0.4


def test_restart_leaves_out_what_came_since_the_reading():
    clock = Clock()
    clock.fetched(time.perf_counter(), 8)
    time.sleep(0.2)
    clock.restart()
    images, seconds, waited = clock.lap()()
    assert (images, waited) == (0, 0) and seconds < 0.1


# ---------------------------------------------------------------- samples


def test_every_50th_step_is_a_sample():
    samples = Samples(50, Clock())
    sampled = [step for step in range(200) if isinstance(samples.begin(step), Sample)]
    assert sampled == [49, 99, 149, 199]
    assert isinstance(samples.begin(0), NoSample)


def test_a_sample_times_compute_and_exchange_and_does_not_count_in_throughput():
    clock = Clock()
    samples = Samples(1, clock)
    clock.fetched(time.perf_counter(), 8)
    waited, began = clock.waited, time.perf_counter()
    sample = samples.begin(0)
    asked_at = time.perf_counter()
    time.sleep(0.1)
    clock.fetched(asked_at, 32)
    sample.computed()
    time.sleep(0.2)
    sample.exchanged()
    sample.end()
    read = samples.read()
    assert 0.1 <= read["time/compute"] < 0.2 <= read["time/exchange"] < 0.4
    after = clock.lap()()
    assert (after[0], after[2]) == (8, waited)
    assert after[1] < time.perf_counter() - began - 0.2
    assert samples.read() == {}


def test_a_sample_waits_for_the_device_so_that_its_work_is_in_it():
    samples = Samples(1, Clock())
    sample = samples.begin(0)
    busy(0.2)
    sample.computed()
    sample.exchanged()
    read = samples.read()
    assert read["time/compute"] >= 0.2 and read["time/exchange"] < 0.1


def test_several_samples_are_their_median():
    samples = Samples(1, Clock())
    samples.compute, samples.exchange = [0.1, 0.9, 0.2], [0.01, 0.02, 0.03]
    assert samples.read() == {"time/compute": 0.2, "time/exchange": 0.02}


# ---------------------------------------------------------------- journal


def test_a_torn_last_line_is_ended_before_the_next_is_written(tmp_path):
    run = RunDir(tmp_path)
    run.metrics_file.write_bytes(b'{"attempt":1,"step":1,"time_ms":1,"metrics":{"lr":0.1}}\n{"attempt":1,"step":2,"ti')
    Journal(run, Local(), attempt=2).line(2, {"lr": 0.2})
    assert [(line["attempt"], line["step"]) for line in run.lines()] == [(1, 1), (2, 2)]
    assert run.metrics_file.read_bytes().count(b"\n") == 3


def test_a_whole_last_line_is_left_as_it_is(tmp_path):
    run = RunDir(tmp_path)
    for attempt in (1, 2):
        Journal(run, Local(), attempt).line(attempt, {"lr": 0.1})
    assert run.metrics_file.read_bytes().count(b"\n") == 2


def test_a_line_can_be_read_as_soon_as_it_is_written(journal, tmp_path):
    journal.line(7, {"lr": 0.5})
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["attempt"], entry["step"], entry["metrics"]) == (1, 7, {"lr": 0.5})
    assert abs(entry["time_ms"] / 1000 - time.time()) < 5


def test_other_ranks_write_nothing(tmp_path):
    class Second(Local):
        rank = 1

    Journal(RunDir(tmp_path), Second(), 1).line(1, {"lr": 0.1})
    assert not RunDir(tmp_path).metrics_file.exists()


def test_a_reading_is_means_over_the_images_since_the_last(journal, tmp_path):
    tally, clock = Tally([mx.cpu()]), Clock()
    clock.began = Moment(time.perf_counter() - 2.0)  # as if the interval had lasted for 2 s
    tally.add(mx.nd.array([1, 3]), mx.nd.array([[0, 1], [1, 0]]), mx.nd.array([1, 1]))
    clock.images, clock.waited = 100, 0.5
    journal.take(3, tally, clock, Samples(50, clock), 0.25)
    assert journal.finish() == [(3, 2.0)]
    (line,) = RunDir(tmp_path).lines()
    assert (line["metrics"]["train/loss"], line["metrics"]["train/top1"], line["metrics"]["lr"]) == (2.0, 50.0, 0.25)
    assert line["metrics"]["throughput/images_per_s"] == pytest.approx(50, rel=0.05)
    assert line["metrics"]["time/data_wait"] == pytest.approx(0.25, rel=0.05)


def test_an_interval_of_samples_alone_gives_no_throughput(journal, tmp_path):
    tally, clock = Tally([mx.cpu()]), Clock()
    tally.add(mx.nd.ones(1), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    journal.take(1, tally, clock, Samples(50, clock), 0.1)
    journal.finish()
    (line,) = RunDir(tmp_path).lines()
    assert set(line["metrics"]) == {"train/loss", "train/top1", "lr"}


def test_a_loss_that_is_not_finite_is_returned_as_such(journal):
    tally, clock = Tally([mx.cpu()]), Clock()
    tally.add(mx.nd.array([np.nan]), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    journal.take(1, tally, clock, Samples(50, clock), 0.1)
    ((step, loss),) = journal.finish()
    assert step == 1 and np.isnan(loss)


def test_a_line_is_written_two_steps_after_its_figures_were_taken(journal, tmp_path):
    tally, clock, steps = Tally([mx.cpu()]), Clock(), []
    for step in range(1, 5):  # each has a line
        steps += [at for at, _ in journal.follow()]
        tally.add(mx.nd.full(1, step), mx.nd.array([[0, 1]]), mx.nd.ones(1))
        journal.take(step, tally, clock, Samples(50, clock), 0.1)
    assert steps == [1, 2]
    assert journal.finish() == [(3, 3.0), (4, 4.0)] and journal.finish() == []
    assert [(line["step"], line["metrics"]["train/loss"]) for line in RunDir(tmp_path).lines()] == [
        (step, step) for step in range(1, 5)
    ]


def test_to_take_figures_and_to_follow_a_step_later_waits_for_neither_device_nor_ranks(tmp_path):
    class Slow(Local):
        def total_later(self, values, name):
            return lambda: pytest.fail("nobody has to wait for the other ranks yet")

    journal, clock = Journal(RunDir(tmp_path), Slow(), 1), Clock()
    tally = Tally([mx.cpu()])
    tally.add(mx.nd.ones(1), mx.nd.array([[0, 1]]), mx.nd.ones(1))
    clock.dispatched(busy(0.3))
    began = time.perf_counter()
    journal.take(1, tally, clock, Samples(50, clock), 0.1)
    assert time.perf_counter() - began < 0.2
    assert journal.follow() == []


def test_where_ranks_meet_the_line_is_over_all_steps_since_they_last_did(tmp_path):
    class Read:
        def __init__(self, *values):
            self.values = [np.array(value, dtype="float64") for value in values]

        def take(self):
            return partial(self.values.pop, 0)

        lap = take

    journal = Journal(RunDir(tmp_path), Local(), attempt=1)
    tally, clock = Read([10, 5, 10], [10, 5, 10], [2, 1, 1], [3, 1, 1]), Read([42, 2, 1], [2, 2, 1])
    for step, together in ((10, False), (20, False), (21, True), (22, True)):
        journal.take(step, tally, clock, Samples(50, None), 0.1, together)
        journal.finish()
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["train/loss"] for line in lines] == [1.0, 1.0, 22 / 21, 3.0]
    assert lines[2]["train/top1"] == pytest.approx(100 * 11 / 21) and lines[2]["throughput/images_per_s"] == 21.0
