"""Weights from the Hugging Face hub, through the huggingface_hub library.

The library's variables apply (HF_ENDPOINT, HF_HOME, HF_TOKEN, HF_HUB_OFFLINE). Files in its cache are not fetched
again, and an interrupted download is resumed.
"""

import re
from pathlib import Path
from typing import NamedTuple, Optional

import huggingface_hub
from huggingface_hub import constants, errors

from mxscale.models.weights import MAX_BYTES
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import excerpt, redact_address

WEIGHTS, SETTINGS = "model.safetensors", "config.json"  # as timm writes them


class Fetched(NamedTuple):
    path: str  # of the weights; config_path is in the same directory
    config_path: Optional[str]
    revision: str  # the commit of the branch or tag


def fetch(reference: str) -> Fetched:
    """Return the files of `<owner>/<model>[@revision]`, from the cache or the hub. Raises ConfigError."""
    source = f"model.pretrained=hf:{reference}"
    model, at, revision = reference.partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or (at and not revision):
        raise ConfigError(f"{source}: expected hf:OWNER/MODEL or hf:OWNER/MODEL@REVISION")
    try:
        size = huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision or None, dry_run=True).file_size
        if size > MAX_BYTES:
            raise ConfigError(
                f"{source}: its {WEIGHTS} has {size / 1e9:.1f} GB; expected at most {MAX_BYTES / 1e9:.1f} GB"
            )
        path = huggingface_hub.hf_hub_download(model, WEIGHTS, revision=revision or None)
        commit = Path(path).parent.name  # .../snapshots/<commit>/model.safetensors
        try:
            settings = huggingface_hub.hf_hub_download(model, SETTINGS, revision=commit)
        except errors.EntryNotFoundError:
            settings = None
    except ConfigError:
        raise
    except Exception as error:  # of the library, httpx or the file system
        raise ConfigError(f"{source}: {_reason(error, revision)}") from None
    _verify(Path(path), source)
    return Fetched(path, settings, commit)


def _verify(path: Path, source: str) -> None:
    """Verify a large file by its name in the cache, its SHA-256 on the hub; the library compares only sizes."""
    blob = path.resolve()
    if not re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return
    if digest_of(blob) != blob.name:
        raise ConfigError(f"{source}: {blob} is damaged: its SHA-256 differs from the hub's; remove it and try again")


def _reason(error: Exception, revision: str) -> str:
    """Return a one-line reason; the library's own messages are long."""
    hub = redact_address(constants.ENDPOINT)
    if isinstance(error, errors.GatedRepoError):
        return f"{hub} requires its terms to be accepted; accept them and set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub} has no revision {revision or 'main'} of this model"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no such model, or HF_TOKEN gives no access to it"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"it has no {WEIGHTS}; download its .pth file and use torch:FILE"
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} does not answer"
        return f"{why}, and it is not in the cache ({constants.HF_HUB_CACHE}); download it elsewhere, or use torch:FILE"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{hub} returned status {error.response.status_code}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename or constants.HF_HUB_CACHE})"
    return f"{type(error).__name__}: {excerpt(str(error))}"
