"""What an attempt of a run is started with: its context, the hooks of other features, the stop signals."""

import signal
from dataclasses import dataclass
from typing import List, Optional, Sequence

from mxscale.config.schema import Config
from mxscale.environment.hosts import Host
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import Status


class Signals:
    """Turn SIGTERM, Ctrl-C and a lost terminal into a stop request.

    The first signal sets `reason` to its name, the second sets `urgent`. Ignored signals (nohup) stay ignored.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.reason: Optional[str] = None
        self.urgent = False

    def __enter__(self):
        handled = [n for n in self.NUMBERS if signal.getsignal(n) is not signal.SIG_IGN]
        self._previous = {n: signal.signal(n, self._handle) for n in handled}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number, _frame):
        # Closing a terminal sends SIGHUP twice: by the shell, and by the kernel when the shell has ended
        self.urgent |= self.reason is not None and number != signal.SIGHUP
        self.reason = self.reason or signal.Signals(number).name


class Hook:
    """A feature that takes part in a run without being imported by the launcher; the default methods do nothing."""

    started: Optional[float] = None  # the run is billed from here, in seconds since 1970; None: the process's start

    def price(self, config: Config) -> Optional[Price]:
        """Return the price record of a new run for any number of nodes; None to look the price up."""

    def on_created(self, run: RunDir, signals: Signals) -> None:
        """Write to the run directory before the preparation starts."""

    def before_ranks(self, context: "RunContext", plan: Plan) -> None:
        """Check or record a prepared attempt. Raises ConfigError to refuse it."""

    def on_finished(self, run: RunDir, status: Status) -> None:
        """Record the end of a run whose last attempt has ended, whatever its state."""


@dataclass(frozen=True)
class Resources:
    """What an attempt runs on and is billed for; known before its run directory is written."""

    nodes: List[Host]  # []: this machine
    price: Price
    started: float  # the attempt is billed from here, in seconds since 1970
    weights_file: Optional[str] = None  # that model.pretrained names, see setup.pretrained_file
    continues: bool = False  # on the machines of the attempt before, which kept running


@dataclass(frozen=True)
class RunContext:
    """One attempt of a run: what setup, supervisor and outcome share."""

    run: RunDir
    config: Config
    resources: Resources
    signals: Signals
    hooks: Sequence[Hook] = ()
    attempt: int = 1
    ranks: Optional[int] = None  # if the remaining hosts have room for fewer than launch.ranks
