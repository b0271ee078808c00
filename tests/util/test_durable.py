"""Atomic replacement and digests of files."""

import hashlib
import os

import pytest

from mxscale.util.atomic_files import digest_of, replacing


def test_a_complete_file_replaces_the_old_one(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a", "a"):
        with replacing(path) as new:
            with open(new, "w") as file:
                file.write(f"new {path}")
            assert os.path.dirname(new) == os.path.dirname(path)
            assert (tmp_path / "a").read_text() != f"new {path}"
        assert (tmp_path / "a").read_text() == f"new {path}" and os.listdir(tmp_path) == ["a"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as new:
        with open(new, "w") as file:
            file.write("half of it")
        raise KeyboardInterrupt
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a"):
        pass  # nothing was written
    assert (tmp_path / "a").read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_directory_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", f"{tmp_path}/folder/"):
        with pytest.raises(OSError), replacing(path) as new:
            open(new, "w").close()
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == []


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1])
def test_digest_covers_all_bytes(tmp_path, size):
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert digest_of(tmp_path / "a") == hashlib.sha256(content).hexdigest()
