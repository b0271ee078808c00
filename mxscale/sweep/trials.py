"""Identity, name and threads of a sweep's trials, from overrides and settings."""

import hashlib
import re
from typing import Dict, Iterable, List, Mapping, Sequence

from mxscale.config.schema import Config
from mxscale.config.signature import UNSIGNED, hash_of, within, without
from mxscale.config.sizes import auto_ranks
from mxscale.util.redaction import redact

# Keys that may differ when a sweep is resumed
OUTSIDE_IDENTITY = ("hydra", "tracking", "sweep", "budget", "resume", "runs")
LONGEST_NAME = 80  # characters


def identity(typed: Sequence[str]) -> List[str]:
    """Return the sorted overrides that identify a sweep."""
    return sorted(identifying(typed))


def identifying(typed: Sequence[str]) -> List[str]:
    """Return the overrides that identify a sweep, in the order of the command line, which numbers the trials."""
    return [override for override in typed if top_of(override) not in OUTSIDE_IDENTITY]


def in_order(typed: Sequence[str], order: Sequence[str]) -> List[str]:
    """Return the overrides with those that identify the sweep in `order`, in which its first attempt had them."""
    rest = [override for override in typed if top_of(override) in OUTSIDE_IDENTITY]
    return [*rest, *(order if sorted(order) == identity(typed) else identifying(typed))]


def top_of(override: str) -> str:
    """Return `optimizer` for optimizer.lr=0.1, +optimizer.lr=0.1 and optimizer=adam."""
    return re.split(r"[.=/@]", override.lstrip("+~"), maxsplit=1)[0]


def key(values: dict, swept: Iterable[str] = ()) -> str:
    """Return the SHA-256 of a trial's composed settings, without those that runs of one signature may differ in.

    Unlike the signature it needs no data: paths represent their files, so that it is known before the preparation.

    Args:
        swept: Keys that the sweep varies; always included.
    """
    counts = [name for name in UNSIGNED if any(within(varied, [name]) or within(name, [varied]) for varied in swept)]
    return hash_of(without(values, [name for name in UNSIGNED if name not in counts]))


def swept(overrides: Sequence[str], keys: Mapping[str, str]) -> List[str]:
    """Return the overrides of a trial whose keys the sweep varies, in the order of the command line."""
    texts: Dict[str, str] = {override.partition("=")[0].lstrip("+"): override for override in overrides}
    return [redact(texts[name]) for name in keys if name in texts]


def name(overrides: Sequence[str]) -> str:
    """Return `lr-0.1_seed-2` for optimizer.lr=0.1 and seed=2: a file name that needs no quoting in a shell."""
    pairs = [override.lstrip("+~").partition("=")[::2] for override in overrides]
    lasts = [re.split(r"[./]", key)[-1] for key, _ in pairs]
    parts = []
    for (key, value), last in zip(pairs, lasts):
        short = last if lasts.count(last) == 1 else key
        parts.append(re.sub(r"[^\w.+-]+", "-", f"{short}-{value}").rstrip("-."))
    text = "_".join(parts) or "cell"
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def threads(config: Config, at_a_time: int, cores: int) -> int:
    """Return the OMP threads per rank of concurrent trials: the cores divided among the ranks of all of them."""
    if config.launch.threads:
        return config.launch.threads
    ranks = auto_ranks(config, 0, 0, cores) if config.launch.ranks == "auto" else config.launch.ranks
    return max(1, cores // (at_a_time * (config.data.shards or ranks)))
