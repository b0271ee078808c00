"""While the ranks run: keep them alive, show how they do, pass on the wish to stop."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import Optional

from mxscale.config import Config
from mxscale.run import costs, launch
from mxscale.run.processes import Processes, available_cores
from mxscale.run.progress import Progress
from mxscale.run.rundir import RunDir

ALIVE_EVERY_S = 5.0
POLL_S = 0.1
STRAGGLE_S = 15.0  # between one rank's failure and the end of the others


class Signals:
    """SIGTERM, Ctrl-C and a lost terminal become a wish: `reason` is set by the first, `urgent` by the second."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.reason: Optional[str] = None
        self.urgent = False

    def __enter__(self):
        self._before = {n: signal.signal(n, self._note) for n in self.NUMBERS}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self.urgent = self.reason is not None
        self.reason = self.reason or signal.Signals(number).name


def supervise(run: RunDir, config: Config, plan: dict, attempt: int, signals: Signals, mirror) -> Optional[str]:
    """Start the ranks and stay until they have ended; the reason where they were asked to stop."""
    ranks = plan["sizes"]["ranks"]
    commands = launch.commands(config, str(run), ranks, available_cores(), os.environ)
    progress = Progress(run, plan, costs.cost_of(run))
    with open(run.path / "ranks" / "launch.log", "ab") as log, kept_alive(run):
        for last_try in (False, True):
            processes = Processes(commands, log)
            try:
                _watch(run, config, processes, progress, signals, mirror)
            finally:
                processes.stop()
            if last_try or signals.reason or not crashed_at_start(run, attempt, ranks):
                break
            print("a rank crashed before its first step: starting the ranks once more", flush=True)
            for path in run.path.glob("ranks/*.json"):
                path.unlink()
        progress.close()
    mirror.start()
    return signals.reason


@contextmanager
def kept_alive(run: RunDir):
    """Touch `alive` from a thread: a terminal that holds up our output must not end the ranks."""
    over = threading.Event()

    def touch():
        while not over.is_set():
            try:
                run.touch_alive()
            except OSError:  # the disk's trouble, not a reason to be thought dead at once
                pass
            over.wait(ALIVE_EVERY_S)

    thread = threading.Thread(target=touch, daemon=True, name="alive")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def crashed_at_start(run: RunDir, attempt: int, ranks: int) -> bool:
    """A rank ended without a word before anything was measured.

    MXNet with Horovod did so, by a segmentation fault, in one of some hundred starts.
    """
    silent = [rank for rank in range(ranks) if run.read(run.rank_status(rank)) is None]
    return bool(silent) and not any(line["attempt"] == attempt for line in run.lines())


def _watch(run: RunDir, config: Config, processes: Processes, progress: Progress, signals: Signals, mirror) -> None:
    asked_at, failed_at = None, None
    while processes.ended() is None:
        now = time.monotonic()
        if progress.update():
            mirror.start()  # not before the ranks are busy with steps: its imports cost seconds of a core
        if signals.reason and asked_at is None:
            run.ask_to_stop(f"signal {signals.reason}")
            print(
                f"\n{signals.reason}: finishing the step and writing a checkpoint; once more ends at once", flush=True
            )
            asked_at = now
        if signals.urgent or (asked_at and now - asked_at > config.launch.stop_grace_s):
            return
        if any_failure(run):
            failed_at = failed_at or now
            if now - failed_at > STRAGGLE_S:
                return
        time.sleep(POLL_S)


def any_failure(run: RunDir) -> bool:
    return any((run.read(f"ranks/{p.name}") or {}).get("exit") for p in run.path.glob("ranks/*.json"))
