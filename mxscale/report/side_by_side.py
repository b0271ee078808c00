"""Two runs side by side: settings, environment, metrics."""

from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from mxscale.config.schema import Config
from mxscale.records.recorded import NOT_KNOWN, Recorded, is_setting, versions
from mxscale.rendering import page
from mxscale.rundir.directory import RunDir
from mxscale.tracking import history
from mxscale.tracking.history import Store
from mxscale.util import text_table
from mxscale.util.errors import ConfigError

# Tags of data and weights; tags of the record or the outcome; all others are of the environment
DIGESTS = ("data.digest", "pretrained.", "params_sha256")
BOOKKEEPING = ("mxscale.", "mlflow.", "signature", "claims", "scaling.baseline", "warning", "resumed.", "ranks",
               "versions")  # fmt: skip
METRICS = {
    *("best/val_top1", "val/top1", "val/loss", "test/top1", "test/loss", "train/loss", "train/top1"),
    *("throughput/median", "scaling/efficiency", "time/wall_s", "time/data_wait_median", "time/compute_median"),
    *("time/exchange_median", "time/to_target_s", "cost/total_usd", "cost/total_eur", "cost/usd_to_target"),
}

Line = Tuple[str, str, str]  # key, A, B


def write(config: Config, names: Sequence, folder: Path) -> str:
    """Write compare.md to `folder`, and return its text.

    Args:
        names: Two run ids of MLflow, or run directories, which need no store.

    Raises:
        ConfigError: A run is unknown or not finished.
    """
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"report.compare={names}: expected two run ids of MLflow, or run directories: [A,B]")
    a, b = (_run(config, name) for name in names)
    others = parts(b)
    differing = [(title, differences(values, others[title])) for title, values in parts(a).items()]
    text = in_markdown(a, b, differing, compared_metrics(a.metrics, b.metrics))
    page.save({"compare.md": text}, (), folder, "report.output")
    return text


def _run(config: Config, name: str) -> Recorded:
    source, run = f"report.compare={name}", RunDir(name)
    recorded = history.of_directory(run) if run.exists else Store(config, source).run(name)
    return history.finished(recorded, source)


def parts(run: Recorded) -> Dict[str, Dict[str, str]]:
    """Return the values to compare by the title of their table."""
    environment = {key: text for key, text in run.tags.items() if not key.startswith(DIGESTS + BOOKKEEPING)}
    return {
        "Settings": {key: text for key, text in run.current.items() if is_setting(key, text)},
        "Environment": {**environment, **versions(run.tags)},
        "Data and weights": {key: text for key, text in run.tags.items() if key.startswith(DIGESTS)},
    }


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> List[Line]:
    """Return the keys whose values differ, sorted by name; a missing value is a dash."""
    lines = [(key, a.get(key, NOT_KNOWN), b.get(key, NOT_KNOWN)) for key in sorted({*a, *b})]
    return [line for line in lines if line[1] != line[2]]


def compared_metrics(a: Mapping[str, float], b: Mapping[str, float]) -> List[Line]:
    """Return the metrics of the runs in METRICS, equal or not."""
    return [
        (key, *(f"{side[key]:,.6g}" if key in side else NOT_KNOWN for side in (a, b)))
        for key in sorted(METRICS & {*a, *b})
    ]


def in_markdown(a: Recorded, b: Recorded, parts: Sequence[Tuple[str, List[Line]]], metrics: List[Line]) -> str:
    texts = [f"# Two runs\n\nA: {a.name} ({a.id})\n\nB: {b.name} ({b.id})\n"]
    for title, lines in parts:
        table = text_table.markdown(("key", "A", "B"), lines, left=3) if lines else "No differences."
        texts.append(f"## {title}\n\n{table}")
    texts.append(f"## Metrics\n\n{text_table.markdown(('metric', 'A', 'B'), metrics)}")
    return "\n".join(text.rstrip() + "\n" for text in texts)
