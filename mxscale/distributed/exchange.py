"""Gradients summed over shards, devices and ranks: fixed buckets that we lay out ourselves.

Horovod's own fusion groups tensors by arrival, so that with three and more ranks the order of
additions, and with it the last bit, changes from run to run.  Here a bucket holds the same gradients
in the same order each time, and Horovod's fusion is switched off by the launcher.

Gradients live in their bucket: backward writes them there, and the optimizer reads the sums there, so that
nothing is copied on the way (as with gradient_as_bucket_view of PyTorch's DistributedDataParallel).
"""

import math
from typing import Dict, List, Optional

from mxnet import nd

from mxscale.config.schema import Comm
from mxscale.config.sizes import bucket_bytes

Lanes = List[List[nd.NDArray]]  # for each device of this rank its gradients, in the same order


def make_exchange(comm, like: Lanes, options: Comm, images: int, shards: int = 1, ordered: bool = False):
    """The exchange that `options` ask for: call it once per step; True where there is something to update with.

    like: arrays of the gradients' shapes; the gradients themselves belong into its `lanes`, of the same shapes.
    images: that one lane's gradients are a sum over; shards, ordered: see Exchange.
    """
    if comm.size * len(like) * shards == 1 and not options.double_buffering:
        return Exchange(comm, like, [], [])
    groups = fill(like[0], bucket_bytes(options, sum(map(nbytes, like[0]))))
    buckets = [Bucket([lane[group.start : group.stop] for lane in like]) for group in groups]
    lanes = [[view for bucket in reversed(buckets) for view in bucket.views[i]] for i in range(len(like))]
    half = images if options.compression == "fp16" else None

    def exchange(name: str) -> Exchange:
        copies = options.double_buffering  # what is under way must not be where backward writes
        wires = [Wire(bucket, f"{name}.{i}", copies, half) for i, bucket in enumerate(buckets)]
        return Exchange(comm, lanes, buckets, wires, shards, ordered, options.overlap)

    return Delayed(exchange("even"), exchange("odd")) if options.double_buffering else exchange("grads")


class Exchange:
    """cast -> sum over shards, then devices and ranks -> cast back, bucket by bucket.

    The sum is divided once, by the global batch, in the optimizer's update.

    lanes: where the gradients are written, and then the sums are.
    shards: of each lane; with several, `shard_done` is called after each one's gradients are whole.
    ordered: add in an order that is a function of the shards alone, so that 1, 2, 4 ... ranks get the
    same bits (where ranks divide shards and both are powers of two).  A ring adds in the order of
    ranks; gathering and adding here moves ranks / 2 times as many bytes.
    overlap: nothing here waits, and MXNet's engine sends a bucket as soon as its gradients are there, while backward is
    still at those of earlier layers; else the first bucket leaves when backward is done.
    """

    def __init__(self, comm, lanes: Lanes, buckets, wires: List["Wire"], shards=1, ordered=False, overlap=True):
        self.comm, self.lanes, self.buckets, self.wires = comm, lanes, buckets, wires
        self.shards, self.overlap = shards, overlap
        self.gathers = ordered and comm.gathers and comm.size * len(lanes) > 2  # two add the same either way

    def shard_done(self, lane: int = 0) -> None:
        """The gradients of one of this lane's shards are whole: keep them, make way for the next."""
        if self.shards > 1:
            for bucket in self.buckets:
                bucket.keep(lane)

    def __call__(self) -> bool:
        self.send()
        self.receive()
        return True

    def send(self) -> None:
        """The gradients on their way."""
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
        """The sums to where the gradients were."""
        for wire in self.wires:
            wire.unpack()

    def settle(self) -> None:
        """Before a look at the weights: that they are every rank's.  Here they always are."""

    def state(self) -> Dict[str, nd.NDArray]:
        """What a checkpoint has to hold: between two steps nothing is under way."""
        return {}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        """Go on from `state()`."""


class Delayed:
    """Double buffering: what is sent at one step is handed out at the next one, while that one's is under way.

    So the first step sends alone, and what the last one sends is never applied.  Two exchanges over the same gradients
    take turns, each with copies of its own.  Source: ChainerMN's double_buffering_optimizer.
    """

    def __init__(self, now: Exchange, before: Exchange):
        self.now, self.before, self.lanes = now, before, now.lanes
        self.pending = False

    def shard_done(self, lane: int = 0) -> None:
        self.now.shard_done(lane)

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
        """The sums under way, by gradient and not by bucket: other ranks and buckets can go on from them."""
        if not self.pending:
            return {}
        self.before.receive()
        return {str(i): grad.copy() for i, grad in enumerate(self.lanes[0])}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        self.pending = bool(state)
        if not state:
            return
        for lane in self.lanes:
            for i, grad in enumerate(lane):
                state[str(i)].copyto(grad)
        for wire in self.before.wires:
            wire.pack()


def pairwise(arrays: List[nd.NDArray]) -> nd.NDArray:
    """Their sum: the first half added to the second, item by item, until one is left.

    With rank r of N holding items r, r + N, ... the halves come apart along ranks, so that adding
    within ranks first and over ranks after is the same tree.
    """
    while len(arrays) > 1:
        half = (len(arrays) + 1) // 2
        arrays = [a + b for a, b in zip(arrays, arrays[half:])] + arrays[len(arrays) - half : half]
    return arrays[0]


def fill(grads, most: float) -> List[range]:
    """Neighbouring gradients of one dtype, up to `most` bytes a bucket (a larger one is alone).

    The places of each bucket's gradients; the last layers come first, as backward makes them.
    """
    groups, size = [], 0
    for place in reversed(range(len(grads))):
        grad = grads[place]
        if groups and grads[groups[-1].start].dtype == grad.dtype and size + nbytes(grad) <= most:
            groups[-1] = range(place, groups[-1].stop)
            size += nbytes(grad)
        else:
            groups.append(range(place, place + 1))
            size = nbytes(grad)
    return groups


def nbytes(array: nd.NDArray) -> int:
    return array.size * array.dtype().itemsize


class Bucket:
    """Neighbouring gradients: one flat array for each lane, and the views of it that are its gradients.

    like: for each lane arrays of their shapes, whose values the views begin with.
    """

    def __init__(self, like: Lanes):
        self.flats = [nd.concat(*(array.reshape((-1,)) for array in arrays), dim=0) for arrays in like]
        self.views = [views_of(flat, arrays) for flat, arrays in zip(self.flats, like)]
        self.kept = [[] for _ in like]  # of each lane flat copies, one per shard done

    def keep(self, lane: int) -> None:
        self.kept[lane].append(self.flats[lane].copy())

    def gather_shards(self) -> None:
        """The sum of those that were kept, where there are any."""
        for flat, kept in zip(self.flats, self.kept):
            if kept:
                pairwise(kept).copyto(flat)
                kept.clear()


def views_of(flat: nd.NDArray, like) -> List[nd.NDArray]:
    """Arrays of the shapes of `like`, one after another in the memory of `flat`."""
    views, start = [], 0
    for array in like:
        views.append(flat[start : start + array.size].reshape(array.shape))
        start += array.size
    return views


class Wire:
    """What travels of a bucket: its flat arrays themselves, or copies of them.

    half: None, or how many images a gradient is a sum over.  Then float32 travels as float16, of about the mean over
    these images (divided by the power of two next to them, which costs no bit): float16 ends at 65,504.
    """

    def __init__(self, bucket: Bucket, name: str, copies: bool = False, half: Optional[int] = None):
        self.bucket, self.name = bucket, name
        self.casts = half is not None and bucket.flats[0].dtype().itemsize > 2
        self.scale = 2.0 ** round(math.log2(half)) if self.casts else 1.0
        self.arrays = bucket.flats
        if self.casts or copies:
            self.arrays = [
                nd.zeros(flat.shape, ctx=flat.context, dtype="float16" if self.casts else flat.dtype)
                for flat in bucket.flats
            ]

    def pack(self) -> List[nd.NDArray]:
        """What travels, of each lane: to be summed in place."""
        self.bucket.gather_shards()
        for flat, array in zip(self.bucket.flats, self.arrays):
            if self.casts:
                flat /= self.scale
                nd.cast(flat, dtype="float16", out=array)
            elif array is not flat:
                flat.copyto(array)
        return self.arrays

    def unpack(self) -> None:
        for flat, array in zip(self.bucket.flats, self.arrays):
            if self.casts:
                nd.cast(array, dtype=flat.dtype, out=flat)
                flat *= self.scale
            elif array is not flat:
                array.copyto(flat)
