"""What a run costs: its price of today, and with the wall time of its attempts the cost so far."""

from datetime import date
from typing import Callable, Dict, List, Optional, Tuple

from mxscale.config.schema import Config, Machine
from mxscale.cost import catalogs, prices
from mxscale.rundir.directory import RunDir


def pricing(config: Config) -> Callable[[Machine], Dict]:
    """Machine -> the content of price.json, as a run of today has it.  Raises ConfigError, as what it returns does."""
    own = catalogs.own_table(config.machine.prices, config.runs)
    return lambda machine: prices.freeze_price(machine, config.launch.setup_minutes, date.today(), own)


class Attempts:
    """Wall times of a run's attempts.  What is over is read once; only the attempt under way still grows."""

    def __init__(self, run: RunDir):
        self.spans = run.attempts

    def seconds(self, until_ms: float, attempt: int) -> List[float]:
        """Seconds of each attempt, up to `until_ms` within `attempt`; later attempts are not counted."""
        spans = [span for span in self.spans if span["attempt"] <= attempt]
        # An earlier attempt's end is known: the next one noted it where its parent could not.
        ends = [until_ms if span["attempt"] == attempt else span["ended_ms"] for span in spans]
        return [max(0.0, (end - span["started_ms"]) / 1000) for span, end in zip(spans, ends)]

    def nodes(self, attempt: int, default: int) -> List[int]:
        """Of each attempt up to `attempt`: a resume may have had more machines or fewer."""
        return [span.get("nodes", default) for span in self.spans if span["attempt"] <= attempt]


def cost_of(run: RunDir) -> Callable[[dict], dict]:
    """`line of metrics.jsonl -> {"cost/usd", "cost/eur"}` at that moment; {} where the price is unknown."""
    price, attempts = _price(run), Attempts(run)

    def at(line: dict) -> dict:
        cost = _cost(price, attempts, line["attempt"], line["time_ms"])
        return {f"cost/{currency}": value for currency, value in (cost or {}).items()}

    return at


def so_far(run: Optional[RunDir], price: dict) -> Tuple[List[float], List[int]]:
    """Seconds of each attempt of a run that goes on (None: it begins), and their nodes with those of the next."""
    spans = [] if run is None else run.attempts
    # Of an attempt whose parent was killed nobody has noted the end yet
    ends = [span["ended_ms"] if "ended_ms" in span else last_seen_ms(run, span) for span in spans]
    seconds = [(end - span["started_ms"]) / 1000 for span, end in zip(spans, ends)]
    return seconds, [span.get("nodes", 1) for span in spans] + [price.get("nodes", 1)]


def last_seen_ms(run: RunDir, attempt: dict) -> int:
    """When the parent of a killed attempt was last there: its last touch of `alive`, or its last line."""
    times = [line["time_ms"] for line in run.lines() if line["attempt"] == attempt["attempt"]]
    if run.alive_file.exists():
        times.append(int(run.alive_file.stat().st_mtime * 1000))
    return max(times, default=attempt["started_ms"])


def total(run: RunDir, attempt: int, until_ms: float) -> dict:
    """{"usd", "eur"} of all attempts up to `until_ms` within `attempt`; {} where the price is unknown."""
    return _cost(_price(run), Attempts(run), attempt, until_ms) or {}


def _cost(price: dict, attempts: Attempts, attempt: int, until_ms: float):
    return prices.cost(price, attempts.seconds(until_ms, attempt), attempts.nodes(attempt, price.get("nodes", 1)))


def _price(run: RunDir) -> dict:
    return run.read("price.json") or {"known": False}
