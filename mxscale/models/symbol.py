"""Networks written by MXNet's Module: a graph (`-symbol.json`) and its arrays (`-0000.params`).

The graph defines the network, see graph.py. The resulting block has `.features` and `.output` like every network
here, and structural names such as `features.bn0.running_mean` and `output.weight`.
"""

import json
import os
from typing import Dict, List, Optional, Tuple

import mxnet as mx
from mxnet.gluon import SymbolBlock, nn

from mxscale.models import weights
from mxscale.models.graph import NORMS, Network, analyse, ancestors, check_order, nodes_of
from mxscale.models.networks import Classifier
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

MAX_BYTES = 64 << 20  # of a graph; that of a ResNet-152 has 0.3 MB
FILES = "expected PREFIX-symbol.json and PREFIX-0000.params (another epoch: symbol:PREFIX@EPOCH)"


class Features(SymbolBlock):
    """The part of a graph before its classifier."""

    def __init__(self, network: Network):
        super().__init__(network.features, mx.sym.var(network.input, dtype="float32"))
        self._reg_params = {network.names[name]: parameter for name, parameter in self.params.items()}
        for name in network.fixed:
            self.params.get(name).grad_req = "null"

    @property
    def graph(self) -> dict:
        return json.loads(self._cached_graph[1].tojson())

    def has_dropout(self) -> bool:
        return any(node.op == "Dropout" for node in nodes_of(self.graph))

    def freeze(self, stage: Optional[str] = None) -> None:
        """Freeze all layers, or those up to and including `stage`: no gradient, running statistics in training.

        Stages are those of residual networks: nodes named `stage1_...`, `stage2_...`.
        """
        graph = self.graph
        nodes = nodes_of(graph)
        ends = [i for i, node in enumerate(nodes) if stage is None or node.name.startswith(f"{stage}_")]
        for i in ancestors(nodes, ends):
            if nodes[i].op == "null" and nodes[i].name in self.params:
                self.params.get(nodes[i].name).grad_req = "null"
            if nodes[i].op in NORMS:
                graph["nodes"][i].setdefault("attrs", {})["use_global_stats"] = "True"
        self._cached_graph = self._cached_graph[0], mx.sym.load_json(json.dumps(graph))

    def keep_last_statistics(self) -> int:
        """Set momentum 0 in each normalisation that is not frozen; return their number."""
        graph = self.graph
        live = [i for i, node in enumerate(nodes_of(graph)) if node.op in NORMS and not node.on("use_global_stats")]
        for i in live:
            graph["nodes"][i].setdefault("attrs", {})["momentum"] = "0"
        self._cached_graph = self._cached_graph[0], mx.sym.load_json(json.dumps(graph))
        return len(live)

    def stages(self) -> List[str]:
        """Return the names of the stages in order: stage1, stage2, ..."""
        starts = {node.name.partition("_")[0] for node in nodes_of(self.graph)}
        return sorted(name for name in starts if name.startswith("stage") and name[5:].isdigit())


class SymbolNetwork(Classifier):
    """A network read from a graph."""

    def __init__(self, network: Network, classes: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = Features(network)
            self.output = _head(network, classes)


def _head(network: Network, classes: int) -> nn.HybridBlock:
    bias = not network.head.on("no_bias")
    if network.head.op == "FullyConnected":
        return nn.Dense(classes, use_bias=bias, flatten=network.head.on("flatten", True))
    head = nn.HybridSequential(prefix="output_")
    with head.name_scope():
        strides, padding = network.head.numbers("stride") or (1, 1), network.head.numbers("pad") or (0, 0)
        head.add(nn.Conv2D(classes, 1, tuple(strides), tuple(padding), use_bias=bias))
        for node in network.after:
            if node.op == "Activation":
                head.add(nn.Activation(node.attributes["act_type"]))
            elif node.op == "Dropout":
                head.add(nn.Dropout(float(node.attributes.get("p", 0.5))))
            elif node.op == "Pooling":
                head.add(nn.GlobalAvgPool2D())
        head.add(nn.Flatten())
    return head


def build(saved, classes: int) -> SymbolNetwork:
    """Return the uninitialised network of {"graph", "input"}, or of a file with it. Raises ConfigError."""
    path = "the graph"
    try:
        if not isinstance(saved, dict):
            path = saved
            saved = json.loads(read_regular(path, MAX_BYTES))
        check_order(saved["graph"])
        return SymbolNetwork(analyse(saved["graph"], input=saved["input"]), classes)
    except (OSError, KeyError, TypeError, ValueError, RecursionError, mx.MXNetError) as error:
        raise ConfigError(f"{path}: not a network ({str(error).strip().splitlines()[-1]})") from None


def read(prefix: str, source: str) -> Tuple[dict, Dict[str, mx.nd.NDArray], Network, List[str]]:
    """Read the two files of `prefix` or `prefix@epoch`.

    Args:
        prefix: Path without `-symbol.json`.
        source: model.pretrained as the user wrote it, for messages.

    Returns:
        The input of `build`, the arrays by structural name, the network, and the paths of the files.

    Raises:
        ConfigError: A file is missing, invalid, or does not match the other.
    """
    prefix, epoch = split_epoch(prefix)
    files = [f"{prefix}-symbol.json", f"{prefix}-{epoch:04d}.params"]
    graph = _read_graph(files[0], source)
    if not os.path.exists(files[1]):
        raise ConfigError(f"model.pretrained={source}: {files[1]} does not exist: {FILES}")
    arrays = weights.load(files[1])
    try:
        network = analyse(graph, known=set(arrays))
    except ValueError as error:
        raise ConfigError(f"model.pretrained={source}: {files[0]} cannot be used: {error}") from None
    head = "output" if network.head.op == "FullyConnected" else "output.0"
    wanted = {variable: f"features.{name}" for variable, name in network.names.items()}
    wanted.update(zip(network.head_variables, (f"{head}.weight", f"{head}.bias")))
    problems = weights.differences(wanted, arrays)
    if problems:
        raise ConfigError(f"model.pretrained={source}: {files[1]} does not match {files[0]}: {problems}")
    for variable in network.fixed:
        arrays[variable][:] = 1  # the value that fix_gamma uses in place of the file's
    named = {name: arrays[variable] for variable, name in wanted.items()}
    return {"graph": graph, "input": network.input}, named, network, files


def split_epoch(prefix: str) -> Tuple[str, int]:
    """Return ("x/Inception-BN", 126) for x/Inception-BN@126; the epoch is 0 if not given."""
    name, _, epoch = prefix.rpartition("@")
    return (name, int(epoch)) if name and epoch.isdigit() else (prefix, 0)


def _read_graph(path: str, source: str) -> dict:
    """Return the graph in the form of this MXNet version; older forms are converted."""
    try:
        text = read_regular(path, MAX_BYTES).decode()
        check_order(json.loads(text))
        return json.loads(mx.sym.load_json(text).tojson())
    except FileNotFoundError:
        raise ConfigError(f"model.pretrained={source}: {path} does not exist: {FILES}") from None
    except OSError as error:
        raise ConfigError(f"model.pretrained={source}: {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model.pretrained={source}: {path} is truncated or not a graph ({error})") from None
    except mx.MXNetError as error:
        what = f"not a graph that MXNet {mx.__version__} supports"
        raise ConfigError(f"model.pretrained={source}: {path} is {what} ({_cause(error)})") from None


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "perator" in line]
    return (named or lines)[-1].rpartition("Check failed: ")[2]
