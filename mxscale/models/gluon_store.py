"""Weights of Gluon's own zoo: from its cache, or from a mirror of its store; checked by the SHA-1 that MXNet knows.

The store's hosts are gone since 2024, so that one of the two has to be given: the file in
`$MXNET_HOME/models`, or a mirror in MXNET_GLUON_REPO.
"""

import http.client
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from typing import Dict, Optional

import mxnet as mx
from mxnet.gluon.model_zoo import model_store

from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError, nearest

TIMEOUT_S = 30.0  # without a byte
CHUNK = 2**20


def fetch(name: str, sums: Optional[Dict[str, str]] = None) -> str:
    """The path of the zoo's weights of that network.  `sums`: name -> SHA-1, MXNet's own by default.

    Raises ConfigError.
    """
    sums = model_store._model_sha1 if sums is None else sums
    if name not in sums:
        raise ConfigError(f"model.pretrained=zoo: Gluon's zoo has no weights of model.name={name}{nearest(name, sums)}")
    # Asked at each call, unlike MXNet's own, which looks at it when it is imported
    folder = os.path.join(os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir()), "models")
    file = f"{name}-{sums[name][:8]}.params"
    path = os.path.join(folder, file)
    if os.path.exists(path):
        found = digest_of(path, "sha1")
        if found != sums[name]:
            raise ConfigError(f"model.pretrained=zoo: {path} is damaged (SHA-1 {found}, not {sums[name]}); remove it")
        return path
    store = os.environ.get("MXNET_GLUON_REPO") or model_store.apache_repo_url
    address = f"{store.rstrip('/')}/gluon/models/{file[: -len('.params')]}.zip"
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as new:
            _take_out(_download(address, new), file, os.path.join(new, file))
            found = digest_of(os.path.join(new, file), "sha1")
            if found != sums[name]:
                raise ValueError(f"its SHA-1 is {found}, not {sums[name]}")
            os.replace(os.path.join(new, file), path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, http.client.HTTPException) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise ConfigError(
            f"model.pretrained=zoo: {address} can't be had ({reason}); the zoo's own hosts are gone since 2024: "
            f"place the file at {path}, or set MXNET_GLUON_REPO to a mirror"
        ) from None
    return path


def _download(address: str, folder: str) -> str:
    path = os.path.join(folder, "store.zip")
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer, open(path, "wb") as file:
        wanted, got = answer.headers.get("Content-Length"), 0
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            got += len(chunk)
    if wanted is not None and got != int(wanted):
        raise ValueError(f"it ended after {got} of {wanted} bytes")
    return path


def _take_out(archive: str, member: str, path: str) -> None:
    with zipfile.ZipFile(archive) as zipped:
        if member not in zipped.namelist():
            raise ValueError(f"there is no {member} in it")
        with zipped.open(member) as source, open(path, "wb") as file:
            while chunk := source.read(CHUNK):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
