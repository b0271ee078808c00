"""`mxscale test-allreduce` over links of a given rate: each rank runs on its own node (bench/emulated_network.py).

    python bench/allreduce.py --rate 2gbit [--quick] [--ranks 2] [--transport gloo]

The run directory that it prints is a value of plan.calibrate. Without a slow network, run the verb itself.
"""

import sys

import emulated_network as network
import measure

from mxscale.rundir.directory import ALLREDUCE, RunDir


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        ranks=(2, "number of ranks"),
        transport=("gloo", "gloo | mpi"),
        rate=("2gbit", "rate of each link in the notation of tc"),
    )
    settings = [f"comm.transport={options.transport}", "launch.threads=1", "tracking=none"]
    settings += ["allreduce.seconds=0.2"] if options.quick else []
    if reason := network.possible():
        return measure.finish({"not measured": reason})
    with network.Network(options.ranks, options.rate) as nodes:
        argv = [sys.executable, "-m", "mxscale", "test-allreduce", f"launch.hosts={nodes.hosts}", *settings]
        printed = measure.run(argv, env=nodes.env()).stdout
    print(printed)
    run = RunDir(next(line.split(None, 1)[1] for line in printed.splitlines() if line.startswith("run ")))
    measure.finish({"rate": options.rate, **run.read(ALLREDUCE)})


if __name__ == "__main__":
    main()
