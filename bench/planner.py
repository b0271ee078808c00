"""Time to evaluate plans, by their number.

    python bench/planner.py [--quick]

Each row evaluates a grid of instances, nodes, batches, precisions, compressions and exchanges several times, as
`mxscale plan` does (without its table and CSV). The last line has the peak memory of the largest grid.
"""

import time
import tracemalloc
from datetime import date

import measure

from mxscale.config.schema import Machine
from mxscale.cost import prices
from mxscale.perfmodel import layers, machines, scenarios


def grid(nodes: int, batches: int) -> tuple:
    """(grid, task) of 2 instances x nodes x batches x 2 precisions x 2 compressions x 2 bufferings x 3 exchanges."""
    price = lambda machine: prices.freeze_price(machine, 0.0, date(2026, 1, 1))  # noqa: E731
    several = [
        machines.node(Machine(provider="aws", instance=name, region="us-east-1"), price, {})
        for name in ("p3.16xlarge", "p3dn.24xlarge")
    ]
    sizes = [8 * (number + 1) for number in range(batches)]
    rates = {(each.name, batch, precision): 300.0 for each in several for batch in sizes
             for precision in ("float32", "float16")}  # fmt: skip
    asked = scenarios.Grid(
        machine=several,
        nodes=list(range(1, nodes + 1)),
        comm=["horovod", "parameter_server"],
        servers=["0", "2x"],
        batch=sizes,
        precision=["float32", "float16"],
        compression=["none", "fp16"],
        double_buffering=[False, True],
    )
    network = layers.network("resnet50_v1b")
    return asked, scenarios.Task(network, 1_281_167, 90, rates, server=several[0])


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    rows = {}
    print(f"{'plans':>9}  seconds")
    for nodes, batches in ((2, 2), (16, 8), (128, 16)) if options.quick else ((2, 2), (16, 8), (128, 16), (256, 64)):
        asked, task = grid(nodes, batches)
        seconds, count = [], 0
        for _ in range(3 if options.quick else 7):
            began = time.perf_counter()
            plans, _ = scenarios.evaluate(asked, task)
            seconds.append(time.perf_counter() - began)
            count = len(plans["hours"])
        rows[count] = measure.spread(seconds)
        print(f"{count:9,}  {measure.show(rows[count])}")
    tracemalloc.start()
    scenarios.evaluate(asked, task)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    print(f"peak memory: {peak:,.0f} MiB of arrays for {count:,} plans")
    measure.finish({"seconds": rows, "peak_mib": peak})


if __name__ == "__main__":
    main()
