"""The conclusion of a sweep: best, cheapest, fastest and failed trials, for the terminal and MLflow."""

import shlex
import time
from dataclasses import replace
from typing import Callable, Dict, NamedTuple, Optional, Sequence

from mxscale.config.schema import Tracking
from mxscale.cost import prices
from mxscale.environment import description
from mxscale.records import summary
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, FAILED, FINISHED, INTERRUPTED, KILLED, Status, Summary
from mxscale.rundir.sweep_directory import REFUSED_TRIAL, SweepDirectory, TrialRecord
from mxscale.tracking import tracker
from mxscale.tracking.sync_state import view_hint
from mxscale.util import csv_tables, text_table
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

TOP1, WALL, RATE = "best/val_top1", "time/wall_s", "throughput/median"
FORMS = {TOP1: "{:.2f} %", RATE: "{:,.0f}", WALL: "{:.1f} s", "energy/kwh": "{:.4g} kWh"}  # in the table
COSTS = ("cost/total_usd", "cost/total_eur")


class Row(NamedTuple):
    """A trial with the figures of its run."""

    trial: TrialRecord
    metrics: Dict[str, float]

    @property
    def finished(self) -> bool:
        return self.trial.state == FINISHED

    @property
    def failed(self) -> bool:
        return self.trial.state in (FAILED, REFUSED_TRIAL)

    @property
    def cost(self) -> Optional[float]:
        """The cost in USD, or in EUR if USD is unknown."""
        return next((self.metrics[name] for name in COSTS if name in self.metrics), None)

    @property
    def price_tag(self) -> str:
        """The cost with its currency; "" if it is unknown."""
        currency = "USD" if COSTS[0] in self.metrics else "EUR"
        return "" if self.cost is None else f"{prices.amount(self.cost)} {currency}"

    @property
    def state(self) -> str:
        """The state in the table of the terminal."""
        if self.trial.how == "kept":
            return "finished earlier"
        return f"{self.trial.ended}, resumed" if self.trial.how == "resumed" else self.trial.ended


# title of a chosen trial -> how it is chosen by a figure of its row
CHOICES = {
    "best": (max, lambda row: row.metrics.get(TOP1)),
    "cheapest": (min, lambda row: row.cost),
    "fastest": (min, lambda row: row.metrics.get(WALL)),
}


def row_of(trial: TrialRecord) -> Row:
    try:
        return Row(trial, RunDir(trial.run).figures if trial.run else {})
    except ConfigError:  # a damaged summary.json
        return Row(trial, {})


def end(
    sweep: SweepDirectory, tracking: Tracking, stopped: Optional[str], unwanted: Callable[[], bool] = lambda: False
) -> int:
    """Write, print and send the conclusion of a sweep; return its exit status, the worst of its trials.

    Args:
        unwanted: Returns whether to stop waiting for a slow tracking server.
    """
    rows, facts = [row_of(trial) for trial in sweep.trials()], sweep.facts()
    status = outcome(rows, stopped)
    known = sweep.status().with_attempt(ended_ms=int(time.time() * 1000))
    sweep.save(replace(status, attempts=known.attempts, attempt=known.attempt))
    best = chosen(rows).get("best")
    sweep.save(Summary(metrics=best.metrics if best else {}))
    planned = facts.get("cells", 0)
    command = ["mxscale", sweep.config().entry, "-m", *facts["command"]]
    note = note_of(command, status, best, table(rows, planned))
    sweep.write("environment.json", {"tags": {**tags(facts["command"]), "mlflow.note.content": note}})
    write_text(sweep.path / "table.csv", as_csv(rows))
    unsent = None
    if any(row.trial.run for row in rows):
        unsent = tracker.open_mirror(sweep, tracking).finish(unwanted=unwanted)
    more = [("sweep", str(sweep)), *([("view", view_hint(sweep))] if tracking.enabled else [])]
    echo(table(rows, planned, more))
    if unsent:
        echo(unsent)
    return status.exit


def outcome(rows: Sequence[Row], stopped: Optional[str]) -> Status:
    """Return one status merged from those of the trials."""
    exits = [DONE if row.trial.exit is None and row.finished else row.trial.exit for row in rows]
    if stopped or None in exits or INTERRUPTED in exits:
        return Status(KILLED, exit=INTERRUPTED, reason=stopped or "a trial was interrupted")
    bad = [row.trial for row in rows if not row.finished]
    if bad:
        return Status(FAILED, exit=max(exits), error=f"{bad[0].name}: {bad[0].error}")
    return Status(FINISHED, exit=DONE)


def chosen(rows: Sequence[Row]) -> Dict[str, Row]:
    """Return {"best": row, "cheapest": row, "fastest": row} of finished trials; one whose figure is unknown is omitted.

    The first of several equal trials is chosen.
    """
    rows_by_title = {}
    for title, (choose, figure) in CHOICES.items():
        if known := [row for row in rows if row.finished and figure(row) is not None]:
            rows_by_title[title] = choose(known, key=figure)
    return rows_by_title


def tags(command: Sequence[str]) -> Dict[str, str]:
    """Return the tags of the parent run."""
    commit, dirty = description.git_state()
    known = {"git.commit": commit, "git.dirty": dirty, "sweep.command": shlex.join(command)}
    return {name: str(value) for name, value in known.items() if value is not None}


def note_of(command: Sequence[str], status: Status, best: Optional[Row], trials: str) -> str:
    """Return the description of the parent run, Markdown; its metrics are those of the best trial."""
    whose = f"; metrics of the best trial, {best.trial.name}" if best else ""
    how = {KILLED: f"Interrupted ({status.reason})", FAILED: f"Failed: {status.error}"}.get(status.state, "Finished")
    return f"**{how}**{whose}\n\n```\n{shlex.join(command)}\n```\n\n```\n{trials}\n```"


def table(rows: Sequence[Row], planned: int = 0, more=()) -> str:
    """Return the table for the terminal.

    Args:
        planned: The number of trials that the sweep defines.
        more: Further (label, text) lines.
    """
    titles = ("", "trial", "state", "val top-1", "images/s", "wall", "cost", "energy")
    lines = [titles]
    for row in rows:
        *figures, energy = (summary.shown(row.metrics, name, form) or "" for name, form in FORMS.items())
        lines.append((f"{row.trial.number}", row.trial.name, row.state, *figures, row.price_tag, energy))
    used = [column for column in range(len(titles)) if column < 3 or any(line[column] for line in lines[1:])]
    cells = [[line[column] for column in used] for line in lines]
    text = text_table.columns(cells, range(3, len(used)), indent="  ")
    return "\n".join([*text, "", *text_table.columns([*verdict(rows, planned), *more], indent="  ")])


def verdict(rows: Sequence[Row], planned: int = 0):
    """Yield (label, text) of the best, cheapest and fastest trial and of each failed one."""
    finished, known = sum(row.finished for row in rows), chosen(rows)
    yield "finished", f"{finished} of {max(planned, len(rows))}"
    if row := known.get("best"):
        yield "best", f"{row.trial.name}: {row.metrics[TOP1]:.2f} % val top-1"
    if row := known.get("cheapest"):
        yield "cheapest", f"{row.trial.name}: {row.price_tag}"
    elif finished:
        yield "cheapest", "unknown: no price"
    if row := known.get("fastest"):
        yield "fastest", f"{row.trial.name}: {row.metrics[WALL]:.1f} s"
    for row in rows:
        if row.failed:
            yield row.state, f"{row.trial.name}: {row.trial.error}"


def as_csv(rows: Sequence[Row]) -> str:
    """Return one CSV line per trial: its settings, how it ended, and all figures of its run."""
    names = sorted({name for row in rows for name in row.metrics})
    lines = [["number", "name", "overrides", "state", "how", "exit", "error", "run", *names]]
    for row in rows:
        trial = row.trial
        lines.append([trial.number, trial.name, " ".join(trial.overrides), trial.state, trial.how, trial.exit,
                      trial.error, trial.run, *(row.metrics.get(name) for name in names)])  # fmt: skip
    return csv_tables.text(lines)
