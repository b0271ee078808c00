"""Weights from the Hugging Face hub, through its own library: HF_ENDPOINT, HF_HOME, HF_TOKEN and
HF_HUB_OFFLINE mean what they mean there, and what was fetched once is not fetched again.
"""

import re
from pathlib import Path
from typing import NamedTuple, Optional

import huggingface_hub
from huggingface_hub import errors

from mxscale.config import ConfigError

WEIGHTS, SETTINGS = "model.safetensors", "config.json"  # as timm writes them
TIMEOUT_S = 10.0  # of the first answer
MAX_BYTES = 2 << 30  # a ResNet-152 has 0.24 GB: what is larger is another network


class Fetched(NamedTuple):
    path: str  # of the weights; the settings lie beside them
    config_path: Optional[str]
    revision: str  # the commit that a branch or a tag stood for


def fetch(reference: str) -> Fetched:
    """The files of `<owner>/<model>[@revision]`, from the cache or the hub.  Raises ConfigError."""
    model, _, revision = reference.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or reference.endswith("@"):
        raise ConfigError(f"model.pretrained=hf:{reference}: expected hf:OWNER/MODEL or hf:OWNER/MODEL@REVISION")
    try:
        path = _file(model, WEIGHTS, revision or None)
        commit = Path(path).parent.name  # .../snapshots/<commit>/model.safetensors
        try:
            settings = _file(model, SETTINGS, commit)
        except errors.EntryNotFoundError:  # not there, or not in the cache
            settings = None
    except Exception as error:
        raise ConfigError(f"model.pretrained=hf:{reference}: {_reason(error, model, revision)}") from None
    return Fetched(path, settings, commit)


def _file(model: str, name: str, revision: Optional[str]) -> str:
    return huggingface_hub.hf_hub_download(model, name, revision=revision, etag_timeout=TIMEOUT_S)


def _reason(error: Exception, model: str, revision: str) -> str:
    """In one line; the library's own messages are a page."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
