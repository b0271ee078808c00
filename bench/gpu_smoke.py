"""Check one GPU in at most about ten minutes: doctor, accuracy, throughput in each precision, gradient exchange.

    python bench/gpu_smoke.py --device gpu [--quick] [--only TEXT] [--batch 64]

A row is ok, failed or skipped, with the reason; a failed row does not stop the others. The exit status is 1 if a row
failed, and 130 after Ctrl-C. Without --device and without a GPU nothing is measured, and the exit status is 0.
`--device cpu` tests the bench itself, with small sizes.

ResNet-50 trains on generated images; images/s is the median over intervals of a run. GPU memory is the largest of the
samples of nvidia-smi during a row, other processes included. Double buffering and nccl start one rank or device for
each visible GPU. With one GPU there is nothing to sum: they check initialisation, buffers and the late update.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import List, Tuple

import measure

from mxscale.config.backends import BACKENDS
from mxscale.rundir.directory import RunDir

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
DOCTOR = "doctor"
INTERRUPTED = 128 + signal.SIGINT
GRACE_S = 40  # a run stops within 30 s
LEAST_TOP1 = 95  # digits; about 99 is usual (conf/recipe/digits.yaml)
FORM = "{:30} {:8} {:>6} {:>9} {:>8} {:>6}  {}"


@dataclass(frozen=True)
class Row:
    """One run of train.py."""

    name: str
    overrides: Tuple[str, ...]
    backend: str = "local"
    precision: str = "float32"
    ranks: str = "1"
    least_top1: float = 0  # test top-1 in percent, below which the row failed

    @property
    def settings(self) -> List[str]:
        own = [f"comm={self.backend}", f"precision={self.precision}", f"launch.ranks={self.ranks}"]
        return [*own, *self.overrides]


def training_rows(device: str, quick: bool, batch: int) -> List[Row]:
    """Return the rows that train."""
    side, batch, steps = (64, 4, 6) if device == "cpu" else (224, batch, 18 if quick else 60)
    digits = ("data=digits", "batch.per_device=64", *(["epochs=2"] if quick else []))
    resnet50 = ("data=synthetic", "model=resnet50_v1b", f"data.image_size={side}", f"batch.per_device={batch}",
                "data.num_images=1000000", "epochs=1", f"max_steps={steps}", f"log_every={steps // 6}",
                "optimizer.lr=0.01")  # fmt: skip
    return [
        Row("digits", digits, least_top1=0 if quick else LEAST_TOP1),
        *(
            Row(f"ResNet-50 {side} px {precision}", resnet50, precision=precision)
            for precision in ("float32", "float16", "amp")
        ),
        Row("double buffering", (*resnet50, "comm.double_buffering=true"), "horovod", ranks="auto"),
        Row("nccl", resnet50, "nccl", ranks="auto"),
    ]


def reason_to_skip(row: Row, device: str, facts: dict) -> str:
    """Return why a row cannot run here, "" if it can; `facts` are the doctor's about MXNet, {} if unknown."""
    backend = BACKENDS[row.backend]
    if device == "cpu" and (row.precision != "float32" or backend.gpus_only):
        return "needs a GPU"
    if backend.uses_horovod and facts.get("horovod") == {}:
        return "Horovod is not installed"
    if backend.mxnet_feature and backend.mxnet_feature not in facts.get("features", [backend.mxnet_feature]):
        return f"this MXNet was built without {backend.mxnet_feature}"
    return ""


def finished(argv, limit_s: float) -> subprocess.CompletedProcess:
    """Return the end of a Python command; raise subprocess.TimeoutExpired after `limit_s`."""
    # In a session of its own, so that Ctrl-C reaches this process alone
    process = subprocess.Popen(
        [sys.executable, *argv], cwd=measure.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit_s)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)
    except BaseException:
        stop(process)
        raise


def stop(process: subprocess.Popen) -> None:
    """End a command: SIGTERM, with which a run stops its ranks, then SIGKILL to what is left in its session."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def error_of(done: subprocess.CompletedProcess) -> str:
    """Return one line that states why a command failed."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]


@contextmanager
def gpu_memory(device: str):
    """Sample the memory in use on the first visible GPU; yield a dict, which gets "gpu_memory_mib" if it is known."""
    if device == "cpu":
        yield {}
        return
    peak, ended = {}, threading.Event()
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    argv = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]

    def sample():
        with suppress(OSError, ValueError, subprocess.SubprocessError):  # an unknown value is omitted
            while not ended.wait(0.5):
                used = int(subprocess.run(argv, capture_output=True, text=True, timeout=10).stdout)
                peak["gpu_memory_mib"] = max(used, peak.get("gpu_memory_mib", 0))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        ended.set()
        sampler.join()


class Smoke:
    """The results so far, {row: {"result", "note", "seconds", ...}}, within a total time."""

    def __init__(self, device: str, folder: str, limit_s: float, total_s: float):
        self.device, self.limit_s, self.deadline = device, limit_s, time.monotonic() + total_s
        self.common = [f"runs={folder}", f"data.cache={folder}/data", "tracking=none"]
        self.facts, self.gpu, self.results, self.interrupted = {}, "unknown", {}, False

    def record(self, name: str, work, reason: str = "") -> dict:
        """Record what `work` returns, given its time limit in seconds; it is skipped if there is a reason."""
        began = time.monotonic()
        limit_s = min(self.limit_s, self.deadline - began)
        reason = "interrupted" if self.interrupted else reason or ("no time left" if limit_s <= 0 else "")
        try:
            result = {"result": SKIPPED, "note": reason} if reason else work(limit_s)
        except subprocess.TimeoutExpired:
            late = limit_s < self.limit_s  # the total time ended it, not its own limit
            result = {"result": SKIPPED if late else FAILED, "note": f"not finished after {limit_s:.0f} s"}
        except KeyboardInterrupt:
            self.interrupted, result = True, {"result": FAILED, "note": "interrupted"}
        except Exception as error:  # the other rows still run
            result = {"result": FAILED, "note": f"{type(error).__name__}: {error}"}
        if not reason:
            result["seconds"] = round(time.monotonic() - began, 1)
        self.results[name] = result
        return result

    def doctor(self, limit_s: float) -> dict:
        """Check the machine; set `facts`."""
        argv = ["-m", "mxscale", DOCTOR, "json=true", f"launch.device={self.device}", "launch.ranks=1"]
        done = finished([*argv, *self.common], limit_s)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return {"result": FAILED, "note": error_of(done)}
        self.facts = found["environment"]["mxnet"]
        self.gpu = next((each["cause"] for each in found["findings"] if each["name"] == "gpu"), "unknown")
        notes = [f"{each['name']}: {each['cause']}" for each in found["findings"] if each["state"] == "fail"]
        warned = [each["name"] for each in found["findings"] if each["state"] == "warn"]
        notes += [f"warnings: {', '.join(warned)}"] if warned else []
        return {"result": FAILED if done.returncode else OK, "note": "; ".join(notes)}

    def train(self, row: Row, limit_s: float) -> dict:
        """Train a row."""
        with gpu_memory(self.device) as memory:
            done = finished(["train.py", *self.common, f"launch.device={self.device}", *row.settings], limit_s)
        if done.returncode:
            return {"result": FAILED, "note": error_of(done), **memory}
        run = RunDir(next(line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("run ")))
        figures, ranks = run.read("summary.json")["metrics"], run.plan().sizes.ranks
        top1 = figures.get("test/top1")
        measured = {"ranks": ranks, "images_per_s": figures["throughput/median"], **memory}
        if top1 is not None:
            measured["test_top1"] = top1
        if row.least_top1 and top1 < row.least_top1:
            return {"result": FAILED, "note": f"test top-1 below {row.least_top1} %", **measured}
        return {
            "result": OK,
            "note": "1 rank: nothing to sum" if row.ranks == "auto" and ranks == 1 else "",
            **measured,
        }


def line(name: str, result: dict) -> str:
    """Return a row of the table; unknown figures are `-`."""
    forms = {"seconds": "{:.0f} s", "images_per_s": "{:,.0f}", "gpu_memory_mib": "{:,}", "test_top1": "{:.1f}"}
    cells = [form.format(result[key]) if key in result else "-" for key, form in forms.items()]
    return FORM.format(name, result["result"], *cells, " ".join(result["note"].split())).rstrip()


def main() -> int:
    options = measure.arguments(
        __doc__.splitlines()[0],
        device=("auto", "gpu, cpu, or auto: gpu if there is one"),
        only=("", "rows to run besides the doctor: those whose names contain this text"),
        batch=(64, "images of ResNet-50 on a GPU"),
        limit=(120.0, "seconds of each row"),
        minutes=(10.0, "total time; rows that do not fit in it are skipped"),
    )
    folder = tempfile.mkdtemp(prefix="mxscale-gpu-smoke-")
    smoke = Smoke(options.device, folder, options.limit, 60 * options.minutes)
    checked = smoke.record(DOCTOR, smoke.doctor)
    if options.device == "auto":
        if smoke.facts.get("gpus") == 0:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"not measured: no GPU (doctor: {smoke.gpu})")
            measure.finish({})
            return 0
        smoke.device = "gpu"
    print(FORM.format("row", "result", "time", "images/s", "GPU MiB", "top-1", "").rstrip())
    print(line(DOCTOR, checked), flush=True)
    for row in training_rows(smoke.device, options.quick, options.batch):
        if options.only in row.name:
            reason = reason_to_skip(row, smoke.device, smoke.facts)
            print(line(row.name, smoke.record(row.name, partial(smoke.train, row), reason)), flush=True)
    failed = [name for name, result in smoke.results.items() if result["result"] == FAILED]
    if failed:
        print(f"failed: {', '.join(failed)}; run directories in {folder}/train")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    gpus = smoke.facts.get("driver", {}).get("gpus", [])
    measure.finish({"device": smoke.device, "gpus": gpus, "mxnet": smoke.facts.get("version"), "rows": smoke.results})
    return INTERRUPTED if smoke.interrupted else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
