"""Plans as an aligned table, and as CSV."""

import os
from typing import Callable, Dict, List, Sequence, Tuple

from mxscale.config.backends import MODELLED, SERVERS
from mxscale.perfmodel.scenarios import Plans
from mxscale.util import csv_tables, text_table
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

# column -> (heading, formatter, whether it is right-aligned)
COLUMNS: Dict[str, Tuple[str, Callable, bool]] = {
    "instance": ("instance", str, False),
    "nodes": ("nodes", str, True),
    "devices": ("devices", str, True),
    "comm": ("comm", str, False),
    "servers": ("servers", str, True),
    "batch": ("batch", str, True),
    "precision": ("precision", str, False),
    "compression": ("compression", str, False),
    "double_buffering": ("double buffering", {True: "yes", False: "no"}.get, False),
    "images_per_s": ("images/s", "{:,.0f}".format, True),
    "efficiency": ("efficiency", "{:.1%}".format, True),
    "epochs": ("epochs", "{:.3g}".format, True),
    "hours": ("hours", lambda hours: f"{hours:.2g}" if hours < 0.1 else f"{hours:,.{2 if hours < 10 else 1}f}", True),
    "kwh": ("kWh", lambda energy: f"{energy:,.{2 if energy < 10 else 0}f}", True),
    "usd": ("USD", lambda money: f"{money:,.2f}", True),
    "eur": ("EUR", lambda money: f"{money:,.2f}", True),
    "bound": ("bound by", str, False),
}
# shown only if plans differ in them
SWEPT = ("instance", "comm", "servers", "batch", "precision", "compression", "double_buffering", "epochs")

MOST = 30  # rows of the table

ORDER = (*COLUMNS, "step_s", "compute_s", "exchange_s", "exposed_s", "stragglers_s", "input_s")  # of the CSV


def table(rows: Sequence[Dict], marked: Sequence[int] = ()) -> str:
    """Return the aligned table without the columns that all rows share (`common`); rows in `marked` get a star."""
    shown = [name for name in COLUMNS if name not in common(rows)]
    cells = [[COLUMNS[name][0] for name in shown]] + [[cell(name, row) for name in shown] for row in rows]
    right = [place for place, name in enumerate(shown) if COLUMNS[name][2]]
    lines = enumerate(text_table.columns(cells, right), -1)  # the first line is the headings
    return "\n".join(("* " if row in marked else "  ") + line for row, line in lines)


def common(rows: Sequence[Dict]) -> List[str]:
    """Return the names of the settings that all rows share, of those that plans can differ in."""
    return [name for name in SWEPT if len({row[name] for row in rows}) == 1]


def cell(name: str, row: Dict) -> str:
    """Return a value of a plan as text."""
    value = row[name]
    if value is None:
        return "unknown"
    if name == "servers" and not value:
        return "on nodes" if MODELLED[row["comm"]] == SERVERS else "none"
    return COLUMNS[name][1](value)


def sentence(row: Dict) -> str:
    """Return a plan in one line."""
    how = row["comm"]
    if MODELLED[how] == SERVERS:
        how = f"{row['servers']} parameter servers" if row["servers"] else "parameter servers on the nodes"
    how += "" if row["compression"] == "none" else f", {row['compression']}"
    how += ", double buffering" if row["double_buffering"] else ""
    money = [f"{cell(name, row)} {name.upper()}" for name in ("usd", "eur") if row[name] is not None]
    ends = row["hours_90"] and [COLUMNS["hours"][1](hours) for hours in row["hours_90"]]
    between = f"; with its error {ends[0]} to {ends[1]} h" if ends else ""
    return (
        f"{row['nodes']} x {row['instance']}, {how}, batch {row['batch']} {row['precision']}: "
        f"{cell('hours', row)} h, {' = '.join(money) or 'cost unknown'}, "
        f"{cell('images_per_s', row)} images/s, {cell('efficiency', row)} efficiency{between}"
    )


def write(plans: Plans, folder: str) -> str:
    """Write all plans into FOLDER/plan.csv, unknown values as empty cells; return its path. Raises ConfigError."""
    path = os.path.join(folder, "plan.csv")
    rows = ([_plain(value) for value in row] for row in zip(*(plans[name].tolist() for name in ORDER)))
    try:
        os.makedirs(folder, exist_ok=True)
        write_text(path, csv_tables.text([ORDER, *rows]))
    except OSError as error:
        raise ConfigError(f"plan.output={folder}: {error.strerror}") from None
    return path


def _plain(value):
    if isinstance(value, float):
        return "" if value != value else f"{value:.6g}"
    return value
