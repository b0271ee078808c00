"""Text tables: aligned columns for a terminal, and Markdown."""

from typing import Container, List, Sequence


def columns(rows: Sequence[Sequence[str]], right: Container[int] = (), indent: str = "") -> List[str]:
    """Return a line for each row, each column as wide as its widest cell.

    Args:
        right: Indices of the right-aligned columns.
    """
    return [indent + "  ".join(cells).rstrip() for cells in _padded(rows, right)]


def markdown(headings: Sequence[str], cells: Sequence[Sequence[str]], left: int = 1, padded: bool = True) -> str:
    """Return a Markdown table.

    Args:
        cells: Rows of cells; `|` is escaped.
        left: Number of left-aligned columns; the others are right-aligned.
        padded: Whether cells are padded to be readable as plain text; False for long cells.
    """
    rows = [[text.replace("|", "\\|").replace("\n", " ") for text in row] for row in [headings, *cells]]
    right = range(left, len(headings))
    if padded:
        rows = _padded(rows, right, least=3)
    widths = [len(text) if padded else 3 for text in rows[0]]
    rows.insert(1, ["-" * (width - 1) + ":" if i in right else "-" * width for i, width in enumerate(widths)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _padded(rows: Sequence[Sequence[str]], right: Container[int], least: int = 0) -> List[List[str]]:
    """Return the rows with each cell padded to its column's width, `least` or more."""
    widths = [max(least, *map(len, column)) for column in zip(*rows)]
    return [
        [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        for row in rows
    ]
