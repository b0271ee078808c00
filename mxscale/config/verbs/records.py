"""Settings of verbs that read prices, records and published results, and of `doctor`."""

from dataclasses import dataclass, field
from typing import List, Optional

from mxscale.config.setting import setting
from mxscale.config.verbs.common import as_json
from mxscale.util.errors import ConfigError


@dataclass(frozen=True)
class Prices:
    update: Optional[str] = setting(
        None, "SkyPilot's aws/vms.csv, whose prices are added to machine.prices (RUNS/prices.csv)"
    )
    as_of: Optional[str] = setting(None, "date of the imported prices, YYYY-MM-DD; null: today")
    source: Optional[str] = setting(
        None, "name of the source, to which the file's digest is appended; null: the file's name"
    )
    minutes: Optional[List[float]] = setting(
        None, "[SET-UP,RUN]: calculate the bill of these minutes", unit="min", low=0, high=10**7
    )

    def __post_init__(self):
        if self.minutes is not None and len(self.minutes) != 2:
            raise ConfigError(f"minutes={self.minutes}: expected [SET-UP,RUN], such as 'minutes=[10,10]'")


@dataclass(frozen=True)
class Score:
    points: Optional[str] = setting(
        None, "CSV with the columns of mxscale/tables/published_scaling.csv", required="points=PATH"
    )
    json: bool = as_json("one JSON object")


@dataclass(frozen=True)
class Report:
    action: str = setting("report", "what is reported", choices=("report", "claims"))
    experiment: Optional[str] = setting(
        None, "name of the MLflow experiment; null: tracking.experiment, or all experiments for claims"
    )
    compare: Optional[List[str]] = setting(None, "two runs [A,B]")
    output: Optional[str] = setting("report", "output folder", required="name the folder to write to")


@dataclass(frozen=True)
class ReportVerb:
    report: Report = field(default_factory=Report)


@dataclass(frozen=True)
class Replay:
    replay: Optional[str] = setting(None, "name of a replay, or all; null: list them")
    scale: str = setting("full", "full: as published; small: a scaled-down analogue", choices=("full", "small"))
    slow_hosts: Optional[List[str]] = setting(
        None, "scale=small: hosts with slow links for trials that compare exchanges, [A:1,B:1] (docs/replays.md)"
    )
    again: bool = setting(False, "true: run finished runs again")
    output: Optional[str] = setting("replays", "folder of the pages", required="name the folder to write to")


@dataclass(frozen=True)
class Sync:
    run: Optional[str] = setting(None, "the run directory", required="run=PATH")


@dataclass(frozen=True)
class Doctor:
    json: bool = as_json("one JSON object with all facts")
