"""The cells of a replay as a sweep: which can run, in which order, from which settings."""

import re
from typing import List, Mapping, Optional, Tuple

from mxscale.records import claims
from mxscale.replay import availability, inputs, results
from mxscale.replay.availability import Here
from mxscale.replay.entry import SMALL, Cell, Grid, Replay
from mxscale.replay.page import Content, Numbers, Open
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.sweep_directory import CellRecord, SweepDirectory
from mxscale.util.override_text import quoted

PLACEHOLDER = re.compile(r"\{([\w:]+)\}")
RUN = "run:"


def settings(cell: Cell, grid: Grid, finished: Mapping[str, CellRecord], cache: str, here: Here) -> List[str]:
    """Return the overrides of a cell.

    Args:
        finished: Finished cells by name.
        cache: Folder of generated inputs.
        here: Its hosts are those of the command line.

    Raises:
        KeyError: The cell starts from a run that has not finished.
    """

    def value(found: re.Match) -> str:
        name = found[1]
        return quoted(str(finished[name[len(RUN) :]].run if name.startswith(RUN) else inputs.folder_of(name, cache)))

    overrides = [PLACEHOLDER.sub(value, each) if "${" not in each else each for each in (*grid.base, *cell.overrides)]
    if cell.nodes is not None:
        named = ",".join(f"{host.name}:{host.slots}" for host in here.hosts[: cell.nodes])
        overrides += [f"launch.hosts=[{named}]", f"machine.nodes={cell.nodes}"]
    if cell.slow_hosts and here.slow_hosts:
        overrides.append(f"launch.hosts=[{','.join(here.slow_hosts[: cell.slow_hosts])}]")
    return overrides


def content(replay: Replay, scale: str, sweep: Optional[SweepDirectory], found: Here, command: str) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid, runs = replay.grid(scale), results.runs_of(sweep)
    about = grid.about
    if any(cell.slow_hosts for cell in grid.cells):
        about += "; two workers and their servers are on "
        about += "slow_hosts" if found.slow_hosts else "this machine without slow links, since slow_hosts is not set"
    records = results.latest(sweep)
    missing = []
    for cell in grid.cells:
        if cell.series is None or cell.name in runs:
            continue
        why = availability.missing(cell, found)
        missing.append(Open(cell, f"needs {'; '.join(why)}" if why else _unfinished(records.get(cell.name))))
    full, small = ([], {replay.name: runs}) if scale == SMALL else (list(runs.values()), {})
    return Content(
        replay, scale, about, command,
        [Numbers(panel, results.published(replay, panel), results.own(panel, grid, runs)) for panel in replay.panels],
        missing,
        claims.outcomes(full, claims.modelled(), small, replay.claims),
        [(name, run.id) for name, run in runs.items()],
    )  # fmt: skip


def _unfinished(record) -> str:
    if record is None:
        return "not run yet: the same command continues"
    if record.state == FINISHED:
        return f"its run directory is gone: {record.run}"
    return f"{record.state.lower()}: {record.error}" if record.error else f"{record.state.lower()}"


def runnable(grid: Grid, found: Here) -> Tuple[int, int]:
    """Return how many cells of the figure can run, and how many there are."""
    shown = [cell for cell in grid.cells if cell.series is not None]
    return sum(not availability.missing(cell, found) for cell in shown), len(shown)
