"""A run of two epochs that is stopped, or asked to finish early."""

from heartbeats import NoHeartbeat

from mxscale.rundir.directory import FINISH

# 40 images, 8 a step: 5 steps an epoch.  180 images each to validate and to test, in 45 batches
CASE = ["launch.ranks=1", "data.shards=2", "data.train_per_class=8", "batch.per_device=4", "epochs=2",
        "data.image_size=16"]  # fmt: skip


class StopAfter(NoHeartbeat):
    """The parent requests a stop after `after` batches of evaluations."""

    def __init__(self, after):
        self.left = after

    def stop_requested(self):
        self.left -= 1
        return self.left == 0


class FinishAfter(NoHeartbeat):
    """The parent asks to finish during step `after`."""

    def __init__(self, run, after):
        self.run, self.left = run, after

    def progress(self, step=False):
        self.left -= step
        if step and self.left == 0:
            self.run.ask_to_stop(FINISH)
