"""The check of the doctor that uses the network: ssh."""

import shutil

import pytest

from mxscale.config.schema import from_dict
from mxscale.doctor import doctor


def configured(runs, **groups):
    return from_dict({"runs": str(runs), **groups})


def test_local_run_needs_no_hosts(tmp_path):
    result = doctor.check_hosts(configured(tmp_path))[0]
    assert (result.name, result.state) == ("hosts", "ok")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client here")
def test_unreachable_hosts_fail(tmp_path):
    config = configured(tmp_path / "runs", launch={"hosts": ["no-such-host.invalid:4", "127.0.0.1"]})
    results = doctor.check_hosts(config)
    assert (results[0].name, results[0].state) == ("host no-such-host.invalid", "fail")
    assert "by ssh" in results[0].cause and "without a password" in results[0].fix
    assert list((tmp_path / "runs").iterdir()) == []  # the doctor leaves no file


def test_hosts_that_see_the_runs_folder_pass(tmp_path, fake_ssh, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = doctor.check_hosts(configured("runs", launch={"hosts": ["a:4", "b"]}))
    assert [(each.name, each.state, each.cause) for each in results] == [
        ("host a", "ok", f"slots: 4; sees {tmp_path}/runs"),
        ("host b", "ok", f"slots: 1; sees {tmp_path}/runs"),
    ]
