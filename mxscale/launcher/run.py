"""The parent's side of a run: set up, supervise the ranks, record the outcome, restart if allowed.

The parent never imports mxnet; the preparation is a child process.
"""

import sys
from typing import Optional, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.cost import run_cost
from mxscale.launcher import budget, dry_run, outcome, setup
from mxscale.launcher.context import Hook, RunContext, Signals
from mxscale.launcher.failure import Failure, Logs
from mxscale.launcher.supervisor import Watched, supervise
from mxscale.records import summary
from mxscale.rundir import guards
from mxscale.rundir.directory import RunDir, create
from mxscale.rundir.status import FINISHED, KILLED, Status
from mxscale.tracking import tracker
from mxscale.tracking.sync_state import view_hint
from mxscale.util.errors import ConfigError, RunFailed
from mxscale.util.terminal import echo


def execute(config: Config, run: Optional[RunDir] = None, hooks: Sequence[Hook] = ()) -> Status:
    """Start a run, or resume `run`, and return its status.

    Raises:
        ConfigError: The run is refused before its first step.
        RunFailed: The preparation failed, or not even the status could be written.
    """
    resources = setup.check(config, run, hooks)
    if config.budget.dry_run:
        return dry_run.execute(config, resources)
    new = run is None
    run = run or create(config)
    with guards.locked(run), guards.explained_disk_errors(run, config), Signals() as signals:
        context = RunContext(run, config, resources, signals, hooks)
        with guards.undone_if_refused(run, config, new):
            for hook in hooks:
                hook.on_created(run, signals)
            attempt = setup.set_up(context)
            mirror = tracker.open_mirror(run, config.tracking, run_cost.cost_of(run))
        status, failure = train(attempt, mirror)
        for number in range(1, config.launch.restarts + 1):
            if failure is None or not failure.retryable or signals.reason:
                break
            try:
                attempt = restart(context, attempt.logs, failure, number)
            except (ConfigError, RunFailed) as error:
                echo(f"no restart: {error}")
                break
            mirror.next_attempt(run_cost.cost_of(run))
            status, failure = train(attempt, mirror)
        for hook in hooks:
            hook.on_finished(run, status)
        # A second Ctrl-C, or the first after the end of the ranks, does not wait for a slow server
        stopped = status.state == KILLED
        unsent = mirror.finish(unwanted=lambda: signals.urgent or bool(signals.reason and not stopped))
    if attempt.plan:
        echo(summary.table(run, view_hint(run)))
    if unsent:
        echo(unsent)
    report_end(run, config, status, failure, attempt.logs)
    return status


def train(attempt: setup.Attempt, mirror) -> Tuple[Status, Optional[Failure]]:
    """Start the ranks, supervise them and return the run's status and, if it failed, why."""
    watched = Watched(attempt.context.signals.reason, None)
    if attempt.plan:
        watched = supervise(attempt.context, attempt.plan, mirror)
    return outcome.end_attempt(attempt, watched)


def restart(context: RunContext, logs: Logs, failure: Failure, number: int) -> setup.Attempt:
    """Set up the next attempt after a failure, on the remaining hosts.

    Raises ConfigError if the run can't restart; its directory then stays as the failure left it.
    """
    following = outcome.restart_context(context)
    print_last_lines(failure, logs)
    echo(outcome.restart_message(failure, number, context, following.resources.nodes))
    with guards.undone_if_refused(context.run, following.config, new=False):
        return setup.set_up(following)


def report_end(run: RunDir, config: Config, status: Status, failure: Optional[Failure], logs: Logs) -> None:
    """Print what can follow; after a failure first the failed rank's last lines, and at last the error."""
    if status.state == FINISHED:
        echo(f"next: mxscale evaluate {run}")
        return
    resume = f"resume with: {guards.resume_command(run, config)}"
    if status.state == KILLED:
        bound = "raise the bound and " if status.reason == budget.REASON else ""
        echo(f"interrupted ({status.reason}); {bound}{resume}")
        return
    print_last_lines(failure, logs)
    echo(f"rank logs: {run.path}/ranks; {resume}")
    echo(f"error: {status.error}", sys.stderr)


def print_last_lines(failure: Failure, logs: Logs) -> None:
    """Print the end of each failed rank's log; of the launcher's if a rank did not start."""
    for name in failure.of:
        shown = name if logs.last_lines(name) else "launch"
        lines = "\n".join(f"  {line}" for line in logs.last_lines(shown))
        echo(f"last lines of ranks/{shown}.log:\n{lines}" if lines else f"ranks/{name}.log is empty for this attempt")
