"""Ranks over ssh: a real sshd on its own port, with keys and client configuration in a temporary folder."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from machine import free_port, until

from mxscale.config.schema import from_dict
from mxscale.environment.hosts import Host, is_here
from mxscale.environment.placement import Placement
from mxscale.launcher.commands import commands

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")

CLIENT = """\
Host hosta hostb
  HostName 127.0.0.1
Host hosta hostb 127.0.0.*
  Port {port}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


class Ssh:
    """A client's folder and environment variables, with which `ssh` reaches the server."""

    def __init__(self, folder: Path, port: int, log: Path, key="user"):
        folder.mkdir()
        self.log = log
        (folder / "config").write_text(CLIENT.format(port=port, folder=folder, key=log.parent / key))
        # ssh reads its configuration from the home in passwd, regardless of HOME
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        (folder / "ssh").chmod(0o755)
        # HOME: horovodrun caches facts about hosts there for an hour
        self.env = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}

    def logins(self) -> int:
        return self.log.read_text().count("Accepted publickey")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(folder, port) of a server that accepts the key `user` but not the key `stranger`."""
    if not SSHD or not shutil.which("ssh"):
        pytest.skip("sshd is not installed (apt install openssh-server openssh-client)")
    if not Path("/run/sshd").is_dir():
        if os.getuid():
            pytest.skip("sshd needs /run/sshd")
        Path("/run/sshd").mkdir(mode=0o755)
    folder = tmp_path_factory.mktemp("sshd")
    for key in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    port = free_port()
    options = {
        "ListenAddress": f"127.0.0.1:{port}", "HostKey": folder / "host", "AuthorizedKeysFile": folder / "user.pub",
        "StrictModes": "no", "UsePAM": "no", "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password", "PidFile": "none", "MaxStartups": "50",
    }  # fmt: skip
    argv = [SSHD, "-D", "-e", "-f", "/dev/null"]
    argv += [argument for name, value in options.items() for argument in ("-o", f"{name}={value}")]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(argv, stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: answers(port), 20, 0.1)
        yield folder, port
    finally:
        server.terminate()
        server.wait(20)


def answers(port) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


@pytest.fixture
def ssh(server, tmp_path):
    folder, port = server
    return Ssh(tmp_path / "client", port, folder / "log")


CASE = ["launch.threads=1"]


@pytest.fixture(scope="module")
def on_this_machine(shared_cli):
    return shared_cli("train", *CASE, "launch.ranks=2").sha


@pytest.mark.slow
@pytest.mark.parametrize(
    "transport, hosts", [("gloo", "hosta:1,hostb:1"), ("gloo", "127.0.0.1:1,hostb:1"), ("mpi", "hosta:1,hostb:1")]
)
def test_two_hosts_give_the_weights_of_one(cli, ssh, on_this_machine, transport, hosts):
    """Hosts are names known only to ssh, or this machine."""
    before = ssh.logins()
    # Both hosts are this machine: its containers' bridges, which come and go, do not connect them
    env = {**ssh.env, "OMPI_MCA_btl_tcp_if_include": "127.0.0.0/8"}
    ended = cli("train", *CASE, f"comm.transport={transport}", f"launch.hosts=[{hosts}]", "launch.ranks=2", env=env)
    a, b = (host.partition(":")[0] for host in hosts.split(","))
    assert f"ranks     2 on {a}, {b} on cpu" in ended.out
    assert ssh.logins() > before
    assert ended.sha == on_this_machine


@pytest.mark.slow
def test_a_wrong_key_is_refused_with_sshs_reason(cli, server, tmp_path):
    folder, port = server
    stranger = Ssh(tmp_path / "client", port, folder / "log", key="stranger")
    ended = cli("train", "launch.hosts=[127.0.0.1:1,hostb:1]", env=stranger.env, expect=2)
    (line,) = ended.err.splitlines()
    assert line.startswith("error: launch.hosts: hostb can't be reached by ssh (")
    assert line.endswith("Permission denied (publickey).)")
    assert not list((cli.folder / "train").glob("*"))


def test_this_machine_is_recognised():
    assert is_here(Host("127.0.0.1", 1, "a")) and is_here(Host("localhost", 1, "a"))
    assert not any(is_here(Host(address, 1, "a")) for address in ("127.0.0.2", "user@localhost", "nobody.invalid"))


def test_mpirun_excludes_dockers_bridge_unless_interfaces_are_set():
    config = from_dict({"comm": {"transport": "mpi"}})

    def argv(hosts, **environ):
        (command,) = commands(config, "/runs/a", 1, Placement(2, 2, hosts), {"PATH": "/bin", **environ})
        return command.argv

    nodes = [Host("a", 1, "a"), Host("b", 1, "b")]
    at = argv(nodes).index("btl_tcp_if_exclude")
    assert argv(nodes)[at - 1 : at + 2] == ["-mca", "btl_tcp_if_exclude", "127.0.0.0/8,docker0"]
    assert "btl_tcp_if_exclude" not in argv(nodes, OMPI_MCA_btl_tcp_if_include="10.0.0.0/8")
    assert "btl_tcp_if_exclude" not in argv([])
