"""What the benches share: pairs of measurements in turn, their spread, and how they are printed."""

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


def arguments(text: str, **options):
    # What a bench has put up is taken down when it is told to end
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--quick", action="store_true", help="a minute at most: fewer repetitions, less certain")
    for name, (default, note) in options.items():
        parser.add_argument(f"--{name}", default=default, type=type(default), help=f"{note} (default {default})")
    return parser.parse_args()


def spread(values) -> dict:
    """median, min, max and how many."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def show(value: dict, form: str = "{:.3f}") -> str:
    median, low, high = (form.format(value[k]) for k in ("median", "min", "max"))
    return f"{median} ({low} to {high}, {value['runs']} runs)"


def in_turn(first, second, pairs: int) -> tuple:
    """Call both `pairs` times, the order changing each time, so that a machine that slows down slows both."""
    a, b = [], []
    for pair in range(pairs):
        for function, results in ((first, a), (second, b)) if pair % 2 == 0 else ((second, b), (first, a)):
            results.append(function())
    return a, b


def train(*overrides, entry="train") -> dict:
    """Run an entry script as a user does; summary.json's metrics with status.json beside them."""
    argv = [sys.executable, f"{entry}.py", *overrides]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv[1:])} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    path = Path(next(line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("run ")))
    read = lambda name: json.loads((path / name).read_text())  # noqa: E731
    return {"path": path, "summary": read("summary.json")["metrics"], "status": read("status.json")}


def finish(figures: dict) -> None:
    """The last line: one JSON object."""
    machine = f"{cpu_model()}, {available_cores()} cores, Python {platform.python_version()}"
    print(json.dumps({"machine": machine, **figures}))
