"""When a checkpoint is written, which are kept, and how a run goes on from one."""

import json
from typing import Dict, NamedTuple, Optional

import numpy as np
from mxnet import nd

from mxscale.config.sizes import unsaved
from mxscale.models import weights
from mxscale.rundir.directory import RunDir
from mxscale.train import checkpoint
from mxscale.train.optim.optimizer import load_states
from mxscale.util.errors import ConfigError


class NotFinite(ArithmeticError):
    """NaN or infinite numbers: the run ends, its last checkpoint stands."""


class Snapshot(NamedTuple):
    step: int
    params: Dict[str, nd.NDArray]  # structural name -> copy; running statistics averaged over shards
    statistics: np.ndarray  # of each shard, as ShardStatistics.gather makes it


class Keeper:
    """The checkpoints of one run.  Every rank calls; rank 0 writes.

    parameters: structural name -> Parameter; running: names of those that `statistics`
    (ShardStatistics) keeps; scale: Precision; exchange: may have sums under way.
    """

    def __init__(self, run: RunDir, config, sizes, comm, parameters, running, trainer, statistics, scale, exchange):
        self.run, self.config, self.sizes, self.comm = run, config, sizes, comm
        self.parameters, self.running = parameters, running
        self.trainer, self.statistics, self.scale, self.exchange = trainer, statistics, scale, exchange
        self.best = None  # {"step", "val/top1", "val/loss"}
        self.owes_validation = False  # a stop broke it off
        self.saved_step, self.params_sha256 = None, None

    def restore(self) -> int:
        """Go on from the newest whole checkpoint; returns its step, 0 where there is none."""
        found = checkpoint.newest(self.run.checkpoints)
        if found is None:
            return 0
        for name, parameter in self.parameters.items():
            parameter.set_data(found.params[name])
        load_states(self.trainer, str(found.path / "trainer"))
        self.statistics.restore(found.statistics)
        self.scale.restore(found.state["loss_scale"])
        self.exchange.restore(found.exchange)
        self.best = found.state["best"]
        self.owes_validation = found.state.get("owes_validation", False)  # not in those of earlier versions
        self.saved_step, self.params_sha256 = found.state["step"], found.state["params_sha256"]
        nd.waitall()
        return found.state["step"]

    def due(self, step: int) -> bool:
        """Whether the config wants a checkpoint after this step."""
        every = self.config.checkpoint
        at_epoch = step % (every.every_epochs * self.sizes.steps_per_epoch) == 0
        return at_epoch or bool(every.every_steps and step % every.every_steps == 0)

    def note(self, step: int, result: Optional[dict]) -> None:
        """What a validation found: the best so far is kept, the earliest of equals.  None: it was broken off."""
        self.owes_validation = result is None
        if result and (self.best is None or result["val/top1"] > self.best["val/top1"]):
            self.best = {"step": step, **result}

    @property
    def best_step(self) -> Optional[int]:
        return self.best and self.best["step"]

    def snapshot(self, step: int) -> Snapshot:
        """The network after `step` as it is evaluated and exported, in copies.  A collective."""
        self.exchange.settle()
        table = self.statistics.gather(self.comm)
        params = {name: parameter.list_data()[0].copy() for name, parameter in self.parameters.items()}
        params.update(zip(self.running, self.statistics.average(table)))
        return Snapshot(step, params, table)

    def save(self, snapshot: Snapshot, journal) -> None:
        """Write a checkpoint; afterwards best.json speaks of one that is there.  A collective.

        One that is there, and whose validation was owed, stands: only best.json may be another by now.
        """
        if snapshot.step == self.saved_step:
            if self.comm.rank == 0:
                self._write_best()
            return
        arrays = {name: array.asnumpy() for name, array in snapshot.params.items()}
        broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if broken:
            raise NotFinite(f"{broken[0]} is not finite after step {snapshot.step}; {self.last_good()}")
        self.params_sha256 = weights.params_sha256(arrays)
        failure = self._write(snapshot, journal) if self.comm.rank == 0 else None
        # All ranks end together where rank 0 could not write.
        if self.comm.total(np.array([failure is not None]))[0]:
            raise failure or OSError("rank 0 could not write its checkpoint")
        self.saved_step = snapshot.step

    def _write(self, snapshot: Snapshot, journal):
        under_way = self.exchange.state()
        state = {
            "step": snapshot.step,
            "shards": self.sizes.shards,
            "global_batch": self.sizes.global_batch,
            "best": self.best,
            "loss_scale": self.scale.state(),
            "params_sha256": self.params_sha256,
            "unsaved": unsaved(self.config.comm),
            "owes_validation": self.owes_validation,
            "under_way": bool(under_way),
        }
        try:
            journal.sync()
            final = self.run.checkpoint(snapshot.step)
            checkpoint.write(final, state, snapshot.params, self.trainer, snapshot.statistics, under_way)
            self._write_best()
            checkpoint.prune(self.run.checkpoints, snapshot.step, self.config.checkpoint.keep, self.best_step)
        except OSError as error:
            return error
        return None

    def _write_best(self) -> None:
        if self.best:
            path = self.run.checkpoint(self.best_step).relative_to(self.run.path)
            self.run.write("best.json", {**self.best, "checkpoint": str(path)})

    def best_params(self) -> dict:
        """structural name -> NDArray of the best checkpoint; of the last one where that is damaged."""
        path = self.run.checkpoint(self.best_step)
        found = checkpoint.read(path) if checkpoint.whole(path) else checkpoint.newest(self.run.checkpoints)
        return found.params

    def last_good(self) -> str:
        """For an error message: where the last whole checkpoint is."""
        path = checkpoint.newest_whole(self.run.checkpoints)
        return f"the last good checkpoint is {path}" if path else "there is no checkpoint yet"


def check_resumable(run: RunDir) -> dict:
    """state.json of the newest whole checkpoint, {} where there is none yet; ConfigError where all are damaged."""
    path = checkpoint.newest_whole(run.checkpoints)
    if path:
        return json.loads((path / "state.json").read_text())
    if checkpoint.steps(run.checkpoints):
        raise ConfigError(f"resume={run.path}: every checkpoint there is damaged; start a new run")
    return {}
