"""Reading of .safetensors and .pth files without PyTorch and without executing code from the file.

A .pth file is a pickle, and unpickling calls the functions that the pickle names. Only ordered dictionaries and the
tensors of a PyTorch `state_dict` are allowed here (ALLOWED); any other name is an error.
"""

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from typing import Dict, NamedTuple

import numpy as np
import safetensors.numpy

from mxscale.models.weights import MAX_BYTES
from mxscale.util.errors import ConfigError, short
from mxscale.util.regular_files import read_regular
from mxscale.util.restricted_pickle import Refused, RestrictedUnpickler, handlers

BFLOAT16 = "<u2"  # the upper half of a float32, which NumPy lacks; PyTorch writes no other type of 16 bits unsigned
# torch/storage.py, `_dtype_to_storage_type_map`
STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": BFLOAT16,
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1",
    "BoolStorage": "?",
}  # fmt: skip
NESTED = ("state_dict", "model")  # keys under which training scripts store a state dict
MAX_AXES, MAX_SIZE = 32, 2**48  # of a tensor


def read(path: str, source: str) -> Dict[str, np.ndarray]:
    """Return the tensors of a file by name, bfloat16 as float32. Raises ConfigError, which names `source`."""
    try:
        content = read_regular(path, MAX_BYTES)
        # By content: 8 bytes with the length of the header, which is JSON
        named = str(path).endswith(".safetensors")
        return _safetensors(content) if named or content[8:9] == b"{" else _pickled(content)
    except OSError as error:
        raise ConfigError(f"model.pretrained={source}: {error.strerror or error}") from None
    except Refused as error:
        raise ConfigError(f"model.pretrained={source}: {error}") from None


def metadata_of(path: str) -> Dict[str, str]:
    """Return the metadata of a .safetensors file; {} of another file."""
    try:
        with safetensors.safe_open(path, "np") as file:
            return file.metadata() or {}
    except safetensors.SafetensorError:
        return {}


def _safetensors(content: bytes) -> Dict[str, np.ndarray]:
    try:
        tensors = safetensors.numpy.load(content)  # checks every offset and size against the file
    except KeyError as error:
        raise Refused(f"has tensors of type {error}, which NumPy lacks: save them as float32") from None
    except (safetensors.SafetensorError, ValueError) as error:
        raise Refused(f"is not a complete safetensors file (truncated or corrupt: {short(error)})") from None
    if not all(tensor.size for tensor in tensors.values()):  # its other axes could have any size
        raise Refused("is corrupt: a tensor has no values")
    return tensors


# ---------------------------------------------------------------- .pth


def _pickled(content: bytes) -> Dict[str, np.ndarray]:
    try:
        saved, storages = _zip(content) if content.startswith(b"PK") else _legacy(content)
        return {name: view.array(storages) for name, view in _state_dict(saved).items()}
    except Refused:
        raise
    except Exception as error:  # the unpickler and zipfile raise many types for damaged files
        what = f"{type(error).__name__}: {short(error)}"
        raise Refused(f"is not a complete PyTorch file (truncated or corrupt: {what})") from None


def _state_dict(saved) -> Dict[str, "_View"]:
    for key in NESTED:
        if isinstance(saved, dict) and isinstance(saved.get(key), dict):
            saved = saved[key]
            break
    items = saved.items() if isinstance(saved, dict) else ()
    odd = [name for name, value in items if not isinstance(name, str) or not isinstance(value, _View)]
    if odd or not items:
        what = f"{short(odd[0])} is not a tensor" if odd else "it is empty"
        raise Refused(f"holds no state dict ({what}): write it with torch.save(model.state_dict(), FILE)")
    return saved


class _Storage(NamedTuple):
    """A one-dimensional array that tensors are views of, by its key in the file."""

    key: str
    kind: str
    size: int


class _View(NamedTuple):
    """A tensor as the pickle describes it; offset and strides are in elements."""

    storage: _Storage
    offset: int
    shape: tuple
    strides: tuple

    def array(self, storages: Dict[str, bytes]) -> np.ndarray:
        key, kind, size = self.storage
        dtype = np.dtype(kind)
        numbers = (self.offset, size, *self.shape, *self.strides)
        are_counts = all(type(n) is int and 0 <= n < MAX_SIZE for n in numbers)
        if len(self.shape) > MAX_AXES or len(self.shape) != len(self.strides) or not are_counts:
            raise Refused(f"is corrupt: a tensor of shape {self.shape}, strides {self.strides}")
        data = storages.get(key, b"")
        if len(data) != size * dtype.itemsize:
            raise Refused(f"is truncated or corrupt: storage {key} has {len(data)} bytes of {size} {dtype}")
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, "<f4" if kind == BFLOAT16 else dtype)
        last = self.offset + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        # A stride of 0 would create a tensor of any size from one number.
        if last >= size or math.prod(self.shape) > size:
            raise Refused(f"is corrupt: a tensor of shape {self.shape} exceeds its {size} numbers")
        elements = np.frombuffer(data, dtype)[self.offset :]
        strides = [stride * dtype.itemsize for stride in self.strides]
        view = np.lib.stride_tricks.as_strided(elements, self.shape, strides, writeable=False)
        # Not <<, which makes an int64 of an array without axes
        return np.left_shift(view, 16, dtype="<u4", order="C").view("<f4") if kind == BFLOAT16 else view


def _rebuild_tensor(storage, offset, shape, strides, *_) -> _View:  # what follows: gradients, hooks
    return _View(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor, *_):
    return tensor


ALLOWED = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    **{("torch", storage): kind for storage, kind in STORAGES.items()},
}


class _Unpickler(RestrictedUnpickler):
    """The unpickler of what torch.save writes."""

    allowed = ALLOWED
    unknown = (
        "which is not part of a state dict and is not executed: "
        "write it again with torch.save(model.state_dict(), FILE)"
    )
    dispatch = {**RestrictedUnpickler.dispatch, **handlers("BINPERSID")}

    def __init__(self, file):
        super().__init__(file, encoding="utf-8")  # of strings that Python 2 wrote
        self.item_sizes = {}  # of the storages, by key; the old format stores only the number of items

    def persistent_load(self, saved) -> _Storage:
        category, kind, key, _, size = saved[:5]  # the fourth is the device
        if category != "storage" or kind not in STORAGES.values():
            raise Refused("is corrupt: an unknown storage")
        if saved[5:] and saved[5] is not None:
            raise Refused("has a storage that is part of another: save it again with a newer PyTorch")
        self.item_sizes[str(key)] = np.dtype(kind).itemsize
        return _Storage(str(key), kind, size)

    def build(self, target, state) -> None:
        """Drop attributes of ordered dictionaries (`_metadata`)."""
        if type(target) is not OrderedDict:
            super().build(target, state)


def _zip(content: bytes):
    """Read the format of PyTorch 1.6 and later: a zip archive of `NAME/data.pkl` and `NAME/data/KEY`, uncompressed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("is a zip archive without data.pkl, not written by torch.save")
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise Refused("is a compressed archive, not written by torch.save")
        root = pickles[0].partition("/")[0]
        if f"{root}/byteorder" in names and archive.read(f"{root}/byteorder") != b"little":
            raise Refused("was written on a big-endian machine")
        saved = _Unpickler(io.BytesIO(archive.read(pickles[0]))).load()
        folder = f"{root}/data/"
        storages = {name[len(folder) :]: archive.read(name) for name in names if name.startswith(folder)}
    return saved, storages


MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py, MAGIC_NUMBER
PROTOCOL = 1001


def _legacy(content: bytes):
    """Read the format before PyTorch 1.6: five consecutive pickles, then the storages in the order of the fifth."""
    file = io.BytesIO(content)
    magic = _Unpickler(file).load() if content[:1] == pickle.PROTO else None
    if magic != MAGIC or _Unpickler(file).load() != PROTOCOL:
        raise Refused("is not a PyTorch file: neither a zip archive nor the format before PyTorch 1.6")
    if not _Unpickler(file).load().get("little_endian"):
        raise Refused("was written on a big-endian machine")
    unpickler = _Unpickler(file)
    saved = unpickler.load()
    storages = {}
    for key in _Unpickler(file).load():
        (size,) = struct.unpack("<q", file.read(8))
        storages[key] = file.read(max(0, size) * unpickler.item_sizes[key])
    return saved, storages
