"""Hosts that ranks are spread over: found, asked, and told apart.  With a real ssh client and server: test_ssh.py."""

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.environment import hosts
from mxscale.environment.hosts import Host
from mxscale.rundir.directory import RunDir
from mxscale.util.errors import ConfigError


def config(**launch):
    return validate(from_dict({"launch": launch}))


def test_a_list_gives_each_host_its_slots():
    found = hosts.find(config(hosts=["a:4", "b.example", "10.0.0.3:1"]))
    assert [(host.address, host.slots) for host in found] == [("a", 4), ("b.example", 1), ("10.0.0.3", 1)]
    assert hosts.find(config()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "a",
        [],
        ["a:0"],
        ["a:x"],
        ["me@a"],
        ["a:1", "a:2"],
        ["a:1", "A.:2"],
        ["-oProxyCommand=x"],
        ["a b"],
        [3],
        ["a:4,b:4"],
        {"a": 4},
    ],
)
def test_what_is_no_list_of_hosts_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"^launch\.hosts=.*: expected a list such as '\[a:4,b:4\]', or compose"):
        config(hosts=wrong)


def test_one_machine_by_two_names_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"localhost and 127.0.0.1 are both this machine: .*: 127.0.0.1:3"):
        hosts.find(config(hosts=["localhost:2", "127.0.0.1"]))
    monkeypatch.setattr(hosts.socket, "gethostbyname", {"a": "10.0.0.3", "a.example": "10.0.0.3", "b": "10.0.0.4"}.get)
    with pytest.raises(ConfigError, match=r"a and a.example are both 10.0.0.3"):
        hosts.find(config(hosts=["a", "b", "a.example"]))


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_a_name_that_no_resolver_takes_is_another_machine(name):
    (found,) = hosts.find(config(hosts=[name]))
    assert not found.here


def test_hosts_go_neither_with_local_ranks_nor_with_one_image():
    with pytest.raises(ConfigError, match="comm=local"):
        validate(from_dict({"launch": {"hosts": ["a"]}, "comm": {"backend": "local"}}))
    with pytest.raises(ConfigError, match=r"launch\.hosts with launch=docker"):
        config(hosts=["a"], kind="docker", image="x")


def test_compose_without_a_worker_says_how_to_start_some():
    with pytest.raises(ConfigError, match=r"no worker is up; start some with: docker compose --profile cluster up"):
        hosts.find(config(hosts="compose"))


def test_workers_are_found_by_name_and_counted_as_people_do(monkeypatch):
    names = {f"10.0.0.{n}": f"mxscale-worker-{n}.mxscale_default" for n in (2, 10, 1)}
    monkeypatch.setattr(hosts.socket, "getaddrinfo", lambda *_: [(2, 1, 6, "", (ip, 0)) for ip in names for _ in "tu"])
    monkeypatch.setattr(hosts.socket, "gethostbyaddr", lambda ip: (names[ip], [], [ip]))
    found = hosts.find(config(hosts="compose"))
    assert [host.name for host in found] == ["mxscale-worker-1", "mxscale-worker-2", "mxscale-worker-10"]


def test_ranks_fill_the_first_host_before_the_next():
    nodes = [Host("a", 2, "a"), Host("b", 1, "b")]
    assert [host and host.name for host in (hosts.of_rank(nodes, rank) for rank in range(4))] == ["a", "a", "b", None]


def test_a_host_that_does_not_answer_is_named_with_sshs_reason(tmp_path):
    with pytest.raises(ConfigError, match=r"^launch\.hosts: nobody\.invalid can't be reached by ssh \(.+\)$"):
        hosts.check([Host("nobody.invalid", 1, "nobody.invalid")], RunDir(tmp_path))
    assert hosts.unreachable([Host("nobody.invalid", 1, "x")])
