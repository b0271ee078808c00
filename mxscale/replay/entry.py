"""What a replay is: its trials at each scale, and the panels of its figure. The entries are beeva.py, aws.py, ..."""

import re
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.records.claims import calculated

FULL, SMALL = "full", "small"
SCALES = (FULL, SMALL)
PUBLISHED, HERE = "published", "here"
RATIO = "ratio"  # a key of claims.CALCULATIONS

# metric of a run -> (axis label, calculation)
METRICS: Dict[str, Tuple[str, str]] = {
    "throughput/median": ("images/s", "value"),
    "scaling/efficiency": ("scaling efficiency, %", "percent"),
    "val/top1": ("val top-1, %", "value"),
    "train/top1": ("train top-1, %", "value"),
    "time/wall_s": ("time, min", "minutes"),
    "cost/total_eur": ("cost, EUR", "value"),
}


@dataclass(frozen=True)
class Trial:
    """One run of a replay.

    Attributes:
        name: Unique within the replay, part of the run's name.
        series: Series of the figure; None: a run that others start from, which is not shown.
        x: Place on the x axis.
        overrides: Settings in Hydra's grammar; {run:NAME} is replaced by the run directory of an earlier trial.
        verb: train or finetune.
        needs: Requirements: `gpus:NAME:COUNT` (any NAME if empty), `mpi`, `input:NAME`, `build:NAME` of MXNet,
            `file:PATH`, and `set:KEY`, a setting that the command line gives.
        nodes: Number of machines, taken from launch.hosts; None: this machine.
        slow_hosts: Number of hosts with slow links, taken from `slow_hosts` if that is set; else it runs here.
    """

    name: str
    series: Optional[str]
    x: str
    overrides: Tuple[str, ...] = ()
    verb: str = "train"
    needs: Tuple[str, ...] = ()
    nodes: Optional[int] = None
    slow_hosts: int = 0


def on_devices(name: str, series: str, count: int, *overrides: str, **fields: Any) -> Trial:
    """Return a trial on devices of this machine; fields: further ones of the trial."""
    return Trial(name, series, devices(count), (f"launch.ranks={count}", *overrides), **fields)


class Planned(NamedTuple):
    """A run of a trial; seed: None for the only one."""

    trial: Trial
    seed: Optional[int] = None

    @property
    def name(self) -> str:
        """Its name, unique in the sweep."""
        return self.trial.name if self.seed is None else f"{self.trial.name}-seed{self.seed}"


@dataclass(frozen=True)
class Grid:
    """The trials of a replay at one scale.

    Attributes:
        base: Settings of all trials.
        about: How this grid differs from the published one.
    """

    trials: Tuple[Trial, ...]
    base: Tuple[str, ...] = ()
    about: str = ""

    @property
    def shown(self) -> Tuple[Trial, ...]:
        """The trials of the figure."""
        return tuple(trial for trial in self.trials if trial.series is not None)

    def planned(self, seeds: Sequence[int]) -> List[Planned]:
        """Return the runs: each trial once, or with seeds a round of the shown ones for each, after the others."""
        if not seeds:
            return [Planned(trial) for trial in self.trials]
        first = [Planned(trial) for trial in self.trials if trial.series is None]
        return first + [Planned(trial, seed) for seed in seeds for trial in self.shown]


class Reference(NamedTuple):
    """The number that a panel relates another one to; None: its series, or place, is that of the other number."""

    text: str  # for axis and caption
    series: Optional[str] = None
    published: Optional[str] = None  # place on the x axis among the published numbers
    here: Optional[str] = None  # and among those of runs here

    def of(self, series: str, x: str, by: str) -> Tuple[str, str]:
        """Return series and place of the reference of a number that is PUBLISHED or from HERE."""
        return self.series or series, (self.published if by == PUBLISHED else self.here) or x


@dataclass(frozen=True)
class Panel:
    """One metric of the figure.

    Attributes:
        metric: A key of METRICS.
        way: A key of claims.CALCULATIONS, of a value and its `reference` if there is one; that of METRICS by default.
        label: Axis label; that of METRICS by default.
    """

    metric: str
    way: Optional[str] = None
    reference: Optional[Reference] = None
    label: Optional[str] = None

    @property
    def name(self) -> str:
        """Its metric in tables/published_figures.csv."""
        return f"{self.way} {self.metric}" if self.way else self.metric

    @property
    def axis(self) -> str:
        return self.label or METRICS[self.metric][0]

    def shown(self, value: float, reference: Optional[float]) -> Optional[float]:
        """Return what the panel shows of a metric's value; None if its reference is unknown."""
        values = (value,) if self.reference is None else (value, reference)
        return None if None in values else calculated(self.way or METRICS[self.metric][1], values)

    def absolute(self, value: float) -> Optional[float]:
        """Return the value of a metric in its own unit if the panel shows its ratio to a reference."""
        return calculated(METRICS[self.metric][1], [value]) if self.way == RATIO else None


def relative(metric: str, reference: Reference) -> Panel:
    """Return a panel of the ratios to a reference."""
    return Panel(metric, RATIO, reference, f"{METRICS[metric][0].split(',')[0]}, {reference.text} = 1")


@dataclass(frozen=True)
class Replay:
    """A published figure or table, and the runs that make the same one here.

    The published numbers are those of tables/published_figures.csv, its claims those of tables/claims.csv.

    Attributes:
        shows: The figure or table, as a title.
    """

    name: str
    work: str
    shows: str
    panels: Tuple[Panel, ...]
    full: Grid
    small: Grid

    def grid(self, scale: str) -> Grid:
        return {FULL: self.full, SMALL: self.small}[scale]


def slug(name: str) -> str:
    """Return a file name of a series: `double-buffering-fp16` for `double buffering, fp16`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def devices(count: int) -> str:
    """Return `1 device` or `2 devices`, a place on the x axis."""
    return f"{count} device{'s' * (count > 1)}"
