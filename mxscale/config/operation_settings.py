"""Settings of where a run executes and is recorded: ranks, machine, budget, tracking, rerun, sweep."""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.setting import setting


@dataclass(frozen=True)
class Launch:
    """Ranks, hosts, timeouts and restarts."""

    ranks: Any = setting(
        "auto", "number of ranks; auto: the slots of hosts, else one per GPU, else up to 2", keyword="auto", low=1
    )
    hosts: Any = setting(None, "hosts and ranks such as [a:4,b:4], or a hostfile; null: this machine")
    device: str = setting("auto", "device of each rank", choices=("auto", "cpu", "gpu"))
    threads: Optional[int] = setting(None, "OpenMP threads per rank; null: cores / ranks", low=1, high=1024)
    setup_minutes: float = setting(0.0, "billed time before the run, for booting and copying data", unit="min", low=0)
    start_timeout_s: float = setting(600.0, "time limit of the start, and of the first two steps", unit="s", low=1)
    stop_grace_s: float = setting(120.0, "time from a stop request until ranks are killed", unit="s", low=1)
    stall_s: float = setting(15.0, "time without a heartbeat after which a rank has stalled", unit="s", low=5)
    restarts: int = setting(0, "automatic restarts after failures that the run itself did not cause", low=0)


@dataclass(frozen=True)
class Machine:
    """The price of a machine. Without a price, costs are reported as unknown."""

    provider: str = setting("local", "source of the price", choices=PRICE_SOURCES)
    instance: Optional[str] = setting(None, "instance type, such as p3.16xlarge")
    region: Optional[str] = setting(None, "region, such as eu-west-1")
    market: str = setting("on_demand", "market of the price", choices=("on_demand", "spot"))
    as_of: Optional[str] = setting(None, "date of the price, YYYY-MM-DD; null: the newest price")
    usd_per_hour: Optional[float] = setting(None, "price of one node", unit="USD/h", low=0)
    eur_per_hour: Optional[float] = setting(None, "price of one node", unit="EUR/h", low=0)
    nodes: int = setting(1, "number of machines that are billed", low=1)
    billing: str = setting("per_second", "unit of time", choices=("per_second", "per_minute", "per_hour"))
    purchase: Optional[float] = setting(None, "owned: purchase price of one node in machine.currency", low=0)
    currency: str = setting("usd", "owned: currency of purchase and per_kwh", choices=("usd", "eur"))
    years: Optional[float] = setting(None, "owned: years of use", unit="years", low=0.001)
    utilisation: float = setting(1.0, "owned: share of all hours in use", low=0.001, high=1)
    watts: Optional[float] = setting(None, "power draw of one node in use, cooling included", unit="W", low=0)
    per_kwh: Optional[float] = setting(None, "owned: price of a kilowatt-hour in machine.currency", low=0)
    gco2_per_kwh: Optional[float] = setting(None, "CO2 of a kilowatt-hour", unit="g/kWh", above=0)
    prices: Optional[str] = setting(None, "price table read in addition to the package's; null: RUNS/prices.csv")


@dataclass(frozen=True)
class Budget:
    """Limits on the cost and the time of a run, all attempts together."""

    max_usd: Optional[float] = setting(None, "stop at a checkpoint before the cost exceeds this", unit="USD", above=0)
    max_eur: Optional[float] = setting(None, "stop at a checkpoint before the cost exceeds this", unit="EUR", above=0)
    minutes: Optional[float] = setting(None, "stop at a checkpoint before this time is over", unit="min", above=0)
    dry_run: bool = setting(False, "prepare the run, print its size, time and cost, and exit")
    images_per_s: Optional[float] = setting(None, "dry_run: throughput of all devices", unit="images/s", above=0)

    @property
    def bounds(self) -> Dict[str, float]:
        """The limits on the cost that are set: {"usd": ..., "eur": ...}."""
        limits = {"usd": self.max_usd, "eur": self.max_eur}
        return {currency: most for currency, most in limits.items() if most is not None}

    @property
    def stated(self) -> str:
        """The limits as they are set, such as "budget.max_usd=2 and budget.minutes=15"; "" without any."""
        minutes = [] if self.minutes is None else [f"budget.minutes={self.minutes:g}"]
        return " and ".join([*(f"budget.max_{currency}={most:g}" for currency, most in self.bounds.items()), *minutes])


@dataclass(frozen=True)
class Tracking:
    """MLflow tracking."""

    enabled: bool = setting(True, "send the run to MLflow")
    uri: Optional[str] = setting(None, "tracking server; null: MLFLOW_TRACKING_URI, else sqlite:///runs/mlflow.db")
    experiment: str = setting("mxscale", "MLflow experiment")
    timeout_s: float = setting(10.0, "time limit of one request", unit="s", low=0.1)


@dataclass(frozen=True)
class Rerun:
    """Repetition of a finished run. `rerun=ID` is short for `rerun.run=ID`."""

    run: Optional[str] = setting(None, "MLflow run ID or run directory of the finished run to repeat")
    strict: bool = setting(False, "refuse the rerun if code, data or environment differ")


@dataclass(frozen=True)
class Sweep:
    """A command with -m, which starts one run per combination."""

    objective: List[str] = setting(
        ["accuracy"], "values for the sweeper: best val/top1, cost of the run", choices=("accuracy", "cost")
    )
    resume: bool = setting(False, "continue the newest sweep of this command line without repeating finished runs")
