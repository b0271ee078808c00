"""Weights of Gluon's zoo, from its cache or a mirror of its store, verified by the SHA-1 that MXNet lists.

The store's hosts have been offline since 2024. The weights must therefore be in `$MXNET_HOME/models`, or
MXNET_GLUON_REPO must name a mirror.
"""

import contextlib
import io
import os
import socket
import sys
import tempfile

import mxnet as mx
from mxnet.gluon.model_zoo import model_store

from mxscale.util.atomic_files import digest_of, sync
from mxscale.util.errors import ConfigError, nearest
from mxscale.util.redaction import excerpt, redact_address, shown

SILENCE_S = 30.0  # without a byte from the store


class _Shown(io.TextIOBase):
    """MXNet's messages, which have the store's address, on stderr."""

    def write(self, text: str) -> int:
        return sys.stderr.write(shown(text))


def _download(name: str, folder: str) -> str:
    """Return the path of a downloaded file. MXNet's download has no timeout of its own, so the sockets have one."""
    if not os.environ.get("MXNET_GLUON_REPO", "default"):
        del os.environ["MXNET_GLUON_REPO"]  # empty: MXNet would take it for an address
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_S)
    try:
        return model_store.get_model_file(name, folder)
    finally:
        socket.setdefaulttimeout(before)


def fetch(name: str) -> str:
    """Return the path of a network's weights in Gluon's cache; download them if they are not there.

    Raises:
        ConfigError: The zoo has no such weights, the download fails, or the file in the cache is damaged.
    """
    sums = model_store._model_sha1
    if name not in sums:
        raise ConfigError(f"model.pretrained=zoo: Gluon's zoo has no weights of model.name={name}{nearest(name, sums)}")
    # MXNET_HOME is read at each call; MXNet's own default is fixed when it is imported.
    root = os.path.join(os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir()), "models")
    path = os.path.join(root, f"{name}-{model_store.short_hash(name)}.params")
    if os.path.exists(path):
        try:
            found = digest_of(path, "sha1")
        except OSError as error:
            raise ConfigError(f"model.pretrained=zoo: {path}: {error.strerror}; remove it") from None
        if found != sums[name]:
            raise ConfigError(f"model.pretrained=zoo: {path} is damaged (SHA-1 {found}, not {sums[name]}); remove it")
        return path
    try:
        os.makedirs(root, exist_ok=True)
        # A directory of its own: a failed download leaves nothing in the cache.
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as new, contextlib.redirect_stdout(_Shown()):
            file = _download(name, new)
            sync(file)
            os.replace(file, path)
    except Exception as error:  # of requests, zipfile, the file system and MXNet itself
        cause = error.args[0] if error.args else error
        reason = excerpt(str(getattr(cause, "reason", error)))  # urllib3 puts it behind the address, where it is cut
        store = redact_address(os.environ.get("MXNET_GLUON_REPO", model_store.apache_repo_url))
        raise ConfigError(
            f"model.pretrained=zoo: cannot download {name} from {store} ({reason}); the zoo's own hosts have been "
            f"offline since 2024: place the file at {path}, or set MXNET_GLUON_REPO to a mirror"
        ) from None
    return path
