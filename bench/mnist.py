"""Training on MNIST with two processes: `experiment=aws_mnist` beside Horovod's own example.

    python bench/mnist.py --example horovod/examples/mxnet/mxnet_mnist.py [--mnist DIR] [--transport gloo] [--quick]

Both train on MNIST's published files in the folder --mnist, in turn, with the settings of the example, mxscale with the
seeds 1, 2, ... (the example has no seed). The rate is that of batches 100 to 400 of the first epoch, by the time at
which each side logs them, the accuracy that of batches 51 to 100, on both ranks. The example runs as published (`mpirun
-np 2 -bind-to none`), or by `horovodrun --gloo`; only its download is replaced by these files, and its metric also
prints this accuracy.
"""

import gzip
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

import measure

FIRST, LAST, BATCH, RANKS = 100, 400, 64, 2
SAMPLES = (LAST - FIRST) * BATCH * RANKS
# Replaces the download of the example by a copy
RUN = """
import runpy, shutil, sys
import mxnet as mx

published = mx.metric.Accuracy.update

def update(self, labels, preds):
    published(self, labels, preds)
    self.batches = getattr(self, "batches", 0) + 1
    if self.batches == 50:
        self.before = self.sum_metric, self.num_inst
    if self.batches == 100:
        right, images = self.sum_metric - self.before[0], self.num_inst - self.before[1]
        print("batches 51 to 100:", 100 * right / images, flush=True)

example, archive = sys.argv[1:3]
mx.metric.Accuracy.update = update
mx.test_utils.download = lambda url, dirname: shutil.copy(archive, dirname + "/mnist.zip")
sys.argv = [example, "--no-cuda", "--epochs", "1", "--batch-size", "64"]
runpy.run_path(example, run_name="__main__")
"""
LAUNCHERS = {
    "mpi": ("mpirun", "--allow-run-as-root", "-np", RANKS, "--oversubscribe", "-bind-to", "none", "-map-by", "slot"),
    "gloo": (Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", RANKS),
}


class Result(NamedTuple):
    samples_per_s: float
    top1: float  # percent, batches 51 to 100


def archive(folder: Path, digits: Path) -> Path:
    """Return the zip file of the four idx files, as the example downloads it."""
    path = folder / "mnist.zip"
    with zipfile.ZipFile(path, "w") as file:
        for source in sorted(digits.glob("*.gz")):
            file.writestr(source.stem, gzip.decompress(source.read_bytes()))
    return path


def of_example(options, data: Path) -> Result:
    """Return the result of the example."""
    env = {**os.environ, **({"OMP_NUM_THREADS": options.threads} if options.threads else {})}
    command = (*LAUNCHERS[options.transport], sys.executable, "-c", RUN, os.path.abspath(options.example), data)
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        logged: dict = {}
        top1 = []
        for line in process.stdout:
            if found := re.search(r"Epoch 0 Batch (\d+)\]", line):
                logged.setdefault(int(found[1]), []).append(time.perf_counter())
            if found := re.search(r"batches 51 to 100: (\S+)", line):
                top1.append(float(found[1]))
        process.wait()
    if LAST not in logged:
        raise SystemExit(f"{options.example} ended with status {process.returncode} before batch {LAST}")
    training = top1[:RANKS]  # validation follows later, with a metric of its own
    return Result(SAMPLES / (max(logged[LAST]) - max(logged[FIRST])), statistics.mean(training))


def of_product(options, digits: Path, seed: int) -> Result:
    """Return the result of the experiment."""
    made = measure.train("experiment=aws_mnist", "claims=[]", f"data.root={digits}", "data.checksum=first_use",
                         f"data.cache={digits.parent}/data", f"runs={digits.parent}/runs", "tracking=none", "epochs=1",
                         f"max_steps={LAST}", "validate_every=1000", f"comm.transport={options.transport}",
                         f"seed={seed}")  # fmt: skip
    lines = {line["step"]: line for line in made["run"].history() if "train/loss" in line["metrics"]}
    shutil.rmtree(made["run"].path)
    seconds = (lines[LAST]["time_ms"] - lines[FIRST]["time_ms"]) / 1000
    return Result(SAMPLES / seconds, lines[FIRST]["metrics"]["train/top1"])


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        example=("", "path of Horovod's mxnet_mnist.py"),
        mnist=("data/mnist", "folder with MNIST's four idx.gz files"),
        pairs=(5, "pairs of runs"),
        transport=("mpi", "mpi or gloo"),
        threads=("", "OMP threads of each process of the example; empty: as MXNet chooses"),
    )
    if not os.path.isfile(options.example):
        raise SystemExit(f"--example={options.example}: name the file examples/mxnet/mxnet_mnist.py of Horovod")
    if not list(Path(options.mnist).glob("*-ubyte.gz")):
        raise SystemExit(f"--mnist={options.mnist}: no such files; `mxscale train data=mnist` downloads them there")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        digits = Path(shutil.copytree(options.mnist, folder / "mnist"))  # where first_use may write checksums
        packed = archive(folder, digits)
        seeds = itertools.count(1)
        ours, theirs = measure.in_turn(
            lambda: of_product(options, digits, next(seeds)),
            lambda: of_example(options, packed),
            turns=1 if options.quick else options.pairs,
        )
    figures = {"transport": options.transport}
    for name, results in (("mxscale", ours), ("Horovod's example", theirs)):
        figures[name] = {key: measure.spread([getattr(one, key) for one in results]) for key in Result._fields}
        rate, top1 = (
            measure.show(figures[name][key], form) for key, form in zip(Result._fields, ("{:,.0f}", "{:.1f}"))
        )
        print(f"{name:18} {rate} samples/s, top-1 of batches 51 to 100 {top1} %")
    figures["ratio"] = measure.spread([a.samples_per_s / b.samples_per_s for a, b in zip(ours, theirs)])
    print(f"ratio              {measure.show(figures['ratio'], '{:.2f}')}")
    measure.finish(figures)


if __name__ == "__main__":
    main()
