"""Kernels of oneDNN that are slow by design, in a training step of each network at its usual image size.

    python bench/kernels.py [--network NAME] [--batch 32]

oneDNN chooses `ref` and `simple` where none of its fast kernels fits shapes and layouts. A kernel is listed if all its
calls take over 1 % of a step.
"""

import os
import sys
from collections import defaultdict
from typing import Dict, Iterable, NamedTuple

import measure

from mxscale.config.networks import NETWORKS
from mxscale.environment.container_limits import available_cores
from mxscale.train.step_rate import STEPS

SLOW = ("ref", "simple")
SHARE = 0.01  # of a step
SCANS = {"small": 32, "resnet9": 32}  # networks for images that are smaller than their table of layers has


class Kernel(NamedTuple):
    """A line of oneDNN's log: `dnnl_verbose,exec,cpu,PRIMITIVE,IMPLEMENTATION,DIRECTION,...,SHAPE,MILLISECONDS`."""

    primitive: str
    implementation: str
    direction: str
    shape: str


def kernels(lines: Iterable[str]) -> Dict[Kernel, float]:
    """Return the milliseconds of each kernel of a log."""
    times: Dict[Kernel, float] = defaultdict(float)
    for line in lines:
        parts = line.split(",")
        if line.startswith("dnnl_verbose,exec,") and len(parts) > 9:
            times[Kernel(*parts[3:6], parts[-2])] += float(parts[-1])
    return times


def slow_kernels(name: str, side: int, batch: int) -> dict:
    """Return the rate of a network without the log, and the shares of a step of its slow kernels."""
    command = (sys.executable, "-m", "mxscale.train.step_rate", name, side, batch)
    env = {**os.environ, "PYTHONPATH": str(measure.ROOT), "OMP_NUM_THREADS": str(available_cores())}
    rate = float(measure.run(command, env=env).stdout.split()[-1])
    log = measure.run(command, env={**env, "DNNL_VERBOSE": "1"}).stdout.splitlines()
    steps_ms = (STEPS + 1) * 1000 * batch / rate  # the first step too
    shares = {kernel: ms / steps_ms for kernel, ms in kernels(log).items()}
    slow = {kernel: share for kernel, share in shares.items() if is_slow(kernel) and share > SHARE}
    return {"images_per_s": rate, "slow": slow, "share": sum(slow.values())}


def is_slow(kernel: Kernel) -> bool:
    return any(kernel.implementation.startswith(name) or f"_{name}:" in kernel.implementation for name in SLOW)


def main() -> None:
    options = measure.arguments(__doc__, network=("", "one network"), batch=(32, "images of a step"))
    names = [options.network] if options.network else [each for each in NETWORKS if not NETWORKS[each].from_weights]
    found = {}
    print("network, image size: images/s, share of slow kernels")
    for name in names[:3] if options.quick else names:
        side = SCANS.get(name, NETWORKS[name].side)
        result = found[name] = slow_kernels(name, side, options.batch)
        print(f"{name}, {side} px: {result['images_per_s']:,.1f}, {result['share']:.1%}", flush=True)
        for kernel, share in sorted(result["slow"].items(), key=lambda item: -item[1]):
            print(f"  {share:6.1%}  {' '.join(kernel)}")
    measure.finish({name: {**each, "slow": len(each["slow"])} for name, each in found.items()})


if __name__ == "__main__":
    main()
