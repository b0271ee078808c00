"""Defaults that follow a folder of images: network, image size, epochs, batch and crops.

What neither the command line nor an experiment sets is chosen by the images' number and sizes and by what the machine
computes. The run records the values, so a resume and a rerun repeat them. Measured rates are kept beside the packed
sets, so the same folder on the same machine gives the same choice.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from mxscale.config.networks import NETWORKS
from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.sizes import auto_ranks
from mxscale.config.validation import can_be_fitted
from mxscale.data.survey import Survey, survey
from mxscale.environment import description, gpus, machine
from mxscale.environment.container_limits import available_cores
from mxscale.environment.description import ROOT
from mxscale.environment.other_programs import OtherPrograms, remark
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import RunFailed
from mxscale.util.paths import absolute
from mxscale.util.terminal import echo

SMALL_SET = 10_000  # images
STEPS = 8  # in an epoch, at least, as far as the batch can be smaller
SMALLEST_BATCH = 8  # per device: of fewer images, batch normalisation takes its statistics from too little
MINUTES = 15.0  # aim of a training
CHECKPOINT_MINUTES = 3.0  # at most between two checkpoints, about
OVERHEAD = (1.1, 1.4)  # time of a training over that of its steps without input and exchange, measured on two cores
SCAN = 48  # pixels: images up to this size have networks of their own
# (network, image size) by their cost
FOR_SCANS = (("small", 32), ("resnet9", 32))
FOR_PHOTOGRAPHS = (*(("resnet18_v1b", side) for side in (64, 96, 128, 160, 224)), ("resnet50_v1b", 224))
PRETRAINED = "efficientnet_lite0"  # what finetune starts from
OF_PRETRAINED = tuple((PRETRAINED, side) for side in (96, 128, 160, 192, 224))
ENLARGED = 1.15  # by this factor at most an image is smaller than the network's input


class Length(NamedTuple):
    """How long a training is."""

    images: int  # that it sees in all
    least: int  # epochs, however long they take
    enough: int  # epochs of a large set, if the time aimed at suffices
    most: int  # epochs of a small set


LENGTHS = {"train": Length(100_000, 3, 10, 100), "finetune": Length(10_000, 1, 3, 40)}


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
    rate = MeasuredRates(Path(absolute(config.data.cache)) / "rates.json", devices, ranks)
    found = survey(config.data)
    choices = Choices(config, is_set, found, ranks, rate)
    chosen = choices.all()
    for number, (reason, settings) in enumerate(choices.reasons.items()):
        echo(f"{'' if number else 'chosen':<9} {' '.join(settings)}: {reason}")
    uneven = found.imbalance()
    if uneven and not is_set("class_weights"):
        echo(f"classes   {uneven} (to weigh all alike: class_weights=balanced)")
    if choices.takes:
        echo(f"training  {choices.takes} on this machine")
    return chosen


class Choices:
    """The choice for one folder."""

    def __init__(self, config: Config, is_set: Callable[[str], bool], found: Survey, ranks: int, rate: Rate):
        self.config, self.is_set, self.found, self.ranks, self.rate = config, is_set, found, ranks, rate
        self.settings = flatten(to_dict(config))  # with what has been chosen
        self.chosen: Dict[str, Any] = {}
        self.reasons: Dict[str, List[str]] = {}  # reason -> the settings that it explains
        self.scans = bool(found.short_side and found.short_side <= SCAN)
        self.takes: Optional[Minutes] = None  # the training; None: unknown, or set by a budget

    def all(self) -> Dict[str, Any]:
        """Return the chosen value of each setting that is open."""
        self._weights()
        self._crops()
        images = self.found.training_images(self.config.data)
        self._batch(images)
        self._length(images)
        return self.chosen

    def _choose(self, reason: str, values: Dict[str, Any]) -> None:
        """Choose values of the keys that are open."""
        for key, value in values.items():
            if not self.is_set(key):
                self.settings[key] = self.chosen[key] = value
                self.reasons.setdefault(reason, []).append(f"{key}={value}".replace(" ", ""))

    def _weights(self) -> None:
        if self.config.entry != "finetune":
            return
        name = self.settings["model.name"] if self.is_set("model.name") else PRETRAINED
        if not self.is_set("model.pretrained") and name in NETWORKS and NETWORKS[name].package:
            self._choose("ImageNet weights", {"model.name": name, "model.pretrained": "imagenet"})

    def _crops(self) -> None:
        gentle = self.found.images < SMALL_SET or self.scans or self.config.entry == "finetune"
        augment = self.config.data.augment
        if gentle and augment.crop == "random_resized":
            mirrored = ", half of them mirrored (letters and digits: data.augment.flip=false)" if augment.flip else ""
            self._choose(f"crops keep at least half of an image{mirrored}", {"data.augment.scale": [0.5, 1.0]})

    def _batch(self, images: int) -> None:
        """Halve the batch until an epoch has enough steps."""
        batch = self.settings["batch.per_device"]
        while batch > SMALLEST_BATCH and images < STEPS * batch * self.ranks:
            batch //= 2
        if batch != self.settings["batch.per_device"]:
            reason = f"{images:,} training images, at least {STEPS} steps in an epoch"
            self._choose(reason, {"batch.per_device": batch})

    def _length(self, images: int) -> None:
        """Choose network, image size and epochs: what trains within the time. A budget sets the epochs later."""
        config, length = self.config, LENGTHS[self.config.entry]
        typed = config.epochs if self.is_set("epochs") and config.epochs != "auto" else None
        epochs = typed or min(max(math.ceil(length.images / images), length.least), length.most)
        rate = self._network_and_size(epochs * images)
        if config.budget.stated and can_be_fitted(config):
            self._choose(f"fitted to {config.budget.stated}", {"epochs": "auto"})
            return
        if not typed:
            more = math.floor(MINUTES / minutes(images, rate).slow) if rate else length.enough
            epochs = max(epochs, min(more, length.enough))
        self._choose(f"about {float(f'{epochs * images:.3g}'):,.0f} images in all", {"epochs": epochs})
        if rate:
            self.takes = minutes(epochs * images, rate)
            self._checkpoints(images, rate)
            if config.budget.dry_run:
                throughput = round(rate / statistics.mean(OVERHEAD), 1)
                reason = f"expected: {rate:,.0f} were measured without input and exchange"
                self._choose(reason, {"budget.images_per_s": throughput})

    def _checkpoints(self, images: int, rate: float) -> None:
        """Write checkpoints within an epoch that takes long."""
        epoch = minutes(images, rate)
        if epoch.slow > CHECKPOINT_MINUTES:
            steps = images / self.settings["batch.per_device"] / self.ranks * CHECKPOINT_MINUTES / epoch.slow
            every = float(f"{steps:.1g}")  # the same if the rate is measured again
            reason = f"a checkpoint about every {CHECKPOINT_MINUTES:g} min"
            self._choose(reason, {"checkpoint.every_steps": max(1, int(every))})

    def _candidates(self) -> Sequence[Tuple[str, int]]:
        """Return the networks and sizes that the open settings and the images leave, by their cost; none: no choice."""
        if self.is_set("model.name") and self.is_set("data.image_size"):
            return ()
        side = self.found.short_side or SCAN + 1
        pairs, at_most = FOR_SCANS if self.scans else FOR_PHOTOGRAPHS, ENLARGED * side
        if self.settings["model.pretrained"] is not None:  # the weights have a network, and an input size
            own = self.settings["model.name"] != PRETRAINED or "model.pretrained" not in self.chosen
            if own or self.is_set("model.input"):
                return ()
            pairs, at_most = OF_PRETRAINED, math.inf
        if self.is_set("model.name"):
            pairs = [(self.settings["model.name"], size) for _, size in pairs]
        if self.is_set("data.image_size"):
            pairs = [(name, self.settings["data.image_size"]) for name, _ in pairs]
        pairs = list(dict.fromkeys(pairs))
        return [pair for pair in pairs if pair[1] <= at_most] or pairs[:1]

    def _network_and_size(self, images: int) -> Optional[float]:
        """Choose the costliest candidate that trains on `images` in the time, or the first one; return its rate."""
        limit = self.config.budget.minutes or MINUTES
        best, within = None, f"within {limit:g} min"
        for name, size in self._candidates():
            rate = self.rate(name, size, self.settings["batch.per_device"])
            takes = minutes(images, rate)
            if takes.slow > limit and best:
                within += f" ({name} at {size} px: {takes})"
                break
            best = name, size, rate
            if takes.slow > limit:
                within = f"the quickest; {limit:g} min do not suffice"
                break
        if best is None:
            return None
        name, size, rate = best
        margin = size if self.scans else round(size * 8 / 7)
        own = {"model.input": "normalisation"} if self.settings["model.pretrained"] else {"model.name": name}
        sizes = {"data.image_size": size, "data.pack_short_side": margin, "data.eval_resize": margin}
        self._choose(f"for images of {self.found.short_side} px, {within}", {**own, **sizes})
        return rate


class Minutes(NamedTuple):
    """An interval of a forecast."""

    fast: float
    slow: float

    def __str__(self) -> str:
        return f"{self.fast:.0f} to {math.ceil(self.slow)} min"


def minutes(images: int, rate: float) -> Minutes:
    """Return what a training on `images` takes; rate: images/s without input and exchange."""
    return Minutes(*(factor * images / rate / 60 for factor in OVERHEAD))


class MeasuredRates:
    """The rates of networks on this machine: measured once, then read from a file.

    A rate that is measured beside other programs is used, but not kept.

    Args:
        path: Of the file; it and its folder need not exist.
        gpus: That take part; 0: the cores compute.
        ranks: That share the cores; on GPUs one is measured.
    """

    def __init__(self, path: Path, gpus: int, ranks: int):
        self.path, self.devices = path, max(gpus, 1)
        self.ranks = 1 if gpus else min(ranks, available_cores())  # those of other hosts are not measured
        self.threads = max(1, available_cores() // self.ranks)
        mxnet = description.versions().get("mxnet", "of another package")  # such as mxnet-cu90
        place = f"{gpus} x GPU" if gpus else f"{self.ranks} x {self.threads} x {machine.cpu_model()}"
        self.where = f"{place}, mxnet {mxnet}"

    def __call__(self, name: str, size: int, batch: int) -> float:
        """Return images/s of all devices. Raises RunFailed."""
        key = f"{name}, {size} px, batch {batch}, {self.where}"
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            known = {}
        if key in known:
            return known[key]
        echo(f"measuring {name} at {size} px on this machine")
        others, rate = OtherPrograms(), self._measured(name, size, batch)
        busy = remark(others.share())
        if busy:
            echo(f"the rate of {name} at {size} px is too low: {busy}")
            return rate
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps({**known, key: rate}, indent=1) + "\n")
        return rate

    def _measured(self, name: str, size: int, batch: int) -> float:
        """Return the sum of the rates of processes that compute side by side, as ranks do."""
        command = [sys.executable, "-m", "mxscale.train.step_rate", name, str(size), str(batch)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(self.threads)}
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        processes = [subprocess.Popen(command, env=env, **pipes) for _ in range(self.ranks)]
        ended = [(process, *process.communicate()) for process in processes]
        for process, _, errors in ended:
            if process.returncode:
                last = (errors.strip().splitlines() or ["no message"])[-1]
                raise RunFailed(f"the rate of {name} at {size} px can't be measured: {last}")
        return self.devices * sum(float(printed.split()[-1]) for _, printed, _ in ended)
