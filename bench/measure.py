"""Shared by the benchmarks: options, subprocesses, pairs of measurements, their spread and the last line."""

import argparse
import json
import platform
import signal
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from mxscale.environment.container_limits import available_cores  # noqa: E402
from mxscale.environment.machine import cpu_model  # noqa: E402
from mxscale.rendering import canvas  # noqa: E402
from mxscale.rundir.directory import RunDir  # noqa: E402


def arguments(text: str, **options):
    """Parse the command line: --quick and `options`, name=(default, help)."""
    # SIGTERM unwinds the stack, so that context managers clean up
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="at most a minute: fewer repetitions, a wider spread")
    for name, (default, note) in options.items():
        parser.add_argument(f"--{name}", default=default, type=type(default), help=f"{note} (default {default})")
    return parser.parse_args()


def run(argv, **options) -> subprocess.CompletedProcess:
    """Run a command in the repository and return its output; exit if it fails."""
    argv = list(map(str, argv))
    options = {"cwd": ROOT, **options}
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done


def pyplot():
    """Return matplotlib.pyplot for drawing into a file, in the style of all figures."""
    import logging

    import matplotlib

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports every font of STYLE that is not installed
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(canvas.STYLE)
    return plt


def spread(values) -> dict:
    """Return the median, minimum, maximum and number of the values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def show(value: dict, form: str = "{:.3f}") -> str:
    """Return a spread as text."""
    median, low, high = (form.format(value[k]) for k in ("median", "min", "max"))
    return f"{median} ({low} to {high}, {value['runs']} runs)"


def in_turn(*functions, turns: int) -> list:
    """Call each function `turns` times in alternating order, so that a change of the machine's speed affects all.

    Returns:
        The results of each function.
    """
    results = [[] for _ in functions]
    for turn in range(turns):
        for place in range(len(functions))[:: 1 if turn % 2 == 0 else -1]:
            results[place].append(functions[place]())
    return results


def train(*overrides, entry="train") -> dict:
    """Run an entry script as a user does; return its run directory, the metrics of its summary and its status."""
    done = run([sys.executable, f"{entry}.py", *overrides])
    made = RunDir(next(line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("run ")))
    return {"run": made, "summary": made.read("summary.json")["metrics"], "status": made.read("status.json")}


def finish(figures: dict) -> None:
    """Print the last line: one JSON object."""
    machine = f"{cpu_model()}, {available_cores()} cores, Python {platform.python_version()}"
    print(json.dumps({"machine": machine, **figures}))
