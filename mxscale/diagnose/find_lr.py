"""`mxscale find-lr`: the learning rate range test, a short run whose rate rises until the loss diverges, recorded.

All rates here are base rates, as optimizer.lr sets them: linear scaling by the global batch applies to them as to any
optimizer.lr (schedule.reference_batch).
"""

import math
import shutil
import time
from dataclasses import asdict, replace
from typing import Dict, List, Optional, Tuple

from mxscale.config.schema import Budget, Checkpoint, Config, Machine, Tracking
from mxscale.config.verbs.measurements import FindLr
from mxscale.diagnose import lr_curve, timing
from mxscale.diagnose import record as recording
from mxscale.diagnose.lr_curve import Curve
from mxscale.diagnose.probes import NEVER
from mxscale.diagnose.record import End, Kind, Stopped
from mxscale.diagnose.timing import ProbeFailed, Refused
from mxscale.environment import hosts
from mxscale.launcher import setup
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import Signals
from mxscale.launcher.progress import echo
from mxscale.rundir import directory, guards
from mxscale.rundir.directory import FAILED, KILLED, RunDir
from mxscale.util import csv_tables, text_table
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

KIND = Kind("find-lr", "find-lr.json", "find-lr.png")
TABLE = "find-lr.csv"
LINES = 10  # of progress


def check(config: Config) -> None:
    """Raise ConfigError for settings that can't be tested."""
    recording.check(config, "a range test", "find_lr.steps")
    if not config.comm.entry.in_step:
        raise ConfigError(f"comm={config.comm.backend}: its ranks take no step together, so no step has one rate")
    if config.comm.entry.needs_servers and config.comm.update_on == "server":
        raise ConfigError("comm.update_on=server: the servers hold the schedule; use comm.update_on=worker")


def main(config: Config, settings: FindLr) -> int:
    """Run a range test, print and record its result, and return the exit status. Raises ConfigError."""
    check(config)
    price = setup.price_of(config, hosts.find(config))
    record = directory.create(replace(config, entry=KIND.name))
    test = RangeTest(record, config, settings)
    with Signals() as signals:
        recording.begin(record, price)
        echo(f"run       {record}")
        try:
            with kept_alive(record):
                test.run(signals)
            end = End()
        except Refused as refused:
            guards.discard(record)
            raise ConfigError(str(refused)) from None
        except Stopped as stopped:
            end = End(KILLED, str(stopped))
        except ProbeFailed as failed:
            end = End(FAILED, str(failed))
        found = test.result()
        if found:
            recording.describe_trial(record, KIND, config, test.seen, {"find_lr": asdict(settings)})
            recording.write_result(record, KIND, found, draw)
            write_text(record.path / TABLE, table(found))
            recording.write_lines(record, test.lines)
        recording.close(record, end, headline(found) if found else {})
        unsent = recording.send(record, config, signals)
    if found:
        echo(report(found))
    recording.show_end(record, KIND, end, unsent)
    return end.exit_status


def trial(config: Config, settings: FindLr) -> Config:
    """Return the run that rises from lr_min to lr_max, without an end, validation, checkpoints and records."""
    rising = replace(
        config.schedule, kind="exponential", warmup_epochs=0.0, final_lr=settings.lr_max, steps=settings.steps - 1
    )
    return replace(
        config,
        epochs=NEVER,
        max_steps=None,
        log_every=1,
        validate_every=NEVER,
        target_top1=None,
        stop_at_target=False,
        patience=None,
        claims=[],
        optimizer=replace(config.optimizer, lr=settings.lr_min),
        schedule=rising,
        launch=replace(config.launch, restarts=0, setup_minutes=0.0),
        machine=Machine(),
        budget=Budget(),
        tracking=Tracking(enabled=False),
        checkpoint=Checkpoint(every_epochs=NEVER),
    )


class RangeTest:
    """Runs the trial in a child process and holds its losses, also if it is interrupted."""

    def __init__(self, record: RunDir, config: Config, settings: FindLr):
        self.record, self.config, self.settings = record, config, settings
        self.half = lr_curve.half_window(settings.steps)
        self.seen: Optional[RunDir] = None
        self.history: List[dict] = []  # lines of metrics with a loss, one for each step

    def run(self, signals: Signals) -> None:
        """Take steps until the loss diverges or the rate is lr_max.

        Raises:
            Refused: The trial was refused before its first step.
            ProbeFailed: It failed, other than by a loss or weights that are not finite.
            Stopped: A signal arrived.
        """
        short, shown = timing.ShortRun(trial(self.config, self.settings), self.record.path / "trial"), 0
        try:
            while not self._complete():
                time.sleep(timing.POLL_S)
                if signals.reason:
                    raise Stopped(signals.reason)
                ended = short.process.poll() is not None  # before reading, so that no line is missed
                self._read(short)
                shown = self._show(shown)
                if ended and not self._complete():
                    short.check()
        finally:
            short.stop()
            short.wait(signals)
            if self.seen:
                shutil.rmtree(self.seen.checkpoints, ignore_errors=True)

    def _read(self, short: timing.ShortRun) -> None:
        self.seen = self.seen or short.run()
        lines = self.seen.history() if self.seen else []
        self.history = [line for line in lines if "train/loss" in line["metrics"]][: self.settings.steps]

    @property
    def losses(self) -> List[float]:
        return [line["metrics"]["train/loss"] for line in self.history]

    def _complete(self) -> bool:
        full = len(self.history) == self.settings.steps
        return full or lr_curve.end_of(self.losses, self.half) is not None

    def _show(self, shown: int) -> int:
        """Print a line for each tenth of the steps; return how many are printed."""
        due = len(self.history) * LINES // self.settings.steps
        if due > shown:
            last, rate = self.history[-1], self._rates()[-1]
            loss, steps = last["metrics"]["train/loss"], self.settings.steps
            echo(f"  step {last['step']:{len(str(steps))}}/{steps}  optimizer.lr {rate:8.2g}  loss {loss:.4g}")
        return due

    def _rates(self) -> List[float]:
        """Return the base rate of each step; the records have the effective rate."""
        scaling = self.seen.plan().sizes.effective_lr / self.settings.lr_min
        return [line["metrics"]["lr"] / scaling for line in self.history]

    @property
    def lines(self) -> List[Tuple[int, int, Dict[str, float]]]:
        """The steps of the curve for metrics.jsonl: (step, time_ms, metrics)."""
        ended = lr_curve.end_of(self.losses, self.half)
        own = [{key: line["metrics"][key] for key in ("train/loss", "lr")} for line in self.history[:ended]]
        return [(line["step"], line["time_ms"], metrics) for line, metrics in zip(self.history, own)]

    def result(self) -> Optional[dict]:
        """Return the content of find-lr.json; None if no step was taken."""
        if not self.history:
            return None
        found = lr_curve.curve(self._rates(), self.losses, self.half)
        sizes = self.seen.plan().sizes
        return {
            "settings": asdict(self.settings),
            "global_batch": sizes.global_batch,
            "scaling": sizes.effective_lr / self.settings.lr_min,  # effective rate / optimizer.lr
            "ended": why_ended(self.losses, found, self.settings),
            "steepest_lr": found.steepest_lr,
            "tenth_lr": found.tenth_lr,
            **found._asdict(),
        }


def why_ended(losses: List[float], found: Curve, settings: FindLr) -> str:
    """Return why the test took no further step."""
    taken = len(found.losses)
    if taken < len(losses) and not math.isfinite(losses[taken]):
        return f"the loss is {losses[taken]} at step {taken + 1}"
    if lr_curve.end_of(losses, lr_curve.half_window(settings.steps)):
        return f"the smoothed loss exceeds {lr_curve.DIVERGED:g} times its minimum at step {taken}"
    return "reached find_lr.lr_max" if taken == settings.steps else f"interrupted after step {taken}"


def headline(found: dict) -> Dict[str, float]:
    """Return the metrics of the run."""
    rates = {name: found[f"{name}_lr"] for name in ("steepest", "tenth")}
    return {f"find_lr/{name}": rate for name, rate in rates.items() if rate is not None}


def table(found: dict) -> str:
    """Return the curve as CSV."""
    steps = enumerate(zip(found["rates"], found["losses"], found["smoothed"]), 1)
    rows = ([step, rate, rate * found["scaling"], *losses] for step, (rate, *losses) in steps)
    return csv_tables.text([["step", "optimizer.lr", "effective_lr", "loss", "smoothed_loss"], *rows])


def report(found: dict) -> str:
    """Return the suggested rates, and the line to paste."""
    lines = ["", f"  ended: {found['ended']}", ""]
    if found["minimum"] is None:
        advice = "a lower find_lr.lr_min, or more find_lr.steps"
        return "\n".join([*lines, f"  no suggestion: the loss did not fall by more than its noise; try {advice}"])
    rows = [
        ["loss falls fastest", f"optimizer.lr={shown(found['steepest_lr'])}"],
        ["a tenth of the smallest loss's rate", f"optimizer.lr={shown(found['tenth_lr'])}"],
    ]
    lines += text_table.columns(rows, indent="  ")
    if found["minimum"] == len(found["rates"]) - 1:
        lines.append(f"  the loss still falls at {shown(found['rates'][-1])}: set a higher find_lr.lr_max")
    effective = found["scaling"] * found["tenth_lr"]
    batch = f"effective lr {shown(effective)} at a global batch of {found['global_batch']}"
    return "\n".join([*lines, "", f"  use     optimizer.lr={shown(found['tenth_lr'])}    ({batch})"])


def shown(rate: float) -> str:
    return f"{rate:.2g}"


def draw(found: dict, path: str) -> None:
    """Draw the losses and their smoothed curve over the rate on a logarithmic axis, with the suggested rates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    rates, smoothed = found["rates"], found["smoothed"]
    axes.plot(rates, found["losses"], ".", color="grey", alpha=0.6, label="loss of a step")
    axes.plot(rates, smoothed, color="C0", label="smoothed")
    if found["minimum"] is not None:
        at = found["steepest"]
        fastest = f"loss falls fastest: {shown(rates[at])}"
        axes.plot(rates[at], smoothed[at], "o", color="C1", label=fastest)
        tenth = f"a tenth of the smallest loss's rate: {shown(found['tenth_lr'])}"
        axes.axvline(found["tenth_lr"], linestyle="--", color="C2", label=tenth)
        fall = smoothed[0] - min(smoothed)  # beside the losses of divergence it would not be seen
        axes.set_ylim(min(smoothed) - 0.1 * fall, smoothed[0] + 0.8 * fall)
    axes.set(xscale="log", xlabel="optimizer.lr", ylabel="training loss")
    axes.set_title(f"range test, global batch {found['global_batch']}; ended: {found['ended']}", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
