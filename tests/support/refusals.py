"""Refusals of calls and commands."""

import re

import pytest

from mxscale.util.errors import ConfigError

PACKED = re.compile(r"imagefolder: \d+ classes|digits: \d+ classes")  # printed by the preparation


def refusal(cli, *overrides, entry="train"):
    """Run a command that must be refused without a new run directory, and return its one line on stderr."""
    before = run_directories(cli.folder)
    ended = cli(entry, "tracking=none", *overrides, expect=2, small=False, timeout=60)
    lines = [line for line in ended.err.splitlines() if not PACKED.match(line)]
    assert len(lines) == 1 and lines[0].startswith("error: "), ended.err
    assert run_directories(cli.folder) == before
    return lines[0]


def error_of(call, *arguments, kind=ConfigError, **settings) -> str:
    """Return the message of the error that a call must raise, which must be one line."""
    with pytest.raises(kind) as raised:
        call(*arguments, **settings)
    assert len(str(raised.value).splitlines()) == 1, raised.value
    return str(raised.value)


def command_error(capsys, *argv) -> str:
    """Run a verb that must be refused in this process; return its one line on stderr."""
    from mxscale.cli import main

    capsys.readouterr()
    assert main.main(list(argv)) == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: ") and error.count("\n") == 1 and not out, (out, error)
    return error


def run_directories(folder):
    return sorted(folder.glob("*/*_*"))


def contains(line, *words):
    missing = [word for word in words if word not in line]
    assert not missing, f"{line!r} lacks {missing}"


def folder_of(root, *overrides):
    return ["data=imagefolder", f"data.root={root}", "data.image_size=16", "data.pack_short_side=16", *overrides]
