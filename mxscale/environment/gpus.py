"""GPUs as the driver names them, and the architectures that a library has code for. Needs neither MXNet nor CUDA."""

import ctypes
import mmap
import struct
from typing import Optional

CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute, in cuda.h
NO_DEVICE = 100  # CUresult, in cuda.h
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")  # the second: device code that was linked
FATBIN = struct.pack("<IH", 0xBA55ED50, 1)  # magic, version: as nvcc writes them
KINDS = {1: "ptx", 2: "cubin"}


def driver() -> dict:
    """Return the driver's GPUs; {} without a driver.

    For example {'cuda': '12.4', 'gpus': [{'name': 'Tesla V100-SXM2-16GB', 'capability': '7.0'}]}.

    `cuda` is the newest CUDA version that the driver supports. `error` is added if the driver does not start.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    facts = {"cuda": cuda_version(number.value), "gpus": []}
    status = cuda.cuInit(0)
    if status:
        return facts if status == NO_DEVICE else {**facts, "error": f"cuInit answered {status}"}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    facts["gpus"] = [_gpu(cuda, device) for device in range(number.value)]
    return facts


def _gpu(cuda, device: int) -> dict:
    name, number = ctypes.create_string_buffer(128), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(str(number.value))
    return {"name": name.value.decode(errors="replace"), "capability": ".".join(capability)}


def cuda_version(number: int) -> Optional[str]:
    """Return 11.2 for 11020."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def library_version(number: int) -> Optional[str]:
    """Return cuDNN's or NCCL's version: 8.1.1 for 8101 and, since cuDNN 9 and NCCL 2.9, 2.12.5 for 21205."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}" if number else None


def architectures(library: str) -> Optional[dict]:
    """Return the architectures of an ELF library's GPU code; None if it has none.

    For example {'cubin': ['7.0', '8.0'], 'ptx': ['8.0']}. Only the headers that nvcc writes before each piece of code
    are read, the ones that `cuobjdump --list-elf --list-ptx` prints.
    """
    numbers_of = {kind: set() for kind in KINDS.values()}
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            for start, end in _sections(data):
                for kind, architecture in _pieces(data, start, end):
                    numbers_of[kind].add(architecture)
        except (struct.error, IndexError):  # a truncated file
            return None
    if not any(numbers_of.values()):
        return None
    return {kind: [f"{code // 10}.{code % 10}" for code in sorted(numbers)] for kind, numbers in numbers_of.items()}


def _sections(data):
    """Yield (start, end) of the sections with device code in a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        return
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<II8x8xQQ", data, table + size * i) for i in range(count)]
    names = headers[names_index][2] if headers else 0
    for name, _, offset, length in headers:
        text = data[names + name : names + name + 32].partition(b"\0")[0]
        if text in SECTIONS:
            yield offset, offset + length


def _pieces(data, start: int, end: int):
    """Yield (kind, architecture such as 70) of each piece of code.

    A container is a header of 16 bytes (magic, version, its size, the size of the content), then pieces. Each piece has
    a header: kind, its size at byte 4, the code's size at 8, the architecture at 28.
    """
    container = data.find(FATBIN, start, end)
    while container >= 0:
        header, length = struct.unpack_from("<HQ", data, container + 6)
        piece, stop = container + header, min(container + header + length, end)
        while piece + 32 <= stop:
            kind, header, code, architecture = struct.unpack_from("<HxxIQ12xI", data, piece)
            if kind in KINDS:
                yield KINDS[kind], architecture
            if header + code <= 0:
                break
            piece += header + code
        container = data.find(FATBIN, max(piece, container + 16), end)
