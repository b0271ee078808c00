"""Set-up of an attempt before its ranks start: checks, preparation, what is recorded and printed.

A refusal here is exit status 2. It removes a new run directory and leaves an old one unchanged.
"""

import hashlib
import math
import os
import subprocess
import time
from dataclasses import replace
from typing import List, NamedTuple, Optional, Sequence

import psutil

from mxscale.config import signature
from mxscale.config.networks import NETWORKS
from mxscale.config.schema import Comm, Config, Launch, Machine, flatten, from_dict, origin_of, to_dict, unflatten
from mxscale.config.sizes import server_count
from mxscale.cost import prices, run_cost
from mxscale.environment import description, hosts, machine
from mxscale.environment.container_limits import available_cores
from mxscale.environment.placement import Placement, threads_per_rank
from mxscale.launcher import budget, commands
from mxscale.launcher.alive import kept_alive
from mxscale.launcher.context import Hook, Resources, RunContext, Signals
from mxscale.launcher.failure import Logs
from mxscale.rundir import directory, status
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.tracking import uris
from mxscale.util import file_lock
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError, RunFailed, signal_name
from mxscale.util.terminal import echo

ORPHANS_S = 120.0  # longest wait for ranks that a killed parent or a lost host left behind


class Attempt(NamedTuple):
    """An attempt whose ranks can be started."""

    context: RunContext  # its config includes what the preparation determined
    plan: Optional[Plan]  # None: stopped during set-up
    logs: Logs


# ---------------------------------------------------------------- before the run directory


def check(config: Config, run: Optional[RunDir], hooks: Sequence[Hook]) -> Resources:
    """Return the resources of the first attempt of this process. Writes nothing.

    Args:
        run: The run to resume; None for a new one.

    Raises:
        ConfigError: Hosts, price, budget, weights or tracking URI can't be used.
    """
    nodes = hosts.find(config)
    price = price_of(config, nodes, run, hooks)
    budget.check(config.budget, price, run_cost.so_far(run))
    check_horovod(config.comm, config.launch)
    weights_file = pretrained_file(config, run)
    if config.tracking.enabled:
        uris.store_uri(config.tracking, config.runs)  # raises ConfigError for an invalid URI
    return Resources(nodes, price, started(hooks), weights_file)


def started(hooks: Sequence[Hook]) -> float:
    """Return when a run that starts in this process begins to be billed, in seconds since 1970."""
    return next((hook.started for hook in hooks if hook.started), psutil.Process().create_time())


def check_horovod(comm: Comm, launch: Launch) -> None:
    """Raise ConfigError if horovodrun or Gloo would crash on this machine."""
    if not comm.entry.connects(2 if launch.ranks == "auto" else launch.ranks) or comm.transport != "gloo":
        return
    if not (launch.hosts or hosts.resolves("localhost")):
        line = "add the line `127.0.0.1 localhost` to /etc/hosts"
        raise ConfigError(f"comm={comm.backend}: the name localhost does not resolve, and horovodrun needs it; {line}")
    shm = machine.shared_memory()
    if not (shm and shm["writable"]):
        raise ConfigError(f"comm={comm.backend}: {'; '.join(machine.SHM_NOT_WRITABLE)}")


def price_of(
    config: Config, nodes: List[hosts.Host], run: Optional[RunDir] = None, hooks: Sequence[Hook] = ()
) -> Price:
    """Return the price record for these nodes; a resumed run keeps the price of its first start.

    Raises ConfigError.
    """
    billed = billed_machine(config, nodes)
    price = next(filter(None, (hook.price(config) for hook in hooks)), run and run.price())
    return replace(price, nodes=billed.nodes) if price else run_cost.pricing(config)(billed)


def billed_machine(config: Config, nodes: List[hosts.Host]) -> Machine:
    """Return config.machine with at least as many nodes as there are hosts with ranks."""
    return replace(config.machine, nodes=max(config.machine.nodes, len(nodes)))


def pretrained_file(config: Config, run: Optional[RunDir] = None) -> Optional[str]:
    """Return the .params file that model.pretrained names: a file, or a run's best checkpoint.

    None if the preparation makes the file from another source. Also None if `run` resumes from a checkpoint: its
    initial weights may no longer exist.
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


# ---------------------------------------------------------------- an attempt


def set_up(context: RunContext) -> Attempt:
    """Do everything that precedes the ranks of an attempt. Raises ConfigError to refuse it."""
    run, context = context.run, begin_attempt(context)
    logs = Logs(run.path / "ranks")
    context = prepared(context)
    if context.signals.reason:
        return Attempt(context, None, logs)
    plan = record_environment(run, context.config, run.plan())
    budget.check_prepared(run, context.config.budget, context.attempt)
    run.save(run.status().with_attempt(ranks=plan.sizes.ranks))  # rates depend on this number
    for hook in context.hooks:
        hook.before_ranks(context, plan)
    return Attempt(context, plan, logs)


def prepared(context: RunContext) -> RunContext:
    """Place and prepare an attempt and print it; return its context with the config as the preparation left it.

    A stop signal ends it early. Raises ConfigError to refuse the attempt.
    """
    run = context.run
    place(context)
    prepare(context)
    context = replace(context, config=run.config())  # the preparation may have set the input of pretrained weights
    if not context.signals.reason:
        hosts.check_inputs(run.plan())
        announce(run, context.config, run.plan(), run.price())
    return context


def begin_attempt(context: RunContext) -> RunContext:
    """Record a new attempt and remove the rank files of the previous one; return the context with its number."""
    run, resources = context.run, context.resources
    # An attempt whose parent was killed has no recorded end
    earlier = [replace(past, ended_ms=past.ended_ms or run_cost.last_seen_ms(run, past)) for past in run.attempts]
    attempt = len(earlier) + 1
    run.begin_alive(attempt)
    wait_for_orphans(run, context.signals)  # before their status files are removed
    rank_files = [*run.path.glob("ranks/*.json"), *run.path.glob("ranks/*.alive")]
    for stale in [run.stop_file, run.path / "refused.json", *rank_files]:
        stale.unlink(missing_ok=True)
    started_ms = round(resources.started * 1000)
    started = status.Attempt(attempt, started_ms, resources.price.nodes, continues=resources.continues)
    run.save(status.Status(attempts=(*earlier, started), attempt=attempt))
    run.write_config(context.config)
    if run.price() is None:
        run.save(resources.price)
    run.save(replace(run.plan(), pretrained=resources.weights_file))
    now = description.describe(run.path)
    if earlier and last_code(run) != now["code"]:
        echo("code      not that of the last attempt: the weights may differ from those of an uninterrupted run")
    run.write("environment.json", now)
    return replace(context, attempt=attempt)


def last_code(run: RunDir) -> Optional[str]:
    """Return the digest of the code of the last attempt; None if it is unknown."""
    try:
        return (run.read("environment.json") or {}).get("code")
    except ConfigError:  # damaged; it is written anew
        return None


def wait_for_orphans(run: RunDir, signals: Signals) -> None:
    """Wait for the ranks of an attempt whose parent was killed; they end by themselves in seconds.

    The same applies to ranks on a lost host: an NFS server holds their lock for a lease, usually 90 s.
    Raises ConfigError if they do not end.
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


def place(context: RunContext) -> None:
    """Check the hosts and record them ([]: this machine) in plan.json. Raises ConfigError."""
    run, nodes = context.run, context.resources.nodes
    hosts.check(nodes, run.path)
    plan = replace(run.plan(), hosts=tuple(nodes), fitted_ranks=context.ranks)
    run.save(with_scheduler(context.config.comm, plan))


def with_scheduler(comm: Comm, plan: Plan) -> Plan:
    """Return the plan with the address of the parameter servers' scheduler, if the back end has servers."""
    return replace(plan, scheduler=hosts.rendezvous_point(plan.hosts)) if comm.entry.needs_servers else plan


def prepare(context: RunContext) -> None:
    """Run the preparation child until it ends, a signal arrives or the budget is spent.

    Raises ConfigError if the child refuses the run, RunFailed if it ends without a reason.
    """
    run, config, signals = context.run, context.config, context.signals
    command = commands.preparation(str(run), context.attempt, available_cores(), os.environ)
    deadline = math.inf if config.budget.dry_run else budget.deadline(run, config.budget, context.attempt)
    child = subprocess.Popen(command.argv, env=command.env, start_new_session=True)
    with kept_alive(run):
        terminated, spent = None, False
        while child.poll() is None:
            spent = time.time() > deadline - budget.SHUTDOWN_S
            if (signals.reason or spent) and not terminated:
                child.terminate()
                terminated = time.time()
            if signals.urgent or time.time() > deadline:
                child.kill()
            time.sleep(0.02)
    if signals.reason or not child.returncode:
        return
    if spent:
        raise ConfigError(f"{config.budget.stated}: the preparation alone exceeds it; raise it")
    refused = run.read("refused.json")
    if refused:
        raise ConfigError(refused["error"])
    raise RunFailed(f"the preparation {ended(child.returncode)}")


def ended(status: int) -> str:
    """Return how a child process ended that reported no cause."""
    if status > 0:
        return f"ended with status {status}; its messages are above"
    name = signal_name(-status)
    return f"was ended by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}"


def record_environment(run: RunDir, config: Config, plan: Plan) -> Plan:
    """Record threads and signatures in plan.json and tags in environment.json; return the new plan."""
    facts, weights = run.read("environment.json"), plan.pretrained_sha256
    if plan.pretrained:
        weights = digest_of(plan.pretrained)
        if plan.graph:  # the same arrays in another graph are another network
            weights = hashlib.sha256((weights + digest_of(plan.graph)).encode()).hexdigest()
    signed = as_signed(run, config)
    plan = replace(
        plan,
        pretrained_sha256=weights,
        threads=threads_per_rank(config, Placement.of(plan)),
        weak_signature=signature.signature(signed, plan.data_digest, weights, ranks=False),
    )
    run.save(plan)
    signed_digest = signature.signature(signed, plan.data_digest, weights)
    facts["tags"] = description.tags(facts, plan, signed_digest, config.claims)
    run.write("environment.json", facts)
    return plan


def as_signed(run: RunDir, config: Config) -> Config:
    """Return the config from which the signature is computed: a rerun has what the first run's user asked for."""
    changed, now = (run.read(directory.RERUN) or {}).get("asked", {}), flatten(to_dict(config))
    asked = {key: was for key, (chosen, was) in changed.items() if now[key] == chosen}
    return from_dict(unflatten({**now, **asked}))


# ---------------------------------------------------------------- what is printed


def announce(run: RunDir, config: Config, plan: Plan, price: Price) -> None:
    """Print a prepared attempt: sizes, where they come from, the price."""
    s, servers = plan.sizes, server_count(config.comm, Placement.of(plan).processes(config.comm))
    skipped = f"; {plan.skipped} bad images skipped" if plan.skipped else ""
    source = f" from {config.model.pretrained}" if config.model.pretrained else ""
    revision = plan.origin and plan.origin.revision
    source += f" ({revision})" if revision else ""
    made_for, side = NETWORKS[config.model.name].side, config.data.image_size
    if 3 * made_for < min(side, 224):  # networks for 224 px suit larger images too
        source += f", made for images of {made_for} px, not {side}: set model=NAME"
    dropped = s.dropped_per_epoch
    rest = f", the last {dropped} images of an epoch's order are dropped" if dropped else ""
    where = f" on {', '.join(host.name for host in plan.hosts)}" if plan.hosts else ""
    taken = ", ".join(f"{key} {value}" for key, value in plan.input.taken.items())
    backend = config.comm.entry
    not_repeatable = "" if backend.repeats(s.ranks) else f"; {backend.not_repeatable}"
    for_tests = "; on CPU contexts for learning and testing only" if plan.device == "cpu" else ""
    rows = {
        "run": not config.budget.dry_run and run.path,  # else it is removed
        "data": f"{config.data.kind}: {s.train_images:,} training images, {plan.classes} classes{skipped}",
        "model": f"{config.model.name}{source}",
        "input": taken and f"of the pretrained weights: {taken} (model.input=config: as in data)",
        "exchange": backend.drives_all_devices and f"kvstore {backend.kvstore}, one process{for_tests}",
        "ranks": f"{s.ranks}{where} on {plan.device}" + f", {s.shards} data shards" * (s.shards != s.ranks),
        "batch": f"{s.per_device_batch} per device, {s.global_batch} global; effective lr {s.effective_lr:g}",
        "servers": servers and f"{servers}{not_repeatable}",
        "steps": f"{s.total_steps:,} ({s.steps_per_epoch:,} per epoch{rest})",
        "price": prices.describe(price) + prices.least_billed(price) if price.known else "unknown",
    }
    echo("\n".join(f"{name:<9} {text}" for name, text in rows.items() if text))
