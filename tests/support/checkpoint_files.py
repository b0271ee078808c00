"""Checkpoints that a test writes itself."""

from pathlib import Path

from mxscale.rundir.checkpoints import FILES, MANIFEST
from mxscale.util.atomic_files import digest_of


def complete(folder: Path) -> Path:
    """Write the files that a checkpoint lacks, empty, and its MANIFEST; return the folder."""
    for name in FILES:
        (folder / name).touch()
    (folder / MANIFEST).write_text("".join(f"{digest_of(folder / name)}  {name}\n" for name in FILES))
    return folder
