"""Hostfiles, as Open MPI, `horovodrun --hostfile`, Slurm and the MPI operator of Kubernetes write them."""

import re
from typing import Dict, List

from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_text

NAME = r"[A-Za-z0-9_][\w.-]*"  # a name that begins with - would be an option of ssh
LINE = re.compile(rf"({NAME})(?::([1-9]\d{{0,3}})|\s+slots\s*=\s*([1-9]\d{{0,3}}))?(\s+max[-_]slots\s*=\s*\d+)?")


def read(path: str) -> List[str]:
    """Return the hosts of a hostfile in the form of the `launch.hosts` list.

    A line is `HOST slots=RANKS`, `HOST:RANKS` or `HOST` (one rank). The ranks of repeated lines add up.
    `#` starts a comment. Raises ConfigError.
    """
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"launch.hosts={path}: {getattr(error, 'strerror', None) or error}; "
            "expected a list such as '[a:4,b:4]', or a hostfile"
        ) from None
    slots: Dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = LINE.fullmatch(text)
        if not match:
            raise ConfigError(
                f"launch.hosts={path} line {number}: {text}: expected HOST slots=RANKS, HOST:RANKS or HOST; "
                "the user belongs in ~/.ssh/config"
            )
        slots[match[1]] = slots.get(match[1], 0) + int(match[2] or match[3] or 1)
    if not slots:
        raise ConfigError(f"launch.hosts={path}: no host in that file")
    return [f"{host}:{count}" for host, count in slots.items()]
