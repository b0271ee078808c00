"""The result of one check of the doctor, and the table of all results."""

from dataclasses import dataclass
from typing import List

from mxscale.util import text_table

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's table."""

    name: str
    state: str  # ok | warn | fail
    cause: str  # what the check found
    fix: str = ""  # what to do


@dataclass(frozen=True)
class PlannedRun:
    """The run that the checks are made for."""

    device: str = "auto"  # auto | cpu | gpu
    ranks: int = 1  # on all machines
    ranks_here: int = 1  # on one machine
    transport: str = "gloo"  # gloo | mpi
    over_horovod: bool = True  # which starts the ranks; else one process drives all devices

    @property
    def needs_horovod(self) -> bool:
        return self.over_horovod and self.ranks > 1


def count(results: List[CheckResult], state: str) -> int:
    """Return the number of results in a state."""
    return sum(result.state == state for result in results)


def table(results: List[CheckResult]) -> str:
    """Return a line for each result, and the counts."""
    rows = [[result.state, result.name, "; ".join(filter(None, (result.cause, result.fix)))] for result in results]
    warnings, failures = plural(count(results, WARN), "warning"), plural(count(results, FAIL), "failure")
    return "\n".join([*text_table.columns(rows), f"{count(results, OK)} ok, {warnings}, {failures}"])


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
