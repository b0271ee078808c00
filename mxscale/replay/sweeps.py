"""The cells of a replay as a sweep: which can run, in which order, from which settings."""

import re
from typing import Dict, List, Optional, Sequence, Tuple

from mxscale.records import claims, reduced
from mxscale.replay import availability, inputs, results
from mxscale.replay.entry import SMALL, Cell, Grid, Replay
from mxscale.replay.page import Content, Numbers, Open
from mxscale.report.modelled_claims import MODELS
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.sweep_directory import SweepDirectory

PLACEHOLDER = re.compile(r"\{([\w:]+)\}")
RUN = "run:"
MINUTES = 8  # the longest small replay on two cores


def settings(cell: Cell, grid: Grid, finished: Dict[str, str], cache: str, hosts: Sequence) -> List[str]:
    """Return the overrides of a cell.

    Args:
        finished: Run directories of finished cells by name.
        cache: Folder of generated inputs.
        hosts: launch.hosts of the command line.

    Raises:
        KeyError: The cell starts from a run that has not finished.
    """

    def value(found: re.Match) -> str:
        name = found[1]
        return finished[name[len(RUN) :]] if name.startswith(RUN) else inputs.folder_of(name, cache)

    overrides = [PLACEHOLDER.sub(value, each) if "${" not in each else each for each in (*grid.base, *cell.overrides)]
    if cell.nodes is not None:
        named = ",".join(f"{host.name}:{host.slots}" for host in hosts[: cell.nodes])
        overrides += [f"launch.hosts=[{named}]", f"machine.nodes={cell.nodes}"]
    return overrides


def content(
    replay: Replay, scale: str, sweep: Optional[SweepDirectory], found: availability.Here, command: str
) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid, runs = replay.grid(scale), results.runs_of(sweep)
    records = {cell.name: cell for cell in (sweep.cells() if sweep else [])}
    missing = []
    for cell in grid.cells:
        if cell.series is None or cell.name in runs:
            continue
        record = records.get(cell.name)
        why = availability.missing(cell, found)
        missing.append(Open(cell, f"needs {'; '.join(why)}" if why else _unfinished(record)))
    decided = reduced.evaluate({replay.name: runs}) if scale == SMALL else {}
    full = [] if scale == SMALL else list(runs.values())
    return Content(
        replay, scale, grid.about, command,
        [Numbers(panel, results.published(replay, panel), results.own(panel, grid, runs)) for panel in replay.panels],
        missing,
        claims.outcomes(full, MODELS, decided, replay.claims),
        [(name, run.id) for name, run in runs.items()],
    )  # fmt: skip


def _unfinished(record) -> str:
    if record is None:
        return "not run yet: the same command continues"
    return f"{record.state.lower()}: {record.error}" if record.error else f"{record.state.lower()}"


def runnable(grid: Grid, found: availability.Here) -> Tuple[int, int]:
    """Return how many cells of the figure can run, and how many there are."""
    shown = [cell for cell in grid.cells if cell.series is not None]
    return sum(not availability.missing(cell, found) for cell in shown), len(shown)


def finished_runs(sweep: SweepDirectory) -> Dict[str, str]:
    """Return the run directories of the finished cells by name."""
    return {cell.name: cell.run for cell in sweep.cells() if cell.state == FINISHED and cell.run}
