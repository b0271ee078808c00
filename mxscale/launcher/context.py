"""What an attempt of a run is started with: its context, the hooks of other features, the stop signals."""

import signal
from dataclasses import dataclass
from typing import List, Optional

from mxscale.config.schema import Config, Machine
from mxscale.environment.hosts import Host
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Image, Plan
from mxscale.rundir.status import Status


class Signals:
    """Turn SIGTERM, Ctrl-C and a lost terminal into a stop request.

    The first signal sets `reason` to its name, the second sets `urgent`.  Ignored signals (nohup) stay ignored.
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
        self.urgent = self.reason is not None
        self.reason = self.reason or signal.Signals(number).name


class Hook:
    """A feature that takes part in a run without being imported by the launcher; each method does nothing."""

    started: Optional[float] = None  # the run is billed from here, in seconds since 1970; None: the process's start

    def before_run_directory(self, config: Config) -> None:
        """Check the run before anything is written.  Raises ConfigError to refuse it."""

    def price(self, config: Config, machine: Machine) -> Optional[dict]:
        """Return the price record of a new run; None if the price is to be looked up."""

    def on_created(self, run: RunDir, signals: Signals) -> None:
        """Write to the run directory before the preparation starts."""

    def before_ranks(self, context: "RunContext", plan: Plan) -> None:
        """Check or record a prepared attempt.  Raises ConfigError to refuse it."""

    def on_finished(self, run: RunDir, status: Status) -> Status:
        """Return the status of a run whose last attempt has ended, whatever its state."""
        return status


NO_HOOKS = Hook()


class Hooks(Hook):
    """Call several hooks in order; the first one with a start time or a price determines it."""

    def __init__(self, *hooks: Hook):
        self.hooks = hooks
        self.started = next((hook.started for hook in hooks if hook.started), None)

    def before_run_directory(self, config):
        for hook in self.hooks:
            hook.before_run_directory(config)

    def price(self, config, machine):
        prices = (hook.price(config, machine) for hook in self.hooks)
        return next((price for price in prices if price), None)

    def on_created(self, run, signals):
        for hook in self.hooks:
            hook.on_created(run, signals)

    def before_ranks(self, context, plan):
        for hook in self.hooks:
            hook.before_ranks(context, plan)

    def on_finished(self, run, status):
        for hook in self.hooks:
            status = hook.on_finished(run, status)
        return status


@dataclass(frozen=True)
class Resources:
    """What an attempt runs on and is billed for; known before its run directory is written."""

    nodes: List[Host]  # []: this machine
    price: dict  # as in price.json
    started: float  # the attempt is billed from here, in seconds since 1970
    image: Optional[Image] = None
    weights_file: Optional[str] = None  # that model.pretrained names, see setup.pretrained_file


@dataclass(frozen=True)
class RunContext:
    """One attempt of a run: what setup, supervisor and outcome share."""

    run: RunDir
    config: Config
    resources: Resources
    signals: Signals
    hooks: Hook = NO_HOOKS
    attempt: int = 1
    ranks: Optional[int] = None  # if the remaining hosts have room for fewer than launch.ranks
