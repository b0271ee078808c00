"""One's own measurements for plans: runs, and the table that bench/allreduce.py writes."""

import csv
import math
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.config.schema import Config
from mxscale.config.sizes import bucket_bytes, server_count
from mxscale.environment.placement import Placement
from mxscale.perfmodel import layers, step_time
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.scenarios import bytes_each, habits
from mxscale.perfmodel.step_time import Job, Link
from mxscale.rundir.directory import FINISHED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError


class Calibration(NamedTuple):
    """What was measured, and the links of planner.Machine that fit it; None: not known from these."""

    runs: List[Measured]
    intra: Optional[Link] = None
    kept: Optional[Link] = None
    nic: Optional[Link] = None
    served: Optional[Link] = None
    said: str = ""


def read(sources, config: Config) -> Calibration:
    """plan.calibrate: run directories, and files of bench/allreduce.py --write.  Raises ConfigError."""
    given = [] if sources is None else sources if isinstance(sources, list) else [sources]
    runs, link, said = [], None, []
    for source in given:
        if not isinstance(source, str):
            raise ConfigError(f"plan.calibrate={source}: expected run directories, or a table of bench/allreduce.py")
        if Path(source).is_file():
            link = of_bench(source)
            said.append(f"link between nodes of {source}")
        else:
            runs.append(of_run(source))
    alike = of_network(runs, config)
    found = {name: fit(alike, name) for name in ("intra", "kept")}
    if link is None:
        found.update(nic=fit(alike, "nic", found["intra"]), served=fit(alike, "served"))
    said += [f"link {WHERE[name]} fitted to own runs" for name, fitted in found.items() if fitted]
    return Calibration(alike, **{"nic": link, **found}, said="; ".join(said))


def of_network(runs: List[Measured], config: Config) -> List[Measured]:
    """Those of the plan's network.  Raises ConfigError where there are only others, or images had another size."""
    alike = [run for run in runs if run.network == config.model.name]
    size = config.data.image_size
    for run in alike:
        if size and run.image_size and run.image_size != size:
            raise ConfigError(
                f"plan.calibrate: {run.source} saw images of {run.image_size} px, the plan is for {size}: set "
                f"data.image_size={run.image_size}, or name other runs"
            )
    if runs and not alike:
        trained = ", ".join(sorted({run.network for run in runs}))
        raise ConfigError(f"plan.calibrate: those runs trained {trained}, the plan is for {config.model.name}")
    return alike


def of_run(path: str) -> Measured:
    """What a finished run reached.  Raises ConfigError."""
    run = RunDir(path)
    plan, rate = run.plan(), run.figures.get("throughput/median")
    if plan.sizes is None:
        raise ConfigError(f"plan.calibrate={path}: that is no run directory, nor a table of bench/allreduce.py")
    if run.state != FINISHED:
        raise ConfigError(f"plan.calibrate={path}: that run is {run.state or 'unfinished'}; let it end first")
    if not rate:
        raise ConfigError(f"plan.calibrate={path}: that run has no throughput in its summary.json: it was too short")
    config, sizes = run.config(), plan.sizes
    if sizes.shards != sizes.ranks:
        each = "each rank took the batches of several data shards one after the other, which no plan does"
        raise ConfigError(f"plan.calibrate={path}: {each}; name a run without data.shards")
    nodes, free = nodes_of(plan)
    return Measured(
        network=config.model.name,
        batch=sizes.per_device_batch,
        precision=config.precision,
        devices=sizes.ranks,
        nodes=nodes,
        images_per_s=rate,
        source=run.path.name,
        threads=plan.threads,
        comm=config.comm,
        image_size=config.data.image_size,
        classes=plan.classes,
        device=plan.device,
        gpu=((run.read("environment.json") or {}).get("tags") or {}).get("gpu"),
        accumulation=config.batch.accumulation,
        server_nodes=min(free, server_count(config.comm, sizes.ranks)),
    )


def nodes_of(plan: Plan) -> Tuple[int, int]:
    """How many machines have ranks, and how many hosts of the run have none: servers go there."""
    placed = Placement.of(plan, cores=1)
    return max(1, len(placed.occupied)), len(placed.hosts) - len(placed.occupied)


COLUMNS = ("ranks", "alpha_s", "bytes_per_s")


def of_bench(path: str) -> Link:
    """The link of the last row of a table of bench/allreduce.py.  Raises ConfigError."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"plan.calibrate={path}: {error}") from None
    if not rows or not set(COLUMNS) <= set(rows[0]):
        wanted = f"expected a row with {', '.join(COLUMNS)}, as bench/allreduce.py writes"
        raise ConfigError(f"plan.calibrate={path}: {wanted}")
    try:
        link = Link(*(float(rows[-1][name] or "") for name in ("alpha_s", "bytes_per_s")))  # None: a short row
    except ValueError as error:
        raise ConfigError(f"plan.calibrate={path}: {error}") from None
    if not (np.isfinite([link.alpha_s, link.bytes_per_s]).all() and link.alpha_s >= 0 and link.bytes_per_s > 0):
        raise ConfigError(f"plan.calibrate={path}: expected alpha_s of at least 0 and bytes_per_s above 0")
    return link


SPEEDS = np.geomspace(1e6, 1e12, 6001)  # bytes/s, that are tried: 0.2 % apart


# link of planner.Machine -> the exchange that it carries, whether it is the one between nodes.  Servers on the only
# node are reached by no link of these: such a run fits none.
CARRIES = {
    "intra": (RING, False),
    "kept": (ALL_TO_ALL, False),
    "nic": (RING, True),
    "served": (SERVERS, True),
}
WHERE = {
    "intra": "inside a node",
    "kept": "inside a node (comm=device)",
    "nic": "between nodes",
    "served": "between nodes (servers)",
}


def fit(runs: List[Measured], which: str, inside: Optional[Link] = None) -> Optional[Link]:
    """The link that makes the model give what runs of several devices reached, from the one of a single device.

    By the smallest sum of squared logarithms of predicted over measured images/s.  None where the runs don't say.
    which: of CARRIES; runs of another exchange are left out.  inside: the link in the nodes.
    """
    bases = [run for run in runs if run.devices == 1 and not run.server_nodes]
    pairs = [(base, run) for run in runs if _carried(run, which) for base in bases if _alike(base, run)]
    if not pairs or not layers.known(runs[0].network):
        return None
    error = np.zeros(len(SPEEDS))
    for base, run in pairs:
        network = layers.network(run.network, run.image_size, run.classes)
        tried = {"nic" if CARRIES[which][1] else "intra": Link(0.0, SPEEDS)}
        links = {"intra": inside or Link(0.0, np.inf), **tried}
        error += np.log(rate_of(run, base.images_per_s, network, links) / run.images_per_s) ** 2
    return Link(0.0, float(SPEEDS[np.argmin(error)]))


def _carried(run: Measured, which: str) -> bool:
    """Whether the run's exchange went by this link."""
    between = run.nodes + run.server_nodes > 1
    return run.devices > 1 and (run.comm.entry.exchange, between) == CARRIES[which]


def _alike(base: Measured, run: Measured) -> bool:
    """Whether each device of `run` computes as the one of `base` did; on a CPU, by as many threads."""
    same = ("network", "batch", "accumulation", "precision", "threads", "image_size")
    return all(getattr(base, name) == getattr(run, name) for name in same)


def rate_of(run: Measured, rate: float, network: layers.Network, links: Dict[str, Link]) -> np.ndarray:
    """Images/s that the model gives a run whose devices each compute at `rate` images/s."""
    images = run.devices * run.batch * run.accumulation
    return images / step_time.predict(job(run, rate, network, links)).seconds


def job(run: Measured, rate: float, network: layers.Network, links: Dict[str, Link]) -> Job:
    """Its step, as the planner has it of such a run."""
    comm, exchange = run.comm, run.comm.entry.exchange
    ring, served, each = exchange == RING, exchange == SERVERS, run.devices // run.nodes
    return Job(
        compute_s=run.batch * run.accumulation / rate,
        gradients=network.gradients,
        turns=run.accumulation,
        nodes=run.nodes,
        gpus_per_node=each,
        comm=exchange,
        bytes_each=bytes_each(run.precision, comm.compression),
        hierarchical=ring and comm.hierarchical and run.nodes > 1,
        servers=run.server_nodes,
        pushes=each if served else 1,  # each rank is a process
        largest=_largest(run) if served else 0.0,
        parts=step_time.buckets(network.layers, bucket_bytes(comm, 4 * network.gradients) / 4),
        double_buffering=comm.double_buffering,
        **habits(ring, comm.overlap),
        **links,
    )


def _largest(run: Measured) -> float:
    """Share of the gradients on the machine that has most of the servers: they are dealt out over machines."""
    servers, over = server_count(run.comm, run.devices), run.server_nodes or run.nodes
    return math.ceil(servers / over) / servers
