"""Gradients summed over shards, devices and ranks: fixed buckets that we pack ourselves.

Horovod's own fusion groups tensors by arrival, so that with three and more ranks the order of
additions, and with it the last bit, changes from run to run.  Here a bucket holds the same gradients
in the same order each time, and Horovod's fusion is switched off by the launcher.
"""

import math
from typing import Dict, List, Optional

from mxnet import nd

from mxscale.config import Comm

Lanes = List[List[nd.NDArray]]  # for each device of this rank its gradients, in the same order


def make_exchange(comm, lanes: Lanes, options: Comm, images: int, shards: int = 1, ordered: bool = False):
    """The exchange that `options` ask for: call it once per step; True where there is something to update with.

    images: that one lane's gradients are a sum over; shards, ordered: see Exchange.
    """
    half = images if options.compression == "fp16" else None
    bucket_bytes = int(options.bucket_mb * 2**20)

    def exchange(name: str, always: bool) -> Exchange:
        groups = fill(lanes[0], bucket_bytes) if always or comm.size * len(lanes) * shards > 1 else []
        buckets = [Bucket(part, f"{name}.{i}", half) for i, part in enumerate(parts(lanes, groups))]
        return Exchange(comm, lanes, buckets, shards, ordered, options.overlap)

    if options.double_buffering:
        return Delayed(exchange("even", True), exchange("odd", True))
    return exchange("grads", False)


class Exchange:
    """pack -> cast -> sum over shards, then devices and ranks -> cast back -> unpack.

    The sum is divided once, by the global batch, in the optimizer's update.

    shards: of each lane; with several, `shard_done` is called after each one's gradients are whole.
    ordered: add in an order that is a function of the shards alone, so that 1, 2, 4 ... ranks get the
    same bits (where ranks divide shards and both are powers of two).  A ring adds in the order of
    ranks; gathering and adding here moves ranks / 2 times as many bytes.
    overlap: nothing here waits, and MXNet's engine sends a bucket as soon as its gradients are there, while backward is
    still at those of earlier layers; else the first bucket leaves when backward is done.
    """

    def __init__(self, comm, lanes: Lanes, buckets: List["Bucket"], shards=1, ordered=False, overlap=True):
        self.comm, self.lanes, self.buckets, self.shards, self.overlap = comm, lanes, buckets, shards, overlap
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
        """The gradients into the buckets, and on their way."""
        if not self.overlap:
            for grad in (grad for lane in self.lanes for grad in lane):
                grad.wait_to_read()
        for bucket in self.buckets:
            flats = bucket.pack()
            if self.gathers:
                total = pairwise(self.comm.all_gather(flats, bucket.name))
                for flat in flats:
                    total.copyto(flat)
            else:
                self.comm.all_reduce(flats, bucket.name)

    def receive(self) -> None:
        """The sums out of the buckets, to where the gradients were."""
        for bucket in self.buckets:
            bucket.unpack()

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
    take turns.  Source: ChainerMN's double_buffering_optimizer.
    """

    def __init__(self, now: Exchange, before: Exchange):
        self.now, self.before = now, before
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
        return {str(i): grad.copy() for i, grad in enumerate(self.before.lanes[0])}

    def restore(self, state: Dict[str, nd.NDArray]) -> None:
        self.pending = bool(state)
        if not state:
            return
        for lane in self.before.lanes:
            for i, grad in enumerate(lane):
                state[str(i)].copyto(grad)
        for bucket in self.before.buckets:
            bucket.pack()


def pairwise(arrays: List[nd.NDArray]) -> nd.NDArray:
    """Their sum: the first half added to the second, item by item, until one is left.

    With rank r of N holding items r, r + N, ... the halves come apart along ranks, so that adding
    within ranks first and over ranks after is the same tree.
    """
    while len(arrays) > 1:
        half = (len(arrays) + 1) // 2
        arrays = [a + b for a, b in zip(arrays, arrays[half:])] + arrays[len(arrays) - half : half]
    return arrays[0]


def fill(grads, bucket_bytes: int) -> List[range]:
    """Neighbouring gradients of one dtype, up to `bucket_bytes` a bucket (a larger one is alone).

    The places of each bucket's gradients; the last layers come first, as backward makes them.
    """
    groups, size = [], 0
    for place in reversed(range(len(grads))):
        grad = grads[place]
        nbytes = grad.size * grad.dtype().itemsize
        if groups and grads[groups[-1].start].dtype == grad.dtype and size + nbytes <= bucket_bytes:
            groups[-1] = range(place, groups[-1].stop)
            size += nbytes
        else:
            groups.append(range(place, place + 1))
            size = nbytes
    return groups


def parts(lanes: Lanes, groups: List[range]) -> List[Lanes]:
    """For each group of places the gradients there, of each lane."""
    return [[lane[group.start : group.stop] for lane in lanes] for group in groups]


class Bucket:
    """One flat array for each lane and the views of it that mirror its gradients; made once, used each step.

    half: None, or how many images a gradient is a sum over.  Then float32 travels as float16, of about the mean over
    these images (divided by the power of two next to them, which costs no bit): float16 ends at 65,504.
    """

    def __init__(self, lanes: Lanes, name: str, half: Optional[int] = None):
        self.name = name
        self.flats = [_Flat(grads, half) for grads in lanes]

    def keep(self, lane: int) -> None:
        self.flats[lane].keep()

    def pack(self) -> List[nd.NDArray]:
        """What travels, of each lane: to be summed in place."""
        for flat in self.flats:
            flat.pack()
        return [flat.wire for flat in self.flats]

    def unpack(self) -> None:
        for flat in self.flats:
            flat.unpack()


class _Flat:
    """A bucket on one device."""

    def __init__(self, grads, half):
        self.grads = grads
        self.kept = []  # flat copies, one per shard done
        self.flat = nd.zeros(sum(grad.size for grad in grads), ctx=grads[0].context, dtype=grads[0].dtype)
        self.views, start = [], 0
        for grad in grads:
            self.views.append(self.flat[start : start + grad.size].reshape(grad.shape))
            start += grad.size
        casts = half is not None and self.flat.dtype().itemsize > 2
        self.scale = 2.0 ** round(math.log2(half)) if casts else 1.0
        self.wire = nd.zeros(self.flat.shape, ctx=self.flat.context, dtype="float16") if casts else self.flat

    def keep(self):
        self._fill()
        self.kept.append(self.flat.copy())

    def pack(self):
        if self.kept:
            pairwise(self.kept).copyto(self.flat)
            self.kept = []
        else:
            self._fill()
        if self.wire is not self.flat:
            self.flat /= self.scale
            nd.cast(self.flat, dtype="float16", out=self.wire)

    def _fill(self):
        # One copy each, not nd.concat, which takes 13 times as long on a CPU (docs/log.md)
        for view, grad in zip(self.views, self.grads):
            grad.copyto(view)

    def unpack(self):
        if self.wire is not self.flat:
            nd.cast(self.wire, dtype=self.flat.dtype, out=self.flat)
            self.flat *= self.scale
        for view, grad in zip(self.views, self.grads):
            view.copyto(grad)
