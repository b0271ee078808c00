"""A parameter server, or the scheduler at which servers and ranks meet. The launcher starts it beside the ranks.

`python -m mxscale.distributed.parameter_server RUN_DIR ATTEMPT ROLE`. Importing MXNet turns the process into the one
named by DMLC_ROLE and ends it after all ranks have disconnected (mxnet/kvstore/kvstore_server.py).
"""

import faulthandler
import os
import sys

from mxscale.distributed.heartbeat import end_with_parent
from mxscale.environment.hosts import own_address
from mxscale.rundir.directory import RunDir


def set_own_address() -> None:
    """Set the address at which other processes reach this one. Call it before a kvstore is created.

    By default ps-lite takes the first interface that is not the loopback, such as docker0, whose address is the same
    on every host.
    """
    os.environ["DMLC_NODE_HOST"] = own_address(os.environ["DMLC_PS_ROOT_URI"])


def main(run_path: str, attempt: int) -> None:
    """Serve and never return. The ROLE argument only informs people; MXNet reads DMLC_ROLE."""
    faulthandler.enable()
    end_with_parent(RunDir(run_path), attempt)
    set_own_address()
    import mxnet  # noqa: F401


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
