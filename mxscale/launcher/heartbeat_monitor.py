"""Find stalled ranks: the parent's view of `ranks/<r>.alive`, which each rank writes every two seconds.

One rank is stalled if it writes nothing for `launch.stall_s` and its process is stopped, gone or unreachable. All
ranks are stalled if none finishes a step for that long, or for `SLOWER` times the longest step so far. Start-up and
checkpoints are exempt; after a resumed validation the first two steps have `launch.start_timeout_s`.
"""

import json
import os
import shlex
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from mxscale.config.schema import Launch
from mxscale.distributed.heartbeat import Phase
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.launcher.failure import Failure
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, INTERRUPTED

CHECK_EVERY_S = 1.0
HELD_UP_S = 3.0  # a longer time between two checks: this process itself was stopped, or waited for a host
QUIET_S = 6.0  # three heartbeats: the limit once other ranks have reported a lost peer
SLOWER = 10
SHOWN = 4  # ranks whose phase an error lists


class Beat(NamedTuple):
    """The content of a rank's file, and since when it is unchanged."""

    pid: int
    phase: str  # of distributed/heartbeat.py
    progress: int  # steps and validation batches so far
    idle_s: float  # since the last of them
    longest_s: float  # between two of them
    steps: int  # so far, without validation batches
    silent_since: float  # time.monotonic() when this process first saw the latest write


class HeartbeatMonitor:
    """The heartbeats of one attempt's ranks.

    Args:
        nodes: The hosts of the ranks; empty if they run on this machine.
    """

    def __init__(self, run: RunDir, launch: Launch, attempt: int, ranks: int, nodes: Sequence[Host]):
        self.run, self.attempt, self.ranks, self.nodes = run, attempt, ranks, list(nodes)
        self.stall_s, self.start_timeout_s = launch.stall_s, launch.start_timeout_s
        self._beats: Dict[int, Beat] = {}
        self._touched: Dict[int, int] = {}
        self._checked_at = time.monotonic()

    def begun(self) -> bool:
        """Return whether every rank has finished two steps or validation batches, the first of which may compile."""
        return len(self._beats) == self.ranks and all(beat.progress > 1 for beat in self._beats.values())

    def crashed_at_start(self) -> bool:
        """Return whether a rank ended without a status before any rank's first step, and none reported a cause.

        MXNet with Horovod ends in a segmentation fault in about one of several hundred starts
        (docs/experiments/crashes-and-hangs.md).
        """
        self._read(time.monotonic())
        ended = [self.run.rank_status(rank, self.attempt) for rank in range(self.ranks)]
        reported = any(status and status.exit and not status.consequence for status in ended)
        return None in ended and not reported and not any(beat.progress for beat in self._beats.values())

    def stalled(self, limit_s: Optional[float] = None) -> Optional[Failure]:
        """Return the failure if ranks are stalled, else None. `limit_s` replaces launch.stall_s for a silent rank."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_EVERY_S:
            return None
        self._read(now)
        self._checked_at = now
        return self._silent(now, limit_s or self.stall_s) or self._idle()

    def _read(self, now: float) -> None:
        since = now - self._checked_at
        held_up = since if since > HELD_UP_S else 0.0
        for rank in range(self.ranks):
            beat = self._beats.get(rank)
            if beat and held_up:
                self._beats[rank] = beat._replace(silent_since=beat.silent_since + held_up)
            try:
                with open(self.run.rank_alive(rank)) as file:  # opening makes NFS ask its server
                    touched, fields = os.fstat(file.fileno()).st_mtime_ns, json.load(file)
            except (OSError, ValueError):  # not started, or about to be written
                continue
            if fields.pop("attempt") == self.attempt and touched != self._touched.get(rank):
                self._touched[rank] = touched
                self._beats[rank] = Beat(**fields, silent_since=now)

    def _silent(self, now: float, limit_s: float) -> Optional[Failure]:
        for rank, beat in self._beats.items():
            silent_s = now - beat.silent_since
            if silent_s < limit_s or self.run.rank_status(rank, self.attempt):
                continue
            cause = self._cause_of_silence(rank, beat.pid)
            if cause is None:  # running, but too busy to write: checked again after another limit_s
                self._beats[rank] = beat._replace(silent_since=now)
                continue
            return Failure(f"no heartbeat of rank {rank} for {silent_s:.0f} s{cause}", (str(rank),), retryable=True)
        return None

    def _cause_of_silence(self, rank: int, pid: int) -> Optional[str]:
        """Return what is wrong with the rank's process, as the end of an error message; None if it runs."""
        host = hosts.of_rank(self.nodes, rank)
        if host is None or host.here:
            return WRONG.get(_state(_stat(pid, str(self.run))))
        answer = hosts.ssh(host, f"{self._is_ours(pid)} && cat /proc/{pid}/stat")
        if answer.returncode == 255:
            return f": {host.name} can't be reached any more"
        wrong = WRONG.get(_state("" if answer.returncode else answer.stdout))  # a greeting may come before it
        return wrong and f"{wrong} (on {host.name})"

    def _idle(self) -> Optional[Failure]:
        if not self.begun() or any(beat.phase == Phase.CHECKPOINT for beat in self._beats.values()):
            return None
        if any(self.run.rank_status(rank, self.attempt) for rank in range(self.ranks)):
            return None  # they are ending
        idle_s = min(beat.idle_s for beat in self._beats.values())
        limit_s = max(self.stall_s, SLOWER * max(beat.longest_s for beat in self._beats.values()))
        if min(beat.steps for beat in self._beats.values()) < 2:  # validations of a resume so far: a step may compile
            limit_s = max(limit_s, self.start_timeout_s)
        if idle_s < limit_s:
            return None
        return self.attributed(f"no rank has finished a step for {idle_s:.0f} s")

    def attributed(self, error: str) -> Failure:
        """Attribute a stall to the ranks that the others wait for, which are in any phase but the exchange."""
        late = [rank for rank, beat in self._beats.items() if beat.phase != Phase.EXCHANGE]
        blamed = late if len(late) < self.ranks else []
        phases = [f"rank {rank} in phase {self._beats[rank].phase}" for rank in sorted(late or self._beats)[:SHOWN]]
        waiting = "the others wait: " if blamed else ""
        return Failure(f"{error}; {waiting}{', '.join(phases)}", tuple(map(str, blamed)), retryable=True)

    def end_elsewhere(self) -> List[Host]:
        """Kill the remaining ranks on other hosts and return the unreachable hosts.

        Only SIGKILL ends a stopped process.
        """
        self._read(time.monotonic())
        with_ranks = {hosts.of_rank(self.nodes, rank) for rank in range(self.ranks)}
        # Hosts that run only servers are included: ranks may wait for these servers
        by_host: Dict[Host, List[int]] = {node: [] for node in self.nodes if not node.here and node not in with_ranks}
        for rank in range(self.ranks):
            host, status = hosts.of_rank(self.nodes, rank), self.run.rank_status(rank, self.attempt)
            if host is None or host.here or (status and status.exit in (DONE, INTERRUPTED)):
                continue
            pids = by_host.setdefault(host, [])  # even if its ranks have ended: they may have lost their peers
            if status is None and rank in self._beats:
                pids.append(self._beats[rank].pid)
        kills = [[f"{self._is_ours(pid)} && kill -9 {pid}" for pid in pids] for pids in by_host.values()]
        servers = KILL_SERVERS.format(run=shlex.quote(str(self.run)))
        answers = hosts.ssh_each(list(by_host), ["; ".join([*kill, servers, "true"]) for kill in kills])
        return [host for host, answer in zip(by_host, answers) if answer.returncode]

    def _is_ours(self, pid: int) -> str:
        """Return a shell command that succeeds if the process is still the rank, not one that reuses its id."""
        return f"grep -qaF {shlex.quote(str(self.run))} /proc/{pid}/cmdline 2>/dev/null"


# Parameter servers write no heartbeat. Complete arguments are compared: this shell's command contains them too
KILL_SERVERS = """for process in /proc/[0-9]*; do
  arguments=$(tr '\\0' '\\n' <$process/cmdline) 2>/dev/null
  echo "$arguments" | grep -qxF mxscale.distributed.parameter_server && echo "$arguments" \\
    | grep -qxF {run} && kill -9 ${{process#/proc/}}
done"""
STOPPED = ": its process is stopped (SIGSTOP, or a debugger?)"
GONE = ": its process is gone (killed, or out of memory? see ranks/launch.log)"
WRONG = {"T": STOPPED, "t": STOPPED, "Z": GONE, "X": GONE, "": GONE}  # by the state in /proc/PID/stat, see proc(5)


def _stat(pid: int, run: str) -> str:
    """Return /proc/PID/stat of a process of this machine; "" if it no longer is a rank of the run."""
    process = Path("/proc", str(pid))
    try:
        ours = os.fsencode(run) in (process / "cmdline").read_bytes().split(b"\0")
        return (process / "stat").read_text(errors="replace") if ours else ""
    except OSError:
        return ""


def _state(stat: str) -> str:
    """Return the letter of the state, which follows the program's name; "" if the process is gone."""
    return stat.rpartition(")")[2].strip()[:1]
