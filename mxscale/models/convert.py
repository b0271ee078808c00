"""Conversion of weights between PyTorch's names and structural names, and the input stated by a checkpoint.

torchvision and timm use the same names for the tensors of plain ResNets (torchvision/models/resnet.py and
timm/models/resnet.py: conv1, bn1, layer1.0.conv1, downsample.0, fc). Both have the stride in the 3x3 convolution, as
`_v1b` here. The layouts are the same: (out, in, height, width) and (out, in).
"""

import json
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Collection, Dict, List, Optional

import numpy as np

from mxscale.config.networks import NETWORKS, Network, network
from mxscale.models import torch_file, zoo
from mxscale.models.model_card import check_input
from mxscale.models.networks import SCALES, SPECIFICATION, BottleneckV1b, stages
from mxscale.models.weights import differences, first_of
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular

SETTINGS = "config.json"  # beside weights of timm
# Number of batches behind a running statistic; PyTorch uses it only if momentum is None.
UNUSED = "num_batches_tracked"
TORCH_NETWORKS = [entry for entry in NETWORKS.values() if entry.torch_names]
# Prefixes that wrappers add to every name: DataParallel, Lightning, torch.compile
PREFIXES = ("module.", "model.", "_orig_mod.")
# Names of plain ResNets in timm (timm/models/resnet.py), with and without tags. Other architectures have tensors of
# the same names and use them differently: resnetaa50 averages before its stride.
ARCHITECTURES = r"(tv_|gluon_|ssl_|swsl_)?resnet(18|34|50|101|152)(_v1b)?"


def names(entry: Network) -> Dict[str, str]:
    """Return PyTorch's name -> structural name for each tensor of one of TORCH_NETWORKS, in the order of both."""
    structural = zoo.build(entry.name, entry.classes)._collect_params_with_prefix()
    return dict(zip(resolve_name(entry.torch_names)(**entry.arguments), structural, strict=True))


def resnet_names(layers: int) -> List[str]:
    """Return PyTorch's names of the tensors of a ResNet v1b."""
    block, blocks, _ = SPECIFICATION[layers]
    convolutions, tensors = 3 if block is BottleneckV1b else 2, _pair("conv1", "bn1")
    for stage, count in enumerate(blocks, 1):
        for index in range(count):
            parent = f"layer{stage}.{index}"
            for k in range(1, convolutions + 1):
                tensors += _pair(f"{parent}.conv{k}", f"{parent}.bn{k}")
            if index == 0 and (stage > 1 or convolutions == 3):  # the number of channels changes
                tensors += _pair(f"{parent}.downsample.0", f"{parent}.downsample.1")
    return [*tensors, "fc.weight", "fc.bias"]


def efficientnet_lite_names(number: int) -> List[str]:
    """Return the names of the tensors of EfficientNet-Lite `number` in github.com/lukemelas/EfficientNet-PyTorch."""
    tensors = _pair("_conv_stem", "_bn0")
    blocks = [stage for stage in stages(SCALES[number]) for _ in range(stage.blocks)]
    for index, stage in enumerate(blocks):
        expand = [("_expand_conv", "_bn0")] * (stage.expansion > 1)
        for convolution, norm in (*expand, ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")):
            tensors += _pair(f"_blocks.{index}.{convolution}", f"_blocks.{index}.{norm}")
    return [*tensors, *_pair("_conv_head", "_bn1"), "_fc.weight", "_fc.bias"]


def _pair(convolution: str, norm: str) -> List[str]:
    """Return the names of the tensors of a convolution and of the normalisation after it."""
    return [f"{convolution}.weight", *(f"{norm}.{name}" for name in ("weight", "bias", "running_mean", "running_var"))]


def load(path: str, name: str, source: Optional[str] = None) -> Dict[str, np.ndarray]:
    """Return the tensors of a file by structural name, in float32; without a head if the file has none.

    Args:
        source: model.pretrained as the user wrote it, for messages.

    Raises:
        ConfigError: The file is invalid or does not fit the network; the message names the tensors.
    """
    source = source or f"torch:{path}"
    entry = network(name)
    if entry not in TORCH_NETWORKS:
        known = ", ".join(other.name for other in TORCH_NETWORKS)
        raise ConfigError(f"model.pretrained={source}: PyTorch weights fit {known}, not model.name={name}")
    architecture = _settings(path).get("architecture")
    if isinstance(architecture, str) and not re.fullmatch(ARCHITECTURES, architecture):
        raise ConfigError(f"model.pretrained={source} is a {architecture} ({SETTINGS}), which is not supported")
    tensors = _unwrapped(torch_file.read(path, source))
    used = {n: tensor for n, tensor in tensors.items() if n.rpartition(".")[2] != UNUSED}
    table = _table(entry, used)
    if set(used) != set(table):
        others = [other.name for other in TORCH_NETWORKS if set(used) == set(_table(other, used))]
        problem = f"these are weights of another network; use model={others[0]}" if others else differences(table, used)
        raise ConfigError(f"model.pretrained={source} does not fit {name}: {problem}")
    integers = [n for n in table if used[n].dtype.kind != "f"]
    if integers:
        raise ConfigError(f"model.pretrained={source}: not of a floating-point type: {first_of(integers)}")
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, which weights.fit refuses
        arrays = {structural: used[n].astype("float32", order="C") for n, structural in table.items()}
    return _turned(entry, arrays)


def _turned(entry: Network, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return the arrays in the network's layout, given PyTorch's, or the reverse."""
    if not entry.rotated:
        return arrays
    return {n: np.ascontiguousarray(a[:, :, ::-1, ::-1]) if a.ndim == 4 else a for n, a in arrays.items()}


def _unwrapped(tensors: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    for _ in PREFIXES:
        for prefix in PREFIXES:
            if tensors and all(n.startswith(prefix) for n in tensors):
                tensors = {n[len(prefix) :]: tensor for n, tensor in tensors.items()}
    return tensors


def _table(entry: Network, known: Collection[str]) -> Dict[str, str]:
    """Return the expected names. A file without any tensor of the head is a network without its head."""
    table = names(entry)
    head = {n for n, structural in table.items() if structural.startswith("output.")}
    left_out = set() if head.intersection(known) else head
    return {n: structural for n, structural in table.items() if n not in left_out}


def to_torch(entry: Network, arrays: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Return the arrays of one of TORCH_NETWORKS by PyTorch's names, in PyTorch's order."""
    arrays = _turned(entry, arrays)
    return {torch_name: arrays[structural] for torch_name, structural in names(entry).items()}


def input_of(path: str) -> Optional[dict]:
    """Return the input that a network was trained on, from timm's config.json beside its weights.

    Returns:
        image_size (pixels), mean and std (RGB, 0-255), interpolation (such as "bicubic") and crop (share of the
        shorter side that validation sees, if stated); None if nothing is stated, as for torchvision's files.

    Raises:
        ConfigError: config.json is invalid.
    """
    settings = _settings(path)
    stated = settings.get("pretrained_cfg", settings)
    if not isinstance(stated, dict) or "input_size" not in stated:  # of another program
        return None
    try:
        colours, height, width = stated["input_size"]
        if (colours, height) != (3, width) or type(height) is not int:
            raise ValueError(f"input_size={stated['input_size']}, expected [3, side, side]")
        # 123.675, not 123.67499999999998
        values = {name: [round(float(share) * 255, 6) for share in stated[name]] for name in ("mean", "std")}
        values["image_size"] = height
        if stated.get("crop_pct") is not None:
            values["crop"] = float(stated["crop_pct"])
        check_input(values)
        return {**values, "interpolation": str(stated["interpolation"])}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        where = Path(path).with_name(SETTINGS)
        raise ConfigError(
            f"{where} does not state the input of the weights ({error!r}): correct or remove it"
        ) from None


def _settings(path: str) -> dict:
    """Return the content of config.json beside the file; empty if it does not exist. Raises ConfigError."""
    where = Path(path).with_name(SETTINGS)
    try:
        with open_regular(where, "r", encoding="utf-8") as file:
            settings = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}, which describes the weights beside it, is not JSON ({error})") from None
    return settings if isinstance(settings, dict) else {}
