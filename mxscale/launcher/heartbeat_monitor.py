"""Whether ranks live, as their parent sees it: ranks/<r>.alive, which each rank touches every two seconds.

A rank is told to be stalled where it touches nothing for `launch.stall_s` and its process, looked at where it
runs, is stopped, gone, or out of reach; and all of them where none gets on with its work for that long, or for
`SLOWER` times the longest step so far.  Neither while they start, nor while one writes a checkpoint.
"""

import json
import os
import shlex
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

import psutil

from mxscale.config.schema import Launch
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.launcher.failure import Failure
from mxscale.rundir.directory import DONE, INTERRUPTED, RunDir

LOOK_EVERY_S = 1.0
HELD_UP_S = 3.0  # longer between two looks: this process was stopped itself, or asked a host
QUIET_S = 6.0  # three touches: enough to be asked about once others have lost touch
SLOWER = 10
WAITS = (
    "communicators.py:",
    "metrics.py:",
    "timing.py:",
)  # where in mxscale/train a rank waits: for others, for what its devices were given
TOLD = 4  # ranks of which it is said where they are
SAID = ("pid", "doing", "moves", "idle_s", "longest_s", "at")  # of a rank's file, into Sign


class Sign(NamedTuple):
    """What a rank's file says, and since when nothing was added to it."""

    pid: int
    doing: str  # starting | training | saving
    moves: int  # steps, and batches of validations, so far
    idle_s: float  # since its last step, or batch of a validation
    longest_s: float  # of them so far
    at: str  # FILE:LINE (FUNCTION) of its main thread
    silent_since: float  # on the clock of time.monotonic, at first sight of the newest touch


class Lives:
    """The ranks of one attempt.  nodes: where they run, []: on this machine."""

    def __init__(self, run: RunDir, launch: Launch, attempt: int, ranks: int, nodes: Sequence[Host]):
        self.run, self.attempt, self.ranks, self.nodes = run, attempt, ranks, list(nodes)
        self.stall_s = launch.stall_s
        self.visible = launch.kind == "process"  # in a container their numbers are others
        self._signs: Dict[int, Sign] = {}
        self._touched: Dict[int, int] = {}
        self._looked_at = time.monotonic()

    def begun(self) -> bool:
        """Whether every rank has made its first step."""
        return len(self._signs) == self.ranks and all(sign.doing != "starting" for sign in self._signs.values())

    def crashed_at_start(self) -> bool:
        """Whether a rank ended without a word before its first step.

        MXNet with Horovod did so, by a segmentation fault, in one of some hundred starts (docs/log.md).
        """
        self._read(time.monotonic())
        silent = [rank for rank in range(self.ranks) if self.run.last_words(rank, self.attempt) is None]
        return bool(silent) and not any(sign.moves for sign in self._signs.values())

    def stalled(self, limit_s: Optional[float] = None) -> Optional[Failure]:
        """The failure that a stall is; None while there is none.  limit_s: in place of launch.stall_s."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return None
        self._read(now)
        self._looked_at = now
        return self._silent(now, limit_s or self.stall_s) or self._idle()

    def _read(self, now: float) -> None:
        since = now - self._looked_at
        away = since if since > HELD_UP_S else 0.0
        for rank in range(self.ranks):
            known = self._signs.get(rank)
            if known and away:
                self._signs[rank] = known._replace(silent_since=known.silent_since + away)
            try:
                with open(self.run.rank_alive(rank)) as file:  # opened, so that NFS asks its server
                    touched, said = os.fstat(file.fileno()).st_mtime_ns, json.load(file)
            except (OSError, ValueError):  # not begun, or about to be written
                continue
            if said["attempt"] == self.attempt and touched != self._touched.get(rank):
                self._touched[rank] = touched
                self._signs[rank] = Sign(**{key: said[key] for key in SAID}, silent_since=now)

    # ------------------------------------------------------------ a rank that says nothing

    def _silent(self, now: float, limit_s: float) -> Optional[Failure]:
        for rank, sign in self._signs.items():
            silent = now - sign.silent_since
            if silent < limit_s or self.run.last_words(rank, self.attempt):
                continue
            why = self._look_at(rank, sign.pid)
            if why is None:  # it is there, only too busy to touch: asked again in a while
                self._signs[rank] = sign._replace(silent_since=now)
                continue
            return Failure(f"rank {rank} says nothing for {silent:.0f} s{why}", (str(rank),), outside=True)
        return None

    def _look_at(self, rank: int, pid: int) -> Optional[str]:
        """What is wrong with the process of a silent rank, as it ends a sentence; None where nothing is."""
        host = hosts.of_rank(self.nodes, rank)
        if not self.visible:
            return ""
        if host is None or host.here:
            return WRONG.get(_state(pid, str(self.run)))
        answer = hosts.ask(host, f"{self._is_ours(pid)} && cat /proc/{pid}/stat")
        if answer.returncode == 255:
            return f": {host.name} can't be reached any more"
        letter = answer.stdout.rpartition(")")[2].strip()[:1]  # after the name of the program
        wrong = WRONG.get("gone" if answer.returncode else {"T": "stopped", "t": "stopped", "Z": "gone"}.get(letter))
        return wrong and f"{wrong} (on {host.name})"

    # ------------------------------------------------------------ ranks that do not get on

    def _idle(self) -> Optional[Failure]:
        if not self.begun() or any(sign.doing == "saving" for sign in self._signs.values()):
            return None
        if any(self.run.last_words(rank, self.attempt) for rank in range(self.ranks)):
            return None  # they are ending
        idle = min(sign.idle_s for sign in self._signs.values())
        if idle < max(self.stall_s, SLOWER * max(sign.longest_s for sign in self._signs.values())):
            return None
        return self._where_they_are(f"no rank has finished a step for {idle:.0f} s")

    def never_begun(self, limit_s: float) -> Failure:
        """The failure that ranks are which say that they live and do not come to their second step."""
        return self._where_they_are(f"no second step within {limit_s:g} s of the first line (launch.start_timeout_s)")

    def _where_they_are(self, wrong: str) -> Failure:
        late = [rank for rank, sign in self._signs.items() if not sign.at.startswith(WAITS)]
        blamed = late if len(late) < self.ranks else []
        places = [f"rank {rank} is at {self._signs[rank].at}" for rank in sorted(late or self._signs)[:TOLD]]
        told = f"{'the others wait: ' if blamed else ''}{', '.join(places)}"
        return Failure(f"{wrong}; {told}", tuple(map(str, blamed)), outside=True)

    # ------------------------------------------------------------ the end of those on other hosts

    def end_elsewhere(self) -> List[Host]:
        """Kill what is left of the ranks on other hosts (a stopped one ends by nothing else); who can't be reached."""
        self._read(time.monotonic())
        with_ranks = {hosts.of_rank(self.nodes, rank) for rank in range(self.ranks)}
        # Those that have servers alone are asked too: they may be what the ranks wait for
        by_host: Dict[Host, List[int]] = {node: [] for node in self.nodes if not node.here and node not in with_ranks}
        for rank in range(self.ranks):
            host, words = hosts.of_rank(self.nodes, rank), self.run.last_words(rank, self.attempt)
            if host is None or host.here or (words and words["exit"] in (DONE, INTERRUPTED)):
                continue
            pids = by_host.setdefault(host, [])  # asked although its ranks may have ended: they may have lost touch
            if words is None and rank in self._signs:
                pids.append(self._signs[rank].pid)
        kills = [[f"{self._is_ours(pid)} && kill -9 {pid}" for pid in pids] for pids in by_host.values()]
        servers = KILL_SERVERS.format(run=shlex.quote(str(self.run)))
        answers = hosts.ask_each(list(by_host), ["; ".join([*kill, servers, "true"]) for kill in kills])
        return [host for host, answer in zip(by_host, answers) if answer.returncode]

    def _is_ours(self, pid: int) -> str:
        """A command: whether the process is still the rank; one that got its number later must be left alone."""
        return f"grep -qaF {shlex.quote(str(self.run))} /proc/{pid}/cmdline 2>/dev/null"


# Parameter servers of a run, which touch no file of their own.  Whole words of a command: this shell's has them too
KILL_SERVERS = """for process in /proc/[0-9]*; do
  words=$(tr '\\0' '\\n' <$process/cmdline) 2>/dev/null
  echo "$words" | grep -qxF mxscale.distributed.parameter_server && echo "$words" \\
    | grep -qxF {run} && kill -9 ${{process#/proc/}}
done"""
WRONG = {
    "stopped": ": its process is stopped (SIGSTOP, or a debugger?)",
    "gone": ": its process is gone (killed, or out of memory? see ranks/launch.log)",
}


def _state(pid: int, run: str) -> Optional[str]:
    """stopped | gone, of a process of this machine; None where it goes on."""
    try:
        process = psutil.Process(pid)
        status = process.status()
        if run not in process.cmdline():
            return "gone"
    except psutil.NoSuchProcess:
        return "gone"
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return "stopped"
    return "gone" if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else None
