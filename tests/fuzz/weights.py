"""Files of weights: .params, safetensors, PyTorch's zip archives, symbol networks. Valid ones are read as written."""

import json
import pickle
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from .case import DONE, REFUSED, Case, choice
from .damage import BYTES, EXTREME, NODES, canary, damaged_bytes, damaged_value, place

FORMS = ("params", "safetensors", "torch", "symbol")
DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int8")
NAMES = ("features.0.weight", "output.weight", "arg:a", "", "x\x1b[31m", "é", "a" * 300, "conv0_weight", "b")


def make(draw, folder: Path, command: bool) -> Case:
    import mxnet as mx

    form = choice(draw, FORMS)
    damage = choice(draw, ("nothing", "nothing", "header", "canary", *BYTES, *NODES))
    given = folder / "input" / "image.png"
    Image.fromarray(draw.integers(0, 256, (32, 32, 3), "uint8")).save(given)
    if form == "symbol":
        path, source = symbol(draw, folder / "input" / "net", damage == "header")
        arrays, name = None, "symbol"
    else:
        path, arrays = folder / "input" / f"weights.{form}", random_arrays(draw)
        {"params": _params, "safetensors": _safetensors, "torch": _torch}[form](draw, path, arrays, damage == "header")
        source = f"torch:{path}" if form != "params" else str(path)
        name = "resnet18_v1b" if form != "params" else "small"
        mx.nd.waitall()
    if damage in BYTES:
        path.write_bytes(damaged_bytes(draw, path.read_bytes(), damage))
    elif damage in NODES:
        place(path, damage)
    elif damage == "canary":
        canary(draw, path)
    argv = [
        "predict",
        f"model={name}",
        f"source='{source}'",
        f"images=[{given}]",
        f"output={folder}/runs/scores.csv",
    ]
    expect = REFUSED if damage in ("cut", *NODES) or (command and form != "symbol") else None
    if damage == "nothing" and (form == "symbol" or not command):
        expect = DONE
    if form == "symbol" and name == "symbol":
        argv[1:2] = ["model.name=symbol", "data.image_size=32"]  # its graph does not tell
    read = None if form == "symbol" else partial(_read, folder, form, path)
    verify = partial(_equal, folder, arrays) if damage == "nothing" and not command and arrays else lambda: None
    return Case(f"{form}, {damage}", argv, (str(folder / "input"),), read, expect, verify)


def random_arrays(draw) -> dict:
    """Return name -> array of random type, axes and sizes."""
    names = dict.fromkeys(choice(draw, NAMES) for _ in range(int(draw.integers(1, 6))))
    shapes = [tuple(int(n) for n in draw.integers(1, 6, size=int(draw.integers(1, 5)))) for _ in names]
    return {name: (draw.standard_normal(shape) * 50).astype(choice(draw, DTYPES)) for name, shape in zip(names, shapes)}


def _params(draw, path: Path, arrays: dict, header: bool) -> None:
    import mxnet as mx

    mx.nd.save(str(path), {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()})
    if header:  # the shape of the first array: after the list's header, magic number, storage type and axes
        content, at = bytearray(path.read_bytes()), 24 + 12
        size = int(choice(draw, EXTREME[1:7])).to_bytes(8, "little", signed=True)
        content[at : at + 8] = size
        path.write_bytes(bytes(content))


def _safetensors(draw, path: Path, arrays: dict, header: bool) -> None:
    from safetensors.numpy import save

    content = save(arrays)
    if header:
        length = int.from_bytes(content[:8], "little")
        values, _ = damaged_value(draw, json.loads(content[8 : 8 + length]))
        text = json.dumps(values).encode()
        content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    path.write_bytes(content)


class _Storage:
    """Pickles as a storage of PyTorch's file format."""

    def __init__(self, kind: str, key: str, size):
        self.saved = ("storage", _Global(f"torch\n{kind}"), key, "cpu", size)


class _Global:
    def __init__(self, name: str):
        self.name = name


class _Pickler(pickle._Pickler):
    """Writes names of classes without the modules that define them."""

    def persistent_id(self, value):
        return value.saved if isinstance(value, _Storage) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, _Global):
            self.write(pickle.GLOBAL + value.name.encode() + b"\n")
        elif isinstance(value, _Tensor):
            self.save(_Global("torch._utils\n_rebuild_tensor_v2"))
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


class _Tensor:
    def __init__(self, *arguments):
        self.arguments = arguments


KINDS = {"float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage", "int64": "LongStorage",
         "int32": "IntStorage", "uint8": "ByteStorage", "int8": "CharStorage"}  # fmt: skip


def _torch(draw, path: Path, arrays: dict, header: bool) -> None:
    state, wrong = {}, int(draw.integers(len(arrays))) if header else None
    for number, (name, array) in enumerate(arrays.items()):
        strides = [stride // array.itemsize for stride in array.strides]
        facts = {"size": array.size, "offset": 0, "shape": list(array.shape), "strides": strides}
        if number == wrong:
            facts = {**facts, **damaged_value(draw, facts)[0]}
        storage = _Storage(KINDS[array.dtype.name], str(number), facts["size"])
        shape, strides = (
            tuple(each) if isinstance(each, list) else each for each in (facts["shape"], facts["strides"])
        )
        state[name] = _Tensor(storage, facts["offset"], shape, strides, False, None)
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("net/data.pkl", "w") as file:
            _Pickler(file, protocol=2).dump(state)
        for number, array in enumerate(arrays.values()):
            archive.writestr(f"net/data/{number}", array.tobytes())


def symbol(draw, prefix: Path, header: bool) -> tuple:
    """Write a symbol network; return the file to damage and model.pretrained. `header` damages a value of its graph."""
    import mxnet as mx

    body = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv0")
    body = mx.sym.Activation(mx.sym.BatchNorm(body, name="bn0", fix_gamma=False), act_type="relu", name="relu0")
    body = mx.sym.Pooling(body, kernel=(2, 2), pool_type="max", stride=(2, 2), name="pool0")
    network = mx.sym.FullyConnected(mx.sym.Flatten(body), num_hidden=3, name="fc1")
    shapes, _, states = network.infer_shape(data=(1, 3, 32, 32))
    sizes = dict(zip(network.list_arguments(), shapes), **dict(zip(network.list_auxiliary_states(), states)))
    kinds = dict.fromkeys(network.list_auxiliary_states(), "aux")
    arrays = {f"{kinds.get(n, 'arg')}:{n}": mx.nd.ones(size) for n, size in sizes.items() if n != "data"}
    mx.nd.save(f"{prefix}-0000.params", arrays)
    graph = json.loads(network.tojson())
    if header:
        graph = cyclic(draw, graph) if draw.random() < 0.15 else damaged_value(draw, graph)[0]
    text = Path(f"{prefix}-symbol.json")
    text.write_text(json.dumps(graph))
    path = text if header or draw.random() < 0.5 else Path(f"{prefix}-0000.params")
    return path, f"symbol:{prefix}"


def cyclic(draw, graph: dict) -> dict:
    """Return the graph with a node that is an input of its own, or of one of its inputs."""
    nodes = [node for node in graph["nodes"] if node["inputs"]]
    node = choice(draw, nodes)
    later = [n for n, each in enumerate(graph["nodes"]) if each["name"] >= node["name"] or each is node]
    choice(draw, node["inputs"])[0] = choice(draw, later)
    return graph


def _read(folder: Path, form: str, path: Path) -> None:
    """Read the file as the preparation does, and keep the arrays for `_equal`."""
    from mxscale.models import torch_file
    from mxscale.models import weights as params

    if form == "params":
        found = {name: array.asnumpy() for name, array in params.load(path).items()}
    else:
        found = torch_file.read(str(path), f"torch:{path}")
    with open(folder / "runs" / "read", "wb") as file:
        pickle.dump(found, file)


def _equal(folder: Path, arrays: dict) -> None:
    found = pickle.loads((folder / "runs" / "read").read_bytes())
    wanted = {name.removeprefix("arg:"): array for name, array in arrays.items()}
    found = {name.removeprefix("arg:"): array for name, array in found.items()}
    assert found.keys() == wanted.keys(), f"names {sorted(found)}, expected {sorted(wanted)}"
    for name, array in wanted.items():
        same = found[name].dtype == array.dtype and np.array_equal(found[name], array)
        assert same, f"{name}: {found[name].dtype} {found[name].shape}"
