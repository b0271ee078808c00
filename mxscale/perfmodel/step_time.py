"""Time of a training step on p devices: compute, gradient exchange, stragglers, input.

The fields of a `Job` are scalars or arrays that broadcast, so that 100,000 plans are one call. Times are in seconds,
sizes in bytes, rates in bytes per second and direction.

    step = max(input, compute + stragglers + exchange that backward does not hide)

Sources: ring, arXiv:1802.05799 sec. 3; overlap by bucket, arXiv:1811.11141;
parameter servers, arXiv:1512.01274.
"""

import statistics
from dataclasses import dataclass
from typing import List, Mapping, NamedTuple, Sequence, Tuple, Union

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING
from mxscale.perfmodel.layers import Layer

Numbers = Union[float, np.ndarray]

# Share of compute: backward computes the gradients of weights and inputs, forward only the outputs.
BACKWARD = 2 / 3

# (share of the bytes, share of backward after which the bucket is ready); the last layers come first.
ONE_BUCKET = ((1.0, 1.0),)


class Link(NamedTuple):
    """Latency and bandwidth of a link in one direction, as achieved by the exchange."""

    alpha_s: Numbers  # seconds per message
    bytes_per_s: Numbers
    shared: Union[bool, np.ndarray] = False  # by the devices of a node, such as a PCIe host bridge


FREE = Link(0.0, np.inf)


@dataclass(frozen=True)
class Job:
    """One step of synchronous training. All fields except `buckets` are scalars or arrays that broadcast."""

    compute_s: Numbers  # forward, backward and update of one device's batches
    gradients: Numbers  # number of values exchanged
    accumulation: Numbers = 1  # batches of a device per step; gradients are complete in the last one
    nodes: Numbers = 1
    gpus_per_node: Numbers = 1
    intra: Link = FREE  # between the devices of a node
    nic: Link = FREE  # between nodes; shared by the devices of a node
    comm: Union[str, np.ndarray] = RING  # RING | ALL_TO_ALL | SERVERS of config/backends.py
    bytes_each: Numbers = 4  # bytes of a gradient on the wire: 2 with fp16
    servers: Numbers = 0  # dedicated server nodes; 0: each node runs a server beside its workers
    pushes: Numbers = 1  # of a node to the servers: 1 for its sum, or one per device
    largest: Numbers = 0.0  # share of the gradients on one server if large tensors are not split; 0: even shares
    buckets: Sequence[Tuple[Numbers, Numbers]] = ONE_BUCKET
    messages: Numbers = 1  # per bucket: its number of layers if each is sent alone
    overlap: Numbers = True  # share of a perfect overlap: False none, True all
    double_buffering: Union[bool, np.ndarray] = False  # applied one step late, so that all of compute hides it
    spread: Numbers = 0.0  # standard deviation of a device's step, as a share of compute_s
    jitter_s: Numbers = 0.0  # standard deviation that does not grow with compute: of the host, of the input
    overhead: Numbers = 0.0  # of packing, copying and summing, as a share of compute_s
    input_s: Numbers = 0.0  # time of a node's input for its devices' images of a step

    @property
    def devices(self) -> Numbers:
        return np.multiply(self.nodes, self.gpus_per_node)


@dataclass(frozen=True)
class Step:
    """Seconds of a step and of its parts; `bound` is the longest of compute, input and exchange."""

    step_s: np.ndarray
    compute_s: np.ndarray
    exchange_s: np.ndarray  # hidden or not
    exposed_s: np.ndarray  # not hidden by backward
    stragglers_s: np.ndarray  # and overhead
    input_s: np.ndarray
    bound: np.ndarray


def predict(job: Job) -> Step:
    """Return the predicted step of a job."""
    sent = transfers(job)
    exchange, exposed = sum(sent), overlapped(job, sent)
    waited = stragglers(job)
    compute, exchange, exposed, waited, fed = np.broadcast_arrays(
        job.compute_s, exchange, exposed, waited, job.input_s, subok=False
    )
    seconds = np.maximum(compute + exposed + waited, fed)
    busiest = np.argmax([compute, fed, exchange], axis=0)  # the first of equals: compute
    bound = np.array(["compute", "input", "exchange"])[busiest]
    return Step(seconds, compute, exchange, exposed, waited, fed, bound)


def transfers(job: Job) -> List[Numbers]:
    """Return the seconds of each bucket's exchange: linear in its size, 0 for an empty bucket."""
    latency, total = exchange(job, 0.0), exchange(job, np.multiply(job.gradients, job.bytes_each))
    shares = [share for share, _ in job.buckets]
    return [np.where(np.greater(share, 0), latency + share * (total - latency), 0.0) for share in shares]


def overlapped(job: Job, sent: Sequence[Numbers]) -> Numbers:
    """Return the seconds of the exchange that compute does not hide; sent: those of each bucket, from `transfers`.

    A bucket's exchange begins when the bucket is ready and the previous exchange is done. With accumulated batches,
    only the backward of the last one hides it. With double buffering, all of the next step's compute hides it.
    """
    backward = BACKWARD * np.divide(job.compute_s, job.accumulation)
    total, end = sum(sent), 0.0
    for seconds, (_, ready) in zip(sent, job.buckets, strict=True):
        end = np.maximum(end, ready * backward) + seconds
    hidden = np.multiply(job.overlap, total - np.maximum(end - backward, 0))
    return np.where(job.double_buffering, np.maximum(total - job.compute_s, 0), total - hidden)


def exchange(job: Job, size: Numbers) -> Numbers:
    """Return the seconds until all devices have the sum of a bucket of `size` bytes."""
    across = np.greater(job.nodes, 1)
    intra, nic = slowed(job.intra, job.messages), slowed(job.nic, job.messages)
    inside = ring(job.gpus_per_node, size, intra)
    summed = np.where(across, over_nodes(job, size, intra, nic), inside)
    kvstore = all_to_all(job.gpus_per_node, size, intra)
    served = kvstore + np.where(across | np.greater(job.servers, 0), parameter_servers(job, size, nic), 0)
    comm = np.asarray(job.comm)
    return np.where(comm == RING, summed, np.where(comm == ALL_TO_ALL, kvstore, served))


def slowed(link: Link, messages: Numbers) -> Link:
    """Return the link with the latency of a bucket that is sent in several messages."""
    return link._replace(alpha_s=np.multiply(messages, link.alpha_s))


def ring(ranks: Numbers, size: Numbers, link: Link) -> Numbers:
    """Return 2(p-1)/p M/B + 2(p-1) alpha: each rank sends and receives every byte except its own share, twice."""
    return 2 * (np.asarray(ranks) - 1) * (size / np.multiply(ranks, link.bytes_per_s) + link.alpha_s)


def over_nodes(job: Job, size: Numbers, intra: Link, nic: Link) -> Numbers:
    """Return the seconds of a sum over nodes: the bytes of a ring, and the latency of a ring or of a tree.

    NCCL 2.4 sends a message up and down a binary tree over the nodes, and along the devices of each node
    (developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4).
    """
    hop, depth = chained(job, intra, nic), np.ceil(np.log2(job.nodes))
    tree_s = 2 * (np.multiply(np.asarray(job.gpus_per_node) - 1, intra.alpha_s) + depth * nic.alpha_s)
    ring_s = 2 * (np.asarray(job.devices) - 1) * hop.alpha_s
    return ring(job.devices, size, hop._replace(alpha_s=0.0)) + np.minimum(ring_s, tree_s)


def chained(job: Job, intra: Link, nic: Link) -> Link:
    """Return the mean hop of a ring over nodes: the rate of the slowest hop, the mean latency.

    One hop in `gpus_per_node` leaves the node.
    """
    inside = 1 - 1 / np.asarray(job.gpus_per_node, float)
    alpha = np.multiply(inside, intra.alpha_s) + np.multiply(1 - inside, nic.alpha_s)
    alone = np.equal(job.gpus_per_node, 1)  # no hop is inside a node
    return Link(alpha, np.where(alone, nic.bytes_per_s, np.minimum(intra.bytes_per_s, nic.bytes_per_s)))


def all_to_all(gpus: Numbers, size: Numbers, link: Link) -> Numbers:
    """Return the seconds of a kvstore's sum in one process: each device sums and distributes its share of the keys.

    The bytes are those of a ring, in two messages. A shared link carries the bytes of all devices.
    """
    others = np.asarray(gpus) - 1
    carried = np.where(link.shared, others, others / gpus)
    return 2 * carried * size / link.bytes_per_s + 2 * np.sign(others) * link.alpha_s


def parameter_servers(job: Job, size: Numbers, nic: Link) -> Numbers:
    """Return the seconds of a node's push to the servers and its pull; the server with most of the keys is the slowest.

    s dedicated server nodes, w worker nodes: a worker's NIC carries M each way, a server's w/s M.
    A server on each of n nodes: a NIC carries (n-1)/n M for its workers and as much for its server.
    """
    servers, nodes = np.asarray(job.servers), np.asarray(job.nodes)
    most = np.maximum(1 / np.where(servers > 0, servers, nodes), job.largest)
    dedicated = 2 * np.maximum(1.0, nodes * most)  # push, then pull
    colocated = (nodes - 1) * most + 1 - most
    carried = job.pushes * np.where(servers > 0, dedicated, colocated)
    return carried * size / nic.bytes_per_s + 2 * nic.alpha_s


def stragglers(job: Job) -> Numbers:
    """Return the excess of the slowest of p devices over the mean, for normally distributed steps, plus overhead."""
    waited = slowest(job.devices) * (np.multiply(job.spread, job.compute_s) + job.jitter_s)
    return waited + np.where(np.greater(job.devices, 1), np.multiply(job.overhead, job.compute_s), 0)


def slowest(count: Numbers) -> Numbers:
    """Return the expected maximum of `count` standard normal values (Blom 1958: quantile of (n - 3/8) / (n + 1/4))."""
    different, where = np.unique(np.asarray(count, float), return_inverse=True)
    quantile = statistics.NormalDist().inv_cdf
    maxima = [quantile((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in different]
    return np.array(maxima)[where].reshape(np.shape(count))


def at_batch(step_s: Numbers, batch: Numbers, of: Numbers, launches_s: Numbers) -> Numbers:
    """Return the seconds of a step with another batch.

    The work for the images scales with the batch; kernel launches do not.

    Args:
        batch: Images of the wanted step.
        of: Images of the known step.
        launches_s: Seconds of the kernel launches of a step; at most half of the step counts.
    """
    fixed = np.minimum(launches_s, 0.5 * step_s)
    return fixed + (step_s - fixed) * batch / of


ADAPTER = 100e9 / 8  # bytes/s; faster networks count as several adapters


def between_nodes(
    constants: Mapping[str, float], wire: Numbers, rdma: Union[bool, np.ndarray], flows: Numbers = np.inf
) -> Link:
    """Return the link that an exchange achieves on a network of `wire` bytes/s.

    Args:
        constants: Those of hardware.csv.
        flows: TCP connections that carry a sum; clouds limit the rate of each.
    """
    k, adapters = constants, np.maximum(np.asarray(wire) / ADAPTER, 1)
    by_rdma = np.minimum(k["rdma_share"] * wire, k["rdma_most"] * adapters)
    by_tcp = np.minimum(np.minimum(k["tcp_share"] * wire, k["tcp_most"]), k["tcp_flow"] * flows)
    return Link(np.where(rdma, k["alpha_rdma"], k["alpha_tcp"]), np.where(rdma, by_rdma, by_tcp))


def inside_node(constants: Mapping[str, float], wire: Numbers, generation: Numbers, kvstore, host=False) -> Link:
    """Return the link that an exchange achieves between the devices of a node.

    Args:
        constants: Those of hardware.csv.
        wire: Nominal bytes/s of NVLink or a similar link; 0: PCIe.
        generation: Rate of the PCIe generation, that of PCIe 3 being 1.
        kvstore: A kvstore sums in one process, over a host bridge that the devices share; otherwise a ring.
        host: It sums in the host's memory.
    """
    k, linked = constants, np.greater(wire, 0)
    shared = np.logical_and(kvstore, host | ~linked)
    pcie = np.where(shared, np.where(host, k["host"], k["bridge"]), k["ring_pcie"]) * generation
    rate = np.where(shared | ~linked, pcie, np.multiply(k["nvlink_share"], wire))
    return Link(np.where(linked, k["alpha_nvlink"], k["alpha_pcie"]), rate, shared)


def calibrate(points: Sequence[Tuple[float, float]], ranks: int) -> Link:
    """Fit a link to (bytes, seconds) of all-reduces, by least squares of the relative errors.

    seconds = 2(p-1) alpha + 2(p-1)/p bytes / bytes_per_s. A negative alpha is noise and becomes 0. Raises ValueError
    if there is only one rank or one size, or if the fitted bandwidth is negative.
    """
    sizes, seconds = np.array(points, float).reshape(-1, 2).T
    if ranks < 2 or len(set(sizes)) < 2 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError("a fit needs two sizes or more, with their seconds, and two ranks or more")
    rounds = 2 * (ranks - 1)
    per_message, per_byte = rounds / seconds, rounds / ranks * sizes / seconds
    alpha, slope = np.linalg.lstsq(np.stack([per_message, per_byte], axis=1), np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha, slope = 0.0, per_byte.sum() / (per_byte**2).sum()
    if slope <= 0:
        raise ValueError("the seconds do not grow with the bytes: no bandwidth fits")
    return Link(float(alpha), float(1 / slope))


def buckets(layers: Sequence[Layer], gradients_per_bucket: float) -> Tuple[Tuple[float, float], ...]:
    """Return `Job.buckets` of a network.

    Backward runs from the last layer to the first. A bucket is closed when the next layer does not fit.

    Args:
        layers: In forward order.
        gradients_per_bucket: Capacity of a bucket.
    """
    total, work = sum(layer.gradients for layer in layers), sum(layer.flops for layer in layers)
    closed, size, done = [], 0.0, 0.0
    for layer in reversed(layers):
        if size and size + layer.gradients > gradients_per_bucket:
            closed.append((size / total, done / work))
            size = 0.0
        size, done = size + layer.gradients, done + layer.flops
    return (*closed, (size / total, 1.0))
