"""Networks written by MXNet's Module: a graph (`-symbol.json`) and its arrays (`-0000.params`).

The graph is divided into features, which stay a graph, and a classifier. Layers are identified by operator, not by
name. Structural names are such as `features.bn0.running_mean` and `output.weight`.
"""

import json
import os
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx
from mxnet.gluon import SymbolBlock, nn

from mxscale.models import weights
from mxscale.models.networks import Classifier
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

MAX_BYTES = 64 << 20  # of a graph; that of a ResNet-152 has 0.3 MB
FILES = "expected PREFIX-symbol.json and PREFIX-0000.params (another epoch: symbol:PREFIX@EPOCH)"

NORMS = ("BatchNorm", "BatchNorm_v1")
# operator -> roles of its inputs after the first; in a graph, their variables have arbitrary names
ROLES = {
    **{name: ("weight", "bias") for name in ("Convolution", "Deconvolution", "FullyConnected")},
    **{name: ("gamma", "beta", "running_mean", "running_var") for name in NORMS},
    **{name: ("gamma", "beta") for name in ("InstanceNorm", "LayerNorm", "GroupNorm")},
    "LeakyReLU": ("gamma",),
}
MODULES = {"running_mean": "moving_mean", "running_var": "moving_var"}  # suffixes of Module's variables

# Operators allowed between the classifier and the output: without parameters and without mixing classes.
COPIES = ("Cast", "_copy", "identity", "amp_cast", "BlockGrad")
ENDS = (*COPIES, "SoftmaxOutput", "Softmax", "softmax", "log_softmax", "SoftmaxActivation", "Flatten", "Reshape")
POOLED_ENDS = (*ENDS, "Pooling", "Activation", "Dropout")  # if the classifier is a 1x1 convolution
# operator -> the least number of inputs, of those that are relied on here
INPUTS = {**dict.fromkeys(POOLED_ENDS, 1), "Convolution": 2, "FullyConnected": 2, **dict.fromkeys(NORMS, 5)}
MAX_NODES = 10_000  # the graph of a ResNet-1001 has about 8,000


class Node(NamedTuple):
    op: str  # null: a variable
    name: str
    attributes: Dict[str, str]
    inputs: List[Tuple[int, int]]  # (node, index of its output)

    def on(self, attribute: str, default: bool = False) -> bool:
        return self.attributes.get(attribute, str(default)).lower() in ("true", "1")

    def numbers(self, attribute: str) -> List[int]:
        text = self.attributes.get(attribute, "").strip("()[] ")
        return [int(number) for number in text.split(",") if number.strip()]


class Network(NamedTuple):
    """A graph divided into features and classifier."""

    features: mx.sym.Symbol
    input: str  # name of the input variable
    names: Dict[str, str]  # variable -> structural name within the features
    fixed: Set[str]  # gammas with fix_gamma: 1, never trained
    head: Node  # FullyConnected, or a 1x1 Convolution
    after: List[Node]  # between a convolution and the output, in that order
    head_variables: List[str]  # weight, bias
    raw_input: bool  # the graph starts with a normalisation of its input and expects pixels of 0-255


def nodes_of(graph: dict) -> List[Node]:
    return [Node(n["op"], n["name"], n.get("attrs") or {}, [(i[0], i[1]) for i in n["inputs"]]) for n in graph["nodes"]]


def check_order(graph) -> None:
    """Check that each node's inputs precede it, as MXNet writes them; then no node is its own ancestor.

    Args:
        graph: The JSON of a graph, of any version of MXNet.

    Raises:
        ValueError: It is not a graph in that order; the message is short.
    """
    if not isinstance(graph, dict) or not all(isinstance(graph.get(key), list) for key in ("nodes", "heads")):
        raise ValueError("it has no nodes and heads")
    if len(graph["nodes"]) > MAX_NODES:
        raise ValueError(f"it has {len(graph['nodes'])} nodes, expected at most {MAX_NODES}")
    inputs = [node.get("inputs") if isinstance(node, dict) else None for node in graph["nodes"]]
    for number, entries in enumerate([*inputs, graph["heads"]]):
        if not isinstance(entries, list) or not all(_is_before(entry, number) for entry in entries):
            what = f"node {number}" if number < len(inputs) else "its output"
            raise ValueError(f"{what} refers to no earlier node: {str(entries)[:80]}")


def _is_before(entry, number: int) -> bool:
    return isinstance(entry, list) and len(entry) > 1 and type(entry[0]) is int and 0 <= entry[0] < number


def _check_inputs(graph: dict) -> None:
    """Raise ValueError if a node lacks inputs, or reads an output that does not exist; MXNet checks neither."""
    internals = json.loads(mx.sym.load_json(json.dumps(graph)).get_internals().tojson())["heads"]
    outputs, nodes = {(node, output) for node, output, _ in internals}, nodes_of(graph)
    for node in [*nodes, Node("", "its output", {}, [(i[0], i[1]) for i in graph["heads"]])]:
        if len(node.inputs) < INPUTS.get(node.op, 0):
            raise ValueError(f"{node.name} ({node.op}) has {len(node.inputs)} inputs, expected {INPUTS[node.op]}")
        for source, output in node.inputs:
            if (source, output) not in outputs:
                raise ValueError(f"{node.name} reads output {output} of {nodes[source].name}, which it lacks")


def analyse(graph: dict, known: Optional[Set[str]] = None, input: Optional[str] = None) -> Network:
    """Divide a graph into features and classifier.

    Args:
        graph: The graph as `mx.sym.Symbol.tojson` writes it.
        known: Names of the variables that have arrays; the input is the other one.
        input: The input variable, in place of `known`.

    Raises:
        ValueError: The graph is not an image classifier; the message is short.
    """
    _check_inputs(graph)
    nodes = nodes_of(graph)
    head, after = _find_head(nodes, graph["heads"])
    features = nodes[head].inputs[0]
    reached = ancestors(nodes, [features[0]])
    roles = {
        nodes[variable].name: role
        for i in sorted(reached)
        for role, (variable, _) in zip(ROLES.get(nodes[i].op, ()), nodes[i].inputs[1:])
        if nodes[variable].op == "null"
    }
    variables = [nodes[i].name for i in sorted(reached) if nodes[i].op == "null"]
    norms = [nodes[i] for i in reached if nodes[i].op in NORMS]
    if input is None:
        inputs = [name for name in variables if name not in roles and name not in known]
        if len(inputs) != 1:
            raise ValueError(f"it has {len(inputs)} inputs ({', '.join(inputs[:3])}): expected one")
        input = inputs[0]
    if len(set(variables)) < len(variables):
        raise ValueError("two of its variables have the same name")
    return Network(
        features=mx.sym.load_json(json.dumps({**graph, "heads": [[*features, 0]]})),
        input=input,
        names=_structural_names({name: roles.get(name, "weight") for name in variables if name != input}),
        fixed={nodes[node.inputs[1][0]].name for node in norms if node.on("fix_gamma", True)},
        head=nodes[head],
        after=[nodes[i] for i in after],
        head_variables=[nodes[i].name for i, _ in nodes[head].inputs[1:]],
        raw_input=_is_raw(nodes, reached, input),
    )


def _find_head(nodes: List[Node], outputs: list) -> Tuple[int, List[int]]:
    """Return the last layer with weights before the output, and the nodes after it."""
    if len(outputs) != 1:
        names = ", ".join(nodes[output[0]].name for output in outputs[:3])
        raise ValueError(f"it has {len(outputs)} outputs ({names}): expected one classifier")
    at, after = outputs[0][0], []
    while nodes[at].op in POOLED_ENDS:
        after.append(at)
        at = nodes[at].inputs[0][0]
    after.reverse()
    last = nodes[at]
    dense = last.op == "FullyConnected" and all(nodes[i].op in ENDS for i in after)
    if dense or (last.op == "Convolution" and last.numbers("kernel") == [1, 1] and _is_pooled(nodes, at, after)):
        return at, after
    raise ValueError(
        f"it has no classifier: the last layer is {last.name} ({last.op}); expected a FullyConnected, "
        "or a 1x1 Convolution with a global pooling"
    )


def _is_pooled(nodes: List[Node], head: int, after: List[int]) -> bool:
    """Return whether each class has one number: a global average before or after the convolution."""
    pools = [nodes[i] for i in after if nodes[i].op == "Pooling"]
    at = nodes[head].inputs[0][0]
    while nodes[at].op in (*COPIES, "Dropout", "Activation"):
        at = nodes[at].inputs[0][0]
    averages = all(pool.attributes.get("pool_type", "max") == "avg" and pool.on("global_pool") for pool in pools)
    return averages and bool(pools or (nodes[at].op == "Pooling" and nodes[at].on("global_pool")))


def ancestors(nodes: List[Node], ends: List[int]) -> Set[int]:
    """Return the ancestors of `ends`, including `ends`."""
    reached = set(ends)
    for i in reversed(range(len(nodes))):  # inputs precede their node
        if i in reached:
            reached.update(source for source, _ in nodes[i].inputs)
    return reached


def _structural_names(roles: Dict[str, str]) -> Dict[str, str]:
    """Return variable -> `layer.role`, where layer is the variable's name without the suffix for its role."""
    names = {}
    for variable, role in roles.items():
        endings = [f"_{role}", f"_{MODULES.get(role, role)}"]
        layer = next((variable[: -len(ending)] for ending in endings if variable.endswith(ending)), variable)
        names[variable] = f"{layer}.{role}"
    if len(set(names.values())) < len(names):
        return {variable: f"{variable}.{role}" for variable, role in roles.items()}
    return names


def _is_raw(nodes: List[Node], reached: Set[int], input: str) -> bool:
    pixels = {i for i in reached if nodes[i].op == "null" and nodes[i].name == input}  # and copies of them
    users = []
    for i in sorted(reached - pixels):
        if any(source in pixels for source, _ in nodes[i].inputs):
            (pixels.add if nodes[i].op in COPIES else users.append)(i)
    return bool(users) and all(nodes[i].op in NORMS for i in users)


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

    def _set(self, numbers, attribute: str, value: str) -> None:
        """Set an attribute of the nodes with these numbers."""
        graph = self.graph
        for i in numbers:
            graph["nodes"][i].setdefault("attrs", {})[attribute] = value
        self._cached_graph = self._cached_graph[0], mx.sym.load_json(json.dumps(graph))

    def freeze(self, stage: Optional[str] = None) -> None:
        """Freeze all layers, or those up to and including `stage`: no gradient, running statistics in training.

        Stages are those of residual networks: nodes named `stage1_...`, `stage2_...`.
        """
        nodes = nodes_of(self.graph)
        frozen = ancestors(nodes, [i for i, n in enumerate(nodes) if stage is None or n.name.startswith(f"{stage}_")])
        for i in frozen:
            if nodes[i].op == "null" and nodes[i].name in self.params:
                self.params.get(nodes[i].name).grad_req = "null"
        self._set([i for i in frozen if nodes[i].op in NORMS], "use_global_stats", "True")

    def keep_last_statistics(self) -> int:
        """Set momentum 0 in each normalisation that is not frozen; return their number."""
        nodes = enumerate(nodes_of(self.graph))
        live = [i for i, node in nodes if node.op in NORMS and not node.on("use_global_stats")]
        self._set(live, "momentum", "0")
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

    Returns:
        The input of `build`, the arrays by structural name, the network, and the paths of the files.

    Raises:
        ConfigError: A file is missing, invalid, or does not match the other.
    """
    prefix, epoch = split_epoch(prefix)
    files = [f"{prefix}-symbol.json", f"{prefix}-{epoch:04d}.params"]
    for path in files:
        if not os.path.exists(path):
            raise ConfigError(f"model.pretrained={source}: {path} does not exist: {FILES}")
    graph = _read_graph(files[0], source)
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
    except OSError as error:
        problem = error.strerror
    except (ValueError, RecursionError) as error:
        problem = f"truncated or not a graph ({error})"
    except mx.MXNetError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = ([line for line in lines if "perator" in line] or lines)[-1].rpartition("Check failed: ")[2]
        problem = f"not a graph that MXNet {mx.__version__} supports ({reason})"
    raise ConfigError(f"model.pretrained={source}: {path}: {problem}")
