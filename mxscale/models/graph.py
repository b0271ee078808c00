"""Analysis of a symbol network's graph: its features, classifier and input, and the roles of its variables.

Layers are identified by operator, not by name.
"""

import json
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

import mxnet as mx

# operator -> roles of its inputs after the first; in a graph, their variables have arbitrary names
ROLES = {
    **{name: ("weight", "bias") for name in ("Convolution", "Deconvolution", "FullyConnected")},
    **{name: ("gamma", "beta", "running_mean", "running_var") for name in ("BatchNorm", "BatchNorm_v1")},
    **{name: ("gamma", "beta") for name in ("InstanceNorm", "LayerNorm", "GroupNorm")},
    "LeakyReLU": ("gamma",),
}
MODULES = {"running_mean": "moving_mean", "running_var": "moving_var"}  # suffixes of Module's variables
NORMS = ("BatchNorm", "BatchNorm_v1")

# Operators allowed between the classifier and the output: without parameters and without mixing classes.
COPIES = ("Cast", "_copy", "identity", "amp_cast", "BlockGrad")
ENDS = (*COPIES, "SoftmaxOutput", "Softmax", "softmax", "log_softmax", "SoftmaxActivation", "Flatten", "Reshape")
POOLED_ENDS = (*ENDS, "Pooling", "Activation", "Dropout")  # if the classifier is a 1x1 convolution
# operator -> the least number of inputs, of those that are relied on here
INPUTS = {
    **dict.fromkeys(POOLED_ENDS, 1),
    **dict.fromkeys(("Convolution", "FullyConnected"), 2),
    **dict.fromkeys(NORMS, 5),
}
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
    outputs = {(node, output) for node, output, _ in internals}
    for node in [*nodes_of(graph), Node("", "its output", {}, [(i[0], i[1]) for i in graph["heads"]])]:
        if len(node.inputs) < INPUTS.get(node.op, 0):
            raise ValueError(f"{node.name} ({node.op}) has {len(node.inputs)} inputs, expected {INPUTS[node.op]}")
        for source, output in node.inputs:
            if (source, output) not in outputs:
                raise ValueError(
                    f"{node.name} reads output {output} of {graph['nodes'][source]['name']}, which it lacks"
                )


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
    roles = _roles(nodes, reached)
    variables = [nodes[i].name for i in sorted(reached) if nodes[i].op == "null"]
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
