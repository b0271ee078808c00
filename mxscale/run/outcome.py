"""How an attempt ended: one status out of those of its ranks."""

import time
from typing import List, Optional

from mxscale.run import hosts, summary
from mxscale.run.hosts import Host
from mxscale.run.rundir import FAILED, FINISHED, INTERRUPTED, KILLED, RunDir
from mxscale.run.watch import Watched


def end_attempt(run: RunDir, ranks: int, attempt: int, watched: Watched, stamps: dict) -> dict:
    """Merge the ranks' status (ranks 0: none was started), sum the run up, and write both."""
    status = run.read("status.json")
    status["attempts"][-1]["ended_ms"] = int(time.time() * 1000)
    nodes = [Host(**host) for host in (run.read("plan.json") or {}).get("hosts", [])]
    merged = merge([run.last_words(rank, attempt) for rank in range(ranks)], watched.stopped, watched.first_gone)
    if merged["state"] == FAILED and not merged.pop("own", False):
        merged["error"] = _with_lost_hosts(watched.error or merged["error"], nodes, ranks)
    status.update(merged)
    status["stamps"] = stamps
    run.write("status.json", status)
    if ranks:
        run.write("summary.json", summary.summarise(run, attempt))
    return {**status, "summary": (run.read("summary.json") or {"metrics": {}})["metrics"]}


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
        return {"state": FAILED, "exit": cause["exit"], "error": f"rank {cause['rank']}: {cause['error']}", "own": True}
    if stopped or any(r["exit"] == INTERRUPTED for r in written):
        return {"state": KILLED, "exit": INTERRUPTED, "error": None, "reason": stopped or "the parent was gone"}
    silent = [r for r, status in enumerate(ranks) if status is None]
    if silent:
        gone = [first_gone] if first_gone in silent else silent
        named = f"rank {', '.join(map(str, gone))}"
        error = f"{named} ended without a word (killed, or out of memory? see ranks/launch.log)"
        return {"state": FAILED, "exit": 1, "error": error}
    return {"state": FAILED, "exit": 1, "error": f"rank {failures[0]['rank']}: {failures[0]['error']}"}


def _with_lost_hosts(error: str, nodes: List[Host], ranks: int) -> str:
    """A host that is gone is why its ranks said nothing, and why the others failed."""
    lost = hosts.unreachable(nodes) if nodes else []
    if not lost:
        return error
    ran = {host: [rank for rank in range(ranks) if hosts.of_rank(nodes, rank) == host] for host in lost}
    told = [f"{host.name} (rank {', '.join(map(str, its)) or 'none'})" for host, its in ran.items()]
    return f"{' and '.join(told)} can't be reached any more"
