"""Measurements of this user's hardware for plans: finished runs, and those of `mxscale test-allreduce`."""

from typing import Dict, List, NamedTuple

from mxscale.config.schema import Config
from mxscale.environment.placement import Placement
from mxscale.perfmodel.rates import Measured
from mxscale.perfmodel.step_time import Link
from mxscale.rundir.directory import ALLREDUCE, FINISHED, RunDir
from mxscale.util.errors import ConfigError


class Calibration(NamedTuple):
    """Measured runs and links."""

    runs: List[Measured]
    links: Dict[str, Link]  # as machines.node takes them
    sources: str


def read(sources, config: Config) -> Calibration:
    """Read `plan.calibrate`: directories of runs and of `mxscale test-allreduce`. Raises ConfigError."""
    paths = [] if sources is None else sources if isinstance(sources, list) else [sources]
    runs, links, used = [], {}, []
    for source in paths:
        if record := RunDir(source).read(ALLREDUCE):
            name = "nic" if record["nodes"] > 1 else "intra"
            links[name] = of_allreduce(source, record)
            used.append(f"link {'between nodes' if name == 'nic' else 'inside a node'} of {source}")
        else:
            runs.append(of_run(source))
    return Calibration(of_network(runs, config), links, "; ".join(used))


def of_network(runs: List[Measured], config: Config) -> List[Measured]:
    """Return the runs of the plan's network. Raises ConfigError if only others exist, or if image sizes differ."""
    alike = [run for run in runs if run.network == config.model.name]
    size = config.data.image_size
    for run in alike:
        if size and run.image_size and run.image_size != size:
            raise ConfigError(
                f"plan.calibrate: {run.source} trained on images of {run.image_size} px, the plan is for {size}: set "
                f"data.image_size={run.image_size}, or name other runs"
            )
    if runs and not alike:
        trained = ", ".join(sorted({run.network for run in runs}))
        raise ConfigError(f"plan.calibrate: the runs trained {trained}, the plan is for {config.model.name}")
    return alike


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


def of_allreduce(path: str, record: dict) -> Link:
    """Return the link fitted to the result of `mxscale test-allreduce`. Raises ConfigError."""
    fitted = record["fit"] or {}
    if not (fitted.get("bytes_per_s") and fitted.get("alpha_s") is not None):
        raise ConfigError(f"plan.calibrate={path}: no link fits its times; measure more sizes, with comm=horovod")
    return Link(fitted["alpha_s"], fitted["bytes_per_s"])
