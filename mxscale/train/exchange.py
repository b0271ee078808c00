"""Gradients summed over shards and ranks: fixed buckets that we pack ourselves.

Horovod's own fusion groups tensors by arrival, so that with three and more ranks the order of
additions, and with it the last bit, changes from run to run.  Here a bucket holds the same gradients
in the same order each time, and Horovod's fusion is switched off by the launcher.
"""

from typing import List

from mxnet import nd


class Exchange:
    """`grads = exchange(grads)`: pack -> sum over shards, then ranks -> unpack.

    The sum is divided once, by the global batch, in the optimizer's update.

    shards: of this rank; with several, `shard_done` is called after each one's gradients are whole.
    ordered: add in an order that is a function of the shards alone, so that 1, 2, 4 ... ranks get the
    same bits (where ranks divide shards and both are powers of two).  A ring adds in the order of
    ranks; gathering and adding here moves ranks / 2 times as many bytes.
    """

    def __init__(self, comm, grads: List[nd.NDArray], bucket_bytes: int, shards: int = 1, ordered: bool = False):
        self.comm, self.shards = comm, shards
        self.gathers = ordered and comm.size > 2  # two ranks add the same either way
        alone = comm.size == 1 and shards == 1
        self.buckets = [] if alone else [_Bucket(group, i) for i, group in enumerate(fill(grads, bucket_bytes))]

    def shard_done(self) -> None:
        """The gradients of one of this rank's shards are whole: keep them, make way for the next."""
        if self.shards > 1:
            for bucket in self.buckets:
                bucket.keep()

    def __call__(self, grads):
        for bucket in self.buckets:
            bucket.pack()
            if self.gathers:
                rows = self.comm.all_gather(bucket.flat, bucket.name)
                pairwise(list(rows)).copyto(bucket.flat)
            else:
                self.comm.all_reduce(bucket.flat, bucket.name)
        for bucket in self.buckets:
            bucket.unpack()
        return grads


def pairwise(arrays: List[nd.NDArray]) -> nd.NDArray:
    """Their sum: the first half added to the second, item by item, until one is left.

    With rank r of N holding items r, r + N, ... the halves come apart along ranks, so that adding
    within ranks first and over ranks after is the same tree.
    """
    while len(arrays) > 1:
        half = (len(arrays) + 1) // 2
        arrays = [a + b for a, b in zip(arrays, arrays[half:])] + arrays[len(arrays) - half : half]
    return arrays[0]


def fill(grads, bucket_bytes: int):
    """Neighbouring gradients of one dtype, up to `bucket_bytes` a bucket (a larger one is alone)."""
    groups, size = [], 0
    for grad in grads:
        nbytes = grad.size * grad.dtype().itemsize
        if groups and groups[-1][0].dtype == grad.dtype and size + nbytes <= bucket_bytes:
            groups[-1].append(grad)
            size += nbytes
        else:
            groups.append([grad])
            size = nbytes
    return groups


class _Bucket:
    """One flat array and the views of it that mirror its gradients; made once, used each step."""

    def __init__(self, grads, index):
        self.name = f"grads.{index}"
        self.grads = grads
        self.rows = [grad.reshape(-1) for grad in grads]  # views
        self.kept = []  # flat copies, one per shard done
        self.flat = nd.zeros(sum(grad.size for grad in grads), ctx=grads[0].context, dtype=grads[0].dtype)
        self.views, start = [], 0
        for grad in grads:
            self.views.append(self.flat[start : start + grad.size].reshape(grad.shape))
            start += grad.size

    def keep(self):
        self.kept.append(nd.concat(*self.rows, dim=0))

    def pack(self):
        if self.kept:
            pairwise(self.kept).copyto(self.flat)
            self.kept = []
        else:
            nd.concat(*self.rows, dim=0, out=self.flat)

    def unpack(self):
        for view, grad in zip(self.views, self.grads):
            view.copyto(grad)
