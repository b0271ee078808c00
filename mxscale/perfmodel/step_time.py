"""How long a training step takes on p devices: compute, exchange of gradients, stragglers, input.  Pure: numpy.

Every number of a `Job` may be a scalar or an array; all of them broadcast, so that a hundred thousand
plans are one call.  Times in seconds, sizes in bytes, rates in bytes per second and direction.

    step = max(input, compute + stragglers + the exchange that backward does not hide)

Sources: ring, arXiv:1802.05799 sec. 3; overlap by bucket, arXiv:1811.11141; sums inside nodes first,
arXiv:1807.11205; parameter servers, arXiv:1512.01274.
"""

import functools
import statistics
from dataclasses import dataclass
from typing import List, Sequence, Tuple, Union

import numpy as np

from mxscale.config.backends import ALL_TO_ALL, RING

Numbers = Union[float, np.ndarray]

# Backward computes the gradients of weights and of inputs, forward the outputs alone: two of three equal parts.
BACKWARD = 2 / 3

# Share of the bytes in a bucket, share of backward after which it is ready.  The network's last layers come first.
ONE_BUCKET = ((1.0, 1.0),)


@dataclass(frozen=True)
class Link:
    """What a message and a byte cost on a link, in one direction, as achieved by the exchange."""

    alpha_s: Numbers  # per message, whatever its size
    bytes_per_s: Numbers
    shared: Union[bool, np.ndarray] = False  # by the devices of a node, as a host's PCIe bridge is


@dataclass(frozen=True)
class Job:
    """One step of synchronous training.  All fields but `parts` are scalars or arrays that broadcast."""

    compute_s: Numbers  # forward, backward and update of one device's batches
    gradients: Numbers  # how many numbers travel
    turns: Numbers = 1  # batches of a device in a step, one after the other: gradients are whole in the last one
    nodes: Numbers = 1
    gpus_per_node: Numbers = 1
    intra: Link = Link(0.0, np.inf)  # between the devices of a node
    nic: Link = Link(0.0, np.inf)  # between nodes; the node's, which its devices share
    comm: Union[str, np.ndarray] = RING  # RING | ALL_TO_ALL | SERVERS of config/backends.py
    bytes_each: Numbers = 4  # of a gradient on the wire: 2 with fp16
    hierarchical: Union[bool, np.ndarray] = False  # horovod: sum inside the nodes first
    servers: Numbers = 0  # nodes that are servers alone; 0: each node has one beside its workers
    pushes: Numbers = 1  # that a node makes to the servers: 1 of its sum, or one of each device
    largest: Numbers = 0.0  # share of the gradients on one server, where a large tensor is not split; 0: even shares
    parts: Sequence[Tuple[Numbers, Numbers]] = ONE_BUCKET
    messages: Numbers = 1  # that a bucket goes in: its layers where each is sent alone
    overlap: Numbers = True  # share of what a perfect overlap would hide: False none of it, True all
    double_buffering: Union[bool, np.ndarray] = False  # applied one step late, so that all of compute hides it
    spread: Numbers = 0.0  # standard deviation of a device's step, as a share of compute_s
    jitter_s: Numbers = 0.0  # and what does not grow with compute: the host's, the input's
    overhead: Numbers = 0.0  # of packing, copying and the sum's own kernels, as a share of compute_s
    input_s: Numbers = 0.0  # that a node's input needs for the step's images of its devices

    @property
    def devices(self) -> Numbers:
        return np.multiply(self.nodes, self.gpus_per_node)


@dataclass(frozen=True)
class Step:
    """Seconds of a step and of its parts; `bound` is what of compute, input and exchange is busy for longest."""

    seconds: np.ndarray
    compute_s: np.ndarray
    exchange_s: np.ndarray  # all of it, hidden or not
    exposed_s: np.ndarray  # what backward does not hide
    stragglers_s: np.ndarray  # and overhead: what several devices cost beside the exchange
    input_s: np.ndarray
    bound: np.ndarray


def predict(job: Job) -> Step:
    """The step that a job has."""
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
    """Seconds of each bucket's exchange: a straight line in its size, nothing for an empty one."""
    nothing, all_of_it = exchange(job, 0.0), exchange(job, np.multiply(job.gradients, job.bytes_each))
    shares = [share for share, _ in job.parts]
    return [np.where(np.greater(share, 0), nothing + share * (all_of_it - nothing), 0.0) for share in shares]


def overlapped(job: Job, sent: Sequence[Numbers]) -> Numbers:
    """Seconds of the exchange that compute does not hide; sent: of `transfers`.

    A bucket's exchange begins when it is ready and the one before is done: begin = max(ready, end before).
    Of accumulated batches the last one's backward alone hides it.
    With double buffering the exchange of the step before runs beside all of compute.
    """
    backward = BACKWARD * np.divide(job.compute_s, job.turns)
    total, end = sum(sent), 0.0
    for seconds, (_, ready) in zip(sent, job.parts, strict=True):
        end = np.maximum(end, ready * backward) + seconds
    hidden = np.multiply(job.overlap, total - np.maximum(end - backward, 0))
    return np.where(job.double_buffering, np.maximum(total - job.compute_s, 0), total - hidden)


# ---------------------------------------------------------------- what a message costs


def exchange(job: Job, size: Numbers) -> Numbers:
    """Seconds until all devices have the sum of a bucket of `size` bytes.

    Hierarchical: reduce-scatter in the node, a ring over nodes (each device its share, together the NIC's), all-gather.
    """
    across = np.greater(job.nodes, 1)
    intra, nic = slowed(job.intra, job.messages), slowed(job.nic, job.messages)
    inside = ring(job.gpus_per_node, size, intra)
    tiered = inside + ring(job.nodes, size, nic)
    flat = np.where(across, ring(job.devices, size, chained(job, intra, nic)), inside)
    summed = np.where(job.hierarchical, tiered, flat)
    kept = all_to_all(job.gpus_per_node, size, intra)
    served = kept + np.where(across | np.greater(job.servers, 0), parameter_servers(job, size, nic), 0)
    comm = np.asarray(job.comm)
    return np.where(comm == RING, summed, np.where(comm == ALL_TO_ALL, kept, served))


def slowed(link: Link, messages: Numbers) -> Link:
    """The link as it is for a bucket that goes in so many messages."""
    return Link(np.multiply(messages, link.alpha_s), link.bytes_per_s, link.shared)


def ring(ranks: Numbers, size: Numbers, link: Link) -> Numbers:
    """2(p-1)/p M/B + 2(p-1) alpha: each rank sends and receives every byte but its own share, twice."""
    return 2 * (np.asarray(ranks) - 1) * (size / np.multiply(ranks, link.bytes_per_s) + link.alpha_s)


def chained(job: Job, intra: Link, nic: Link) -> Link:
    """The mean hop of a ring over nodes: its bytes move at the slowest hop's rate, a message pays each hop once.

    One hop in `gpus_per_node` leaves the node.
    """
    inside = 1 - 1 / np.asarray(job.gpus_per_node, float)
    alpha = np.multiply(inside, intra.alpha_s) + np.multiply(1 - inside, nic.alpha_s)
    alone = np.equal(job.gpus_per_node, 1)  # then no hop is inside
    return Link(alpha, np.where(alone, nic.bytes_per_s, np.minimum(intra.bytes_per_s, nic.bytes_per_s)))


def all_to_all(gpus: Numbers, size: Numbers, link: Link) -> Numbers:
    """A kvstore's sum in one process: each device adds its share of the keys and hands the sums out.

    The bytes are the ring's, in two messages; where the link is shared, all devices' bytes pass it.
    """
    others = np.asarray(gpus) - 1
    each = np.where(link.shared, others, others / gpus)
    return 2 * each * size / link.bytes_per_s + 2 * np.sign(others) * link.alpha_s


def parameter_servers(job: Job, size: Numbers, nic: Link) -> Numbers:
    """A node's sum to the servers and back; the server with most of the keys is the one that is waited for.

    Servers on s nodes of their own, w nodes of workers: a worker's NIC carries M each way, a server's w/s M.
    A server on each of n nodes: a NIC carries (n-1)/n M for its workers and as much for its server.
    """
    servers, nodes = np.asarray(job.servers), np.asarray(job.nodes)
    most = np.maximum(1 / np.where(servers > 0, servers, nodes), job.largest)
    apart = 2 * np.maximum(1.0, nodes * most)  # push, then pull
    beside = (nodes - 1) * most + 1 - most
    carried = job.pushes * np.where(servers > 0, apart, beside)
    return carried * size / nic.bytes_per_s + 2 * nic.alpha_s


# ---------------------------------------------------------------- waiting for the slowest


def stragglers(job: Job) -> Numbers:
    """How much longer than the mean the slowest of p devices takes, their steps being spread as a normal; overhead."""
    waited = slowest(job.devices) * (np.multiply(job.spread, job.compute_s) + job.jitter_s)
    return waited + np.where(np.greater(job.devices, 1), np.multiply(job.overhead, job.compute_s), 0)


def slowest(count: Numbers) -> Numbers:
    """The expected largest of `count` standard normal numbers (Blom 1958: the quantile of (n - 3/8) / (n + 1/4))."""
    different, where = np.unique(np.asarray(count, float), return_inverse=True)
    return np.array([_slowest(n) for n in different])[where].reshape(np.shape(count))


@functools.lru_cache(maxsize=4096)
def _slowest(count: float) -> float:
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


# ---------------------------------------------------------------- another batch


def at_batch(step_s: Numbers, batch: Numbers, of: Numbers, launches_s: Numbers, work: Numbers = 1.0) -> Numbers:
    """Seconds of a step of `batch` images, given those of one of `of`; work: FLOPs of an image over those of one there.

    What a step does for its images scales, starting the kernels of every layer (launches_s, but no more than half of
    the step) does not.
    """
    fixed = np.minimum(launches_s, 0.5 * step_s)
    return fixed + (step_s - fixed) * work * batch / of


# ---------------------------------------------------------------- fitting a link to measurements


def calibrate(points: Sequence[Tuple[float, float]], ranks: int) -> Link:
    """The link of (bytes, seconds) of all-reduces over `ranks`, by least squares of the relative errors.

    seconds = 2(p-1) alpha + 2(p-1)/p bytes / bytes_per_s.  Raises ValueError where the points don't say:
    one rank, fewer than two sizes, a bandwidth that comes out negative.  A negative alpha is noise: 0.
    """
    sizes, seconds = np.array(points, float).reshape(-1, 2).T
    if ranks < 2 or len(set(sizes)) < 2 or not (np.isfinite(seconds) & (seconds > 0)).all():
        raise ValueError("a link is fitted to two sizes or more, each with its seconds, of two ranks or more")
    rounds = 2 * (ranks - 1)
    per_message, per_byte = rounds / seconds, rounds / ranks * sizes / seconds
    alpha, slope = np.linalg.lstsq(np.stack([per_message, per_byte], axis=1), np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha, slope = 0.0, per_byte.sum() / (per_byte**2).sum()
    if slope <= 0:
        raise ValueError("the seconds do not grow with the bytes: no bandwidth fits them")
    return Link(float(alpha), float(1 / slope))


def buckets(layers: Sequence[Tuple[float, float]], gradients_per_bucket: float) -> Tuple[Tuple[float, float], ...]:
    """`Job.parts` of a network: (gradients, share of the computing) of each layer, first layer first.

    Backward goes from the last layer to the first; a bucket is closed when the next layer would not fit.
    """
    total, work = sum(n for n, _ in layers), sum(c for _, c in layers)
    parts, held, done = [], 0.0, 0.0
    for count, cost in reversed(layers):
        if held and held + count > gradients_per_bucket:
            parts.append((held / total, done / work))
            held = 0.0
        held, done = held + count, done + cost
    return (*parts, (held / total, 1.0))
