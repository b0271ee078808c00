"""`mxscale test-io`: measure images/s of the input pipeline by readers and threads, and record them."""

import time
from dataclasses import asdict, replace
from typing import Dict, Iterator, List, Optional

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config
from mxscale.config.validation import validate
from mxscale.config.verb_settings import InputRates
from mxscale.data import manifest, pack
from mxscale.data.test_io import measure, resolved
from mxscale.diagnose import record as recording
from mxscale.diagnose.record import Measurement, ProbeFailed, Result, Stopped
from mxscale.environment.container_limits import available_cores
from mxscale.launcher import setup
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

RATE = "io/images_per_s"  # metric of the run: data.reader with the most threads
HEAD = f"{'reader':11} {'threads':>7}  {'images/s (smallest to largest)':32} {'ms per image':>12}"


def main(config: Config, settings: InputRates) -> int:
    """Measure, print and record the rates, and return the exit status. Raises ConfigError before the first one.

    The data set is packed first if necessary.
    """
    request = resolved(settings, available_cores())
    check(config, request)
    price = setup.price_of(config, [])
    packed = pack.prepare(config.data)
    return recording.execute(Rates, config, price, request, packed)


def check(config: Config, request: InputRates) -> None:
    """Raise ConfigError for settings that cannot be measured."""
    recording.check(config, "a measurement of the input", "io.seconds")
    if DATASETS[config.data.kind].generated:
        raise ConfigError(f"data={config.data.kind}: its images are generated, not read; use data=imagefolder")
    for reader in request.readers:
        try:
            validate(replace(config, data=replace(config.data, reader=reader)))
        except ConfigError as error:  # the reader lacks a setting
            cause = str(error).partition(";")[0]
            raise ConfigError(f"{cause}; give io.readers without {reader}") from None


class Rates(Measurement):
    """Measures each reader with each number of threads."""

    name, group, file = "test-io", "io", "test-io.json"

    def __init__(self, record: RunDir, signals: Signals, config: Config, settings: InputRates, packed: Dict):
        super().__init__(record, signals, config, settings)
        self.packed = packed
        self.rows: List[Dict] = []

    def measure(self) -> None:
        packed = self.packed
        splits = {name: manifest.split_of(packed, name) for name, split in packed["splits"].items() if split["count"]}
        identity = {"data_digest": packed["digest"], "data_dir": packed["dir"]}
        self.describe(Plan(splits=splits, classes=len(packed["classes"]), **identity, device="cpu"), {})
        echo(f"run       {self.record}\n\n{HEAD}")
        try:
            for row in measure(self.config, self.packed, self.settings, self._until_stopped):
                echo(line(row))
                self.rows.append({**row, "time_ms": int(1000 * time.time())})
        except (RuntimeError, OSError) as error:  # such as an image that cannot be decoded
            raise ProbeFailed(" ".join(str(error).split())) from error

    def _until_stopped(self, batches: Iterator[int]) -> Iterator[int]:
        """Yield the batches; raises Stopped after a signal."""
        for images in batches:
            if self.signals.reason:
                raise Stopped(self.signals.reason)
            yield images

    def result(self) -> Optional[Result]:
        """Return the rates; the step of a line of metrics is the number of threads."""
        if not self.rows:
            return None
        data = self.config.data
        content = {"data": data.kind, "digest": self.packed["digest"], "image_size": data.image_size,
                   "batch": self.config.batch.per_device, "settings": asdict(self.settings),
                   "rates": self.rows}  # fmt: skip
        lines = [
            recording.line(row["threads"], row["time_ms"], metrics(f"{RATE}/{row['reader']}", row)) for row in self.rows
        ]
        return Result(content, headline(self.rows, data.reader), lines)


def metrics(name: str, row: Dict) -> Dict[str, float]:
    rate = row["images_per_s"]
    return {name: rate["median"], f"{name}_low": rate["min"], f"{name}_high": rate["max"]}


def headline(rows: List[Dict], reader: str) -> Dict[str, float]:
    """Return the rate of a reader with the most threads as metrics of the run; {} if not measured."""
    measured = [row for row in rows if row["reader"] == reader]
    return metrics(RATE, max(measured, key=lambda row: row["threads"])) if measured else {}


def line(row: Dict) -> str:
    rate = "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**row["images_per_s"])
    return f"{row['reader']:11} {row['threads']:7}  {rate:32} {row['ms_per_image']:12.3f}"
