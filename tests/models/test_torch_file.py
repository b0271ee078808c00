"""Files of tensors read without PyTorch; make_reference.py wrote tests/fixtures/reference/kinds*.pth with PyTorch."""

import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
from repository import ROOT
from safetensors.numpy import save_file

from mxscale.models import torch_file
from mxscale.util.errors import ConfigError

REFERENCE = ROOT / "tests" / "fixtures" / "reference"
KINDS = json.loads((REFERENCE / "kinds.json").read_text())
FILES = ["kinds.pth", "kinds_legacy.pth", "kinds_protocol4.pth", "kinds_nested.pth"]


def refused(path, match):
    with pytest.raises(ConfigError, match=match) as error:
        torch_file.read(str(path), "torch:x")
    assert str(error.value).startswith("model.pretrained=torch:x") and "\n" not in str(error.value)


@pytest.mark.parametrize("name", FILES)
def test_all_tensor_types_of_pytorch_are_read(name):
    found = torch_file.read(str(REFERENCE / name), "x")
    assert list(found) == list(KINDS)
    for kind, values in KINDS.items():
        assert found[kind].astype("float32").tolist() == values
    assert found["empty"].shape == (0, 3)
    floating = {n for n, array in found.items() if array.dtype.kind == "f"}
    assert set(KINDS) - floating == {"int64", "uint8", "bool"}


def test_all_tensor_types_of_safetensors_are_read(tmp_path):
    arrays = {k: np.array([1.5, -2.0]).astype(k) for k in ("float64", "float32", "float16", "int64", "uint8", "bool")}
    save_file(arrays, tmp_path / "w.safetensors")
    found = torch_file.read(str(tmp_path / "w.safetensors"), "x")
    assert {n: a.tolist() for n, a in found.items()} == {n: a.tolist() for n, a in arrays.items()}


def test_unsupported_safetensors_types_are_named(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
    refused(tmp_path / "w", "tensors of type 'F8_E4M3', which NumPy lacks: save them as float32")


@pytest.mark.parametrize("shape", [(2**62, 0, 2**62), (2**40, 0, 2**40), (0, 2**50), (1,) * 40])
def test_overflowing_safetensors_shapes_are_refused(tmp_path, shape):
    data = [0, 4] if 0 not in shape else [0, 0]
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": data}}).encode()
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(header)) + header + bytes(data[1]))
    refused(tmp_path / "w", "corrupt")


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_other_kinds_of_files_are_refused_at_once(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refused(tmp_path / name, "a FIFO, not a regular file")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    refused(tmp_path / name, "a device, not a regular file")
    (tmp_path / name).unlink()
    with open(tmp_path / name, "wb") as sparse:
        sparse.truncate(20 << 30)
    refused(tmp_path / name, "21.5 GB, expected at most 2.1 GB")


def test_a_missing_file_and_a_folder_are_one_line(tmp_path):
    refused(tmp_path / "no", "No such file or directory$")
    refused(tmp_path, "a folder, not a regular file$")


@pytest.mark.parametrize("name", [*FILES, "w.safetensors"])
def test_a_file_cut_at_any_byte_is_refused(tmp_path, name):
    if name == "w.safetensors":
        save_file({"a": np.ones(3, "f4"), "b": np.ones((2, 2), "f2")}, tmp_path / "complete")
        complete = (tmp_path / "complete").read_bytes()
    else:
        complete = (REFERENCE / name).read_bytes()
    step = 1 if len(complete) < 1000 else 7
    for length in range(0, len(complete), step):
        (tmp_path / name).write_bytes(complete[:length])
        refused(tmp_path / name, "truncated or corrupt|not a PyTorch file|refers to")  # a name cut short


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_never_crash(tmp_path, name):
    complete, draw, outcomes = (REFERENCE / name).read_bytes(), np.random.RandomState(0), set()
    for _ in range(600):
        damaged = bytearray(complete)
        for at in draw.randint(len(complete), size=draw.randint(1, 4)):
            damaged[at] = draw.randint(256)
        (tmp_path / "w").write_bytes(damaged)
        try:
            for array in torch_file.read(str(tmp_path / "w"), "x").values():
                array.astype("float32")
            outcomes.add("read")
        except ConfigError:
            outcomes.add("refused")
    assert "refused" in outcomes


@pytest.mark.parametrize("content", [b"", b"text, not weights\n" * 20, b"\0" * 500, b"\xff" * 500, b"PK\3\4" * 50])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "w.pth").write_bytes(content)
    refused(tmp_path / "w.pth", "is no")
    (tmp_path / "w.safetensors").write_bytes(content)
    refused(tmp_path / "w.safetensors", "is not a complete safetensors file")


def test_other_archives_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.pth", "w") as archive:
        archive.writestr("photo.jpg", b"x")
    refused(tmp_path / "w.pth", "without data.pkl")
    repack(tmp_path / "z.pth", lambda name, data: data, zipfile.ZIP_DEFLATED)
    refused(tmp_path / "z.pth", "compressed archive")


def repack(path, change, how=zipfile.ZIP_STORED):
    """Write a copy of kinds.pth, each member changed by `change(name, data)`."""
    with zipfile.ZipFile(REFERENCE / "kinds.pth") as old, zipfile.ZipFile(path, "w", how) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))


def with_pickle(path, content):
    repack(path, lambda name, data: content if name.endswith("/data.pkl") else data)
    return path


@pytest.mark.parametrize(
    "content, named",
    [
        (b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.", "posix.system"),
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", "builtins.eval"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", "os.system"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "torch._utils._rebuild_tensor_v2.__globals__"),
        (b"\x80\x02ccollections\nOrderedDict.fromkeys\n.", "collections.OrderedDict.fromkeys"),
    ],
)
def test_disallowed_names_are_refused(tmp_path, content, named):
    refused(with_pickle(tmp_path / "w.pth", content), f"refers to {named}, .*is not executed")


def test_code_in_a_pickle_is_not_executed(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    refused(with_pickle(tmp_path / "w.pth", pickle.dumps({"w": Harm()}, protocol=2)), "refers to posix.mkdir")
    assert not (tmp_path / "made").exists()


def test_a_pickled_module_is_refused_with_advice():
    refused(REFERENCE / "module.pth", r"refers to torch.nn.modules.linear.Linear.*torch.save\(model.state_dict\(\)")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02ccollections\nOrderedDict\n}b.",  # attributes of the class itself
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",  # a new object
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",  # a byte array of a terabyte
        b"\x80\x02}r" + struct.pack("<I", 0xFFFFFFFF) + b".",  # a place far out in the memo
        b"\x80\x02" + b"(" * 100000 + b".",
        b"\x80\x02J" + struct.pack("<i", 3) + b"K\x01R.",  # a number is called
        b"\x80\x02K\x01.",
        b"\x80\x02}.",
        b"\x80\x02}X\x01\x00\x00\x00wK\x01s.",
    ],
)
def test_other_pickles_are_one_line(tmp_path, content):
    refused(with_pickle(tmp_path / "w.pth", content), "truncated or corrupt|is corrupt|holds no state dict")


def opcodes(value) -> bytes:
    """Return the pickle of a value without its start and end."""
    return pickle.dumps(value, 2)[2:-1]


def view(offset, shape, strides, size=24):
    """Return the pickle of a state dict with one view of a storage of 24 numbers."""
    kind = b"ctorch\nFloatStorage\n"
    storage = b"(" + opcodes("storage") + kind + opcodes("8") + opcodes("cpu") + opcodes(size) + b"tQ"
    numbers = opcodes(offset) + opcodes(shape) + opcodes(strides) + opcodes(False) + opcodes({})
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + numbers + b"tR"
    return b"\x80\x02}" + opcodes("w") + tensor + b"s."


def test_strided_views_are_read(tmp_path):
    path = with_pickle(tmp_path / "w.pth", view(1, (2, 3), (1, 4)))
    assert torch_file.read(str(path), "x")["w"].tolist() == [[1, 5, 9], [2, 6, 10]]


@pytest.mark.parametrize(
    "offset, shape, strides, size",
    [
        (0, (25,), (1,), 24),  # past the end
        (20, (2, 3), (3, 1), 24),
        (-1, (2,), (1,), 24),
        (8, (2,), (-1,), 24),
        (0, (1 << 40,), (0,), 24),  # a terabyte out of one number
        (0, (2, 3), (1,), 24),
        (0, (1,) * 40, (1,) * 40, 24),
        (0, (2.0,), (1,), 24),
        (0, (24,), (1,), 48),  # more than the file has
        (0, (24,), (1,), 1 << 60),
    ],
)
def test_views_beyond_their_storage_are_refused(tmp_path, offset, shape, strides, size):
    refused(with_pickle(tmp_path / "w.pth", view(offset, shape, strides, size)), "corrupt")


def test_only_ordered_dictionaries_are_built():
    allowed = {name: thing for name, thing in torch_file.ALLOWED.items() if callable(thing)}
    assert allowed.pop(("collections", "OrderedDict")) is OrderedDict
    assert {module for module, _ in allowed} == {"torch._utils"}
    assert all(thing.__module__ == "mxscale.models.torch_file" for thing in allowed.values())
