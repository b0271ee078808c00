"""PyTorch's names of a ResNet's tensors and ours, both ways; what a checkpoint says of its input.

torchvision and timm name the tensors of the plain ResNets alike (torchvision/models/resnet.py and
timm/models/resnet.py: conv1, bn1, layer1.0.conv1, downsample.0, fc), and both have the stride in the 3x3, as our
`_v1b` has it.  Layouts agree as well: (out, in, height, width) and (out, in).
"""

import json
import math
import os
import re
from typing import Dict, List, NamedTuple, Optional

import numpy as np

from mxscale.config.networks import NETWORKS, network
from mxscale.models import torch_file
from mxscale.models.resnet_v1b import SPECIFICATION, BottleneckV1b
from mxscale.models.weights import differences, first_of
from mxscale.util.errors import ConfigError

BATCH_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "running_mean", "running_var": "running_var"}
# How many batches a running statistic is of: PyTorch needs it where momentum is None alone.
UNUSED = "num_batches_tracked"
TORCH_NETWORKS = ", ".join(entry.name for entry in NETWORKS.values() if entry.torch_layers)
# What wrappers put before every name: DataParallel, Lightning, torch.compile
PREFIXES = ("module.", "model.", "_orig_mod.")
HEAD = {"fc.weight": "output.weight", "fc.bias": "output.bias"}

# What timm calls them (timm/models/resnet.py), and called them before tags.  Others have tensors of the same names
# and do other things with them: resnetaa50 averages before it strides.
ARCHITECTURES = r"(tv_|gluon_|ssl_|swsl_)?resnet(18|34|50|101|152)(_v1b)?"


def names(layers: int) -> Dict[str, str]:
    """PyTorch's name -> ours, of each tensor of a ResNet with that many layers, in PyTorch's order."""
    block, blocks, _ = SPECIFICATION[layers]
    convolutions = 3 if block is BottleneckV1b else 2
    table = {"conv1.weight": "features.0.weight", **_norm("bn1", "features.1")}
    for stage, count in enumerate(blocks, 1):
        for index in range(count):
            theirs, ours = f"layer{stage}.{index}", f"features.{stage + 3}.{index}"
            for k in range(convolutions):  # in `body` convolution, normalisation and ReLU follow each other
                table[f"{theirs}.conv{k + 1}.weight"] = f"{ours}.body.{3 * k}.weight"
                table.update(_norm(f"{theirs}.bn{k + 1}", f"{ours}.body.{3 * k + 1}"))
            if index == 0 and (stage > 1 or convolutions == 3):  # where the number of channels changes
                table[f"{theirs}.downsample.0.weight"] = f"{ours}.downsample.0.weight"
                table.update(_norm(f"{theirs}.downsample.1", f"{ours}.downsample.1"))
    return {**table, **HEAD}


def _norm(theirs: str, ours: str) -> Dict[str, str]:
    return {f"{theirs}.{a}": f"{ours}.{b}" for a, b in BATCH_NORM.items()}


# ---------------------------------------------------------------- into ours


class Converted(NamedTuple):
    arrays: Dict[str, np.ndarray]  # by our names, float32
    ignored: List[str]  # tensors of the file that have no place in a network here, by its names


def load(path: str, name: str, source: Optional[str] = None) -> Converted:
    """Every tensor of the file in its place, or ConfigError with the names; without a head where the file has none.

    `source`: as the user wrote it.
    """
    source = source or f"torch:{path}"
    layers = network(name).torch_layers
    if layers is None:
        raise ConfigError(f"model.pretrained={source}: weights of PyTorch fit {TORCH_NETWORKS}, not model.name={name}")
    _check_architecture(path, source)
    tensors = _unwrapped(torch_file.read(path, source))
    ignored = [n for n in tensors if n.rpartition(".")[2] == UNUSED]
    given = {n: tensor for n, tensor in tensors.items() if n not in ignored}
    table = _table(layers, given)
    if set(given) != set(table):
        raise ConfigError(f"model.pretrained={source} does not fit {name}: {_misfits(given, layers)}")
    whole = [n for n in table if not given[n].is_floating()]
    if whole:
        raise ConfigError(f"model.pretrained={source}: not of a floating type: {first_of(whole)}")
    return Converted({ours: given[n].as_float32() for n, ours in table.items()}, ignored)


def _unwrapped(tensors: dict) -> dict:
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if tensors and all(n.startswith(prefix) for n in tensors):
                tensors = {n[len(prefix) :]: tensor for n, tensor in tensors.items()}
    return tensors


def _table(layers: int, given) -> Dict[str, str]:
    """The names to expect.  A file without any of the head's is a network that was cut off before it."""
    table = names(layers)
    return table if HEAD.keys() & set(given) else {n: ours for n, ours in table.items() if n not in HEAD}


def _misfits(given, layers: int) -> str:
    for other in SPECIFICATION:
        if set(given) == set(_table(other, given)):
            return f"these are weights of a ResNet-{other}: take model=resnet{other}_v1b"
    return differences(_table(layers, given), given)


# ---------------------------------------------------------------- out of ours


def to_torch(name: str, arrays: Dict[str, np.ndarray], source: str) -> Dict[str, np.ndarray]:
    """The arrays of network `name` by PyTorch's names, in its order; ConfigError, which calls them `source`."""
    layers = network(name).torch_layers
    if layers is None:
        raise ConfigError(f"{source} is a {name}, which has no names in PyTorch: {TORCH_NETWORKS} have")
    return {theirs: arrays[ours] for theirs, ours in names(layers).items()}


# ---------------------------------------------------------------- the input


def input_of(path: str) -> Optional[dict]:
    """What images the network in the file at `path` was trained on, from timm's config.json beside it.

    image_size in pixels, mean and std (RGB, of 0-255), interpolation (a word such as bicubic), crop (the share
    of the shorter side that validation sees, or None).  None where nothing is stated, as of torchvision's files.
    Raises ConfigError for a config.json that states what can't be.
    """
    settings = _settings(path)
    stated = settings.get("pretrained_cfg", settings)
    if not isinstance(stated, dict) or "input_size" not in stated:  # of something else
        return None
    try:
        return _input(stated)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{_beside(path)} does not say what input the weights want: {error!r}") from None


def _beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), "config.json")


def _settings(path: str) -> dict:
    """What config.json beside the file says; empty where there is none.  Raises ConfigError."""
    try:
        with open(_beside(path), encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{_beside(path)}, which says what the weights beside it are, is no JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _check_architecture(path: str, source: str) -> None:
    """ConfigError where config.json beside the file says that it is another network."""
    architecture = _settings(path).get("architecture")
    if isinstance(architecture, str) and not re.fullmatch(ARCHITECTURES, architecture):
        raise ConfigError(f"model.pretrained={source} is a {architecture} ({_beside(path)}), and no network here")


def _input(stated: dict) -> dict:
    colours, height, width = stated["input_size"]
    if (colours, height) != (3, width) or type(height) is not int or height < 1:
        raise ValueError(f"input_size={stated['input_size']}, expected [3, side, side]")
    crop = stated.get("crop_pct")
    return {
        "image_size": height,
        "mean": _scaled(stated["mean"]),
        "std": _scaled(stated["std"]),
        "interpolation": str(stated["interpolation"]),
        "crop": None if crop is None else float(crop),
    }


def _scaled(shares: list) -> List[float]:
    values = [round(float(share) * 255, 6) for share in shares]  # 123.675, not 123.67499999999998
    if len(values) != 3 or not all(math.isfinite(value) for value in values):
        raise ValueError(f"{shares}, expected three numbers")
    return values
