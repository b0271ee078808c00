"""The price of a run's machines (price.json), fixed when the run starts."""

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Price:
    """Price of one node for one hour, its source and how it is billed. Dates are ISO 8601."""

    known: bool
    why: Optional[str] = None  # the price is unknown
    usd_per_hour: Optional[float] = None  # None: unknown, no exchange rate
    eur_per_hour: Optional[float] = None
    currency: Optional[str] = None  # of the source: usd or eur
    provider: Optional[str] = None
    instance: Optional[str] = None
    region: Optional[str] = None
    market: Optional[str] = None
    as_of: Optional[str] = None  # date of the source
    source: Optional[str] = None
    date: Optional[str] = None  # the price is the last one on or before it
    usd_per_eur: Optional[float] = None
    fx_date: Optional[str] = None
    fx_source: Optional[str] = None
    nodes: int = 1
    billing: Optional[str] = None  # per_second, per_minute or per_hour
    minimum_s: float = 0  # billed per start of the machines
    setup_minutes: float = 0.0  # billed once, before the first step

    def per_hour(self, currency: str) -> Optional[float]:
        """Return the price in "usd" or "eur"; None if it is unknown."""
        return self.usd_per_hour if currency == "usd" else self.eur_per_hour
