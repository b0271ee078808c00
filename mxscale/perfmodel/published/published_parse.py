"""What the words of published rows say about their jobs, as arrays for the model.  Pure: numpy.

The words are the sources' own, so that each feature is a pattern; what they don't say has a default, which
docs/scaling-model.md lists.  No row, source or framework has constants of its own.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING, SERVERS
from mxscale.perfmodel import hardware
from mxscale.perfmodel.published.rows import Point
from mxscale.perfmodel.step_time import Job, Link

UNKNOWN = hardware.network("resnet-50")  # most published rows are of it or of its size
BATCH = {4: 64, 2: 128}  # by bytes of a number, where the row says none
BUCKETS, BUCKET_BYTES = 8, 32e6  # at most; Horovod's fusion is 64 MB, DistributedDataParallel's 25 MB

ADAPTER = 100e9 / 8  # bytes/s; faster networks are several adapters, or adapters on links as much faster

NAMES_SERVERS = re.compile(
    r"\bps\b|parameter[_ -]?server|dist[_ -](device|sync|async)|byteps|distributed_replicated"
    r"|^(?!.*(horovod|nccl|\bring|all-?reduce|ddp)).*server"  # "Horovod on 4 servers" are machines
)
BESIDE = re.compile(r"beside|co-?locat|on (each|every|all|the) (node|worker|machine)")
COUNT_OF_SERVERS = re.compile(
    r"\b(\d+|an?|one|two|four|eight|single) ?(dedicated )?(parameter[_ -]?servers?|servers?|ps)\b"
)
IN_WORDS = {"a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "four": 4, "eight": 8}
A_NODE = (  # servers for each node of workers
    re.compile(r"\b(?P<servers>\d+) ?: ?(?P<workers>\d+)\b"),
    re.compile(r"\b(?P<servers>\d+)x ?(parameter[_ -]?servers?|servers?|ps)\b"),
    re.compile(r"(servers?|ps),? ?\(?(?P<servers>\d+)x\b(?! ?\d)"),
    re.compile(r"\b(?P<servers>\d+) (servers?|ps) (per|for each|a) (node|worker|machine)"),
)
EACH_PUSHES = re.compile(r"parameter[_ -]server")  # TensorFlow's, by its name: each device is a worker of its own
UNSPLIT = re.compile(r"parameter[_ -]server|distributed_replicated")
KEPT = re.compile(r"kvstore|replicated|\bdevice\b|\blocal\b|mirrored|dataparallel")
# And no NCCL: they add, and their memory is copied to.  MPI by itself says neither: it starts Horovod's ranks where
# NCCL adds, is CUDA-aware (GPUDirect), or adds where the gradients are, on devices that are processors.
PROCESSORS = re.compile(r"(on|by|via|through) (the )?(cpu|host)|staged|gloo")
PERFECT = re.compile(r"wfbp|bytescheduler|byteps|overlap")  # they say that they schedule it
NEVER = re.compile(r"\bbsp\b|no[ -]overlap")
RDMA = re.compile(r"rdma|\bib\b|gbib|roce|infiniband|\b[fehn]dr\b|aries|omni-?path|verbs|\befa\b")
TCP = re.compile(r"tcp|gbe\b|ethernet|socket")
OF_PCIE_3 = ("pcie3", "nvlink1", "nvlink2")  # links of devices whose cards are PCIe 3
GBPS = re.compile(r"(?:\b(\d+) ?x ?)?(?<![\d.])(\d+(?:\.\d+)?) ?(?:Gb(?:it|ps|/s|E|IB)|GigE|G (?:RoCE|Ethernet|IB))")
RATED = re.compile(r"(?:\b(\d+) ?x ?)?\b([qfehn]dr)\b")
RATES = {"qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400}  # Gbit/s of an InfiniBand adapter
INSTANCE = re.compile(r"\b[a-z]\w+\.\d*x?large\b")
INFINIBAND_GBPS = (40, 54, 56, 100)  # and from 200 on; Ethernet's common rates are others


@dataclass(frozen=True)
class Described:
    """Jobs without their constants; every field is an array of one value a row."""

    gradients: np.ndarray
    bytes_each: np.ndarray
    tensors: np.ndarray
    early: np.ndarray
    nodes: np.ndarray
    per_node: np.ndarray
    batch: np.ndarray
    rate: np.ndarray  # images/s, published
    comm: np.ndarray
    nvlink: np.ndarray  # bytes/s of the wires of NVLink or its like; 0: PCIe
    pcie: np.ndarray  # generation, 3 being 1
    host: np.ndarray  # a kvstore's sums in the host's memory
    processors: np.ndarray  # a ring's sums by the host's processors
    wire: np.ndarray  # bytes/s of the node's network
    rdma: np.ndarray
    servers: np.ndarray  # Job.servers
    pushes: np.ndarray  # to the servers, a node
    largest: np.ndarray  # Job.largest
    layerwise: np.ndarray  # a message for each layer
    perfect: np.ndarray
    never: np.ndarray
    double: np.ndarray
    parts: Sequence[Tuple[np.ndarray, np.ndarray]] = ()  # Job.parts

    @property
    def devices(self) -> np.ndarray:
        return self.nodes * self.per_node

    @property
    def step_s(self) -> np.ndarray:
        return self.batch * self.devices / self.rate


def describe(points: Sequence[Point]) -> Described:
    """The rows' arrays."""
    rows = [_row(point) for point in points]
    found = Described(**{key: np.array([row[key] for row in rows]) for key in rows[0]})
    return dataclasses.replace(found, parts=parts(found))


def _row(point: Point) -> Dict:
    comm, words = point.comm.lower(), f"{point.comm} {point.note}".lower()
    network = hardware.network(point.model) or UNKNOWN
    served, kept, each = bool(NAMES_SERVERS.search(comm)), _kept(comm), _bytes_each(point)
    nvlink, pcie = _intra(point, words)
    # MXNet and BytePS split large tensors, TensorFlow puts a variable on one server.
    whole = "mxnet" not in point.framework.lower()
    gbps = point.network_gbps or _said_gbps(point) or hardware.usual_gbps(point.gpu)
    return {
        "gradients": network.parameters,
        "bytes_each": each,
        "tensors": network.tensors,
        "early": network.early,
        "nodes": float(point.nodes),
        "per_node": point.per_node,
        "batch": float(point.batch or BATCH[each]),
        "rate": point.rate,
        "comm": SERVERS if served else ALL_TO_ALL if kept else RING,
        "nvlink": nvlink,
        "pcie": pcie,
        "processors": bool(PROCESSORS.search(comm)) and not (served or kept or "nccl" in comm),
        "host": bool(re.search(r"\bcpu\b", comm)),
        "wire": gbps * 1e9 / 8,
        "rdma": _rdma(words, gbps),
        "servers": _servers(comm, point.nodes) if served else 0.0,
        "pushes": point.per_node if whole and EACH_PUSHES.search(comm) else 1.0,
        "largest": network.largest if whole and UNSPLIT.search(comm) else 0.0,
        "layerwise": bool(re.search(r"(?<!mg-)wfbp", comm)) and not served,
        "perfect": bool(PERFECT.search(comm)),
        "never": bool(NEVER.search(comm)),
        "double": "double buffering" in comm,
    }


def _bytes_each(point: Point) -> int:
    """fp16 weights have fp16 gradients, and so has MXNet's mixed precision; elsewhere mixed ones stay fp32."""
    precision = point.precision.lower()
    if re.search(r"fp16 (comm|all-?reduce)", precision):
        return 2
    if "amp" in precision or "mixed" in precision:
        return 2 if "mxnet" in point.framework.lower() else 4
    return 2 if "16" in precision else 4


def _kept(comm: str) -> bool:
    return bool(KEPT.search(comm)) and "nccl" not in comm.replace("without nccl", "")


def _servers(comm: str, nodes: int) -> float:
    """How many machines are servers alone; 0: beside the workers, or on the only node, which asks no network."""
    if nodes == 1 or BESIDE.search(comm):
        return 0.0
    for each in A_NODE:
        if found := each.search(comm):
            count = nodes * int(found["servers"]) / max(int(found.groupdict().get("workers") or 1), 1)
            return float(max(round(count), 1)) if count else 0.0
    found = COUNT_OF_SERVERS.search(comm)
    return float(IN_WORDS.get(found[1]) or found[1]) if found else 0.0


def _intra(point: Point, words: str) -> Tuple[float, float]:
    """(bytes/s of the devices' own link or 0, PCIe's generation): the device's usual link where the row says none."""
    gpu = point.gpu.lower()
    link = hardware.usual_link(gpu)
    if "pcie" in gpu or "pcie" in words:
        link = "pcie3" if link in OF_PCIE_3 else "pcie4"
    elif link.startswith("pcie") and not hardware.device(gpu) and ("nvlink" in words or "sxm" in gpu):
        link = "nvlink2"
    if not link.startswith("pcie"):
        return hardware.link_bytes_per_s(link), 1.0
    return 0.0, 2.0 if link == "pcie4" else 1.0


def _said_gbps(point: Point) -> Optional[float]:
    """The node's network by its rate or InfiniBand's generation in `comm`, or by an instance that the row names.

    A note's rate may be of anything: "only 1GbE management NIC, fabric not stated".
    """
    if found := GBPS.search(point.comm):
        return int(found[1] or 1) * float(found[2]) or None
    if found := RATED.search(point.comm.lower()):
        return float(int(found[1] or 1) * RATES[found[2]]) or None
    named = INSTANCE.search(f"{point.gpu} {point.comm} {point.note}".lower())
    return hardware.instance_gbps(named[0]) if named else None


def _rdma(words: str, gbps: float) -> bool:
    if RDMA.search(words) or TCP.search(words):
        return bool(RDMA.search(words))
    return gbps in INFINIBAND_GBPS or gbps >= 200


# ---------------------------------------------------------------- with constants


def job(rows: Described, constants: Dict[str, float], compute_s) -> Job:
    """The rows' jobs; `constants` as in hardware.csv."""
    k = constants
    linked, most = rows.nvlink > 0, np.where(rows.processors, k["processors"], np.inf)
    nic = between_nodes(k, rows.wire, rows.rdma)
    nic = Link(nic.alpha_s, np.minimum(nic.bytes_per_s, most))
    shared = (rows.comm != RING) & (rows.host | ~linked)
    pcie = np.where(shared, np.where(rows.host, k["host"], k["bridge"]), k["ring_pcie"]) * rows.pcie
    each = np.minimum(np.where(shared | ~linked, pcie, k["nvlink_share"] * rows.nvlink), most)
    usual = np.where(rows.comm == RING, k["overlap"], k["overlap_served"])
    return Job(
        compute_s=compute_s,
        gradients=rows.gradients,
        bytes_each=rows.bytes_each,
        nodes=rows.nodes,
        gpus_per_node=rows.per_node,
        intra=Link(np.where(linked, k["alpha_nvlink"], k["alpha_pcie"]), each, shared),
        nic=nic,
        comm=rows.comm,
        parts=rows.parts,
        servers=rows.servers,
        pushes=rows.pushes,
        largest=rows.largest,
        messages=np.where(rows.layerwise, rows.tensors / BUCKETS, 1),
        overlap=np.where(rows.never, 0, np.where(rows.perfect, 1, usual)),
        double_buffering=rows.double,
        spread=k["spread"],
        jitter_s=k["jitter"],
        overhead=k["overhead"],
    )


def between_nodes(constants: Dict[str, float], wire, rdma) -> Link:
    """What an exchange achieves on a node's network of `wire` bytes/s, by RDMA or by TCP."""
    k, adapters = constants, np.maximum(np.asarray(wire) / ADAPTER, 1)
    by_rdma = np.minimum(k["rdma_share"] * wire, k["rdma_most"] * adapters)
    by_tcp = np.minimum(k["tcp_share"] * wire, k["tcp_most"])
    return Link(np.where(rdma, k["alpha_rdma"], k["alpha_tcp"]), np.where(rdma, by_rdma, by_tcp))


def parts(rows: Described) -> List[Tuple[np.ndarray, np.ndarray]]:
    """Equal buckets; gradients are ready in two even stretches, `early` of them in backward's first quarter."""
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
