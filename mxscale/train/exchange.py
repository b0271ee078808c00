"""Gradients averaged over ranks: fixed buckets that we pack ourselves.

Horovod's own fusion groups tensors by arrival, so that with three and more ranks the order of
additions, and with it the last bit, changes from run to run.  Here a bucket holds the same gradients
in the same order each time, and Horovod's fusion is switched off by the launcher.
"""

from typing import List

from mxnet import nd


class Exchange:
    """`grads = exchange(grads)`: pack -> sum over ranks -> unpack.

    The sum is divided once, by the global batch, in the optimizer's update.
    """

    def __init__(self, comm, grads: List[nd.NDArray], bucket_bytes: int):
        self.comm = comm
        self.buckets = (
            [] if comm.size == 1 else [_Bucket(group, i) for i, group in enumerate(fill(grads, bucket_bytes))]
        )

    def __call__(self, grads):
        for bucket in self.buckets:
            bucket.pack()
            self.comm.all_reduce(bucket.flat, bucket.name)
        for bucket in self.buckets:
            bucket.unpack()
        return grads


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
        self.flat = nd.zeros(sum(grad.size for grad in grads), ctx=grads[0].context, dtype=grads[0].dtype)
        self.views, start = [], 0
        for grad in grads:
            self.views.append(self.flat[start : start + grad.size].reshape(grad.shape))
            start += grad.size

    def pack(self):
        nd.concat(*self.rows, dim=0, out=self.flat)

    def unpack(self):
        for view, grad in zip(self.views, self.grads):
            view.copyto(grad)
