"""Time of `mxscale report` on an experiment of 1,000 runs in a SQLite store; the goal is 30 s.

    python bench/report.py [--runs 1000] [--quick]

One run is recorded through MLflow. The others are copies of its rows with another seed, learning rate, number of ranks
and other figures: the store is real, its numbers are generated.
"""

import random
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import measure

from mxscale.config.schema import Config, flatten, to_dict
from mxscale.tracking import store

GOAL_S = 30.0
STEPS = 100  # values of each metric, as a run with that many lines records them


def first_run(uri: str) -> str:
    """Record the params, tags and metrics of one run as train.py does; return its MLflow id."""
    client = store.open_store(uri, 60)
    from mlflow.entities import Metric, Param, RunTag

    files = str(Path(uri[len("sqlite:///") :]).parent / "files")
    experiment = client.create_experiment("many", artifact_location=files)
    run = client.create_run(experiment, tags={"mxscale.run": "first"}).info.run_id
    params = {**flatten(to_dict(Config())), "batch/per_device": 32, "batch/global": 64, "steps/total": STEPS}
    params.update({"launch.ranks": 1, "target_top1": 90.0, "lr/effective": 0.2})
    pairs = [Param(key, str(value)) for key, value in params.items()]
    for start in range(0, len(pairs), 100):
        client.log_batch(run, params=pairs[start : start + 100])
    tags = {"machine": "generated", "build": "wheel", "data.digest": "d" * 64, "signature": "s" * 64,
            "versions": "mxnet=1.9.1 numpy=1.23.5 horovod=0.28.1", "git.commit": "c" * 40}  # fmt: skip
    client.log_batch(run, tags=[RunTag(key, value) for key, value in tags.items()])
    for step in range(STEPS):
        curves = ("train/loss", "train/top1", "lr", "throughput/images_per_s", "time/data_wait", "cost/usd")
        client.log_batch(run, metrics=[Metric(name, 1.0, 1000 + step, step) for name in curves])
    client.log_batch(run, metrics=[Metric(name, value, 2000, STEPS) for name, value in figures(0, 1).items()])
    client.set_terminated(run)
    return run


def figures(number: int, ranks: int) -> dict:
    """Return generated figures of a run."""
    draw = random.Random(number)
    rate, top1, usd = 300 * ranks**0.9 * draw.uniform(0.95, 1.05), draw.uniform(85, 99), draw.uniform(0.01, 0.2)
    found = {"throughput/median": rate, "best/val_top1": top1, "val/top1": top1, "test/top1": top1 - 0.5}
    found.update({"time/wall_s": 60.0, "time/to_target_s": 40.0, "cost/total_usd": usd, "cost/total_eur": usd / 1.1})
    found.update({"time/data_wait_median": 0.02, "time/compute_median": 0.15, "time/exchange_median": 0.01})
    found.update({"cost/usd_to_target": usd / 2})
    return found if ranks == 1 else {**found, "scaling/efficiency": rate / 300 / ranks}


def copies(file: Path, run: str, count: int) -> None:
    """Add `count` - 1 copies of a run to the tables."""
    with closing(sqlite3.connect(file)) as base:
        for number in range(1, count):
            copy, ranks = f"{number:032x}", 2 ** (number // 3 % 4)
            for table in ("runs", "params", "tags", "metrics", "latest_metrics"):
                columns = [row[1] for row in base.execute(f"pragma table_info({table})")]
                taken = ", ".join(f"'{copy}'" if name == "run_uuid" else f'"{name}"' for name in columns)
                base.execute(f"insert into {table} select {taken} from {table} where run_uuid = ?", (run,))
            changed = {"seed": number % 3, "launch.ranks": ranks, "optimizer.lr": 0.001 * (1 + number // 12)}
            for key, value in changed.items():
                base.execute("update params set value = ? where run_uuid = ? and key = ?", (str(value), copy, key))
            for key, value in figures(number, ranks).items():
                row = (value, copy, key)
                base.execute("update latest_metrics set value = ? where run_uuid = ? and key = ?", row)
                if key == "scaling/efficiency":  # the first run has none
                    base.execute("insert into latest_metrics values (?, ?, 2000, ?, 0, ?)", (key, value, STEPS, copy))
        base.commit()


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], runs=(1000, "recorded runs"))
    folder = Path(tempfile.mkdtemp(prefix="report-"))
    try:
        uri = f"sqlite:///{folder}/mlflow.db"
        copies(folder / "mlflow.db", first_run(uri), options.runs)
        argv = [sys.executable, "-m", "mxscale", "report", "report.experiment=many", f"tracking.uri={uri}"]
        times = []
        for _ in range(1 if options.quick else 3):
            began = time.perf_counter()
            measure.run([*argv, f"report.output={folder}/report"])
            times.append(time.perf_counter() - began)
        size = (folder / "report" / "report.html").stat().st_size / 2**20
    finally:
        shutil.rmtree(folder)
    taken = measure.spread(times)
    print(f"report of {options.runs} runs: {measure.show(taken, '{:.1f}')} s, page of {size:.1f} MiB")
    measure.finish({"runs": options.runs, "report_s": taken, "page_mib": size, "goal_s": GOAL_S,
                    "reached": taken["median"] <= GOAL_S})  # fmt: skip


if __name__ == "__main__":
    main()
