"""Ranks wait until all of them are there before they connect.

Gloo's one timeout (HOROVOD_GLOO_TIMEOUT_SECONDS, horovod/common/gloo/gloo_context.cc) bounds both how long a
rank that is up waits for one that still starts, and how long it waits for a peer in the midst of training.  The
second has to be short, so that a link that was cut is noticed; the first must not, where a host is busy.  So they
meet beforehand, at the key-value store that horovodrun keeps for Gloo's own rendezvous; who waits there is ended
by the parent alone, after launch.start_timeout_s.
"""

import http.client
import time
from typing import Mapping

SCOPE = "mxscale"
AGAIN_S = 0.1


def meet(surroundings: Mapping[str, str]) -> None:
    """Return when every rank has called this.  `surroundings` are what horovodrun put into the environment."""
    address, port = (surroundings.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    rank, size = int(surroundings.get("HOROVOD_RANK", 0)), int(surroundings.get("HOROVOD_SIZE", 1))
    if not address or size == 1:
        return
    _request(address, port, "PUT", str(rank))
    if rank == 0:  # asks for each once, so that many ranks do not make a crowd of requests
        for other in range(1, size):
            _wait_for(address, port, str(other))
        _request(address, port, "PUT", "all")
    else:
        _wait_for(address, port, "all")


def _wait_for(address: str, port: str, key: str) -> None:
    while _request(address, port, "GET", key) != http.client.OK:
        time.sleep(AGAIN_S)


def _request(address: str, port: str, method: str, key: str) -> int:
    connection = http.client.HTTPConnection(address, int(port), timeout=30)  # no proxy, whatever is set
    try:
        connection.request(method, f"/{SCOPE}/{key}", body=b"+" if method == "PUT" else None)
        return connection.getresponse().status
    finally:
        connection.close()
