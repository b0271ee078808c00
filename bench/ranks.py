"""Starts a script of a bench as ranks, the way that a run's ranks are started."""

import os
import subprocess
import sys

import measure

from mxscale.config.schema import from_dict
from mxscale.environment.container_limits import available_cores
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement
from mxscale.launcher import commands


def command(argv, ranks: int, transport="gloo", network=None, threads=None, extra=None) -> tuple:
    """(words, environment) that start `python argv...` as `ranks` ranks, one on each node of a Network or all here.

    extra: further environment variables.
    """
    threads = threads or max(1, available_cores() // ranks)
    config = from_dict({"comm": {"transport": transport}, "launch": {"threads": threads}})
    hosts = [Host(address, 1, address) for address in network.addresses[:ranks]] if network else []
    surroundings = network.env() if network else os.environ
    env = {
        **commands.rank_environment(config, Placement(ranks, available_cores(), hosts), surroundings),
        **(extra or {}),
    }
    where = ",".join(f"{host.address}:1" for host in hosts)
    return [*commands.LAUNCHERS[transport](config, ranks, env, where), sys.executable, *map(str, argv)], env


def run(argv, ranks: int, transport="gloo", network=None) -> str:
    """What such ranks print.  Ends the bench where they fail."""
    words, env = command(argv, ranks, transport, network)
    done = subprocess.run(words, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=measure.ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout
