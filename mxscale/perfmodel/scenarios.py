"""What training would take on machines that nobody has rented yet: images/s, hours, money, what bounds it.

Every combination of what is asked for is a plan; a hundred thousand of them are one call of `step_time.predict` over
arrays.  Pure: numpy.
"""

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxscale.config.backends import BACKENDS, DEFAULT, MODELLED, RING, SERVERS
from mxscale.config.price_sources import MINIMUM_S
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.step_time import Link

# of a gradient, as it is and where it is made smaller to travel
BYTES = {"float32": 4.0, "amp": 4.0, "float16": 2.0}
COMPRESSED = {"fp16": 2.0, "2bit": 0.25}


def bytes_each(precision: str, compression: str) -> float:
    """Of a gradient on the wire."""
    return min(BYTES[precision], COMPRESSED.get(compression, 4.0))


ONE_NODE = tuple(entry.name for entry in BACKENDS.values() if entry.drives_all_devices)
Plans = Dict[str, np.ndarray]  # column -> one value for each plan
PARTS = ("compute", "exchange", "exposed", "stragglers", "input")  # of a step, in seconds
INNER = ("machine", "asked_servers")  # columns that `rows` leaves out: the place in the grid, servers as asked for


@dataclass(frozen=True)
class Machine:
    """One kind of machine: what a node of it has and costs.  Unknown money is NaN."""

    name: str
    gpus: int  # devices of a node
    intra: Link  # between them, as Horovod's ring uses it
    kept: Link  # the same, as a kvstore's sum uses it
    nic: Optional[Link]  # between nodes; None: not known
    served: Optional[Link]  # the same for parameter servers, which know no RDMA
    usd_per_hour: float = float("nan")
    eur_per_hour: float = float("nan")


LINKS = ("intra", "kept", "nic", "served")


@dataclass(frozen=True)
class Grid:
    """What is asked for: each combination is a plan."""

    machine: Sequence[Machine]
    nodes: Sequence[int]
    comm: Sequence[str] = (DEFAULT,)
    servers: Sequence[str] = ("1x",)  # machines that are servers alone: a number, or so many times the nodes; 0: none
    batch: Sequence[int] = (32,)  # of a device
    precision: Sequence[str] = ("float32",)
    compression: Sequence[str] = ("none",)
    double_buffering: Sequence[bool] = (False,)

    @property
    def axes(self) -> Dict[str, Sequence]:
        return vars(self)


@dataclass(frozen=True)
class Task:
    """What is the same in all plans."""

    network: Network
    images: int  # of an epoch
    epochs: float
    rates: Mapping[Tuple[str, int, str], float]  # (machine, batch, precision) -> images/s of one device
    server: Optional[Machine] = None
    accumulation: int = 1
    # with double buffering -> of its buckets
    bucket_bytes: Mapping[bool, float] = field(default_factory=lambda: dict.fromkeys((False, True), 32 * 2**20))
    pushes: Optional[int] = None  # that a node makes to servers; None: each device, whose rank is a process here
    overlap: bool = True
    hierarchical: bool = False
    input_images_per_s: Optional[float] = None  # that a node's input gives; None: not looked at
    setup_s: float = 0.0
    billing: str = "per_second"
    minimum_s: float = MINIMUM_S


def exchanges(plans: Plans) -> np.ndarray:
    """Return how each plan's gradients travel: RING, ALL_TO_ALL or SERVERS."""
    return np.vectorize(MODELLED.get, otypes=[str])(plans["comm"])


# ---------------------------------------------------------------- every combination


def combine(grid: Grid) -> Tuple[Plans, Dict[str, int]]:
    """(columns of every combination that can be, how many could not by reason)."""
    lengths = [len(values) for values in grid.axes.values()]
    places = dict(zip(grid.axes, np.indices(lengths).reshape(len(lengths), -1)))
    machine = places.pop("machine")
    plans = {name: np.array(grid.axes[name])[place] for name, place in places.items()}
    plans["machine"] = machine
    plans["instance"] = np.array([each.name for each in grid.machine])[machine]
    served = exchanges(plans) == SERVERS
    refused = {
        f"one process drives the devices of one node: {' and '.join(f'comm={name}' for name in ONE_NODE)} take no "
        "second one": np.isin(plans["comm"], ONE_NODE) & (plans["nodes"] > 1),
        "compression=2bit is that of parameter servers": (plans["compression"] == "2bit") & ~served,
        "compression=2bit packs float32 alone": (plans["compression"] == "2bit") & (plans["precision"] == "float16"),
        "": _again(grid, plans, places["servers"], served),
    }
    bad, told = np.zeros(len(machine), bool), {}
    for why, where in refused.items():
        told[why] = int((where & ~bad).sum())
        bad |= where
    told.pop("")
    plans = {name: column[~bad] for name, column in plans.items()}
    served = exchanges(plans) == SERVERS
    plans["asked_servers"] = np.where(served, plans["servers"], "")
    plans["servers"] = np.where(served, _counts(grid, plans["nodes"], places["servers"][~bad]), 0)
    plans["devices"] = plans["nodes"] * _of(grid.machine, "gpus")[plans["machine"]]
    return plans, {why: count for why, count in told.items() if count}


def _counts(grid: Grid, nodes: np.ndarray, place: np.ndarray) -> np.ndarray:
    """How many servers the word at `place` of the grid means for so many nodes."""
    words = [str(word) for word in grid.servers]
    number = np.array([int(word.rstrip("x")) for word in words])[place]
    return number * np.where(np.array([word.endswith("x") for word in words])[place], nodes, 1)


def _again(grid: Grid, plans: Plans, place: np.ndarray, served: np.ndarray) -> np.ndarray:
    """Which are a plan that is there already: without servers for each number of them, 1x beside 1 on one node."""
    again, counts = ~served & (place > 0), _counts(grid, plans["nodes"], place)
    for earlier in range(len(grid.servers)):
        again |= served & (place > earlier) & (counts == _counts(grid, plans["nodes"], np.full_like(place, earlier)))
    return again


def _of(machines: Sequence[Machine], name: str) -> np.ndarray:
    return np.array([getattr(machine, name) for machine in machines])


# ---------------------------------------------------------------- how long, how much


def evaluate(grid: Grid, task: Task) -> Tuple[Plans, Dict[str, int]]:
    """(columns of all plans, how many combinations could not be by reason).

    Columns beside the grid's: devices, images_per_s, efficiency (of the devices' own rate times their number), hours,
    usd, eur (NaN: unknown), bound, and the step's seconds: step_s, compute_s, exchange_s, exposed_s, stragglers_s,
    input_s.
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
    # Every image counts: a run drops the last partial batch, which would make plans of large batches look cheap
    seconds = task.images * task.epochs / plans["images_per_s"] + task.setup_s
    plans["hours"] = seconds / 3600
    for currency in ("usd", "eur"):
        plans[currency] = billed_hours(seconds, task.billing, task.minimum_s) * _per_hour(plans, grid, task, currency)
    return {name: column[~too_few] for name, column in plans.items()}, refused


def _rates(plans: Plans, grid: Grid, task: Task) -> np.ndarray:
    """Images/s of one device by itself, for each plan."""
    rates = np.empty(len(plans["batch"]))
    for number, machine in enumerate(grid.machine):
        for batch in set(grid.batch):
            for precision in set(grid.precision):
                where = (plans["machine"] == number) & (plans["batch"] == batch) & (plans["precision"] == precision)
                if where.any():
                    rates[where] = task.rates[machine.name, batch, precision]
    return rates


def _step(plans: Plans, grid: Grid, task: Task) -> Plans:
    """Columns of a step.  One call of the model has one partition into buckets, and double buffering another."""
    double = plans["double_buffering"].astype(bool)
    places = [np.flatnonzero(double == delayed) for delayed in (False, True)]
    pieces = [
        _step_of({name: column[place] for name, column in plans.items()}, grid, task, delayed)
        for delayed, place in zip((False, True), places)
    ]
    back = np.argsort(np.concatenate(places))
    return {name: np.concatenate([piece[name] for piece in pieces])[back] for name in pieces[0]}


def _step_of(plans: Plans, grid: Grid, task: Task, delayed: bool) -> Plans:
    machines, number = grid.machine, plans["machine"]
    gpus = _of(machines, "gpus")[number]
    comm = exchanges(plans)
    ring, served = comm == RING, comm == SERVERS
    links = {name: _links([getattr(each, name) for each in machines], number) for name in LINKS}
    intra = _where(ring, links["intra"], _where(served, Link(0.0, np.inf, False), links["kept"]))
    nic = _where(ring, links["nic"], links["served"])
    images = plans["batch"] * task.accumulation
    job = step_time.Job(
        compute_s=images / _rates(plans, grid, task),
        gradients=task.network.gradients,
        turns=task.accumulation,
        nodes=plans["nodes"],
        gpus_per_node=gpus,
        intra=intra,
        nic=_where((plans["nodes"] > 1) | (plans["servers"] > 0), nic, Link(0.0, np.inf)),
        comm=comm,
        bytes_each=np.vectorize(bytes_each, otypes=[float])(plans["precision"], plans["compression"]),
        hierarchical=task.hierarchical & (plans["nodes"] > 1) & ring,
        servers=_worth(plans, nic, task.server),
        pushes=np.where(served, task.pushes or gpus, 1),
        parts=step_time.buckets(task.network.layers, task.bucket_bytes[delayed] / 4),
        double_buffering=delayed,
        **habits(ring, task.overlap),
        input_s=0.0 if task.input_images_per_s is None else gpus * images / task.input_images_per_s,
    )
    step = step_time.predict(job)
    parts = {f"{name}_s": getattr(step, f"{name}_s") for name in PARTS}
    found = {"step_s": step.seconds, **parts, "bound": step.bound}
    return {name: np.broadcast_to(column, len(number)) for name, column in found.items()}


def habits(ring, overlap: bool) -> Dict:
    """Fields of step_time.Job that are the software's: how much it hides, how unevenly devices work."""
    k = hardware.constants()
    return {
        "overlap": overlap * np.where(ring, k["overlap"], k["overlap_served"]),
        "spread": k["spread"],
        "jitter_s": k["jitter"],
        "overhead": k["overhead"],
    }


def _worth(plans: Plans, nic: Link, server: Optional[Machine]) -> np.ndarray:
    """How many servers with the workers' NIC these are worth: one with half of it is half a server."""
    if server is None or server.served is None:
        return plans["servers"]
    return plans["servers"] * server.served.bytes_per_s / nic.bytes_per_s


def _links(links: Sequence[Optional[Link]], number: np.ndarray) -> Link:
    links = [link or Link(np.nan, np.nan) for link in links]
    return Link(*(np.array([getattr(link, name) for link in links])[number] for name in vars(links[0])))


def _where(condition, first: Link, second: Link) -> Link:
    return Link(*(np.where(condition, getattr(first, name), getattr(second, name)) for name in vars(first)))


def billed_hours(seconds: np.ndarray, billing: str, minimum_s: float) -> np.ndarray:
    """As prices.cost bills one attempt of so many seconds (arrays)."""
    if billing == "per_hour":
        return np.maximum(1, np.ceil(np.round(seconds, 3) / 3600))
    return np.maximum(seconds, minimum_s) / 3600


def _per_hour(plans: Plans, grid: Grid, task: Task, currency: str) -> np.ndarray:
    """What all nodes of a plan cost for an hour, its servers among them."""
    workers = plans["nodes"] * _of(grid.machine, f"{currency}_per_hour")[plans["machine"]]
    if not plans["servers"].any():
        return workers
    each = getattr(task.server, f"{currency}_per_hour")
    return workers + np.where(plans["servers"] > 0, plans["servers"] * each, 0.0)


# ---------------------------------------------------------------- as plain values


def rows(plans: Plans, places: Sequence[int]) -> List[Dict]:
    """These plans as plain values; unknown ones are None."""
    columns = {name: column[list(places)].tolist() for name, column in plans.items() if name not in INNER}
    plain = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return [{k: None if isinstance(v, float) and np.isnan(v) else v for k, v in row.items()} for row in plain]
