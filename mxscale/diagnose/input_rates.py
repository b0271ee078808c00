"""`mxscale test-io`: measure images/s of the input pipeline by readers and threads, and record them."""

import time
from dataclasses import asdict, replace
from typing import Dict, Iterator, List, Tuple

from mxscale.config.datasets import DATASETS
from mxscale.config.readers import READERS
from mxscale.config.schema import Config
from mxscale.config.validation import validate
from mxscale.config.verbs.measurements import InputRates
from mxscale.data import manifest, pack
from mxscale.data.test_io import DECODER, TRAINING, VALIDATION, measure, resolved
from mxscale.diagnose import record as recording
from mxscale.diagnose.record import End, Kind, Stopped
from mxscale.environment.container_limits import available_cores
from mxscale.launcher import setup
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import NO_HOOK, Hook, Signals
from mxscale.launcher.progress import echo
from mxscale.rundir import directory
from mxscale.rundir.directory import FAILED, KILLED, RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError

KIND = Kind("test-io", "test-io.json", "test-io.png")
RATE = "io/images_per_s"  # metric of the run: data.reader in training, with the most threads
HEAD = f"{'what':13} {'reader':11} {'threads':>7}  {'images/s (smallest to largest)':32} {'ms per image':>12}"


def main(config: Config, settings: InputRates, hook: Hook = NO_HOOK) -> int:
    """Measure, print and record the rates, and return the exit status.

    The data set is packed first if necessary. Raises ConfigError before the first measurement.

    Args:
        hook: Has the time from which the run is billed; its `on_created` receives the run directory.
    """
    request = resolved(settings, available_cores())
    check(config, request)
    price = setup.price_of(config, [])
    packed = pack.prepare(config.data)
    record = directory.create(replace(config, entry=KIND.name))
    rows, end = [], End()
    with Signals() as signals:
        recording.begin(record, price, hook.started)
        hook.on_created(record, signals)
        describe(record, request, packed)
        echo(f"run       {record}\n\n{HEAD}")
        try:
            with kept_alive(record):
                for row in measure(config, packed, request, lambda batches: until_stopped(batches, signals)):
                    echo(line(row))
                    rows.append({**row, "time_ms": int(1000 * time.time())})
        except Stopped as stopped:
            end = End(KILLED, str(stopped))
        except (RuntimeError, OSError) as error:  # such as an image that cannot be decoded
            end = End(FAILED, " ".join(str(error).split()))
        if rows:
            write(record, result(config, packed, request, rows))
        recording.close(record, end, headline(rows, config.data.reader))
        unsent = recording.send(record, config, signals)
    recording.show_end(record, KIND, end, unsent)
    return end.exit_status


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


def until_stopped(batches: Iterator[int], signals: Signals) -> Iterator[int]:
    """Yield the batches; raises Stopped after a signal."""
    for images in batches:
        if signals.reason:
            raise Stopped(signals.reason)
        yield images


def describe(record: RunDir, request: InputRates, packed: Dict) -> None:
    """Write plan, environment and MLflow's params; the latter with the settings `io.*`."""
    splits = {name: manifest.split_of(packed, name) for name, split in packed["splits"].items() if split["count"]}
    classes = len(packed["classes"])
    plan = Plan(splits=splits, classes=classes, data_digest=packed["digest"], data_dir=packed["dir"], device="cpu")
    recording.describe(record, KIND, plan, {"io": asdict(request)}, {})


def result(config: Config, packed: Dict, request: InputRates, rows: List[Dict]) -> Dict:
    """Return the content of test-io.json."""
    data = {"data": config.data.kind, "digest": packed["digest"], "image_size": config.data.image_size}
    return {**data, "batch": config.batch.per_device, "settings": asdict(request), "rates": rows}


def write(record: RunDir, found: Dict) -> None:
    """Write test-io.json, the figure, and a line of metrics for each rate: its step is the number of threads."""
    recording.write_result(record, KIND, found, draw)
    rows = found["rates"]
    recording.write_lines(record, [(row["threads"], row["time_ms"], metrics(name_of(row), row)) for row in rows])


def name_of(row: Dict) -> str:
    """Return the metric of a rate, such as io/images_per_s/turbojpeg/training."""
    return f"{RATE}/decoder" if row["what"] == DECODER else f"{RATE}/{row['reader']}/{row['what']}"


def metrics(name: str, row: Dict) -> Dict[str, float]:
    rate = row["images_per_s"]
    return {name: rate["median"], f"{name}_low": rate["min"], f"{name}_high": rate["max"]}


def headline(rows: List[Dict], reader: str) -> Dict[str, float]:
    """Return the rate of a reader in training with the most threads as metrics of the run; {} if not measured."""
    own = [row for row in rows if (row["reader"], row["what"]) == (reader, TRAINING)]
    return metrics(RATE, max(own, key=lambda row: row["threads"])) if own else {}


def line(row: Dict) -> str:
    rate = "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**row["images_per_s"])
    return f"{row['what']:13} {row['reader']:11} {row['threads']:7}  {rate:32} {row['ms_per_image']:12.3f}"


def draw(found: Dict, path: str) -> None:
    """Draw images/s by threads, with the range of each measurement; the decoder alone as a dashed line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    series: Dict[Tuple[str, str], List[Dict]] = {}
    for row in sorted(found["rates"], key=lambda row: row["threads"]):
        series.setdefault((row["what"], row["reader"]), []).append(row)
    for (what, reader), points in series.items():
        rates = [point["images_per_s"] for point in points]
        median = [rate["median"] for rate in rates]
        ranges = [[rate["median"] - rate["min"] for rate in rates], [rate["max"] - rate["median"] for rate in rates]]
        style = {DECODER: "--", TRAINING: "-", VALIDATION: ":"}[what]
        colour = "black" if what == DECODER else f"C{list(READERS).index(reader)}"
        threads = [point["threads"] for point in points]
        label = what if what == DECODER else f"{reader}, {what}"
        axes.errorbar(threads, median, ranges, fmt=style, color=colour, marker="o", capsize=3, label=label)
    ticks = sorted({row["threads"] for row in found["rates"]})
    axes.set(xlabel="threads that decode", ylabel="images/s", ylim=(0, None), xticks=ticks)
    axes.set_title(f"{found['data']}, {found['image_size']} px, batches of {found['batch']}", fontsize=11)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)
