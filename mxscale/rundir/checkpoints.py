"""Checkpoints on disk: which a run has, and whether they are complete. Every reader of one calls `verify` first.

A checkpoint is complete if every file has the SHA-256 that its MANIFEST lists, in the format of sha256sum -c.
"""

from pathlib import Path
from typing import Dict, List, Optional

from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import read_regular

MANIFEST = "MANIFEST"
OPTIMIZER, PICKLED = "optimizer.json", "trainer"  # the optimizer's state; that of earlier versions
FILES = ("params", OPTIMIZER, "statistics", "state.json")  # of every checkpoint
MAX_MANIFEST, MAX_BYTES = 1 << 20, 8 << 30  # of MANIFEST, of any other file


def verify(path: Path) -> Dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint, after reading them all.

    Raises ConfigError if a file is missing or differs from MANIFEST.
    """
    listed = listed_in(path)
    for name, digest in listed.items():
        try:
            if (path / name).stat().st_size > MAX_BYTES:
                raise ConfigError(f"{path} is damaged: {name} has more than {MAX_BYTES / 1e9:.0f} GB")
            if digest_of(path / name) != digest:
                raise ConfigError(f"{path} is damaged: {name} differs from {MANIFEST}; use another checkpoint")
        except OSError as error:
            raise ConfigError(f"{path} is damaged: {name}: {error.strerror}") from None
    return listed


def listed_in(path: Path) -> Dict[str, str]:
    """Return the SHA-256 of each file that MANIFEST lists. Raises ConfigError."""
    try:
        lines = read_regular(path / MANIFEST, MAX_MANIFEST).decode(errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} is no complete checkpoint: {MANIFEST}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path that best.json names
        raise ConfigError(f"{str(path)!r} is no path of a checkpoint: {error}") from None
    listed = {line[66:]: line[:64] for line in lines}
    missing = [name for name in FILES if name not in listed and not (name == OPTIMIZER and PICKLED in listed)]
    foreign = [name for name in listed if Path(name).name != name]
    if missing or foreign:
        what = f"lists no {missing[0]}" if missing else f"lists {foreign[0][:200]!r}"
        raise ConfigError(f"{path} is damaged: {MANIFEST} {what}")
    return listed


def is_complete(path: Path) -> bool:
    try:
        verify(path)
    except ConfigError:
        return False
    return True


def paths(folder: Path) -> List[Path]:
    """Return the checkpoints in the folder `checkpoints` of a run, oldest first, damaged ones included."""
    return sorted(folder.glob("[0-9]" * 9))


def steps(folder: Path) -> List[int]:
    """Return the steps that have a checkpoint, oldest first."""
    return [int(path.name) for path in paths(folder)]


def newest(folder: Path) -> Optional[Path]:
    """Return the newest complete checkpoint, None if there is none."""
    return next((path for path in reversed(paths(folder)) if is_complete(path)), None)


def verified_weights(file: Path, in_checkpoint: bool) -> Optional[str]:
    """Return the SHA-256 of a file of weights in a checkpoint, after verifying all of it; None of any other file.

    Args:
        in_checkpoint: Whether `file` must be in a checkpoint; otherwise MANIFEST beside it tells.

    Raises ConfigError.
    """
    if in_checkpoint or (file.parent / MANIFEST).exists():
        return verify(file.parent).get(file.name)
    return None
