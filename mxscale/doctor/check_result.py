"""One line of the doctor's table, and the table."""

from dataclasses import dataclass
from typing import List

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    name: str
    state: str  # ok | warn | fail
    cause: str  # what was found
    fix: str = ""


@dataclass(frozen=True)
class Wish:
    """What is to run here."""

    device: str = "auto"  # auto | cpu | gpu
    ranks: int = 1  # in all
    ranks_here: int = 1  # on one machine
    transport: str = "gloo"  # gloo | mpi


def count(findings: List[Finding], state: str) -> int:
    return sum(finding.state == state for finding in findings)


def table(findings: List[Finding]) -> str:
    width = max(len(finding.name) for finding in findings)
    lines = [f"{f.state:4}  {f.name:{width}}  {f.cause}{'; ' + f.fix if f.fix else ''}" for f in findings]
    warnings, failures = count(findings, WARN), count(findings, FAIL)
    lines.append(f"{count(findings, OK)} ok, {_plural(warnings, 'warning')}, {_plural(failures, 'failure')}")
    return "\n".join(lines)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
