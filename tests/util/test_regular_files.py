"""Files that come from elsewhere are opened only if they are regular files."""

import os
import socket
from pathlib import Path
from pkgutil import resolve_name

import pytest

from mxscale.config.schema import Data
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular, read_regular


def test_regular_file_and_link_are_read(tmp_path):
    (tmp_path / "file").write_text("é\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert open_regular(tmp_path / "file").read() == b"\xc3\xa9\n"
    assert open_regular(tmp_path / "link", "r", encoding="utf-8").read() == "é\n"


def test_other_kinds_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in {"fifo": "a FIFO", "zero": "a device", "folder": "a folder"}.items():
        with pytest.raises(OSError, match=f"{kind}, not a regular file.*{name}"):
            open_regular(tmp_path / name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OSError):
            open_regular(tmp_path / "s")


READERS = [
    ("data.class_names:class_names", lambda path: Data(classes=path)),
    ("data.image_lists:read", lambda path: (path, "list")),
    ("data.public.formats:contents", lambda path: (path, ["x"])),
    ("data.public.formats:_idx", lambda path: (*os.path.split(path), 1)),
    ("data.records:recordio_job", lambda path: (Data(kind="recordio", train=path, val=path), 1)),
    ("cost.price_table:read_catalog", lambda path: (path, "2026-01-01")),
    ("cost.price_table:read", Path),
    ("models.weights:load", lambda path: path),
    ("perfmodel.published.rows:read", lambda path: path),
    ("util.hostfile:read", lambda path: path),
]


@pytest.mark.parametrize("function, argument", READERS, ids=[name for name, _ in READERS])
def test_users_files_of_another_kind_are_one_line(function, argument, tmp_path):
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for name in ("fifo.csv", "folder.csv", "zero.csv"):
        given = argument(str(tmp_path / name))
        with pytest.raises((ConfigError, OSError), match=r"not a (regular )?file") as refused:
            resolve_name(f"mxscale.{function}")(*(given if isinstance(given, tuple) else (given,)))
        assert "\n" not in str(refused.value)


def test_missing_file_and_loop_are_os_errors(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for name in ("missing", "loop"):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)


def test_larger_file_than_the_limit_is_not_read(tmp_path):
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(20 << 30)
    with pytest.raises(OSError, match=r"21\.5 GB, expected at most 1\.0 GB.*sparse"):
        read_regular(tmp_path / "sparse", 10**9)
    (tmp_path / "file").write_bytes(b"12")
    assert read_regular(tmp_path / "file", 2) == b"12"
