"""Conversion of `model.pretrained` to one file with structural names, during preparation.

A run directory or a `.params` file is read in place. Every other source is converted to a file in the run's directory.
Ranks and resumed runs then need neither the source nor network access.
"""

import contextlib
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from mxscale.config.networks import network
from mxscale.config.schema import origin_of
from mxscale.models import model_card, symbol, torch_file, weights
from mxscale.models.model_card import ModelCard
from mxscale.rundir.plan import Origin
from mxscale.util.atomic_files import digest_of, replacing
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

WEIGHTS, GRAPH = "pretrained.params", "network.json"  # in the run's directory


class Loaded(NamedTuple):
    arrays: Dict[str, Any]  # structural name -> NDArray or numpy array, including the head
    files: List[str]  # source files
    input: Optional[dict] = None  # image_size, mean, std, interpolation, crop in training; None: unknown
    revision: Optional[str] = None
    graph: Optional[dict] = None  # of a symbol network
    class_names: Optional[List[str]] = None  # as `mxscale export` writes them


# Kinds of sources that are converted to a file in the run's directory
CONVERTED = ("imagenet", "symbol", "torch", "hf", "zoo")


def load(source: str, name: str) -> Loaded:
    """Return the weights that `source` names, for the network `name`. Raises ConfigError."""
    kind, rest = origin_of(source)
    if kind not in CONVERTED:
        return Loaded(weights.load(source), [source])
    if kind == "symbol":
        return _symbol(rest, source)
    network(name)  # refuse an unknown name before fetching
    if kind == "zoo":
        raise ConfigError(f"{source} was removed: name its file, $HOME/.mxnet/models/{name}-HASH.params")
    if kind == "torch":
        return _torch(rest, name, source)
    from mxscale.models import downloads

    if kind == "imagenet":
        return _torch(downloads.imagenet(name), name, source)
    files, revision = downloads.hub(rest)
    return _torch(files[0], name, source)._replace(files=files, revision=revision)


def _symbol(prefix: str, source: str) -> Loaded:
    saved, arrays, network, files = symbol.read(prefix, source)
    # A network that starts with a normalisation was trained on plain pixels, at 224 pixels if published
    # (example/image-classification/test_score.py of MXNet: rgb_mean='0,0,0')
    taken = {"image_size": 224, "mean": [0.0] * 3, "std": [1.0] * 3} if network.raw_input else None
    loaded = Loaded(arrays, files, taken, graph=saved)
    card = None
    with contextlib.suppress(OSError, ValueError, RecursionError):  # of another program
        card = json.loads(read_regular(f"{symbol.split_epoch(prefix)[0]}.json", symbol.MAX_BYTES))
    if isinstance(card, dict) and "class_names" in card and "params_sha256" in card:
        return _of_export(loaded, model_card.from_values(card, source))
    return loaded


def _torch(file: str, name: str, source: str) -> Loaded:
    from mxscale.models import convert

    loaded = Loaded(convert.load(file, name, source), [file])
    card = model_card.from_metadata(torch_file.metadata_of(file), source)
    if card:
        return _of_export(loaded, card)
    return loaded._replace(input=convert.input_of(file) or network(name).pretrained_input)


def _of_export(loaded: Loaded, card: ModelCard) -> Loaded:
    """Add the input and the classes that `mxscale export` states."""
    crop = min(1, card.image_size / card.resize) if card.resize else None
    taken = {"image_size": card.image_size, "crop": crop, "unresized": card.resize is None}
    taken.update(mean=list(card.mean), std=list(card.std), interpolation=card.interpolation)
    return loaded._replace(input=taken, class_names=list(card.class_names))


def bring(source: str, name: str, folder, head: str) -> Origin:
    """Write WEIGHTS, and GRAPH for a symbol network, into `folder`; return their origin.

    Args:
        head: "replace" omits the arrays of the output layer; "keep" includes them.

    Raises:
        ConfigError: The source is invalid or does not fit the network.
    """
    loaded = load(source, name)
    arrays = {n: a for n, a in loaded.arrays.items() if head == "keep" or not n.startswith("output.")}
    weights.save(os.path.join(folder, WEIGHTS), arrays)
    if loaded.graph:
        with replacing(os.path.join(folder, GRAPH)) as new, open(new, "w") as file:
            json.dump(loaded.graph, file)
    return Origin(
        kind=origin_of(source)[0],
        files={str(path): digest_of(path) for path in loaded.files},
        revision=loaded.revision,
        input=loaded.input,
    )
