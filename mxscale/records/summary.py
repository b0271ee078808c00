"""The figures of a whole run, from its metrics file: summary.json and the final table."""

import statistics
from typing import Optional

from mxscale.cost import run_cost
from mxscale.records import earlier_runs
from mxscale.rundir.directory import FORECAST, RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.summary import Summary
from mxscale.util import text_table

NEXT = "\n"  # within a row of the table


def summarise(run: RunDir, attempt: int) -> Summary:
    """Return the figures of the whole run; unknown ones are omitted."""
    history = run.history()
    attempts = run.attempts
    # The last attempt may have started no rank
    ranks = next((each.ranks for each in reversed(attempts) if each.ranks), None)
