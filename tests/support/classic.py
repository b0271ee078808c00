"""Networks in the classic format, PREFIX-symbol.json and PREFIX-0000.params, with random weights.

The residual ones are those of MXNet's example/image-classification/symbols/resnet.py, which the published
`imagenet11k-resnet-152` and `imagenet1k-resnet-50` were made with: pre-activation (arXiv:1603.05027), a
normalisation of the pixels first, nodes named stage1_unit1_conv1.
"""

import json

import mxnet as mx
import numpy as np

UNITS = {50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}


def norm(data, name, fix_gamma=False):
    return mx.sym.BatchNorm(data, fix_gamma=fix_gamma, eps=2e-5, momentum=0.9, name=name)


def convolution(data, filters, kernel, stride, name):
    side = kernel // 2
    return mx.sym.Convolution(data, num_filter=filters, kernel=(kernel, kernel), stride=(stride, stride),
                              pad=(side, side), no_bias=True, name=name)  # fmt: skip


def relu(data, name):
    return mx.sym.Activation(data, act_type="relu", name=name)


def unit(data, filters, stride, same, name):
    """Return a bottleneck block; the shortcut is a 1x1 convolution if the shape changes."""
    first = relu(norm(data, f"{name}_bn1"), f"{name}_relu1")
    body = convolution(first, filters // 4, 1, 1, f"{name}_conv1")
    body = convolution(relu(norm(body, f"{name}_bn2"), f"{name}_relu2"), filters // 4, 3, stride, f"{name}_conv2")
    body = convolution(relu(norm(body, f"{name}_bn3"), f"{name}_relu3"), filters, 1, 1, f"{name}_conv3")
    return body + (data if same else convolution(first, filters, 1, stride, f"{name}_sc"))


def resnet(units=(1, 1, 1, 1), classes=11, width=8):
    """Return a pre-activation ResNet; width 64 and UNITS give the published networks."""
    body = norm(mx.sym.identity(mx.sym.var("data"), name="id"), "bn_data", fix_gamma=True)
    body = relu(norm(convolution(body, width, 7, 2, "conv0"), "bn0"), "relu0")
    body = mx.sym.Pooling(body, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for stage, count in enumerate(units, 1):
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            body = unit(body, 4 * width * 2 ** (stage - 1), stride, number > 1, f"stage{stage}_unit{number}")
    body = relu(norm(body, "bn1"), "relu1")
    body = mx.sym.Pooling(body, global_pool=True, kernel=(7, 7), pool_type="avg", name="pool1")
    scores = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=classes, name="fc1")
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def arrays_of(network, side=32, seed=0):
    """Return random parameters and states by name, such as arg:conv0_weight."""
    draw = np.random.default_rng(seed)
    shapes, _, states = network.infer_shape(data=(1, 3, side, side))
    found = {}
    for name, shape in zip(network.list_arguments(), shapes):
        if name == "data" or name.endswith("label"):
            continue
        spread = np.sqrt(2 / np.prod(shape[1:])) if name.endswith("weight") else 0.1
        found[f"arg:{name}"] = draw.standard_normal(shape, "float32") * spread + (1 if name.endswith("gamma") else 0)
    for name, shape in zip(network.list_auxiliary_states(), states):
        moved = draw.standard_normal(shape, "float32") * 0.1
        found[f"aux:{name}"] = 1 + np.abs(moved) if name.endswith("var") else moved
    return {name: mx.nd.array(array) for name, array in found.items()}


def save(network, prefix, arrays=None, epoch=0):
    """Write graph and parameters; return the prefix."""
    network.save(f"{prefix}-symbol.json")
    mx.nd.save(f"{prefix}-{epoch:04d}.params", arrays_of(network) if arrays is None else arrays)
    return str(prefix)


def as_of_2016(network) -> str:
    """Return the graph as MXNet 0.8 writes it: settings in `param`, and no aux states among the inputs."""
    graph = json.loads(network.tojson())
    states = set(network.list_auxiliary_states())
    kept = [i for i, node in enumerate(graph["nodes"]) if node["name"] not in states]
    place = {old: new for new, old in enumerate(kept)}
    nodes = []
    for old in kept:
        node = graph["nodes"][old]
        inputs = [[place[i], which] for i, which, _ in node["inputs"] if i in place]
        settings = {key: value for key, value in node.get("attrs", {}).items() if not key.startswith("__")}
        nodes.append({"op": node["op"], "param": settings, "name": node["name"], "inputs": inputs,
                      "backward_source_id": -1})  # fmt: skip
    places = [place[i] for i in graph["arg_nodes"] if i in place]
    return json.dumps(
        {"nodes": nodes, "arg_nodes": places, "heads": [[place[i], which] for i, which, _ in graph["heads"]]}
    )
