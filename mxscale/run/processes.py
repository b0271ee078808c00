"""Start, watch and stop the commands of a run.  One way to stop, whatever was started."""

import os
import signal
import subprocess
import time
from typing import List, Optional

import psutil

from mxscale.run.launch import Command

LOOK_EVERY_S = 1.0  # at the whole process table: 5 ms of a core


class Processes:
    """The commands of one attempt, each in a session of its own, so that Ctrl-C reaches the parent alone."""

    def __init__(self, commands: List[Command], log):
        self.running = [
            subprocess.Popen(
                command.argv, env=command.env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip
        self._known = {}
        self._looked_at = 0.0

    def ended(self) -> Optional[int]:
        """None while all run; the first bad exit status as soon as one ends badly; 0 when all ended well."""
        if time.monotonic() - self._looked_at > LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._note_descendants()
        statuses = [process.poll() for process in self.running]
        bad = [status for status in statuses if status]
        if bad:
            return bad[0]
        return None if None in statuses else 0

    def stop(self, patience_s: float = 5.0) -> None:
        """End whatever is left: SIGTERM, then SIGKILL, to the commands and all that they started."""
        self._note_descendants()
        for process in self._alive():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
            self._note_descendants()  # what was started meanwhile
        for process in self._alive():
            _signal(process, signal.SIGKILL)
        for process in self.running:
            process.wait()

    def _note_descendants(self) -> None:
        # horovodrun puts ranks into sessions of their own; when it dies they are nobody's children,
        # so who belongs to us is noted while the tree still stands.
        for process in self.running:
            try:
                parent = psutil.Process(process.pid)
                for found in [parent, *parent.children(recursive=True)]:
                    self._known[found.pid] = found
            except psutil.NoSuchProcess:
                continue

    def _alive(self):
        alive = []
        for process in self._known.values():
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.NoSuchProcess:
                continue
        for process in self.running:
            process.poll()  # reap
        return alive


def _signal(process, number) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def available_cores() -> int:
    """Cores that this process may use, a container's CPU quota included."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = open("/sys/fs/cgroup/cpu.max").read().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores
