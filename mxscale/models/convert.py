"""Conversion of weights between PyTorch's names and structural names, and the input stated by a checkpoint.

torchvision and timm use the same names for the tensors of plain ResNets (torchvision/models/resnet.py and
timm/models/resnet.py: conv1, bn1, layer1.0.conv1, downsample.0, fc). Both have the stride in the 3x3 convolution, as
`_v1b` here. The layouts are the same: (out, in, height, width) and (out, in).
"""

import json
import math
import os
import re
from pkgutil import resolve_name
from typing import Dict, List, Optional

import numpy as np

from mxscale.config.networks import NETWORKS, network
from mxscale.models import torch_file
from mxscale.models.residual import SPECIFICATION, BottleneckV1b
from mxscale.models.weights import differences, first_of
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

BATCH_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "running_mean", "running_var": "running_var"}
# Number of batches behind a running statistic; PyTorch uses it only if momentum is None.
UNUSED = "num_batches_tracked"
TORCH_NETWORKS = [entry.name for entry in NETWORKS.values() if entry.torch_names]
# Prefixes that wrappers add to every name: DataParallel, Lightning, torch.compile
PREFIXES = ("module.", "model.", "_orig_mod.")
# Names of plain ResNets in timm (timm/models/resnet.py), with and without tags. Other architectures have tensors of
# the same names and use them differently: resnetaa50 averages before its stride.
ARCHITECTURES = r"(tv_|gluon_|ssl_|swsl_)?resnet(18|34|50|101|152)(_v1b)?"


def names(name: str) -> Dict[str, str]:
    """Return PyTorch's name -> structural name for each tensor of one of TORCH_NETWORKS, in PyTorch's order."""
    entry = network(name)
    return resolve_name(entry.torch_names)(**entry.arguments)


def resnet_names(layers: int) -> Dict[str, str]:
    """Return PyTorch's name -> structural name for each tensor of a ResNet, in PyTorch's order."""
    block, blocks, _ = SPECIFICATION[layers]
    convolutions = 3 if block is BottleneckV1b else 2
    table = {"conv1.weight": "features.0.weight", **_norm("bn1", "features.1")}
    for stage, count in enumerate(blocks, 1):
        for index in range(count):
            torch_name, structural = f"layer{stage}.{index}", f"features.{stage + 3}.{index}"
            for k in range(convolutions):  # `body` repeats convolution, normalisation, ReLU
                table[f"{torch_name}.conv{k + 1}.weight"] = f"{structural}.body.{3 * k}.weight"
                table.update(_norm(f"{torch_name}.bn{k + 1}", f"{structural}.body.{3 * k + 1}"))
            if index == 0 and (stage > 1 or convolutions == 3):  # the number of channels changes
                table[f"{torch_name}.downsample.0.weight"] = f"{structural}.downsample.0.weight"
                table.update(_norm(f"{torch_name}.downsample.1", f"{structural}.downsample.1"))
    return {**table, "fc.weight": "output.weight", "fc.bias": "output.bias"}


def _norm(torch_name: str, structural: str) -> Dict[str, str]:
    return {f"{torch_name}.{a}": f"{structural}.{b}" for a, b in BATCH_NORM.items()}


def load(path: str, name: str, source: Optional[str] = None) -> Dict[str, np.ndarray]:
    """Return the tensors of a file by structural name, in float32; without a head if the file has none.

    Args:
        source: model.pretrained as the user wrote it, for messages.

    Raises:
        ConfigError: The file is invalid or does not fit the network; the message names the tensors.
    """
    source = source or f"torch:{path}"
    if name not in TORCH_NETWORKS:
        known = ", ".join(TORCH_NETWORKS)
        raise ConfigError(f"model.pretrained={source}: PyTorch weights fit {known}, not model.name={name}")
    _check_architecture(path, source)
    tensors = _unwrapped(torch_file.read(path, source))
    given = {n: tensor for n, tensor in tensors.items() if n.rpartition(".")[2] != UNUSED}
    table = _table(name, given)
    if set(given) != set(table):
        raise ConfigError(f"model.pretrained={source} does not fit {name}: {_misfits(given, name)}")
    integers = [n for n in table if not given[n].is_floating()]
    if integers:
        raise ConfigError(f"model.pretrained={source}: not of a floating-point type: {first_of(integers)}")
    return {structural: _turned(given[n].as_float32(), name) for n, structural in table.items()}


def _turned(array: np.ndarray, name: str) -> np.ndarray:
    """Return the array as the network stores it, given PyTorch's, or the reverse."""
    return np.ascontiguousarray(array[:, :, ::-1, ::-1]) if network(name).rotated and array.ndim == 4 else array


def _unwrapped(tensors: dict) -> dict:
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if tensors and all(n.startswith(prefix) for n in tensors):
                tensors = {n[len(prefix) :]: tensor for n, tensor in tensors.items()}
    return tensors


def _table(name: str, given) -> Dict[str, str]:
    """Return the expected names. A file without any tensor of the head is a network without its head."""
    table = names(name)
    head = {n for n, structural in table.items() if structural.startswith("output.")}
    return table if head & set(given) else {n: structural for n, structural in table.items() if n not in head}


def _misfits(given, name: str) -> str:
    for other in TORCH_NETWORKS:
        if set(given) == set(_table(other, given)):
            return f"these are weights of {other}; use model={other}"
    return differences(_table(name, given), given)


def to_torch(name: str, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return the arrays of one of TORCH_NETWORKS by PyTorch's names, in PyTorch's order."""
    return {torch_name: _turned(arrays[structural], name) for torch_name, structural in names(name).items()}


def input_of(path: str) -> Optional[dict]:
    """Return the input that a network was trained on, from timm's config.json beside its weights.

    Returns:
        image_size (pixels), mean and std (RGB, 0-255), interpolation (such as "bicubic") and crop (share of the
        shorter side that validation sees, or None); None if nothing is stated, as for torchvision's files.

    Raises:
        ConfigError: config.json is invalid.
    """
    settings = _settings(path)
    stated = settings.get("pretrained_cfg", settings)
    if not isinstance(stated, dict) or "input_size" not in stated:  # of another program
        return None
    try:
        return _input(stated)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{_config(path)} does not state the input of the weights ({error!r}): correct or remove it"
        ) from None


def _config(path: str) -> str:
    return os.path.join(os.path.dirname(path), "config.json")


def _settings(path: str) -> dict:
    """Return the content of config.json beside the file; empty if it does not exist. Raises ConfigError."""
    try:
        with open_regular(_config(path), "r", encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{_config(path)}, which describes the weights beside it, is not JSON ({error})") from None
    return found if isinstance(found, dict) else {}


def _check_architecture(path: str, source: str) -> None:
    """Raise ConfigError if config.json beside the file states another architecture."""
    architecture = _settings(path).get("architecture")
    if isinstance(architecture, str) and not re.fullmatch(ARCHITECTURES, architecture):
        raise ConfigError(f"model.pretrained={source} is a {architecture} ({_config(path)}), which is not supported")


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
