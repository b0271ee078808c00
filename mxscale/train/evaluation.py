"""Exact evaluation: loss and accuracy over a split, every image counted once."""

from typing import Dict, Optional

import mxnet as mx
from mxnet import nd

from mxscale.config.schema import Config
from mxscale.distributed.heartbeat import Heartbeat, Phase
from mxscale.models import weights, zoo
from mxscale.rundir.plan import Plan
from mxscale.train import builders
from mxscale.train.optim.optimizer import CrossEntropy


class Evaluator:
    """Evaluates parameters with a network of its own, on one device of each rank.

    If the trained network were evaluated, oneDNN would reorder its convolution weights in the background. Training
    would continue with either layout, and round differently each time.
    """

    def __init__(self, config: Config, plan: Plan, comm, device, heartbeat: Heartbeat):
        self.plan, self.comm, self.heartbeat = plan, comm, heartbeat
        evaluated = [split for split in ("val", "test") if split in plan.splits]
        self.data = {split: builders.evaluation_data(config, plan, split, comm, device) for split in evaluated}
        self.objective = CrossEntropy()
        size = config.data.image_size
        self.net = zoo.build(config.model.name, plan.classes, plan.graph)
        self.net.initialize(mx.init.Zero(), ctx=device)
        zoo.finish(self.net, (1, 3, size, size), device)
        self.net.collect_params().setattr("grad_req", "null")
        if config.precision == "float16":
            self.net.cast("float16")
        self.forward = builders.with_input(self.net, config.data, config.precision)

    def __call__(self, split: str, params: Dict[str, nd.NDArray]) -> Optional[dict]:
        """Evaluate `params` (by structural name) on a split. A collective.

        Counts are integers per rank, summed over ranks, checked against the set's size and divided once.

        Returns:
            {"<split>/loss": nats, "<split>/top1": percent, "<split>/top5": percent}; without top-5 if the set has at
            most five classes. None if the parent requested a stop: the grace period is for a checkpoint.
        """
        for name, parameter in weights.parameters(self.net).items():
            parameter.set_data(params[name])
        loss, top1, top5, images, stopped = self.comm.total(self._sums(split))
        if stopped:
            return None
        expected = self.plan.splits[split].count
        if images != expected:
            raise RuntimeError(f"{split}: {images:.0f} images evaluated of {expected}")
        metrics = {f"{split}/loss": loss / images, f"{split}/top1": 100 * top1 / images}
        if self.plan.classes > 5:
            metrics[f"{split}/top5"] = 100 * top5 / images
        return metrics

    def _sums(self, split: str) -> list:
        """Return [loss, top-1, top-5, images, whether a stop was requested] of this rank's part of the split."""
        loss, top1, top5, images, stopped = 0.0, 0, 0, 0, False
        self.heartbeat.phase = Phase.VALIDATION
        for inputs, labels, count in self.data[split]:
            logits = self.forward(inputs).astype("float32")
            ranked = nd.topk(logits, k=min(5, self.plan.classes), axis=-1)[:count]
            correct = ranked == labels[:count].reshape((-1, 1))
            loss += self.objective(logits, labels)[:count].sum().asscalar()
            top1 += int(correct[:, 0].sum().asscalar())
            top5 += int(correct.sum().asscalar())
            images += count
            self.heartbeat.progress()
            stopped = self.heartbeat.stop_requested()
            if stopped:
                break
        self.heartbeat.phase = Phase.EXCHANGE
        return [loss, top1, top5, images, stopped]
