"""`mxscale find-lr`: the learning rate range test, a short run whose rate rises until the loss diverges, recorded.

All rates here are base rates, as optimizer.lr sets them: linear scaling by the global batch applies to them as to any
optimizer.lr (schedule.reference_batch).
"""

import math
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import List, Optional

from mxscale.config.schema import Config
from mxscale.config.verb_settings import FindLr
from mxscale.diagnose import lr_curve, timing
from mxscale.diagnose import record as recording
from mxscale.diagnose.lr_curve import Curve
from mxscale.diagnose.probes import endless
from mxscale.diagnose.record import Measurement, Result
from mxscale.environment import hosts
from mxscale.launcher import setup
from mxscale.launcher.context import Signals
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import RunDir
from mxscale.util import text_table

LINES = 10  # of progress


def main(config: Config, settings: FindLr) -> int:
    """Run a range test, print and record its result, and return the exit status. Raises ConfigError."""
    recording.check(config, "a range test", "find_lr.steps")
    price = setup.price_of(config, hosts.find(config))
    return recording.execute(RangeTest, config, price, settings)


def trial(config: Config, settings: FindLr) -> Config:
    """Return the endless run whose rate rises from lr_min to lr_max."""
    rising = replace(
        config.schedule, kind="exponential", warmup_epochs=0.0, final_lr=settings.lr_max, steps=settings.steps - 1
    )
    return replace(endless(config), optimizer=replace(config.optimizer, lr=settings.lr_min), schedule=rising)


class RangeTest(Measurement):
    """Runs the trial in a child process and holds its losses, also if it is interrupted."""

    name, group, file = "find-lr", "find_lr", "find-lr.json"

    def __init__(self, record: RunDir, signals: Signals, config: Config, settings: FindLr):
        super().__init__(record, signals, config, settings)
        self.figure = record.path / "find-lr.png"
        self.half = lr_curve.half_window(settings.steps)
        self.short: Optional[timing.ShortRun] = None
        self.history: List[dict] = []  # lines of metrics with a loss, one for each step

    def measure(self) -> None:
        """Take steps until the loss diverges or the rate is lr_max; a loss that is not finite is no failure."""
        echo(f"run       {self.record}")
        self.short = timing.ShortRun(trial(self.config, self.settings), self.record.path / "trial")
        with timing.stopping([self.short], self.signals):
            timing.wait_for([self.short], self.signals, self._complete, "train/loss")

    def _complete(self, written: List[List[dict]]) -> bool:
        """Keep the lines, print one for each tenth of the steps, and return whether the test has ended."""
        steps, printed = self.settings.steps, len(self.history) * LINES // self.settings.steps
        self.history = written[0][:steps]
        if len(self.history) * LINES // steps > printed:
            step, rate, loss = self.history[-1]["step"], self._rates()[-1], self.losses[-1]
            echo(f"  step {step:{len(str(steps))}}/{steps}  optimizer.lr {rate:8.2g}  loss {loss:.4g}")
        return len(self.history) == steps or lr_curve.end_of(self.losses, self.half) is not None

    @property
    def losses(self) -> List[float]:
        return [line["metrics"]["train/loss"] for line in self.history]

    def _rates(self) -> List[float]:
        """Return the base rate of each step; the records have the effective rate."""
        scaling = self.short.run().plan().sizes.effective_lr / self.settings.lr_min
        return [line["metrics"]["lr"] / scaling for line in self.history]

    def result(self) -> Optional[Result]:
        if not self.history:
            return None
        run = self.short.run()
        self.describe_trial(run)
        curve = lr_curve.curve(self._rates(), self.losses, self.half)
        sizes = run.plan().sizes
        content = {
            "settings": asdict(self.settings),
            "global_batch": sizes.global_batch,
            "scaling": sizes.effective_lr / self.settings.lr_min,  # effective rate / optimizer.lr
            "ended": why_ended(self.losses, curve, self.settings),
            **curve._asdict(),
        }
        text = report(content)
        if find_spec("matplotlib"):  # not in the images of ranks
            lr_curve.draw(content, str(self.figure))
            text += f"\n\n  figure  {self.figure}"
        steps = [of_test(line) for line in self.history[: len(curve.losses)]]
        suggested = {"find_lr/steepest": curve.steepest_lr, "find_lr/tenth": curve.tenth_lr}
        return Result(content, {name: rate for name, rate in suggested.items() if rate is not None}, steps, text)


def of_test(line: dict) -> dict:
    """Return a line of metrics under names of its own, so that no chart in MLflow shows it beside trainings."""
    return {**line, "metrics": {f"find_lr/{name.split('/')[-1]}": value for name, value in line["metrics"].items()}}


def why_ended(losses: List[float], curve: Curve, settings: FindLr) -> str:
    """Return why the test took no further step."""
    taken = len(curve.losses)
    if taken < len(losses) and not math.isfinite(losses[taken]):
        return f"the loss is {losses[taken]} at step {taken + 1}"
    if lr_curve.end_of(losses, lr_curve.half_window(settings.steps)):
        return f"the smoothed loss exceeds {lr_curve.DIVERGED:g} times its minimum at step {taken}"
    return "reached find_lr.lr_max" if taken == settings.steps else f"interrupted after step {taken}"


def report(content: dict) -> str:
    """Return the suggested rates, and the line to paste."""
    lines = ["", f"  ended: {content['ended']}", ""]
    if content["minimum"] is None:
        advice = "a lower find_lr.lr_min, or more find_lr.steps"
        return "\n".join([*lines, f"  no suggestion: the loss did not fall by more than its noise; try {advice}"])
    rows = [
        ["loss falls fastest", f"optimizer.lr={lr_curve.shown(content['steepest_lr'])}"],
        ["a tenth of the smallest loss's rate", f"optimizer.lr={lr_curve.shown(content['tenth_lr'])}"],
    ]
    lines += text_table.columns(rows, indent="  ")
    if content["minimum"] == len(content["rates"]) - 1:
        lines.append(f"  the loss still falls at {lr_curve.shown(content['rates'][-1])}: set a higher find_lr.lr_max")
    effective = content["scaling"] * content["tenth_lr"]
    batch = f"effective lr {lr_curve.shown(effective)} at a global batch of {content['global_batch']}"
    return "\n".join([*lines, "", f"  use     optimizer.lr={lr_curve.shown(content['tenth_lr'])}    ({batch})"])
