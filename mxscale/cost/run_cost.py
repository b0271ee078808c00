"""The cost of a run: its price today, and the cost of its attempts from their wall time."""

from datetime import date
from typing import Callable, List, Optional, Tuple

from mxscale.config.schema import Config, Machine
from mxscale.cost import price_table, prices
from mxscale.rundir.directory import RunDir
from mxscale.rundir.price import Price
from mxscale.rundir.status import Attempt


def pricing(config: Config) -> Callable[[Machine], Price]:
    """Return the function Machine -> content of price.json for a run that starts today. Both raise ConfigError."""
    own = price_table.path_of(config)
    return lambda machine: prices.freeze_price(machine, config.launch.setup_minutes, date.today(), own)


class Attempts:
    """Wall times of a run's attempts. Finished ones are read once; only the current attempt still grows."""

    def __init__(self, run: RunDir):
        self.spans = run.attempts

    def seconds(self, until_ms: float, attempt: int) -> List[float]:
        """Return the seconds of each attempt up to the time `until_ms` in `attempt`; later attempts do not count."""
        spans = [span for span in self.spans if span.attempt <= attempt]
        # Earlier attempts have an end: the next one records it if their parent process was killed
        ends = [until_ms if span.attempt == attempt else span.ended_ms for span in spans]
        return [max(0.0, (end - span.started_ms) / 1000) for span, end in zip(spans, ends)]

    def nodes(self, attempt: int, default: int) -> List[int]:
        """Return the number of nodes of each attempt up to `attempt`; a resumed run may use another number."""
        return [span.nodes or default for span in self.spans if span.attempt <= attempt]


def cost_of(run: RunDir) -> Callable[[dict], dict]:
    """Return the function line of metrics.jsonl -> {"cost/usd", "cost/eur"} then; {} if the price is unknown."""
    price, attempts = _price(run), Attempts(run)

    def at(line: dict) -> dict:
        cost = _cost(price, attempts, line["attempt"], line["time_ms"])
        return {f"cost/{currency}": value for currency, value in (cost or {}).items()}

    return at


def so_far(run: Optional[RunDir], price: Price) -> Tuple[List[float], List[int]]:
    """Return the seconds of each attempt of a resumed run, and the nodes of each attempt and of the next one.

    Args:
        run: The run to resume; None: a new run.
        price: Content of price.json, with the number of nodes of the next attempt.
    """
    spans = [] if run is None else run.attempts
    ends = [span.ended_ms or last_seen_ms(run, span) for span in spans]
    seconds = [(end - span.started_ms) / 1000 for span, end in zip(spans, ends)]
    return seconds, [span.nodes or 1 for span in spans] + [price.nodes]


def last_seen_ms(run: RunDir, attempt: Attempt) -> int:
    """Return when a killed attempt was last alive: its last heartbeat or its last line of metrics."""
    times = [line["time_ms"] for line in run.lines() if line["attempt"] == attempt.attempt]
    if run.alive_file.exists():
        times.append(int(run.alive_file.stat().st_mtime * 1000))
    return max(times, default=attempt.started_ms)


def total(run: RunDir, attempt: int, until_ms: float) -> dict:
    """Return {"usd", "eur"} of all attempts up to the time `until_ms` in `attempt`; {} if the price is unknown."""
    return _cost(_price(run), Attempts(run), attempt, until_ms) or {}


def _cost(price: Price, attempts: Attempts, attempt: int, until_ms: float):
    return prices.cost(price, attempts.seconds(until_ms, attempt), attempts.nodes(attempt, price.nodes))


def _price(run: RunDir) -> Price:
    return run.price() or Price(known=False)
