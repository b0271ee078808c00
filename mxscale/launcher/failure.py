"""Why an attempt failed, in one line, and the last log lines of the failed process."""

import re
import signal
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

SHOWN = 10  # lines of a log
WIDTH = 200  # characters of one of them

# Lines of a traceback, of MXNet's C++ stacks and of faulthandler that do not help the user
NOISE = re.compile(
    r"^\s*$|^[\s^~]+$|^\s*File \"|^\s*\[bt\]|^Stack trace|^Traceback |^\s*@\s+0x|^Extension modules|^(Current t|T)hread"
)
# How Python's faulthandler begins its report; horovodrun reports exit status 255 for each of them
SIGNALS = {"Segmentation fault": signal.SIGSEGV, "Floating": signal.SIGFPE, "Aborted": signal.SIGABRT,
           "Bus error": signal.SIGBUS, "Illegal instruction": signal.SIGILL}  # fmt: skip
FATAL = re.compile(f"^Fatal Python error: ({'|'.join(SIGNALS)})", re.MULTILINE)


class Failure(NamedTuple):
    """Why an attempt failed."""

    error: str  # one line
    of: Tuple[str, ...] = ()  # logs with details: "1" for rank 1, "server_0"
    retryable: bool = False  # an external cause: a retry may succeed


class Logs:
    """What was added to ranks/*.log since an attempt began."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._begins = {path.stem: path.stat().st_size for path in folder.glob("*.log")}

    def text(self, name: str) -> str:
        """Return all that `name` wrote; "" if nothing."""
        try:
            with open(self.folder / f"{name}.log", errors="replace") as log:
                log.seek(self._begins.get(name, 0))
                return log.read()
        except OSError:
            return ""

    def last_lines(self, name: str) -> List[str]:
        """Return the last lines without noise."""
        lines = [line.rstrip()[:WIDTH] for line in self.text(name).splitlines() if not NOISE.match(line)]
        return lines[-SHOWN:]

    def fatal_signal(self, name: str) -> Optional[int]:
        """Return the signal that ended the process by its own report; None without one."""
        match = FATAL.search(self.text(name))
        return SIGNALS[match[1]] if match else None
