"""How an attempt ended: one status merged from those of its ranks, and whether another attempt can follow."""

import re
import signal
import time
from dataclasses import replace
from typing import List, Optional, Sequence, Tuple, Union

from mxscale.distributed.peer_loss import reason_of_communicator
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.environment.placement import Placement
from mxscale.launcher import setup
from mxscale.launcher.commands import Gone
from mxscale.launcher.context import RunContext
from mxscale.launcher.failure import WIDTH, Failure, Logs
from mxscale.launcher.supervisor import Watched
from mxscale.records import summary
from mxscale.rundir.status import DONE, FAILED, FAILURE, FINISHED, INTERRUPTED, KILLED, RankStatus, Status
from mxscale.util.errors import ConfigError, signal_name

RANKS_ENDED = "processes exited with non-zero status"  # Horovod's error after it started the ranks


def end_attempt(attempt: setup.Attempt, watched: Watched) -> Tuple[Status, Optional[Failure]]:
    """Write status.json and summary.json; return the status and, if the attempt failed, why."""
    run, number, comm = attempt.context.run, attempt.context.attempt, attempt.context.config.comm
    placed = Placement.of(attempt.plan) if attempt.plan else None
    ranks = placed.processes(comm) if placed else 0
    ended = [run.rank_status(rank, number) for rank in range(ranks)]
    gone = with_signals(watched.gone, attempt.logs, ranks) if None in ended else ()  # it reads the logs of all ranks
    merged, failure = merge(ended, watched.stopped, gone)
    if failure:
        failure = watched.failure or failure
        if failure.retryable and watched.lost_hosts:
            failure = host_failure(watched.lost_hosts, placed.hosts_of_ranks(comm), ranks)
        elif failure.retryable:
            failure = failure if gone else with_launcher_reason(failure, attempt.logs)
            failure = with_communicator_reason(failure, attempt.logs)
        merged = replace(merged, error=failure.error)
    now = int(time.time() * 1000)
    recorded = run.status().with_attempt(ended_ms=now, error=merged.error)
    merged = replace(merged, attempts=recorded.attempts, attempt=number)
    run.save(merged)
    if ranks or run.summary():  # an attempt that is stopped during set-up costs money as well
        run.save(summary.summarise(run, number))
    return merged, failure


def with_signals(gone: Sequence[Gone], logs: Logs, ranks: int) -> List[Gone]:
    """Return the ranks that ended by themselves, with the signals of their logs, and those that only a log reports."""
    signals = {rank: logs.fatal_signal(str(rank)) for rank in range(ranks)}
    reported = [rank._replace(signal=rank.signal or signals.get(rank.rank)) for rank in gone]
    return [*reported, *(Gone(rank, number) for rank, number in signals.items() if number)]


def merge(
    ranks: Sequence[Optional[RankStatus]], stopped: Optional[str], ended: Sequence[Gone] = ()
) -> Tuple[Status, Optional[Failure]]:
    """Return one status for an attempt and, if it failed, why.

    The earliest failure that is no consequence of another one is the cause. A rank that loses a peer fails as well,
    in Horovod; a rank that is killed writes no status.

    Args:
        ranks: The status of each rank; None if it wrote none.
        stopped: The reason of the stop request, if there was one.
        ended: The ranks that ended by themselves, the first one first.
    """
    written = [rank for rank in ranks if rank]
    if ranks and len(written) == len(ranks) and all(rank.exit == DONE for rank in written):
        first = written[0]
        kept = {"step": first.step, "params_sha256": first.params_sha256, "reason": first.reason}
        return Status(FINISHED, exit=DONE, **kept), None
    failures = sorted((rank for rank in written if rank.exit not in (DONE, INTERRUPTED)), key=lambda rank: rank.time_ms)
    causes = [rank for rank in failures if not rank.consequence]
    if causes:
        return _failed(causes[0].exit, f"rank {causes[0].rank}: {causes[0].error}", [causes[0].rank], retryable=False)
    if stopped or any(rank.exit == INTERRUPTED for rank in written):
        return Status(KILLED, exit=INTERRUPTED, reason=stopped or "the parent was gone"), None
    silent = [number for number, rank in enumerate(ranks) if rank is None]
    if silent:
        first = next((gone for gone in ended if gone.rank in silent), None)
        gone, number = ([first.rank], first.signal) if first else (silent, None)
        by = f" by {signal_name(number)}" if number else ""
        why = "see" if number not in (None, signal.SIGKILL) else "killed, or out of memory? see"
        error = f"rank {', '.join(map(str, gone))} ended without a status{by} ({why} ranks/launch.log)"
        return _failed(FAILURE, error, gone)
    return _failed(FAILURE, f"rank {failures[0].rank}: {failures[0].error}", [failures[0].rank])


def _failed(exit_status: int, error: str, of: List[int], retryable: bool = True) -> Tuple[Status, Failure]:
    return Status(FAILED, exit=exit_status), Failure(error, tuple(map(str, of)), retryable)


def host_failure(lost: Sequence[Host], nodes: List[Host], ranks: int) -> Failure:
    """Return the failure of lost hosts: why their ranks wrote no status, and why the other ranks failed."""
    ranks_of = {host: [rank for rank in range(ranks) if hosts.of_rank(nodes, rank) == host] for host in lost}
    named = [
        f"{host.name} ({'rank ' + ', '.join(map(str, ranks_there)) if ranks_there else 'servers'})"
        for host, ranks_there in ranks_of.items()
    ]
    logs = tuple(str(rank) for ranks_there in ranks_of.values() for rank in ranks_there)
    return Failure(f"{' and '.join(named)} can't be reached any more", logs, retryable=True)


def with_communicator_reason(failure: Failure, logs: Logs) -> Failure:
    """Return the failure; if only the loss of a rank's peers is known, with the communicator's own reason."""
    reason = reason_of_communicator(failure.error, logs.text(failure.of[0])) if failure.of else None
    return failure._replace(error=f"rank {failure.of[0]} lost its peers: {reason[:WIDTH]}") if reason else failure


def with_launcher_reason(failure: Failure, logs: Logs) -> Failure:
    """Return the failure; if its ranks wrote nothing, with the error of the launcher, which then did not start them."""
    errors = [
        line for line in logs.last_lines("launch") if re.match(rf"\w*(Error|Exception): (?!.*{RANKS_ENDED})", line)
    ]
    if not (errors and failure.of) or any(map(logs.last_lines, failure.of)):
        return failure
    return failure._replace(error=f"the ranks did not start: {errors[-1]} (ranks/launch.log)")


def restart_context(context: RunContext) -> RunContext:
    """Return the context of another attempt on the hosts that can be reached.

    What the failed attempt determined (the input of pretrained weights) stays.
    Raises ConfigError if no host can be reached, or the weights no longer exist.
    """
    run, nodes = context.run, context.resources.nodes
    lost = hosts.unreachable(list(nodes))
    left = [host for host in nodes if host not in lost]
    if nodes and not left:
        raise ConfigError("no host can be reached")
    config = run.config()
    resources = replace(
        context.resources,
        nodes=left,
        price=replace(context.resources.price, nodes=setup.billed_machine(config, left).nodes),
        started=run.attempts[-1].ended_ms / 1000,  # the machines are billed between two attempts
        continues=True,
        weights_file=setup.pretrained_file(config, run),
    )
    return replace(context, config=config, resources=resources, ranks=ranks_that_fit(config.launch.ranks, left))


def ranks_that_fit(requested: Union[int, str], nodes: Sequence[Host]) -> Optional[int]:
    """Return the number of ranks that these hosts have room for if it is less than launch.ranks, else None."""
    slots = sum(host.slots for host in nodes)
    return slots if nodes and requested != "auto" and requested > slots else None


def restart_message(failure: Failure, number: int, context: RunContext, left: Sequence[Host]) -> str:
    """Return the lines that report a failure and the restart after it.

    Args:
        context: That of the first attempt, with all hosts.
        left: The remaining hosts.
    """
    launch = context.config.launch
    text = f"failed: {failure.error}\nrestart {number} of {launch.restarts}: resuming from the last good checkpoint"
    lost = ", ".join(host.name for host in context.resources.nodes if host not in left)
    if not lost:
        return text
    remaining = ", ".join(host.name for host in left)
    if launch.ranks == "auto" or ranks_that_fit(launch.ranks, left):
        return f"{text}\nwithout {lost}: the ranks on {remaining} take over its data shards; the global batch stays"
    return f"{text}\nwithout {lost}: all {launch.ranks} ranks run on {remaining}"
