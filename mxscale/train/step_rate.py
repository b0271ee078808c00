"""The rate of a training step on one device: `python -m mxscale.train.step_rate NETWORK IMAGE_SIZE BATCH`.

It prints images/s: forward and backward pass of generated images, and the update, without input and exchange.
"""

import sys
import time

import mxnet as mx
from mxnet import autograd, gluon

from mxscale.models import zoo

STEPS = 3


def rate(name: str, side: int, batch: int) -> float:
    """Return images/s of a network, after a first step, on the GPU if MXNet sees one."""
    device = mx.gpu(0) if mx.context.num_gpus() else mx.cpu()
    net = zoo.build(name, classes=10)
    zoo.initialise(net, 1, [device], zero_gamma=True, fitted=False)
    zoo.finish(net, (1, 3, side, side), [device])
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9}, kvstore=None)
    images = mx.nd.random.uniform(shape=(batch, 3, side, side), ctx=device)
    for step in range(STEPS + 1):
        with autograd.record():
            loss = net(images).sum()
        loss.backward()
        trainer.step(batch)
        mx.nd.waitall()
        if step == 0:  # it chooses kernels and allocates memory
            began = time.monotonic()
    return STEPS * batch / (time.monotonic() - began)


if __name__ == "__main__":
    network, image_size, images_per_step = sys.argv[1:]
    print(rate(network, int(image_size), int(images_per_step)))
