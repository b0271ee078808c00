"""The published figures that runs are held against: tables/claims.csv, each with its work and its conditions."""

from typing import Dict, List, Sequence

from mxscale.config import ConfigError, nearest
from mxscale.scale import tables


def known() -> Dict[str, Dict[str, str]]:
    """Id -> row."""
    return {row["id"]: row for row in tables.read("claims")}


def check(ids: Sequence[str]) -> List[str]:
    """The same ids; raises ConfigError where one is of no published figure."""
    there = known()
    for name in ids:
        if name not in there:
            raise ConfigError(f"claims: no published figure is called {name}{nearest(name, there)}")
    return list(ids)
