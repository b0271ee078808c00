"""The tables in mxscale/tables: hardware, prices and published figures, each row with its source."""

import csv
import pathlib
from typing import Dict, List

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "tables"


def read(name: str) -> List[Dict[str, str]]:
    """Return the rows of tables/<name>.csv; all cells are strings."""
    with open(FOLDER / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
