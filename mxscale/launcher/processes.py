"""Start, watch and stop the commands of a run.  One way to stop, whatever was started."""

import signal
import subprocess
import time
from pathlib import Path
from typing import List, NamedTuple, Optional

import psutil

from mxscale.launcher.commands import Command

LOOK_EVERY_S = 1.0  # at the whole process table: 5 ms of a core
LEAVE_S = 5.0  # between the end of the ranks and that of what served them, whichever is seen first


class Lost(NamedTuple):
    """A command that served the ranks and is gone."""

    name: str
    status: int  # as subprocess has it

    def __str__(self):
        how = f"was ended by signal {-self.status}" if self.status < 0 else f"ended with status {self.status}"
        return f"{self.name} {how} while ranks needed it"


def file_name(name: str) -> str:
    """server_0, of the command "server 0"; its log is ranks/server_0.log."""
    return name.replace(" ", "_")


class Processes:
    """The commands of one attempt, each in a session of its own, so that Ctrl-C reaches the parent alone.

    The first is the ranks' and writes to `log`; each of the others serves it, and writes beside it under its name.
    """

    def __init__(self, commands: List[Command], log):
        self.running, self._served = [], {}  # name -> process
        self._known = {}
        self._looked_at = 0.0
        self._gone_at = {}  # name of a serving command -> when it was seen to have ended
        try:
            for command in commands:
                if not self.running:
                    self._start(command, log)
                    continue
                with open(Path(log.name).with_name(f"{file_name(command.name)}.log"), "ab") as its_own:
                    self._served[command.name] = self._start(command, its_own)
        except OSError:
            self.stop(patience_s=0)
            raise

    def _start(self, command: Command, log) -> subprocess.Popen:
        self.running.append(
            subprocess.Popen(
                command.argv, env=command.env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )  # fmt: skip
        return self.running[-1]

    def ended(self) -> Optional[int]:
        """None while the ranks' command runs; then its exit status."""
        if time.monotonic() - self._looked_at > LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._note_descendants()
        return self.running[0].poll()

    def lost(self) -> Optional[Lost]:
        """A serving command that ended while the ranks need it.

        One that ends well may have done so because the ranks are through; it is lost where they go on without it.
        """
        for name, process in self._served.items():
            status = process.poll()
            if status is None:
                continue
            since = time.monotonic() - self._gone_at.setdefault(name, time.monotonic())
            if status or since > LEAVE_S:
                return Lost(name, status)
        return None

    def stop(self, patience_s: float = 5.0) -> None:
        """End whatever is left: SIGTERM, then SIGKILL, to the commands and all that they started.

        Those that served ranks which have ended may end by themselves first.
        """
        self._note_descendants()
        if self.running and self.running[0].poll() == 0:
            deadline = time.monotonic() + min(LEAVE_S, patience_s)
            while any(process.poll() is None for process in self._served.values()) and time.monotonic() < deadline:
                time.sleep(0.02)
        for process in self._alive():
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)  # one that is stopped would not hear of it
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
