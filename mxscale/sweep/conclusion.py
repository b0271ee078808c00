"""The conclusion of a sweep: best, cheapest, fastest and failed cells, for the terminal and MLflow."""

import shlex
import time
from dataclasses import replace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from mxscale.config.schema import Tracking
from mxscale.environment import description
from mxscale.launcher.progress import echo
from mxscale.records.recorded import pareto_front
from mxscale.rundir.directory import DONE, FAILED, FINISHED, INTERRUPTED, KILLED, RunDir
from mxscale.rundir.status import Status, Summary
from mxscale.rundir.sweep_directory import REFUSED_CELL, CellRecord, SweepDirectory
from mxscale.tracking import tracker
from mxscale.tracking.sync_state import view_hint
from mxscale.util import csv_tables, text_table
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

TOP1, WALL, RATE = "best/val_top1", "time/wall_s", "throughput/median"
COSTS = ("cost/total_usd", "cost/total_eur")


class Row(NamedTuple):
    """A cell with the figures of its run."""

    cell: CellRecord
    metrics: Dict[str, float]
    on_front: bool = False  # the Pareto front of accuracy and cost

    def get(self, name: str) -> Optional[float]:
        return self.metrics.get(name)

    @property
    def finished(self) -> bool:
        return self.cell.state == FINISHED


def rows_of(sweep: SweepDirectory) -> List[Row]:
    return with_front([Row(cell, _figures(cell)) for cell in sweep.cells()])


def _figures(cell: CellRecord) -> Dict[str, float]:
    try:
        return RunDir(cell.run).figures if cell.run else {}
    except ConfigError:  # a damaged summary.json
        return {}


def end(
    sweep: SweepDirectory, tracking: Tracking, stopped: Optional[str], unwanted: Callable[[], bool] = lambda: False
) -> int:
    """Write, print and send the conclusion of a sweep; return its exit status, the worst of its cells.

    Args:
        unwanted: Returns whether to stop waiting for a slow tracking server.
    """
    rows, facts = rows_of(sweep), sweep.facts()
    chosen = named(rows)
    status = outcome(rows, stopped)
    known = sweep.status().with_attempt(ended_ms=int(time.time() * 1000))
    sweep.write_status(replace(status, attempts=known.attempts, attempt=known.attempt))
    metrics = figures(rows, facts["at_a_time"])
    sweep.write_summary(Summary(metrics, cells=chosen))
    sweep.write("environment.json", {"tags": tags(facts["command"], chosen)})
    write_text(sweep.path / "table.csv", as_csv(rows))
    unsent = None
    if any(row.cell.run for row in rows):
        unsent = tracker.open_mirror(sweep, tracking).finish(unwanted=unwanted)
    shown = [("sweep", str(sweep)), *([("view", view_hint(sweep))] if tracking.enabled else [])]
    echo(table(rows, facts.get("cells", 0), shown))
    if unsent:
        echo(unsent)
    return status.exit


def outcome(rows: Sequence[Row], stopped: Optional[str]) -> Status:
    """Return one status merged from those of the cells."""
    exits = [DONE if row.cell.exit is None and row.finished else row.cell.exit for row in rows]
    if stopped or None in exits or INTERRUPTED in exits:
        return Status(KILLED, exit=INTERRUPTED, reason=stopped or "a trial was interrupted")
    bad = [row.cell for row in rows if not row.finished]
    if bad:
        return Status(FAILED, exit=max(exits), error=f"{bad[0].name}: {bad[0].error}")
    return Status(FINISHED, exit=DONE)


def cost_of(row: Row) -> Optional[float]:
    """Return the cost in USD, or in EUR if USD is unknown."""
    return next((row.metrics[name] for name in COSTS if name in row.metrics), None)


def first(rows: Sequence[Row], of, sign: int = 1) -> Optional[Row]:
    """Return the finished cell with the lowest figure (sign -1: the highest); None if no cell has it."""
    known = [row for row in rows if row.finished and of(row) is not None]
    return min(known, key=lambda row: sign * of(row), default=None)


def best(rows):
    return first(rows, lambda row: row.get(TOP1), -1)


def cheapest(rows):
    return first(rows, cost_of)


def fastest(rows):
    """Return the cell with the shortest wall time, its set-up included."""
    return first(rows, lambda row: row.get(WALL))


def with_front(rows: Sequence[Row]) -> List[Row]:
    """Mark the Pareto front: the finished cells that no other cell beats in accuracy and cost.

    As in reports, the first of several cells that are equal in both represents them.
    """
    known = [i for i, row in enumerate(rows) if row.finished and row.get(TOP1) is not None and cost_of(row) is not None]
    front = {known[place] for place in pareto_front([(cost_of(rows[i]), rows[i].get(TOP1)) for i in known])}
    return [row._replace(on_front=i in front) for i, row in enumerate(rows)]


def named(rows: Sequence[Row]) -> dict:
    """Return {"best": name, ..., "failed": [names]}; keys without a value are omitted."""
    chosen = {"best": best(rows), "cheapest": cheapest(rows), "fastest": fastest(rows)}
    lists = {
        "failed": [row.cell.name for row in rows if failed(row)],
        "pareto": [row.cell.name for row in rows if row.on_front],
    }
    return {**{label: row.cell.name for label, row in chosen.items() if row}, **lists}


def failed(row: Row) -> bool:
    return row.cell.state in (FAILED, REFUSED_CELL)


def figures(rows: Sequence[Row], at_a_time: int) -> Dict[str, float]:
    """Return the metrics of the parent run; their names differ from those of runs, so that charts of runs omit it."""
    known = {
        "sweep/cells": len(rows),
        "sweep/finished": sum(row.finished for row in rows),
        "sweep/failed": sum(map(failed, rows)),
        "sweep/best_val_top1": best(rows) and best(rows).get(TOP1),
        "sweep/fastest_wall_s": fastest(rows) and fastest(rows).get(WALL),
    }
    usd = [row.get(COSTS[0]) for row in rows if row.cell.run]
    if usd and None not in usd:
        known["sweep/cheapest_usd"] = cheapest(rows) and cost_of(cheapest(rows))
        if at_a_time == 1:  # else concurrent cells share the billed machine
            known["sweep/cost_usd"] = sum(usd)
    return {name: float(value) for name, value in known.items() if value is not None}


def tags(command: Sequence[str], chosen: dict) -> Dict[str, str]:
    """Return the tags of the parent run. `chosen` is the result of `named`."""
    commit, dirty = description.git_state()
    known = {"git.commit": commit, "git.dirty": dirty, "sweep.command": shlex.join(command)}
    for label, names in chosen.items():
        known[f"sweep.{label}"] = names if isinstance(names, str) else " ".join(names) or None
    return {name: str(value) for name, value in known.items() if value is not None}


STATES = {FINISHED: "finished", FAILED: "failed", REFUSED_CELL: "refused", KILLED: "interrupted"}


def state_of(row: Row) -> str:
    if row.cell.how == "kept":
        return "finished earlier"
    state = STATES.get(row.cell.state, "not started" if row.cell.run is None else "interrupted")
    return f"{state}, resumed" if row.cell.how == "resumed" else state


def money(row: Row) -> str:
    for name in COSTS:
        if name in row.metrics:
            return f"{row.metrics[name]:.4f} {name[-3:].upper()}"
    return ""


def number(value: Optional[float], form: str) -> str:
    return "" if value is None else form.format(value)


def table(rows: Sequence[Row], planned: int = 0, more=()) -> str:
    """Return the table for the terminal; * marks the Pareto front of accuracy and cost.

    Args:
        planned: The number of cells that the sweep defines.
        more: Further (label, text) lines.
    """
    titles = ("", "trial", "state", "val top-1", "images/s", "wall", "cost")
    lines = [titles]
    for row in rows:
        star = "*" if row.on_front and len(rows) > 1 else ""
        lines.append((f"{row.cell.number}{star}", row.cell.name, state_of(row), number(row.get(TOP1), "{:.2f} %"),
                      number(row.get(RATE), "{:,.0f}"), number(row.get(WALL), "{:.1f} s"), money(row)))  # fmt: skip
    used = [column for column in range(len(titles)) if column < 3 or any(line[column] for line in lines[1:])]
    cells = [[line[column] for column in used] for line in lines]
    text = text_table.columns(cells, range(3, len(used)), indent="  ")
    return "\n".join([*text, "", *text_table.columns([*verdict(rows, planned), *more], indent="  ")])


def verdict(rows: Sequence[Row], planned: int = 0):
    """Yield (label, text) of the best, cheapest and fastest cell and of each failed one."""
    finished = sum(row.finished for row in rows)
    yield "finished", f"{finished} of {max(planned, len(rows))}"
    if found := best(rows):
        yield "best", f"{found.cell.name}: {found.get(TOP1):.2f} % val top-1"
    if found := cheapest(rows):
        yield "cheapest", f"{found.cell.name}: {money(found)}"
    elif finished:
        yield "cheapest", "unknown: no price"
    if found := fastest(rows):
        yield "fastest", f"{found.cell.name}: {found.get(WALL):.1f} s"
    if any(cost_of(row) is not None for row in rows) and len(rows) > 1:
        yield "*", "no other cell is both as accurate and as cheap (Pareto)"
    for row in rows:
        if failed(row):
            yield state_of(row), f"{row.cell.name}: {row.cell.error}"


def as_csv(rows: Sequence[Row]) -> str:
    """Return one CSV line per cell: its settings, how it ended, and all figures of its run."""
    names = sorted({name for row in rows for name in row.metrics})
    lines = [["number", "name", "overrides", "state", "how", "exit", "error", "run", "pareto", *names]]
    for row in rows:
        cell = row.cell
        lines.append([cell.number, cell.name, " ".join(cell.overrides), cell.state, cell.how, cell.exit, cell.error,
                      cell.run, row.on_front, *(row.metrics.get(name) for name in names)])  # fmt: skip
    return csv_tables.text(lines)
