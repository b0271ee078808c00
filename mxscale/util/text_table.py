"""Aligned tables for a terminal.  Pure: standard library alone."""

from typing import Container, List, Sequence


def columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> List[str]:
    """A line for each row, with each column as wide as its widest cell; right: which columns stand at the right."""
    padded = []
    for place, column in enumerate(zip(*rows)):
        width = max(map(len, column))
        padded.append([cell.rjust(width) if place in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*padded)]
