"""Measurements of this user's hardware for plans: finished runs, and those of `mxscale test-allreduce`."""

from typing import Dict, List, Tuple

from mxscale.config.schema import Config
from mxscale.environment.placement import Placement
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.step_time import Link
from mxscale.rundir.directory import ALLREDUCE, RunDir
from mxscale.rundir.status import FINISHED
from mxscale.util.errors import ConfigError


def read(sources, config: Config) -> Tuple[List[Measured], Dict[str, Link], str]:
    """Return the runs of `plan.calibrate`, its links as machines.node takes them, and a description of the links.

    Its directories are those of runs and of `mxscale test-allreduce`. Raises ConfigError.
    """
    paths = [] if sources is None else sources if isinstance(sources, list) else [sources]
    runs, links, used = [], {}, []
    for path in paths:
        if record := RunDir(path).read(ALLREDUCE):
            fitted = record["fit"] or {}
            if not (fitted.get("bytes_per_s") and fitted.get("alpha_s") is not None):
                raise ConfigError(
                    f"plan.calibrate={path}: no link fits its times; measure more sizes, with comm=horovod"
                )
            name, where = ("nic", "between nodes") if record["nodes"] > 1 else ("intra", "inside a node")
            links[name] = Link(fitted["alpha_s"], fitted["bytes_per_s"])
            used.append(f"link {where} of {path}")
        else:
            runs.append(of_run(path))
    return of_network(runs, config), links, "; ".join(used)


def of_network(runs: List[Measured], config: Config) -> List[Measured]:
    """Return the runs of the plan's network and image size. Raises ConfigError if there are only others."""
    name, size = config.model.name, config.data.image_size
    fitting = [run for run in runs if run.network == name and (not size or run.image_size in (None, size))]
    if runs and not fitting:
        trained = ", ".join(sorted({f"{run.network} on images of {run.image_size} px" for run in runs}))
        raise ConfigError(f"plan.calibrate: the runs trained {trained}; the plan is for {name}, data.image_size={size}")
    return fitting


def of_run(path: str) -> Measured:
    """Return the measured rate of a finished run. Raises ConfigError."""
    run, where = RunDir(path), f"plan.calibrate={path}"
    plan, rate = run.plan(), run.figures.get("throughput/median")
    if plan.sizes is None:
        raise ConfigError(f"{where}: neither the directory of a run nor of mxscale test-allreduce")
    if run.state != FINISHED or not rate:
        why = "was too short for a throughput" if run.state == FINISHED else f"is {run.state or 'unfinished'}"
        raise ConfigError(f"{where}: the run {why}; name another one")
    config, sizes = run.config(), plan.sizes
    if sizes.shards != sizes.ranks or Placement.of(plan).unequal:
        unmodelled = "ranks with several data shards, nor machines with unequal numbers of ranks"
        raise ConfigError(f"{where}: plans do not model {unmodelled}; name another run")
    return Measured(
        network=config.model.name,
        batch=sizes.per_device_batch,
        precision=config.precision,
        devices=sizes.ranks,
        images_per_s=rate,
        source=run.path.name,
        image_size=config.data.image_size,
        device=plan.device,
        gpu=((run.read("environment.json") or {}).get("tags") or {}).get("gpu"),
    )
