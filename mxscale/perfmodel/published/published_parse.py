"""Jobs of published rows, parsed from their text into arrays for the model.

Each feature is a pattern, because the text is that of the sources. Unstated features have defaults, which
docs/scaling-model.md lists. No row, source or framework has its own constants.
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

UNKNOWN = hardware.network("resnet-50")  # for unknown networks: most published rows are of this size
BATCH = {4: 64, 2: 128}  # default, by bytes of a number
BUCKETS, BUCKET_BYTES = 8, 32e6  # at most; Horovod's fusion buffer is 64 MB, a DistributedDataParallel bucket 25 MB

ADAPTER = 100e9 / 8  # bytes/s; faster networks count as several adapters

NAMES_SERVERS = re.compile(
    r"\bps\b|parameter[_ -]?server|dist[_ -](device|sync|async)|byteps|distributed_replicated"
    r"|^(?!.*(horovod|nccl|\bring|all-?reduce|ddp)).*server"  # "Horovod on 4 servers" means machines
)
BESIDE = re.compile(r"beside|co-?locat|on (each|every|all|the) (node|worker|machine)")
COUNT_OF_SERVERS = re.compile(
    r"\b(\d+|an?|one|two|four|eight|single) ?(dedicated )?(parameter[_ -]?servers?|servers?|ps)\b"
)
NUMERALS = {"a": 1, "an": 1, "one": 1, "single": 1, "two": 2, "four": 4, "eight": 8}
PER_WORKER_NODE = (  # servers per worker node
    re.compile(r"\b(?P<servers>\d+) ?: ?(?P<workers>\d+)\b"),
    re.compile(r"\b(?P<servers>\d+)x ?(parameter[_ -]?servers?|servers?|ps)\b"),
    re.compile(r"(servers?|ps),? ?\(?(?P<servers>\d+)x\b(?! ?\d)"),
    re.compile(r"\b(?P<servers>\d+) (servers?|ps) (per|for each|a) (node|worker|machine)"),
)
EACH_PUSHES = re.compile(r"parameter[_ -]server")  # TensorFlow's name: each device is a worker
UNSPLIT = re.compile(r"parameter[_ -]server|distributed_replicated")
KVSTORE = re.compile(r"kvstore|replicated|\bdevice\b|\blocal\b|mirrored|dataparallel")
# CPUs sum the gradients if NCCL is not named. MPI alone is ambiguous: it starts Horovod's ranks where NCCL sums, is
# CUDA-aware (GPUDirect), or sums where the gradients are.
ON_CPU = re.compile(r"(on|by|via|through) (the )?(cpu|host)|staged|gloo")
PERFECT = re.compile(r"wfbp|bytescheduler|byteps|overlap")  # a scheduled overlap
NEVER = re.compile(r"\bbsp\b|no[ -]overlap")
RDMA = re.compile(r"rdma|\bib\b|gbib|roce|infiniband|\b[fehn]dr\b|aries|omni-?path|verbs|\befa\b")
TCP = re.compile(r"tcp|gbe\b|ethernet|socket")
OF_PCIE_3 = ("pcie3", "nvlink1", "nvlink2")  # links of devices whose PCIe variants are PCIe 3
GBPS = re.compile(r"(?:\b(\d+) ?x ?)?(?<![\d.])(\d+(?:\.\d+)?) ?(?:Gb(?:it|ps|/s|E|IB)|GigE|G (?:RoCE|Ethernet|IB))")
RATED = re.compile(r"(?:\b(\d+) ?x ?)?\b([qfehn]dr)\b")
RATES = {"qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400}  # Gbit/s of an InfiniBand adapter
INSTANCE = re.compile(r"\b[a-z]\w+\.\d*x?large\b")
INFINIBAND_GBPS = (40, 54, 56, 100)  # and from 200 up; the common rates of Ethernet differ


@dataclass(frozen=True)
class Jobs:
    """Jobs without the model's constants; every field is an array with one value per row."""

    gradients: np.ndarray
    bytes_each: np.ndarray
    tensors: np.ndarray
    early: np.ndarray
    nodes: np.ndarray
    per_node: np.ndarray
    batch: np.ndarray
    rate: np.ndarray  # images/s, published
    comm: np.ndarray
    nvlink: np.ndarray  # nominal bytes/s of NVLink or a similar link; 0: PCIe
    pcie: np.ndarray  # rate of the generation, that of PCIe 3 being 1
    host: np.ndarray  # a kvstore sums in the host's memory
    on_cpu: np.ndarray  # CPUs sum in a ring
    wire: np.ndarray  # nominal bytes/s of the node's network
    rdma: np.ndarray
    servers: np.ndarray  # Job.servers
    pushes: np.ndarray  # of a node to the servers
    largest: np.ndarray  # Job.largest
    layerwise: np.ndarray  # one message per layer
    perfect: np.ndarray  # overlap is scheduled
    never: np.ndarray  # no overlap
    double: np.ndarray  # double buffering
    buckets: Sequence[Tuple[np.ndarray, np.ndarray]] = ()  # Job.buckets

    @property
    def devices(self) -> np.ndarray:
        return self.nodes * self.per_node

    @property
    def step_s(self) -> np.ndarray:
        return self.batch * self.devices / self.rate


def parse(points: Sequence[Point]) -> Jobs:
    """Return the jobs of published rows."""
    rows = [_row(point) for point in points]
    jobs = Jobs(**{key: np.array([row[key] for row in rows]) for key in rows[0]})
    return dataclasses.replace(jobs, buckets=_buckets(jobs))


def _row(point: Point) -> Dict:
    comm, text = point.comm.lower(), f"{point.comm} {point.note}".lower()
    network = hardware.network(point.model) or UNKNOWN
    served, kvstore, each = bool(NAMES_SERVERS.search(comm)), _is_kvstore(comm), _bytes_each(point)
    nvlink, pcie = _intra(point, text)
    unsplit = "mxnet" not in point.framework.lower()  # MXNet and BytePS split large tensors, TensorFlow does not
    gbps = point.network_gbps or _stated_gbps(point) or hardware.usual_gbps(point.gpu)
    return {
        "gradients": network.parameters,
        "bytes_each": each,
        "tensors": network.tensors,
        "early": network.early,
        "nodes": float(point.nodes),
        "per_node": point.per_node,
        "batch": float(point.batch or BATCH[each]),
        "rate": point.rate,
        "comm": SERVERS if served else ALL_TO_ALL if kvstore else RING,
        "nvlink": nvlink,
        "pcie": pcie,
        "on_cpu": bool(ON_CPU.search(comm)) and not (served or kvstore or "nccl" in comm),
        "host": bool(re.search(r"\bcpu\b", comm)),
        "wire": gbps * 1e9 / 8,
        "rdma": _rdma(text, gbps),
        "servers": _servers(comm, point.nodes) if served else 0.0,
        "pushes": point.per_node if unsplit and EACH_PUSHES.search(comm) else 1.0,
        "largest": network.largest if unsplit and UNSPLIT.search(comm) else 0.0,
        "layerwise": bool(re.search(r"(?<!mg-)wfbp", comm)) and not served,
        "perfect": bool(PERFECT.search(comm)),
        "never": bool(NEVER.search(comm)),
        "double": "double buffering" in comm,
    }


def _bytes_each(point: Point) -> int:
    """Return the bytes of a gradient: 2 for fp16 weights and MXNet's mixed precision; other mixed precision has 4."""
    precision = point.precision.lower()
    if re.search(r"fp16 (comm|all-?reduce)", precision):
        return 2
    if "amp" in precision or "mixed" in precision:
        return 2 if "mxnet" in point.framework.lower() else 4
    return 2 if "16" in precision else 4


def _is_kvstore(comm: str) -> bool:
    return bool(KVSTORE.search(comm)) and "nccl" not in comm.replace("without nccl", "")


def _servers(comm: str, nodes: int) -> float:
    """Return the number of dedicated server machines; 0: on the worker nodes, or on the only node."""
    if nodes == 1 or BESIDE.search(comm):
        return 0.0
    for each in PER_WORKER_NODE:
        if found := each.search(comm):
            count = nodes * int(found["servers"]) / max(int(found.groupdict().get("workers") or 1), 1)
            return float(max(round(count), 1)) if count else 0.0
    found = COUNT_OF_SERVERS.search(comm)
    return float(NUMERALS.get(found[1]) or found[1]) if found else 0.0


def _intra(point: Point, text: str) -> Tuple[float, float]:
    """Return (bytes/s of NVLink or 0, rate of the PCIe generation); the default is the device's usual link."""
    gpu = point.gpu.lower()
    link = hardware.usual_link(gpu)
    if "pcie" in gpu or "pcie" in text:
        link = "pcie3" if link in OF_PCIE_3 else "pcie4"
    elif link.startswith("pcie") and not hardware.device(gpu) and ("nvlink" in text or "sxm" in gpu):
        link = "nvlink2"
    if not link.startswith("pcie"):
        return hardware.link_bytes_per_s(link), 1.0
    return 0.0, 2.0 if link == "pcie4" else 1.0


def _stated_gbps(point: Point) -> Optional[float]:
    """Return the Gbit/s of the node's network, by a rate or InfiniBand generation in `comm`, or by a named instance.

    A rate in the note can mean anything: "only 1GbE management NIC, fabric not stated".
    """
    if found := GBPS.search(point.comm):
        return int(found[1] or 1) * float(found[2]) or None
    if found := RATED.search(point.comm.lower()):
        return float(int(found[1] or 1) * RATES[found[2]]) or None
    named = INSTANCE.search(f"{point.gpu} {point.comm} {point.note}".lower())
    return hardware.instance_gbps(named[0]) if named else None


def _rdma(text: str, gbps: float) -> bool:
    if RDMA.search(text) or TCP.search(text):
        return bool(RDMA.search(text))
    return gbps in INFINIBAND_GBPS or gbps >= 200


def job(rows: Jobs, constants: Dict[str, float], compute_s) -> Job:
    """Return the rows as one Job of arrays; constants: as in hardware.csv."""
    k = constants
    linked, most = rows.nvlink > 0, np.where(rows.on_cpu, k["processors"], np.inf)
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
        buckets=rows.buckets,
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
    """Return the link that an exchange achieves on a network of `wire` bytes/s, by RDMA or by TCP."""
    k, adapters = constants, np.maximum(np.asarray(wire) / ADAPTER, 1)
    by_rdma = np.minimum(k["rdma_share"] * wire, k["rdma_most"] * adapters)
    by_tcp = np.minimum(k["tcp_share"] * wire, k["tcp_most"])
    return Link(np.where(rdma, k["alpha_rdma"], k["alpha_tcp"]), np.where(rdma, by_rdma, by_tcp))


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
