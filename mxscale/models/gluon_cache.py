"""Weights of Gluon's zoo, from its cache `$MXNET_HOME/models`, verified by the SHA-1 that MXNet lists."""

import os

import mxnet as mx
from mxnet.gluon.model_zoo import model_store

from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError, nearest


def find(name: str) -> str:
    """Return the path of a network's weights. Raises ConfigError if the zoo has none, or the file is not right."""
    sums = model_store._model_sha1
    if name not in sums:
        raise ConfigError(f"model.pretrained=zoo: Gluon's zoo has no weights of model.name={name}{nearest(name, sums)}")
    # MXNET_HOME is read at each call; MXNet's own default is fixed when it is imported.
    root = os.path.join(os.path.expanduser(os.environ.get("MXNET_HOME") or mx.base.data_dir()), "models")
    path = os.path.join(root, f"{name}-{model_store.short_hash(name)}.params")
    try:
        actual = digest_of(path, "sha1")
    except OSError as error:
        where = "place it there, unzipped, from a copy: the zoo's hosts have been offline since 2024"
        raise ConfigError(f"model.pretrained=zoo: {path}: {error.strerror}; {where}") from None
    if actual != sums[name]:
        raise ConfigError(f"model.pretrained=zoo: {path} is damaged (SHA-1 {actual}, not {sums[name]}); remove it")
    return path
