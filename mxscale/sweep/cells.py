"""The cells of a sweep as texts and numbers: what makes two the same, names, cores.  Pure."""

import copy
import hashlib
import re
from typing import Dict, Iterable, List, Mapping, Sequence

from mxscale.config.schema import Config
from mxscale.config.signature import UNSIGNED, hash_of, remove, within
from mxscale.config.sizes import auto_ranks

# What a sweep's command line may have otherwise when it is resumed
OUTSIDE_IDENTITY = ("hydra", "tracking", "sweep", "budget", "resume", "runs")
LONGEST_NAME = 80  # characters


def identity(typed: Sequence[str]) -> List[str]:
    """What of a command line makes it the same sweep, in any order."""
    return sorted(override for override in typed if top_of(override) not in OUTSIDE_IDENTITY)


def top_of(override: str) -> str:
    """`optimizer` of optimizer.lr=0.1, of +optimizer.lr=0.1 and of optimizer=adam."""
    return re.split(r"[.=/@]", override.lstrip("+~"), maxsplit=1)[0]


def key(values: dict, swept: Iterable[str] = ()) -> str:
    """SHA-256 of a cell's composed settings, without what two runs of one signature may differ in.

    swept: keys that cells differ in, which count in any case.
    Unlike identity.signature it needs no data: paths stand for their files, so that it is known before anything is
    prepared.
    """
    kept = copy.deepcopy(values)
    counts = [name for name in UNSIGNED if any(within(each, [name]) or within(name, [each]) for each in swept)]
    remove(kept, [name for name in UNSIGNED if name not in counts])
    return hash_of(kept)


def swept(overrides: Sequence[str], keys: Mapping[str, str]) -> List[str]:
    """Those of a cell's overrides whose keys the sweep gives several values, in the sweep's order."""
    given: Dict[str, str] = {override.partition("=")[0].lstrip("+"): override for override in overrides}
    return [given[name] for name in keys if name in given]


def name(overrides: Sequence[str]) -> str:
    """`lr-0.1_seed-2` of optimizer.lr=0.1 and seed=2: a file name that needs no quoting on a command line."""
    pairs = [override.lstrip("+~").partition("=")[::2] for override in overrides]
    lasts = [re.split(r"[./]", key)[-1] for key, _ in pairs]
    words = []
    for (key, value), last in zip(pairs, lasts):
        short = last if lasts.count(last) == 1 else key
        words.append(re.sub(r"[^\w.+-]+", "-", f"{short}-{value}").rstrip("-."))
    text = "_".join(words) or "cell"
    if len(text) > LONGEST_NAME:
        text = f"{text[: LONGEST_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def threads(config: Config, at_a_time: int, cores: int) -> int:
    """OMP threads of each rank where several cells run on one machine: its cores are divided among all their ranks."""
    if config.launch.threads:
        return config.launch.threads
    ranks = auto_ranks(config, 0, 0, cores) if config.launch.ranks == "auto" else config.launch.ranks
    return max(1, cores // (at_a_time * (config.data.shards or ranks)))
