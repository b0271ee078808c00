"""Classic networks, as MXNet's Module wrote them: a graph (`-symbol.json`) and its arrays (`-0000.params`).

The graph says everything: where its classifier is, what its input is called, which parameters belong to what.
Layers are found by what they do and not by name.  What becomes of it has `.features` and `.output` like every
network here, and structural names like theirs: `features.bn0.running_mean`, `output.weight`.
"""

import json
import os
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx
from mxnet.gluon import SymbolBlock, nn

from mxscale.config import ConfigError
from mxscale.nets import weights

NAME = "symbol"  # as model.name: the network is the graph that the weights come with

FILES = "a network is two files, PREFIX-symbol.json and PREFIX-0000.params (another epoch: symbol:PREFIX@EPOCH)"

# operator -> what its inputs after the first are.  In a graph they are variables of any name.
ROLES = {
    **{name: ("weight", "bias") for name in ("Convolution", "Deconvolution", "FullyConnected")},
    **{name: ("gamma", "beta", "running_mean", "running_var") for name in ("BatchNorm", "BatchNorm_v1")},
    **{name: ("gamma", "beta") for name in ("InstanceNorm", "LayerNorm", "GroupNorm")},
    "LeakyReLU": ("gamma",),
}
MODULES = {"running_mean": "moving_mean", "running_var": "moving_var"}  # Module's endings of variables' names
NORMS = ("BatchNorm", "BatchNorm_v1")

# What may stand between the classifier and the graph's output: nothing that has parameters or mixes classes up.
COPIES = ("Cast", "_copy", "identity", "amp_cast", "BlockGrad")
ENDS = (*COPIES, "SoftmaxOutput", "Softmax", "softmax", "log_softmax", "SoftmaxActivation", "Flatten", "Reshape")
POOLED_ENDS = (*ENDS, "Pooling", "Activation", "Dropout")  # and where it is a 1x1 convolution


class Node(NamedTuple):
    op: str  # null: a variable
    name: str
    attributes: Dict[str, str]
    inputs: List[Tuple[int, int]]  # (node, which of its outputs)

    def on(self, attribute: str, default: bool = False) -> bool:
        return self.attributes.get(attribute, str(default)).lower() in ("true", "1")


class Network(NamedTuple):
    """A graph taken apart: what comes before the classifier, and the classifier."""

    features: mx.sym.Symbol
    input: str  # its variable
    names: Dict[str, str]  # variable -> structural name within the features
    fixed: Set[str]  # variables that are gammas of fix_gamma: 1, never trained
    head: Node  # FullyConnected, or a 1x1 Convolution
    after: List[Node]  # between a convolution and the output, in that order
    head_variables: List[str]  # weight, bias
    raw_input: bool  # the graph begins with a normalisation of its input: it takes pixels of 0-255


# ---------------------------------------------------------------- the graph


def nodes_of(graph: dict) -> List[Node]:
    return [Node(n["op"], n["name"], n.get("attrs") or {}, [(i[0], i[1]) for i in n["inputs"]]) for n in graph["nodes"]]


def take_apart(graph: dict, known: Optional[Set[str]] = None, input: Optional[str] = None) -> Network:
    """`graph` as `mx.sym.Symbol.tojson` writes it.  Its input is `input`, or the variable that is not in `known`.

    Raises ValueError with what is wrong in a few words.
    """
    nodes = nodes_of(graph)
    head, after = _find_head(nodes, graph["heads"])
    features = nodes[head].inputs[0]
    reached = ancestors(nodes, [features[0]])
    roles = _roles(nodes, reached)
    variables = [nodes[i].name for i in sorted(reached) if nodes[i].op == "null"]
    if input is None:
        inputs = [name for name in variables if name not in roles and name not in known]
        if len(inputs) != 1:
            raise ValueError(f"it has {len(inputs)} inputs ({', '.join(inputs[:3])}): expected one, the images")
        input = inputs[0]
    if len(set(variables)) < len(variables):
        raise ValueError("two of its variables have one name")
    return Network(
        features=mx.sym.load_json(json.dumps({**graph, "heads": [[*features, 0]]})),
        input=input,
        names=_structural_names({name: roles.get(name, "weight") for name in variables if name != input}),
        fixed={
            nodes[nodes[i].inputs[1][0]].name
            for i in reached
            if nodes[i].op in NORMS and nodes[i].on("fix_gamma", True)
        },
        head=nodes[head],
        after=[nodes[i] for i in after],
        head_variables=[nodes[i].name for i, _ in nodes[head].inputs[1:]],
        raw_input=_is_raw(nodes, reached, input),
    )


def _find_head(nodes: List[Node], outputs: list) -> Tuple[int, List[int]]:
    """The last layer with weights before the output, and what follows it."""
    if len(outputs) != 1:
        names = ", ".join(nodes[output[0]].name for output in outputs[:3])
        raise ValueError(f"it has {len(outputs)} outputs ({names}): expected one classifier")
    at, after = outputs[0][0], []
    while nodes[at].op in POOLED_ENDS:
        after.append(at)
        at = nodes[at].inputs[0][0]
    after.reverse()
    found = nodes[at]
    dense = found.op == "FullyConnected" and all(nodes[i].op in ENDS for i in after)
    if dense or (found.op == "Convolution" and _numbers(found, "kernel") == [1, 1] and _is_pooled(nodes, at, after)):
        return at, after
    raise ValueError(
        f"no classifier in it: before its output is {found.name} ({found.op}); expected a FullyConnected, "
        "or a 1x1 Convolution with a global pooling"
    )


def _numbers(node: Node, attribute: str) -> List[int]:
    return [int(number) for number in node.attributes.get(attribute, "").strip("()[] ").split(",") if number.strip()]


def _is_pooled(nodes: List[Node], head: int, after: List[int]) -> bool:
    """Whether each class has one number: a global average after the convolution, or before it."""
    pools = [nodes[i] for i in after if nodes[i].op == "Pooling"]
    at = nodes[head].inputs[0][0]
    while nodes[at].op in (*COPIES, "Dropout", "Activation"):
        at = nodes[at].inputs[0][0]
    averages = all(pool.attributes.get("pool_type", "max") == "avg" and pool.on("global_pool") for pool in pools)
    return averages and bool(pools or (nodes[at].op == "Pooling" and nodes[at].on("global_pool")))


def ancestors(nodes: List[Node], ends: List[int]) -> Set[int]:
    """The nodes that `ends` are made of, themselves included."""
    reached, waiting = set(), list(ends)
    while waiting:
        at = waiting.pop()
        if at not in reached:
            reached.add(at)
            waiting += [i for i, _ in nodes[at].inputs]
    return reached


def _roles(nodes: List[Node], reached: Set[int]) -> Dict[str, str]:
    return {
        nodes[variable].name: role
        for i in sorted(reached)
        for role, (variable, _) in zip(ROLES.get(nodes[i].op, ()), nodes[i].inputs[1:])
        if nodes[variable].op == "null"
    }


def _structural_names(roles: Dict[str, str]) -> Dict[str, str]:
    """variable -> `layer.role`, the layer being the variable's name without the ending that says the role."""
    names = {}
    for variable, role in roles.items():
        endings = [f"_{role}", f"_{MODULES.get(role, role)}"]
        layer = next((variable[: -len(ending)] for ending in endings if variable.endswith(ending)), variable)
        names[variable] = f"{layer}.{role}"
    if len(set(names.values())) < len(names):
        return {variable: f"{variable}.{role}" for variable, role in roles.items()}
    return names


def _is_raw(nodes: List[Node], reached: Set[int], input: str) -> bool:
    at = {i for i in reached if nodes[i].op == "null" and nodes[i].name == input}
    while True:
        users = {i for i in reached if any(source in at for source, _ in nodes[i].inputs)}
        if not users or any(nodes[i].op not in COPIES for i in users):
            return bool(users) and all(nodes[i].op in NORMS for i in users)
        at = users


# ---------------------------------------------------------------- the network


class Features(SymbolBlock):
    """All of a graph before its classifier."""

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
        """No gradient and running statistics for all, or for what comes up to and with `stage`.

        Stages are those of the classic residual networks: nodes named `stage1_...`, `stage2_...`.
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
        """Momentum 0 in each normalisation that is not frozen; how many there are."""
        graph = self.graph
        live = [i for i, node in enumerate(nodes_of(graph)) if node.op in NORMS and not node.on("use_global_stats")]
        for i in live:
            graph["nodes"][i].setdefault("attrs", {})["momentum"] = "0"
        self._cached_graph = self._cached_graph[0], mx.sym.load_json(json.dumps(graph))
        return len(live)

    def stages(self) -> List[str]:
        """stage1, stage2, ... in order."""
        starts = {node.name.partition("_")[0] for node in nodes_of(self.graph)}
        return sorted(name for name in starts if name.startswith("stage") and name[5:].isdigit())


class SymbolNetwork(nn.HybridBlock):
    """Images (n, 3, side, side) to scores (n, classes), by a graph that was read."""

    def __init__(self, network: Network, classes: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = Features(network)
            self.output = _head(network, classes)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def _head(network: Network, classes: int) -> nn.HybridBlock:
    bias = not network.head.on("no_bias")
    if network.head.op == "FullyConnected":
        return nn.Dense(classes, use_bias=bias, flatten=network.head.on("flatten", True))
    head = nn.HybridSequential(prefix="output_")
    with head.name_scope():
        head.add(nn.Conv2D(classes, 1, use_bias=bias))
        for node in network.after:
            if node.op == "Activation":
                head.add(nn.Activation(node.attributes["act_type"]))
            elif node.op == "Dropout":
                head.add(nn.Dropout(float(node.attributes.get("p", 0.5))))
            elif node.op == "Pooling":
                head.add(nn.GlobalAvgPool2D())
        head.add(nn.Flatten())
    return head


# ---------------------------------------------------------------- files


def build(saved, classes: int) -> SymbolNetwork:
    """The network of {"graph", "input"}, or of a file that holds it, uninitialised.  Raises ConfigError."""
    path = "the graph"
    try:
        if not isinstance(saved, dict):
            path = saved
            with open(path) as file:
                saved = json.load(file)
        return SymbolNetwork(take_apart(saved["graph"], input=saved["input"]), classes)
    except (OSError, KeyError, TypeError, ValueError, mx.MXNetError) as error:
        raise ConfigError(f"{path}: no network can be read from it ({str(error).strip().splitlines()[-1]})") from None


def read(prefix: str, source: str) -> Tuple[dict, Dict[str, mx.nd.NDArray], Network, List[str]]:
    """`prefix`, or `prefix@epoch` -> (what `build` wants in its file, arrays by structural name, network, files).

    `source` is what messages call it.  Raises ConfigError.
    """
    prefix, epoch = split_epoch(prefix)
    files = [f"{prefix}-symbol.json", f"{prefix}-{epoch:04d}.params"]
    graph = _read_graph(files[0], source)
    if not os.path.exists(files[1]):
        raise ConfigError(f"model.pretrained={source}: there is no {files[1]}: {FILES}")
    arrays = weights.load(files[1])
    try:
        network = take_apart(graph, known=set(arrays))
    except ValueError as error:
        raise ConfigError(f"model.pretrained={source}: {files[0]} can't be used: {error}") from None
    head = "output" if network.head.op == "FullyConnected" else "output.0"
    wanted = {variable: f"features.{name}" for variable, name in network.names.items()}
    wanted.update(zip(network.head_variables, (f"{head}.weight", f"{head}.bias")))
    problems = weights.differences(wanted, arrays)
    if problems:
        raise ConfigError(f"model.pretrained={source}: {files[1]} is not of {files[0]}: {problems}")
    for variable in network.fixed:
        arrays[variable][:] = 1  # what fix_gamma computes with, whatever the file says
    named = {name: arrays[variable] for variable, name in wanted.items()}
    return {"graph": graph, "input": network.input}, named, network, files


def split_epoch(prefix: str) -> Tuple[str, int]:
    """("x/Inception-BN", 126) of x/Inception-BN@126; the epoch is 0 where none is given."""
    name, _, epoch = prefix.rpartition("@")
    return (name, int(epoch)) if name and epoch.isdigit() else (prefix, 0)


def _read_graph(path: str, source: str) -> dict:
    """As this MXNet writes it: older forms are brought up to date."""
    try:
        with open(path) as file:
            text = file.read()
        parts = json.loads(text)
        if not isinstance(parts, dict) or not all(isinstance(parts.get(key), list) for key in ("nodes", "heads")):
            raise ValueError("no graph in it")
        return json.loads(mx.sym.load_json(text).tojson())
    except FileNotFoundError:
        raise ConfigError(f"model.pretrained={source}: there is no {path}: {FILES}") from None
    except OSError as error:
        raise ConfigError(f"model.pretrained={source}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"model.pretrained={source}: {path} is truncated or no JSON ({error})") from None
    except mx.MXNetError as error:
        what = f"no graph that MXNet {mx.__version__} knows"
        raise ConfigError(f"model.pretrained={source}: {path} is {what} ({_cause(error)})") from None


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "perator" in line]
    return (named or lines)[-1].rpartition("Check failed: ")[2]
