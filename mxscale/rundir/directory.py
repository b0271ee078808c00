"""The run directory: its files, and how runs are created and found.

config.yaml               the frozen configuration; a resume may change it
overrides.yaml            the command line of each attempt: {attempt: [KEY=VALUE, ...]}
plan.json price.json status.json summary.json   typed records, see plan.py, price.py and status.py
environment.json best.json
metrics.jsonl             appended by rank 0; the source of truth
system.jsonl              use of the machine, appended by the parent; in the same format
refused.json              why the preparation refused the run
pretrained.params network.json   weights and graph from another source
params.json learning-curves.png   for MLflow: params of a measurement, the figure of its page
probe/                    the output of measurements by ranks
rerun.json rerun/         the verdict of a rerun; the record of the first run
diagnosis.json test-io.json test-allreduce.json   the result of the verb of that name, of mxscale diagnose
cell.json home/           the cell of a sweep; of earlier versions: HOME of the ranks
stop alive                the stop request and the heartbeat of the parent
ranks/<r>.{log,json}      output and status of a rank
ranks/<r>.alive           heartbeat of a rank, with its phase
checkpoints/<step>/       params statistics optimizer.json state.json MANIFEST, see train/checkpointer.py
tracking.json lock        what MLflow has; the lock of the parent
"""

import dataclasses
import itertools
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import yaml

from mxscale.config.schema import Config, from_dict, to_dict
from mxscale.rundir import json_record, metrics_file
from mxscale.rundir.earlier_settings import check_repeatable, converted
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import ENDED, FINISHED, KILLED, Attempt, RankStatus, Status, Summary
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError, short
from mxscale.util.redaction import redact_address
from mxscale.util.terminal import echo

METRICS, SYSTEM = "metrics.jsonl", "system.jsonl"
ALIVE_S = 20.0  # the parent touches `alive` every 5 s; ranks end themselves after this time without it
FINISH = "finish"  # in the file `stop`: the request to take the present step for the last one
PARAMS = "params.json"  # MLflow's params of a measurement; in earlier versions, of a run's first attempt
RERUN = "rerun.json"
ALLREDUCE = "test-allreduce.json"
FILES = {Plan: "plan.json", Price: "price.json", Status: "status.json", Summary: "summary.json"}  # of typed records


class _WithoutAliases(yaml.SafeLoader):
    """Refuses aliases (`*name`), with which a short file can stand for billions of values; no version wrote any."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)


class RunDir:
    """Paths and files of one run."""

    def __init__(self, path):
        self.path = Path(os.path.realpath(path))  # resolve() raises an error for a loop of links

    def __str__(self):
        return str(self.path)

    @property
    def metrics_file(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step, which may not exist."""
        return self.checkpoints / f"{step:09d}"

    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("[0-9]*"))

    @property
    def stop_file(self) -> Path:
        return self.path / "stop"

    @property
    def alive_file(self) -> Path:
        return self.path / "alive"

    def rank_alive(self, rank: int) -> Path:
        return self.path / "ranks" / f"{rank}.alive"

    @property
    def exists(self) -> bool:
        """Whether it has config.yaml, the first file of a run. Raises ConfigError if that can't be found out."""
        try:
            return stat.S_ISREG((self.path / "config.yaml").stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise ConfigError(f"{self.path} can't be read: {error.strerror.lower()}") from None

    # ------------------------------------------------------------ small JSON files

    def read(self, name: str) -> Optional[Dict[str, Any]]:
        """Return the object in a JSON file; None if the file does not exist. Raises ConfigError if it is damaged."""
        return json_record.read_object(self.path / name)

    def read_yaml(self, name: str) -> Optional[Dict[Any, Any]]:
        """Return the mapping in a YAML file; None if the file does not exist. Raises ConfigError if it is damaged."""
        path = self.path / name
        try:
            text = json_record.read_bytes(path).decode()
            values = yaml.load(text, _WithoutAliases)
        except FileNotFoundError:
            return None
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            raise ConfigError(f"{path} is damaged: {short(error)}") from None
        if not isinstance(values, dict) or not text.endswith("\n"):
            raise ConfigError(f"{path} is damaged: {'it is cut' if isinstance(values, dict) else 'expected settings'}")
        return values

    def write(self, name: str, values: Dict[str, Any]) -> None:
        """Replace a JSON file atomically. Raises OSError."""
        json_record.write_object(self.path / name, values)

    def save(self, record: Union[Plan, Price, Status, RankStatus, Summary]) -> None:
        """Replace the file of a typed record atomically. Raises OSError."""
        name = f"ranks/{record.rank}.json" if isinstance(record, RankStatus) else FILES[type(record)]
        json_record.save(self.path / name, record)

    def config(self, repeats: bool = False) -> Config:
        """Return the configuration. Raises ConfigError if config.yaml is missing or damaged.

        Args:
            repeats: Refuse a configuration that this version can read but not run.
        """
        values = self.read_yaml("config.yaml")
        if values is None:
            raise ConfigError(f"{self.path} is no run directory: it has no config.yaml")
        try:
            if repeats:
                check_repeatable(values)
            return from_dict(converted(values))
        except ConfigError as error:
            raise ConfigError(f"{self.path}/config.yaml: {error}") from None

    def plan(self) -> Plan:
        """Return the plan; an empty one if none is recorded. Raises ConfigError if plan.json is damaged."""
        return json_record.load(self.path / FILES[Plan], Plan) or Plan()

    def price(self) -> Optional[Price]:
        """Return the price of the machines; None if none is recorded. Raises ConfigError if price.json is damaged."""
        return json_record.load(self.path / FILES[Price], Price)

    def requested_config(self) -> Config:
        """Return the configuration to repeat, without the input that came with pretrained weights."""
        config = self.config(repeats=True)
        return dataclasses.replace(config, data=dataclasses.replace(config.data, **self.plan().input.instead))

    def write_config(self, config: Config) -> None:
        values = to_dict(config)  # without the password of tracking.uri
        values["tracking"]["uri"] = redact_address(config.tracking.uri or "") or None
        write_text(self.path / "config.yaml", yaml.safe_dump(values, sort_keys=False))

    def lines(self) -> Iterator[Dict[str, Any]]:
        """Yield every complete line of metrics.jsonl; a torn last line is ignored."""
        for line, _ in self.lines_from(0):
            yield line

    def lines_from(self, offset: int, name: str = METRICS) -> Iterator[Tuple[Dict[str, Any], int]]:
        """Return an iterator, see metrics_file.py."""
        return metrics_file.lines_from(self.path / name, offset)

    def history(self) -> List[Dict[str, Any]]:
        """Return the lines of metrics.jsonl by step, without those that a later attempt replaced."""
        return metrics_file.valid(list(self.lines()))

    def status(self) -> Optional[Status]:
        """Return the status; None before the first attempt. Raises ConfigError if status.json is damaged."""
        return json_record.load(self.path / FILES[Status], Status)

    def rank_status(self, rank: int, attempt: int) -> Optional[RankStatus]:
        """Return how a rank of `attempt` ended; None if it has not ended. Raises ConfigError if the file is damaged."""
        status = json_record.load(self.path / "ranks" / f"{rank}.json", RankStatus)
        return status if status and status.attempt == attempt else None

    @property
    def state(self) -> Optional[str]:
        """RUNNING, FINISHED, FAILED or KILLED; None before the first attempt."""
        status = self.status()
        return status and status.state

    @property
    def is_running(self) -> bool:
        """Whether the parent process of the run lives."""
        if self.state in ENDED:
            return False
        try:
            return time.time() - self.alive_file.stat().st_mtime < ALIVE_S
        except FileNotFoundError:
            return False

    @property
    def end_state(self) -> str:
        """FINISHED, FAILED or KILLED; a parent that recorded no end was killed."""
        return self.state if self.state in ENDED else KILLED

    @property
    def attempts(self) -> Tuple[Attempt, ...]:
        """The attempts, the first one first."""
        return (self.status() or Status()).attempts

    def summary(self) -> Optional[Summary]:
        """Return the summary; None before the end of the first attempt. Raises ConfigError if it is damaged."""
        return json_record.load(self.path / FILES[Summary], Summary)

    @property
    def figures(self) -> Dict[str, float]:
        """The metrics of the whole run; {} before its end."""
        return (self.summary() or Summary()).metrics

    # ------------------------------------------------------------ stop request and heartbeat

    def ask_to_stop(self, reason: str) -> None:
        """Write the stop request; the ranks write a checkpoint and end; with FINISH, after validation and test.

        `reason` is one line.
        """
        write_text(self.stop_file, reason + "\n")

    def stop_reason(self) -> Optional[str]:
        try:
            return json_record.read_bytes(self.stop_file).decode(errors="replace").strip() or "unknown"
        except FileNotFoundError:
            return None

    def begin_alive(self, attempt: int) -> None:
        """Write the heartbeat file of the parent of `attempt`; ranks of an earlier parent then end."""
        write_text(self.alive_file, f"{attempt}\n")

    @property
    def ranks_lock(self) -> Path:
        """The file on which every running rank holds a shared lock."""
        return self.path / "ranks" / "lock"


# ---------------------------------------------------------------- finding and making runs


def create(config: Config, now: Optional[float] = None) -> RunDir:
    """Create a run directory with its config.yaml. Raises ConfigError if it cannot be written."""
    run = RunDir(new_folder(config, config.entry, now))
    try:
        (run.path / "ranks").mkdir()
        run.write_config(config)
    except OSError as error:
        raise unwritable(config.runs, error) from None
    return run


def new_folder(config: Config, kind: str, now: Optional[float] = None) -> Path:
    """Create the folder runs/<kind>/<date>_<time>_<name>. Raises ConfigError if it cannot be created."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
    path = Path(config.runs) / kind / f"{stamp}_{config.name}"
    for number in itertools.count(2):
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError as error:
            if not path.is_dir():
                raise ConfigError(f"runs={config.runs}: {error.filename} is in the way of a run directory") from None
            path = path.with_name(f"{stamp}_{config.name}-{number}")
        except OSError as error:
            raise unwritable(config.runs, error) from None


def unwritable(runs: str, error: OSError) -> ConfigError:
    """Return the error for a run directory that cannot be written."""
    why = f"can't write a run directory there ({error.strerror})"
    return ConfigError(f"runs={runs}: {why}; make room, or set runs=DIR")


def runs_of(root, *entries: str) -> List[RunDir]:
    """Return the run directories of the entries, newest first, without those with a damaged status or best.json."""
    dated = []
    for folder in (file.parent for entry in entries for file in Path(root, entry).glob("*/config.yaml")):
        with suppress(FileNotFoundError):  # removed meanwhile
            dated.append((folder.stat().st_mtime_ns, folder))
    readable = []
    for run in (RunDir(folder) for _, folder in sorted(dated, reverse=True)):
        try:
            run.status(), run.read("best.json")
            readable.append(run)
        except ConfigError as error:
            echo(f"skipping a run directory: {error}", sys.stderr)
    return readable


def latest_trained(root, setting: str = "model.pretrained=latest", entries: Sequence[str] = ("train",)) -> RunDir:
    """Return the newest finished run of these entries with a best checkpoint. Raises ConfigError naming `setting`."""
    for run in runs_of(root, *entries):
        if run.state == FINISHED and run.read("best.json"):
            return run
    path = f"{root}/{' or '.join(entries)}"
    raise ConfigError(f"{setting}: no finished training run under {path}; name a run or weights, or train first")
