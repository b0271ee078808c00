"""Jobs of published rows as arrays for the model, and their predicted rates.

The column `details` of a table says how a row exchanges its gradients, in words such as `exchange=servers servers=4
rdma=yes`; docs/scaling-model.md lists them with their defaults. No row, source or framework has its own constants.
"""

import dataclasses
import re
from types import SimpleNamespace
from typing import Dict, List, Sequence, Tuple

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.perfmodel import hardware, step_time
from mxscale.perfmodel.published.rows import Point
from mxscale.perfmodel.step_time import Job, overlapped, stragglers, transfers

Constants = Dict[str, float]  # as in hardware.csv

# The network of the constant `launch`, and of rows whose network is unknown: most have its size
RESNET_50 = hardware.network("resnet-50")
BATCH = {4: 64, 2: 128}  # default, by bytes of a number
BUCKETS, BUCKET_BYTES = 8, 32e6  # at most; Horovod's fusion buffer is 64 MB, a DistributedDataParallel bucket 25 MB
MOST_OF_LINEAR = 1.1  # largest ratio of a prediction to linear scaling
LEAST_COMPUTE = 0.2  # share of compute in the step of a base, at least

EXCHANGES = {"ring": RING, "kvstore": ALL_TO_ALL, "servers": SERVERS}
# of a row without exchange=, by the first pattern that its column comm has; "Horovod on 4 servers" means machines
NAMED = {
    re.compile(r"horovod|nccl|\bring|all-?reduce|ddp"): RING,
    re.compile(r"server|\bps\b|\bdist_|byteps"): SERVERS,
    re.compile(r"kvstore|replicated|\bdevice\b|\blocal\b|mirrored"): ALL_TO_ALL,
}
# what the words of comm state, unless `details` does
STATED = {
    # host memory, summed by MPI's thread on the processors; the devices go on computing
    re.compile(r"staged|without nccl"): {"staged": "", "overlap": "perfect"},
    re.compile(r"\bddp\b|deepspeed"): {"overlap": "perfect"},  # arXiv:2006.15704, sec. 3
    re.compile(r"infiniband"): {"rdma": "yes", "gbps": "56"},
    re.compile(r"\btcp\b|\beth"): {"rdma": "no"},
}
CLOUD = re.compile(r"azure|\b(?:aws|ec2|gcp)\b|\b[pg]\d\w*\.\d*x?large")
# quantities of a row that are fields of a Job
OF_JOB = (
    "gradients", "bytes_each", "nodes", "gpus_per_node", "comm", "servers", "pushes", "largest", "double_buffering",
    "buckets",
)  # fmt: skip
OF_PCIE_3 = ("pcie3", "nvlink1", "nvlink2")  # links of devices whose PCIe variants are PCIe 3
INFINIBAND_GBPS = (40, 54, 56, 100)  # and from 200 up; the common rates of Ethernet differ


class Jobs(SimpleNamespace):
    """Jobs without the model's constants: the quantities of `_row` and `buckets`, arrays with one value per row."""

    @classmethod
    def of(cls, points: Sequence[Point]) -> "Jobs":
        rows = [_row(point, details_of(point)) for point in points]
        jobs = cls(**{key: np.array([row[key] for row in rows]) for key in rows[0]})
        jobs.devices = jobs.nodes * jobs.gpus_per_node
        jobs.step_s = jobs.batch * jobs.devices / jobs.rate
        jobs.buckets = _buckets(jobs)
        return jobs


def details_of(point: Point) -> Dict[str, str]:
    """Return the details of a row, and what the words of its column comm state."""
    words = {}
    for pattern, those in STATED.items():
        words.update(those if pattern.search(point.comm.lower()) else {})
    return {**words, **point.stated}


def network_stated(point: Point) -> bool:
    """Return whether a row states the rate or the kind of the network between its nodes."""
    return bool(point.network_gbps or {"gbps", "rdma"} & details_of(point).keys())


def _row(point: Point, stated: Dict[str, str]) -> Dict:
    """Return the quantities of a row and its details: OF_JOB, and those from which `job` computes other fields."""
    network, size = hardware.network(point.model) or RESNET_50, _bytes_each(point)
    wire, generation = hardware.link_in_node(stated.get("link") or _usual_link(point.gpu.lower()))
    comm = point.comm.lower()
    named = next((exchange for pattern, exchange in NAMED.items() if pattern.search(comm)), RING)
    gbps = point.network_gbps or float(stated.get("gbps") or hardware.usual_gbps(point.gpu))
    rdma = gbps in INFINIBAND_GBPS or gbps >= 200
    # NCCL opens a connection for each of its rings, and without NVLink it has one ring
    one_flow = named == RING and not wire and CLOUD.search(f"{comm} {point.note}".lower())
    return {
        "gradients": network.parameters,
        "bytes_each": size,
        "nodes": float(point.nodes),
        "gpus_per_node": point.per_node,
        "comm": EXCHANGES[stated["exchange"]] if "exchange" in stated else named,
        "servers": float(stated.get("servers", 0)),
        "pushes": point.per_node if stated.get("push") == "device" else 1.0,
        "largest": network.largest if "unsplit" in stated else 0.0,
        "double_buffering": "double_buffering" in stated,
        "tensors": network.tensors,
        "early": network.early,
        "batch": float(point.batch or BATCH[size]),
        "rate": point.rate,  # images/s, published
        "nvlink": wire,
        "pcie": generation,
        "host": "host" in stated,  # a kvstore sums in the host's memory
        "processors": "processors" in stated,  # CPUs sum in a ring
        "wire": gbps * 1e9 / 8,  # nominal bytes/s of the node's network
        "rdma": stated["rdma"] == "yes" if "rdma" in stated else rdma,
        "flows": 1.0 if one_flow else np.inf,
        "staged": "staged" in stated,
        "layerwise": "layerwise" in stated,  # one message per layer
        "hidden": stated.get("overlap", "usual"),
    }


def _bytes_each(point: Point) -> int:
    """Return the bytes of a gradient: 2 for fp16 weights and MXNet's mixed precision; other mixed precision has 4."""
    if "bytes" in point.stated:
        return int(point.stated["bytes"])
    of_mxnet = "amp" in point.precision.lower() and "mxnet" in point.framework.lower()
    return 2 if of_mxnet or "16" in point.precision else 4


def _usual_link(gpu: str) -> str:
    link = hardware.usual_link(gpu)
    if "pcie" in gpu:
        return "pcie3" if link in OF_PCIE_3 else "pcie4"
    return link


def _buckets(rows: Jobs) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Return equal buckets; the share `early` of the gradients is ready in the first quarter of backward."""
    count = np.clip(np.ceil(rows.gradients * rows.bytes_each / BUCKET_BYTES), 1, BUCKETS)
    count = np.where(rows.layerwise, BUCKETS, count)
    made = []
    for index in range(int(count.max())):
        done = np.minimum((index + 1) / count, 1)
        late = 0.25 + 0.75 * (done - rows.early) / (1 - rows.early)
        made.append(
            (np.where(index < count, 1 / count, 0), np.where(done < rows.early, 0.25 * done / rows.early, late))
        )
    return made


def job(rows: Jobs, constants: Constants, compute_s) -> Job:
    """Return the rows as one Job of arrays."""
    k, most = constants, np.where(rows.processors, constants["processors"], np.inf)
    nic = step_time.between_nodes(k, rows.wire, rows.rdma, rows.flows)
    intra = step_time.inside_node(k, rows.nvlink, rows.pcie, rows.comm != RING, rows.host)
    usual = np.where(rows.comm == RING, k["overlap"], k["overlap_served"])
    # Where a sum waits for its connection, the device goes on computing
    perfect = (rows.hidden == "perfect") | (np.isfinite(rows.flows) & ~rows.rdma)
    return Job(
        compute_s=compute_s,
        **{name: getattr(rows, name) for name in OF_JOB},
        intra=intra._replace(bytes_per_s=np.minimum(intra.bytes_per_s, most)),
        nic=nic._replace(bytes_per_s=np.minimum(nic.bytes_per_s, np.where(rows.staged, k["processors"], most))),
        messages=np.where(rows.layerwise, rows.tensors / BUCKETS, 1),
        overlap=np.where(rows.hidden == "none", 0, np.where(perfect, 1, usual)),
        spread=k["spread"],
        jitter_s=k["jitter"],
        overhead=k["overhead"],
    )


def predict(base: Jobs, target: Jobs, constants: Constants) -> np.ndarray:
    """Return the predicted images/s of each target, from the rate of its base."""

    def at_batch(compute):  # as `compute` of the base's batch is with the target's
        launches_s = constants["launch"] * target.tensors / RESNET_50.tensors
        return step_time.at_batch(compute, target.batch, base.batch, launches_s)

    compute = at_batch(compute_s(base, constants))
    step = job(target, constants, compute)
    images = target.batch * target.devices
    predicted = images / (compute + overlapped(step, transfers(step)) + stragglers(step))
    longest = at_batch(base.step_s)  # as if all of the base's step were compute
    return np.minimum(predicted, MOST_OF_LINEAR * images / longest)


def compute_s(rows: Jobs, constants: Constants) -> np.ndarray:
    """Return the seconds of compute in a published step: the step without exchange and stragglers.

    Both depend on the compute, so that the value is iterated with damping.
    """
    step = compute = rows.step_s
    step_job = job(rows, constants, compute)
    sent = transfers(step_job)
    for _ in range(8):
        step_job = dataclasses.replace(step_job, compute_s=compute)
        left = step - overlapped(step_job, sent) - stragglers(step_job)
        compute = (compute + np.maximum(left, LEAST_COMPUTE * step)) / 2
    return compute
