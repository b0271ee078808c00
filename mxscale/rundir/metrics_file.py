"""Lines of metrics.jsonl and system.jsonl."""

import json
import os
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, TextIO, Tuple

from mxscale.config import typed
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

MAX_BYTES, MAX_LINE = 4 << 30, 1 << 20
LINE = {"attempt": int, "step": int, "time_ms": int, "metrics": Dict[str, Optional[float]]}


def lines_from(path: Path, offset: int) -> Iterator[Tuple[Dict[str, Any], int]]:
    """Yield (line, offset of the next one) of every complete line from a byte offset on.

    A torn last line, and damaged ones, are ignored; so is a file that does not exist.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} is damaged: {error.strerror}") from None
    with file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise ConfigError(f"{path} is damaged: it has more than {MAX_BYTES >> 30} GiB")
        file.seek(offset)
        while piece := file.readline(MAX_LINE):
            offset += len(piece)
            parsed = _parsed(piece.decode(errors="replace"))
            if parsed is not None:
                yield parsed, offset


def valid(lines: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the lines by step, without those that a later attempt replaced.

    A resumed attempt repeats the steps after its checkpoint: it replaces all lines of earlier attempts after the step
    of its own first line. At that step it replaces only the metrics that it records itself, because it may start with
    a validation that the attempt before did not reach.
    """
    first_steps: Dict[int, int] = {}  # attempt -> step of its first line
    attempts: Dict[Tuple[int, str], int] = {}  # (step, metric) -> last attempt that recorded it
    for line in lines:
        attempt, step = line["attempt"], line["step"]
        first_steps[attempt] = min(step, first_steps.get(attempt, step))
        for name in line["metrics"]:
            attempts[step, name] = max(attempt, attempts.get((step, name), attempt))

    def is_replaced(line: Dict[str, Any]) -> bool:
        attempt, step = line["attempt"], line["step"]
        if any(later > attempt and step > first_step for later, first_step in first_steps.items()):
            return True
        return any(attempts[step, name] > attempt for name in line["metrics"])

    kept = [line for line in lines if not is_replaced(line)]
    return sorted(kept, key=lambda line: (line["step"], line["time_ms"]))


def appended(path: Path) -> TextIO:
    """Open a file to append lines, after the end of a torn last line of a killed writer. Raises OSError."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    return open(path, "a")


def entry(attempt: int, step: int, time_s: float, metrics: Dict[str, Any]) -> str:
    """Return a line. `time_s`: as time.time() returns it."""
    values = {"attempt": attempt, "step": step, "time_ms": int(1000 * time_s), "metrics": metrics}
    return json.dumps(values, separators=(",", ":")) + "\n"


def _parsed(line: str) -> Optional[Dict[str, Any]]:
    """Return a line without metrics that are null; None if it is torn or damaged."""
    try:
        parsed = typed.convert(json.loads(line), LINE, "", record=True)
    except (ValueError, RecursionError):
        return None
    return {**parsed, "metrics": {name: value for name, value in parsed["metrics"].items() if value is not None}}
