"""Accuracy with inexact gradient exchange: the main job with each technique, five seeds.

    python bench/techniques.py [--quick]

Digits 0-4 on two ranks, test top-1 in percent; the spread is over the seeds. Each technique runs at the main job's
learning rate, which is close to the largest stable one, and at a quarter of it: gradients that are a step late need a
lower rate.
"""

import tempfile

import measure

TECHNIQUES = {
    "exact": [],
    "fp16": ["comm.compression=fp16"],
    "double buffering": ["comm.double_buffering=true"],
    "exact, lr / 4": ["optimizer.lr=0.2"],
    "double buffering, lr / 4": ["comm.double_buffering=true", "optimizer.lr=0.2"],
    "both, lr / 4": ["comm.compression=fp16", "comm.double_buffering=true", "optimizer.lr=0.2"],
    "2bit": ["comm=parameter_server", "comm.compression=2bit"],
    "dist_async": ["comm=dist_async"],
}


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], seeds=(5, "seeds of each technique"))
    seeds = range(1, 3 if options.quick else options.seeds + 1)
    found = {name: [] for name in TECHNIQUES}
    with tempfile.TemporaryDirectory() as runs:
        for seed in seeds:  # in turn, so that a change of the machine's speed affects all
            for name, overrides in TECHNIQUES.items():
                common = [f"runs={runs}", "tracking=none", "launch.ranks=2", f"seed={seed}"]
                epochs = ["epochs=4"] if options.quick else []
                found[name].append(measure.train(*common, *epochs, *overrides)["summary"]["test/top1"])
    figures = {name: measure.spread(values) for name, values in found.items()}
    for name, value in figures.items():
        print(f"{name:24} test top-1 {measure.show(value, '{:.1f}')} %")
    measure.finish(figures)


if __name__ == "__main__":
    main()
