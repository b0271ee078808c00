"""Container images: sizes, rebuild after a change of code, `docker compose run train` over `python train.py`.

    python bench/images.py [--quick]

The ratio compares the wall time of the main job, from the command to its prompt, in pairs of runs in turn. Images and
the MLflow server exist beforehand. `docker history mxscale:cpu` lists the layers of an image.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import measure

DOCKER = ["docker", "compose", "--project-name", "mxscale-bench"]


def wall(*argv) -> float:
    """Return the seconds that a command takes."""
    began = time.monotonic()
    measure.run(argv)
    return time.monotonic() - began


def megabytes(image: str) -> float:
    return int(measure.run(["docker", "image", "inspect", "-f", "{{.Size}}", image]).stdout) / 1e6


def build_after_a_change() -> float:
    """Return the seconds of `docker build` after adding a line of code to a copy of the sources."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "mxscale"
        shutil.copytree(
            measure.ROOT, copy, ignore=lambda path, _: {".venv", "runs"} if Path(path) == measure.ROOT else ()
        )
        with open(copy / "mxscale" / "config" / "schema.py", "a") as file:
            file.write(f"# {time.time_ns()}\n")
        return wall("docker", "build", "--target", "cpu", "-t", "mxscale:bench", str(copy))


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], pairs=(5, "pairs of runs"))
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True).returncode:
        print("not measured: no Docker engine answers")
        return measure.finish({})
    work = ["epochs=4"] if options.quick else []
    wall("make", "setup")
    for target in ("cpu", "mlflow"):
        wall("docker", "build", "--target", target, "-t", f"mxscale:{target}", ".")
    builds = [build_after_a_change() for _ in range(1 if options.quick else 3)]
    try:
        wall(*DOCKER, "run", "--rm", "-T", "train", "epochs=1")  # starts MLflow, packs the data
        inside, outside = measure.in_turn(
            lambda: wall(*DOCKER, "run", "--rm", "-T", "train", *work),
            lambda: wall("make", "-s", "train") if not work else wall(".venv/bin/python", "train.py", *work),
            turns=1 if options.quick else options.pairs,
        )
    finally:
        wall(*DOCKER, "down", "--volumes")
    figures = {
        "cpu_mb": megabytes("mxscale:cpu"),
        "mlflow_mb": megabytes("mxscale:mlflow"),
        "build_after_a_change_s": measure.spread(builds),
        "compose_s": measure.spread(inside),
        "host_s": measure.spread(outside),
        "ratio": measure.spread([a / b for a, b in zip(inside, outside)]),
    }
    print(f"mxscale:cpu               {figures['cpu_mb']:.0f} MB")
    print(f"mxscale:mlflow            {figures['mlflow_mb']:.0f} MB")
    print(f"build after a change      {measure.show(figures['build_after_a_change_s'], '{:.1f}')} s")
    print(f"docker compose run train  {measure.show(figures['compose_s'], '{:.1f}')} s")
    print(f"make train                {measure.show(figures['host_s'], '{:.1f}')} s")
    print(f"ratio                     {measure.show(figures['ratio'])}")
    return measure.finish(figures)


if __name__ == "__main__":
    main()
