"""CSV: the tables in mxscale/tables (hardware, prices, published figures, each row with its source); rows as text."""

import csv
import io
import pathlib
from typing import Any, Dict, Iterable, Iterator, List, Sequence, Tuple

from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_text

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "tables"


def read(name: str) -> List[Dict[str, str]]:
    """Return the rows of tables/<name>.csv; all cells are strings."""
    with open(FOLDER / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_user(path, where: str, columns: Iterable[str], kind: str = "") -> Iterator[Tuple[int, Dict[str, str]]]:
    """Yield (line number, row) of a user's table; cells are stripped, a missing one is "".

    Args:
        where: The file in error messages, such as `points=FILE`.
        columns: Names that the header must have.
        kind: What is expected, for the error message; by default the columns.

    Raises:
        ConfigError: The file can't be read, lacks a column, or is no valid CSV.
    """
    try:
        reader = csv.DictReader(io.StringIO(read_text(path, "utf-8-sig"), newline=""), restval="")
        missing = [name for name in columns if name not in (reader.fieldnames or [])]
        if missing:
            raise ConfigError(f"{where}: no column {', '.join(missing)}: expected {kind or ', '.join(columns)}")
        for row in reader:
            if None in row:
                raise ConfigError(f"{where}, line {reader.line_num}: more cells than columns")
            yield reader.line_num, {name: cell.strip() for name, cell in row.items()}
    except csv.Error as error:
        raise ConfigError(f"{where}, line {reader.line_num}: invalid CSV ({error})") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigError(f"{where}: cannot be read ({reason})") from None


def text(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows, the first of which is the header, as CSV."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
