"""The report of an experiment: figures and tables, written to files."""

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import List, Sequence, Tuple

from mxscale.records import recorded
from mxscale.records.recorded import FINISHED, Recorded, Row
from mxscale.rendering import page
from mxscale.report import figures
from mxscale.report import rows as report
from mxscale.util import text_table
from mxscale.util.errors import ConfigError


def write(runs: Sequence[Recorded], name: str, recorded_in: str, folder: Path) -> str:
    """Write report.html, report.csv and a PNG of each figure to `folder`.

    Args:
        name: Of the experiment or sweep whose runs they are.
        recorded_in: The store or folder of the runs.

    Returns:
        The table, for the terminal.

    Raises:
        ConfigError: No run is finished, or the folder is not writable.
    """
    rows = recorded.rows(runs)
    counted = count(runs, rows)
    if not rows:
        raise ConfigError(f"report of {name}: {counted}; a report needs at least one finished run")
    drawn, missing = figures.draw(rows)
    headings, cells = report.table(rows)
    texts = {
        "report.csv": report.as_csv(rows),
        "report.html": page.render(
            Path(__file__).with_name("experiment.html"), name=name, counted=counted, figures=drawn,
            headings=headings, cells=cells, missing=missing, facts=facts(runs, recorded_in), rows=rows,
            unfinished=[run for run in runs if run.status != FINISHED],
        ),
    }  # fmt: skip
    page.save(texts, drawn, folder, "report.output")
    return f"{text_table.markdown(headings, cells)}\n{counted}\n"


def count(runs: Sequence[Recorded], rows: Sequence[Row]) -> str:
    """Return the number of runs by state, such as `12 runs, 10 finished, in 5 rows, 2 FAILED`."""
    states = Counter(run.status for run in runs)
    done = states.pop(FINISHED, 0)
    parts = [plural(len(runs), "run"), f"{done} finished, in {plural(len(rows), 'row')}" if done else "none finished"]
    return ", ".join([*parts, *(f"{number} {state}" for state, number in sorted(states.items()))])


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def facts(runs: Sequence[Recorded], recorded_in: str) -> List[Tuple[str, str]]:
    """Return (name, value) of the runs' environment."""
    started = sorted(run.started_ms for run in runs if run.started_ms)
    days = [datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC") for ms in started]
    tags = (("machine", "machine"), ("GPU", "gpu"), ("build", "build"), ("packages", "versions"),
            ("code", "git.commit"), ("data", "data.digest"))  # fmt: skip
    values = [(name, "; ".join(sorted({run.tags[tag] for run in runs if tag in run.tags}))) for name, tag in tags]
    dates = [("date", days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")] if days else []
    return [*dates, *((name, value) for name, value in values if value), ("recorded in", recorded_in)]
