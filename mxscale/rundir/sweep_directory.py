"""The directory of a sweep, which lists its cells; each cell is a run with a directory of its own.

    runs/sweeps/<date>_<time>_<name>/
      sweep.json                  command line, swept keys, number of concurrent cells
      cells/<attempt>-<n>-*.json  a cell: settings, run directory, state; the process of the cell writes it
      stop                        stop requests, one per line; cells in other processes and on other machines poll it
      table.csv                   all cells, at the end
      config.yaml environment.json summary.json status.json alive lock tracking.json
                                  as in a run directory: the parent run in MLflow is made from them

A cell's run directory holds `cell.json`, which names the sweep.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import List, Optional

from mxscale.rundir import json_record
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILED, FINISHED, KILLED, RUNNING
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FOLDER = "sweeps"  # below config.runs
REFUSED_CELL = "REFUSED"  # state of a cell whose settings are refused: it has no run directory
CELL = "cell.json"  # in a cell's run directory


@dataclass
class CellRecord:
    """Content of cells/<attempt>-<number>-<key>.json."""

    attempt: int
    number: int
    key: str  # digest of the composed settings: the same key is the same cell
    name: str
    overrides: List[str] = field(default_factory=list)  # of swept keys
    how: str = "run"  # run | resumed | kept: an earlier attempt finished it
    run: Optional[str] = None  # its run directory
    state: str = RUNNING
    exit: Optional[int] = None
    error: Optional[str] = None


class SweepDirectory(RunDir):
    """A sweep's directory; the tracker treats it as a run."""

    def facts(self) -> dict:
        """Return the content of sweep.json."""
        return self.read("sweep.json") or {}

    @property
    def attempt(self) -> int:
        return self.facts()["attempt"]

    def in_other_process(self) -> bool:
        """Return whether the sweep itself runs in another process."""
        return self.facts()["process"] != this_process()

    def write_cell(self, cell: CellRecord) -> None:
        name, folder = f"{cell.attempt}-{cell.number:04d}-{cell.key[:12]}.json", self.path / "cells"
        folder.mkdir(exist_ok=True)
        write_text(folder / name, json.dumps(asdict(cell), indent=1) + "\n")

    def cell_records(self, key: str = "") -> List[CellRecord]:
        """Return the records of all attempts, oldest first; those of one cell if its key is given."""
        found = []
        for path in (self.path / "cells").glob(f"[0-9]*-{key[:12] or '*'}.json"):
            try:
                found.append(_with_run_status(json_record.load(path, CellRecord)))
            except ConfigError:  # damaged, or written by another version
                continue
        found = [cell for cell in found if key in ("", cell.key)]
        return sorted(found, key=lambda cell: (cell.attempt, cell.number))

    def cells(self) -> List[CellRecord]:
        """Return the latest record of each cell, by number; one whose other settings have changed is the same cell."""
        latest = {tuple(sorted(cell.overrides)) or cell.name: cell for cell in self.cell_records()}
        return sorted(latest.values(), key=lambda cell: (cell.number, cell.attempt))


def _with_run_status(cell: CellRecord) -> CellRecord:
    """Return the cell with the state of its run directory: if its process was killed, or its run resumed by hand."""
    ends = {RUNNING: (FINISHED, FAILED, KILLED), FINISHED: ()}.get(cell.state, (FINISHED,))
    try:
        status = RunDir(cell.run).status() if cell.run and ends else None
    except ConfigError:  # damaged
        return cell
    if status and status.state in ends:
        cell.state, cell.exit, cell.error = status.state, status.exit, status.error
    return cell


def this_process() -> List:
    return [socket.gethostname(), os.getpid()]


def sweep_of(run: RunDir) -> Optional[SweepDirectory]:
    """Return the sweep that a run is a cell of; None if there is none, or its directory is not on this machine."""
    cell = run.read(CELL)
    if cell is None:
        return None
    recorded = Path(cell["sweep"])
    # In a container, or where `runs` is mounted elsewhere, the same directory has another path
    for path in (recorded, run.path.parents[1] / FOLDER / recorded.name):
        if (path / "sweep.json").is_file():
            return SweepDirectory(path)
    return None
