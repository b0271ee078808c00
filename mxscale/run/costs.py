"""What a run has cost so far: its price, and the wall time of its attempts."""

import time
from typing import Callable, List, Optional

from mxscale.run.rundir import RunDir
from mxscale.scale import prices


def attempt_seconds(run: RunDir, until_ms: float, attempt: int) -> List[float]:
    """Wall time of each attempt up to `until_ms` within `attempt`; later attempts are not counted."""
    seconds = []
    for entry in (run.read("status.json") or {}).get("attempts", []):
        if entry["attempt"] > attempt:
            break
        end = until_ms if entry["attempt"] == attempt else entry.get("ended_ms") or last_seen(run, entry)
        seconds.append(max(0.0, (end - entry["started_ms"]) / 1000))
    return seconds


def last_seen(run: RunDir, entry: dict) -> float:
    """When an attempt whose parent was killed last wrote a line, in ms."""
    times = [line["time_ms"] for line in run.lines() if line["attempt"] == entry["attempt"]]
    return max(times, default=entry["started_ms"])


def cost_of(run: RunDir) -> Callable[[dict], dict]:
    """`line of metrics.jsonl -> {"cost/usd", "cost/eur"}` at that moment; {} where the price is unknown."""
    price = run.read("price.json") or {"known": False}

    def at(line: dict) -> dict:
        cost = prices.cost(price, attempt_seconds(run, line["time_ms"], line["attempt"]))
        return {f"cost/{currency}": value for currency, value in (cost or {}).items()}

    return at


def total(run: RunDir, attempt: int, until_ms: Optional[float] = None) -> dict:
    """{"usd", "eur"} of all attempts up to now (or `until_ms`); {} where the price is unknown."""
    price = run.read("price.json") or {"known": False}
    return prices.cost(price, attempt_seconds(run, until_ms or time.time() * 1000, attempt)) or {}
