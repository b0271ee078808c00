"""CSV: the tables in mxscale/tables (hardware, prices, published figures, each row with its source); rows as text."""

import csv
import io
import pathlib
from typing import Any, Dict, Iterable, List, Sequence

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "tables"


def read(name: str) -> List[Dict[str, str]]:
    """Return the rows of tables/<name>.csv; all cells are strings."""
    with open(FOLDER / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows, the first of which is the header, as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
