"""One attempt at a run, as the parent sees it: prepare, start the ranks, watch, sum up.

The parent never imports mxnet: a child answers for it.
"""

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import date
from typing import Optional

import psutil

from mxscale.config import Config, ConfigError
from mxscale.run import costs, environment, launch, rundir, summary, tracking
from mxscale.run.processes import Processes, available_cores
from mxscale.run.progress import Progress
from mxscale.run.rundir import FAILED, FINISHED, INTERRUPTED, KILLED, RUNNING, RunDir
from mxscale.scale import prices

ALIVE_EVERY_S = 5.0
POLL_S = 0.1
STRAGGLE_S = 15.0  # between one rank's failure and the end of the others
ORPHANS_S = 60.0  # for ranks that a killed parent left behind
TRACKING_S = 30.0  # for what is unsent when the ranks have ended
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # of the disk, not of the program


class DiskFailed(Exception):
    """The run directory can't be written any more; the message is one line."""


def execute(config: Config, run: Optional[RunDir] = None) -> dict:
    """Start a run, or go on with `run`; returns its status ({"state", "exit", ...}).

    Raises ConfigError before the first step, DiskFailed where not even the status could be written.
    """
    began = psutil.Process().create_time()
    price = prices.freeze_price(config.machine, config.launch.setup_minutes, date.today())
    weights_file = pretrained_file(config)
    if config.tracking.enabled:
        tracking.store_uri(config)  # refuses what is none
    fresh = run is None
    run = run or create_run(config)
    with locked(run), disk_watched(run, config), Signals() as signals:
        with undone_if_refused(run, config, fresh):
            attempt = begin_attempt(run, config, price, weights_file, fresh)
            stamps = {"compose": time.time() - began}
            prepare(run, signals)
            stamps["preparation"] = time.time() - began - sum(stamps.values())
            mirror = tracking.open_mirror(run, config.tracking, costs.cost_of(run))
        ranks, stopped = 0, signals.reason
        if not stopped:
            plan = run.read("plan.json")
            announce(run, config, plan, price)
            record_environment(run, config, plan)
            ranks, stopped = plan["sizes"]["ranks"], supervise(run, config, plan, attempt, signals, mirror)
        status = end_attempt(run, ranks, attempt, stopped, {"began": began, **stamps})
        unsent = mirror.finish(TRACKING_S)
    if ranks:
        print(summary.table(run, tracking.view_hint(run)))
    if unsent:
        print(unsent)
    tell_how_it_ended(run, config, status)
    return status


def pretrained_file(config: Config) -> Optional[str]:
    """The .params file that model.pretrained names: a file, or a run's best checkpoint."""
    source = config.model.pretrained
    if source is None or not os.path.isdir(source):
        if source is not None and not os.path.isfile(source):
            raise ConfigError(f"model.pretrained={source}: no such file or run directory")
        return source
    best = RunDir(source).read("best.json")
    if best is None:
        raise ConfigError(f"model.pretrained={source}: that is no run directory with a best checkpoint")
    return os.path.join(source, best["checkpoint"], "params")


# ---------------------------------------------------------------- before the ranks


def create_run(config: Config) -> RunDir:
    try:
        return rundir.create(config)
    except OSError as error:
        raise ConfigError(_unwritable(config, error)) from None


def _unwritable(config: Config, error: OSError) -> str:
    return f"runs={config.runs}: can't write a run directory there ({error.strerror}); make room, or set runs=DIR"


@contextmanager
def disk_watched(run: RunDir, config: Config):
    """A disk that fills up under a run ends it in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        go_on = f"make room, then go on with: python {config.entry}.py resume={run.path}"
        raise DiskFailed(f"can't write to {run.path} ({error.strerror}); {go_on}") from None


@contextmanager
def locked(run: RunDir):
    """One parent per run directory."""
    with open(run.path / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{run.path} is in use by another process: wait for it, or stop it") from None
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
                raise ConfigError(_unwritable(config, error)) from None
        else:
            for path, text in before.items():
                rundir.replace(path, text)
        raise


def begin_attempt(run: RunDir, config: Config, price: dict, weights_file: Optional[str], fresh: bool) -> int:
    """Note that an attempt begins, and take away what the last one left for the parent and the ranks."""
    status = run.read("status.json") or {"attempts": []}
    attempt = len(status["attempts"]) + 1
    for stale in [run.stop_file, run.path / "refused.json", *run.path.glob("ranks/*.json")]:
        stale.unlink(missing_ok=True)
    status["attempts"].append({"attempt": attempt, "started_ms": int(time.time() * 1000)})
    run.write("status.json", {**status, "state": RUNNING, "attempt": attempt})
    run.write_config(config)
    if fresh:
        run.write("price.json", price)
    plan = run.read("plan.json") or {}
    run.write("plan.json", {**plan, "attempt": attempt, "pretrained": plan.get("pretrained") or weights_file})
    run.write("environment.json", environment.describe())
    run.begin_alive(attempt)
    wait_for_orphans(run)
    return attempt


def wait_for_orphans(run: RunDir) -> None:
    """Ranks of an attempt whose parent was killed end by themselves in seconds; nothing may start before."""
    deadline = time.monotonic() + ORPHANS_S
    with run.ranks_lock() as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"{run.path}: ranks of an earlier attempt do not end; kill them") from None
                time.sleep(0.1)


def prepare(run: RunDir, signals: "Signals") -> None:
    """Run the preparation child to its end, or to a signal's.  Raises ConfigError where it refuses."""
    env = {**os.environ, "PYTHONPATH": str(launch.ROOT), "OMP_NUM_THREADS": str(available_cores())}
    child = subprocess.Popen([sys.executable, "-m", "mxscale.train.prepare", str(run)], env=env, start_new_session=True)
    touched = 0.0
    while child.poll() is None:
        if time.monotonic() - touched > ALIVE_EVERY_S:
            run.touch_alive()
            touched = time.monotonic()
        if signals.reason:
            child.terminate()
        time.sleep(0.02)
    if child.returncode and not signals.reason:
        refused = run.read("refused.json") or {}
        messages = f"the preparation ended with status {child.returncode}; its messages are above"
        raise ConfigError(refused.get("error", messages))


def discard(run: RunDir) -> None:
    """A run that was refused before its first step leaves nothing behind."""
    for path in sorted(run.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.path.rmdir()


def record_environment(run: RunDir, config: Config, plan: dict) -> None:
    facts = run.read("environment.json")
    digest = file_digest(plan["pretrained"]) if plan.get("pretrained") else None
    facts["tags"] = environment.tags(facts, plan, rundir.signature(config, plan["data_digest"], digest))
    plan["weak_signature"] = rundir.signature(config, plan["data_digest"], digest, ranks=False)
    plan["threads"] = launch.threads_per_rank(config, plan["sizes"]["ranks"], available_cores())
    run.write("plan.json", plan)
    facts["data"] = {
        "name": config.data.kind,
        "digest": plan["data_digest"][:36],
        "source": plan.get("data_dir") or "made up",
    }
    run.write("environment.json", facts)


def file_digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(2**20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def announce(run: RunDir, config: Config, plan: dict, price: dict) -> None:
    """The sizes that follow from the config, and the price, before anything is spent."""
    s = plan["sizes"]
    print(f"run       {run.path}")
    print(f"data      {config.data.kind}: {s['train_images']:,} training images, {plan['classes']} classes"
          + (f"; {plan['skipped']} bad images skipped" if plan["skipped"] else ""))  # fmt: skip
    print(f"model     {config.model.name}" + (f" from {config.model.pretrained}" if config.model.pretrained else ""))
    print(f"ranks     {s['ranks']} on {plan['device']}, {s['shards']} data shards")
    print(
        f"batch     {s['per_device_batch']} per device, {s['global_batch']} global; effective lr {s['effective_lr']:g}"
    )
    dropped = s["dropped_per_epoch"]
    rest = f", the last {dropped} images of an epoch's order are dropped" if dropped else ""
    print(f"steps     {s['total_steps']:,} ({s['steps_per_epoch']:,} per epoch{rest})")
    print(f"price     {prices.describe(price) if price['known'] else 'unknown'}", flush=True)


# ---------------------------------------------------------------- while the ranks run


class Signals:
    """SIGTERM and Ctrl-C become a wish: `reason` is set by the first, `urgent` by the second."""

    def __init__(self):
        self.reason: Optional[str] = None
        self.urgent = False

    def __enter__(self):
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number, _frame):
        self.urgent = self.reason is not None
        self.reason = self.reason or signal.Signals(number).name


def supervise(run: RunDir, config: Config, plan: dict, attempt: int, signals: Signals, mirror) -> Optional[str]:
    """Start the ranks and stay until they have ended; the reason where they were asked to stop."""
    commands = launch.commands(config, str(run), plan["sizes"]["ranks"], available_cores(), os.environ)
    progress = Progress(run, plan, costs.cost_of(run))
    with open(run.path / "ranks" / "launch.log", "ab") as log:
        processes = Processes(commands, log)
        try:
            _watch(run, config, processes, progress, signals, mirror)
        finally:
            processes.stop()
            progress.close()
    mirror.start()
    return signals.reason


def _watch(run: RunDir, config: Config, processes: Processes, progress: Progress, signals: Signals, mirror) -> None:
    touched, asked_at, failed_at = 0.0, None, None
    while processes.ended() is None:
        now = time.monotonic()
        if now - touched > ALIVE_EVERY_S:
            run.touch_alive()
            touched = now
        if progress.update():
            mirror.start()  # not before the ranks are busy with steps: its imports cost seconds of a core
        if signals.reason and asked_at is None:
            run.ask_to_stop(f"signal {signals.reason}")
            print(
                f"\n{signals.reason}: finishing the step and writing a checkpoint; once more ends at once", flush=True
            )
            asked_at = now
        if signals.urgent or (asked_at and now - asked_at > config.launch.stop_grace_s):
            return
        if any_failure(run):
            failed_at = failed_at or now
            if now - failed_at > STRAGGLE_S:
                return
        time.sleep(POLL_S)


# ---------------------------------------------------------------- after the ranks


def end_attempt(run: RunDir, ranks: int, attempt: int, stopped: Optional[str], stamps: dict) -> dict:
    """Merge the ranks' status (ranks 0: none was started), sum the run up, and write both."""
    status = run.read("status.json")
    status["attempts"][-1]["ended_ms"] = int(time.time() * 1000)
    status.update(merge([run.read(run.rank_status(r)) for r in range(ranks)], stopped))
    status["stamps"] = stamps
    run.write("status.json", status)
    if ranks:
        run.write("summary.json", summary.summarise(run, attempt))
    return {**status, "summary": (run.read("summary.json") or {"metrics": {}})["metrics"]}


def any_failure(run: RunDir) -> bool:
    return any((run.read(f"ranks/{p.name}") or {}).get("exit") for p in run.path.glob("ranks/*.json"))


def merge(ranks: list, stopped: Optional[str]) -> dict:
    """One status out of the ranks' (None: that rank wrote none).  The earliest real failure is the cause.

    A rank whose peer is gone fails as well, in Horovod; a rank that was killed writes nothing.
    """
    written = [r for r in ranks if r]
    if ranks and len(written) == len(ranks) and all(r["exit"] == 0 for r in written):
        return {
            "state": FINISHED,
            "exit": 0,
            "error": None,
            "step": written[0]["step"],
            "params_sha256": written[0]["params_sha256"],
        }
    failures = sorted((r for r in written if r["exit"] not in (0, INTERRUPTED)), key=lambda r: r["time_ms"])
    causes = [r for r in failures if not r["consequence"]]
    if causes:
        cause = causes[0]
        return {"state": FAILED, "exit": cause["exit"], "error": f"rank {cause['rank']}: {cause['error']}"}
    if stopped or any(r["exit"] == INTERRUPTED for r in written):
        return {"state": KILLED, "exit": INTERRUPTED, "error": None, "reason": stopped or "the parent was gone"}
    silent = [str(r) for r, status in enumerate(ranks) if status is None]
    if silent:
        return {
            "state": FAILED,
            "exit": 1,
            "error": f"rank {', '.join(silent)} ended without a word (killed, or out of memory?)",
        }
    return {"state": FAILED, "exit": 1, "error": f"rank {failures[0]['rank']}: {failures[0]['error']}"}


def tell_how_it_ended(run: RunDir, config: Config, status: dict) -> None:
    """The error last, and how to go on."""
    if status["state"] == FINISHED:
        return
    if status["state"] == KILLED:
        print(f"interrupted ({status['reason']}); go on with: python {config.entry}.py resume={run.path}")
        return
    print(f"the ranks' logs are in {run.path}/ranks; to go on: python {config.entry}.py resume={run.path}")
    print(f"error: {status['error']}", file=sys.stderr, flush=True)
