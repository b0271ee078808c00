"""Validation of a configuration. Except for a hostfile it needs no file, device or data.

The rule of a single setting is defined at its field (see `setting.Rule`). This module checks settings against each
other: one function per group or feature, listed in CHECKS. Each raises ConfigError in one line: problem and remedy.
"""

import re
from dataclasses import replace

from mxscale.config.backends import ALIASES
from mxscale.config.datasets import DATASETS
from mxscale.config.optimizers import optimizer_entry
from mxscale.config.readers import READERS
from mxscale.config.schedules import SCHEDULES
from mxscale.config.schema import Config, check_rules, flatten, to_dict
from mxscale.config.training_settings import Data
from mxscale.util import hostfile
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact_address


def validate(config: Config) -> Config:
    """Return the config after all checks, a hostfile replaced by its hosts.

    Raises:
        ConfigError: A value breaks the rule of its field, or two settings exclude each other.
    """
    hosts = config.launch.hosts
    if isinstance(hosts, str) and hosts != "compose":
        config = replace(config, launch=replace(config.launch, hosts=hostfile.read(hosts)))
    if config.comm.backend in ALIASES:
        raise ConfigError(kvstore("comm.backend", config.comm.backend))
    check_rules(config)
    for check in CHECKS:
        check(config)
    return config


UNDECODED = re.compile("[\udc80-\udcff]")  # bytes that are no UTF-8, as Python's surrogateescape reads them


def kvstore(key: str, name: str) -> str:
    """Return the error message for MXNet's name of a kvstore in place of a back end."""
    return f"{key}={name}: that is MXNet's name of a kvstore; use comm={ALIASES[name]}"


def _check_names(c: Config) -> None:
    if c.rerun.run == "" or (c.rerun.strict and c.rerun.run is None):
        raise ConfigError("rerun.run is missing: set rerun=ID to an MLflow run ID or a run directory")
    if "/" in c.name or c.name in ("", ".", ".."):
        raise ConfigError(f"name={c.name}: expected a plain file name")
    for key, folder in (("runs", c.runs), ("data.cache", c.data.cache)):
        if not folder.strip() or folder.startswith("-"):
            raise ConfigError(f"{key}={folder}: expected a folder; one whose name begins with - is ./{folder or '-x'}")
        if UNDECODED.search(folder):
            raise ConfigError(f"{key}={folder}: the name is not UTF-8, as files hold it; rename the folder")
    objective = c.sweep.objective
    if not objective or len(set(objective)) < len(objective):
        raise ConfigError(f"sweep.objective={objective}: expected [accuracy], [cost] or [accuracy,cost]")


def _check_source(c: Config) -> None:
    data = c.data
    DATASETS[data.kind].check_required(data)
    printable = redact_address(data.mirror or "")
    if data.mirror is not None and not re.match(r"https?://[^/]", data.mirror):
        raise ConfigError(f"data.mirror={printable}: expected http://HOST/FOLDER or https://HOST/FOLDER")
    if data.mirror and data.mirror != printable:
        raise ConfigError(f"data.mirror={printable}: can't have a password; download the files to data.root instead")


def _check_splits(c: Config) -> None:
    data = c.data
    if (data.val_share or 0) + data.test_share >= 1:
        raise ConfigError("data.val_share + data.test_share: expected a sum below 1, which leaves images to train on")
    if data.val_share is None and data.train_per_class is None:
        raise ConfigError(
            "data.val_share=null validates on the images beyond data.train_per_class: set data.train_per_class, "
            "or a data.val_share"
        )


def _check_pixels(c: Config) -> None:
    for key in ("mean", "std"):
        if len(getattr(c.data, key)) != 3:
            raise ConfigError(f"data.{key}={getattr(c.data, key)}: expected three numbers, one per channel")
    for key in ("scale", "ratio"):
        pair = getattr(c.data.augment, key)
        if len(pair) != 2 or pair[0] > pair[1]:
            raise ConfigError(f"data.augment.{key}={pair}: expected [smallest,largest]")
    if len(c.data.augment.hls) != 3:
        raise ConfigError(f"data.augment.hls={c.data.augment.hls}: expected [hue,lightness,saturation]")
    _check_reader(c.data)


def _check_reader(data: Data) -> None:
    values, defaults = (flatten(to_dict(each)) for each in (data, Data()))
    for key, crop in READERS[data.reader].lacks.items():
        if values[key] != defaults[key] and crop in ("any", data.augment.crop):
            where = "" if crop == "any" else f" with data.augment.crop={crop}"
            raise ConfigError(
                f"data.{key}={values[key]}: data.reader={data.reader} does not have it{where}; "
                f"use data.reader={Data.reader}"
            )


def _check_mixing(c: Config) -> None:
    for key in ("mixup", "cutmix"):
        if (value := getattr(c.data.augment, key)) and c.batch.per_device < 2:
            raise ConfigError(
                f"data.augment.{key}={value} mixes the images of a batch: expected batch.per_device of at least 2"
            )


def _check_class_balance(c: Config) -> None:
    weights, data = c.class_weights, c.data
    numbers = isinstance(weights, list) and all(type(weight) in (int, float) for weight in weights)
    if weights not in (None, "balanced") and not (numbers and sum(weights) > 0):
        raise ConfigError(
            f"class_weights={weights}: expected balanced, or one number for each class such as '[1,2.5]', not all 0"
        )
    for key, value in (("class_weights", weights), ("data.sampling", data.sampling)):
        if value == "balanced" and DATASETS[data.kind].generated:
            raise ConfigError(f"{key}=balanced: the labels of data={data.kind} are random; omit {key}")


def _check_schedule(c: Config) -> None:
    schedule = c.schedule
    if schedule.milestones != sorted(schedule.milestones):
        raise ConfigError(f"schedule.milestones={schedule.milestones}: expected epochs in increasing order")
    phases = len(schedule.milestones) + 1
    if schedule.factors is not None and len(schedule.factors) != phases:
        wanted = f"{phases} numbers, one before, between and after the milestones"
        raise ConfigError(f"schedule.factors={schedule.factors}: expected {wanted}")
    if SCHEDULES[schedule.kind].ratio and not (schedule.final_lr and c.optimizer.lr):
        raise ConfigError(
            f"schedule.final_lr={schedule.final_lr} with optimizer.lr={c.optimizer.lr}: schedule={schedule.kind} goes "
            "from one to the other by equal factors; expected both above 0"
        )


def _check_optimizer(c: Config) -> None:
    schedule, name, entry = c.schedule, c.optimizer.name, optimizer_entry(c.optimizer.name)
    if not entry.repeatable:
        raise ConfigError(
            f"optimizer.name={name} draws random numbers in its update: the weights of ranks would diverge, and a "
            "checkpoint cannot save the random state; use another optimizer"
        )
    if not entry.momentum and c.optimizer.momentum is not None:
        raise ConfigError(f"optimizer.momentum={c.optimizer.momentum}: MXNet's {name} fails with it; set null")
    if not entry.divides_by_lr:
        return
    rates = {"optimizer.lr": c.optimizer.lr}
    if schedule.warmup_epochs:
        rates["schedule.warmup_lr"] = schedule.warmup_lr
    if "factor" in SCHEDULES[schedule.kind].options:
        rates["schedule.factor"] = schedule.factor
        rates["schedule.factors"] = min(schedule.factors or [1])
    if schedule.steps is not None and "final_lr" in SCHEDULES[schedule.kind].options:
        rates["schedule.final_lr"] = schedule.final_lr  # reached after schedule.steps
    for key, value in rates.items():
        if value == 0:
            raise ConfigError(f"{key}: 0 is invalid with optimizer.name={name}, which divides by the learning rate")


def _check_ranks(c: Config) -> None:
    ranks = c.launch.ranks
    if c.comm.entry.single_rank and ranks not in ("auto", 1):
        raise ConfigError(
            f"launch.ranks={ranks} with comm={c.comm.backend}: one rank has no communicator; use comm=horovod"
        )
    if isinstance(ranks, int) and c.data.shards is not None and c.data.shards < ranks:
        raise ConfigError(f"data.shards={c.data.shards} is less than launch.ranks={ranks}: every rank reads a shard")


def _check_launch(c: Config) -> None:
    hosts = c.launch.hosts
    if hosts and c.comm.entry.drives_all_devices:
        raise ConfigError(
            f"launch.hosts with comm={c.comm.backend}: one process drives all devices, so on one machine; "
            "use comm=horovod"
        )
    if hosts and hosts != "compose" and c.comm.entry.single_rank:
        raise ConfigError(f"launch.hosts with comm={c.comm.backend}: one rank has no communicator; use comm=horovod")


def _check_hosts(c: Config) -> None:
    hosts = c.launch.hosts
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


def _check_double_buffering(c: Config) -> None:
    if c.comm.double_buffering and c.precision == "amp":
        raise ConfigError(
            "comm.double_buffering=true with precision=amp: gradients are applied one step late, when the loss scale "
            "may have changed; use precision=float16 or float32"
        )


def _check_servers(c: Config) -> None:
    comm = c.comm
    if not re.fullmatch(r"[1-9]\d{0,5}x?", str(comm.servers)) or isinstance(comm.servers, float):
        raise ConfigError(
            f"comm.servers={comm.servers}: expected a whole number of at least 1, or 1x, 2x, ... for that many per rank"
        )
    if comm.compression not in comm.entry.compression:
        why = "a checkpoint cannot hold its residuals of a run with parameter servers; use comm=horovod"
        raise ConfigError(f"comm.compression={comm.compression} with comm={comm.backend}: {why}")
    if comm.servers != 1 and not comm.entry.needs_servers:
        raise ConfigError(
            f"comm.servers={comm.servers} with comm={comm.backend}: that back end has no servers; "
            "use comm=parameter_server"
        )


def _check_compression(c: Config) -> None:
    accepted = c.comm.in_transit.accepted
    if c.precision not in accepted:
        raise ConfigError(
            f"comm.compression={c.comm.compression} with precision={c.precision}: the compression does not accept it; "
            f"use precision={' or '.join(accepted)}"
        )


def _check_stop(c: Config) -> None:
    if c.stop_at_target and c.target_top1 is None:
        raise ConfigError("stop_at_target=true: set target_top1, the validation accuracy in percent that ends the run")


def _check_average(c: Config) -> None:
    average = f"optimizer.ema_decay={c.optimizer.ema_decay}"
    if c.optimizer.ema_decay and c.precision == "float16":
        raise ConfigError(f"{average} with precision=float16: an average in float16 loses changes; use precision=amp")


CHECKS = (
    _check_stop,
    _check_average,
    _check_names,
    _check_source,
    _check_splits,
    _check_pixels,
    _check_mixing,
    _check_class_balance,
    _check_schedule,
    _check_optimizer,
    _check_launch,
    _check_hosts,
    _check_ranks,
    _check_double_buffering,
    _check_servers,
    _check_compression,
)
