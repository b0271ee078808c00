"""Packs an image with CUDA for a machine that has a GPU and no Docker, with the GPU code of one architecture.

    python tools/pack_image.py mxscale:source FOLDER --arch 90

Requires root (files keep their owners), Docker, xz and 6 GB of memory. FOLDER/root is the image's root file system
without what a run does not need; FOLDER/parts has it compressed, in files of at most --part MiB, with their SHA-256.

Libraries of CUDA have each kernel for ten architectures. Each of their fat binaries keeps the code that the driver of
one GPU takes, uncompressed where it fits in the place of the others: xz halves it then.
"""

import argparse
import ctypes
import fnmatch
import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Iterator, List, NamedTuple, Sequence, Tuple

FILES = [  # of the root file system, which no run opens
    "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/proj/*", "usr/include/*", "usr/lib/gcc/*",
    "usr/lib/cuda/*", "var/cache/*", "var/lib/apt/*", "var/lib/dpkg/*", "*/__pycache__/*", "*.a",
    "*/libcudnn_adv_*", "*/libnvblas*", "*/libcufftw*", "*/libnvjpeg*", "*/libnpp*", "*/libcusparse*",
    "*/dri/*_dri.so", "*/libLLVM-*", "*/libz3.so*",  # of Mesa, which OpenCV's windows would need
]  # fmt: skip
PACKAGES = [  # which a run with tracking=none does not import
    "mlflow", "mlflow_skinny", "pandas", "sympy", "mpmath", "cryptography", "databricks", "opentelemetry", "google",
    "git", "gitdb", "hf_xet", "huggingface_hub", "onnx", "onnxruntime", "ml_dtypes", "pip", "pytz", "tzdata",
]  # fmt: skip
UNUSED = ("*/libcufft.so*", "*/libcusolver.so*")  # MXNet is linked to them and trains no network with them
STRIPPED = ("*/libmxnet.so", "*/mpi_lib*.so")
# Libraries have kernels in common: the window covers several of them. Takes 6 GB of memory
XZ = ("xz", "-T1", "--x86", "--lzma2=preset=9,dict=512MiB")

MAGIC = 0xBA55ED50
CONTAINER = struct.Struct("<IHHQ")  # a fat binary: MAGIC, version, bytes of this header, bytes of its entries
# an entry: kind, version, bytes of this header, of the payload, of its compressed part, architecture, flags, bytes of
# the payload when uncompressed
ENTRY = struct.Struct("<HHIQI8xI8xQ8xQ")
PAYLOAD_AT, PACKED_AT, FLAGS_AT, SIZE_AT = 8, 16, 40, 56
PTX, CUBIN = 1, 2
NO_GPU = 0  # an architecture that no code is for
COMPRESSED = 0x2000  # by LZ4


class Entry(NamedTuple):
    """The code of one architecture."""

    header: bytes
    payload: bytes

    @property
    def kind(self) -> int:
        return ENTRY.unpack_from(self.header)[0]

    @property
    def arch(self) -> int:
        return ENTRY.unpack_from(self.header)[5]

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)

    def uncompressed(self) -> "Entry":
        """Return the entry as `nvcc --no-compress` writes it."""
        *_, packed, _, flags, size = ENTRY.unpack_from(self.header)
        if not flags & COMPRESSED:
            return self
        code = _lz4_decompressed(self.payload[:packed], size)
        code += bytes(-size % 8)
        header = bytearray(self.header)
        struct.pack_into("<Q", header, PAYLOAD_AT, len(code))
        struct.pack_into("<I", header, PACKED_AT, 0)
        struct.pack_into("<Q", header, FLAGS_AT, flags & ~COMPRESSED)
        struct.pack_into("<Q", header, SIZE_AT, 0)
        return Entry(bytes(header), code)


OF_KEPLER = Entry(ENTRY.pack(CUBIN, 257, ENTRY.size, 8, 0, 35, 0x11, 0), bytes(8))  # which runs none of this


def _lz4_decompressed(packed: bytes, size: int) -> bytes:
    code = ctypes.create_string_buffer(size)
    if ctypes.CDLL("liblz4.so.1").LZ4_decompress_safe(packed, code, len(packed), size) != size:
        raise ValueError("the code of a fat binary is damaged")
    return code.raw


def fat_binaries(data) -> Iterator[Tuple[int, List[Entry]]]:
    """Yield the offset of each fat binary in the bytes of a library, and its entries."""
    magic = struct.pack("<I", MAGIC)
    at = data.find(magic)
    while at >= 0:
        entries = _entries(data, at)
        if entries:
            yield at, entries
        at = data.find(magic, at + size_of(entries))


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes of a fat binary of these entries."""
    return CONTAINER.size + sum(entry.size for entry in entries)


def _entries(data, at: int) -> List[Entry]:
    """Return the entries of the fat binary at an offset; none: other data that begins alike."""
    if at + CONTAINER.size > len(data):
        return []
    _, version, head, size = CONTAINER.unpack_from(data, at)
    begin, end = at + head, at + head + size
    if (version, head) != (1, CONTAINER.size) or end > len(data):
        return []
    entries = []
    while begin + ENTRY.size <= end:
        kind, _, head, size, *_ = ENTRY.unpack_from(data, begin)
        if kind not in (PTX, CUBIN) or head < ENTRY.size or begin + head + size > end:
            return []
        entries.append(Entry(data[begin : begin + head], data[begin + head : begin + head + size]))
        begin += head + size
    return entries if begin == end else []


def taken(entries: Sequence[Entry], arch: int) -> List[Entry]:
    """Return the entries that the driver of a GPU takes: code of its major version, else PTX, the newest of each.

    Without any, one of another GPU stays: the driver then finds no code for its own, as in many libraries.
    """
    code = [entry for entry in entries if entry.kind == CUBIN and arch // 10 * 10 <= entry.arch <= arch]
    usable = code or [entry for entry in entries if entry.kind == PTX and entry.arch <= arch]
    newest = max((entry.arch for entry in usable), default=None)
    return [entry for entry in usable if entry.arch == newest] or [OF_KEPLER]


def repacked(entries: Sequence[Entry], size: int) -> bytes:
    """Return a fat binary of the entries in `size` bytes: the largest ones uncompressed, as far as they fit."""
    entries = list(entries)
    left = size - size_of(entries)
    for number in sorted(range(len(entries)), key=lambda number: -len(entries[number].payload)):
        larger = entries[number].uncompressed()
        growth = larger.size - entries[number].size
        if growth <= left:
            entries[number], left = larger, left - growth
    body = b"".join(part for entry in entries for part in entry)
    return (CONTAINER.pack(MAGIC, 1, CONTAINER.size, len(body)) + body).ljust(size, b"\0")


def prune(path: Path, arch: int) -> None:
    """Leave in each fat binary of a library what the driver of one architecture takes; its size stays."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for at, entries in list(fat_binaries(data)):
            size = size_of(entries)
            data[at : at + size] = repacked(taken(entries, arch), size)


def export(image: str, root: Path) -> None:
    """Write the root file system of an image."""
    container = subprocess.check_output(["docker", "create", image], text=True).strip()
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as tar:
            subprocess.run(["tar", "x", "-C", root], stdin=tar.stdout, check=True)
    finally:
        subprocess.run(["docker", "rm", container], check=True, stdout=subprocess.DEVNULL)


def lighten(root: Path, arch: int) -> None:
    """Remove what no run needs, symbols of the large libraries and GPU code of other architectures."""
    for package in PACKAGES:
        for path in root.glob(f"opt/venv/lib/python3*/site-packages/{package}"):
            shutil.rmtree(path)
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        name = str(path.relative_to(root))
        if _matches(name, FILES):
            path.unlink()
        elif ".so" in path.name:
            if _matches(name, STRIPPED):
                subprocess.run(["strip", "--strip-unneeded", path], check=True)
            if path.stat().st_size:
                prune(path, NO_GPU if _matches(name, UNUSED) else arch)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def pack(root: Path, parts: Path, part_mib: int) -> None:
    """Write the compressed files of a root file system, in parts, with SHA256SUMS."""
    tar = subprocess.Popen(["tar", "c", "-C", root, "."], stdout=subprocess.PIPE)
    xz = subprocess.Popen(XZ, stdin=tar.stdout, stdout=subprocess.PIPE)
    split = ["split", "-d", "-a", "2", "-b", f"{part_mib}M", "-", f"{parts}/"]
    subprocess.run(split, stdin=xz.stdout, check=True)
    if tar.wait() or xz.wait():
        raise OSError("tar or xz failed")
    names = sorted(os.listdir(parts))
    (parts / "SHA256SUMS").write_text(subprocess.check_output(["sha256sum", *names], cwd=parts, text=True))
    print(f"{len(names)} parts, {sum((parts / name).stat().st_size for name in names) / 2**20:.0f} MiB, in {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image")
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--arch", type=int, default=90, help="compute capability times ten (90)")
    parser.add_argument("--part", type=int, default=56, help="most MiB of a part (56)")
    options = parser.parse_args()
    if missing := [program for program in ("docker", "strip", "xz") if not shutil.which(program)]:
        parser.error(f"not found: {', '.join(missing)}; install it")
    if os.geteuid():
        parser.error("run it as root: the files keep their owners")
    if options.folder.exists():
        parser.error(f"{options.folder} exists; name a new folder")
    root, parts = options.folder / "root", options.folder / "parts"
    root.mkdir(parents=True)
    parts.mkdir()
    try:
        export(options.image, root)
        lighten(root, options.arch)
        pack(root, parts, options.part)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"pack_image: {error}") from None


if __name__ == "__main__":
    main()
