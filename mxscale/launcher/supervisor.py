"""Supervision of the ranks: keep them alive, show progress, pass on stop requests, detect failures."""

import os
import time
from typing import List, NamedTuple, Optional, Sequence

from mxscale.cost import run_cost
from mxscale.distributed.stop_consensus import Request
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement
from mxscale.environment.system_metrics import sampled
from mxscale.launcher import commands as launch
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.budget import BudgetMonitor
from mxscale.launcher.context import RunContext
from mxscale.launcher.failure import Failure, Logs
from mxscale.launcher.heartbeat_monitor import QUIET_S, HeartbeatMonitor
from mxscale.launcher.processes import Processes
from mxscale.launcher.progress import Progress
from mxscale.rundir import guards
from mxscale.rundir.directory import FINISH
from mxscale.rundir.plan import Plan
from mxscale.util.terminal import echo

POLL_S = 0.1
STRAGGLE_S = 8.0  # between one rank's failure and the end of the others


class Watched(NamedTuple):
    """The supervisor's findings about the end of the ranks, in addition to the status that they write."""

    stopped: Optional[str]  # the reason of the stop request, if there was one
    failure: Optional[Failure]  # why the supervisor ended the ranks
    gone: Sequence[launch.Gone] = ()  # the ranks that ended by themselves, as the launcher reports it
    lost_hosts: Sequence[Host] = ()  # that can't be reached any more


def supervise(context: RunContext, plan: Plan, mirror) -> Watched:
    """Start the ranks and return when all of them have ended."""
    run, config = context.run, context.config
    placed = Placement.of(plan)
    commands = launch.commands(config, str(run), context.attempt, placed, os.environ)
    with open(run.path / "ranks" / "launch.log", "ab") as log, kept_alive(run), sampled(run, context.attempt):
        progress = Progress(run, plan, run_cost.cost_of(run))
        for last_try in (False, True):
            logs = Logs(run.path / "ranks")  # of this start of the ranks
            ranks, nodes = placed.processes(config.comm), placed.hosts_of_ranks(config.comm)
            monitor = HeartbeatMonitor(run, config.launch, context.attempt, ranks, nodes)
            processes = Processes(commands, log)
            supervisor = Supervisor(context, plan, processes, monitor)
            try:
                failure = supervisor.watch(progress, mirror)
            finally:
                processes.stop()
                progress.update()
            lost_hosts = monitor.end_elsewhere()
            # This machine can't detect whether ranks on other hosts have ended
            if last_try or supervisor.stopped or failure or placed.hosts or not monitor.crashed_at_start():
                break
            echo("a rank crashed before its first step: starting the ranks once more")
            for path in [*run.path.glob("ranks/*.json"), *run.path.glob("ranks/*.alive")]:
                path.unlink()
    mirror.start()
    return Watched(supervisor.stopped, failure, launch.gone_ranks(logs.text("launch")), lost_hosts)


class Supervisor:
    """Watches one start of the ranks: stop requests, time limits and failures."""

    def __init__(self, context: RunContext, plan: Plan, processes: Processes, monitor: HeartbeatMonitor):
        self.run, self.config, self.signals = context.run, context.config, context.signals
        self.attempt, self.processes, self.monitor = context.attempt, processes, monitor
        self.budget = BudgetMonitor(context.run, context.config.budget, plan, context.attempt)
        self.started_at = time.monotonic()
        self.first_line_at: Optional[float] = None
        self.stop_requested_at: Optional[float] = None
        self.failed_at: Optional[float] = None

    @property
    def stopped(self) -> Optional[str]:
        """The reason of the stop request; None if there was none."""
        return self.signals.reason or self.budget.reason

    def watch(self, progress: Progress, mirror) -> Optional[Failure]:
        """Wait until the ranks have ended or must be ended; return the failure, if the ranks do not report it.

        Raises DiskFailed if the run directory was moved or removed.
        """
        while self.processes.ended() is None:
            now = time.monotonic()
            guards.check_present(self.run)
            if progress.update():
                mirror.start()  # not before the ranks compute steps: its imports take seconds of a core
                self.first_line_at = self.first_line_at or now
            failure = self._start_timeout(now)
            if failure:
                return failure
            if self._request_stop(now):
                progress.stop_asked()
            if self._must_end(now):
                return None
            failed = self._failed_ranks()
            failure = self._unreported_failure(failed)
            if failure:
                return failure
            if failed:
                self.failed_at = self.failed_at or now
                if now - self.failed_at > STRAGGLE_S:
                    return None
            time.sleep(POLL_S)
        return None

    def _start_timeout(self, now: float) -> Optional[Failure]:
        """Return the failure of ranks that take longer than launch.start_timeout_s to start."""
        limit_s = self.config.launch.start_timeout_s
        if self.first_line_at is None:
            if now - self.started_at > limit_s:
                return Failure(
                    f"the ranks did not start within {limit_s:g} s (launch.start_timeout_s): "
                    f"they may not reach each other; see {self.run}/ranks/launch.log"
                )
        elif now - self.first_line_at > limit_s and not self.monitor.begun():
            late = f"no second step within {limit_s:g} s of the first line (launch.start_timeout_s)"
            return self.monitor.attributed(late)
        return None

    def _request_stop(self, now: float) -> bool:
        """Ask the ranks to stop, once, after a signal or before the budget is exceeded; return whether it did."""
        if self.stop_requested_at is not None:
            return False
        request = self.budget.due()
        if request == Request.FINISH:
            self.run.ask_to_stop(FINISH)
            echo(f"\n{self.budget.message(request)}")
        if not (self.signals.reason or request == Request.STOP):
            return False
        self.stop_requested_at = now
        if self.signals.reason:
            self.run.ask_to_stop(f"signal {self.signals.reason}")
            echo(f"\n{self.signals.reason}: finishing the step and writing a checkpoint; a second one ends at once")
        else:
            self.run.ask_to_stop(self.budget.reason)
            echo(f"\n{self.budget.message(request)}")
        return True

    def _must_end(self, now: float) -> bool:
        """Return whether the time for a final checkpoint is over."""
        waited_s = now - self.stop_requested_at if self.stop_requested_at else 0.0
        return self.signals.urgent or self.budget.exhausted() or waited_s > self.config.launch.stop_grace_s

    def _failed_ranks(self) -> List[dict]:
        """Return the status of the ranks that ended with an error."""
        ranks = [int(path.stem) for path in self.run.path.glob("ranks/*.json")]
        ended = [self.run.rank_status(rank, self.attempt) for rank in ranks]
        return [status for status in ended if status and status.exit]

    def _unreported_failure(self, failed: List[dict]) -> Optional[Failure]:
        """Return a failure that no rank reports: a lost server process or a stalled rank."""
        lost = self.processes.lost()
        if lost and not failed:
            return lost
        # Ranks report a lost peer at about the time when the heartbeat monitor notices its silence
        if all(status.consequence for status in failed):
            return self.monitor.stalled(QUIET_S if failed else None)
        return None
