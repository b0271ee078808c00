"""The end of a sweep: which cell was best, cheapest, fastest, which failed; on the terminal and for MLflow's parent."""

import csv
import io
import json
import time
from dataclasses import replace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from mxscale.environment import description
from mxscale.launcher.progress import say
from mxscale.records import pareto
from mxscale.rundir.directory import DONE, FAILED, FINISHED, INTERRUPTED, KILLED, RunDir
from mxscale.rundir.status import Status
from mxscale.rundir.summary import Summary
from mxscale.sweep.sweep import REFUSED_CELL, Note, Sweep
from mxscale.tracking import tracker
from mxscale.tracking.sync_state import view_hint
from mxscale.util import text_table
from mxscale.util.atomic_files import write_text

TRACKING_S = 30.0  # for MLflow's parent
TOP1, WALL, RATE = "best/val_top1", "time/wall_s", "throughput/median"
COSTS = ("cost/total_usd", "cost/total_eur")


class Row(NamedTuple):
    """A cell with the figures of its run."""

    note: Note
    metrics: Dict[str, float]
    on_front: bool = False  # Pareto's of accuracy and cost

    def get(self, name: str) -> Optional[float]:
        return self.metrics.get(name)

    @property
    def finished(self) -> bool:
        return self.note.state == FINISHED


def rows_of(sweep: Sweep) -> List[Row]:
    found = []
    for note in sweep.cells():
        found.append(Row(note, RunDir(note.run).figures if note.run else {}))
    return with_front(found)


def end(sweep: Sweep, stopped: Optional[str], unwanted: Callable[[], bool] = lambda: False) -> int:
    """Sum the sweep up, show it, send it; its exit status: the worst of its cells'.

    unwanted: whether to wait no longer for a slow tracking server.
    """
    rows, facts = rows_of(sweep), sweep.facts()
    chosen = named(rows)
    status = outcome(rows, stopped)
    now = int(time.time() * 1000)
    known = sweep.status().with_attempt(ended_ms=now)
    sweep.write_status(replace(status, attempts=known.attempts, attempt=known.attempt))
    append_lines(sweep, rows, now)
    metrics = figures(rows, facts["at_a_time"])
    sweep.write_summary(Summary(metrics, cells=chosen))
    sweep.write("environment.json", {"tags": tags(facts["command"], chosen)})
    write_text(sweep.path / "table.csv", as_csv(rows))
    config = sweep.config()
    unsent = None
    if any(row.note.run for row in rows):
        unsent = tracker.open_mirror(sweep, config.tracking).finish(TRACKING_S, unwanted)
    shown = [("sweep", str(sweep)), *([("to see it", view_hint(sweep))] if config.tracking.enabled else [])]
    say(table(rows, facts.get("cells", 0), shown))
    if unsent:
        say(str(unsent))
    return status.exit


def outcome(rows: Sequence[Row], stopped: Optional[str]) -> Status:
    """Return one status merged from those of the cells."""
    exits = [DONE if row.note.exit is None and row.finished else row.note.exit for row in rows]
    if stopped or None in exits or INTERRUPTED in exits:
        return Status(KILLED, exit=INTERRUPTED, reason=stopped or "a cell was interrupted")
    bad = [row.note for row in rows if not row.finished]
    if bad:
        return Status(FAILED, exit=max(exits), error=f"{bad[0].name}: {bad[0].error}")
    return Status(FINISHED, exit=DONE)


def append_lines(sweep: Sweep, rows: Sequence[Row], time_ms: int) -> None:
    """A line for each cell of this attempt in metrics.jsonl: its number is the step."""
    lines, attempt = [], sweep.attempt
    names = {TOP1: "cell/val_top1", WALL: "cell/wall_s", RATE: "cell/images_per_s", COSTS[0]: "cell/cost_usd"}
    for row in rows:
        values = {label: row.metrics[name] for name, label in names.items() if name in row.metrics}
        if values and row.note.attempt == attempt and row.note.how != "kept":
            line = {"attempt": attempt, "step": row.note.number, "time_ms": time_ms, "metrics": values}
            lines.append(json.dumps(line) + "\n")
    with open(sweep.metrics_file, "a") as file:
        file.writelines(lines)


# ---------------------------------------------------------------- best, cheapest, fastest, failed


def cost_of(row: Row) -> Optional[float]:
    """USD, or EUR where that alone is known."""
    return next((row.metrics[name] for name in COSTS if name in row.metrics), None)


def first(rows: Sequence[Row], of, sign: int = 1) -> Optional[Row]:
    """The finished cell with the least of a figure (sign -1: the most); None where nobody has it."""
    known = [row for row in rows if row.finished and of(row) is not None]
    return min(known, key=lambda row: sign * of(row), default=None)


def best(rows):
    return first(rows, lambda row: row.get(TOP1), -1)


def cheapest(rows):
    return first(rows, cost_of)


def fastest(rows):
    """The least wall time, set-up of the run included."""
    return first(rows, lambda row: row.get(WALL))


def with_front(rows: Sequence[Row]) -> List[Row]:
    """The same, with who is on Pareto's front: of the finished cells those that no other beats in accuracy and cost.

    By the rule of reports: of cells that are equal in both, the first stands for all.
    """
    known = [i for i, row in enumerate(rows) if row.finished and row.get(TOP1) is not None and cost_of(row) is not None]
    front = {known[place] for place in pareto.front([(cost_of(rows[i]), rows[i].get(TOP1)) for i in known])}
    return [row._replace(on_front=i in front) for i, row in enumerate(rows)]


def named(rows: Sequence[Row]) -> dict:
    """{"best": name, ..., "failed": [names]}; what nobody is, is not there."""
    chosen = {"best": best(rows), "cheapest": cheapest(rows), "fastest": fastest(rows)}
    lists = {
        "failed": [row.note.name for row in rows if failed(row)],
        "pareto": [row.note.name for row in rows if row.on_front],
    }
    return {**{word: row.note.name for word, row in chosen.items() if row}, **lists}


def failed(row: Row) -> bool:
    return row.note.state in (FAILED, REFUSED_CELL)


def figures(rows: Sequence[Row], at_a_time: int) -> Dict[str, float]:
    """The parent's metrics.  Names of its own: no chart of runs takes the parent for one of them."""
    known = {
        "sweep/cells": len(rows),
        "sweep/finished": sum(row.finished for row in rows),
        "sweep/failed": sum(map(failed, rows)),
        "sweep/best_val_top1": best(rows) and best(rows).get(TOP1),
        "sweep/fastest_wall_s": fastest(rows) and fastest(rows).get(WALL),
    }
    usd = [row.get(COSTS[0]) for row in rows if row.note.run]
    if usd and None not in usd:
        known["sweep/cheapest_usd"] = cheapest(rows) and cost_of(cheapest(rows))
        if at_a_time == 1:  # else cells shared what was paid for
            known["sweep/cost_usd"] = sum(usd)
    return {name: float(value) for name, value in known.items() if value is not None}


def tags(command: Sequence[str], chosen: dict) -> Dict[str, str]:
    """The parent's; chosen: of `named`."""
    commit, dirty = description.git_state()
    told = {"git.commit": commit, "git.dirty": dirty, "sweep.command": " ".join(command)}
    for word, names in chosen.items():
        told[f"sweep.{word}"] = names if isinstance(names, str) else " ".join(names) or None
    return {name: str(value) for name, value in told.items() if value is not None}


# ---------------------------------------------------------------- the table

WORDS = {FINISHED: "finished", FAILED: "failed", REFUSED_CELL: "refused", KILLED: "interrupted"}


def state_of(row: Row) -> str:
    if row.note.how == "kept":
        return "finished before"
    word = WORDS.get(row.note.state, "not begun" if row.note.run is None else "interrupted")
    return f"{word}, resumed" if row.note.how == "resumed" else word


def money(row: Row) -> str:
    for name in COSTS:
        if name in row.metrics:
            return f"{row.metrics[name]:.4f} {name[-3:].upper()}"
    return ""


def number(value: Optional[float], form: str) -> str:
    return "" if value is None else form.format(value)


def table(rows: Sequence[Row], planned: int = 0, more=()) -> str:
    """What the terminal shows at the end of a sweep; * marks Pareto's front of accuracy and cost.

    planned: how many cells there were to be.
    """
    titles = ("", "cell", "state", "val top-1", "images/s", "wall", "cost")
    lines = [titles]
    for row in rows:
        star = "*" if row.on_front and len(rows) > 1 else ""
        lines.append((f"{row.note.number}{star}", row.note.name, state_of(row), number(row.get(TOP1), "{:.2f} %"),
                      number(row.get(RATE), "{:,.0f}"), number(row.get(WALL), "{:.1f} s"), money(row)))  # fmt: skip
    used = [column for column in range(len(titles)) if column < 3 or any(line[column] for line in lines[1:])]
    text = text_table.columns([[line[column] for column in used] for line in lines], right=range(3, len(used)))
    notes = list(verdict(rows, planned)) + list(more)
    width = max(len(word) for word, _ in notes)
    return "\n".join([*(f"  {line}" for line in text), "", *(f"  {word:<{width}}  {value}" for word, value in notes)])


def verdict(rows: Sequence[Row], planned: int = 0):
    """(word, what is to be said) of best, cheapest, fastest and each that failed."""
    finished = sum(row.finished for row in rows)
    yield "finished", f"{finished} of {max(planned, len(rows))}"
    if found := best(rows):
        yield "best", f"{found.note.name}: {found.get(TOP1):.2f} % val top-1"
    if found := cheapest(rows):
        yield "cheapest", f"{found.note.name}: {money(found)}"
    elif finished:
        yield "cheapest", "unknown: no price"
    if found := fastest(rows):
        yield "fastest", f"{found.note.name}: {found.get(WALL):.1f} s"
    if any(cost_of(row) is not None for row in rows) and len(rows) > 1:
        yield "*", "no other cell is both as accurate and as cheap (Pareto)"
    for row in rows:
        if failed(row):
            yield state_of(row), f"{row.note.name}: {row.note.error}"


def as_csv(rows: Sequence[Row]) -> str:
    """All cells, a line each: what they were, how they ended, all figures of their runs."""
    names = sorted({name for row in rows for name in row.metrics})
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    out.writerow(["number", "name", "overrides", "state", "how", "exit", "error", "run", "pareto", *names])
    for row in rows:
        note = row.note
        out.writerow([note.number, note.name, " ".join(note.overrides), note.state, note.how, note.exit, note.error,
                      note.run, row.on_front, *(row.metrics.get(name) for name in names)])  # fmt: skip
    return file.getvalue()
