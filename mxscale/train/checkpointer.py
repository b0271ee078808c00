"""Checkpoints: when they are written, which ones are retained, how they are validated and restored.

checkpoints/<9-digit step>/params          the network as it is evaluated and exported
                           optimizer.json  the optimizer's attributes and states, see optim/states.py
                           optimizer       the arrays of these states, if any
                           statistics      running statistics of batch normalisation by shard, a .npy array
                           exchange        with double buffering: the summed gradients in flight
                           residuals       with a compression that has error feedback: what is not sent yet
                           trained         with ema_decay: the weights to resume from; params is their average
                           state.json      step, shards, best validation so far, loss scale
                           MANIFEST        SHA-256 of each file, in the format of sha256sum -c

Training waits only for the copy of the arrays to the memory of rank 0. A thread writes them to a temporary directory,
synchronises it to the disk and renames it; one checkpoint is under way at a time. A resume ignores one that is damaged,
see rundir/checkpoints.py. Checkpoints of earlier versions have a pickle `trainer` for the optimizer.
"""

import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from mxnet import gluon, nd

from mxscale.config.schema import Checkpoint as CheckpointSettings
from mxscale.config.sizes import Sizes
from mxscale.models import weights
from mxscale.rundir import checkpoints, json_record
from mxscale.rundir.checkpoints import MANIFEST, MAX_BYTES, OPTIMIZER, PICKLED
from mxscale.rundir.directory import RunDir
from mxscale.train.optim import pickled_states, states
from mxscale.train.optim.averaging import NoAverage
from mxscale.train.precision import Precision
from mxscale.train.shard_statistics import ShardStatistics
from mxscale.util.atomic_files import digest_of, sync, write_text
from mxscale.util.errors import ConfigError, short
from mxscale.util.regular_files import open_regular

ARRAYS = ("optimizer", "exchange", "residuals", "trained")  # files of arrays that some checkpoints have


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


class Content(NamedTuple):
    """The content of a checkpoint in the host's memory, which further steps do not change."""

    state: Dict[str, Any]  # state.json
    arrays: Dict[str, Dict[str, np.ndarray]]  # file -> its arrays by name; files without arrays are not written
    statistics: np.ndarray
    optimizer: str  # optimizer.json


class Checkpoint(NamedTuple):
    """The content of a checkpoint directory."""

    path: Path
    state: Dict[str, Any]  # state.json
    params: Dict[str, nd.NDArray]  # by structural name
    statistics: np.ndarray  # (shards, values), float32
    optimizer: states.OptimizerState
    exchange: Dict[str, nd.NDArray]  # index of a bucket -> sums of gradients in flight; {} without any
    residuals: Dict[str, nd.NDArray]  # as Exchange.residuals returns them
    trained: Dict[str, nd.NDArray]  # as NoAverage.state returns it


class Checkpointer:
    """The checkpoints of one run. Every rank calls the methods; rank 0 writes."""

    def __init__(self, run: RunDir, settings: CheckpointSettings, sizes: Sizes, comm, state: TrainingState):
        self.run, self.settings, self.sizes, self.comm, self.state = run, settings, sizes, comm, state
        self.best = None  # {"step", "val/top1", "val/loss"}
        self.validation_pending = False  # a stop request interrupted it
        self.saved_step, self.params_sha256 = None, None  # the digest on rank 0 alone
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.writing: Optional[Future] = None

    def restore(self) -> int:
        """Restore the newest valid checkpoint; return its step, 0 if none exists."""
        path = checkpoints.newest(self.run.checkpoints)
        self._check_agreement(path)
        if path is None:
            return 0
        checkpoint = read(path)
        latest = checkpoints.paths(self.run.checkpoints)[-1]
        if latest != path and self.comm.rank == 0:
            print(f"warning: {latest} is damaged: training resumes from {path}", flush=True)
        for name, parameter in self.state.parameters.items():
            parameter.set_data(checkpoint.trained.get(name, checkpoint.params[name]))
        self.state.average.restore(checkpoint.params, checkpoint.trained)
        checkpoint.optimizer.restore(self.state.optimizer)
        self.state.statistics.restore(checkpoint.statistics)
        self.state.precision.restore(checkpoint.state["loss_scale"])
        self.state.exchange.restore(checkpoint.exchange)
        self.state.exchange.restore_residuals(checkpoint.residuals)
        self.best = checkpoint.state["best"]
        # A run that was shortened to this step may end without any validation
        unvalidated_end = self.best is None and checkpoint.state["step"] == self.sizes.total_steps
        # Older checkpoints have the key owes_validation, or neither
        pending = checkpoint.state.get("validation_pending", checkpoint.state.get("owes_validation", False))
        self.validation_pending = pending or unvalidated_end
        self.saved_step, self.params_sha256 = checkpoint.state["step"], checkpoint.state["params_sha256"]
        nd.waitall()
        return checkpoint.state["step"]

    def _check_agreement(self, path: Optional[Path]) -> None:
        """Raise RuntimeError unless all ranks read the same checkpoint, None for none. A collective."""
        if not self.comm.agree((path / MANIFEST).read_bytes() if path else b""):
            raise RuntimeError(f"ranks read different checkpoints, here {path or 'none'}: check the storage")

    def due(self, step: int) -> bool:
        """Return whether the configuration asks for a checkpoint after this step."""
        every = self.settings
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
        table = self.state.statistics.gather(self.comm)
        params = {name: parameter.list_data()[0].copy() for name, parameter in self.state.parameters.items()}
        params.update(zip(self.state.running, self.state.statistics.average(table)))
        return Snapshot(step, self.state.average.evaluated(params, self.comm), table)

    def save(self, snapshot: Snapshot, metrics_log) -> None:
        """Begin to write a checkpoint, and then best.json, which names an existing checkpoint. A collective.

        If the step's checkpoint exists (a resumed run repeated its validation), only best.json is written.

        Raises:
            NotFinite: A weight is NaN or infinite.
            OSError: Rank 0 could not write the checkpoint before this one; on all ranks.
        """
        self.finish()
        if snapshot.step == self.saved_step:
            if self.comm.rank == 0:
                self._write_best(self.best)
            return
        params = _on_host(snapshot.params)
        not_finite = [name for name, array in params.items() if not np.isfinite(array).all()]
        if not_finite:
            raise NotFinite(f"{not_finite[0]} is not finite after step {snapshot.step}; {self.last_valid()}")
        residuals = self.state.exchange.residuals()
        self.params_sha256 = None
        if self.comm.rank == 0:
            content = self._content(snapshot, params, residuals)
            self.writing = self.thread.submit(self._write, content, metrics_log)
        self.saved_step = snapshot.step

    def wait(self) -> Optional[OSError]:
        """Wait until no checkpoint is under way; return why the last one could not be written."""
        return self.writing and self.writing.exception()

    def finish(self) -> None:
        """Wait until the last checkpoint is complete. A collective. Raises OSError on all ranks if rank 0 failed."""
        failure, self.writing = self.wait(), None
        if self.comm.total(np.array([failure is not None]))[0]:  # all ranks end together
            self.saved_step = None
            raise failure or OSError("rank 0 could not write its checkpoint")

    def _content(self, snapshot: Snapshot, params: Dict[str, np.ndarray], residuals: Dict[str, nd.NDArray]) -> Content:
        in_flight = self.state.exchange.state()
        state = {
            "step": snapshot.step,
            "shards": self.sizes.shards,
            "global_batch": self.sizes.global_batch,
            "best": self.best,
            "loss_scale": self.state.precision.state(),
            "validation_pending": self.validation_pending,
            "under_way": bool(in_flight),
        }
        text, of_optimizer = states.encoded(states.of_trainer(self.state.optimizer))
        trained = self.state.average.state()
        others = {"optimizer": of_optimizer, "exchange": in_flight, "residuals": residuals, "trained": trained}
        arrays = {"params": params, **{name: _on_host(values) for name, values in others.items()}}
        return Content(state, arrays, snapshot.statistics, text)

    def _write(self, content: Content, metrics_log) -> None:
        """Write a checkpoint, in the thread. Raises OSError."""
        step, best = content.state["step"], content.state["best"]
        metrics_log.sync()
        self.params_sha256 = content.state["params_sha256"] = weights.params_sha256(content.arrays["params"])
        write(self.run.checkpoint(step), content)
        self._write_best(best)
        prune(self.run.checkpoints, step, self.settings.keep, best and best["step"])

    def _write_best(self, best: Optional[dict]) -> None:
        if best:
            path = self.run.checkpoint(best["step"]).relative_to(self.run.path)
            self.run.write("best.json", {**best, "checkpoint": str(path)})

    def best_params(self) -> Dict[str, nd.NDArray]:
        """Return the parameters of the best checkpoint, of the newest one if the best is damaged. A collective.

        No checkpoint may be under way.
        """
        path = self.run.checkpoint(self.best_step)
        evaluated = path if checkpoints.is_complete(path) else checkpoints.newest(self.run.checkpoints)
        self._check_agreement(evaluated)
        if evaluated is None:
            raise RuntimeError(f"{path} is damaged, and so are all other checkpoints: check the storage")
        if evaluated != path and self.comm.rank == 0:
            print(f"warning: {path} is damaged: {evaluated} is evaluated instead", flush=True)
        return weights.load(evaluated / "params", "checkpoint")

    def last_valid(self) -> str:
        """Return the end of an error message: where the newest valid checkpoint is. None may be under way."""
        path = checkpoints.newest(self.run.checkpoints)
        return f"the last good checkpoint is {path}" if path else "there is no checkpoint yet"


# ---------------------------------------------------------------- directories of checkpoints


def resumable(run: RunDir) -> Optional[Checkpoint]:
    """Return the newest valid checkpoint, None if the run has none. Raises ConfigError if every one is damaged."""
    path = checkpoints.newest(run.checkpoints)
    if path is None and checkpoints.paths(run.checkpoints):
        raise ConfigError(f"resume={run.path}: every checkpoint there is damaged; start a new run")
    return path and read(path)


def read(path: Path) -> Checkpoint:
    """Return the content of a complete checkpoint; a file that MANIFEST does not list is ignored. Raises ConfigError.

    Nothing in the files is executed.
    """
    listed = checkpoints.listed_in(path)
    arrays = {name: weights.load(path / name, "checkpoint", MAX_BYTES) if name in listed else {} for name in ARRAYS}
    state = json_record.read_object(path / "state.json")
    params = weights.load(path / "params", "checkpoint")
    of_optimizer = arrays.pop("optimizer")
    if OPTIMIZER in listed:
        optimizer = states.read(path / OPTIMIZER, of_optimizer)
    else:
        optimizer = pickled_states.read(path / PICKLED)
    return Checkpoint(path, state, params, _statistics(path / "statistics"), optimizer, **arrays)


def _statistics(path: Path) -> np.ndarray:
    try:
        with open_regular(path) as file:
            table = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, MemoryError) as error:
        raise ConfigError(f"{path} is no file of statistics: {short(error)}") from None
    if table.ndim != 2:
        raise ConfigError(f"{path} is no file of statistics: its shape is {table.shape}")
    return table


def write(final: Path, content: Content) -> None:
    """Write the checkpoint `final` atomically.

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
        digests = {name: weights.save(new / name, values) for name, values in content.arrays.items() if values}
        with open(new / "statistics", "wb") as file:
            np.save(file, content.statistics)
        sync(new / "statistics")
        write_text(new / OPTIMIZER, content.optimizer)
        json_record.write_object(new / "state.json", content.state)
        digests.update({name: digest_of(new / name) for name in ("statistics", OPTIMIZER, "state.json")})
        write_text(new / MANIFEST, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))
        sync(new)
        if final.exists():  # the same step again, after a resume from an earlier one
            shutil.rmtree(final)
        os.rename(new, final)
        sync(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(f"checkpoint of step {content.state['step']} not written: {error}") from error


def _on_host(arrays: Dict[str, nd.NDArray]) -> Dict[str, np.ndarray]:
    """Return copies in the host's memory."""
    return {name: array.asnumpy() for name, array in arrays.items()}


def prune(folder: Path, current: int, keep: int, best: Optional[int]) -> None:
    """Delete all checkpoints but the last `keep` up to step `current` and the best.

    Later checkpoints than `current` are damaged, or the run would have resumed from them; they are deleted too.
    """
    retained = [step for step in checkpoints.steps(folder) if step <= current][-keep:]
    for path in checkpoints.paths(folder):
        if int(path.name) not in (*retained, best):
            shutil.rmtree(path, ignore_errors=True)
