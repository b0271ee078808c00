"""Guards around the work on a run directory: one parent at a time, undone refusals, one line for a full disk."""

import errno
import os
import shlex
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Optional, Set

from mxscale.config.schema import Config
from mxscale.rundir import directory, json_record
from mxscale.rundir.directory import RunDir
from mxscale.rundir.metrics_file import MAX_BYTES
from mxscale.util import file_lock
from mxscale.util.atomic_files import replacing
from mxscale.util.errors import ConfigError, RunFailed

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class DiskFailed(RunFailed):
    """The run directory can't be written any more; the message is one line."""


def resume_command(run: RunDir, config: Config) -> str:
    return shlex.join(["mxscale", config.entry, f"resume={run.path}"])


def check_present(run: RunDir) -> None:
    """Raise DiskFailed if the run directory was moved or removed."""
    if not (run.path / "config.yaml").exists():
        raise DiskFailed(f"{run.path} was moved or removed while the run wrote to it: the run has ended")


@contextmanager
def explained_disk_errors(run: RunDir, config: Config):
    """Raise DiskFailed in place of the OSError of a full or broken disk, or of a run directory that is gone."""
    try:
        yield
    except OSError as error:
        check_present(run)
        if error.errno not in DISK_ERRORS:
            raise
        resume = f"free space, then resume with: {resume_command(run, config)}"
        raise DiskFailed(f"can't write to {run.path} ({error.strerror}); {resume}") from None


@contextmanager
def locked(run: RunDir):
    """Hold the lock of a run directory. Raises ConfigError if another process holds it, or it is damaged."""
    check_kinds(run)
    try:
        handle = file_lock.acquire(run.path / "lock", wait=False)
    except BlockingIOError:
        raise ConfigError(f"{run.path} is in use by another process: wait for it, or stop it") from None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ConfigError(f"{run.path}: can't write there ({error.strerror}); change its owner or mount") from None
        raise ConfigError(f"{run.path}: can't be locked ({error.strerror}); set runs=DIR to another disk") from None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def undone_if_refused(run: RunDir, config: Config, new: bool):
    """Undo what was written if the run is refused: remove a new run directory, restore the files of an old one.

    The same applies if its preparation fails.
    """
    before = {path: json_record.read_bytes(path) for path in _records(run)}
    alive = None if new or not run.alive_file.exists() else run.alive_file.stat()
    try:
        yield
    except (ConfigError, RunFailed, OSError) as error:
        if not new:
            _restore(run, before, alive)
            raise
        discard(run)
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise directory.unwritable(config.runs, error) from None
        raise


def _restore(run: RunDir, before: Dict[Path, bytes], alive: Optional[os.stat_result]) -> None:
    for path in _records(run) - before.keys():
        path.unlink()
    for path, content in before.items():
        with replacing(path) as new:
            Path(new).write_bytes(content)
    if alive:  # when a killed attempt ended, up to which it is billed
        os.utime(run.alive_file, ns=(alive.st_atime_ns, alive.st_mtime_ns))


def _records(run: RunDir) -> Set[Path]:
    records = {path for path in run.path.glob("*.json") if not path.name.startswith("timeline_")}
    return {*run.path.glob("*.yaml"), *records, *run.path.glob("ranks/*.json")}


FOLDERS = ("ranks", "checkpoints", "probe", "rerun", "home")
FILES = ("*.yaml", "*.json", "*.jsonl", "lock", "alive", "stop", "ranks/*")


def check_kinds(run: RunDir) -> None:
    """Raise ConfigError if something else lies where a file or a folder of the run is written or read."""
    for path in [*(run.path / name for name in FOLDERS), *run.path.glob("checkpoints/[0-9]*")]:
        _check_kind(path, stat.S_ISDIR, "folder")
    for path in (path for pattern in FILES for path in run.path.glob(pattern)):
        _check_kind(path, stat.S_ISREG, "file")


def _check_kind(path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    try:
        status = path.stat()
        if not is_kind(status.st_mode):
            raise ConfigError(f"{path} is damaged: not a {kind}; remove it")
        if kind == "file" and status.st_size > MAX_BYTES:
            raise ConfigError(f"{path} is damaged: it has more than {MAX_BYTES >> 30} GiB; remove it")
    except OSError as error:
        if path.is_symlink() or not isinstance(error, FileNotFoundError):
            raise ConfigError(f"{path} is damaged: {error.strerror}") from None


def discard(run: RunDir) -> None:
    shutil.rmtree(run.path, ignore_errors=True)
