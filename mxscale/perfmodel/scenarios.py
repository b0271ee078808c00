"""Throughput, hours, cost and bottleneck of training on machines before they are rented.

Each combination of the requested settings is a plan. All plans are evaluated by one call of `step_time.predict` on
arrays.
"""

import functools
import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxscale.config.backends import BACKENDS, COMPRESSIONS, DEFAULT, MODELLED, RING, SERVERS
from mxscale.config.price_sources import MINIMUM_S
from mxscale.cost import prices
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.convergence import Convergence
from mxscale.perfmodel.layers import Network
from mxscale.perfmodel.machines import Machine
from mxscale.perfmodel.step_time import FREE, Link

Plans = Dict[str, np.ndarray]  # column -> one value per plan
INNER = ("machine", "servers_setting")  # columns that `rows` omits: index in the grid, servers as requested


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
    epochs: Union[float, Convergence]
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


# ---------------------------------------------------------------- combinations


def combine(grid: Grid) -> Tuple[Plans, Dict[str, int]]:
    """Return the columns of all valid combinations, and the number of invalid ones by reason."""
    layouts = _layouts(grid)
    axes = (grid.batch, grid.precision, grid.compression, grid.double_buffering)
    combinations = np.meshgrid(range(len(grid.machine)), range(len(layouts)), *axes, indexing="ij")
    machine, layout, batch, precision, compression, delayed = (axis.ravel() for axis in combinations)
    nodes, comm, setting, servers = (np.array(column)[layout] for column in zip(*layouts))
    plans = {
        "machine": machine,
        "instance": np.array([node.name for node in grid.machine])[machine],
        "nodes": nodes,
        "devices": nodes * np.array([node.gpus for node in grid.machine])[machine],
        "comm": comm,
        "servers_setting": setting,
        "servers": servers,
        "batch": batch,
        "precision": precision,
        "compression": compression,
        "double_buffering": delayed,
    }
    refused_by = ("nodes", "comm", "precision", "compression", "double_buffering")
    reasons = [_refusal(*values) for values in _listed(plans, *refused_by)]
    valid = np.array([not reason for reason in reasons])
    return {name: column[valid] for name, column in plans.items()}, dict(Counter(filter(None, reasons)))


def _layouts(grid: Grid) -> List[Tuple[int, str, str, int]]:
    """Return the distinct (nodes, comm, servers as requested, number of servers)."""
    layouts = {}
    for nodes, comm, setting in itertools.product(grid.nodes, grid.comm, grid.servers):
        served = MODELLED[comm] == SERVERS
        servers = int(setting.rstrip("x")) * (nodes if setting.endswith("x") else 1) if served else 0
        # Two settings can be one number: 1x and 1 on one node
        layouts.setdefault((nodes, comm, servers), (nodes, comm, setting if served else "", servers))
    return list(layouts.values())


@functools.cache
def _refusal(nodes: int, comm: str, precision: str, compression: str, double_buffering: bool) -> str:
    """Return why a combination is invalid; "" if it is valid."""
    backend, wire = BACKENDS[comm], COMPRESSIONS[compression]
    if backend.drives_all_devices and nodes > 1:
        return f"comm={comm} drives the devices of one node"
    if precision not in wire.accepted:
        return f"compression={compression} needs {' or '.join(wire.accepted)} gradients"
    if wire.error_feedback and backend.needs_servers:
        return "the back end does not have this compression"
    if double_buffering and precision == "amp":
        return "double buffering does not work with precision=amp"
    return ""


def _listed(plans: Plans, *names: str) -> zip:
    """Return the values of these columns, plan by plan."""
    return zip(*(plans[name].tolist() for name in names))


# ---------------------------------------------------------------- time and cost


def evaluate(grid: Grid, task: Task) -> Tuple[Plans, Dict[str, int]]:
    """Evaluate every combination of the grid.

    Returns:
        The columns of all valid plans, and the number of invalid combinations by reason. Columns added to the grid's:
        devices, images_per_s, efficiency (against the rate of one device times their number), epochs, hours, kwh (of
        the workers), usd, eur (NaN: unknown), bound, and seconds of a step: step_s, compute_s, exchange_s, exposed_s,
        stragglers_s, input_s.
    """
    plans, refused = combine(grid)
    rates = np.array([task.rates[key] for key in _listed(plans, "instance", "batch", "precision")])
    plans.update(_step(plans, rates, grid, task))
    global_batch = plans["batch"] * plans["devices"] * task.accumulation
    plans["images_per_s"] = global_batch / plans["step_s"]
    plans["efficiency"] = plans["images_per_s"] / (plans["devices"] * rates)
    by_batch = isinstance(task.epochs, Convergence)
    plans["epochs"] = task.epochs.at(global_batch) if by_batch else np.full(len(global_batch), task.epochs)
    # All images count. A run drops the last partial batch, which would make plans with large batches look cheap
    seconds = task.images * plans["epochs"] / plans["images_per_s"] + task.setup_s
    plans["hours"] = seconds / 3600
    watts = np.array([machine.watts for machine in grid.machine])[plans["machine"]]
    plans["kwh"] = plans["hours"] * plans["nodes"] * watts / 1000
    billed = np.array([prices.billed_hours(one, task.billing, task.minimum_s) for one in seconds.tolist()])
    for currency in ("usd_per_hour", "eur_per_hour"):
        plans[currency[:3]] = billed * _per_hour(plans, grid, task, currency)
    too_few, unknown = global_batch > task.images, np.isnan(plans["epochs"])
    for why, left_out in (
        (f"the global batch is more than the {task.images:,} images of an epoch", too_few),
        ("the epochs to the target are unknown for so large a global batch", unknown),
    ):
        if left_out.any():
            refused[why] = int(left_out.sum())
    return {name: column[~(too_few | unknown)] for name, column in plans.items()}, refused


def _step(plans: Plans, rates: np.ndarray, grid: Grid, task: Task) -> Plans:
    """Return the columns of a step; rates: images/s of one device alone."""
    gpus = plans["devices"] // plans["nodes"]
    comm = np.array([MODELLED[name] for name in plans["comm"].tolist()], dtype=str)
    images = plans["batch"] * task.accumulation
    intra, nic = _links(plans, grid)
    k = hardware.constants()
    job = step_time.Job(
        compute_s=images / rates,
        gradients=task.network.gradients,
        accumulation=task.accumulation,
        nodes=plans["nodes"],
        gpus_per_node=gpus,
        intra=intra,
        nic=nic,
        comm=comm,
        bytes_each=np.array([float(COMPRESSIONS[name].bytes_each) for name in plans["compression"].tolist()]),
        servers=_equivalent_servers(plans, nic, task.server),
        pushes=np.where([_pushes_each(name) for name in plans["comm"].tolist()], gpus, 1),
        buckets=_buckets(plans["double_buffering"], task),
        double_buffering=plans["double_buffering"],
        overlap=task.overlap * np.where(comm == RING, k["overlap"], k["overlap_served"]),
        spread=k["spread"],
        jitter_s=k["jitter"],
        overhead=k["overhead"],
        input_s=0.0 if task.input_images_per_s is None else gpus * images / task.input_images_per_s,
    )
    return vars(step_time.predict(job))


def _pushes_each(comm: str) -> bool:
    """Return whether each device's process pushes to the servers; with other back ends, a node sums first."""
    return MODELLED[comm] == SERVERS and not BACKENDS[comm].process_per_node


def _links(plans: Plans, grid: Grid) -> Tuple[Link, Link]:
    """Return the links inside a node and between nodes that each plan's exchange uses."""
    used = {}
    for (number, machine), comm in itertools.product(enumerate(grid.machine), grid.comm):
        ring = MODELLED[comm] == RING
        summed = FREE if _pushes_each(comm) else machine.intra_kvstore
        nic = machine.nic if ring else machine.nic_servers
        used[number, comm] = (machine.intra if ring else summed, nic or Link(np.nan, np.nan))
    links = np.array([used[key] for key in _listed(plans, "machine", "comm")], float).reshape(-1, 2, 3)
    return Link(*links[:, 0].T), Link(*links[:, 1].T)


def _buckets(delayed: np.ndarray, task: Task) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Return `Job.buckets`, whose sizes depend on double buffering; empty ones fill up the shorter list."""
    late, early = (step_time.buckets(task.network.layers, task.bucket_bytes[double] / 4) for double in (True, False))
    return [
        (np.where(delayed, one[0], other[0]), np.where(delayed, one[1], other[1]))
        for one, other in itertools.zip_longest(late, early, fillvalue=(0.0, 1.0))
    ]


def _equivalent_servers(plans: Plans, nic: Link, server: Optional[Machine]) -> np.ndarray:
    """Return the number of servers in units of the workers' NIC: a server with half its rate counts as half."""
    if server is None or server.nic_servers is None:
        return plans["servers"]
    return plans["servers"] * server.nic_servers.bytes_per_s / nic.bytes_per_s


def _per_hour(plans: Plans, grid: Grid, task: Task, currency: str) -> np.ndarray:
    """Return the price per hour of all nodes of each plan, including its servers; currency: a field of Machine."""
    workers = plans["nodes"] * np.array([getattr(machine, currency) for machine in grid.machine])[plans["machine"]]
    if task.server is None:
        return workers
    return workers + np.where(plans["servers"] > 0, plans["servers"] * getattr(task.server, currency), 0.0)


def rows(plans: Plans, places: Sequence[int]) -> List[Dict]:
    """Return plans as plain values; unknown values are None."""
    columns = {name: column[list(places)].tolist() for name, column in plans.items() if name not in INNER}
    plain = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return [{k: None if isinstance(v, float) and np.isnan(v) else v for k, v in row.items()} for row in plain]
