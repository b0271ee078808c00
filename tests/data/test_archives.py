"""Archives are read in place; damaged ones are refused."""

import tarfile

import numpy as np
import pytest
from made_sets import tar
from refusals import error_of

from mxscale.data.images import read
from mxscale.data.public import formats
from mxscale.data.public.formats import ERRORS, contents, members

FILES = [("set/a.jpg", b"a" * 1000), ("set/long" + "g" * 150 + ".jpg", b"bc" * 3000), ("set/empty.jpg", b"")]


@pytest.fixture
def saved(tmp_path):
    def save(content: bytes) -> str:
        path = tmp_path / "archive"
        path.write_bytes(content)
        return str(path)

    return save


def refused(call) -> str:
    return error_of(call, kind=ERRORS)


def read_all(found) -> list:
    return [(name, read(content)) for name, content in found]


def test_members_have_correct_offsets(saved):
    path = saved(tar(FILES))
    assert read_all(members(path)) == FILES


def test_nested_tar_is_read_without_unpacking(saved):
    path = saved(tar([("first.tar", tar(FILES[:1])), ("second.tar", tar(FILES[1:]))]))
    found = [one for _, tar in members(path) for one in members(path, tar.offset, tar.offset + tar.size)]
    assert read_all(found) == FILES


LINKS = {
    "../out.jpg": b"x",
    "set/link.jpg": (tarfile.SYMTYPE, "/etc/passwd"),
    "set/hard.jpg": (tarfile.LNKTYPE, "set/a.jpg"),
    "set/null": (tarfile.CHRTYPE, ""),
    "set/pipe": (tarfile.FIFOTYPE, ""),
}


@pytest.mark.parametrize("name", LINKS)
def test_only_content_in_the_archive_is_read(saved, name):
    further = [*FILES, (name, LINKS[name])]
    path = saved(tar(further))
    regular = [(name, content) for name, content in further if isinstance(content, bytes)]
    assert read_all(members(path)) == regular
    path = saved(tar([("a.jpg", b"x"), (f"set/{name}", LINKS[name])], "w:gz"))
    assert contents(path, ["a.jpg"]) == {"a.jpg": b"x"}


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
    assert refused(lambda: contents(path, ["a.jpg"]))


def test_a_tar_truncated_between_members_is_refused(saved):
    complete = tar(FILES[:1]).rstrip(b"\0")
    path = saved(complete + b"\0" * (-len(complete) % 512))
    assert "is truncated or damaged at byte 1536" in refused(lambda: list(members(path)))


def test_garbage_after_the_first_member_is_refused(saved):
    complete = tar(FILES[:1]).rstrip(b"\0")
    path = saved(complete + b"\0" * (-len(complete) % 512) + b"rubbish" * 1000)
    assert "truncated or damaged at byte 1536" in refused(lambda: list(members(path)))


def test_an_inner_tar_ends_before_the_next(saved):
    inner = tar(FILES[:1])[:1536]  # without its end
    path = saved(tar([("first.tar", inner), ("second.tar", tar(FILES))]))
    _, outer = next(iter(members(path)))
    assert refused(lambda: list(members(path, outer.offset, outer.offset + outer.size)))


def test_other_files_are_refused(saved):
    path = saved(b"<html>not found</html>" * 100)
    assert refused(lambda: list(members(path))) and "not a gzip file" in refused(lambda: contents(path, ["a"]))


def test_missing_members_are_named(saved):
    path = saved(tar(FILES, "w:gz"))
    assert contents(path, ["a.jpg"]) == {"a.jpg": b"a" * 1000}
    assert refused(lambda: contents(path, ["a.jpg", "b", "c"])) == f"{path} has no b, c"


def test_decompression_is_limited(saved, monkeypatch):
    monkeypatch.setattr(formats, "MAX_BYTES", 1 << 20)
    path = saved(tar([("a", bytes(600_000)), ("b", bytes(600_000))], "w:gz"))
    assert "has more than 1,048,576 bytes when decompressed" in refused(lambda: contents(path, ["b"]))
