"""Preparation, in one child of the parent, before any rank: `python -m mxscale.train.prepare RUN_DIR ATTEMPT`.

Packs the data if need be, tries the network, its weights and the optimizer, settles ranks and sizes,
and writes plan.json and MXNet's part of environment.json.  What is wrong is one line and exit 2: no
rank packs, downloads, or finds out first.
"""

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import mxnet.runtime

from mxscale.config.backends import CANDIDATES, DEFAULT
from mxscale.config.datasets import DATASETS
from mxscale.config.networks import network
from mxscale.config.optimizers import optimizer_entry
from mxscale.config.schema import Comm, Config
from mxscale.config.sizes import Sizes, auto_ranks, server_count, sizes, unsaved
from mxscale.data import pack, ram_cache
from mxscale.data.loader import part_sizes
from mxscale.data.manifest import path_of
from mxscale.distributed.communicators import horovod_build
from mxscale.distributed.heartbeat import end_with_parent
from mxscale.environment.container_limits import available_cores
from mxscale.models import weights
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import ExchangeProbe, Plan, Split
from mxscale.train import builders, precision, pretrained_init
from mxscale.train.build_facts import build
from mxscale.train.checkpointer import check_resumable
from mxscale.train.optim.optimizer import make_optimizer
from mxscale.util.errors import ConfigError

PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")  # those that the kernel gives to who asks for any


def prepare(run: RunDir, config: Config) -> None:
    """Raises ConfigError.  Safe to repeat: a resumed run is prepared again."""
    plan = run.plan()
    state = check_resumable(run)
    lost = state and (state.get("unsaved") or unsaved(config.comm))  # as the checkpoint was written, or as it would be
    if lost:
        raise ConfigError(
            f"resume={run.path}: {lost}; start a new run, from its weights with model.pretrained={run.path}"
        )
    if state.get("under_way") and not config.comm.double_buffering:
        raise ConfigError(
            f"resume={run.path} comm.double_buffering=false: a step's gradients are under way in its checkpoint, and "
            "would be lost; leave it out"
        )
    device, ranks = choose_device(config), plan.fitted_ranks or choose_ranks(config, plan.hosts)
    check_ports(config, ranks, plan.hosts)
    config, plan = pretrained_init.obtain(run, config, plan, head_of(config))
    check_settings(config, plan.pretrained)  # first: packing may take an hour
    check_back_end(config, device, ranks)
    manifest = describe_data(config)
    if plan.data_digest not in (None, manifest["digest"]):
        raise ConfigError(f"resume={run.path}: the data are not those that this run was trained on; start a new run")
    classes = len(manifest["classes"])
    net = check_network(config, classes, plan)
    if config.comm.entry.chosen_by_trial:
        plan = replace(plan, probe=to_probe(config, net, device, ranks, plan.hosts))
    if config.data.keep == "ram" and not DATASETS[config.data.kind].generated:
        ram_cache.announce(manifest["splits"], share_of_a_host(plan.hosts))
    train_images = manifest["splits"]["train"]["count"]
    known_shards = plan.sizes and plan.sizes.shards  # of the first start, before any checkpoint
    derived = sizes(config, ranks, train_images, shards=state.get("shards") or known_shards)
    if state and derived.global_batch != state["global_batch"]:
        its, asked = state["global_batch"], derived.global_batch
        raise ConfigError(f"resume={run.path}: its global batch is {its}, not {asked}; start a new run")
    plan = replace(
        plan,
        sizes=derived,
        short_shards=short_shards(config, derived),
        device=device,
        classes=classes,
        class_names=tuple(manifest["classes"]),
        splits={name: Split(**split) for name, split in manifest["splits"].items()},
        data_digest=manifest["digest"],
        data_dir=manifest.get("dir"),
        skipped=len(manifest["skipped"]),
        head=head_of(config),
    )
    run.write_plan(plan)
    run.write_config(config)  # with the input of the weights, which ranks read and records show
    run.write("environment.json", {**(run.read("environment.json") or {}), "mxnet": build()})


def choose_device(config: Config) -> str:
    wanted, gpus = config.launch.device, mx.context.num_gpus()
    if wanted == "gpu" and not gpus:
        raise ConfigError("launch.device=gpu: MXNet sees no GPU here; use launch.device=cpu")
    device = "gpu" if gpus and wanted != "cpu" else "cpu"
    if device == "cpu" and config.precision != "float32":
        raise ConfigError(f"precision={config.precision} needs a GPU; use precision=float32")
    return device


def choose_ranks(config: Config, hosts=()) -> int:
    """`hosts`: of the plan.  Raises ConfigError where more ranks are asked for than there is room."""
    asked, slots = config.launch.ranks, sum(host.slots for host in hosts)
    gpus = mx.context.num_gpus() if config.launch.device != "cpu" and not slots else 0
    if asked == "auto":
        return auto_ranks(config, slots, gpus, available_cores())
    if slots and asked > slots:
        raise ConfigError(f"launch.ranks={asked} is more than launch.hosts takes ({slots}): give NAME:RANKS")
    if gpus and asked > gpus:
        raise ConfigError(f"launch.ranks={asked} is more than the {gpus} GPUs here: one rank drives one GPU")
    return asked


def share_of_a_host(hosts=()) -> float:
    """Return the largest share of the set that the ranks of one host read; no hosts: this machine reads all of it."""
    slots = [host.slots for host in hosts] or [1]
    return max(slots) / sum(slots)


def describe_data(config: Config) -> dict:
    """The manifest of the data, its splits as the loader wants them."""
    data = config.data
    if DATASETS[data.kind].generated:
        classes = data.num_classes or 1000
        return {
            "classes": [str(c) for c in range(classes)],
            "splits": {"train": {"count": data.num_images}, "val": {"count": config.batch.per_device}},
            "digest": f"{data.kind}-{data.num_images}-{classes}-{data.image_size}",
            "skipped": [],
        }
    manifest = pack.prepare(data)
    splits = {}
    for name, split in manifest["splits"].items():
        if not split["count"]:
            continue
        rec, idx = path_of(manifest, name)
        splits[name] = {"rec": str(rec), "idx": str(idx), "count": split["count"]}
    if "val" not in splits:
        raise ConfigError("data.val_share leaves no image to validate on: give it a larger share")
    return {**manifest, "splits": splits}


def short_shards(config: Config, derived: Sizes) -> int:
    """How many shards have fewer images than an epoch takes of each."""
    if DATASETS[config.data.kind].generated:
        return 0
    wanted = derived.steps_per_epoch * config.batch.accumulation * derived.per_device_batch
    return sum(size < wanted for size in part_sizes(derived.train_images, derived.shards))


def check_settings(config: Config, pretrained) -> None:
    """What can be known without the data."""
    smallest, size = network(config.model.name).min_side, config.data.image_size
    if size < smallest:
        raise ConfigError(f"data.image_size={size}: model.name={config.model.name} needs at least {smallest}")
    make_optimizer(config.optimizer)
    precision.check(config.precision)
    if config.precision == "amp" and network(config.model.name).from_weights:
        # It casts around operators as Python calls them; those of a graph are called by the graph
        raise ConfigError("precision=amp does not reach into the graph of model.name=symbol; use precision=float16")
    if pretrained:
        weights.load(pretrained)


def check_back_end(config: Config, device: str, ranks: int) -> None:
    """Whether this MXNet and this Horovod can exchange gradients that way."""
    comm, entry = config.comm, config.comm.entry
    if entry.drives_all_devices and ranks > 1:
        check_replicas(config.optimizer.name)
    if entry.mxnet_feature and not mxnet.runtime.Features().is_enabled(entry.mxnet_feature):
        raise ConfigError(
            f"comm={entry.name}: this MXNet was built without {entry.mxnet_feature}; "
            f"use comm={DEFAULT} or another build"
        )
    if entry.gpus_only and device != "gpu":
        raise ConfigError(f"comm={entry.name}: sums on GPUs alone; use comm={DEFAULT}, or launch.device=gpu")
    if entry.uses_horovod:
        check_transport(comm)
    if comm.hierarchical:
        check_hierarchical(comm, device)


def check_hierarchical(comm: Comm, device: str) -> None:
    """Horovod 0.28 has it in NCCLHierarchicalAllreduce alone, which takes MPI as well (its operations.cc)."""
    if not horovod_build()["nccl"]:
        raise ConfigError("comm.hierarchical=true: this Horovod was built without NCCL, and has it with NCCL alone")
    if comm.transport != "mpi" or device != "gpu":
        raise ConfigError("comm.hierarchical=true: Horovod has it on GPUs and over MPI alone; set comm.transport=mpi")


def check_replicas(optimizer: str) -> None:
    """Each device updates a copy of the weights of its own, so that an optimizer may keep nothing beside its states."""
    if not optimizer_entry(optimizer).replicable:
        raise ConfigError(
            f"optimizer.name={optimizer} keeps numbers that several devices of one process would share; "
            "use comm=horovod, or another optimizer"
        )


def to_probe(config: Config, net, device: str, ranks: int, hosts=()) -> ExchangeProbe:
    """What comm=auto needs to know: the gradients to sum, and which back ends can't be tried here."""
    gradients = tuple(tuple(p.shape) for p in weights.parameters(net).values() if p.grad_req != "null")
    dtype = "float16" if config.precision == "float16" else "float32"
    reasons = {}
    for name, settings in CANDIDATES.items():
        try:
            candidate = replace(config, comm=replace(config.comm, **settings))
            check_back_end(candidate, device, ranks)
            check_ports(candidate, ranks, hosts)
        except ConfigError as error:
            reasons[name] = str(error)
    return ExchangeProbe(gradients, dtype, reasons)


def check_transport(comm: Comm) -> None:
    """Whether this Horovod can speak that way."""
    build, transport = horovod_build(), comm.transport
    if not build:
        raise ConfigError(f"comm={comm.backend}: Horovod is not installed; run make setup, or use comm=local")
    if not build[transport]:
        able = [name for name in ("gloo", "mpi") if build[name]]
        raise ConfigError(f"comm.transport={transport}: this Horovod was built with {' and '.join(able)} alone")
    if transport == "mpi" and not shutil.which("mpirun"):
        raise ConfigError("comm.transport=mpi: there is no mpirun on the PATH; install Open MPI, or use gloo")


def check_ports(config: Config, ranks: int, hosts=()) -> None:
    """Whether the fullest machine has the ports that its servers and ranks want.  Raises ConfigError.

    Every one listens on a port, and has a connection of its own to each one of the other kind and to the scheduler,
    which has one to each of them.
    """
    servers = server_count(config.comm, ranks)
    if not servers:
        return
    its_servers = math.ceil(servers / max(1, len(hosts)))
    its_ranks = min(ranks, max((host.slots for host in hosts), default=ranks))
    wanted = its_servers * (ranks + 2) + its_ranks * (servers + 2) + servers + ranks + 1
    first, last = map(int, PORTS.read_text().split())
    there = last - first + 1
    if wanted > there:
        raise ConfigError(
            f"comm.servers={config.comm.servers}: {servers} servers and {ranks} ranks take {wanted:,} ports of one "
            f"machine, which has {there:,} ({PORTS}); use fewer"
        )


def head_of(config: Config) -> str:
    """What happens to the classifier of pretrained weights: fine-tuning learns a new one."""
    return "replace" if config.entry == "finetune" else "keep"


def check_network(config: Config, classes: int, plan: Plan):
    """Build the network as ranks will, on a CPU, with its weights; returns it."""
    net, size = builders.starting(config, classes, plan, head_of(config), mx.cpu()), config.data.image_size
    scores = net(mx.sym.var("data")).infer_shape(data=(1, 3, size, size))[1][0]
    if scores != (1, classes):
        raise ConfigError(f"model.name={config.model.name} gives {scores[1:]} scores of an image, not {classes}")
    return net


def main(run_path: str, attempt: int) -> int:
    run = RunDir(run_path)
    end_with_parent(run, attempt)
    try:
        prepare(run, run.config())
    except ConfigError as error:
        run.write("refused.json", {"error": str(error)})
        return directory.REFUSED
    return directory.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
