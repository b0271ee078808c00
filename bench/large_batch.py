"""Ten classes of digits in batches as large as the data allow: plain linear scaling, warm-up, the full recipe.

    python bench/large_batch.py [--quick] [--seeds 5] [--recipe plain]
    python bench/large_batch.py --figure docs/figures/large-batch.png

Test top-1 in percent over seeds, which choose the start values and the order.  Schedules are those published for 90
epochs, shortened in proportion.  The second form draws the blend and the learning rates of docs/large-batch.md.
"""

import json

import measure
import yaml

from mxscale.config import from_dict, sizes
from mxscale.train.schedule import learning_rate, sgd_share

EPOCHS = 60
SHARE = EPOCHS / 90
COMMON = ["data=digits", "data.classes=null", "data.image_size=16", "data.keep=ram", "data.augment.pad=1",
          f"epochs={EPOCHS}", "launch.ranks=1", "validate_every=1000", "checkpoint.every_epochs=1000",
          "name=large_batch", "tracking=none"]  # fmt: skip
SMALL_BATCH = ["batch.per_device=64"]
LARGE_BATCH = ["batch.per_device=64", "data.shards=16"]  # 16 batches that know nothing of each other, as of 16 workers


def shortened(*epochs: float) -> str:
    return "[" + ",".join(f"{epoch * SHARE:g}" for epoch in epochs) + "]"


GOYAL = ["optimizer=sgd", "schedule=goyal", f"schedule.milestones={shortened(30, 60, 80)}"]
WARMUP = f"schedule.warmup_epochs={5 * SHARE:g}"
RECIPES = {
    "small batch": [*SMALL_BATCH, *GOYAL, WARMUP],
    "plain": [*LARGE_BATCH, *GOYAL, "schedule.warmup_epochs=0"],
    "warm-up": [*LARGE_BATCH, *GOYAL, WARMUP],
    "full": [*LARGE_BATCH, "optimizer=rmsprop_warmup", f"optimizer.params.beta_center={10 * SHARE:g}",
             f"optimizer.params.beta_period={5 * SHARE:g}", "schedule=slow_start",
             f"schedule.milestones={shortened(40, 70, 85)}", "model.bn_statistics=last_batch"],
}  # fmt: skip


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        seeds=(5, "seeds"),
        recipe=("all", f"one of {', '.join(RECIPES)}, or all"),
        figure=("", "draw the figure into this file and end"),
    )
    if options.figure:
        draw(options.figure)
        return
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    names = list(RECIPES) if options.recipe == "all" else [options.recipe]
    figures = {}
    print("recipe        batch   steps   test top-1                    val top-1")
    for name in names:
        ended = [outcome(name, seed) for seed in seeds]
        last = ended[-1]
        row = {metric: measure.spread([each[metric] for each in ended]) for metric in ("test/top1", "val/top1")}
        figures[name] = {"global_batch": last["global_batch"], "steps": last["steps"], **row}
        texts = [measure.show(value, "{:.1f}") for value in row.values()]
        print(f"{name:<13} {last['global_batch']:<7} {last['steps']:<7} {texts[0]:<29} {texts[1]}", flush=True)
    measure.finish(figures)


def outcome(recipe: str, seed: int) -> dict:
    run = measure.train(*COMMON, *RECIPES[recipe], f"seed={seed}")
    sizes = json.loads((run["path"] / "plan.json").read_text())["sizes"]
    top1 = {"test/top1": run["summary"]["test/top1"], "val/top1": run["summary"]["best/val_top1"]}
    return {**top1, "global_batch": sizes["global_batch"], "steps": sizes["total_steps"]}


def draw(path: str) -> None:
    """The blend of RMSprop warm-up, and the learning rates of 90 epochs of ImageNet in batches of 32,768."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

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
    plt.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
