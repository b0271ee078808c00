"""Defaults that follow a folder of images: network, image size, epochs, batch and crops.

What neither the command line nor an experiment sets is chosen by the images' number and sizes and by what the machine
computes. The run records the values, so a resume and a rerun repeat them. Measured rates are kept beside the packed
sets, so the same folder on the same machine gives the same choice.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import psutil

from mxscale.config.networks import NETWORKS
from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.sizes import auto_ranks
from mxscale.config.validation import can_be_fitted
from mxscale.data.survey import Survey, survey
from mxscale.environment import description, gpus, machine
from mxscale.environment.container_limits import available_cores
from mxscale.environment.description import ROOT
from mxscale.launcher.progress import echo
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import RunFailed
from mxscale.util.paths import absolute

SMALL_SET = 10_000  # images
STEPS = 8  # in an epoch, at least, as far as the batch can be smaller
PRETRAINED = "efficientnet_lite0"  # what finetune starts from
# entry -> images that a training sees, its fewest and its most epochs
LENGTH = {"train": (100_000, 10, 100), "finetune": (10_000, 3, 40)}
MINUTES = 15.0  # aim of a training from random weights
OVERHEAD = 1.4  # time of a training over that of its forward and backward passes; measured: 1.3 to 1.5 on two cores
SCAN = 48  # pixels: images up to this size have networks of their own
# (network, image size) by their cost
FOR_SCANS = (("small", 32), ("resnet9", 32))
FOR_PHOTOGRAPHS = (*(("resnet18_v1b", side) for side in (64, 96, 128, 160, 224)), ("resnet50_v1b", 224))
BUSY = 25.0  # per cent of the cores that other programs use
ENLARGED = 1.15  # by this factor at most an image is smaller than the network's input


class Choice(NamedTuple):
    """The value of a setting, and why it has it."""

    value: Any
    reason: str


Rate = Callable[[str, int, int], float]  # network, image size, batch -> images/s of all devices


def choose(config: Config, is_set: Callable[[str], bool]) -> Dict[str, Any]:
    """Return the chosen values by key, and print them with their reasons.

    Args:
        config: With data.kind=imagefolder.
        is_set: Whether the command line or an experiment sets a key.

    Raises:
        ConfigError: data.root cannot be read.
        RunFailed: The rate of a network cannot be measured.
    """
    devices = len(gpus.driver().get("gpus", ()))
    ranks = config.launch.ranks
    if ranks == "auto":
        ranks = auto_ranks(config, 0, devices, available_cores())
    rate = MeasuredRates(Path(absolute(config.data.cache)) / "rates.json", devices)
    chosen = Choices(config, is_set, survey(config.data), ranks, rate).all()
    reasons: Dict[str, List[str]] = {}
    for key, (value, reason) in chosen.items():
        reasons.setdefault(reason, []).append(f"{key}={value}".replace(" ", ""))
    for number, (reason, settings) in enumerate(reasons.items()):
        echo(f"{'' if number else 'chosen':<9} {' '.join(settings)}: {reason}")
    return {key: choice.value for key, choice in chosen.items()}


class Choices:
    """The choice for one folder."""

    def __init__(self, config: Config, is_set: Callable[[str], bool], found: Survey, ranks: int, rate: Rate):
        self.config, self.is_set, self.found, self.ranks, self.rate = config, is_set, found, ranks, rate
        self.settings = flatten(to_dict(config))  # with what has been chosen
        self.chosen: Dict[str, Choice] = {}

    def all(self) -> Dict[str, Choice]:
        """Return the choice of each setting that is open."""
        self._weights()
        self._crops()
        images = self.found.training_images(self.config.data)
        self._batch(images)
        epochs = self._epochs(images)
        if self.settings["model.pretrained"] is None:  # else the weights have a network, and an input size
            self._network_and_size(epochs * images)
        return self.chosen

    def _choose(self, reason: str, values: Dict[str, Any]) -> None:
        """Choose values of the keys that are open."""
        for key, value in values.items():
            if not self.is_set(key):
                self.settings[key] = value
                self.chosen[key] = Choice(value, reason)

    def _weights(self) -> None:
        if self.config.entry != "finetune":
            return
        name = self.settings["model.name"] if self.is_set("model.name") else PRETRAINED
        if not self.is_set("model.pretrained") and name in NETWORKS and NETWORKS[name].package:
            self._choose("ImageNet weights", {"model.name": name, "model.pretrained": "imagenet"})

    def _crops(self) -> None:
        few = self.found.images < SMALL_SET or self.config.entry == "finetune"
        if few and self.config.data.augment.crop == "random_resized":
            self._choose("crops keep at least half of an image", {"data.augment.scale": [0.5, 1.0]})

    def _batch(self, images: int) -> None:
        """Halve the batch until an epoch has enough steps."""
        batch = self.settings["batch.per_device"]
        while batch > 2 and images < STEPS * batch * self.ranks:
            batch //= 2
        if batch != self.settings["batch.per_device"]:
            reason = f"{images:,} training images, at least {STEPS} steps in an epoch"
            self._choose(reason, {"batch.per_device": batch})

    def _epochs(self, images: int) -> int:
        """Return the number of epochs by which the network is chosen; the budget may set another one."""
        passes, fewest, most = LENGTH[self.config.entry]
        epochs = min(max(math.ceil(passes / images), fewest), most)
        if self.config.budget.stated and can_be_fitted(self.config):
            self._choose(f"fitted to {self.config.budget.stated}", {"epochs": "auto"})
        else:
            self._choose(f"{epochs * images:,} images in all", {"epochs": epochs})
        return self.settings["epochs"] if self.settings["epochs"] != "auto" else epochs

    def _candidates(self) -> List[Tuple[str, int]]:
        """Return the networks and sizes that the open settings and the images leave, by their cost."""
        side = self.found.short_side or SCAN + 1
        pairs = FOR_SCANS if side <= SCAN else FOR_PHOTOGRAPHS
        if self.is_set("model.name"):
            pairs = [(self.settings["model.name"], size) for _, size in pairs]
        if self.is_set("data.image_size"):
            pairs = [(name, self.settings["data.image_size"]) for name, _ in pairs]
        pairs = list(dict.fromkeys(pairs))
        return [pair for pair in pairs if pair[1] <= ENLARGED * side] or pairs[:1]

    def _network_and_size(self, images: int) -> None:
        """Choose the costliest candidate that trains on `images` in the time; the first one if none does."""
        if self.is_set("model.name") and self.is_set("data.image_size"):
            return
        limit = self.config.budget.minutes or MINUTES
        best, minutes, rejected = None, 0.0, ""
        for name, size in self._candidates():
            rate = self.rate(name, size, self.settings["batch.per_device"])
            takes = images * OVERHEAD / rate / 60
            if best and takes > limit:
                rejected = f"; {name} at {size} px: {takes:.0f} min"
                break
            best, minutes = (name, size), takes
        reason = f"images of {self.found.short_side} px, about {minutes:.0f} min on this machine{rejected}"
        name, size = best
        margin = size if self.found.short_side and self.found.short_side <= SCAN else round(size * 8 / 7)
        sizes = {"data.image_size": size, "data.pack_short_side": margin, "data.eval_resize": margin}
        self._choose(reason, {"model.name": name, **sizes})


class MeasuredRates:
    """The rates of networks on this machine: measured once, then read from a file.

    A rate that is measured beside other programs is used, but not kept.

    Args:
        path: Of the file; it and its folder need not exist.
        gpus: That take part; 0: the cores compute.
    """

    def __init__(self, path: Path, gpus: int):
        self.path, self.devices = path, max(gpus, 1)
        mxnet = description.versions().get("mxnet", "of another package")  # such as mxnet-cu90
        self.where = f"{gpus or available_cores()} x {'GPU' if gpus else machine.cpu_model()}, mxnet {mxnet}"

    def __call__(self, name: str, size: int, batch: int) -> float:
        """Return images/s of all devices. Raises RunFailed."""
        key = f"{name}, {size} px, batch {batch}, {self.where}"
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            known = {}
        if key in known:
            return known[key]
        busy, rate = psutil.cpu_percent(interval=0.5), self._measured(name, size, batch)
        if busy > BUSY:
            echo(f"the rate of {name} at {size} px is measured while other programs use {busy:.0f} % of the cores")
            return rate
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps({**known, key: rate}, indent=1) + "\n")
        return rate

    def _measured(self, name: str, size: int, batch: int) -> float:
        command = [sys.executable, "-m", "mxscale.train.step_rate", name, str(size), str(batch)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(available_cores())}
        done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RunFailed(f"the rate of {name} at {size} px can't be measured: {last}")
        return self.devices * float(done.stdout.split()[-1])
