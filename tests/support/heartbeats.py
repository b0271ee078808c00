"""A heartbeat for ranks without a parent: nothing is written, and nobody asks for a stop."""

import contextlib

from mxscale.distributed.heartbeat import Phase


class NoHeartbeat:
    """A Heartbeat that does nothing."""

    phase = Phase.STARTING

    def progress(self, step=False):
        pass

    def stop_requested(self):
        return False

    @contextlib.contextmanager
    def checkpointing(self):
        yield


NO_HEARTBEAT = NoHeartbeat()
