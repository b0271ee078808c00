"""How an attempt ended: one status out of those of its ranks."""

import time
from typing import List, Optional, Sequence, Tuple

from mxscale.distributed.peer_loss import reason_of_communicator
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.launcher.failure import WIDTH, Failure, Logs
from mxscale.launcher.supervisor import Watched
from mxscale.records import summary
from mxscale.rundir.directory import FAILED, FINISHED, INTERRUPTED, KILLED, RunDir


def end_attempt(
    run: RunDir, ranks: int, attempt: int, watched: Watched, stamps: dict, logs: Logs
) -> Tuple[dict, Optional[Failure]]:
    """Merge the ranks' status (ranks 0: none was started), sum the run up, and write both; (status, why it failed)."""
    status = run.read("status.json")
    status["attempts"][-1]["ended_ms"] = int(time.time() * 1000)
    words = [run.last_words(rank, attempt) for rank in range(ranks)]
    merged, failure = merge(words, watched.stopped, watched.first_gone), None
    if merged["state"] == FAILED:
        failure = watched.failure or merged.pop("failure")
        if failure.outside and watched.lost_hosts:
            failure = lost(watched.lost_hosts, run.plan().hosts, ranks)
        elif failure.outside:
            failure = with_communicator_reason(failure, logs)
        merged = {"state": FAILED, "exit": merged["exit"], "error": failure.error}
        status["attempts"][-1]["error"] = failure.error
    status.update(merged)
    status["stamps"] = stamps
    run.write("status.json", status)
    if ranks or (run.path / "summary.json").exists():  # a later attempt costs, also where it is stopped at its start
        run.write("summary.json", summary.summarise(run, attempt))
    return {**status, "summary": run.figures}, failure


def merge(ranks: list, stopped: Optional[str], first_gone: Optional[int] = None) -> dict:
    """One status out of the ranks' (None: that rank wrote none).  The earliest real failure is the cause.

    A rank whose peer is gone fails as well, in Horovod; a rank that was killed writes nothing.  Of several
    such ones, the launcher ended those that waited for `first_gone`.
    """
    written = [r for r in ranks if r]
    if ranks and len(written) == len(ranks) and all(r["exit"] == 0 for r in written):
        return {
            "state": FINISHED,
            "exit": 0,
            "error": None,
            "step": written[0]["step"],
            "params_sha256": written[0]["params_sha256"],
        }
    failures = sorted((r for r in written if r["exit"] not in (0, INTERRUPTED)), key=lambda r: r["time_ms"])
    causes = [r for r in failures if not r["consequence"]]
    if causes:
        cause = causes[0]
        return _failed(cause["exit"], f"rank {cause['rank']}: {cause['error']}", [cause["rank"]], outside=False)
    if stopped or any(r["exit"] == INTERRUPTED for r in written):
        return {"state": KILLED, "exit": INTERRUPTED, "error": None, "reason": stopped or "the parent was gone"}
    silent = [r for r, status in enumerate(ranks) if status is None]
    if silent:
        gone = [first_gone] if first_gone in silent else silent
        named = f"rank {', '.join(map(str, gone))}"
        return _failed(1, f"{named} ended without a word (killed, or out of memory? see ranks/launch.log)", gone)
    return _failed(1, f"rank {failures[0]['rank']}: {failures[0]['error']}", [failures[0]["rank"]])


def _failed(status: int, error: str, of: List[int], outside: bool = True) -> dict:
    return {"state": FAILED, "exit": status, "failure": Failure(error, tuple(map(str, of)), outside)}


def lost(gone: List[Host], nodes: Sequence[Host], ranks: int) -> Failure:
    """A host that is gone is why its ranks said nothing, and why the others failed."""
    ran = {host: [rank for rank in range(ranks) if hosts.of_rank(nodes, rank) == host] for host in gone}
    told = [f"{host.name} ({'rank ' + ', '.join(map(str, its)) if its else 'servers'})" for host, its in ran.items()]
    logs = tuple(str(rank) for its in ran.values() for rank in its)
    return Failure(f"{' and '.join(told)} can't be reached any more", logs, outside=True)


def with_communicator_reason(failure: Failure, logs: Logs) -> Failure:
    """Return the failure with the communicator's own reason if all that is known is that a rank lost its peers."""
    reason = reason_of_communicator(failure.error, logs.text(failure.of[0])) if failure.of else None
    return failure._replace(error=f"rank {failure.of[0]} lost its peers: {reason[:WIDTH]}") if reason else failure
