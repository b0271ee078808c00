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
from dataclasses import dataclass
from typing import Dict, List, Optional

from mxnet import nd

from mxscale.config.schema import Comm
from mxscale.config.sizes import bucket_bytes
from mxscale.distributed.communicators import flatten, views_of

Lanes = List[List[nd.NDArray]]  # for each device of this rank (a lane) its gradients, in the same order


@dataclass(frozen=True)
class Share:
    """What one lane computes of each step, in `shards * turns` backward passes."""

    images: int = 1
    shards: int = 1
    turns: int = 1  # with accumulation; 1 if backward itself adds the gradients of a shard's passes

    @property
    def passes(self) -> int:
        return self.shards * self.turns


def make_exchange(comm, like: Lanes, options: Comm, share: Share, ordered: bool = False):
    """Return the exchange that `options` describe. A call per step exchanges gradients and returns whether to update.

    Args:
        like: Arrays of the gradients' shapes, in the order of the forward pass. Gradients must be written to the
            exchange's `lanes`.
        ordered: See Exchange.
    """
    addends = comm.size * len(like) * share.passes
    if addends == 1 and not options.double_buffering:
        return Exchange(comm, like, [])
    groups = fill(like[0], bucket_bytes(options, sum(map(nbytes, like[0]))))
    buckets = [Bucket([[lane[place] for place in group] for lane in like]) for group in groups]
    lanes = [_in_order(groups, [bucket.views[i] for bucket in buckets]) for i in range(len(like))]
    half = share.images if options.compression == "fp16" else None
    # A power of two changes no bit but below 6e-5; the optimizer has one factor for float16 and float32 gradients
    divisor = 2 ** math.ceil(math.log2(addends)) if any(is_half(bucket.flats[0]) for bucket in buckets) else 1

    def exchange(name: str) -> Exchange:
        copies = options.double_buffering  # backward must not overwrite what is under way
        wires = [Wire(bucket, f"{name}.{i}", copies, half, divisor) for i, bucket in enumerate(buckets)]
        return Exchange(comm, lanes, wires, share.passes, ordered, options.overlap)

    return Delayed(exchange("even"), exchange("odd")) if options.double_buffering else exchange("grads")


class Exchange:
    """Casts, sums over shards, devices and ranks, and casts back, bucket by bucket.

    The optimizer's update divides the sum once, by the global batch.

    Args:
        lanes: Arrays that hold the gradients before and the sums, divided by `divisor`, after a call.
        wires: One per bucket: what is sent.
        passes: Backward passes of each lane. With several, `pass_done` must be called after each one.
        ordered: Add in an order that depends on the shards alone, so that 1, 2, 4 ... ranks get the same bits if ranks
            divide shards and both are powers of two. A ring adds in the order of ranks; gathering and adding here
            sends ranks / 2 times as many bytes.
        overlap: MXNet's engine sends a bucket as soon as its gradients are computed, while backward continues with
            earlier layers. Otherwise the first bucket is sent after backward.
    """

    def __init__(self, comm, lanes: Lanes, wires: List["Wire"], passes=1, ordered=False, overlap=True):
        self.comm, self.lanes, self.wires = comm, lanes, wires
        self.buckets = [wire.bucket for wire in wires]
        self.passes, self.overlap = passes, overlap
        self.divisor = wires[0].divisor if wires else 1
        self.gathers = ordered and comm.gathers and comm.size * len(lanes) > 2  # the order of two does not matter

    def pass_done(self, lane: int = 0, turn: int = 0) -> None:
        """Save the gradients of one of this lane's passes, so that backward of the next can overwrite them.

        Args:
            turn: 0 for the first pass of a shard; the gradients of its other ones are added.
        """
        if self.passes > 1:
            for bucket in self.buckets:
                bucket.save(lane, turn)

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
        """Write the sums to the lanes."""
        for wire in self.wires:
            wire.unpack()

    def settle(self) -> None:
        """Make the weights equal on all ranks before they are read. Here they always are equal."""

    def state(self) -> Dict[str, nd.NDArray]:
        """Return the arrays that a checkpoint must contain; here nothing is under way between two steps."""
        return {}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        """Continue from `state()`."""


class Delayed:
    """Double buffering: the sums of a step are applied one step later, while the next step's are under way.

    The first step only sends, and what the last step sends is never applied. Two exchanges over the same gradients
    alternate, each with its own copies. Source: ChainerMN's double_buffering_optimizer.
    """

    def __init__(self, now: Exchange, before: Exchange):
        self.now, self.before, self.lanes, self.divisor = now, before, now.lanes, now.divisor
        self.pending = False

    def pass_done(self, lane: int = 0, turn: int = 0) -> None:
        self.now.pass_done(lane, turn)

    def __call__(self) -> bool:
        ready, self.pending = self.pending, True
        self.now.send()
        if ready:
            self.before.receive()
        self.now, self.before = self.before, self.now
        return ready

    def settle(self) -> None:
        """See Exchange."""

    def state(self) -> Dict[str, nd.NDArray]:
        """Return the sums under way by gradient, not by bucket, so that other ranks and buckets can continue."""
        if not self.pending:
            return {}
        self.before.receive()
        return {str(i): grad.astype("float32") * self.divisor for i, grad in enumerate(self.lanes[0])}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        self.pending = bool(state)
        if not state:
            return
        for lane in self.lanes:
            for i, grad in enumerate(lane):
                mean = state[str(i)].astype("float32") / self.divisor
                mean.astype(grad.dtype).copyto(grad)
        for wire in self.before.wires:
            wire.fill(wire.unscale)


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


def _in_order(groups: List[List[int]], views: List[list]) -> list:
    """Return the views of all buckets by the positions of their gradients."""
    found = {place: view for group, own in zip(groups, views) for place, view in zip(group, own)}
    return [found[place] for place in range(len(found))]


def nbytes(array: nd.NDArray) -> int:
    return array.size * array.dtype().itemsize


def is_half(array: nd.NDArray) -> bool:
    return array.dtype().itemsize == 2


class Bucket:
    """Neighbouring gradients: one flat array for each lane, and views of it as gradients.

    Args:
        like: For each lane, arrays of the gradients' shapes, whose values initialise the views.
    """

    def __init__(self, like: Lanes):
        self.flats = [flatten(arrays) for arrays in like]
        self.views = [views_of(flat, arrays) for flat, arrays in zip(self.flats, like)]
        self.saved = [[] for _ in like]  # for each lane a flat array per finished shard, float32

    def save(self, lane: int, turn: int) -> None:
        gradients = self.flats[lane].astype("float32")
        if turn == 0:
            self.saved[lane].append(gradients)
        else:
            self.saved[lane][-1] += gradients

    def sums(self) -> List[nd.NDArray]:
        """Return for each lane the sum of the saved shards, or else its gradients, as float32."""
        sums = []
        for flat, saved in zip(self.flats, self.saved):
            sums.append(pairwise(saved) if saved else flat.astype("float32", copy=False))
            saved.clear()
        return sums


class Wire:
    """What is sent of a bucket: its flat arrays, or copies of them. float16 gradients are sent as float32.

    Args:
        half: None, or the number of images that a gradient is summed over. Then float16 is sent. float32 values are
            first divided by the nearest power of two, which loses no bit, because float16 ends at 65,504.
        divisor: See Exchange. At least the number of addends, by which float16 gradients are divided before they are
            sent, so that no sum overflows.
    """

    def __init__(self, bucket: Bucket, name: str, copies: bool = False, half: Optional[int] = None, divisor: int = 1):
        self.bucket, self.name, self.divisor = bucket, name, divisor
        dtype = "float32" if half is None else "float16"
        narrow = is_half(bucket.flats[0])
        self.scale = divisor if half is None or narrow else 2.0 ** round(math.log2(half))
        self.unscale = self.scale / divisor
        self.arrays = bucket.flats
        if copies or narrow or half is not None:
            self.arrays = [nd.zeros(flat.shape, ctx=flat.context, dtype=dtype) for flat in bucket.flats]

    def pack(self) -> List[nd.NDArray]:
        """Return the arrays to sum in place, one for each lane."""
        self.fill(self.scale)
        return self.arrays

    def fill(self, scale: float) -> None:
        """Write the gradients to the arrays, divided by `scale`."""
        for total, array in zip(self.bucket.sums(), self.arrays):
            if scale != 1:
                total /= scale
            if array is not total:
                nd.cast(total, dtype=array.dtype, out=array)

    def unpack(self) -> None:
        for flat, array in zip(self.bucket.flats, self.arrays):
            if array is not flat:
                nd.cast(array, dtype=flat.dtype, out=flat)
            if self.unscale != 1:
                flat *= self.unscale
