"""Exact evaluation: loss and accuracy over a split, every image counted once."""

from typing import Optional

import mxnet as mx

from mxscale.config.schema import Config
from mxscale.distributed.heartbeat import NoLife
from mxscale.train import builders
from mxscale.train.optim.optimizer import CrossEntropy


def evaluate(net, config: Config, plan: dict, name: str, comm, device, scale, life: NoLife) -> Optional[dict]:
    """Loss, top-1 and top-5 in percent over the split `name`, every image once.  A collective.

    Integers per rank, summed, asserted to equal the set's size, divided once.  None where the parent asked to stop
    meanwhile: the grace time of a machine that is about to go is for a checkpoint.
    """
    objective = CrossEntropy()
    loss, top1, top5, seen, left = 0.0, 0, 0, 0, False
    for images, labels, count in builders.evaluation_data(config, plan, name, comm, device):
        logits = net(scale.cast(images)).astype("float32")
        ranked = mx.nd.topk(logits, k=min(5, plan["classes"]), axis=-1)[:count]
        right = ranked == labels[:count].reshape((-1, 1))
        loss += objective(logits, labels)[:count].sum().asscalar()
        top1 += int(right[:, 0].sum().asscalar())
        top5 += int(right.sum().asscalar())
        seen += count
        life.moved()
        left = life.asked_to_stop()
        if left:
            break
    loss, top1, top5, seen, left = comm.total([loss, top1, top5, seen, left])
    if left:
        return None
    wanted = plan["splits"][name]["count"]
    if seen != wanted:
        raise RuntimeError(f"{name}: {seen:.0f} images counted of {wanted}")
    metrics = {f"{name}/loss": loss / seen, f"{name}/top1": 100 * top1 / seen}
    if plan["classes"] > 5:  # with five or fewer, top-5 is always 100 %
        metrics[f"{name}/top5"] = 100 * top5 / seen
    return metrics
