"""The gradient exchange: gradients in fixed buckets, summed over shards, devices and ranks.

Horovod's tensor fusion groups tensors by arrival. With three and more ranks the order of additions, and so the last
bit, then changes from run to run. Here a bucket holds the same gradients in the same order in every run, and the
launcher disables Horovod's fusion.

Backward writes gradients to views of their bucket and the optimizer reads the sums there, without a copy, like
gradient_as_bucket_view of PyTorch's DistributedDataParallel.

float16 ends at 65,504, below the sum of two large gradients. Gradients of a float16 network are therefore added in
float32 and returned as means over their addends; the exchange's `divisor` is the factor between mean and sum.
"""

import math
from pkgutil import resolve_name
from typing import Dict, List

from mxnet import nd

from mxscale.config.schema import Comm
from mxscale.config.sizes import bucket_bytes
from mxscale.distributed.communicators import flatten, views_of
from mxscale.distributed.compression import Wire, is_half

Replicas = List[List[nd.NDArray]]  # the gradients of each replica (a device of this rank), in the same order


def make_exchange(comm, like: Replicas, options: Comm, images: int = 1, passes: int = 1, ordered: bool = False):
    """Return the exchange that `options` describe. A call per step exchanges gradients and returns whether to update.

    Args:
        like: Arrays of the gradients' shapes, in the order of the forward pass. Gradients must be written to the
            exchange's `replicas`.
        images: That each replica computes of a step.
        passes, ordered: See Exchange.
    """
    addends = comm.size * len(like) * passes
    if addends == 1 and not options.double_buffering:
        return Exchange(comm, like, [])
    most, feedback = bucket_bytes(options, sum(map(nbytes, like[0]))), options.in_transit.error_feedback
    buckets = [Bucket(like, places, feedback) for places in fill(like[0], most)]
    replicas = [_in_order(buckets, replica) for replica in range(len(like))]
    # A power of two changes no bit but below 6e-5; the optimizer has one factor for float16 and float32 gradients
    divisor = 2 ** math.ceil(math.log2(addends)) if any(is_half(bucket.flats[0]) for bucket in buckets) else 1
    wire_class, copies = resolve_name(options.in_transit.implementation), options.double_buffering

    def exchange(name: str) -> Exchange:
        wires = [wire_class(bucket, f"{name}.{i}", images, divisor, copies) for i, bucket in enumerate(buckets)]
        return Exchange(comm, replicas, wires, passes, ordered, options.overlap)

    return Delayed(exchange("even"), exchange("odd")) if options.double_buffering else exchange("grads")


class Exchange:
    """Casts, sums over shards, devices and ranks, and casts back, bucket by bucket.

    The optimizer's update divides the sum once, by the global batch.

    Args:
        replicas: Arrays that hold the gradients before and the sums, divided by `divisor`, after a call.
        wires: One per bucket: what is sent.
        passes: Backward passes of each replica in a step; those whose gradients backward itself adds are one. With
            several, `pass_done` must be called after each one.
        ordered: Add in an order that depends on the shards alone, so that 1, 2, 4 ... ranks get the same bits if ranks
            divide shards and both are powers of two. A ring adds in the order of ranks; gathering and adding here
            sends ranks / 2 times as many bytes.
        overlap: MXNet's engine sends a bucket as soon as its gradients are computed, while backward continues with
            earlier layers. Otherwise the first bucket is sent after backward.
    """

    def __init__(self, comm, replicas: Replicas, wires: List[Wire], passes=1, ordered=False, overlap=True):
        self.comm, self.replicas, self.wires = comm, replicas, wires
        self.buckets = [wire.bucket for wire in wires]
        self.passes, self.overlap = passes, overlap
        self.divisor = wires[0].divisor if wires else 1
        self.gathers = ordered and comm.gathers and comm.size * len(replicas) > 2  # the order of two does not matter

    def pass_done(self, replica: int = 0, micro_batch: int = 0) -> None:
        """Save the gradients of one of this replica's passes, so that backward of the next can overwrite them.

        Args:
            micro_batch: 0 for the first pass of a shard; the gradients of its other ones are added.
        """
        if self.passes > 1:
            for bucket in self.buckets:
                bucket.save(replica, micro_batch)

    def __call__(self) -> bool:
        self.send()
        self.receive()
        return True

    def send(self) -> None:
        """Start sending the gradients."""
        if not self.overlap:
            for flat in (flat for bucket in self.buckets for flat in bucket.flats):
                flat.wait_to_read()
        for wire in self.wires:
            arrays = wire.pack()
            if self.gathers:
                total = pairwise(self.comm.all_gather(arrays, wire.name))
                for array in arrays:
                    total.copyto(array)
            else:
                self.comm.all_reduce(arrays, wire.name)

    def receive(self) -> None:
        """Write the sums to the replicas."""
        for wire in self.wires:
            wire.unpack()

    def state(self) -> Dict[str, nd.NDArray]:
        """Return the arrays that a checkpoint must contain; here nothing is under way between two steps."""
        return {}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        """Continue from `state()`."""

    def residuals(self) -> Dict[str, nd.NDArray]:
        """Return what error feedback has not sent yet: "replica.gradient" -> array, of all ranks. A collective.

        By gradient, not by bucket, so that other buckets can continue; {} without error feedback.
        """
        saved = {}
        for wire in self.wires:
            bucket = wire.bucket
            if bucket.residuals:
                for replica, flat in enumerate(self.comm.all_gather(bucket.residuals, f"residual.{wire.name}")):
                    views = views_of(flat.reshape((-1,)), bucket.views[0])
                    saved.update({f"{replica}.{place}": view for place, view in zip(bucket.places, views)})
        return saved

    def restore_residuals(self, saved: Dict[str, nd.NDArray]) -> None:
        """Continue from `residuals()`. Another number of replicas shares the sum, which keeps every gradient."""
        count = len({name.partition(".")[0] for name in saved})
        here = len(self.replicas)
        for bucket in self.buckets if saved else ():
            for replica, residual in enumerate(bucket.residuals):
                number = self.comm.rank * here + replica
                for place, view in zip(bucket.places, views_of(residual, bucket.views[0])):
                    rows = [saved[f"{row}.{place}"] for row in range(count)]
                    view[:] = rows[number] if count == self.comm.size * here else sum(rows) / (self.comm.size * here)


class Delayed(Exchange):
    """Double buffering: the sums of a step are applied one step later, while the next step's are under way.

    The first step only sends, and what the last step sends is never applied. Two exchanges over the same gradients
    alternate, each with its own copies. Source: ChainerMN's double_buffering_optimizer.
    """

    def __init__(self, now: Exchange, before: Exchange):
        super().__init__(now.comm, now.replicas, now.wires, now.passes)  # both have the same buckets
        self.now, self.before, self.pending = now, before, False

    def __call__(self) -> bool:
        ready, self.pending = self.pending, True
        self.now.send()
        if ready:
            self.before.receive()
        self.now, self.before = self.before, self.now
        return ready

    def state(self) -> Dict[str, nd.NDArray]:
        """Return the sums under way by gradient, not by bucket, so that other ranks and buckets can continue."""
        if not self.pending:
            return {}
        self.before.receive()
        return {str(i): grad.astype("float32") * self.divisor for i, grad in enumerate(self.replicas[0])}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        self.pending = bool(state)
        if not state:
            return
        for replica in self.replicas:
            for i, grad in enumerate(replica):
                mean = state[str(i)].astype("float32") / self.divisor
                mean.astype(grad.dtype).copyto(grad)
        for wire in self.before.wires:
            wire.restore()


def pairwise(arrays: List[nd.NDArray]) -> nd.NDArray:
    """Return the sum: add the first half to the second, item by item, until one array is left.

    If rank r of N holds items r, r + N, ..., adding within ranks first and over ranks afterwards is the same tree.
    """
    while len(arrays) > 1:
        half = (len(arrays) + 1) // 2
        arrays = [a + b for a, b in zip(arrays, arrays[half:])] + arrays[len(arrays) - half : half]
    return arrays[0]


def fill(grads, most: float) -> List[List[int]]:
    """Return the positions of each bucket's gradients: neighbours among those of one dtype, up to `most` bytes.

    A larger gradient has its own bucket. The buckets are in the order in which backward, from the last layer to the
    first, completes them.
    """
    groups, filling, sizes = [], {}, {}  # by type: the last group, and its bytes
    for place in reversed(range(len(grads))):
        dtype, size = grads[place].dtype, nbytes(grads[place])
        if dtype not in filling or sizes[dtype] + size > most:
            filling[dtype], sizes[dtype] = [], 0
            groups.append(filling[dtype])
        filling[dtype].insert(0, place)
        sizes[dtype] += size
    return sorted(groups, key=min, reverse=True)


def _in_order(buckets: List["Bucket"], replica: int) -> List[nd.NDArray]:
    """Return the gradients of a replica in the order of the forward pass, as views of the buckets."""
    views = {place: view for bucket in buckets for place, view in zip(bucket.places, bucket.views[replica])}
    return [views[place] for place in range(len(views))]


def nbytes(array: nd.NDArray) -> int:
    return array.size * array.dtype().itemsize


class Bucket:
    """Neighbouring gradients: one flat array for each replica, and views of it as gradients.

    Args:
        like: Arrays of all gradients' shapes, whose values initialise the views.
        places: The positions of the bucket's gradients among them.
        feedback: Keep what an exchange rounds off in `residuals`, float32, an array for each replica.
    """

    def __init__(self, like: Replicas, places: List[int], feedback: bool = False):
        self.places = places
        like = [[gradients[place] for place in places] for gradients in like]
        self.flats = [flatten(arrays) for arrays in like]
        self.views = [views_of(flat, arrays) for flat, arrays in zip(self.flats, like)]
        self.saved = [[] for _ in like]  # for each replica a flat array per finished shard, float32
        self.residuals = [nd.zeros(flat.shape, ctx=flat.context) for flat in self.flats] if feedback else []

    def save(self, replica: int, micro_batch: int) -> None:
        gradients = self.flats[replica].astype("float32")
        if micro_batch == 0:
            self.saved[replica].append(gradients)
        else:
            self.saved[replica][-1] += gradients

    def sums(self) -> List[nd.NDArray]:
        """Return for each replica the sum of the saved shards, or else its gradients, as float32."""
        sums = []
        for flat, saved in zip(self.flats, self.saved):
            sums.append(pairwise(saved) if saved else flat.astype("float32", copy=False))
            saved.clear()
        return sums
