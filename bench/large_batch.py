"""Accuracy of large-batch recipes: all training images of ten classes of digits in one batch.

    python bench/large_batch.py [--quick] [--seeds 5] [--recipe plain]
    python bench/large_batch.py --figure docs/figures/large-batch.png

Top-1 in percent over seeds, which choose the initial weights and the order. The schedules are those published for 90
epochs, shortened in proportion. Only the learning rate is tuned to the digits, with small batches. The second form
draws the figure of docs/large-batch.md.
"""

from concurrent.futures import ThreadPoolExecutor

import measure
import yaml

from mxscale.config.schema import from_dict
from mxscale.config.sizes import sizes
from mxscale.train.optim.schedule import learning_rate, sgd_share

PUBLISHED = 90  # epochs
# The scans are 8x8; every run has its own core, so that several run at a time
COMMON = ["data=digits", "data.classes=null", "data.image_size=8", "data.augment.pad=1",
          "launch.ranks=1", "launch.threads=1", "validate_every=1000", "checkpoint.every_epochs=1000",
          "batch.per_device=64", "name=large_batch", "tracking=none"]  # fmt: skip
WORKERS = "data.shards=16"  # 16 batches of 64, each with its own batch statistics, as with 16 workers


def recipes(epochs: int) -> dict:
    """Return {name: overrides}."""
    share = epochs / PUBLISHED

    def milestones(*published):
        return f"schedule.milestones=[{','.join(f'{epoch * share:g}' for epoch in published)}]"

    goyal = ["optimizer=sgd", "schedule=goyal", milestones(30, 60, 80)]
    warmup = f"schedule.warmup_epochs={5 * share:g}"
    blend = [f"optimizer.params.beta_center={10 * share:g}", f"optimizer.params.beta_period={5 * share:g}"]
    return {
        "small batch": [*goyal, warmup],
        "plain": [WORKERS, *goyal, "schedule.warmup_epochs=0"],
        "warm-up": [WORKERS, *goyal, warmup],
        "full": [WORKERS, "optimizer=rmsprop_warmup", *blend, "schedule=slow_start", milestones(40, 70, 85),
                 "model.bn_statistics=last_batch"],
    }  # fmt: skip


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        seeds=(5, "seeds"),
        recipe=("all", "small batch, plain, warm-up, full, or all"),
        figure=("", "draw the figure into this file and exit"),
    )
    if options.figure:
        draw(options.figure)
        return
    epochs = 9 if options.quick else 45
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    known = recipes(epochs)
    chosen = known if options.recipe == "all" else {options.recipe: known[options.recipe]}
    figures = {}
    print("recipe        batch   steps   test top-1                    val top-1", flush=True)
    with ThreadPoolExecutor(measure.available_cores()) as pool:
        started = {
            name: [pool.submit(outcome, *overrides, f"epochs={epochs}", f"seed={seed}") for seed in seeds]
            for name, overrides in chosen.items()
        }
        for name, runs in started.items():
            ended = [run.result() for run in runs]
            batch, steps = ended[0]["batch"], ended[0]["steps"]
            row = {metric: measure.spread([each[metric] for each in ended]) for metric in ("test/top1", "val/top1")}
            figures[name] = {"batch": batch, "steps": steps, **row}
            texts = [measure.show(value, "{:.1f}") for value in row.values()]
            print(f"{name:<13} {batch:<7} {steps:<7} {texts[0]:<29} {texts[1]}", flush=True)
    measure.finish(figures)


def outcome(*overrides: str) -> dict:
    """Train once; return the accuracies, the global batch and the steps."""
    ended = measure.train(*COMMON, *overrides)
    planned, summary = ended["run"].plan().sizes, ended["summary"]
    top1 = {"test/top1": summary["test/top1"], "val/top1": summary["best/val_top1"]}
    return {**top1, "batch": planned.global_batch, "steps": planned.total_steps}


def draw(path: str) -> None:
    """Draw the shares of RMSprop warm-up and the learning rates of 90 epochs of ImageNet with batch size 32,768."""
    plt = measure.pyplot()
    left, right = plt.subplots(1, 2, figsize=(12, 4))[1]
    epochs = [step / 100 for step in range(2001)]
    share = [sgd_share(epoch, 10, 5) for epoch in epochs]
    left.plot(epochs, share, label="SGD's share, a_SGD")
    left.plot(epochs, [1 - a for a in share], label="RMSprop's share, 1 - a_SGD")
    left.axvline(10, color="grey", linewidth=0.8, linestyle=":")
    left.axvline(12.5, color="grey", linewidth=0.8, linestyle=":")
    left.set(xlabel="epoch", title="optimizer=rmsprop_warmup: beta_center 10, beta_period 5")
    left.legend(loc="center left")
    for name, label, style, own in (
        ("goyal", "schedule=goyal", "-", {}),
        ("goyal", "the same, schedule.warmup_epochs=0", "--", {"warmup_epochs": 0}),
        ("slow_start", "schedule=slow_start", "-", {}),
    ):
        text = (measure.ROOT / "conf" / "schedule" / f"{name}.yaml").read_text()
        config = from_dict({"epochs": 90, "optimizer": {"lr": 0.1}, "schedule": {**yaml.safe_load(text), **own}})
        derived = sizes(config, 1024, 1_281_167)
        rate = learning_rate(config, derived)
        steps = range(derived.total_steps)
        epochs = [step / derived.steps_per_epoch for step in steps]
        right.plot(epochs, [rate(step) for step in steps], style, label=label)
    right.set(xlabel="epoch", yscale="log", title="learning rate: batches of 32,768, 0.1 per 256 images")
    right.legend()
    plt.tight_layout()
    plt.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
