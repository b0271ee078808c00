"""The cost of a run: its price today, and the cost of its attempts from their wall time."""

from dataclasses import replace
from datetime import date
from typing import Callable, List, Optional, Sequence

from mxscale.config.schema import Config, Machine
from mxscale.cost import price_table, prices
from mxscale.cost.prices import Usage
from mxscale.rundir.directory import RunDir
from mxscale.rundir.price import Price
from mxscale.rundir.status import Attempt


def pricing(config: Config) -> Callable[[Machine], Price]:
    """Return the function Machine -> content of price.json for a run that starts today. Both raise ConfigError."""
    user_table = price_table.path_of(config)
    return lambda machine: prices.freeze_price(machine, config.launch.setup_minutes, date.today(), user_table)


def usage(attempts: Sequence[Attempt], price: Price, attempt: int, until_ms: float) -> List[Usage]:
    """Return the attempts as they are billed up to the time `until_ms` in `attempt`; later attempts do not count."""
    used = []
    for record in attempts:
        if record.attempt <= attempt:
            # Earlier attempts have an end: the next one records it if their parent process was killed
            ended_ms = until_ms if record.attempt == attempt else record.ended_ms
            seconds = max(0.0, (ended_ms - record.started_ms) / 1000)
            used.append(Usage(seconds, record.nodes or price.nodes, record.continues))
    return used


def cost_of(run: RunDir) -> Callable[[dict], dict]:
    """Return the function line of metrics.jsonl -> {"cost/usd", "cost/eur"} then; {} if the price is unknown."""
    price, attempts = _price(run), run.attempts  # finished ones are read once; only the current one still grows

    def at(line: dict) -> dict:
        cost = prices.bill(price, usage(attempts, price, line["attempt"], line["time_ms"]))
        return {f"cost/{currency}": value for currency, value in (cost or {}).items()}

    return at


def so_far(run: Optional[RunDir]) -> List[Usage]:
    """Return the attempts of a run to resume; None: a new run."""
    attempts = () if run is None else run.attempts
    ended = [replace(record, ended_ms=record.ended_ms or last_seen_ms(run, record)) for record in attempts]
    return usage(ended, _price(run), len(ended) + 1, 0) if ended else []


def last_seen_ms(run: RunDir, attempt: Attempt) -> int:
    """Return when a killed attempt was last alive: its last heartbeat or its last line of metrics."""
    times = [line["time_ms"] for line in run.lines() if line["attempt"] == attempt.attempt]
    if run.alive_file.exists():
        times.append(int(run.alive_file.stat().st_mtime * 1000))
    return max(times, default=attempt.started_ms)


def used(run: RunDir, attempt: int, until_ms: float) -> List[Usage]:
    """Return the machines of all attempts up to the time `until_ms` in `attempt`."""
    return usage(run.attempts, _price(run), attempt, until_ms)


def wall_s(run: RunDir, attempt: int, until_ms: float) -> float:
    """Return the seconds of all attempts up to the time `until_ms` in `attempt`."""
    return sum(each.seconds for each in used(run, attempt, until_ms))


def total(run: RunDir, attempt: int, until_ms: float) -> dict:
    """Return {"usd", "eur"} of all attempts up to the time `until_ms` in `attempt`; {} if the price is unknown."""
    return prices.bill(_price(run), used(run, attempt, until_ms)) or {}


def _price(run: RunDir) -> Price:
    return run.price() or Price(known=False)
