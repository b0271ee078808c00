"""The run directory: where everything that a run leaves behind lies, and how it is read back.

Pure (no mxnet, hydra or mlflow): the parent, the ranks and the tracker all use it.

    config.yaml environment.json price.json plan.json status.json summary.json best.json
    overrides.yaml            the command line of each attempt: {attempt: [KEY=VALUE, ...]}
    metrics.jsonl             rank 0 appends; the truth
    refused.json              why the preparation ended it
    warnings.json             what rank 0 found strange, if anything
    pretrained.params network.json   weights and graph that came from elsewhere
    forecast.json             what it was said to reach before it began (forecast.py)
    params.json               MLflow's params as the run began; a later attempt may change its config.yaml
    probe.json probe/         how comm=auto came to its choice; what its ranks printed
    timeline_<attempt>.json   Horovod's, with comm.timeline=true
    rerun.json rerun/         of which run this is a rerun, and how it came out; that run's record
    diagnosis.json cell.json  the result of mxscale diagnose; which cell of which sweep this is
    stop alive                the parent's word to the ranks
    ranks/<r>.{log,json}      what each rank printed, and how it ended
    ranks/<r>.alive           touched while it lives: what it does, when it last got on
    checkpoints/<step>/       params trainer statistics [exchange] state.json MANIFEST
    tracking.json lock        what MLflow has; one parent at a time
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import yaml

from mxscale.config.schema import Config, flatten, from_dict, to_dict
from mxscale.rundir import json_record
from mxscale.rundir import plan as plan_file
from mxscale.rundir import price as price_file
from mxscale.rundir import status as status_file
from mxscale.rundir import summary as summary_file
from mxscale.rundir.price import Price
from mxscale.rundir.status import (  # noqa: F401 (importers of RunDir need the states and exit statuses too)
    DONE,
    FAILED,
    FAILURE,
    FINISHED,
    INTERRUPTED,
    KILLED,
    REFUSED,
    RUNNING,
    Attempt,
    RankStatus,
    Status,
)  # fmt: skip
from mxscale.rundir.summary import Summary
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FORECAST = "forecast.json"  # what a run says beforehand of its rate, hours and cost
WARNINGS = "warnings.json"  # what rank 0 found strange: {of what: a line}
PARAMS = "params.json"  # those of MLflow, as the run began
RERUN = "rerun.json"


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path):
        self.path = Path(path).resolve()

    def __str__(self):
        return str(self.path)

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step is, if there is one."""
        return self.checkpoints / f"{step:09d}"

    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("[0-9]*"))

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    @property
    def alive_file(self) -> Path:
        return self.path / "alive"

    def rank_log(self, rank: int) -> Path:
        return self.path / "ranks" / f"{rank}.log"

    def rank_alive(self, rank: int) -> Path:
        return self.path / "ranks" / f"{rank}.alive"

    # ------------------------------------------------------------ small JSON files

    def read(self, name: str) -> Optional[Dict[str, Any]]:
        """Return the object in a JSON file; None if the file does not exist. Raises ConfigError if it is damaged."""
        return json_record.read_object(self.path / name)

    def write(self, name: str, values: Dict[str, Any]) -> None:
        """Replace a JSON file atomically. Raises OSError."""
        json_record.write_object(self.path / name, values)

    def config(self) -> Config:
        """The frozen configuration that this run was started with."""
        try:
            return from_dict(yaml.safe_load((self.path / "config.yaml").read_text()))
        except (OSError, yaml.YAMLError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.path} is no run directory: {str(error).splitlines()[0]}") from None

    def plan(self) -> plan_file.Plan:
        """Return the plan; an empty one if none is recorded. Raises ConfigError if plan.json is damaged."""
        return plan_file.load(self)

    def write_plan(self, plan: plan_file.Plan) -> None:
        plan_file.save(self, plan)

    def price(self) -> Optional[Price]:
        """Return the price of the machines; None if none is recorded. Raises ConfigError if price.json is damaged."""
        return price_file.load(self)

    def write_price(self, price: Price) -> None:
        price_file.save(self, price)

    def asked(self) -> Config:
        """The same as it was asked for: before the input of pretrained weights was taken over."""
        config, change = self.config(), self.plan().input
        given = change.instead if change else {}
        return dataclasses.replace(config, data=dataclasses.replace(config.data, **given))

    def write_config(self, config: Config) -> None:
        write_text(self.path / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))

    # ------------------------------------------------------------ metrics

    def lines(self) -> Iterator[Dict[str, Any]]:
        """Every whole line of metrics.jsonl, in order; a torn last line is ignored."""
        try:
            text = self.metrics_file.read_text(errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            parsed = parse_line(line)
            if parsed is not None:
                yield parsed

    def history(self) -> List[Dict[str, Any]]:
        """The lines that count, by step: an attempt takes over from its own first line on.

        It went on from an earlier checkpoint, so what an attempt before it had written of those steps
        happened again.  Of its first line's own step that is what it says as well: it may begin with a validation that
        the attempt before it was to make.
        """
        lines = list(self.lines())
        first, said = {}, {}
        for line in lines:
            attempt, step = line["attempt"], line["step"]
            first[attempt] = min(step, first.get(attempt, step))
            said.update({(step, name): max(attempt, said.get((step, name), 0)) for name in line["metrics"]})
        kept = []
        for line in lines:
            attempt, step = line["attempt"], line["step"]
            beyond = any(later > attempt and step > start for later, start in first.items())
            if not beyond and not any(said[step, name] > attempt for name in line["metrics"]):
                kept.append(line)
        return sorted(kept, key=lambda line: (line["step"], line["time_ms"]))

    # ------------------------------------------------------------ what is known of it

    def status(self) -> Optional[Status]:
        """Return the status; None before the first attempt. Raises ConfigError if status.json is damaged."""
        return status_file.load(self)

    def write_status(self, status: Status) -> None:
        status_file.save(self, status)

    def rank_status(self, rank: int, attempt: int) -> Optional[RankStatus]:
        """Return how a rank of `attempt` ended; None if it has not ended."""
        return status_file.load_rank(self, rank, attempt)

    def write_rank_status(self, status: RankStatus) -> None:
        status_file.save_rank(self, status)

    @property
    def state(self) -> Optional[str]:
        """RUNNING, FINISHED, FAILED or KILLED; None before the first attempt."""
        status = self.status()
        return status and status.state

    @property
    def attempts(self) -> Tuple[Attempt, ...]:
        """The attempts, the first one first."""
        status = self.status()
        return status.attempts if status else ()

    def summary(self) -> Optional[Summary]:
        """Return the summary; None before the end of the first attempt. Raises ConfigError if it is damaged."""
        return summary_file.load(self)

    def write_summary(self, summary: Summary) -> None:
        summary_file.save(self, summary)

    @property
    def figures(self) -> Dict[str, float]:
        """The metrics of the whole run; {} before its end."""
        summary = self.summary()
        return summary.metrics if summary else {}

    # ------------------------------------------------------------ the parent's word

    def ask_to_stop(self, reason: str) -> None:
        """`reason` is one line; the ranks read it, checkpoint and end."""
        write_text(self.stop_file, reason + "\n")

    def stop_reason(self) -> Optional[str]:
        try:
            return self.stop_file.read_text().strip() or "unknown"
        except FileNotFoundError:
            return None

    def begin_alive(self, attempt: int) -> None:
        """The parent of `attempt` is there; ranks that an earlier parent left behind see it and end."""
        write_text(self.alive_file, f"{attempt}\n")

    def touch_alive(self) -> None:
        self.alive_file.touch()

    @property
    def ranks_lock(self) -> Path:
        """The file on which every running rank holds a shared lock."""
        return self.path / "ranks" / "lock"


def parse_line(line: str) -> Optional[Dict[str, Any]]:
    """One line of metrics.jsonl, or None where it is torn."""
    try:
        parsed = json.loads(line)
        return parsed if {"attempt", "step", "time_ms", "metrics"} <= parsed.keys() else None
    except (json.JSONDecodeError, AttributeError):
        return None


# ---------------------------------------------------------------- finding and making runs


def create(config: Config, now: Optional[float] = None) -> RunDir:
    """A new run directory with its config.yaml.  Raises ConfigError where it can't be written."""
    run = RunDir(new_folder(config, config.entry, now))
    try:
        (run.path / "ranks").mkdir()
        run.write_config(config)
    except OSError as error:
        raise unwritable(config, error) from None
    return run


def new_folder(config: Config, kind: str, now: Optional[float] = None) -> Path:
    """runs/<kind>/<date>_<time>_<name>, made just now.  Raises ConfigError where it can't be."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
    base = Path(config.runs) / kind
    for suffix in [""] + [f"-{n}" for n in range(2, 1000)]:
        path = base / f"{stamp}_{config.name}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if path.is_dir():
                continue
            raise ConfigError(f"runs={config.runs}: {path} is in the way of the run directory") from None
        except OSError as error:
            raise unwritable(config, error) from None
        return path
    raise ConfigError(f"runs={config.runs}: no free name for {stamp}_{config.name}")


def unwritable(config: Config, error: OSError) -> ConfigError:
    """What to say where the run directory can't be written before a run begins."""
    where = f"runs={config.runs}: can't write a run directory there"
    return ConfigError(f"{where} ({error.strerror}); make room, or set runs=DIR")


def runs_of(root, entry: str) -> List[RunDir]:
    """Run directories under `root/entry`, newest first."""
    paths = [p.parent for p in (Path(root) / entry).glob("*/config.yaml")]
    return [RunDir(p) for p in sorted(paths, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True)]


def latest_trained(root) -> RunDir:
    """The newest `train` run that ended with a best checkpoint: what model.pretrained=latest means."""
    for run in runs_of(root, "train"):
        if run.state == FINISHED and run.read("best.json"):
            return run
    raise ConfigError(f"model.pretrained=latest: no finished training run under {root}/train; run train.py first")


def as_signed(run: RunDir, config: Config) -> Config:
    """The config whose signature is the run's: of a rerun, ranks and threads as they were asked for the first time."""
    asked, now = (run.read(RERUN) or {}).get("asked", {}), flatten(to_dict(config))
    launch = {key.partition(".")[2]: was for key, (settled, was) in asked.items() if now[key] == settled}
    return dataclasses.replace(config, launch=dataclasses.replace(config.launch, **launch))
