"""What values a configuration may have.  Pure: needs no file, device or data.

A key that is new in config.py gets its line in CHOICES or RANGES here.
"""

import math
import re
from dataclasses import replace

from mxscale.config import hostfile
from mxscale.config.schema import SERVED, Config, flatten, to_dict
from mxscale.config.sizes import unsaved
from mxscale.util.errors import ConfigError, nearest

PUBLIC = ("mnist", "cifar10", "cifar100", "caltech256", "imagenet")  # data.kind: sets with a publisher

OBJECTIVES = ("accuracy", "cost")  # of sweep.objective

CHOICES = {
    "entry": ("train", "finetune"),
    "precision": ("float32", "float16", "amp"),
    "data.kind": ("digits", "imagefolder", "recordio", "synthetic", *PUBLIC),
    "data.checksum": ("published", "first_use"),
    "data.pack_format": ("jpeg", "png"),
    "data.on_bad": ("error", "skip"),
    "data.keep": ("packed", "ram"),
    "data.augment.crop": ("random_resized", "random", "center"),
    "data.interpolation": ("bilinear", "bicubic", "area", "lanczos"),
    "model.input": ("checkpoint", "config"),
    "model.bn_statistics": ("moving", "last_batch"),
    "model.freeze": ("none", "features", "stage1", "stage2", "stage3", "stage4"),
    "schedule.kind": ("constant", "step", "cosine", "poly"),
    "comm.backend": ("auto", "horovod", "local", "device", "nccl", "parameter_server", "dist_async"),
    "comm.transport": ("gloo", "mpi"),
    "comm.compression": ("none", "fp16", "2bit"),
    "comm.update_on": ("worker", "server"),
    "launch.kind": ("process", "docker"),
    "launch.device": ("auto", "cpu", "gpu"),
    "machine.provider": ("local", "aws", "custom", "owned"),
    "machine.market": ("on_demand", "spot"),
    "machine.billing": ("per_second", "per_hour"),
    "machine.currency": ("usd", "eur"),
}

# MXNet's names of kvstores -> ours.  MXNet 1.9.1 takes most names that it does not know, p3 and horovod among them,
# for `local`: it then trains each rank by itself without a word (src/kvstore/kvstore.cc, KVStore::Create).
KVSTORES = {
    **dict.fromkeys(("dist", "dist_sync", "dist_device_sync", "dist_sync_device", "p3"), "parameter_server"),
    **dict.fromkeys(("async", "dist_device_async", "dist_async_device"), "dist_async"),
    "byteps": "horovod",
}

# Optimizers that take the norm of a whole array
LAYERWISE = ("lars", "lamb", "lbsgd")

# key -> (smallest, largest); an open end is None.  A null value passes.
RANGES = {
    "seed": (0, 2**31 - 1),
    "epochs": (1, None),
    "max_steps": (1, None),
    "label_smoothing": (0, 0.999),
    "log_every": (1, None),
    "validate_every": (1, None),
    "target_top1": (0, 100),
    "batch.per_device": (1, None),
    "batch.accumulation": (1, None),
    "data.num_classes": (2, None),
    "data.num_images": (1, None),
    "data.train_per_class": (1, None),
    "data.val_share": (0, 0.9),
    "data.test_share": (0, 0.9),
    "data.split_seed": (0, 2**31 - 1),
    "data.image_size": (8, None),
    "data.min_side": (1, None),
    "data.pack_quality": (1, 100),
    "data.eval_resize": (8, None),
    "data.augment.pad": (0, None),
    "data.augment.brightness": (0, 1),
    "data.augment.contrast": (0, 1),
    "data.augment.saturation": (0, 1),
    "data.augment.hue": (0, 1),
    "data.shards": (1, None),
    "data.threads": (1, None),
    "optimizer.lr": (0, None),
    "optimizer.momentum": (0, 1),
    "optimizer.weight_decay": (0, None),
    "optimizer.clip_gradient": (0, None),
    "schedule.reference_batch": (1, None),
    "schedule.warmup_epochs": (0, None),
    "schedule.warmup_lr": (0, None),
    "schedule.factor": (0, 1),
    "schedule.power": (0, None),
    "schedule.final_lr": (0, None),
    "comm.bucket_mb": (0.001, None),
    "comm.probe_s": (1, None),
    "comm.threshold": (1e-6, None),
    "launch.threads": (1, None),
    "launch.setup_minutes": (0, None),
    "launch.start_timeout_s": (1, None),
    "launch.stop_grace_s": (1, None),
    "launch.stall_s": (5, None),
    "launch.restarts": (0, None),
    "machine.usd_per_hour": (0, None),
    "machine.eur_per_hour": (0, None),
    "machine.nodes": (1, None),
    "machine.purchase": (0, None),
    "machine.years": (0.001, None),
    "machine.utilisation": (0.001, 1),
    "machine.watts": (0, None),
    "machine.per_kwh": (0, None),
    "budget.max_usd": (0, None),
    "budget.max_eur": (0, None),
    "budget.images_per_s": (0, None),
    "tracking.timeout_s": (0.1, None),
    "checkpoint.every_epochs": (1, None),
    "checkpoint.every_steps": (1, None),
    "checkpoint.keep": (1, None),
}


def validate(config: Config) -> Config:
    """Return the config with its values checked and a hostfile replaced by its hosts.  Raises ConfigError."""
    hosts = config.launch.hosts
    if isinstance(hosts, str) and hosts != "compose":
        config = replace(config, launch=replace(config.launch, hosts=hostfile.read(hosts)))
    flat = flatten(to_dict(config))
    if flat["comm.backend"] in KVSTORES:
        raise ConfigError(kvstore("comm.backend", flat["comm.backend"]))
    for key, choices in CHOICES.items():
        if flat[key] not in choices:
            raise ConfigError(f"{key}={flat[key]}{nearest(flat[key], choices)}")
    for key, (low, high) in RANGES.items():
        value = flat[key]
        if value is None:
            continue
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ConfigError(f"{key}={value}: expected {bounds}")
    for key, value in flat.items():
        if isinstance(value, list) and any(isinstance(v, float) and not math.isfinite(v) for v in value):
            raise ConfigError(f"{key}={value}: expected finite numbers")
    _validate_together(config)
    return config


def _validate_together(c: Config) -> None:
    if c.rerun.run == "" or (c.rerun.strict and c.rerun.run is None):
        raise ConfigError("rerun names no run: give rerun=ID, by which MLflow knows it, or its directory")
    if "/" in c.name or c.name in ("", ".", ".."):
        raise ConfigError(f"name={c.name}: expected a plain file name")
    ranks = c.launch.ranks
    if ranks != "auto" and (type(ranks) is not int or ranks < 1):
        raise ConfigError(f"launch.ranks={ranks}: expected auto or a whole number of at least 1")
    if c.comm.backend == "local" and ranks not in ("auto", 1):
        raise ConfigError(f"launch.ranks={ranks} with comm=local: one rank has no communicator; use comm=horovod")
    if isinstance(ranks, int) and c.data.shards is not None and c.data.shards < ranks:
        raise ConfigError(f"data.shards={c.data.shards} is less than launch.ranks={ranks}: every rank reads a shard")
    _validate_hosts(c)
    if c.comm.backend not in ("auto", "horovod"):
        for key in ("hierarchical", "timeline"):
            if getattr(c.comm, key):
                raise ConfigError(f"comm.{key}=true with comm={c.comm.backend}: that is Horovod's; use comm=horovod")
    _validate_exchange(c)
    if c.launch.restarts and unsaved(c.comm):
        raise ConfigError(f"launch.restarts={c.launch.restarts}: {unsaved(c.comm)}; use launch.restarts=0")
    if (c.data.val_share or 0) + c.data.test_share >= 1:
        raise ConfigError(
            "data.val_share + data.test_share: expected less than 1, so that something is left to train on"
        )
    side = c.data.pack_short_side
    if side != "original" and (type(side) is not int or side < 8):
        raise ConfigError(f"data.pack_short_side={side}: expected original or a whole number of at least 8")
    if c.data.val_share is None and c.data.train_per_class is None:
        raise ConfigError(
            "data.val_share=null validates on what training leaves: set data.train_per_class, or give it a share"
        )
    for key in ("mean", "std"):
        if len(getattr(c.data, key)) != 3:
            raise ConfigError(f"data.{key}={getattr(c.data, key)}: expected three numbers, one per colour")
    if min(c.data.std) <= 0:
        raise ConfigError(f"data.std={c.data.std}: expected numbers above 0")
    for key in ("scale", "ratio"):
        pair = getattr(c.data.augment, key)
        if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
            raise ConfigError(f"data.augment.{key}={pair}: expected [smallest,largest], above 0")
    if c.data.augment.scale[1] > 1:
        raise ConfigError(f"data.augment.scale={c.data.augment.scale}: expected shares of the image's area, up to 1")
    if list(c.schedule.milestones) != sorted(c.schedule.milestones):
        raise ConfigError(f"schedule.milestones={c.schedule.milestones}: expected growing epochs")
    _validate_factors(c)
    for key in ("max_usd", "max_eur", "images_per_s"):
        if getattr(c.budget, key) == 0:
            raise ConfigError(f"budget.{key}=0: expected more than 0; to set none, leave it out")
    objective = c.sweep.objective
    if not objective or len(set(objective)) < len(objective) or not set(objective) <= set(OBJECTIVES):
        raise ConfigError(f"sweep.objective={objective}: expected [accuracy], [cost] or [accuracy,cost]")
    if c.data.kind == "imagefolder" and not c.data.root:
        raise ConfigError("data.root is missing: data=imagefolder needs data.root=DIR with DIR/<class>/<image>.jpg")
    if c.data.kind in PUBLIC and not c.data.root:
        raise ConfigError(f"data.root is missing: data={c.data.kind} needs the folder of its files, or for them")
    if c.data.mirror is not None and not re.match(r"https?://[^/]", c.data.mirror):
        raise ConfigError(f"data.mirror={c.data.mirror}: expected http://HOST/FOLDER or https://HOST/FOLDER")
    if c.data.kind == "recordio" and not (c.data.train and c.data.val):
        raise ConfigError(
            "data.train and data.val are missing: data=recordio needs data.train=FILE.rec data.val=FILE.rec"
        )


def _validate_factors(c: Config) -> None:
    schedule, optimizer = c.schedule, c.optimizer
    factors, phases = schedule.factors, len(schedule.milestones) + 1
    if factors is not None and (len(factors) != phases or min(factors) < 0):
        raise ConfigError(
            f"schedule.factors={factors}: expected {phases} numbers of at least 0, one before, between and after the "
            "milestones"
        )
    if optimizer.name.lower() != "rmsprop_warmup":
        return
    rates = {"optimizer.lr": optimizer.lr}
    if schedule.warmup_epochs:
        rates["schedule.warmup_lr"] = schedule.warmup_lr
    if schedule.kind == "step":
        rates["schedule.factor"] = schedule.factor
        rates["schedule.factors"] = min(factors or [1])
    for key, value in rates.items():
        if value == 0:
            raise ConfigError(f"{key} has a 0: optimizer=rmsprop_warmup divides by the learning rate; give more than 0")


def kvstore(key: str, name: str) -> str:
    """Why MXNet's name of a kvstore is refused."""
    return f"{key}={name}: that is MXNet's name of a kvstore; use comm={KVSTORES[name]}"


def _validate_exchange(c: Config) -> None:
    comm, served = c.comm, c.comm.backend in SERVED
    if not re.fullmatch(r"[1-9]\d{0,5}x?", str(comm.servers)) or isinstance(comm.servers, float):
        raise ConfigError(
            f"comm.servers={comm.servers}: expected a whole number of at least 1, or 1x, 2x ...: so many for each rank"
        )
    if comm.double_buffering and c.precision == "amp":
        raise ConfigError(
            "comm.double_buffering=true with precision=amp: gradients are applied a step late, when the loss scale may "
            "be another one; use precision=float16 or float32"
        )
    if not served:
        for key, given in (("servers", comm.servers != 1), ("update_on", comm.update_on == "server")):
            if given:
                raise ConfigError(
                    f"comm.{key}={getattr(comm, key)} with comm={comm.backend}: there are no servers; "
                    "use comm=parameter_server"
                )
        if comm.compression == "2bit":
            raise ConfigError(
                f"comm.compression=2bit with comm={comm.backend}: only servers take two bits apart before they add; "
                "use fp16, or comm=parameter_server"
            )
        return
    if c.launch.kind == "docker":
        raise ConfigError(f"comm={comm.backend} with launch=docker: a container runs ranks alone; use launch=auto")
    if comm.backend == "dist_async" and comm.update_on == "worker":
        raise ConfigError(
            "comm.update_on=worker with comm=dist_async: servers apply each rank's gradients as they come; "
            "use comm.update_on=server"
        )
    if comm.compression == "2bit" and c.precision == "float16":
        raise ConfigError("comm.compression=2bit with precision=float16: MXNet packs float32 alone; use precision=amp")
    if comm.update_on == "server":
        _validate_server_update(c)


def _validate_server_update(c: Config) -> None:
    where = f"comm={c.comm.backend} with comm.update_on=server"
    instead = "; use comm=parameter_server with comm.update_on=worker"
    if c.comm.double_buffering:
        raise ConfigError(f"comm.double_buffering=true: {where} has no sum that could be kept for a step{instead}")
    if c.comm.compression == "fp16":
        raise ConfigError(f"comm.compression=fp16: {where} sends gradients to float32 weights as they are{instead}")
    if c.precision != "float32":
        raise ConfigError(f"precision={c.precision}: {where} updates float32 weights alone{instead}")
    if c.optimizer.name.lower() == "rmsprop_warmup":
        raise ConfigError(f"optimizer.name=rmsprop_warmup goes by the epoch, which no server knows: {where}{instead}")
    if c.optimizer.name.lower() in LAYERWISE and c.comm.servers != 1:
        raise ConfigError(
            f"optimizer.name={c.optimizer.name} takes the norm of whole arrays, and {where} splits them over servers; "
            "use comm.servers=1"
        )


def _validate_hosts(c: Config) -> None:
    hosts = c.launch.hosts
    if hosts and c.comm.drives_all:
        raise ConfigError(
            f"launch.hosts with comm={c.comm.backend}: one process drives all devices, so on one machine; "
            "use comm=horovod"
        )
    if c.launch.kind == "docker" and (hosts or not c.launch.image):
        what = "launch.image is missing" if not c.launch.image else "launch.hosts with launch=docker"
        raise ConfigError(f"{what}: launch=docker runs the ranks in one image (launch.image=NAME) on this machine")
    if hosts is None or hosts == "compose":
        return
    wanted = "expected a list such as '[a:4,b:4]', a hostfile, or compose"
    if not isinstance(hosts, list) or not hosts:
        raise ConfigError(f"launch.hosts={hosts}: {wanted}")
    for host in hosts:
        if not isinstance(host, str) or not re.fullmatch(rf"{hostfile.NAME}(:[1-9]\d{{0,3}})?", host):
            raise ConfigError(
                f"launch.hosts={host}: {wanted}; the number is that host's ranks, its user belongs in ~/.ssh/config"
            )
    names = [host.partition(":")[0].lower().rstrip(".") for host in hosts]
    if len(set(names)) < len(names):
        raise ConfigError(f"launch.hosts={hosts}: {wanted}, each host once")
    if c.comm.backend == "local":
        raise ConfigError("launch.hosts with comm=local: one rank has no communicator; use comm=horovod")
