"""tools/pack_image.py: of each fat binary of a library the code that one GPU takes stays, and the library's size."""

import ctypes
import random

import pytest

from tools import pack_image
from tools.pack_image import COMPRESSED, CUBIN, ENTRY, PTX, Entry

HEADER_BYTES = 64
CODE = {  # of which LZ4 leaves the half
    (kind, arch): 2 * bytes(random.Random(f"{kind} for {arch}").choices(range(256), k=200))
    for kind in (CUBIN, PTX)
    for arch in (35, 70, 75, 80, 90)
}


def compressed(kind, arch):
    """Return an entry as nvcc writes it by default: compressed by LZ4, filled up to eight bytes."""
    code = CODE[kind, arch]
    buffer = ctypes.create_string_buffer(len(code))
    packed = ctypes.CDLL("liblz4.so.1").LZ4_compress_default(code, buffer, len(code), len(buffer))
    payload = buffer.raw[:packed] + bytes(-packed % 8)
    return Entry(ENTRY.pack(kind, 257, HEADER_BYTES, len(payload), packed, arch, 0x11 | COMPRESSED, len(code)), payload)


def fat_binary(*kinds):
    body = b"".join(part for kind in kinds for part in compressed(*kind))
    return pack_image.CONTAINER.pack(pack_image.MAGIC, 1, 16, len(body)) + body


@pytest.fixture
def pruned(tmp_path):
    """A function that returns the entries of a library with other data around each fat binary, after pruning."""

    def pruned(arch, *binaries):
        path = tmp_path / "libcode.so"
        path.write_bytes(b"before" + b"between".join(binaries) + b"after")
        size = path.stat().st_size
        pack_image.prune(path, arch)
        content = path.read_bytes()
        assert len(content) == size and content.startswith(b"before") and content.endswith(b"after")
        return [entries for _, entries in pack_image.fat_binaries(content)]

    return pruned


MANY = ((CUBIN, 35), (CUBIN, 70), (CUBIN, 75), (PTX, 75))


@pytest.mark.parametrize(
    "arch, taken",
    [
        (70, (CUBIN, 70)),
        (72, (CUBIN, 70)),  # code of an earlier minor version runs
        (75, (CUBIN, 75)),
        (90, (PTX, 75)),  # the driver compiles
    ],
)
def test_a_fat_binary_keeps_what_the_driver_takes(pruned, arch, taken):
    [[entry]] = pruned(arch, fat_binary(*MANY))
    assert (entry.kind, entry.arch) == taken
    assert entry.uncompressed().payload.rstrip(b"\0") == CODE[taken]


@pytest.mark.parametrize("arch", [50, pack_image.NO_GPU])
def test_a_fat_binary_without_code_for_a_gpu_says_so(pruned, arch):
    assert pruned(arch, fat_binary(*MANY), fat_binary((CUBIN, 90))) == 2 * [[pack_image.OF_KEPLER]]


def test_code_is_uncompressed_where_it_fits_in_the_place_of_the_others(pruned):
    alone = fat_binary((CUBIN, 90))
    [[fits], [stays]] = pruned(90, fat_binary(*CODE) + bytes(8), alone)
    assert fits.payload.rstrip(b"\0") == CODE[CUBIN, 90]
    assert not ENTRY.unpack_from(fits.header)[6] & COMPRESSED
    assert stays == compressed(CUBIN, 90)


def test_data_that_only_begins_like_a_fat_binary_stays(pruned, tmp_path):
    damaged = bytearray(fat_binary(*MANY))
    damaged[16] = 7  # no kind of code
    assert pruned(70, bytes(damaged)) == []
    assert bytes(damaged) in (tmp_path / "libcode.so").read_bytes()
