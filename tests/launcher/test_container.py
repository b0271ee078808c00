"""Ranks in a container: mounts, variables and command. With a real engine: test_docker.py."""

import sys

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.environment.placement import Placement
from mxscale.launcher import commands, container
from mxscale.rundir.directory import RunDir
from mxscale.util.errors import ConfigError


def config(**values):
    return validate(from_dict({"launch": {"kind": "docker", "image": "mxscale:cpu"}, **values}))


def run_in(tmp_path):
    return RunDir(tmp_path / "runs" / "train" / "a")


def test_only_runs_and_cache_are_writable(tmp_path):
    photos, weights = tmp_path / "photos", tmp_path / "w" / "a.params"
    for folder in (photos, weights.parent):
        folder.mkdir()
    weights.touch()
    data = {"kind": "imagefolder", "root": str(photos), "cache": str(tmp_path / "cache")}
    seen = container.mounts(config(data=data, model={"pretrained": str(weights)}), run_in(tmp_path))
    assert seen == {
        str(commands.ROOT): "ro",
        str(photos): "ro",
        str(weights.parent): "ro",
        str(tmp_path / "runs"): "rw",
        str(tmp_path / "cache"): "rw",
    }


@pytest.mark.parametrize("source", ["symbol:{}/net", "symbol:{}/net@3", "torch:{}/a.pth"])
def test_the_folder_of_weights_with_a_prefix_is_mounted(tmp_path, source):
    folder = tmp_path / "weights"
    folder.mkdir()
    seen = container.mounts(config(model={"pretrained": source.format(folder)}), run_in(tmp_path))
    assert seen[str(folder)] == "ro"
    assert not [path for path in container.mounts(config(model={"pretrained": "zoo"}), run_in(tmp_path)) if not path]


def test_the_folder_of_a_public_set_is_writable(tmp_path):
    root = tmp_path / "sets" / "mnist"
    data = {"kind": "mnist", "root": str(root), "cache": str(tmp_path / "cache")}
    assert container.mounts(config(data=data), run_in(tmp_path))[str(root)] == "rw" and root.is_dir()


def test_no_credential_or_path_is_passed():
    outside = {"PATH": "/x", "AWS_SECRET_ACCESS_KEY": "s", "LD_LIBRARY_PATH": "/y", "HOME": "/h"}
    inside = {"OMP_NUM_THREADS": "2", "HOME": "/tmp", "USER": "mxscale"}
    assert container.passed({**outside, "OMP_NUM_THREADS": "2"}) == inside


def test_the_command_uses_the_images_python():
    (command,) = commands.commands(config(), "/runs/a", 1, Placement(2, 8), {"DOCKER_HOST": "unix:///x"})
    argv = ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2", "python", "-m", "mxscale.train.rank", "/runs/a"]
    assert command.argv == [sys.executable, "-m", "mxscale.launcher.container", "/runs/a", *argv, "1"]
    assert command.env["DOCKER_HOST"] == "unix:///x" and command.env["OMP_NUM_THREADS"] == "4"


def test_a_missing_engine_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    message = r"^launch=docker: no Docker engine answers \(.*\); start it, or set DOCKER_HOST"
    with pytest.raises(ConfigError, match=message):
        container.connect()


def test_the_image_is_required():
    with pytest.raises(ConfigError, match=r"launch\.image is missing"):
        validate(from_dict({"launch": {"kind": "docker"}}))
