"""Throughput, hours, cost and bottleneck of training on machines before they are rented.

Each combination of the requested settings is a plan. All plans are evaluated by one call of `step_time.predict` on
arrays: 100,000 plans at once.
"""

import itertools
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxscale.config.backends import BACKENDS, DEFAULT, MODELLED, RING, SERVERS
from mxscale.config.compressions import COMPRESSIONS
from mxscale.config.price_sources import MINIMUM_S, PRICE_SOURCES
from mxscale.config.schema import Config
from mxscale.config.sizes import bucket_bytes
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.step_time import Link
from mxscale.util.errors import ConfigError

BYTES = {entry.name: float(entry.bytes_each) for entry in COMPRESSIONS.values()}  # of a gradient in transit

# Each device's process pushes to the servers; with other back ends, a node sums first
PUSH_EACH = tuple(entry.name for entry in BACKENDS.values() if entry.exchange == SERVERS and not entry.process_per_node)
ONE_NODE = tuple(entry.name for entry in BACKENDS.values() if entry.drives_all_devices)


Plans = Dict[str, np.ndarray]  # column -> one value per plan
PARTS = ("compute", "exchange", "exposed", "stragglers", "input")  # of a step, in seconds
INNER = ("machine", "servers_setting")  # columns that `rows` omits: index in the grid, servers as requested


@dataclass(frozen=True)
class Machine:
    """A node of one kind: its devices, links and price. An unknown price is NaN."""

    name: str
    gpus: int  # devices of a node
    intra: Link  # between them, for a ring
    intra_kvstore: Link  # between them, for a kvstore's sum
    nic: Optional[Link]  # between nodes; None: unknown
    nic_servers: Optional[Link]  # between nodes, for parameter servers, which do not use RDMA
    usd_per_hour: float = float("nan")
    eur_per_hour: float = float("nan")


LINKS = ("intra", "intra_kvstore", "nic", "nic_servers")


@dataclass(frozen=True)
class Grid:
    """The requested settings: each combination is a plan."""

    machine: Sequence[Machine]
    nodes: Sequence[int]
    comm: Sequence[str] = (DEFAULT,)
    servers: Sequence[str] = ("1x",)  # dedicated server machines: a number, or a multiple of the nodes; 0: none
    batch: Sequence[int] = (32,)  # per device
    precision: Sequence[str] = ("float32",)
    compression: Sequence[str] = ("none",)
    double_buffering: Sequence[bool] = (False,)


@dataclass(frozen=True)
class Task:
    """The settings that are the same in all plans."""

    network: Network
    images: int  # of an epoch
    epochs: float
    rates: Mapping[Tuple[str, int, str], float]  # (machine, batch, precision) -> images/s of one device
    server: Optional[Machine] = None
    accumulation: int = 1
    # whether gradients are double-buffered -> bytes of a bucket
    bucket_bytes: Mapping[bool, float] = field(default_factory=lambda: dict.fromkeys((False, True), 32 * 2**20))
    overlap: bool = True
    input_images_per_s: Optional[float] = None  # of a node; None: not modelled
    setup_s: float = 0.0
    billing: str = "per_second"
    minimum_s: float = MINIMUM_S


def exchange_of(config: Config) -> str:
    """Return the modelled back end: the default one before a trial, and for one rank, which exchanges nothing."""
    entry = config.comm.entry
    return DEFAULT if entry.single_rank else entry.name


def check_modelled(names: Sequence[str]) -> None:
    """Raise ConfigError if one of these back ends has no performance model."""
    for name in names:
        if name not in MODELLED:
            raise ConfigError(f"comm={name} has no performance model: set plan.comm to one of {', '.join(MODELLED)}")


def task_of(config: Config, network: Network, images: int, rates: Mapping) -> Task:
    """Return the settings that a configuration fixes for all plans; rates: see Task.rates."""
    return Task(
        network=network,
        images=images,
        epochs=config.epochs,
        rates=rates,
        accumulation=config.batch.accumulation,
        bucket_bytes={
            delayed: bucket_bytes(replace(config.comm, double_buffering=delayed), 4 * network.gradients)
            for delayed in (False, True)
        },
        overlap=config.comm.overlap,
        setup_s=60 * config.launch.setup_minutes,
        billing=config.machine.billing,
        minimum_s=PRICE_SOURCES[config.machine.provider].minimum_s,
    )


def exchanges(plans: Plans) -> np.ndarray:
    """Return how each plan's gradients travel: RING, ALL_TO_ALL or SERVERS."""
    return np.vectorize(MODELLED.get, otypes=[str])(plans["comm"])


# ---------------------------------------------------------------- combinations


def combine(grid: Grid) -> Tuple[Plans, Dict[str, int]]:
    """Return the columns of all valid combinations, and the number of invalid ones by reason."""
    axes: Dict[str, Sequence] = vars(grid)
    lengths = [len(values) for values in axes.values()]
    places = dict(zip(axes, np.indices(lengths).reshape(len(lengths), -1)))
    plans = {name: np.array(axes[name])[place] for name, place in places.items() if name != "machine"}
    plans["machine"] = places["machine"]
    plans["instance"] = np.array([each.name for each in grid.machine])[places["machine"]]
    plans["devices"] = plans["nodes"] * _of(grid.machine, "gpus")[places["machine"]]
    served = exchanges(plans) == SERVERS
    plans["servers_setting"] = np.where(served, plans["servers"], "")
    plans["servers"] = np.where(served, _server_counts(grid.servers, places["servers"], plans["nodes"]), 0)

    valid, refused = np.ones(len(served), bool), {}
    for why, where in _invalid(grid, plans).items():
        if count := int((where & valid).sum()):
            refused[why] = count
        valid &= ~where
    others = [place for name, place in places.items() if name != "servers"]
    same = np.ravel_multi_index(others, [len(axes[name]) for name in axes if name != "servers"])
    # Two settings of servers can be one plan: any without servers, 1x and 1 on one node
    _, first = np.unique(same * (1 + plans["servers"].max()) + plans["servers"], return_index=True)
    kept = np.intersect1d(first, np.flatnonzero(valid))
    return {name: column[kept] for name, column in plans.items()}, refused


def _server_counts(settings: Sequence[str], place: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Return the number of servers of each plan; place: index of its setting, a number or a multiple of the nodes."""
    number = np.array([int(setting.rstrip("x")) for setting in settings])
    per_node = np.array([setting.endswith("x") for setting in settings])
    return number[place] * np.where(per_node[place], nodes, 1)


def _invalid(grid: Grid, plans: Plans) -> Dict[str, np.ndarray]:
    """Return which combinations are invalid by reason."""
    compression, lacking = plans["compression"], np.zeros(len(plans["compression"]), bool)
    for name in set(grid.comm):
        lacking |= (plans["comm"] == name) & ~np.isin(compression, BACKENDS[name].compression)
    one_node = f"{', '.join(f'comm={name}' for name in ONE_NODE)} drive the devices of one node"
    by_compression = {}
    for entry in COMPRESSIONS.values():
        not_accepted = (compression == entry.name) & ~np.isin(plans["precision"], entry.accepted)
        by_compression[f"compression={entry.name} needs {' or '.join(entry.accepted)} gradients"] = not_accepted
    return {
        one_node: np.isin(plans["comm"], ONE_NODE) & (plans["nodes"] > 1),
        **by_compression,
        "the back end does not have this compression": lacking,
        "double buffering does not work with precision=amp": plans["double_buffering"] & (plans["precision"] == "amp"),
    }


def _of(machines: Sequence[Machine], name: str) -> np.ndarray:
    return np.array([getattr(machine, name) for machine in machines])


# ---------------------------------------------------------------- time and cost


def evaluate(grid: Grid, task: Task) -> Tuple[Plans, Dict[str, int]]:
    """Evaluate every combination of the grid.

    Returns:
        The columns of all valid plans, and the number of invalid combinations by reason. Columns added to the grid's:
        devices, images_per_s, efficiency (against the rate of one device times their number), hours, usd, eur (NaN:
        unknown), bound, and seconds of a step: step_s, compute_s, exchange_s, exposed_s, stragglers_s, input_s.
    """
    plans, refused = combine(grid)
    step = _step(plans, grid, task)
    global_batch = plans["batch"] * plans["devices"] * task.accumulation
    too_few = global_batch > task.images
    if too_few.any():
        refused[f"the global batch is more than the {task.images:,} images of an epoch"] = int(too_few.sum())
    plans.update(step)
    plans["images_per_s"] = global_batch / step["step_s"]
    plans["efficiency"] = plans["images_per_s"] / (plans["devices"] * _rates(plans, grid, task))
    # All images count. A run drops the last partial batch, which would make plans with large batches look cheap
    seconds = task.images * task.epochs / plans["images_per_s"] + task.setup_s
    plans["hours"] = seconds / 3600
    for currency in ("usd", "eur"):
        plans[currency] = billed_hours(seconds, task.billing, task.minimum_s) * _per_hour(plans, grid, task, currency)
    return {name: column[~too_few] for name, column in plans.items()}, refused


def _rates(plans: Plans, grid: Grid, task: Task) -> np.ndarray:
    """Return the images/s of one device alone, for each plan."""
    rates = np.empty(len(plans["batch"]))
    for number, batch, precision in itertools.product(range(len(grid.machine)), set(grid.batch), set(grid.precision)):
        where = (plans["machine"] == number) & (plans["batch"] == batch) & (plans["precision"] == precision)
        rates[where] = task.rates[grid.machine[number].name, batch, precision]
    return rates


def _step(plans: Plans, grid: Grid, task: Task) -> Plans:
    """Return the columns of a step."""
    machines, number = grid.machine, plans["machine"]
    gpus = _of(machines, "gpus")[number]
    comm = exchanges(plans)
    ring, push_each = comm == RING, np.isin(plans["comm"], PUSH_EACH)
    links = {name: _links([getattr(each, name) for each in machines], number) for name in LINKS}
    intra = _where(ring, links["intra"], _where(push_each, Link(0.0, np.inf, False), links["intra_kvstore"]))
    nic = _where(ring, links["nic"], links["nic_servers"])
    images = plans["batch"] * task.accumulation
    job = step_time.Job(
        compute_s=images / _rates(plans, grid, task),
        gradients=task.network.gradients,
        accumulation=task.accumulation,
        nodes=plans["nodes"],
        gpus_per_node=gpus,
        intra=intra,
        nic=_where((plans["nodes"] > 1) | (plans["servers"] > 0), nic, Link(0.0, np.inf)),
        comm=comm,
        bytes_each=np.vectorize(BYTES.get, otypes=[float])(plans["compression"]),
        servers=_equivalent_servers(plans, nic, task.server),
        pushes=np.where(push_each, gpus, 1),
        buckets=_buckets(plans["double_buffering"], task),
        double_buffering=plans["double_buffering"],
        **software(ring, task.overlap),
        input_s=0.0 if task.input_images_per_s is None else gpus * images / task.input_images_per_s,
    )
    step = step_time.predict(job)
    parts = {f"{name}_s": getattr(step, f"{name}_s") for name in PARTS}
    found = {"step_s": step.seconds, **parts, "bound": step.bound}
    return {name: np.broadcast_to(column, len(number)) for name, column in found.items()}


def _buckets(delayed: np.ndarray, task: Task) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Return `Job.buckets`, whose sizes depend on double buffering; empty ones fill up the shorter list."""
    late, early = (step_time.buckets(task.network.layers, task.bucket_bytes[double] / 4) for double in (True, False))
    return [
        (np.where(delayed, one[0], other[0]), np.where(delayed, one[1], other[1]))
        for one, other in itertools.zip_longest(late, early, fillvalue=(0.0, 1.0))
    ]


def software(ring, overlap: bool) -> Dict:
    """Return the fields of step_time.Job that depend on the software: overlap, variation of steps, overhead."""
    k = hardware.constants()
    return {
        "overlap": overlap * np.where(ring, k["overlap"], k["overlap_served"]),
        "spread": k["spread"],
        "jitter_s": k["jitter"],
        "overhead": k["overhead"],
    }


def _equivalent_servers(plans: Plans, nic: Link, server: Optional[Machine]) -> np.ndarray:
    """Return the number of servers in units of the workers' NIC: a server with half its rate counts as half."""
    if server is None or server.nic_servers is None:
        return plans["servers"]
    return plans["servers"] * server.nic_servers.bytes_per_s / nic.bytes_per_s


def _links(links: Sequence[Optional[Link]], number: np.ndarray) -> Link:
    links = [link or Link(np.nan, np.nan) for link in links]
    return Link(*(np.array([getattr(link, name) for link in links])[number] for name in vars(links[0])))


def _where(condition, first: Link, second: Link) -> Link:
    return Link(*(np.where(condition, getattr(first, name), getattr(second, name)) for name in vars(first)))


def billed_hours(seconds: np.ndarray, billing: str, minimum_s: float) -> np.ndarray:
    """Return the billed hours of one attempt, as prices.bill does (arrays)."""
    if billing == "per_hour":
        return np.maximum(1, np.ceil(np.round(seconds, 3) / 3600))
    return np.maximum(seconds, minimum_s) / 3600


def _per_hour(plans: Plans, grid: Grid, task: Task, currency: str) -> np.ndarray:
    """Return the price per hour of all nodes of each plan, including its servers."""
    workers = plans["nodes"] * _of(grid.machine, f"{currency}_per_hour")[plans["machine"]]
    if not plans["servers"].any():
        return workers
    each = getattr(task.server, f"{currency}_per_hour")
    return workers + np.where(plans["servers"] > 0, plans["servers"] * each, 0.0)


def rows(plans: Plans, places: Sequence[int]) -> List[Dict]:
    """Return plans as plain values; unknown values are None."""
    columns = {name: column[list(places)].tolist() for name, column in plans.items() if name not in INNER}
    plain = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return [{k: None if isinstance(v, float) and np.isnan(v) else v for k, v in row.items()} for row in plain]
