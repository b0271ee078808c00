"""A network's weights by structural name: digest, file format, and loading into a network."""

import hashlib
import math
import struct
from typing import Collection, Dict, Iterator, List

import mxnet as mx
import numpy as np

from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

MAX_BYTES = 2 << 30  # of a file of weights; a VGG-19, the largest network of the zoo, has 0.57 GB
MAX_NAMES = 3  # names that a message lists before "and 4 more"


def parameters(net) -> Dict[str, mx.gluon.Parameter]:
    """Return structural name -> parameter, including running statistics, sorted by name."""
    return dict(sorted(net._collect_params_with_prefix().items()))


def trained_in_forward_order(net) -> List[mx.gluon.Parameter]:
    """Return the parameters that have a gradient. Blocks register their children in the order of the forward pass."""
    return [p for p in net._collect_params_with_prefix().values() if p.grad_req != "null"]


def arrays(net) -> Dict[str, np.ndarray]:
    """Return structural name -> value, copied from the first device to the host, sorted by name."""
    return {name: p.list_data()[0].asnumpy() for name, p in parameters(net).items()}


def params_sha256(arrays: Dict[str, np.ndarray]) -> str:
    """Return the SHA-256 over the arrays in order of their names.

    Each array contributes `name\\0dtype\\0shape\\0` and its bytes, little-endian in C order. dtype is NumPy's name
    (`float32`); shape is its sizes joined by commas (`64,3,7,7`; empty for a scalar).
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name}\0{array.dtype.name}\0{','.join(map(str, array.shape))}\0".encode())
        digest.update(_little_endian(array))
    return digest.hexdigest()


def _little_endian(array: np.ndarray) -> np.ndarray:
    """Return the array in the byte order of files, in C order; without a copy if it is so."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def save(path, arrays: Dict[str, np.ndarray]) -> str:
    """Write MXNet's .params container, which `net.load_parameters` and `load` read. Equal arrays give equal bytes.

    MXNet's own writer does not report every error of a full disk. If writing fails, `path` is unchanged.

    Args:
        arrays: NDArrays or NumPy arrays by name.

    Returns:
        The SHA-256 of the file.

    Raises:
        OSError: A write failed.
    """
    digest = hashlib.sha256()
    try:
        with replacing(path) as new, open(new, "wb") as file:
            for part in _parts(dict(sorted(arrays.items()))):
                file.write(part)
                digest.update(part)
    except OSError as error:
        raise OSError(f"{path} could not be written: {error.strerror}") from None
    return digest.hexdigest()


def _on_host(array) -> np.ndarray:
    return array.asnumpy() if isinstance(array, mx.nd.NDArray) else array


def load(path, key: str = "model.pretrained", at_most: int = MAX_BYTES) -> Dict[str, mx.nd.NDArray]:
    """Return name without `arg:` and `aux:` -> array on the CPU, from MXNet's .params container of any version.

    Args:
        key: The setting that names the file, for messages.
        at_most: Bytes of the file.

    Raises:
        ConfigError: The file is missing, truncated or corrupt, or not a regular file.
    """
    try:
        arrays = _read(path, at_most)
    except OSError as error:
        raise ConfigError(f"{key}={path}: {error.strerror}") from None
    except ValueError as error:
        why = f"truncated or corrupt: {error}"
        raise ConfigError(f"{key}={path} is not an MXNet parameter file ({why})") from None
    return {name: mx.nd.array(array, ctx=mx.cpu(), dtype=array.dtype) for name, array in arrays.items()}


# The container, as MXNet's src/ndarray/ndarray.cc writes it. It is not read by mx.nd.load, which trusts every size in
# the file: a damaged file makes it allocate without bound or abort the process.

LIST_MAGIC = 0x112
MAGIC_V1, MAGIC_V2, MAGIC_V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA  # any other value: the number of axes, MXNet < 0.12
DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "u1", 4: "<i4", 5: "i1", 6: "<i8", 7: "?"}  # mshadow/base.h
MAX_AXES = 32
FLAGS = {np.dtype(dtype): flag for flag, dtype in DTYPES.items()}
CPU = (1, 0)  # the device of an array: kind and number


def _parts(arrays: Dict[str, np.ndarray]) -> Iterator[bytes]:
    """Yield the content of a container, one after the other."""
    yield struct.pack("<3Q", LIST_MAGIC, 0, len(arrays))
    for array in arrays.values():
        array = _little_endian(_on_host(array))
        dense, axes = 0, len(array.shape)
        yield struct.pack(f"<Iii{axes}q", MAGIC_V2, dense, axes, *array.shape)
        yield struct.pack("<3i", *CPU, FLAGS[array.dtype])
        yield array.data
    yield struct.pack("<Q", len(arrays))
    for name in map(str.encode, arrays):
        yield struct.pack("<Q", len(name)) + name


class _Cursor:
    """Reads little-endian values from a buffer, never past its end."""

    def __init__(self, buffer: bytes):
        self.buffer, self.at = buffer, 0

    def take(self, size: int) -> memoryview:
        if size > len(self.buffer) - self.at:
            raise ValueError("it ends too early")
        self.at += size
        return memoryview(self.buffer)[self.at - size : self.at]

    def numbers(self, letter: str, count: int = 1) -> tuple:
        layout = f"<{count}{letter}"
        return struct.unpack(layout, self.take(struct.calcsize(layout)))


def _read(path, at_most: int) -> Dict[str, np.ndarray]:
    cursor = _Cursor(read_regular(path, at_most))
    magic, _, count = cursor.numbers("Q", 3)
    if magic != LIST_MAGIC:
        raise ValueError("wrong magic number")
    values = [_array(cursor) for _ in range(count)]
    (named,) = cursor.numbers("Q")
    if named != count:
        raise ValueError(f"{count} arrays with {named} names")
    names = [_name(cursor) for _ in range(named)]
    if cursor.at != len(cursor.buffer):
        raise ValueError("data after its end")
    if len(set(names)) != len(names):
        raise ValueError("two arrays have the same name")
    if not names:
        raise ValueError("it has no arrays")
    return dict(zip(names, values, strict=True))


def array_of(content: bytes) -> np.ndarray:
    """Return the one array that `content` holds as in the container. Raises ValueError."""
    cursor = _Cursor(content)
    array = _array(cursor)
    if cursor.at != len(content):
        raise ValueError("data after its end")
    return array


def _array(cursor: _Cursor) -> np.ndarray:
    shape = _shape(cursor)
    if min(shape) < 1:  # with a 0 the others could have any value
        raise ValueError(f"an array's shape is {shape}")
    cursor.numbers("i", 2)  # the device
    (flag,) = cursor.numbers("i")
    if flag not in DTYPES:
        raise ValueError(f"an array's type is {flag}")
    dtype = np.dtype(DTYPES[flag])
    return np.frombuffer(cursor.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _shape(cursor: _Cursor) -> tuple:
    (magic,) = cursor.numbers("I")
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_V3):
        return cursor.numbers("I", _axes(magic))
    if magic != MAGIC_V1:
        (storage,) = cursor.numbers("i")
        if storage != 0:
            raise ValueError("an array is not dense")
    (axes,) = cursor.numbers("i")
    return cursor.numbers("q", _axes(axes))


def _axes(number: int) -> int:
    if not 0 < number <= MAX_AXES:
        raise ValueError(f"an array has {number} axes")
    return number


def _name(cursor: _Cursor) -> str:
    (length,) = cursor.numbers("Q")
    try:
        name = bytes(cursor.take(length)).decode()
    except UnicodeDecodeError:
        raise ValueError("a name is not text") from None
    return name[4:] if name.startswith(("arg:", "aux:")) else name


def fit(net, arrays: dict, source: str, head: str) -> None:
    """Load the arrays into a finished network, either all of them or none. Types are cast to the network's.

    Args:
        arrays: NDArrays or NumPy arrays by name.
        source: model.pretrained, for messages.
        head: "replace" ignores the arrays of the output layer; with "keep" they must fit as well.

    Raises:
        ConfigError: Names or shapes differ, or values are not finite; the message names the arrays.
    """
    if not any("." in name for name in arrays):  # Gluon before 1.2 wrote names such as conv0_weight
        structural = {p.name[len(net.prefix) :]: name for name, p in parameters(net).items()}
        arrays = {structural.get(name, name): array for name, array in arrays.items()}
    skip = "output." if head == "replace" else "\0"
    expected = {n: p for n, p in parameters(net).items() if not n.startswith(skip)}
    arrays = {n: a for n, a in arrays.items() if not n.startswith(skip)}
    problems = _problems(expected, arrays)
    if problems:
        name = getattr(net, "zoo_name", type(net).__name__)
        raise ConfigError(f"model.pretrained={source} does not fit {name}: {problems}")
    for name, parameter in expected.items():
        parameter.set_data(arrays[name].astype(parameter.dtype))


def differences(expected: Collection[str], names: Collection[str]) -> str:
    """Return the missing and the unexpected names as text; empty if both sets are equal."""
    missing, unexpected = [n for n in expected if n not in names], [n for n in sorted(names) if n not in expected]
    return _listed({"missing": missing, "unexpected": unexpected})


def _problems(expected: dict, arrays: dict) -> str:
    common = [n for n in expected if n in arrays]
    sizes = {n: (arrays[n].shape, expected[n].shape) for n in common if arrays[n].shape != expected[n].shape}
    shapes = [f"{n} {in_file} in the file, {in_network} in the network" for n, (in_file, in_network) in sizes.items()]
    values = [n for n in common if not np.isfinite(_on_host(arrays[n])).all()]
    details = _listed({"shapes differ:": shapes, "not a number or infinite:": values})
    return "; ".join(filter(None, (differences(expected, arrays), details)))


def _listed(problems: Dict[str, List[str]]) -> str:
    return "; ".join(f"{problem} {first_of(items)}" for problem, items in problems.items() if items)


def first_of(items: list) -> str:
    """Return the first items of a list and the number of the others as text."""
    more = len(items) - MAX_NAMES
    return ", ".join(items[:MAX_NAMES]) + (f" (and {more} more)" if more > 0 else "")
