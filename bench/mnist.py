"""Training on MNIST with two processes: samples/s of `experiment=aws_mnist` and of Horovod's own example.

    python bench/mnist.py --example horovod/examples/mxnet/mxnet_mnist.py [--mnist data/mnist] [--quick] [--pairs 5]

Both train on MNIST's published files in the folder --mnist, in turn, with the settings of the example. The rate is that
of batches 100 to 400 of the first epoch, by the time at which each side logs them. The example runs unchanged as
published (`mpirun -np 2 --bind-to none`); only its download is replaced by these files.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import measure

FIRST, LAST, BATCH, RANKS = 100, 400, 64, 2
SAMPLES = (LAST - FIRST) * BATCH * RANKS
# Replaces the download of the example by a copy
RUN = """
import runpy, shutil, sys
import mxnet.test_utils
example, archive = sys.argv[1:3]
mxnet.test_utils.download = lambda url, dirname: shutil.copy(archive, dirname + "/mnist.zip")
sys.argv = [example, "--no-cuda", "--epochs", "1", "--batch-size", "64"]
runpy.run_path(example, run_name="__main__")
"""


def archive(folder: Path, digits: Path) -> Path:
    """Return the zip file of the four idx files, as the example downloads it."""
    path = folder / "mnist.zip"
    with zipfile.ZipFile(path, "w") as file:
        for source in sorted(digits.glob("*.gz")):
            file.writestr(source.stem, gzip.decompress(source.read_bytes()))
    return path


def of_example(example: str, data: Path, threads: str) -> float:
    """Return samples/s of the example; threads: OMP threads of a process, "" as MXNet chooses."""
    env = {**os.environ, **({"OMP_NUM_THREADS": threads} if threads else {})}
    with tempfile.TemporaryDirectory() as folder:
        argv = ["mpirun", "--allow-run-as-root", "-np", str(RANKS), "--oversubscribe", "-bind-to", "none", "-map-by",
                "slot", sys.executable, "-c", RUN, os.path.abspath(example), str(data)]  # fmt: skip
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        logged: dict = {}
        for line in process.stdout:
            if found := re.search(r"Epoch 0 Batch (\d+)\]", line):
                logged.setdefault(int(found[1]), []).append(time.perf_counter())
        process.wait()
    if LAST not in logged:
        raise SystemExit(f"{example} ended with status {process.returncode} before batch {LAST}")
    return SAMPLES / (max(logged[LAST]) - max(logged[FIRST]))


def of_product(digits: Path, folder: Path) -> float:
    """Return samples/s of the experiment."""
    made = measure.train("experiment=aws_mnist", "claims=[]", f"data.root={digits}", "data.checksum=first_use",
                         f"data.cache={folder}/data", f"runs={folder}/runs", "tracking=none", "epochs=1",
                         f"max_steps={LAST}", "validate_every=1000")  # fmt: skip
    times = {line["step"]: line["time_ms"] for line in made["run"].history() if "train/loss" in line["metrics"]}
    shutil.rmtree(made["run"].path)
    return SAMPLES / (times[LAST] - times[FIRST]) * 1000


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        example=("", "path of Horovod's mxnet_mnist.py"),
        mnist=("data/mnist", "folder with MNIST's four idx.gz files"),
        pairs=(5, "pairs of runs"),
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
        ours, theirs = measure.in_turn(
            lambda: of_product(digits, folder),
            lambda: of_example(options.example, packed, options.threads),
            1 if options.quick else options.pairs,
        )
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"mxscale            {measure.show(measure.spread(ours), '{:,.0f}')} samples/s")
    print(f"Horovod's example  {measure.show(measure.spread(theirs), '{:,.0f}')} samples/s")
    print(f"ratio              {measure.show(measure.spread(ratios), '{:.2f}')}")
    measure.finish({"samples_per_s": ours, "example_samples_per_s": theirs, "ratio": measure.spread(ratios)})


if __name__ == "__main__":
    main()
