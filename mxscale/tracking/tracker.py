"""Run directory -> MLflow, while the run lasts or later.

    mxscale sync RUN_DIR

`metrics.jsonl` is the truth and MLflow a mirror of it.  A server that is slow, down or gone delays
nothing and loses nothing: all requests are made by a daemon thread of the parent, and what it could
not send, `sync` sends.

How it is sent, and why exactly once: sender.py.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path
from typing import Callable, Optional, TypeVar

from mxscale.config.schema import Config, Tracking
from mxscale.rundir.directory import DONE, FAILURE, RunDir
from mxscale.tracking import payload, sync_state, uris
from mxscale.tracking.payload import CostAt, no_cost
from mxscale.tracking.sender import Busy, Sender, Unsent
from mxscale.tracking.store import look_up, why
from mxscale.tracking.sync_state import view_hint
from mxscale.tracking.uris import masked
from mxscale.util.errors import ConfigError

POLL_S = 5.0  # between two looks at metrics.jsonl: each one that finds something costs 30 ms of a core
RETRY_S = 1.0
BACKOFF_S = (1.0, 5.0, 10.0, 20.0, 40.0, 60.0)  # after the 1st, 2nd, ... failure in a row
NICENESS = 10  # the cores belong to the ranks

log = logging.getLogger(__name__)
T = TypeVar("T")


def store_uri(config: Config) -> str:
    """Where runs of this configuration are recorded; raises ConfigError for what no store is.

    May hold a password: show `masked(uri)`.
    """
    return uris.store_uri(config.tracking, Path(config.runs))


def find_run(config: Config, run_id: str) -> RunDir:
    """The directory of the run that MLflow knows by that id.  Raises ConfigError."""
    source = f"model.pretrained=run:{run_id}"
    tags = tags_of(config, run_id, source)
    found = directory_of(config, tags)
    if found is None:
        there = Path(tags["mxscale.dir"])
        raise ConfigError(
            f"{source}: its directory {there} is not here, and MLflow has no checkpoints; bring it to {config.runs}/"
            f"{'/'.join(there.parts[-2:])}, or name its params file"
        )
    return found


def tags_of(config: Config, run_id: str, source: str) -> dict:
    """What MLflow says of the run that it knows by that id.  Raises ConfigError, which begins with `source`."""
    tags = ask(config, source, lambda uri: look_up(uri, run_id, config.tracking.timeout_s))
    if tags is None:
        uri = masked(store_uri(config))
        raise ConfigError(f"{source}: {uri} knows no such run; its id is at the end of the run's address")
    if "mxscale.dir" not in tags:
        raise ConfigError(f"{source}: that run is not one of train.py or finetune.py")
    return tags


def ask(config: Config, source: str, question: Callable[[str], T]) -> T:
    """What `question` makes of the store's address.  Raises ConfigError where that store can't be asked."""
    uri = store_uri(config)
    file = uris.sqlite_file(uri)
    try:
        if file and not file.is_file():  # asking would make it
            raise FileNotFoundError("no such file")
        return question(uri)
    except Exception as error:
        raise ConfigError(f"{source}: {masked(uri)} can't be asked ({why(error)}); set tracking.uri") from None


def directory_of(config: Config, tags: dict) -> Optional[RunDir]:
    """The directory of the run that has these tags, where it is here."""
    there = Path(tags["mxscale.dir"])
    # A container, or a machine that mounts `runs` elsewhere, knows the same directory by another path
    for path in (there, Path(config.runs, *there.parts[-2:])):
        found = RunDir(path)
        if (found.read(sync_state.STATE_FILE) or {}).get("id") == tags.get("mxscale.run"):
            return found
    return None


# ---------------------------------------------------------------- while the run lasts


class Mirror:
    """A daemon thread that follows a run.  It never raises, and never holds up its parent."""

    def __init__(self, run: RunDir, tracking: Tracking, cost_at: CostAt = no_cost):
        self.run = run
        self.uri = uris.store_uri(tracking, payload.runs_root(run))
        self.reason = "no answer yet"  # of the last failure
        self._sender = Sender(run, self.uri, tracking, cost_at)
        self._sent_all = False
        self._closing = threading.Event()
        self._left_behind = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="tracking", daemon=True)

    def start(self) -> None:
        """Begin, if not begun; call it after the ranks were started (they need the cores that the import takes)."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self, timeout_s: float = 30.0, unwanted: Callable[[], bool] = lambda: False) -> Optional[Unsent]:
        """Send the rest, the artifacts and the final status; None, or what was not sent.

        Waits for one try and one retry, never longer than `timeout_s`, and only until it is `unwanted`.
        Call it when status.json, summary.json and environment.json are final.
        """
        self.start()
        self._closing.set()
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline and not unwanted():
            self._thread.join(0.1)
        self._left_behind.set()
        return None if self._sent_all else self._sender.unsent(self.reason)

    def next_attempt(self, cost_at: CostAt) -> None:
        """A further attempt of the run begins: what it runs on may have changed."""
        self._sender.begin_again(cost_at)

    def _follow(self) -> None:
        with contextlib.suppress(OSError):  # Linux has a niceness per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        failures = 0
        while not self._closing.is_set():
            failures = 0 if self._try() else failures + 1
            if failures == 2:  # said once, after the retry
                log.warning("tracking: %s: %s; training goes on", masked(self.uri), self.reason)
            self._closing.wait(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1] if failures else POLL_S)
        for _ in range(2):
            self._sent_all = self._try(payload.end_state(self.run))
            if self._sent_all or self._left_behind.wait(RETRY_S):
                return

    def _try(self, end: Optional[str] = None) -> bool:
        try:
            self._sender.send(end, wait=end is not None)
            return True
        except Busy:
            return True  # somebody else sends; the next look will tell
        except Exception as error:
            self.reason = why(error)
            return False


class NoMirror:
    """Tracking is off."""

    def start(self) -> None:
        pass

    def next_attempt(self, cost_at: CostAt) -> None:
        pass

    def finish(self, timeout_s: float = 30.0, unwanted: Callable[[], bool] = lambda: False) -> Optional[Unsent]:
        return None


def open_mirror(run: RunDir, tracking: Tracking, cost_at: CostAt = no_cost):
    """The mirror that `tracking` asks for.  Raises ConfigError for a uri that no store has."""
    return Mirror(run, tracking, cost_at) if tracking.enabled else NoMirror()


# ---------------------------------------------------------------- later


def sync(run: RunDir, uri: Optional[str] = None, cost_at: CostAt = no_cost) -> int:
    """Send what a store lacks of `run` and print one line; the exit status.  Raises ConfigError."""
    tracking = run.config().tracking
    uri = payload.uri_of(run, tracking, uri)
    sender = Sender(run, uri, tracking, cost_at)
    going = payload.going(run)
    end = None if going else payload.end_state(run)
    try:
        lines = _send_twice(sender, end)
    except Exception as error:
        print(sender.unsent(why(error)))
        return FAILURE
    state = "the run is still going: " if going else ""
    print(f"tracking: {state}{lines} lines sent, {sender.sent().lines_sent} in all; {view_hint(run, sender.sent())}")
    return DONE


def _send_twice(sender: Sender, end: Optional[str]) -> int:
    before = sender.sent().lines_sent
    try:
        return sender.send(end, wait=True)
    except Exception:
        time.sleep(BACKOFF_S[0])
        sender.send(end, wait=True)
        return sender.sent().lines_sent - before
