"""The cells of a replay as a sweep: which can run, in which order, from which settings."""

import os
import re
from contextlib import contextmanager
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from mxscale.records import claims, reduced
from mxscale.replay import availability, inputs, network, results
from mxscale.replay.entry import SMALL, Cell, Grid, Link, Replay
from mxscale.replay.page import Content, Numbers, Open
from mxscale.rundir.directory import FINISHED
from mxscale.rundir.sweep_directory import CellRecord, SweepDirectory
from mxscale.util.override_text import quoted

PLACEHOLDER = re.compile(r"\{([\w:]+)\}")
RUN = "run:"


def settings(cell: Cell, grid: Grid, finished: Mapping[str, CellRecord], cache: str, hosts: Sequence) -> List[str]:
    """Return the overrides of a cell.

    Args:
        finished: Finished cells by name.
        cache: Folder of generated inputs.
        hosts: launch.hosts of the command line.

    Raises:
        KeyError: The cell starts from a run that has not finished.
    """

    def value(found: re.Match) -> str:
        name = found[1]
        return quoted(str(finished[name[len(RUN) :]].run if name.startswith(RUN) else inputs.folder_of(name, cache)))

    overrides = [PLACEHOLDER.sub(value, each) if "${" not in each else each for each in (*grid.base, *cell.overrides)]
    if cell.nodes is not None:
        named = ",".join(f"{host.name}:{host.slots}" for host in hosts[: cell.nodes])
        overrides += [f"launch.hosts=[{named}]", f"machine.nodes={cell.nodes}"]
    return overrides


@contextmanager
def linked(link: Optional[Link]) -> Iterator[List[str]]:
    """Give ranks and servers limited links within the block; yields the overrides for it."""
    if link is None or network.possible():
        yield []
        return
    with network.Network(link.ranks + link.servers, link.rate, machines=link.ranks) as nodes:
        before = dict(os.environ)
        os.environ.update(nodes.env())
        try:
            yield [f"launch.hosts={nodes.hosts}"]
        finally:
            os.environ.clear()
            os.environ.update(before)


def content(
    replay: Replay, scale: str, sweep: Optional[SweepDirectory], found: availability.Here, command: str
) -> Content:
    """Return what the page of a replay shows, from the records of its sweep."""
    grid, runs = replay.grid(scale), results.runs_of(sweep)
    about = grid.about
    if any(cell.link for cell in grid.cells) and (why := network.possible()):
        about += f"; without limited links here, because {why}"
    records = results.latest(sweep)
    missing = []
    for cell in grid.cells:
        if cell.series is None or cell.name in runs:
            continue
        why = availability.missing(cell, found)
        missing.append(Open(cell, f"needs {'; '.join(why)}" if why else _unfinished(records.get(cell.name))))
    decided = reduced.evaluate({replay.name: runs}) if scale == SMALL else {}
    full = [] if scale == SMALL else list(runs.values())
    return Content(
        replay, scale, about, command,
        [Numbers(panel, results.published(replay, panel), results.own(panel, grid, runs)) for panel in replay.panels],
        missing,
        claims.outcomes(full, claims.modelled(), decided, replay.claims),
        [(name, run.id) for name, run in runs.items()],
    )  # fmt: skip


def _unfinished(record) -> str:
    if record is None:
        return "not run yet: the same command continues"
    if record.state == FINISHED:
        return f"its run directory is gone: {record.run}"
    return f"{record.state.lower()}: {record.error}" if record.error else f"{record.state.lower()}"


def runnable(grid: Grid, found: availability.Here) -> Tuple[int, int]:
    """Return how many cells of the figure can run, and how many there are."""
    shown = [cell for cell in grid.cells if cell.series is not None]
    return sum(not availability.missing(cell, found) for cell in shown), len(shown)
