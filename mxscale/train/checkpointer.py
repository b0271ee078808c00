"""Checkpoints: when they are written, which ones are retained, how they are validated and restored.

checkpoints/<9-digit step>/params      the network as it is evaluated and exported
                           trainer     the optimizer's state, as Trainer.save_states writes it
                           statistics  running statistics of batch normalisation by shard, a .npy array
                           exchange    with double buffering: the summed gradients in flight
                           trained     with ema_decay: the weights that training resumes from; params is their average
                           state.json  step, shards, best validation so far, loss scale
                           MANIFEST    SHA-256 of each file, in the format of sha256sum -c

A checkpoint is written to a temporary directory, synchronised to the disk and renamed. A checkpoint is valid if every
file matches MANIFEST; one that is not valid is ignored.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from mxnet import gluon, nd

from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes, unsaved
from mxscale.models import weights
from mxscale.rundir.directory import RunDir
from mxscale.train.optim.averaging import NoAverage
from mxscale.train.optim.optimizer import load_states, save_states
from mxscale.train.precision import Precision
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.util.atomic_files import digest_of, sync, write_text
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

MAX_MANIFEST, MAX_BYTES = 1 << 20, 4 * weights.MAX_BYTES  # of MANIFEST, of any other file
FILES = ("params", "trainer", "statistics", "state.json")  # of every checkpoint
EXTRA = ("exchange", "trained")  # of some


class NotFinite(ArithmeticError):
    """A loss or a weight is NaN or infinite; the last checkpoint remains valid."""


@dataclass
class TrainingState:
    """What a checkpoint saves and restores.

    Attributes:
        parameters: Structural name -> Parameter.
        running: Names of the parameters whose values `statistics` holds for each shard.
        exchange: The gradient exchange, which may have sums in flight.
        average: The moving average of the network.
    """

    parameters: Dict[str, gluon.Parameter]
    running: List[str]
    optimizer: gluon.Trainer
    statistics: ShardStatistics
    precision: Precision
    exchange: Any
    average: NoAverage


class Snapshot(NamedTuple):
    """A copy of the network after a step, as it is evaluated and exported."""

    step: int
    params: Dict[str, nd.NDArray]  # structural name -> copy; running statistics averaged over shards
    statistics: np.ndarray  # by shard, as ShardStatistics.gather returns them


class Checkpoint(NamedTuple):
    """The content of a checkpoint directory."""

    path: Path
    state: Dict[str, Any]  # state.json
    params: Dict[str, nd.NDArray]  # by structural name
    statistics: np.ndarray  # (shards, values), float32
    exchange: Dict[str, nd.NDArray]  # index of a bucket -> sums of gradients in flight; {} without any
    trained: Dict[str, nd.NDArray]  # as NoAverage.state returns it


class Checkpointer:
    """The checkpoints of one run. Every rank calls the methods; rank 0 writes."""

    def __init__(self, run: RunDir, config: Config, sizes: Sizes, comm, state: TrainingState):
        self.run, self.config, self.sizes, self.comm, self.state = run, config, sizes, comm, state
        self.best = None  # {"step", "val/top1", "val/loss"}
        self.validation_pending = False  # a stop request interrupted it
        self.saved_step, self.params_sha256 = None, None

    def restore(self) -> int:
        """Restore the newest valid checkpoint; return its step, 0 if none exists."""
        found = newest(self.run.checkpoints)
        self._check_agreement(found)
        if found is None:
            return 0
        for name, parameter in self.state.parameters.items():
            parameter.set_data(found.trained.get(name, found.params[name]))
        self.state.average.restore(found.params, found.trained)
        load_states(self.state.optimizer, str(found.path / "trainer"))
        self.state.statistics.restore(found.statistics)
        self.state.precision.restore(found.state["loss_scale"])
        self.state.exchange.restore(found.exchange)
        self.best = found.state["best"]
        # Older checkpoints lack the key; a run that was shortened to this step may end without any validation
        unvalidated_end = self.best is None and found.state["step"] == self.sizes.total_steps
        self.validation_pending = found.state.get("owes_validation", False) or unvalidated_end
        self.saved_step, self.params_sha256 = found.state["step"], found.state["params_sha256"]
        nd.waitall()
        return found.state["step"]

    def _check_agreement(self, found: Optional[Checkpoint]) -> None:
        """Raise RuntimeError unless all ranks read the same checkpoint, None for none. A collective."""
        if not self.comm.agree((found.path / "MANIFEST").read_bytes() if found else b""):
            here = found.path if found else "none"
            raise RuntimeError(f"ranks read different checkpoints, here {here}: check the storage")

    def due(self, step: int) -> bool:
        """Return whether the configuration asks for a checkpoint after this step."""
        every = self.config.checkpoint
        at_epoch = step % (every.every_epochs * self.sizes.steps_per_epoch) == 0
        return at_epoch or bool(every.every_steps and step % every.every_steps == 0)

    def record_validation(self, step: int, result: Optional[dict]) -> None:
        """Record a validation's result, None if it was interrupted; of equal results the earliest is the best."""
        self.validation_pending = result is None
        if result and (self.best is None or result["val/top1"] > self.best["val/top1"]):
            self.best = {"step": step, **result}

    @property
    def best_step(self) -> Optional[int]:
        return self.best and self.best["step"]

    def snapshot(self, step: int) -> Snapshot:
        """Return a copy of the network after `step`. A collective."""
        self.state.exchange.settle()
        table = self.state.statistics.gather(self.comm)
        params = {name: parameter.list_data()[0].copy() for name, parameter in self.state.parameters.items()}
        params.update(zip(self.state.running, self.state.statistics.average(table)))
        return Snapshot(step, self.state.average.evaluated(params, self.comm), table)

    def save(self, snapshot: Snapshot, metrics_log) -> None:
        """Write a checkpoint, then best.json, which names an existing checkpoint. A collective.

        If the step's checkpoint exists (a resumed run repeated its validation), only best.json is written.

        Raises:
            NotFinite: A weight is NaN or infinite.
            OSError: Rank 0 could not write; on all ranks.
        """
        if snapshot.step == self.saved_step:
            if self.comm.rank == 0:
                self._write_best()
            return
        arrays = _numpy(snapshot.params)
        not_finite = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if not_finite:
            raise NotFinite(f"{not_finite[0]} is not finite after step {snapshot.step}; {self.last_valid()}")
        self.params_sha256 = weights.params_sha256(arrays)
        failure = self._write(snapshot, metrics_log) if self.comm.rank == 0 else None
        if self.comm.total(np.array([failure is not None]))[0]:  # all ranks end together
            raise failure or OSError("rank 0 could not write its checkpoint")
        self.saved_step = snapshot.step

    def _write(self, snapshot: Snapshot, metrics_log) -> Optional[OSError]:
        in_flight = self.state.exchange.state()
        state = {
            "step": snapshot.step,
            "shards": self.sizes.shards,
            "global_batch": self.sizes.global_batch,
            "best": self.best,
            "loss_scale": self.state.precision.state(),
            "params_sha256": self.params_sha256,
            "unsaved": unsaved(self.config.comm),
            "owes_validation": self.validation_pending,
            "under_way": bool(in_flight),
        }
        try:
            metrics_log.sync()
            final = self.run.checkpoint(snapshot.step)
            extra = {"exchange": in_flight, "trained": self.state.average.state()}
            write(final, state, snapshot, self.state.optimizer, extra)
            self._write_best()
            prune(self.run.checkpoints, snapshot.step, self.config.checkpoint.keep, self.best_step)
        except OSError as error:
            return error
        return None

    def _write_best(self) -> None:
        if self.best:
            path = self.run.checkpoint(self.best_step).relative_to(self.run.path)
            self.run.write("best.json", {**self.best, "checkpoint": str(path)})

    def best_params(self) -> Dict[str, nd.NDArray]:
        """Return the parameters of the best checkpoint, of the newest one if the best is damaged. A collective."""
        path = self.run.checkpoint(self.best_step)
        found = read(path) if is_valid(path) else newest(self.run.checkpoints)
        self._check_agreement(found)
        if found is None:
            raise RuntimeError(f"{path} is damaged, and so are all other checkpoints: check the storage")
        if found.path != path and self.comm.rank == 0:
            print(f"warning: {path} is damaged: {found.path} is evaluated instead", flush=True)
        return found.params

    def last_valid(self) -> str:
        """Return the end of an error message: where the newest valid checkpoint is."""
        path = newest_path(self.run.checkpoints)
        return f"the last good checkpoint is {path}" if path else "there is no checkpoint yet"


# ---------------------------------------------------------------- directories of checkpoints


def check_resumable(run: RunDir) -> dict:
    """Return state.json of the newest valid checkpoint, {} if the run has no checkpoint.

    Raises ConfigError if every checkpoint is damaged.
    """
    path = newest_path(run.checkpoints)
    if path:
        return json.loads((path / "state.json").read_text())
    if steps(run.checkpoints):
        raise ConfigError(f"resume={run.path}: every checkpoint there is damaged; start a new run")
    return {}


def steps(folder: Path) -> List[int]:
    """Return the steps that have a checkpoint, oldest first."""
    return [int(path.name) for path in _paths(folder)]


def newest(folder: Path) -> Optional[Checkpoint]:
    """Return the newest valid checkpoint, None if none exists."""
    path = newest_path(folder)
    return read(path) if path else None


def newest_path(folder: Path) -> Optional[Path]:
    return next((path for path in reversed(_paths(folder)) if is_valid(path)), None)


def is_valid(path: Path) -> bool:
    """Return whether every file has the digest that MANIFEST lists."""
    try:
        lines = read_regular(path / "MANIFEST", MAX_MANIFEST).decode().splitlines()
        listed = {line[66:]: line[:64] for line in lines}
        if not listed.keys() >= set(FILES) or any((path / name).stat().st_size > MAX_BYTES for name in listed):
            return False
        return all(digest_of(path / name) == digest for name, digest in listed.items())
    except (OSError, ValueError):  # ValueError: a damaged MANIFEST is not text, or names no file
        return False


def read(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text())
    exchange, trained = (nd.load(str(path / name)) if (path / name).exists() else {} for name in EXTRA)
    return Checkpoint(path, state, weights.load(path / "params"), np.load(path / "statistics"), exchange, trained)


def write(final: Path, state: Dict[str, Any], snapshot: Snapshot, trainer: gluon.Trainer, extra) -> None:
    """Write the checkpoint `final` atomically; `state` and, by name, the files of `extra` are as in `Checkpoint`.

    Raises:
        OSError: A write failed (a full disk, for example); earlier checkpoints remain.
    """
    folder = final.parent
    new = folder / f".{final.name}.{os.getpid()}"
    for left in folder.glob(".[0-9]*"):  # of a writer that was killed
        shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(exist_ok=True)  # but not a run directory that was removed
    new.mkdir()
    try:
        _save_arrays(new / "params", snapshot.params, state["params_sha256"])
        save_states(trainer, new / "trainer")
        sync(new / "trainer")
        with open(new / "statistics", "wb") as file:
            np.save(file, snapshot.statistics)
        sync(new / "statistics")
        extra = {name: arrays for name, arrays in extra.items() if arrays}
        for name, arrays in extra.items():
            _save_arrays(new / name, arrays, weights.params_sha256(_numpy(arrays)))
        write_text(new / "state.json", json.dumps(state, indent=1, sort_keys=True) + "\n")
        names = [*FILES, *extra]
        write_text(new / "MANIFEST", "".join(f"{digest_of(new / name)}  {name}\n" for name in names))
        sync(new)
        if final.exists():  # the same step again, after a resume from an earlier one
            shutil.rmtree(final)
        os.rename(new, final)
        sync(folder)
    except (OSError, ConfigError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(f"checkpoint of step {state['step']} not written: {error}") from error


def prune(folder: Path, current: int, keep: int, best: Optional[int]) -> None:
    """Delete all checkpoints but the last `keep` up to step `current` and the best.

    Later checkpoints than `current` are damaged, or the run would have resumed from them; they are deleted too.
    """
    retained = [step for step in steps(folder) if step <= current][-keep:]
    for path in _paths(folder):
        if int(path.name) not in (*retained, best):
            shutil.rmtree(path, ignore_errors=True)


def _paths(folder: Path) -> List[Path]:
    return sorted(folder.glob("[0-9]" * 9))


def _save_arrays(path: Path, arrays, digest: str) -> None:
    """Write arrays and read them back: MXNet's writer does not report every write error of a full disk."""
    weights.save(path, arrays)
    if weights.params_sha256(_numpy(weights.load(path))) != digest:
        raise OSError(f"{path} does not read back as written (a full disk?)")


def _numpy(arrays) -> Dict[str, np.ndarray]:
    return {name: array.asnumpy() for name, array in arrays.items()}
