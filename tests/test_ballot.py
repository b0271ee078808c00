"""Ranks agree on a stop: at each step where steps are long, about four times a second where they are short."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mxscale.distributed import stop_vote
from mxscale.distributed.stop_vote import EVERY_S, MOST_STEPS, Ballot


class Ranks:
    """Several in threads of this process, and a clock that steps move."""

    def __init__(self, count: int, monkeypatch, in_step=True):
        self.now, self.wish, self.sums = 0.0, False, 0
        self.meeting = threading.Barrier(count)
        self.sent = [None] * count
        self.comms = [
            SimpleNamespace(
                rank=rank, in_step=in_step, total=lambda values, rank=rank: self.total(rank, values),
                total_later=lambda values, name, rank=rank: lambda: self.total(rank, values),
            )
            for rank in range(count)
        ]  # fmt: skip
        monkeypatch.setattr(stop_vote, "time", SimpleNamespace(monotonic=lambda: self.now))

    def total(self, rank, values):
        self.sent[rank] = np.asarray(values, float)
        self.meeting.wait(10)
        total = sum(self.sent)
        self.sums += rank == 0
        self.meeting.wait(10)
        return total

    def run(self, steps: int, seconds, wish_at=None) -> list:
        """The steps after which each rank stopped; seconds(step) of each step."""
        stopped, between = [None] * len(self.comms), threading.Barrier(len(self.comms))

        def rank(comm):
            own = Ballot(comm, lambda: self.wish)
            for step in range(steps):
                own.cast(step)
                if own.stop():
                    stopped[comm.rank] = step
                    return
                between.wait(10)
                if comm.rank == 0:
                    self.now += seconds(step)
                    self.wish = self.wish or step == wish_at
                between.wait(10)

        threads = [threading.Thread(target=rank, args=(comm,)) for comm in self.comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return stopped


@pytest.mark.parametrize("seconds", [EVERY_S, 1.0, 60.0])
def test_where_steps_are_long_there_is_a_vote_at_each(monkeypatch, seconds):
    ranks = Ranks(2, monkeypatch)
    assert ranks.run(30, lambda step: seconds, wish_at=20) == [21, 21]
    assert ranks.sums == 22


@pytest.mark.parametrize("count", [1, 2, 3])
def test_where_steps_are_short_votes_are_about_four_a_second_and_all_ranks_stop_together(monkeypatch, count):
    ranks = Ranks(count, monkeypatch)
    [stopped] = set(ranks.run(1000, lambda step: 0.05, wish_at=600))
    assert 600 < stopped <= 600 + EVERY_S / 0.05 + 1
    assert ranks.sums == pytest.approx(stopped * 0.05 / EVERY_S, rel=0.05)


def test_however_short_steps_are_there_is_a_vote_within_twenty(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    [stopped] = set(ranks.run(500, lambda step: 1e-5, wish_at=300))
    assert 300 < stopped <= 300 + MOST_STEPS


def test_a_step_that_was_only_dispatched_does_not_pass_for_a_short_one(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    pauses = {0: 0.001, 10: 50.0, 11: 0.001}  # nothing before it to wait for; a validation, and the step after it
    assert ranks.run(30, lambda step: pauses.get(step, 10.0)) == [None, None]
    assert ranks.sums == 30


def test_a_machine_that_becomes_slow_is_asked_as_often_after_one_vote(monkeypatch):
    ranks = Ranks(2, monkeypatch)
    [stopped] = set(ranks.run(300, lambda step: 0.01 if step < 200 else 1.0, wish_at=250))
    assert stopped == 251


def test_the_wish_of_rank_0_alone_counts_and_where_ranks_meet_at_times_it_is_asked_for_there(monkeypatch):
    ranks = Ranks(2, monkeypatch, in_step=False)
    zero, one = Ballot(ranks.comms[0], lambda: False), Ballot(ranks.comms[1], lambda: True)
    said = []
    other = threading.Thread(target=lambda: said.append(one.stop()))
    other.start()
    for own in (zero, one):
        own.cast(0)  # sends nothing: nobody would read it at the same step
    said.append(zero.stop())
    other.join()
    assert said == [False, False] and ranks.sums == 1
