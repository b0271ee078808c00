"""Ranks wait for each other at horovodrun's key-value store."""

import threading
import time

import pytest

from mxscale.distributed.rendezvous import rendezvous


@pytest.fixture
def store():
    """The environment variables that horovodrun sets for its ranks, without the rank."""
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init([])
    yield {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    server.stop()


def test_ranks_continue_once_the_last_has_arrived(store):
    arrived = []

    def arrive(rank):
        rendezvous({**store, "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "3"})
        arrived.append(rank)

    ranks = [threading.Thread(target=arrive, args=(rank,)) for rank in range(3)]
    for rank in (2, 0):
        ranks[rank].start()
    time.sleep(0.5)
    assert arrived == []
    ranks[1].start()
    for rank in ranks:
        rank.join(60)
    assert sorted(arrived) == [0, 1, 2]


@pytest.mark.parametrize("environment", [{}, {"OMPI_COMM_WORLD_RANK": "1"}, {"HOROVOD_SIZE": "1"}])
def test_single_rank_does_not_wait(environment):
    rendezvous(environment)
