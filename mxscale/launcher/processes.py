"""Start, watch and stop the commands of a run."""

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import List, Optional

import psutil

from mxscale.launcher.commands import Command
from mxscale.launcher.context import Signals
from mxscale.launcher.failure import Failure

SCAN_EVERY_S = 1.0  # of the process table, which takes 5 ms of a core
SERVER_END_S = 5.0  # between the ends of ranks and servers, in either order


class Processes:
    """The processes of one attempt, each in its own session, so that Ctrl-C reaches the parent alone.

    The first command starts the ranks and writes to `log`. Each other command is a server and writes beside it to a log
    of its own.
    """

    def __init__(self, commands: List[Command], log):
        self.running, self._servers = [], {}  # name -> process
        self._known = {}
        self._scanned_at = 0.0
        self._ended_at = {}  # name of a server -> when its end was noticed
        try:
            for command in commands:
                if not self.running:
                    self._start(command, log)
                    continue
                with open(Path(log.name).with_name(f"{_log_name(command.name)}.log"), "ab") as server_log:
                    self._servers[command.name] = self._start(command, server_log)
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
        """Return the exit status of the ranks' command; None while it runs."""
        if time.monotonic() - self._scanned_at > SCAN_EVERY_S:
            self._scanned_at = time.monotonic()
            self._note_descendants()
        return self.running[0].poll()

    def lost(self) -> Optional[Failure]:
        """Return the failure if a server ended while ranks need it.

        A server with exit status 0 may have ended because the ranks finished; it is lost only if they keep running.
        """
        for name, process in self._servers.items():
            status = process.poll()
            if status is None:
                continue
            since = time.monotonic() - self._ended_at.setdefault(name, time.monotonic())
            if status or since > SERVER_END_S:
                how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
                return Failure(f"{name} {how} while ranks needed it", (_log_name(name),), retryable=True)
        return None

    def stop(self, patience_s: float = 5.0) -> None:
        """End all remaining processes and their descendants: SIGTERM, then SIGKILL.

        If the ranks succeeded, servers first get time to end by themselves.
        """
        self._note_descendants()
        if self.running and self.running[0].poll() == 0:
            deadline = time.monotonic() + min(SERVER_END_S, patience_s)
            while any(process.poll() is None for process in self._servers.values()) and time.monotonic() < deadline:
                time.sleep(0.02)
        for process in self._alive():
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)  # a stopped process handles no SIGTERM
        deadline = time.monotonic() + patience_s
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
            self._note_descendants()  # processes started in the meantime
        for process in self._alive():
            _signal(process, signal.SIGKILL)
        for process in self.running:
            process.wait()

    def _note_descendants(self) -> None:
        # horovodrun starts ranks in sessions of their own. If it dies they have no parent, so descendants are recorded
        # while the process tree is complete
        for process in self.running:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                for member in [parent, *parent.children(recursive=True)]:
                    self._known[member.pid] = member

    def _alive(self):
        alive = []
        for process in self._known.values():
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        for process in self.running:
            process.poll()  # reap
        return alive


def run_to_end(commands: List[Command], log: Path, limit_s: float, signals: Signals) -> Optional[str]:
    """Run the commands for at most `limit_s`; return why they failed, None if they did not or a signal stopped them."""
    deadline = time.monotonic() + limit_s
    with open(log, "wb") as file:
        processes = Processes(commands, file)
        try:
            while processes.ended() is None and not (processes.lost() or signals.reason):
                if time.monotonic() > deadline:
                    return f"not finished in {limit_s:g} s"
                time.sleep(0.05)
            status, lost = processes.ended(), processes.lost()
        finally:
            processes.stop()
    if lost:
        return lost.error
    return f"ended with status {status}; see {log}" if status else None


def _log_name(server: str) -> str:
    """Return server_0 for "server 0", whose log is ranks/server_0.log."""
    return server.replace(" ", "_")


def _signal(process, number) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
