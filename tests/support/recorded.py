"""Recorded runs that tests make: as `mxscale.records` reads them, and in an MLflow store."""

from mxscale.config.schema import Config, flatten, to_dict
from mxscale.records.recorded import Recorded

TAGS = {"machine": "a CPU, 2 cores, 0 GPUs", "build": "wheel", "data.digest": "d" * 64, "signature": "s",
        "versions": "mxnet=1.9.1 numpy=1.23.5 horovod=0.28.1 mlflow=3.17.2"}  # fmt: skip


def run(name="run", status="FINISHED", tags=None, metrics=None, **params) -> Recorded:
    """Return a run of the default config with other `params`, `__` in a key being a dot."""
    values = {**flatten(to_dict(Config())), "batch/per_device": 32, "batch/global": 64, "steps/total": 100}
    values.update({key.replace("__", "."): value for key, value in params.items()})
    tags = {**TAGS, "mxscale.run": name, "ranks": str(values["launch.ranks"]), **(tags or {})}
    params = {key: str(value) for key, value in values.items()}
    return Recorded(name, name, status, params, tags, dict(metrics or {}), 1_700_000_000_000)


def keep(client, experiment_id: str, made: Recorded) -> str:
    """Record the run in MLflow; return its id there."""
    from mlflow.entities import Metric, Param, RunTag

    run_id = client.create_run(experiment_id, run_name=made.name, start_time=made.started_ms).info.run_id
    pairs = [Param(*pair) for pair in made.params.items()]
    for start in range(0, len(pairs), 100):
        client.log_batch(run_id, params=pairs[start : start + 100])
    metrics = [Metric(key, value, 1_700_000_000_000, 1) for key, value in made.metrics.items()]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag(*pair) for pair in made.tags.items()])
    if made.status != "RUNNING":
        client.set_terminated(run_id, made.status)
    return run_id
