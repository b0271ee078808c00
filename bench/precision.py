"""ResNet-50 at 224 px in float32 and bfloat16 on a CPU, beside PyTorch, in turn.

    python bench/precision.py [--torch .venv-reference/bin/python] [--turns 5] [--batch 16] [--threads 2] [--network N]

Ours are runs of `mxscale train` with generated images; PyTorch's (`make test-reference` installs it) are channels-last,
bfloat16 by autocast, as they are and compiled. The processor needs `avx512_bf16`.
"""

import os
import sysconfig
from functools import partial

import measure

from mxscale.environment.container_limits import available_cores

STEPS, INTERVAL = 18, 3


def ours(precision: str, options) -> float:
    """Return the images/s of a run."""
    shape = (f"model={options.network}", f"batch.per_device={options.batch}", f"launch.threads={options.threads}")
    ended = measure.train(
        "data=synthetic", "data.image_size=224", "data.num_images=100000", "launch.ranks=1", "tracking=none",
        f"max_steps={STEPS}", f"log_every={INTERVAL}", "schedule=constant", f"precision={precision}", *shape,
    )  # fmt: skip
    return ended["summary"]["throughput/median"]


def peer(kind: str, options) -> float:
    """Return the images/s of PyTorch's ResNet-50; kind: float32, bf16, or either with -compiled."""
    paths = (str(measure.ROOT / "tests/support"), sysconfig.get_path("purelib"))  # of the network, and of NumPy
    env = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": os.pathsep.join(paths)}
    command = (measure.ROOT / options.torch, "bench/torch_step.py", kind, options.batch, options.threads, INTERVAL)
    return float(measure.run(command, env=env).stdout.split()[-1])


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        torch=("", "Python that has PyTorch; none: without PyTorch"),
        turns=(5, "turns"),
        batch=(16, "images per step"),
        threads=(available_cores(), "threads"),
        network=("resnet50_v1b", "network of ours"),
    )
    measured = {name: partial(ours, name, options) for name in ("float32", "bf16")}
    if options.torch:
        for kind in ("float32", "bf16", "float32-compiled", "bf16-compiled"):
            measured[f"PyTorch {kind}"] = partial(peer, kind, options)
    rates = dict(zip(measured, measure.in_turn(*measured.values(), turns=1 if options.quick else options.turns)))
    figures = {name: measure.spread(values) for name, values in rates.items()}
    figures["bf16 over float32"] = ratio(rates["bf16"], rates["float32"])
    if options.torch:
        for kind in ("float32", "bf16"):
            best = [max(pair) for pair in zip(rates[f"PyTorch {kind}"], rates[f"PyTorch {kind}-compiled"])]
            figures[f"{kind} over the better of PyTorch"] = ratio(rates[kind], best)
    for name, figure in figures.items():
        print(f"{name:36} {measure.show(figure, '{:.2f}')}")
    measure.finish(figures)


def ratio(rates, others) -> dict:
    """Return the spread of the ratios of each turn."""
    return measure.spread([a / b for a, b in zip(rates, others)])


if __name__ == "__main__":
    main()
