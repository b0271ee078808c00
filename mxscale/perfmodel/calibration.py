"""Measurements of this user's hardware for plans: finished runs, and those of `mxscale test-allreduce`."""

import math
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.config.schema import Comm, Config
from mxscale.config.sizes import bucket_bytes, server_count
from mxscale.environment.placement import Placement
from mxscale.perfmodel import layers, step_time
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.scenarios import BYTES, PUSH_EACH, software
from mxscale.perfmodel.step_time import Job, Link
from mxscale.rundir.directory import ALLREDUCE, FINISHED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError


class Calibration(NamedTuple):
    """Measured runs, and the links fitted to them."""

    runs: List[Measured]
    links: Dict[str, Optional[Link]]  # as machines.Given.links
    sources: str


def read(sources, config: Config) -> Calibration:
    """Read `plan.calibrate`: directories of runs and of `mxscale test-allreduce`. Raises ConfigError."""
    given = [] if sources is None else sources if isinstance(sources, list) else [sources]
    runs, measured, used = [], {}, []
    for source in given:
        if found := RunDir(source).read(ALLREDUCE):
            name = "nic" if found["nodes"] > 1 else "intra"
            measured[name] = of_allreduce(source, found)
            used.append(f"link {WHERE[name]} of {source}")
        else:
            runs.append(of_run(source))
    alike = of_network(runs, config)
    links = {name: measured.get(name) or fit(alike, name) for name in ("intra", "intra_kvstore")}
    links["nic"] = measured.get("nic") or fit(alike, "nic", links["intra"])
    links["nic_servers"] = fit(alike, "nic_servers", links["intra_kvstore"])
    used += [f"link {WHERE[name]} fitted to own runs" for name, link in links.items() if link and name not in measured]
    return Calibration(alike, links, "; ".join(used))


def of_network(runs: List[Measured], config: Config) -> List[Measured]:
    """Return the runs of the plan's network. Raises ConfigError if only others exist, or if image sizes differ."""
    alike = [run for run in runs if run.network == config.model.name]
    size = config.data.image_size
    for run in alike:
        if size and run.image_size and run.image_size != size:
            raise ConfigError(
                f"plan.calibrate: {run.source} trained on images of {run.image_size} px, the plan is for {size}: set "
                f"data.image_size={run.image_size}, or name other runs"
            )
    if runs and not alike:
        trained = ", ".join(sorted({run.network for run in runs}))
        raise ConfigError(f"plan.calibrate: the runs trained {trained}, the plan is for {config.model.name}")
    return alike


def of_run(path: str) -> Measured:
    """Return the measured rate of a finished run. Raises ConfigError."""
    run = RunDir(path)
    plan, rate = run.plan(), run.figures.get("throughput/median")
    if plan.sizes is None:
        raise ConfigError(f"plan.calibrate={path}: neither the directory of a run nor of mxscale test-allreduce")
    if run.state != FINISHED:
        raise ConfigError(f"plan.calibrate={path}: the run is {run.state or 'unfinished'}; name a finished one")
    if not rate:
        raise ConfigError(f"plan.calibrate={path}: the run was too short: no throughput in summary.json")
    config, sizes = run.config(), plan.sizes
    if sizes.shards != sizes.ranks:
        why = "each rank accumulated the batches of several data shards, which plans do not model"
        raise ConfigError(f"plan.calibrate={path}: {why}; name a run without data.shards")
    if Placement.of(plan).unequal:
        raise ConfigError(f"plan.calibrate={path}: its machines had unequal numbers of ranks, which plans do not model")
    return Measured(
        network=config.model.name,
        batch=sizes.per_device_batch,
        precision=config.precision,
        devices=sizes.ranks,
        nodes=nodes_of(plan)[0],
        images_per_s=rate,
        source=run.path.name,
        threads=plan.threads if plan.device == "cpu" else None,
        comm=config.comm,
        image_size=config.data.image_size,
        classes=plan.classes,
        device=plan.device,
        gpu=((run.read("environment.json") or {}).get("tags") or {}).get("gpu"),
        accumulation=config.batch.accumulation,
        server_nodes=server_nodes_of(plan, config.comm),
    )


def nodes_of(plan: Plan) -> Tuple[int, int]:
    """Return the number of machines with ranks, and of hosts without: they run only servers."""
    placed = Placement.of(plan)
    return max(1, len(placed.occupied)), len(placed.hosts) - len(placed.occupied)


def server_nodes_of(plan: Plan, comm: Comm) -> int:
    """Return the number of machines that run only parameter servers."""
    return min(nodes_of(plan)[1], server_count(comm, Placement.of(plan).processes(comm)))


def of_allreduce(path: str, found: dict) -> Link:
    """Return the link fitted to the result of `mxscale test-allreduce`. Raises ConfigError."""
    fitted = found["fit"] or {}
    if not (fitted.get("bytes_per_s") and fitted.get("alpha_s") is not None):
        raise ConfigError(f"plan.calibrate={path}: no link fits its times; measure more sizes, with comm=horovod")
    return Link(fitted["alpha_s"], fitted["bytes_per_s"])


SPEEDS = np.geomspace(1e6, 1e12, 6001)  # candidate bytes/s, 0.2 % apart


# link of scenarios.Machine -> (exchange that it carries, whether it connects nodes). Servers on the only node use none
# of these links, so that such a run fits none.
CARRIES = {
    "intra": (RING, False),
    "intra_kvstore": (ALL_TO_ALL, False),
    "nic": (RING, True),
    "nic_servers": (SERVERS, True),
}
WHERE = {
    "intra": "inside a node",
    "intra_kvstore": "inside a node (comm=device)",
    "nic": "between nodes",
    "nic_servers": "between nodes (servers)",
}


def fit(runs: List[Measured], which: str, inside: Optional[Link] = None) -> Optional[Link]:
    """Fit a link to runs on several devices, given runs on one device.

    Minimises the sum of squared logarithms of predicted over measured images/s.

    Args:
        which: A key of CARRIES; runs with another exchange are ignored.
        inside: The link inside the nodes, if the exchange uses it; None: not limiting.

    Returns:
        The link, or None if no pair of runs determines it.
    """
    bases = [run for run in runs if run.devices == 1 and not run.server_nodes]
    pairs = [(base, run) for run in runs if _carried(run, which) for base in bases if _comparable(base, run)]
    if not pairs or not layers.known(runs[0].network):
        return None
    error = np.zeros(len(SPEEDS))
    for base, run in pairs:
        network = layers.network(run.network, run.image_size, run.classes)
        tried = {"nic" if CARRIES[which][1] else "intra": Link(0.0, SPEEDS)}
        used = inside if run.comm.entry.name not in PUSH_EACH else None
        links = {"intra": used or Link(0.0, np.inf), **tried}
        error += np.log(rate_of(run, base.images_per_s, network, links) / run.images_per_s) ** 2
    return Link(0.0, float(SPEEDS[np.argmin(error)]))


def _carried(run: Measured, which: str) -> bool:
    """Return whether the run's exchange used this link."""
    between = run.nodes + run.server_nodes > 1
    return run.devices > 1 and (run.comm.entry.exchange, between) == CARRIES[which]


def _comparable(base: Measured, run: Measured) -> bool:
    """Return whether a device computes the same in both runs; on a CPU, with the same number of threads."""
    same = ("network", "batch", "accumulation", "precision", "threads", "image_size")
    return all(getattr(base, name) == getattr(run, name) for name in same)


def rate_of(run: Measured, rate: float, network: layers.Network, links: Dict[str, Link]) -> np.ndarray:
    """Return the predicted images/s of a run whose devices each compute at `rate` images/s."""
    images = run.devices * run.batch * run.accumulation
    return images / step_time.predict(job(run, rate, network, links)).seconds


def job(run: Measured, rate: float, network: layers.Network, links: Dict[str, Link]) -> Job:
    """Return the run's step as the planner models it."""
    comm, exchange = run.comm, run.comm.entry.exchange
    ring, served, each = exchange == RING, exchange == SERVERS, run.devices // run.nodes
    return Job(
        compute_s=run.batch * run.accumulation / rate,
        gradients=network.gradients,
        accumulation=run.accumulation,
        nodes=run.nodes,
        gpus_per_node=each,
        comm=exchange,
        bytes_each=BYTES[comm.compression],
        hierarchical=ring and comm.hierarchical and run.nodes > 1,
        servers=run.server_nodes,
        pushes=each if comm.entry.name in PUSH_EACH else 1,  # of a node
        largest=_largest(run) if served else 0.0,
        buckets=step_time.buckets(network.layers, bucket_bytes(comm, 4 * network.gradients) / 4),
        double_buffering=comm.double_buffering,
        **software(ring, comm.overlap),
        **links,
    )


def _largest(run: Measured) -> float:
    """Return the share of the gradients on the machine with the most servers, which are spread over machines."""
    servers = server_count(run.comm, run.comm.processes(run.devices, run.nodes))
    over = run.server_nodes or run.nodes
    return math.ceil(servers / over) / servers
