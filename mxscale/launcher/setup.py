"""What comes before the ranks of an attempt: the run directory, the preparation, what is refused.

A refusal here is exit 2, and leaves nothing of a new run and an old one as it was.
"""

import errno
import hashlib
import os
import shlex
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import List, Optional

from mxscale.config import signature
from mxscale.config.schema import Config, origin_of
from mxscale.cost import run_cost
from mxscale.doctor import doctor
from mxscale.environment import description, hosts
from mxscale.environment.container_limits import available_cores
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.launcher import backend_probe, budget, commands
from mxscale.launcher.supervisor import Signals, kept_alive
from mxscale.records import summary
from mxscale.rundir import directory
from mxscale.rundir.directory import RUNNING, RunDir
from mxscale.rundir.plan import Image, Plan
from mxscale.util import file_lock
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

ORPHANS_S = 120.0  # for ranks that a killed parent left behind, or a lost host
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # of the disk, not of the program


class DiskFailed(Exception):
    """The run directory can't be written any more; the message is one line."""


def pretrained_file(config: Config, run: Optional[RunDir] = None) -> Optional[str]:
    """The .params file that model.pretrained names: a file, or a run's best checkpoint.

    None where the preparation makes it of something else, and where `run` goes on from a checkpoint: the weights
    it began with may be gone by then.
    """
    source = config.model.pretrained
    if source is None or origin_of(source)[0] != "path" or (run is not None and run.has_checkpoint()):
        return None
    if not os.path.isdir(source):
        if not os.path.isfile(source):
            raise ConfigError(f"model.pretrained={source}: no such file or run directory")
        return source
    best = RunDir(source).read("best.json")
    if best is None:
        raise ConfigError(f"model.pretrained={source}: that is no run directory with a best checkpoint")
    return os.path.join(source, best["checkpoint"], "params")


def resume_command(run: RunDir, config: Config) -> str:
    return shlex.join(["python", f"{config.entry}.py", f"resume={run.path}"])


@contextmanager
def disk_watched(run: RunDir, config: Config):
    """A disk that fills up under a run ends it in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        go_on = f"make room, then go on with: {resume_command(run, config)}"
        raise DiskFailed(f"can't write to {run.path} ({error.strerror}); {go_on}") from None


@contextmanager
def locked(run: RunDir):
    """One parent per run directory."""
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock.locked(run.path / "lock", wait=False))
        except BlockingIOError:
            raise ConfigError(f"{run.path} is in use by another process: wait for it, or stop it") from None
        except OSError as error:
            raise ConfigError(f"{run.path}: can't be locked ({error.strerror}); set runs=DIR to another disk") from None
        yield


@contextmanager
def undone_if_refused(run: RunDir, config: Config, fresh: bool):
    """A refusal leaves a new run's directory gone, and the files of an old one as they were."""
    files = [*run.path.glob("*.yaml"), *run.path.glob("*.json"), *run.path.glob("ranks/*.json")]
    before = {path: path.read_text() for path in files}
    try:
        yield
    except (ConfigError, OSError) as error:
        if fresh:
            discard(run)
            if isinstance(error, OSError) and error.errno in FULL:
                raise directory.unwritable(config, error) from None
        else:
            for path, text in before.items():
                directory.replace(path, text)
        raise


def begin_attempt(
    run: RunDir, config: Config, price: dict, weights_file: Optional[str], began: float, signals: Signals
) -> int:
    """Note that an attempt begins, and take away what the last one left for the parent and the ranks.

    began: when this process was started, in seconds since 1970: billed from there, on the price's nodes.
    """
    attempts = run.attempts
    attempt = len(attempts) + 1
    for earlier in attempts:
        earlier.setdefault("ended_ms", run_cost.last_seen_ms(run, earlier))  # its parent was killed
    run.begin_alive(attempt)
    wait_for_orphans(run, signals)  # before their last words are taken away
    signs = [*run.path.glob("ranks/*.json"), *run.path.glob("ranks/*.alive")]
    for stale in [run.stop_file, run.path / "refused.json", *signs]:
        stale.unlink(missing_ok=True)
    attempts.append({"attempt": attempt, "started_ms": int(began * 1000), "nodes": price.get("nodes", 1)})
    run.write("status.json", {"attempts": attempts, "state": RUNNING, "attempt": attempt})
    run.write_config(config)
    if attempt == 1:
        run.write("price.json", price)
    run.write_plan(replace(run.plan(), pretrained=weights_file))
    run.write("environment.json", description.describe(run.path))
    return attempt


def wait_for_orphans(run: RunDir, signals: Signals) -> None:
    """Ranks of an attempt whose parent was killed end by themselves in seconds; nothing may start before.

    The same goes for those on a host that can't be reached, where an NFS server holds their lock for a lease's
    time (90 s as a rule).
    """
    deadline = time.monotonic() + ORPHANS_S
    while True:
        try:
            with file_lock.locked(run.ranks_lock, wait=False):
                return
        except BlockingIOError:
            if signals.reason:
                return  # no rank will be started
            if time.monotonic() > deadline:
                raise ConfigError(f"{run.path}: ranks of an earlier attempt do not end; kill them") from None
            time.sleep(0.1)


def place(
    run: RunDir, config: Config, nodes: List[hosts.Host], image: Optional[Image], ranks: Optional[int] = None
) -> None:
    """See that the hosts are there; note them ([]: this machine) and the image in plan.json.  Raises ConfigError.

    ranks: fewer than launch.ranks, because there are no hosts for more.
    """
    hosts.check(nodes, run)
    plan = replace(run.plan(), hosts=tuple(nodes), image=image, fitted_ranks=ranks)
    run.write_plan(backend_probe.with_scheduler(config, plan))


def prepare(run: RunDir, config: Config, attempt: int, signals: Signals) -> None:
    """Run the preparation child to its end, a signal's or the budget's.  Raises ConfigError where it refuses."""
    command = commands.preparation(config, str(run), attempt, available_cores(), os.environ)
    deadline = budget.deadline(run, config.budget, attempt)
    child = subprocess.Popen(command.argv, env=command.env, start_new_session=True)
    with kept_alive(run):
        asked = spent = False
        while child.poll() is None:
            spent = time.time() > deadline - budget.END_S
            if (signals.reason or spent) and not asked:
                child.terminate()
                asked = True
            if signals.urgent or time.time() > deadline:
                child.kill()
            time.sleep(0.02)
    if signals.reason or not child.returncode:
        return
    if spent:
        raise ConfigError(f"{budget.told(config.budget.bounds)}: the preparation alone comes to more; give more")
    refused = run.read("refused.json") or {}
    messages = f"the preparation ended with status {child.returncode}; its messages are above"
    raise ConfigError(refused.get("error", messages))


def discard(run: RunDir) -> None:
    """A run that was refused before its first step leaves nothing behind."""
    shutil.rmtree(run.path)


def record_environment(run: RunDir, config: Config, plan: Plan) -> Plan:
    """Record threads and signatures in plan.json, tags in environment.json; return the new plan."""
    facts, weights = run.read("environment.json"), plan.pretrained_sha256
    if plan.pretrained:
        weights = digest_of(plan.pretrained)
        if plan.graph:  # the same arrays in another graph are another network
            weights = hashlib.sha256((weights + digest_of(plan.graph)).encode()).hexdigest()
    placed = Placement.of(plan, available_cores())
    signed = directory.as_signed(run, config)
    plan = replace(
        plan,
        pretrained_sha256=weights,
        threads=threads_per_rank(config, placed),
        weak_signature=signature.signature(signed, plan.data_digest, weights, ranks=False),
        speed_signature=signature.signature(summary.for_speed(signed), plan.data_digest, weights, ranks=False),
    )
    run.write_plan(plan)
    own = signature.signature(signed, plan.data_digest, weights)
    facts["tags"] = description.tags(facts, plan, own, config.claims)
    facts["doctor"] = doctor.of_run(facts, config, plan, placed.per_host)
    facts["probe"] = run.read(backend_probe.RECORD)
    counts = {name: split.count for name, split in plan.splits.items()}
    facts["data"] = {
        "name": config.data.kind,
        "digest": plan.data_digest[:36],
        "source": {"uri": plan.data_dir or "made up"},  # as MLflow's own local source writes it
        "profile": {"num_rows": sum(counts.values()), "classes": plan.classes, **counts},
    }
    run.write("environment.json", facts)
    return plan


def note_ranks(run: RunDir, ranks: int) -> None:
    """Of the attempt under way: rates of attempts with other ranks are not mixed with its own."""
    status = run.read("status.json")
    status["attempts"][-1]["ranks"] = ranks
    run.write("status.json", status)
