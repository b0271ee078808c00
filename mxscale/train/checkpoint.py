"""Checkpoints: written to a new name, checked, renamed; read back only when whole.

checkpoints/<9-digit step>/params      the network as it is evaluated and exported
                           trainer     the optimizer's state, as Trainer.save_states writes it
                           statistics  BN's running statistics of each shard, a .npy array
                           exchange    with double buffering: the summed gradients under way
                           state.json  step, shards, best so far, loss scale
                           MANIFEST    sha256sum -c format
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from mxnet import nd

from mxscale.models import weights
from mxscale.util.atomic_files import digest_of, sync
from mxscale.util.errors import ConfigError

FILES = ("params", "trainer", "statistics", "state.json")  # of every checkpoint


class Checkpoint(NamedTuple):
    path: Path
    state: Dict[str, Any]  # state.json
    params: Dict[str, Any]  # structural name -> NDArray
    statistics: np.ndarray  # (shards, values): running statistics of each shard, flat
    exchange: Dict[str, Any]  # place -> NDArray: sums of gradients under way, {} without


def write(final: Path, state: Dict[str, Any], params, trainer, statistics: np.ndarray, exchange=None) -> None:
    """Write the checkpoint `final` whole or not at all.  Raises OSError (a full disk, say) with nothing lost.

    params: structural name -> NDArray; trainer: the gluon.Trainer; exchange: place -> NDArray, what is under way.
    """
    folder = final.parent
    new = folder / f".{final.name}.{os.getpid()}"
    for left in folder.glob(".[0-9]*"):  # by a writer that was killed
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        _save_arrays(new / "params", params, state["params_sha256"])
        trainer.save_states(str(new / "trainer"))
        sync(new / "trainer")
        with open(new / "statistics", "wb") as file:
            np.save(file, statistics)
        sync(new / "statistics")
        if exchange:
            _save_arrays(new / "exchange", exchange, weights.params_sha256(_numpy(exchange)))
        _write(new / "state.json", (json.dumps(state, indent=1, sort_keys=True) + "\n").encode())
        names = [*FILES, "exchange"] if exchange else FILES
        manifest = "".join(f"{digest_of(new / name)}  {name}\n" for name in names)
        _write(new / "MANIFEST", manifest.encode())
        sync(new)
        if final.exists():  # the same step again, after a resume from before it
            shutil.rmtree(final)
        os.rename(new, final)
        sync(folder)
    except (OSError, ConfigError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise OSError(f"checkpoint of step {state['step']} not written: {error}") from error


def _save_arrays(path: Path, arrays, digest: str) -> None:
    """MXNet's own writer notices a full disk late, or not at all: what was written is read back."""
    weights.save(path, arrays)
    if weights.params_sha256(_numpy(weights.load(path))) != digest:
        raise OSError(f"{path} does not read back as written (a full disk?)")


def steps(folder: Path) -> List[int]:
    """The steps that have a checkpoint, oldest first."""
    return [int(path.name) for path in _all(folder)]


def _all(folder: Path) -> List[Path]:
    return sorted(folder.glob("[0-9]" * 9))


def newest_whole(folder: Path) -> Optional[Path]:
    """The newest checkpoint that is whole, None where there is none; a damaged one is passed over."""
    return next((path for path in reversed(_all(folder)) if whole(path)), None)


def newest(folder: Path) -> Optional[Checkpoint]:
    """What the newest checkpoint that is whole holds."""
    path = newest_whole(folder)
    return read(path) if path else None


def whole(path: Path) -> bool:
    """Whether every file has the digest that MANIFEST gives."""
    try:
        lines = (path / "MANIFEST").read_text().splitlines()
        listed = {line[66:]: line[:64] for line in lines}
        return listed.keys() >= set(FILES) and all(digest_of(path / name) == sum_ for name, sum_ in listed.items())
    except (OSError, ValueError):  # ValueError: a damaged MANIFEST is no text, or names no file
        return False


def read(path: Path) -> Checkpoint:
    state = json.loads((path / "state.json").read_text())
    exchange = nd.load(str(path / "exchange")) if (path / "exchange").exists() else {}
    return Checkpoint(path, state, weights.load(path / "params"), np.load(path / "statistics"), exchange)


def prune(folder: Path, current: int, keep: int, best: Optional[int]) -> None:
    """Remove all but the last `keep` up to `current` and the best.

    Later ones than `current` go as well: they were damaged, or the run would have gone on from them.
    """
    kept = [step for step in steps(folder) if step <= current][-keep:]
    for path in _all(folder):
        if int(path.name) not in (*kept, best):
            shutil.rmtree(path, ignore_errors=True)


def _numpy(arrays) -> Dict[str, np.ndarray]:
    return {name: array.asnumpy() for name, array in arrays.items()}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)
