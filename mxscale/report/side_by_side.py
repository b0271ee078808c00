"""Two runs side by side: settings, environment, metrics."""

from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from mxscale.config.schema import flatten
from mxscale.records.recorded import NOT_KNOWN, Recorded, is_setting, versions
from mxscale.rendering import page
from mxscale.rundir.directory import RunDir
from mxscale.tracking import history
from mxscale.tracking.history import Store
from mxscale.util import text_table
from mxscale.util.errors import ConfigError

# Facts of environment.json to compare; free disk space, for example, is not compared
FACTS = ("python", "variables.", "machine.host", "machine.memory_gb", "machine.memory_limit_gb", "machine.system",
         "machine.driver", "machine.limits", "machine.infiniband", "mxnet.cuda", "mxnet.cudnn", "mxnet.nccl",
         "mxnet.blas")  # fmt: skip
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


class Side(NamedTuple):
    """One of two compared runs."""

    run: Recorded
    facts: Dict[str, object]  # environment.json, flattened

    def parts(self) -> Dict[str, Mapping[str, object]]:
        """Return the values to compare by the title of their table."""
        tags = self.run.tags
        environment = {key: value for key, value in self.facts.items() if key.startswith(FACTS)}
        environment.update({key: tags[key] for key in tags if not key.startswith(DIGESTS + BOOKKEEPING)})
        return {
            "Settings": {key: text for key, text in self.run.current.items() if is_setting(key, text)},
            "Environment": {**environment, **versions(tags)},
            "Data and weights": {key: tags[key] for key in tags if key.startswith(DIGESTS)},
        }


def write(store: Callable[[str], Store], names: Sequence, folder: Path) -> str:
    """Write compare.md to `folder`.

    Args:
        store: Opens the MLflow store for the given setting; not called for run directories.
        names: Two run ids of MLflow, or run directories.
        folder: Created if missing.

    Returns:
        The tables, for the terminal.

    Raises:
        ConfigError: A run is unknown or not finished.
    """
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"report.compare={names}: expected two run ids of MLflow, or run directories: [A,B]")
    a, b = (_side(store, name) for name in names)
    others = b.parts()
    parts = [(title, differences(values, others[title])) for title, values in a.parts().items()]
    metrics = compared_metrics(a.run.metrics, b.run.metrics)
    text = in_markdown(a.run, b.run, parts, metrics)
    page.save({"compare.md": text}, (), folder, "report.output")
    return text


def _side(store: Callable[[str], Store], name: str) -> Side:
    source = f"report.compare={name}"
    run = RunDir(name)
    if run.exists:
        recorded, environment = history.of_directory(run), run.read("environment.json") or {}
    else:
        opened = store(source)
        recorded, environment = opened.run(name), opened.file(name, "environment.json")
    return Side(history.finished(recorded, source), flatten(environment))


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> List[Line]:
    """Return the keys whose values differ, sorted by name; a missing value is a dash."""

    def text(value) -> str:
        return NOT_KNOWN if value is None else str(value)

    lines = [(key, text(a.get(key)), text(b.get(key))) for key in sorted({*a, *b})]
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
