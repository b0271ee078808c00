"""Rendezvous: ranks wait for each other before they connect.

Gloo has one timeout (HOROVOD_GLOO_TIMEOUT_SECONDS, horovod/common/gloo/gloo_context.cc). It limits both
the wait for a rank that is still starting, long on a busy host, and the wait for a peer during training. The latter
must be short, to detect a cut link. Therefore ranks first meet at the key-value store that horovodrun runs for Gloo's
own rendezvous. Only the parent ends this wait, after launch.start_timeout_s.
"""

import http.client
import time
from typing import Mapping

SCOPE = "mxscale"
POLL_S = 0.1


def rendezvous(environment: Mapping[str, str]) -> None:
    """Return when every rank has called this. `environment` holds the variables set by horovodrun."""
    address, port = (environment.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    rank, size = int(environment.get("HOROVOD_RANK", 0)), int(environment.get("HOROVOD_SIZE", 1))
    if not address or size == 1:
        return
    _request(address, port, "PUT", str(rank))
    if rank == 0:  # only rank 0 waits for each rank, so that the number of requests grows linearly
        for other in range(1, size):
            _wait_for(address, port, str(other))
        _request(address, port, "PUT", "all")
    else:
        _wait_for(address, port, "all")


def _wait_for(address: str, port: str, key: str) -> None:
    while _request(address, port, "GET", key) != http.client.OK:
        time.sleep(POLL_S)


def _request(address: str, port: str, method: str, key: str) -> int:
    connection = http.client.HTTPConnection(address, int(port), timeout=30)  # never through a proxy
    try:
        connection.request(method, f"/{SCOPE}/{key}", body=b"+" if method == "PUT" else None)
        return connection.getresponse().status
    finally:
        connection.close()
