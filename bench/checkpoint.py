"""Loss of throughput by a checkpoint every 30 s: ResNet-50, segments of training with and without one, in turn.

    python bench/checkpoint.py [--quick]

A segment with a checkpoint begins with it. It ends when its steps are done and the checkpoint is on the disk.
"""

import math
import tempfile
import time

import measure
from engine import make_run
from mxnet import nd

from mxscale.distributed.communicators import Local
from mxscale.distributed.heartbeat import Heartbeat
from mxscale.train.trainer import Trainer

EVERY_S = 30.0
SETTINGS = {
    "data": {"kind": "synthetic", "image_size": 224, "num_images": 10**6},
    "model": {"name": "resnet50_v1b"},
    "batch": {"per_device": 8},
}


class Segments:
    """Segments of `steps` steps of a trainer."""

    def __init__(self, trainer: Trainer, steps: int):
        self.trainer, self.steps, self.blocked = trainer, steps, []

    def without(self) -> float:
        """Train and return the seconds."""
        start = time.monotonic()
        for _ in range(self.steps):
            self.trainer.train_step()
        nd.waitall()
        return time.monotonic() - start

    def with_checkpoint(self) -> float:
        """Return the seconds of a segment that begins with a checkpoint."""
        start, checkpointer = time.monotonic(), self.trainer.checkpointer
        checkpointer.save(checkpointer.snapshot(self.trainer.step), self.trainer.metrics_log)
        self.blocked.append(time.monotonic() - start)
        self.without()
        checkpointer.finish()
        return time.monotonic() - start


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], pairs=(5, "pairs of segments"))
    every, pairs = (6.0, 1) if options.quick else (EVERY_S, options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        run, *made = make_run(folder, SETTINGS, 10**6, 10**4)
        trainer = Trainer(run, *made, Local(), 1, Heartbeat(run, 0, 1))
        Segments(trainer, 2).without()  # warm-up
        segments = Segments(trainer, math.ceil(every / (Segments(trainer, 2).without() / 2)))
        saving, quiet = measure.in_turn(segments.with_checkpoint, segments.without, turns=pairs)
    loss = [100 * (1 - without / with_one) for with_one, without in zip(saving, quiet)]
    figures = {"loss_percent": measure.spread(loss), "blocked_s": measure.spread(segments.blocked)}
    print(f"loss of throughput   {measure.show(figures['loss_percent'], '{:.2f}')} %")
    print(f"training waits       {measure.show(figures['blocked_s'], '{:.2f}')} s for a checkpoint")
    measure.finish(figures)


if __name__ == "__main__":
    main()
