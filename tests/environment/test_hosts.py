"""Hosts of a run: lists, hostfiles, workers of Docker Compose. With a real ssh client and server: test_ssh.py."""

import os
import re

import pytest
from refusals import error_of

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.rundir.plan import Plan, Split
from mxscale.util.errors import ConfigError


def config(**launch):
    return validate(from_dict({"launch": launch}))


def test_list_gives_each_host_its_slots():
    found = hosts.find(config(hosts=["a:4", "b.example", "10.0.0.3:1"]))
    assert [(host.address, host.slots) for host in found] == [("a", 4), ("b.example", 1), ("10.0.0.3", 1)]
    assert hosts.find(config()) == []


@pytest.mark.parametrize(
    "wrong",
    [[], ["a:0"], ["a:x"], ["me@a"], ["a:1", "a:2"], ["a:1", "A.:2"], ["-oProxyCommand=x"], ["a b"], [3], ["a:4,b:4"],
     {"a": 4}],
)  # fmt: skip
def test_invalid_hosts_are_refused(wrong):
    message = r"^launch\.hosts=.*: expected a list such as '\[a:4,b:4\]', or a hostfile"
    with pytest.raises(ConfigError, match=message):
        config(hosts=wrong)


def test_hostfile_lines_become_hosts(tmp_path):
    lines = ["# the cluster", "a slots=4", "", "b.example:2  # fast", "10.0.0.3", "c slots = 2 max_slots=4", "10.0.0.3"]
    (tmp_path / "hosts").write_text("\n".join(lines))
    read = config(hosts=str(tmp_path / "hosts")).launch.hosts
    assert read == ["a:4", "b.example:2", "10.0.0.3:2", "c:2"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a slots=4\nb slots=x\n", " line 2: b slots=x: expected HOST slots=RANKS, HOST:RANKS or HOST"),
        ("me@a:4", " line 1: me@a:4: expected HOST"),
        ("-oProxyCommand=x", " line 1: -oProxyCommand=x: expected HOST"),
        ("a:0", " line 1: a:0: expected HOST"),
        ("# nothing\n", ": no host in that file"),
        (None, ": No such file or directory; expected a list such as '[a:4,b:4]', or a hostfile"),
    ],
)
def test_invalid_hostfile_is_refused(tmp_path, text, message):
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    assert error_of(config, hosts=str(path)).startswith(f"launch.hosts={path}{message}")


def test_two_names_of_one_machine_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"localhost and 127.0.0.1 are both this machine: .*: 127.0.0.1:3"):
        hosts.find(config(hosts=["localhost:2", "127.0.0.1"]))
    monkeypatch.setattr(hosts.socket, "gethostbyname", {"a": "10.0.0.3", "a.example": "10.0.0.3", "b": "10.0.0.4"}.get)
    with pytest.raises(ConfigError, match=r"a and a.example are both 10.0.0.3"):
        hosts.find(config(hosts=["a", "b", "a.example"]))


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_unresolvable_name_is_another_machine(name):
    (found,) = hosts.find(config(hosts=[name]))
    assert not found.here


def test_hosts_exclude_comm_local():
    with pytest.raises(ConfigError, match="comm=local"):
        validate(from_dict({"launch": {"hosts": ["a"]}, "comm": {"backend": "local"}}))


def test_workers_of_compose_are_listed_by_name():
    with pytest.raises(ConfigError, match=r"^launch\.hosts=compose was removed: list the workers"):
        validate(from_dict({"launch": {"hosts": "compose"}}))


def test_ranks_fill_the_first_host_before_the_next():
    nodes = [Host("a", 2, "a"), Host("b", 1, "b")]
    assert [host and host.name for host in (hosts.of_rank(nodes, rank) for rank in range(4))] == ["a", "a", "b", None]


def test_unreachable_host_is_named_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"^launch\.hosts: nobody\.invalid can't be reached by ssh \(.+\)$"):
        hosts.check([Host("nobody.invalid", 1, "nobody.invalid")], tmp_path)
    assert hosts.unreachable([Host("nobody.invalid", 1, "x")])


def test_a_host_that_cannot_read_the_packed_set_is_named_with_the_file(tmp_path, monkeypatch):
    """`ssh` runs the command on this machine."""
    fake = tmp_path / "bin/ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor command; do :; done\necho "Welcome"\nexec sh -c "$command"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    records = [tmp_path / "it's packed.rec", tmp_path / "it's packed.idx"]
    plan = Plan(splits={"train": Split(1, *map(str, records)), "val": Split(1)}, hosts=(Host("b", 1, "b"),))
    for path in records:
        with pytest.raises(ConfigError, match=re.escape(f"launch.hosts: b can't read {path}: place it on storage")):
            hosts.check_inputs(plan)
        path.touch()
    hosts.check_inputs(plan)
