"""Weights from the Hugging Face hub, through its own library.

HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there; what lies in its cache is not
fetched again; a download that was cut goes on where it ended.
"""

import re
from pathlib import Path
from typing import NamedTuple, Optional

import huggingface_hub
from huggingface_hub import constants, errors

from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

WEIGHTS, SETTINGS = "model.safetensors", "config.json"  # as timm writes them
MAX_BYTES = 2 << 30  # a ResNet-152 has 0.24 GB: what is larger is another network


class Fetched(NamedTuple):
    path: str  # of the weights; their settings, if there are any, lie beside them
    config_path: Optional[str]
    revision: str  # the commit that a branch or a tag stood for


def fetch(reference: str) -> Fetched:
    """The files of `<owner>/<model>[@revision]`, from the cache or the hub.  Raises ConfigError."""
    source = f"model.pretrained=hf:{reference}"
    model, at, revision = reference.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or (at and not revision):
        raise ConfigError(f"{source}: expected hf:OWNER/MODEL or hf:OWNER/MODEL@REVISION")
    try:
        size = huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision or None, dry_run=True).file_size
        if size > MAX_BYTES:
            raise ConfigError(f"{source}: its {WEIGHTS} has {size / 1e9:.1f} GB: that is no network here")
        path = huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision or None)
        commit = Path(path).parent.name  # .../snapshots/<commit>/model.safetensors
        try:
            settings = huggingface_hub.hf_hub_download(model, SETTINGS, revision=commit)
        except errors.EntryNotFoundError:
            settings = None
    except ConfigError:
        raise
    except Exception as error:  # the library's own, httpx's, the disk's
        raise ConfigError(f"{source}: {_reason(error, revision)}") from None
    _verify(Path(path), source)
    return Fetched(path, settings, commit)


def _verify(path: Path, source: str) -> None:
    """The cache keeps a large file under its SHA-256, as the hub stated it; the library compares sizes alone."""
    blob = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return
    if digest_of(blob) != blob.name:
        raise ConfigError(f"{source}: {blob} is not what the hub has: its SHA-256 differs; remove it, and try again")


def _reason(error: Exception, revision: str) -> str:
    """In one line: the library's own messages are a page."""
    hub = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return f"{hub} wants its terms accepted first; then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub} has no revision {revision or 'main'} of it"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such model, or HF_TOKEN does not open it"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"there is no {WEIGHTS} in it; a .pth of it can be named as torch:FILE"
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} does not answer"
        return f"{why}, and it is not in the cache ({constants.HF_HUB_CACHE}); fetch it elsewhere, or name torch:FILE"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{hub} answered {error.response.status_code}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename or constants.HF_HUB_CACHE})"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
