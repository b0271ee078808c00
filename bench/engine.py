"""Images/s of the trainer over a bare Gluon loop: same network, batch and data, runs in turn.

    python bench/engine.py [--quick]

The bare loop has no metrics, checkpoints, validation or stop. Each throughput is the median over intervals of ten steps
(two for ResNet-50).
"""

import statistics
import tempfile
from functools import partial

import measure
import mxnet as mx
from loop import rates
from mxnet import gluon

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.data.reader import record_iter
from mxscale.data.reader.batches import Reading, SyntheticData
from mxscale.distributed.communicators import Local
from mxscale.distributed.heartbeat import Heartbeat
from mxscale.rundir import directory
from mxscale.train import builders, prepare
from mxscale.train.trainer import Trainer

JOBS = {
    # name: (settings, steps, steps per interval)
    "digits": ({"data": "digits"}, 150, 10),
    "resnet50": (
        {
            "data": {"kind": "synthetic", "image_size": 224, "num_images": 10**6},
            "model": {"name": "resnet50_v1b"},
            "batch": {"per_device": 16},
        },
        12,
        2,
    ),
}


def make_run(folder: str, settings: dict, steps: int, interval: int):
    """Prepare a run directory for one rank; return (run, config, plan)."""
    config = {"runs": folder, "epochs": 10**4, "max_steps": steps, "log_every": interval, "validate_every": 10**4,
              "comm": {"backend": "local"}, "checkpoint": {"every_epochs": 10**4}, **settings}  # fmt: skip
    config = validate(from_dict(config))
    run = directory.create(config)
    prepare.prepare(run, config)  # not its main, which ends this process without a parent
    return run, config, run.plan()


def engine_rate(run, config, plan) -> float:
    """Return the images/s of the trainer, from its metrics."""
    run.metrics_file.unlink(missing_ok=True)
    for path in sorted(run.checkpoints.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    Trainer(run, config, plan, Local(), 1, Heartbeat(run, 0, 1)).train()
    rates = [line["metrics"].get("throughput/images_per_s") for line in run.history()]
    return statistics.median([rate for rate in rates if rate][1:])


def bare_rate(config, plan, interval: int) -> float:
    """Return the images/s of the bare loop."""
    sizes, batch = plan.sizes, plan.sizes.per_device_batch
    net = builders.network(config, plan, [mx.cpu()])
    settings = {"learning_rate": sizes.effective_lr, "momentum": 0.9, "wd": config.optimizer.weight_decay}
    trainer = gluon.Trainer(net.collect_params(), "nag", settings, kvstore=None)
    batches = bare_batches(config, plan)
    return statistics.median(rates((net, trainer, batch), batches, batch, interval, sizes.total_steps))


def bare_batches(config, plan):
    if DATASETS[config.data.kind].generated:
        reading = Reading(config.data, config.batch.per_device, [0], 1, 1, 1, 1, [mx.cpu()], 1)
        made = SyntheticData(reading, plan.classes)
        while True:
            yield made.images, made.labels
    records = plan.splits["train"]
    settings = record_iter.augmentation(config.data)
    reader = record_iter.open_reader(records, config.data, config.batch.per_device, (0, 1), 2, shuffle=True, **settings)
    while True:
        for batch in reader:
            yield batch.data[0].as_in_context(mx.cpu()), batch.label[0].as_in_context(mx.cpu())
        reader.reset()


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], pairs=(7, "pairs of runs"))
    figures = {}
    for name, (settings, steps, interval) in JOBS.items():
        pairs = options.pairs
        if options.quick:
            steps, pairs = steps // 3, 2 if name == "digits" else 1
        if settings["data"] == "digits":
            settings = {"data": digits()}
        with tempfile.TemporaryDirectory() as folder:
            run, config, plan = make_run(folder, settings, steps, interval)
            ours, bare = measure.in_turn(
                partial(engine_rate, run, config, plan), partial(bare_rate, config, plan, interval), turns=pairs
            )
        ratios = [a / b for a, b in zip(ours, bare)]
        figures[name] = {"ratio": measure.spread(ratios), "engine": measure.spread(ours), "bare": measure.spread(bare)}
        print(f"{name:10} engine {measure.show(figures[name]['engine'], '{:.1f}')} images/s")
        print(f"{'':10} bare   {measure.show(figures[name]['bare'], '{:.1f}')} images/s")
        print(f"{'':10} ratio  {measure.show(figures[name]['ratio'])}", flush=True)
    measure.finish(figures)


def digits() -> dict:
    """Return the settings of conf/data/digits.yaml."""
    import yaml

    return yaml.safe_load((measure.ROOT / "conf/data/digits.yaml").read_text())


if __name__ == "__main__":
    main()
