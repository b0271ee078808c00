"""The tables in mxscale/tables: facts with sources.  Pure: standard library alone."""

import csv
import pathlib
from typing import Dict, List

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "tables"


def read(name: str) -> List[Dict[str, str]]:
    """The rows of tables/<name>.csv, their cells as text."""
    with open(FOLDER / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
