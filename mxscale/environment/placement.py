"""Where ranks run: how many on which host, and with how many threads."""

from dataclasses import dataclass, replace
from typing import List, Optional, Sequence

from mxscale.config.schema import Comm, Config
from mxscale.environment.container_limits import available_cores
from mxscale.environment.hosts import Host
from mxscale.rundir.plan import Address, Plan


@dataclass(frozen=True)
class Placement:
    """The devices that train and their hosts.

    Attributes:
        ranks: Number of devices, each with a rank of its own unless one process drives them all.
        cores: Cores of each machine.
        hosts: The hosts; empty if ranks run on this machine.
        scheduler: Address of the parameter servers' scheduler, if there are servers.
    """

    ranks: int
    cores: int
    hosts: Sequence[Host] = ()
    scheduler: Optional[Address] = None

    @classmethod
    def of(cls, plan: Plan) -> "Placement":
        """Return the placement that a plan records, with the cores of this machine."""
        return cls(plan.sizes.ranks, available_cores(), plan.hosts, plan.scheduler)

    @property
    def occupied(self) -> List[Host]:
        """The hosts with ranks, each with the number of slots in use. The first hosts fill up first."""
        occupied, left = [], self.ranks
        for host in self.hosts:
            if left > 0:
                occupied.append(replace(host, slots=min(host.slots, left)))
                left -= host.slots
        return occupied

    def processes(self, comm: Comm) -> int:
        """Return the number of rank processes."""
        return comm.processes(self.ranks, max(1, len(self.occupied)))

    def hosts_of_ranks(self, comm: Comm) -> List[Host]:
        """Return the hosts, with as many slots as rank processes can start on each."""
        return [replace(host, slots=1) for host in self.hosts] if comm.entry.process_per_node else list(self.hosts)

    @property
    def unequal(self) -> bool:
        """Whether the hosts have unequal numbers of devices in use."""
        return len({host.slots for host in self.occupied}) > 1

    @property
    def per_host(self) -> int:
        """The largest number of devices on one machine."""
        return max((host.slots for host in self.occupied), default=self.ranks)


def threads_per_rank(config: Config, placed: Placement) -> int:
    """Return the OMP threads of a rank: a machine's cores divided among its ranks, or launch.threads.

    With `data.shards` set they are divided among the shards instead. The last bit depends on the number of threads,
    and fixed shards promise the same weights from any number of ranks.
    """
    return config.launch.threads or max(1, placed.cores // (config.data.shards or placed.per_host))
