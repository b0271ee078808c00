"""Hand-written runs, what an MLflow store holds of them, and a real server."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

from machine import free_port, until
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.tracking import payload

T0 = 1_700_000_000_000  # ms
CPU = "system/cpu_utilization_percentage"


def make_run(root, uri=None, name="run", timeout_s=20.0, **values):
    values = {"name": name, "runs": str(root), "tracking": {"uri": uri, "timeout_s": timeout_s}, **values}
    return directory.create(from_dict(values))


def add_lines(run, first, last, attempt=1):
    with open(run.metrics_file, "a") as file:
        for step in range(first, last):
            metrics = {"train/loss": 1.0 / (step + 1), "lr": 0.1, "throughput/images_per_s": 100.0 + attempt}
            line = {"attempt": attempt, "step": step, "time_ms": T0 + 1000 * step + attempt, "metrics": metrics}
            file.write(json.dumps(line) + "\n")


def add_sample(run, step=1):
    line = {"attempt": 1, "step": step, "time_ms": T0 + 500 * step, "metrics": {CPU: 10.0 * step}}
    with open(run.path / directory.SYSTEM, "a") as file:
        file.write(json.dumps(line) + "\n")


def end(run, state="FINISHED"):
    run.save(Plan(sizes=make_sizes(2, effective_lr=0.025, total_steps=30)))
    environment = {
        "tags": {"git.commit": "abc", "git.dirty": False, "versions": {"mxnet": "1.9.1"}, "image.id": None},
        "data": {"name": "digits", "digest": "d" * 64, "source": "built in", "profile": {"train": 1437}},
    }
    run.write("environment.json", environment)
    run.write("summary.json", {"metrics": {"best/val_top1": 97.5, "cost/total_usd": None}})
    attempts = [{"attempt": 1, "started_ms": T0, "ended_ms": T0 + 60_000}]
    run.write("status.json", {"state": state, "attempts": attempts})
    (run.path / "ranks" / "0.log").write_text("hello\n")
    (run.checkpoints / "000000010").mkdir(parents=True, exist_ok=True)
    (run.checkpoints / "000000010" / "params").write_text("large")


def client_of(uri):
    import mlflow

    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "60"  # not the short timeout of an earlier mirror
    return mlflow.MlflowClient(uri)


def runs_in(uri, experiment="mxscale"):
    client = client_of(uri)
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def points_in(uri, run_id):
    client = client_of(uri)
    keys = client.get_run(run_id).data.metrics
    history = [m for key in keys for m in client.get_metric_history(run_id, key)]
    return sorted((m.key, m.step, m.timestamp, m.value) for m in history)


def points_of(run, cost_at=payload.no_cost):
    points = [
        (key, line["step"], line["time_ms"], value)
        for line in run.lines()
        for key, value in {**line["metrics"], **cost_at(line)}.items()
    ]
    samples = [line for line, _ in run.lines_from(0, directory.SYSTEM)]
    points += [(CPU, line["step"], line["time_ms"], line["metrics"][CPU]) for line in samples]
    points += [(key, step, time_ms, value) for key, value, time_ms, step in payload.summary(run)]
    return sorted(points)


class Server:
    """`mlflow server` on a free port, in a process group of its own."""

    def __init__(self, folder):
        self.port = free_port()
        self.folder, self.uri, self.process = folder, f"http://127.0.0.1:{self.port}", None

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", f"{self.folder}/artifacts"]
        with open(self.folder / "server.log", "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder)
        until(self.healthy, 60)

    def healthy(self):
        try:
            return urllib.request.urlopen(self.uri + "/health", timeout=1).status == 200
        except OSError:
            return False

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process.poll() is None:  # a failed test may have left it killed
            self.signal(signal.SIGKILL)
        self.process.wait()
