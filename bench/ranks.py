"""Start a script of a benchmark as ranks, as the launcher starts the ranks of a run."""

import os
import sys

from mxscale.config.schema import from_dict
from mxscale.environment.container_limits import available_cores
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement
from mxscale.launcher import commands


def command(argv, ranks: int, transport="gloo", network=None, threads=None, extra=None) -> tuple:
    """Return (argv, environment) that start `python argv...` as ranks, one on each node of a Network or all here.

    Args:
        extra: further environment variables.
    """
    threads = threads or max(1, available_cores() // ranks)
    config = from_dict({"comm": {"transport": transport}, "launch": {"threads": threads}})
    hosts = [Host(address, 1, address) for address in network.addresses[:ranks]] if network else []
    base = network.env() if network else os.environ
    env = {**commands.rank_environment(config, Placement(ranks, available_cores(), hosts), base), **(extra or {})}
    where = ",".join(f"{host.address}:1" for host in hosts)
    return [*commands.LAUNCHERS[transport](config.launch, ranks, env, where), sys.executable, *map(str, argv)], env
