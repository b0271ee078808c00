"""Validation of a configuration. Except for a hostfile it needs no file, device or data.

The rule of a single setting is defined at its field (see `setting.Rule`). This module checks settings against each
other. Each function raises ConfigError in one line: problem and remedy.
"""

import re
from dataclasses import replace
from typing import Any, Optional

from mxscale.config import removed
from mxscale.config.backends import ALIASES
from mxscale.config.datasets import DATASETS
from mxscale.config.operation_settings import Launch
from mxscale.config.optimizers import SCHEDULES, optimizer_entry
from mxscale.config.readers import READERS
from mxscale.config.schema import Config, check_rules, flatten, to_dict
from mxscale.config.training_settings import Batch, Comm, Data, Optimizer, Schedule
from mxscale.util import hostfile
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact_address


def validate(config: Config) -> Config:
    """Return the config after all checks, a hostfile replaced by its hosts.

    Raises:
        ConfigError: A value breaks the rule of its field, or two settings exclude each other.
    """
    hosts = config.launch.hosts
    if hosts == "compose":
        raise ConfigError(removed.refusal("launch.hosts=compose"))
    if isinstance(hosts, str):
        config = replace(config, launch=replace(config.launch, hosts=hostfile.read(hosts)))
    if config.comm.backend in ALIASES:
        raise ConfigError(kvstore("comm.backend", config.comm.backend))
    check_rules(config)
    data, optimizer, comm, precision = config.data, config.optimizer, config.comm, config.precision
    _check_run(config)
    _check_data(data)
    _check_input(data, config.batch)
    _check_class_balance(data, config.class_weights)
    _check_schedule(config.schedule)
    _check_optimizer(optimizer, config.schedule)
    _check_hosts(config.launch.hosts)
    _check_ranks(config.launch, comm, data.shards)
    _check_servers(comm)
    _check_precision(comm, precision, optimizer.ema_decay)
    return config


def kvstore(key: str, name: str) -> str:
    """Return the error message for MXNet's name of a kvstore in place of a back end."""
    return f"{key}={name}: that is MXNet's name of a kvstore; use comm={ALIASES[name]}"


def _check_run(config: Config) -> None:
    if config.stop_at_target and config.target_top1 is None:
        raise ConfigError("stop_at_target=true: set target_top1, the validation accuracy in percent that ends the run")
    if config.epochs == "auto":
        _check_fitted(config)
    rerun, objective = config.rerun, config.sweep.objective
    if rerun.run == "" or (rerun.strict and rerun.run is None):
        raise ConfigError("rerun.run is missing: set rerun=ID to an MLflow run ID or a run directory")
    if not objective or len(set(objective)) < len(objective):
        raise ConfigError(f"sweep.objective={objective}: expected [accuracy], [cost] or [accuracy,cost]")


def _check_fitted(config: Config) -> None:
    """Raise ConfigError if epochs=auto has no budget to follow, or another setting that ends the training."""
    if not config.budget.stated:
        raise ConfigError("epochs=auto: set budget.minutes, budget.max_usd or budget.max_eur, which it follows")
    if not can_be_fitted(config):
        raise ConfigError(
            f"epochs=auto with schedule={config.schedule.kind}, schedule.steps={config.schedule.steps}, "
            f"max_steps={config.max_steps}: the budget ends the training, and the schedule has to follow; use "
            "schedule=cosine, and leave out the steps"
        )


def can_be_fitted(config: Config) -> bool:
    """Return whether a budget can set the length of the training: nothing else does, and no milestone is an epoch."""
    schedule = config.schedule
    return config.max_steps is None and schedule.steps is None and "milestones" not in SCHEDULES[schedule.kind].options


def _check_data(data: Data) -> None:
    for key in DATASETS[data.kind].required:
        if not getattr(data, key):
            raise ConfigError(f"data.{key} is missing: data={data.kind} needs {DATASETS[data.kind].expected}")
    printable = redact_address(data.mirror or "")
    if data.mirror is not None and (data.mirror != printable or not re.match(r"https?://[^/]", data.mirror)):
        raise ConfigError(f"data.mirror={printable}: expected http://HOST/FOLDER or https://HOST/FOLDER, no password")
    if (data.val_share or 0) + data.test_share >= 1:
        raise ConfigError("data.val_share + data.test_share: expected a sum below 1, which leaves images to train on")
    if data.val_share is None and data.train_per_class is None:
        raise ConfigError(
            "data.val_share=null validates on the images beyond data.train_per_class: set data.train_per_class, "
            "or a data.val_share"
        )


def _check_input(data: Data, batch: Batch) -> None:
    for key in ("scale", "ratio"):
        smallest, largest = getattr(data.augment, key)
        if smallest > largest:
            raise ConfigError(f"data.augment.{key}=[{smallest}, {largest}]: expected [smallest,largest]")
    values, defaults = flatten(to_dict(data)), flatten(to_dict(Data()))
    for key, crop in READERS[data.reader].lacks.items():
        if values[key] != defaults[key] and crop in ("any", data.augment.crop):
            where = "" if crop == "any" else f" with data.augment.crop={crop}"
            raise ConfigError(
                f"data.{key}={values[key]}: data.reader={data.reader} does not have it{where}; "
                f"use data.reader={Data.reader}"
            )
    for key in ("mixup", "cutmix"):
        if (value := getattr(data.augment, key)) and batch.per_device < 2:
            raise ConfigError(
                f"data.augment.{key}={value} mixes the images of a batch: expected batch.per_device of at least 2"
            )


def _check_class_balance(data: Data, weights: Any) -> None:
    numbers = isinstance(weights, list) and all(type(weight) in (int, float) for weight in weights)
    if weights not in (None, "balanced") and not (numbers and sum(weights) > 0):
        raise ConfigError(
            f"class_weights={weights}: expected balanced, or one number for each class such as '[1,2.5]', not all 0"
        )
    for key, value in (("class_weights", weights), ("data.sampling", data.sampling)):
        if value == "balanced" and DATASETS[data.kind].generated:
            raise ConfigError(f"{key}=balanced: the labels of data={data.kind} are random; omit {key}")


def _check_schedule(schedule: Schedule) -> None:
    if schedule.milestones != sorted(schedule.milestones):
        raise ConfigError(f"schedule.milestones={schedule.milestones}: expected epochs in increasing order")
    phases = len(schedule.milestones) + 1
    if schedule.factors is not None and len(schedule.factors) != phases:
        wanted = f"{phases} numbers, one before, between and after the milestones"
        raise ConfigError(f"schedule.factors={schedule.factors}: expected {wanted}")


def _check_optimizer(optimizer: Optimizer, schedule: Schedule) -> None:
    name, entry, options = optimizer.name, optimizer_entry(optimizer.name), SCHEDULES[schedule.kind].options
    if not entry.repeatable:
        raise ConfigError(
            f"optimizer.name={name} draws random numbers in its update: the weights of ranks would diverge, and a "
            "checkpoint cannot save the random state; use another optimizer"
        )
    if not entry.momentum and optimizer.momentum is not None:
        raise ConfigError(f"optimizer.momentum={optimizer.momentum}: MXNet's {name} fails with it; set null")
    if not entry.divides_by_lr:
        return
    rates = {"optimizer.lr": optimizer.lr}
    if schedule.warmup_epochs:
        rates["schedule.warmup_lr"] = schedule.warmup_lr
    if "factor" in options:
        rates["schedule.factor"] = schedule.factor
        rates["schedule.factors"] = min(schedule.factors or [1])
    if schedule.steps is not None and "final_lr" in options:
        rates["schedule.final_lr"] = schedule.final_lr  # reached after schedule.steps
    for key, value in rates.items():
        if value == 0:
            raise ConfigError(f"{key}: 0 is invalid with optimizer.name={name}, which divides by the learning rate")


def _check_hosts(hosts: Any) -> None:
    if hosts is None:
        return
    wanted = "expected a list such as '[a:4,b:4]', or a hostfile"
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


def _check_ranks(launch: Launch, comm: Comm, shards: Optional[int]) -> None:
    ranks, hosts = launch.ranks, launch.hosts
    alone = f"with comm={comm.backend}: one rank has no communicator; use comm=horovod"
    if hosts and comm.entry.drives_all_devices:
        raise ConfigError(
            f"launch.hosts with comm={comm.backend}: one process drives all devices, so on one machine; "
            "use comm=horovod"
        )
    if hosts and comm.entry.single_rank:
        raise ConfigError(f"launch.hosts {alone}")
    if comm.entry.single_rank and ranks not in ("auto", 1):
        raise ConfigError(f"launch.ranks={ranks} {alone}")
    if isinstance(ranks, int) and shards is not None and shards < ranks:
        raise ConfigError(f"data.shards={shards} is less than launch.ranks={ranks}: every rank reads a shard")


def _check_servers(comm: Comm) -> None:
    if not re.fullmatch(r"[1-9]\d{0,5}x?", str(comm.servers)) or isinstance(comm.servers, float):
        raise ConfigError(
            f"comm.servers={comm.servers}: expected a whole number of at least 1, or 1x, 2x, ... for that many per rank"
        )
    if comm.servers != 1 and not comm.entry.needs_servers:
        raise ConfigError(
            f"comm.servers={comm.servers} with comm={comm.backend}: that back end has no servers; "
            "use comm=parameter_server"
        )


def _check_precision(comm: Comm, precision: str, ema_decay: Optional[float]) -> None:
    if ema_decay and precision == "float16":
        raise ConfigError(
            f"optimizer.ema_decay={ema_decay} with precision=float16: an average in float16 loses changes; "
            "use precision=amp"
        )
    if comm.double_buffering and precision == "amp":
        raise ConfigError(
            "comm.double_buffering=true with precision=amp: gradients are applied one step late, when the loss scale "
            "may have changed; use precision=float16 or float32"
        )
    if comm.in_transit.error_feedback and comm.entry.needs_servers:
        why = "a checkpoint cannot hold its residuals of a run with parameter servers; use comm=horovod"
        raise ConfigError(f"comm.compression={comm.compression} with comm={comm.backend}: {why}")
    if precision not in comm.in_transit.accepted:
        raise ConfigError(
            f"comm.compression={comm.compression} with precision={precision}: the compression does not accept it; "
            f"use precision={' or '.join(comm.in_transit.accepted)}"
        )
