"""What `model.pretrained` names, turned into one file of our structural names.  In the preparation alone.

A run directory or a `.params` file is read where it lies; everything else goes through `LOADERS` into the
run's own directory, so that ranks and a resumed run need neither the origin nor the network.
"""

import json
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from mxscale.config.networks import network
from mxscale.config.schema import origin_of
from mxscale.models import gluon_store, symbol, weights, zoo
from mxscale.rundir.plan import Origin
from mxscale.util.atomic_files import digest_of, replacing
from mxscale.util.errors import ConfigError

WEIGHTS, GRAPH = "pretrained.params", "network.json"  # in the run's directory


class Loaded(NamedTuple):
    arrays: Dict[str, Any]  # structural name -> NDArray or numpy array, the head's included
    files: List[str]  # what they were read from
    input: Optional[dict] = None  # image_size, mean, std, interpolation, crop: of the images it learnt; None: unknown
    revision: Optional[str] = None
    graph: Optional[dict] = None  # of a symbol network
    ignored: Sequence[str] = ()  # tensors of the file that have no place in a network here, by its names


# ---------------------------------------------------------------- one loader of each kind
# rest of the source after its prefix, name of the network, the source as it was written -> Loaded


def _zoo(rest: str, name: str, source: str) -> Loaded:
    path = gluon_store.fetch(name)
    net = zoo.build(name, 1000)
    # Of all its networks, as mxnet.gluon.model_zoo.vision says (there of 0-1)
    taken = {"image_size": network(name).side, "mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]}
    return Loaded(weights.structural(net, weights.load(path)), [path], taken)


def _symbol(rest: str, name: str, source: str) -> Loaded:
    saved, arrays, network, files = symbol.read(rest, source)
    # A network that begins with a normalisation was trained on plain pixels, at 224 in all that were published
    # (example/image-classification/test_score.py of MXNet: rgb_mean='0,0,0')
    taken = {"image_size": 224, "mean": [0.0] * 3, "std": [1.0] * 3} if network.raw_input else None
    return Loaded(arrays, files, taken, graph=saved)


def _torch(rest: str, name: str, source: str) -> Loaded:
    from mxscale.models import convert

    found = convert.load(rest, name, source)
    return Loaded(found.arrays, [rest], convert.input_of(rest), ignored=found.ignored)


def _hub(rest: str, name: str, source: str) -> Loaded:
    from mxscale.models import convert, hub

    path, config_path, revision = hub.fetch(rest)
    files = [path, config_path] if config_path else [path]
    found = convert.load(path, name, source)
    return Loaded(found.arrays, files, convert.input_of(path), revision, ignored=found.ignored)


LOADERS = {"zoo": _zoo, "symbol": _symbol, "torch": _torch, "hf": _hub}


def load(source: str, name: str) -> Loaded:
    """Whatever `source` names, for the network `name`; a run's is its .params file.  Raises ConfigError."""
    kind, rest = origin_of(source)
    if kind not in LOADERS:
        return Loaded(weights.load(source), [source])
    if kind != "symbol":
        network(name)  # refuses an unknown name before a download
    return LOADERS[kind](rest, name, source)


# ---------------------------------------------------------------- into a run


def bring(source: str, name: str, folder, head: str) -> Origin:
    """Write WEIGHTS (and GRAPH) into `folder`; return where they come from.

    head 'replace': without the arrays of the output layer, which nobody will read.  Raises ConfigError.
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
        input=loaded.input and checked(loaded.input, source),
    )


def checked(taken: dict, source: str) -> dict:
    """The same, where its values make sense.  Raises ConfigError."""
    side, crop = taken.get("image_size"), taken.get("crop")
    numbers = [*taken.get("mean", ()), *taken.get("std", ())]
    wrong = (
        (side is not None and not (isinstance(side, int) and 8 <= side <= 4096))
        or (crop is not None and not 0 < crop <= 1)
        or len(numbers) not in (0, 6)
        or not all(isinstance(n, (int, float)) and math.isfinite(n) for n in numbers)
        or min(taken.get("std", [1])) <= 0
    )
    if wrong:
        raise ConfigError(f"model.pretrained={source}: its own input makes no sense ({taken}); set model.input=config")
    return taken
