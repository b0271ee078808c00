"""While the ranks run: keep them alive, show how they do, pass on the wish to stop."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import Callable, List, NamedTuple, Optional, Sequence

from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.environment.container_limits import available_cores
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement
from mxscale.launcher import commands as launch
from mxscale.launcher.budget import Purse
from mxscale.launcher.failure import Failure, Logs
from mxscale.launcher.heartbeat_monitor import QUIET_S, HeartbeatMonitor
from mxscale.launcher.processes import Processes, file_name
from mxscale.launcher.progress import Progress, say
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan

ALIVE_EVERY_S = 5.0
POLL_S = 0.1
STRAGGLE_S = 8.0  # between one rank's failure and the end of the others


class Signals:
    """SIGTERM, Ctrl-C and a lost terminal become a wish: `reason` is set by the first, `urgent` by the second."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.reason: Optional[str] = None
        self.urgent = False

    def __enter__(self):
        heard = [n for n in self.NUMBERS if signal.getsignal(n) is not signal.SIG_IGN]  # nohup stays nohup
        self._before = {n: signal.signal(n, self._note) for n in heard}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self.urgent = self.reason is not None
        self.reason = self.reason or signal.Signals(number).name


class Watched(NamedTuple):
    """How the ranks came to their end, apart from what they say themselves."""

    stopped: Optional[str]  # the reason, where they were asked to stop
    failure: Optional[Failure]  # why they were ended
    first_gone: Optional[int] = None  # the rank whose end made the launcher end the others
    lost_hosts: Sequence[Host] = ()  # that can't be reached any more


def supervise(run: RunDir, config: Config, plan: Plan, attempt: int, signals: Signals, mirror) -> Watched:
    """Start the ranks and stay until they have ended."""
    placed = Placement.of(plan, available_cores())
    ranks = config.comm.processes(placed.ranks)
    commands = launch.commands(config, str(run), attempt, placed, os.environ)
    purse = Purse(run, config, plan, attempt)
    with (
        open(run.path / "ranks" / "launch.log", "ab") as log,
        kept_alive(run),
        Progress(run, plan, run_cost.cost_of(run)) as progress,
    ):
        for last_try in (False, True):
            logs = Logs(run.path / "ranks")  # of this start of the ranks
            monitor = HeartbeatMonitor(run, config.launch, attempt, ranks, placed.hosts)
            processes = Processes(commands, log)
            try:
                failure = _watch(run, config, attempt, processes, monitor, progress, signals, purse, mirror)
            finally:
                processes.stop()
                progress.update()
            lost_hosts = monitor.end_elsewhere()
            # Of ranks elsewhere nobody here can say that the first ones have ended
            elsewhere = placed.hosts or config.launch.kind == "docker"
            given_up = last_try or signals.reason or purse.reason or failure or elsewhere
            if given_up or not monitor.crashed_at_start():
                break
            say("a rank crashed before its first step: starting the ranks once more")
            for path in [*run.path.glob("ranks/*.json"), *run.path.glob("ranks/*.alive")]:
                path.unlink()
    mirror.start()
    return Watched(signals.reason or purse.reason, failure, launch.first_gone(logs.text("launch")), lost_hosts)


@contextmanager
def beside(work: Callable[[threading.Event], None], name: str):
    """Run work(over) in a thread while the block runs; the event is set at its end, and the thread waited for."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def kept_alive(run: RunDir):
    """Touch `alive` from a thread: a terminal that holds up our output must not end the ranks."""

    def touch(over: threading.Event) -> None:
        while not over.is_set():
            try:
                run.touch_alive()
            except OSError:  # the disk's trouble, not a reason to be thought dead at once
                pass
            over.wait(ALIVE_EVERY_S)

    return beside(touch, "alive")


def _watch(
    run: RunDir, config: Config, attempt: int, processes, monitor, progress, signals, purse, mirror
) -> Optional[Failure]:
    """Until the ranks have ended, or have to be; the failure where they do not know of it themselves."""
    began, first_line_at, asked_at, failed_at = time.monotonic(), None, None, None
    while processes.ended() is None:
        now = time.monotonic()
        if progress.update():
            mirror.start()  # not before the ranks are busy with steps: its imports cost seconds of a core
            first_line_at = first_line_at or now
            if now - first_line_at > config.launch.start_timeout_s and not monitor.begun():
                return monitor.never_begun(config.launch.start_timeout_s)
        elif now - began > config.launch.start_timeout_s:
            return Failure(
                f"the ranks did not begin within {config.launch.start_timeout_s:g} s (launch.start_timeout_s): "
                f"they may not reach each other; see {run.path}/ranks/launch.log"
            )
        if signals.reason and asked_at is None:
            run.ask_to_stop(f"signal {signals.reason}")
            say(f"\n{signals.reason}: finishing the step and writing a checkpoint; once more ends at once")
            asked_at = now
        if purse.wants_stop() and asked_at is None:
            run.ask_to_stop(purse.reason)
            say(f"\n{purse.announcement()}")
            asked_at = now
        if signals.urgent or purse.empty() or (asked_at and now - asked_at > config.launch.stop_grace_s):
            return None
        failed = failures(run, attempt)
        lost = processes.lost()
        if lost and not failed:
            return Failure(str(lost), (file_name(lost.name),), outside=True)
        # Ranks that have lost touch with a silent one say so at about the time when its silence is noticed here
        if all(words.get("consequence") for words in failed):
            stall = monitor.stalled(QUIET_S if failed else None)
            if stall:
                return stall
        if failed:
            failed_at = failed_at or now
            if now - failed_at > STRAGGLE_S:
                return None
        time.sleep(POLL_S)
    return None


def failures(run: RunDir, attempt: int) -> List[dict]:
    """The last words of ranks of this attempt that ended badly."""
    ranks = [int(path.stem) for path in run.path.glob("ranks/*.json")]
    return [words for words in (run.last_words(rank, attempt) for rank in ranks) if words and words["exit"]]
