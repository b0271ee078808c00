"""Ranks agree on a stop: at each step if steps are long, about four times a second if they are short."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mxscale.distributed import stop_consensus
from mxscale.distributed.stop_consensus import EVERY_S, MOST_STEPS, StopConsensus


class Ranks:
    """Several ranks as threads of this process, with a clock that steps advance."""

    def __init__(self, count: int, monkeypatch):
        self.now, self.requested, self.sums = 0.0, False, 0
        self.barrier = threading.Barrier(count)
        self.sent = [None] * count
        self.comms = [
            SimpleNamespace(
                rank=rank, total=lambda values, rank=rank: self.total(rank, values),
                total_later=lambda values, name, rank=rank: lambda: self.total(rank, values),
            )
            for rank in range(count)
        ]  # fmt: skip
        monkeypatch.setattr(stop_consensus, "time", SimpleNamespace(monotonic=lambda: self.now))

    def total(self, rank, values):
        self.sent[rank] = np.asarray(values, float)
        self.barrier.wait(60)
        total = sum(self.sent)
        self.sums += rank == 0
        self.barrier.wait(60)
        return total

    def run(self, steps: int, seconds, request_at=None) -> list:
        """Return the step after which each rank stopped; `seconds` gives each step's duration."""
        stopped, between = [None] * len(self.comms), threading.Barrier(len(self.comms))

        def rank(comm):
            consensus = StopConsensus(comm, lambda: self.requested)
            for step in range(steps):
                consensus.propose(step)
                if consensus.agreed():
                    stopped[comm.rank] = step
                    return
                between.wait(60)
                if comm.rank == 0:
                    self.now += seconds(step)
                    self.requested = self.requested or step == request_at
                between.wait(60)

        threads = [threading.Thread(target=rank, args=(comm,)) for comm in self.comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return stopped


@pytest.mark.parametrize("seconds", [EVERY_S, 1.0, 60.0])
def test_long_steps_have_a_round_each(monkeypatch, seconds):
    ranks = Ranks(2, monkeypatch)
    assert ranks.run(30, lambda step: seconds, request_at=20) == [21, 21]
    assert ranks.sums == 22


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_steps_have_about_four_rounds_a_second(monkeypatch, count):
    ranks = Ranks(count, monkeypatch)
    [stopped] = set(ranks.run(1000, lambda step: 0.05, request_at=600))
    assert 600 < stopped <= 600 + EVERY_S / 0.05 + 1
    assert ranks.sums == pytest.approx(stopped * 0.05 / EVERY_S, rel=0.05)


def test_twenty_steps_include_a_round(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    [stopped] = set(ranks.run(500, lambda step: 1e-5, request_at=300))
    assert 300 < stopped <= 300 + MOST_STEPS


def test_dispatched_step_does_not_count_as_short(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    pauses = {0: 0.001, 10: 50.0, 11: 0.001}  # the first step; a validation, and the step after it
    assert ranks.run(30, lambda step: pauses.get(step, 10.0)) == [None, None]
    assert ranks.sums == 30


def test_rounds_adapt_to_slower_steps_after_one_round(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    [stopped] = set(ranks.run(300, lambda step: 0.01 if step < 200 else 1.0, request_at=250))
    assert stopped == 251
