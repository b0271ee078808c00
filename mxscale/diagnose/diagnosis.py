"""`mxscale diagnose`: run the probes in turn, compute the parts of a step, and record the result.

A diagnosis has its own run directory, runs/diagnose/DATE_NAME. The run directories of its probes are in probes/.
"""

import statistics
from dataclasses import asdict
from typing import Dict, List, Optional

from mxscale.config.schema import Config
from mxscale.config.verb_settings import Diagnose
from mxscale.diagnose import advice, breakdown, probes, timing
from mxscale.diagnose import record as recording
from mxscale.diagnose.record import Measurement, Result
from mxscale.environment import hosts
from mxscale.environment.placement import Placement
from mxscale.launcher import setup
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir
from mxscale.util.terminal import echo

LOOK_STEPS = 5  # of the first run, which finds the number of ranks and the time of a step
INTERVALS = 8  # per probe


def main(config: Config, settings: Diagnose) -> int:
    """Run a diagnosis and return the exit status. Raises ConfigError before the first step."""
    recording.check(config, "a diagnosis", "diagnose.seconds and diagnose.repeats")
    price = setup.price_of(config, hosts.find(config))
    return recording.execute(Diagnostics, config, price, settings)


class Diagnostics(Measurement):
    """Runs the probes one after the other and holds their times, also if it is interrupted."""

    name, group, file = "diagnose", "diagnose", "diagnosis.json"

    def __init__(self, record: RunDir, signals: Signals, config: Config, settings: Diagnose):
        super().__init__(record, signals, config, settings)
        self.run: Optional[probes.Run] = None
        self.times: Dict[str, List[List[float]]] = {}  # of complete repetitions
        self.waited: List[float] = []

    def prepare(self) -> None:
        """Prepare the run and take its first steps, to find errors, the number of ranks and the time of a step."""
        echo(f"run       {self.record}")
        (seen,) = self._together([probes.untimed(self.config)], "look", 0, LOOK_STEPS)
        self.run = probes.Run(seen.run.config(), seen.run.plan())
        step_s = self.run.sizes.global_batch / statistics.median(seen.rates)
        self.configs = probes.configs(self.run, interval=max(1, round(self.settings.seconds / INTERVALS / step_s)))
        self.describe_trial(seen.run)
        echo(self._summary())

    def _summary(self) -> str:
        plan, config, settings = self.run.plan, self.run.config, self.settings
        ranks = f"{plan.sizes.ranks} ranks" if plan.sizes.ranks > 1 else "1 rank"
        names = [breakdown.TITLES[name] for name in self.configs]
        return (
            f"data      {config.data.kind}: {config.data.image_size} px, {plan.classes} classes\n"
            f"model     {config.model.name}, {config.batch.per_device} images per device\n"
            f"ranks     {ranks} on {plan.device}, {plan.threads} OMP threads each\n"
            f"probes    {', '.join(names)}\n"
            f"each      {settings.seconds:g} s after its start, {settings.repeats} times, in turn"
        )

    def measure(self) -> None:
        """Run all probes."""
        self.prepare()
        for repetition in range(self.settings.repeats):
            taken = {}
            for name in self.configs if repetition % 2 == 0 else reversed(self.configs):
                taken[name] = self._once(name, f"{name}-{repetition + 1}")
                rate = self._images / statistics.median(taken[name])
                echo(f"  {repetition + 1}/{self.settings.repeats}  {breakdown.TITLES[name]:28} {rate:10,.1f} images/s")
            for name in self.configs:
                self.times.setdefault(name, []).append(taken[name])

    def _once(self, name: str, folder: str) -> List[float]:
        """Run a probe and return the seconds of a step by interval."""
        readings = self._together(self.configs[name], folder, self.settings.seconds, self.settings.warmup_steps)
        if name == "all":
            self.waited += readings[0].waited
        alone = name not in ("exchange", "all")  # ranks without exchange, whose steps are independent
        images = self.run.images_of_a_rank * len(readings) if alone else self._images
        return [images / sum(rates) for rates in zip(*(reading.rates for reading in readings))]

    @property
    def _images(self) -> int:
        return self.run.sizes.global_batch

    def _together(self, configs: List[Config], name: str, seconds: float, warmup: int) -> List[timing.Reading]:
        return timing.together(configs, self.record.path / "probes" / name, seconds, warmup, self.signals)

    def result(self) -> Optional[Result]:
        if not self.times:
            return None
        parts = breakdown.diagnose(self.times)
        plan, placed, other = self.run.plan, Placement.of(self.run.plan), self.times.get("other_precision")
        facts = advice.Facts(
            ranks=placed.ranks,
            threads=plan.threads,
            device=plan.device,
            cores=placed.cores,
            ranks_here=placed.per_host,
            larger_fits=2 * self._images <= plan.sizes.train_images,
            other_precision_s=statistics.median(map(statistics.median, other)) if other else None,
        )
        content = {
            "kind": parts.kind,
            "verdict": parts.verdict,
            "steps_s": {name: step._asdict() for name, step in parts.steps.items()},
            "images_per_s": {name: rate(step, self._images)._asdict() for name, step in parts.steps.items()},
            "shares": {part: share._asdict() for part, share in parts.shares.items()},
            "advice": [suggestion._asdict() for suggestion in advice.advise(parts, facts, self.run.config)],
            "data_wait": statistics.median(self.waited) if self.waited else None,
            "facts": asdict(facts),
            "images_per_step": self._images,
            "repeats": len(self.times["compute"]),
            "settings": asdict(self.settings),
            "model": self.run.config.model.name,
            "data": self.run.config.data.kind,
            "times_s": self.times,
        }
        return Result(content, metrics(content), text=breakdown.text(content))


def metrics(content: dict) -> Dict[str, float]:
    """Return shares and rates with their bounds, and 1 - real/synthetic."""
    values = {}
    for group, estimates in (("share", content["shares"]), ("images_per_s", content["images_per_s"])):
        for name, estimate in estimates.items():
            values[f"diagnose/{group}/{name}"] = estimate["value"]
            values[f"diagnose/{group}/{name}_low"] = estimate["low"]
            values[f"diagnose/{group}/{name}_high"] = estimate["high"]
    if "input" in content["shares"]:
        values["diagnose/gap"] = content["shares"]["input"]["value"]
    return values


def rate(step: breakdown.Estimate, images: int) -> breakdown.Estimate:
    return breakdown.Estimate(images / step.value, images / step.high, images / step.low)
