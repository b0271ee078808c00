"""Archives are read in place; damaged and unsafe ones are refused."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from made_sets import tar
from refusals import error_of

from mxscale.data.public.archives import BadArchive, contents, gunzip, members

FILES = [("set/a.jpg", b"a" * 1000), ("set/long" + "g" * 150 + ".jpg", b"bc" * 3000), ("set/empty.jpg", b"")]


@pytest.fixture
def saved(tmp_path):
    def save(content: bytes) -> str:
        path = tmp_path / "archive"
        path.write_bytes(content)
        return str(path)

    return save


def refused(read) -> str:
    return error_of(read, kind=BadArchive)


def sliced(path, member) -> bytes:
    with open(path, "rb") as file:
        file.seek(member.offset)
        return file.read(member.size)


def test_members_have_correct_offsets(saved):
    path = saved(tar(FILES))
    assert [(member.name, sliced(path, member)) for member in members(path)] == FILES


def test_nested_tar_is_read_without_unpacking(saved):
    path = saved(tar([("first.tar", tar(FILES[:1])), ("second.tar", tar(FILES[1:]))]))
    found = [one for outer in members(path) for one in members(path, outer.offset, outer.offset + outer.size)]
    assert [(member.name, sliced(path, member)) for member in found] == FILES


def test_all_bytes_are_reported(saved):
    content, seen = tar(FILES), []
    list(members(saved(content), seen=seen.append))
    assert len(content.rstrip(b"\0")) <= sum(seen) <= len(content)


BAD = {
    "../out.jpg": (b"x", "../out.jpg is outside the archive's folder"),
    "set/../../out.jpg": (b"x", "set/../../out.jpg is outside the archive's folder"),
    "/etc/out.jpg": (b"x", "/etc/out.jpg is outside the archive's folder"),
    "set/link.jpg": ((tarfile.SYMTYPE, "/etc/passwd"), "set/link.jpg is a link"),
    "set/hard.jpg": ((tarfile.LNKTYPE, "set/a.jpg"), "set/hard.jpg is a link"),
    "set/null": ((tarfile.CHRTYPE, ""), "set/null is neither a regular file nor a folder"),
    "set/pipe": ((tarfile.FIFOTYPE, ""), "set/pipe is neither a regular file nor a folder"),
    "set/new\nline/..": (b"x", "set/new\\nline/.. is outside the archive's folder"),
}


@pytest.mark.parametrize("name", BAD)
def test_unsafe_members_are_refused_by_name(saved, name):
    content, reason = BAD[name]
    assert refused(lambda: list(members(saved(tar([*FILES, (name, content)]))))) == reason
    assert refused(lambda: contents(saved(tar([*FILES, (name, content)], "w:gz")), ["a.jpg"], 10**6)) == reason


@pytest.mark.parametrize("tenth", range(10))
def test_a_truncated_tar_is_refused(saved, tenth):
    content = tar(FILES).rstrip(b"\0")
    path = saved(content[: len(content) * tenth // 10])
    assert refused(lambda: list(members(path)))


@pytest.mark.parametrize("tenth", range(10))
def test_a_truncated_gzip_is_refused(saved, tenth):
    noise = [("set/a.jpg", np.random.RandomState(0).bytes(5000))]
    content = tar(noise, "w:gz")
    path = saved(content[: len(content) * tenth // 10])
    assert refused(lambda: contents(path, ["a.jpg"], 10**6))
    content = gzip.compress(noise[0][1])
    path = saved(content[: len(content) * tenth // 10])
    if tenth:
        assert "not a .gz, or truncated" in refused(lambda: gunzip(path, 10**6))
    else:
        assert gunzip(path, 10**6) == b""  # a valid gzip; its reader checks the size


def test_a_tar_truncated_between_members_is_refused(saved):
    complete = tar(FILES[:1]).rstrip(b"\0")
    path = saved(complete + b"\0" * (-len(complete) % 512))
    assert refused(lambda: list(members(path))) == "truncated or damaged at byte 1536"


def test_garbage_after_the_first_member_is_refused(saved):
    complete = tar(FILES[:1]).rstrip(b"\0")
    path = saved(complete + b"\0" * (-len(complete) % 512) + b"rubbish" * 1000)
    assert "truncated or damaged at byte 1536" in refused(lambda: list(members(path)))


def test_an_inner_tar_ends_before_the_next(saved):
    inner = tar(FILES[:1])[:1536]  # without its end
    path = saved(tar([("first.tar", inner), ("second.tar", tar(FILES))]))
    outer = next(iter(members(path)))
    assert refused(lambda: list(members(path, outer.offset, outer.offset + outer.size)))


def test_other_files_are_refused(saved):
    path = saved(b"<html>not found</html>" * 100)
    assert "not a tar" in refused(lambda: list(members(path)))
    assert "not a .tar.gz" in refused(lambda: contents(path, ["a"], 10**6))
    assert "not a .gz" in refused(lambda: gunzip(path, 10**6))


def test_missing_members_are_named(saved):
    path = saved(tar(FILES, "w:gz"))
    assert contents(path, ["a.jpg"], 10**6) == {"a.jpg": b"a" * 1000}
    assert refused(lambda: contents(path, ["a.jpg", "b", "c"], 10**6)) == "has no b, c"


def test_decompression_is_limited(saved):
    bomb = io.BytesIO()
    with gzip.open(bomb, "wb") as file:
        for _ in range(50):
            file.write(bytes(1 << 20))
    assert len(bomb.getvalue()) < 60_000
    assert refused(lambda: gunzip(saved(bomb.getvalue()), 1 << 20)) == "more than 1,048,576 bytes when decompressed"
    path = saved(tar([("a", bytes(600_000)), ("b", bytes(600_000))], "w:gz"))
    assert refused(lambda: contents(path, ["b"], 1 << 20)) == "more than 1,048,576 bytes when decompressed"
