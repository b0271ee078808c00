"""A parameter server, or the scheduler that servers and ranks meet at, started by the launcher beside the ranks.

`python -m mxscale.distributed.parameter_server RUN_DIR ATTEMPT ROLE`.  MXNet makes the process
one as it is imported, by DMLC_ROLE, and ends it when all ranks have left in order (mxnet/kvstore/kvstore_server.py).
"""

import faulthandler
import os
import sys

from mxscale.distributed.heartbeat import end_with_parent
from mxscale.environment.hosts import own_address
from mxscale.rundir.directory import RunDir


def name_own_address() -> None:
    """Before a kvstore is made: at which address the others find this process.

    ps-lite would take the first interface that is no loopback, such as docker0, which has the same address on every
    host.
    """
    os.environ["DMLC_NODE_HOST"] = own_address(os.environ["DMLC_PS_ROOT_URI"])


def main(run_path: str, attempt: int) -> None:
    """Never returns: ROLE, which stands in the command for people to see, is DMLC_ROLE in the surroundings."""
    faulthandler.enable()
    end_with_parent(RunDir(run_path), attempt)
    name_own_address()
    import mxnet  # noqa: F401


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
