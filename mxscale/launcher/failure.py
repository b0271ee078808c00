"""Why an attempt failed, in one line, and what the one that failed said last."""

import re
from pathlib import Path
from typing import List, NamedTuple, Tuple

SHOWN = 10  # lines of a log
WIDTH = 200  # characters of one of them

# Of a traceback and of MXNet's C++: what says nothing to who runs a job
NOISE = re.compile(r"^\s*$|^[\s^~]+$|^\s*File \"|^\s*\[bt\]|^Stack trace|^Traceback |^\s*@\s+0x")


class Failure(NamedTuple):
    """The end of an attempt that did not go well."""

    error: str  # one line
    of: Tuple[str, ...] = ()  # whose logs tell more: "1" of rank 1, "server_0"
    outside: bool = False  # not the program's own doing: the same may go well if tried again


class Logs:
    """The logs of an attempt: what was added to ranks/*.log since it began."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._begins = {path.stem: path.stat().st_size for path in folder.glob("*.log")}

    def text(self, name: str) -> str:
        """All that `name` wrote; "" where it wrote nothing."""
        try:
            with open(self.folder / f"{name}.log", errors="replace") as log:
                log.seek(self._begins.get(name, 0))
                return log.read()
        except OSError:
            return ""

    def last_lines(self, name: str) -> List[str]:
        """The last few that a reader gets something out of."""
        lines = [line.rstrip()[:WIDTH] for line in self.text(name).splitlines() if not NOISE.match(line)]
        return lines[-SHOWN:]
