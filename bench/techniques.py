"""Accuracy of training techniques: the main job with each of them, five seeds.

    python bench/techniques.py [--quick] [--only NAME,NAME]

Digits 0-4 on two ranks: test top-1 in percent, and the share of the planned steps; the spread is over the seeds.
Inexact gradient exchange runs at the main job's learning rate and at a quarter of it. Techniques for unequal classes
run on digits with few training images of two classes.
"""

import math
import tempfile
from collections import Counter
from pathlib import Path

import measure
from PIL import Image

from mxscale.data.sources import scans

TECHNIQUES = {
    "exact": [],
    "fp16": ["comm.compression=fp16"],
    "double buffering": ["comm.double_buffering=true"],
    "exact at lr / 4": ["optimizer.lr=0.2"],
    "double buffering at lr / 4": ["comm.double_buffering=true", "optimizer.lr=0.2"],
    "both at lr / 4": ["comm.compression=fp16", "comm.double_buffering=true", "optimizer.lr=0.2"],
    "mixup": ["data.augment.mixup=0.2"],
    "cutmix": ["data.augment.cutmix=1"],
    "ema": ["optimizer.ema_decay=0.99"],
    "clip norm": ["optimizer.clip_norm=1"],
    "patience": ["patience=4"],
    "stop at target": ["target_top1=95", "stop_at_target=true"],
}
FEW = {3: 8, 4: 8}  # digit -> training images, in place of about 110
UNEQUAL = {
    "unequal classes": [],
    "class weights": ["class_weights=balanced"],
    "balanced sampling": ["data.sampling=balanced"],
}


def unequal_digits(folder: Path) -> list:
    """Write the digits 0-4 as files, a fifth to validate and a fifth to test; return the settings that read them."""
    training = Counter()
    for number, (shades, digit) in enumerate(zip(*scans())):
        split = ("test", "val", "train", "train", "train")[number % 5]
        if split == "train":
            training[digit] += 1
        if digit <= 4 and (split != "train" or training[digit] <= FEW.get(digit, math.inf)):
            file = folder / split / str(digit) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(shades).save(file)
    return ["data=imagefolder", "recipe=digits", "data.image_size=32", f"data.root={folder}"]


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        seeds=(5, "seeds of each technique"),
        only=("", "techniques to run, separated by commas; without it all"),
    )
    seeds = range(1, 3 if options.quick else options.seeds + 1)
    with tempfile.TemporaryDirectory() as runs:
        unequal = unequal_digits(Path(runs, "digits"))
        techniques = {**TECHNIQUES, **{name: [*unequal, *overrides] for name, overrides in UNEQUAL.items()}}
        if options.only:
            techniques = {name: techniques[name] for name in options.only.split(",")}
        accuracies, steps = ({name: [] for name in techniques} for _ in range(2))
        for seed in seeds:  # in turn, so that a change of the machine's speed affects all
            for name, overrides in techniques.items():
                common = [f"runs={runs}", f"data.cache={runs}/data", "tracking=none", "launch.ranks=2", f"seed={seed}"]
                common += ["epochs=4"] if options.quick else []
                done = measure.train(*common, *overrides)
                accuracies[name].append(done["summary"]["test/top1"])
                steps[name].append(done["status"]["step"] / done["run"].plan().sizes.total_steps)
    figures = {
        name: {"test/top1": measure.spread(accuracies[name]), "steps": measure.spread(steps[name])}
        for name in techniques
    }
    for name, value in figures.items():
        accuracy, share = measure.show(value["test/top1"], "{:.1f}"), measure.show(value["steps"], "{:.2f}")
        print(f"{name:24} test top-1 {accuracy} %, steps {share} of the planned")
    measure.finish(figures)


if __name__ == "__main__":
    main()
