"""Mirror a run directory to MLflow during the run, or later with `mxscale sync RUN_DIR`.

`metrics.jsonl` is the source of truth, MLflow a mirror of it. A daemon thread of the parent makes all requests, so a
slow or unreachable server delays no training. `sync` sends what the thread could not send; see sender.py.
"""

import contextlib
import os
import sys
import threading
import time
from typing import Callable, Optional

from mxscale.config.schema import Tracking
from mxscale.records import learning_curves
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, FAILURE
from mxscale.tracking import payload
from mxscale.tracking.payload import CostAt, no_cost
from mxscale.tracking.sender import Sender
from mxscale.tracking.store import why
from mxscale.tracking.sync_state import view_hint
from mxscale.tracking.uris import store_uri
from mxscale.util.redaction import redact_address
from mxscale.util.terminal import echo

POLL_S = 5.0  # between two reads of metrics.jsonl; one with new lines takes 30 ms of a core
RETRY_S = 1.0
BACKOFF_S = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # after the 1st, 2nd, ... consecutive failure
NICENESS = 10  # below the priority of the ranks


class Mirror:
    """A daemon thread that sends the records of a run. It never raises, and never delays its parent."""

    def __init__(self, run: RunDir, tracking: Tracking, cost_at: CostAt = no_cost):
        self.run = run
        self.uri = store_uri(tracking, payload.runs_root(run))
        self.reason = "no answer yet"  # of the last failure
        self._sender = Sender(run, self.uri, tracking, cost_at)
        self._sent_all = False
        self._closing = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tracking", daemon=True)

    def start(self) -> None:
        """Start the thread once, after the ranks: its import of MLflow uses their cores."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, timeout_s: float = 30.0, unwanted: Callable[[], bool] = lambda: False) -> Optional[str]:
        """Send the remaining lines, the artifacts and the final status; return a line on what was not sent, or None.

        Call it when status.json, summary.json and environment.json are final.

        Args:
            timeout_s: Limit of the wait, which covers one try and one retry.
            unwanted: Returns whether to stop waiting.
        """
        self.start()
        self._closing.set()
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline and not unwanted():
            self._thread.join(0.1)
        self._abandoned.set()
        return None if self._sent_all else self._sender.unsent(self.reason)

    def next_attempt(self, cost_at: CostAt) -> None:
        """Read params, tags and costs again for the next attempt."""
        self._sender.next_attempt(cost_at)

    def _follow(self) -> None:
        with contextlib.suppress(OSError):  # Linux has a niceness per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        failures = 0
        while not self._closing.is_set():
            failures = 0 if self._try() else failures + 1
            if failures == 2:  # reported once, after the retry
                echo(f"tracking: {redact_address(self.uri)}: {self.reason}; training continues", sys.stderr)
            self._closing.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1] if failures else POLL_S)
        problem = learning_curves.save(self.run)
        if problem:
            echo(f"tracking: {problem}", sys.stderr)
        for _ in range(2):
            self._sent_all = self._try(self.run.end_state)
            if self._sent_all or self._abandoned.wait(RETRY_S):
                return

    def _try(self, end: Optional[str] = None) -> bool:
        try:
            self._sender.send(end, wait=end is not None)
            return True
        except BlockingIOError:
            return True  # another process sends the lines; the next call checks
        except Exception as error:
            self.reason = why(error)
            return False


class NoMirror:
    """The mirror if tracking is off."""

    def start(self) -> None:
        pass

    def next_attempt(self, cost_at: CostAt) -> None:
        pass

    def finish(self, timeout_s: float = 30.0, unwanted: Callable[[], bool] = lambda: False) -> Optional[str]:
        return None


def open_mirror(run: RunDir, tracking: Tracking, cost_at: CostAt = no_cost):
    """Return the mirror that `tracking` configures. Raises ConfigError if the URI names no store."""
    return Mirror(run, tracking, cost_at) if tracking.enabled else NoMirror()


def sync(run: RunDir, uri: Optional[str] = None, cost_at: CostAt = no_cost) -> int:
    """Send what a store lacks of `run`, print one line and return the exit status. Raises ConfigError."""
    tracking = run.config().tracking
    uri = payload.uri_of(run, tracking, uri)
    sender = Sender(run, uri, tracking, cost_at)
    running = run.is_running
    end = None if running else run.end_state
    if not running and not (run.path / learning_curves.FILE).is_file() and (problem := learning_curves.save(run)):
        echo(f"tracking: {problem}")
    try:
        lines = sender.send(end, wait=True)
    except Exception as error:
        echo(sender.unsent(why(error)))
        return FAILURE
    state = "the run is still running: " if running else ""
    echo(f"tracking: {state}{lines} lines sent, {sender.sent().lines_sent} in all; {view_hint(run, sender.sent())}")
    return DONE
