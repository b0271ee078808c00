"""Ranks that wait for each other at the store which horovodrun keeps."""

import threading
import time

import pytest

from mxscale.distributed.rendezvous import meet


@pytest.fixture
def store():
    """The environment that horovodrun gives its ranks, without their number."""
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    server.stop()


def test_ranks_go_on_when_the_last_one_has_come(store):
    met = []

    def come(rank):
        meet({**store, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "3"})
        met.append(rank)

    ranks = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for rank in (2, 0):
        ranks[rank].start()
    time.sleep(0.5)
    assert met == []
    ranks[1].start()
    for rank in ranks:
        rank.join(10)
    assert sorted(met) == [0, 1, 2]


@pytest.mark.parametrize("surroundings", [{}, {"OMPI_COMM_WORLD_RANK": "1"}, {"HOROVOD_SIZE": "1"}])
def test_a_rank_without_that_store_or_alone_does_not_wait(surroundings):
    meet(surroundings)
