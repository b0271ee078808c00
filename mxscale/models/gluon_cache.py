"""Weights of Gluon's zoo, from its cache `$MXNET_HOME/models`, verified by the SHA-1 that MXNet lists."""

import os

import mxnet as mx
from mxnet.gluon.model_zoo import model_store

from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError, nearest


def folder() -> str:
    """Return the folder of downloaded weights."""
    # MXNET_HOME is read at each call; MXNet's own default is fixed when it is imported.
    return os.path.join(os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir()), "models")


def find(name: str) -> str:
    """Return the path of a network's weights. Raises ConfigError if the zoo has none, or the file is not right."""
    sums = model_store._model_sha1
    if name not in sums:
        raise ConfigError(f"model.pretrained=zoo: Gluon's zoo has no weights of model.name={name}{nearest(name, sums)}")
    path = os.path.join(folder(), f"{name}-{model_store.short_hash(name)}.params")
    try:
        actual = digest_of(path, "sha1")
    except FileNotFoundError:
        raise ConfigError(
            f"model.pretrained=zoo: {path}: no such file; the zoo's hosts have been offline since 2024: place it there "
            "from a copy, unzipped"
        ) from None
    except OSError as error:
        raise ConfigError(f"model.pretrained=zoo: {path}: {error.strerror}; remove it") from None
    if actual != sums[name]:
        raise ConfigError(f"model.pretrained=zoo: {path} is damaged (SHA-1 {actual}, not {sums[name]}); remove it")
    return path
