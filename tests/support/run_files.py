"""What tests read from runs, finished or under way."""

import json
from pathlib import Path

from machine import until

from mxscale.rundir.directory import RunDir


def last(run: RunDir, name: str) -> float:
    """Return the last value of a metric."""
    return [line["metrics"][name] for line in run.history() if name in line["metrics"]][-1]


def wait_for_step(run: RunDir, step: int, timeout=180) -> None:
    """Wait until metrics.jsonl has a line of `step` or later."""
    until(lambda: any(line["step"] >= step for line in run.lines()), timeout, 0.005)


def rank_pids(run: RunDir):
    """Return the pid of each rank of a run, from the process table."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            argv = (path / "cmdline").read_bytes().decode().split("\0")
            if argv[1:4] == ["-m", "mxscale.train.rank", str(run)]:
                env = dict(e.split("=", 1) for e in (path / "environ").read_bytes().decode().split("\0") if "=" in e)
                found[int(env.get("HOROVOD_RANK", env.get("OMPI_COMM_WORLD_RANK", 0)))] = int(path.name)
        except (OSError, ValueError):
            continue
    return found


def params(run: RunDir, step=None):
    """Return the parameters of a checkpoint (default: the newest) as numpy arrays by structural name."""
    from mxscale.models import weights

    path = max(run.checkpoints.glob("[0-9]*")) if step is None else run.checkpoint(step)
    return {k: v.asnumpy() for k, v in weights.load(path / "params").items()}


def recorded_in(uri: str):
    """Return a client of an MLflow store, and the only run in it."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("mxscale").experiment_id])
    return client, run


def read_json(path):
    return json.loads(Path(path).read_text())
