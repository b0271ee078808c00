"""Going on after a failure without being asked to: `launch.restarts`."""

from typing import List, Optional, Sequence, Union

from mxscale.config.schema import Config
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.launcher.failure import Failure


def left_over(nodes: Sequence[Host]) -> List[Host]:
    """Of the hosts of a run those that can be reached."""
    lost = hosts.unreachable(list(nodes))
    return [host for host in nodes if host not in lost]


def fitting(asked: Union[int, str], nodes: Sequence[Host]) -> Optional[int]:
    """How many ranks these hosts take, where it is fewer than launch.ranks; else None."""
    slots = sum(host.slots for host in nodes)
    return slots if nodes and asked != "auto" and asked > slots else None


def announcement(failure: Failure, number: int, config: Config, before: Sequence[Host], left: Sequence[Host]) -> str:
    """What happened, and how it goes on.  config: launch.ranks as asked for."""
    text = (
        f"failed: {failure.error}\nrestart {number} of {config.launch.restarts}: going on from the last good checkpoint"
    )
    gone = ", ".join(host.name for host in before if host not in left)
    if gone:
        others, asked = ", ".join(host.name for host in left), config.launch.ranks
        fewer = asked == "auto" or fitting(asked, left)
        taken = f"the ranks on {others} take over its data shards, in turn; the global batch stays"
        text += f"\nwithout {gone}: {taken if fewer else f'there is room for all {asked} ranks on {others}'}"
    return text
