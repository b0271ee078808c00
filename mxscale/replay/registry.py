"""The registry of replays: the entries of all works, by name."""

from typing import Dict, List

from mxscale.replay import adaltas, aws, beeva, chainermn
from mxscale.replay.entry import Replay
from mxscale.util.errors import ConfigError, nearest

REPLAYS: Dict[str, Replay] = {
    entry.name: entry for work in (beeva, aws, adaltas, chainermn) for entry in work.REPLAYS
}
ALL = "all"


def chosen(name: str) -> List[Replay]:
    """Return the replay of a name, or all. Raises ConfigError for an unknown name."""
    if name == ALL:
        return list(REPLAYS.values())
    if name not in REPLAYS:
        raise ConfigError(f"mxscale replay {name}: no such replay{nearest(name, REPLAYS)}; `mxscale replay` lists them")
    return [REPLAYS[name]]
