"""A plan as a task of SkyPilot, which rents its machines and trains on them: `mxscale plan plan.task=sky.yaml`.

Each machine runs the task in a container of plan.image, as root. Its file system at FOLDER outlives the machines, so
that a run resumes on others after a preemption. SkyPilot sets the variables SKYPILOT_* (its page "Environment
variables").
"""

import math
import os
import shlex
import textwrap
from datetime import date
from pathlib import Path
from typing import Dict, List, Sequence

import yaml

from mxscale.config.backends import BACKENDS
from mxscale.config.datasets import DATASETS
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Config, origin_of
from mxscale.config.signature import within
from mxscale.config.verb_settings import Plan
from mxscale.cost import prices
from mxscale.perfmodel import hardware
from mxscale.planner import table
from mxscale.rundir.price import Price
from mxscale.rundir.status import INTERRUPTED
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FOLDER, IMAGES = "/mnt/mxscale", "/mnt/images"  # of the storage, and of a copy of data.root
UNUSED = "unused"  # data.root, data.train, data.val of a plan that names none

HEADER = """\
# {sentence}
# Modelled on {today}, not measured. {price}
#   sky jobs launch {file}     rents the machines, trains, and returns them; a preempted run resumes on new ones
# The machines send nothing to MLflow: copy the run directory from {storage}, then `mxscale sync RUN_DIR`.
"""

MOUNT = """\
mountpoint -q $MXSCALE_FOLDER && exit 0
apt-get update && apt-get install -y nfs-common
mkdir -p $MXSCALE_FOLDER
mount -t nfs4 "$SHARE" $MXSCALE_FOLDER
"""

SCRIPT = Path(__file__).with_name("skypilot.sh")

# Settings whose values on the command line do not apply on the rented machines
OMITTED = ("plan", "json", "tracking", "launch.hosts", "launch.ranks", "runs", "resume", "comm.backend", "data.cache",
           "machine.prices")  # fmt: skip
CHANGED = ("gpu", "gpus", "nic_gbps", "rdma")  # settings of a plan for another machine than the listed instance
PUBLIC = ("imagenet", "zoo", "hf")  # kinds of model.pretrained that any machine can fetch


def write(config: Config, settings: Plan, plan: Dict, price: Price, typed: Sequence[str]) -> None:
    """Write plan.task.

    Args:
        plan: A row of scenarios.rows, with `hours_90`.
        price: Of one of its machines.
        typed: The settings of the command line, and the chosen files of the groups `data` and `model`.

    Raises:
        ConfigError: SkyPilot can't rent the plan, a setting is missing, or the file can't be written.
    """
    _check(config, settings, plan, price)
    bucket = "://" in settings.storage  # else an NFS share
    devices = str(plan["devices"] // plan["nodes"])
    variables, mounts = {"MXSCALE_FOLDER": FOLDER, "MXSCALE_RUNS": f"{FOLDER}/runs", "DEVICES": devices}, {}
    if bucket:
        variables["MXSCALE_ROOT"] = "yes"  # the files of a bucket belong to root
        mounts[FOLDER] = {"source": settings.storage, "mode": "MOUNT_CACHED"}
    else:
        variables["SHARE"] = settings.storage
    if _copies_root(config):
        mounts[IMAGES] = os.path.abspath(config.data.root)
    # SkyPilot recovers from a preemption in any case. A budget that is spent has the same status as an interruption
    recovery = {} if config.budget.stated else {"job_recovery": {"recover_on_exit_codes": [INTERRUPTED]}}
    task = {
        "name": f"mxscale-{config.model.name}".replace("_", "-"),
        "num_nodes": plan["nodes"],
        "resources": {
            "infra": f"{price.provider}/{price.region}",
            "instance_type": price.instance,
            "use_spot": price.market == "spot",
            "image_id": f"docker:{settings.image}",
            **recovery,
        },
        "envs": variables,
        **({"file_mounts": mounts} if mounts else {}),
    }
    text = yaml.safe_dump(task, sort_keys=False)
    if not bucket:
        text += f"setup: |\n{textwrap.indent(MOUNT, '  ')}"
    command = shlex.join(_command(config, plan, price, typed))
    text += f'run: |\n{textwrap.indent(SCRIPT.read_text(), "  ")}  {command} "${{where[@]}}"\n'
    head = HEADER.format(sentence=table.sentence(plan), price=prices.describe(price), today=date.today(),
                         file=settings.task, storage=settings.storage)  # fmt: skip
    try:
        write_text(settings.task, head + text)
    except OSError as error:
        raise ConfigError(f"plan.task={settings.task}: {error.strerror}") from None


def _check(config: Config, settings: Plan, plan: Dict, price: Price) -> None:
    """Raise ConfigError if the plan can't become a task, naming the setting that is missing or wrong."""
    source = PRICE_SOURCES[price.provider]
    if not (source.listed and source.mounts):
        raise ConfigError(f"plan.task: SkyPilot can't rent machine={price.provider} with storage: use machine=aws")
    if changed := [f"plan.{key}" for key in CHANGED if getattr(settings, key) is not None]:
        raise ConfigError(f"plan.task rents {price.instance} as it is: leave out {', '.join(changed)}")
    if plan["servers"]:
        raise ConfigError("plan.task: all machines of a task are alike: use plan.comm=horovod, or plan.servers=0")
    if not settings.image:
        raise ConfigError("plan.image is missing: an image in a registry, such as REGISTRY/mxscale:source")
    # In a bucket, what one machine writes appears on the others too late
    several = plan["nodes"] > 1
    if settings.storage is None or (several and "://" in settings.storage):
        expected = "HOST:/PATH of an NFS share" + ("" if several else " or s3://BUCKET")
        raise ConfigError(f"plan.storage={settings.storage}: expected {expected}, where run directories stay")
    _check_paths(config)


def _check_paths(config: Config) -> None:
    """Raise ConfigError if data or weights are at a path of this machine that the task does not copy."""
    entry, data = DATASETS[config.data.kind], config.data
    names = {*entry.required, *(name for name in ("train", "val", "test") if getattr(data, name) not in (None, UNUSED))}
    paths = {f"data.{name}": getattr(data, name) for name in names if not (name == "root" and _copies_root(config))}
    kind, rest = origin_of(config.model.pretrained or "imagenet")
    if kind not in PUBLIC:
        paths["model.pretrained"] = rest
    for key, path in sorted(paths.items()):
        if path == UNUSED:
            raise ConfigError(f"{key} is missing: the task trains, so it needs {entry.expected}")
        if not path.startswith(f"{FOLDER}/"):
            raise ConfigError(f"{key}={path}: the rented machines see only plan.storage, as {FOLDER}: copy it there")


def _copies_root(config: Config) -> bool:
    """Return whether data.root is a folder of this machine, which the task copies."""
    return config.data.root != UNUSED and os.path.isdir(config.data.root or "")


def _command(config: Config, plan: Dict, price: Price, typed: Sequence[str]) -> List[str]:
    """Return the words of the command that trains by the plan, without the hosts."""
    words = {word.partition("=")[0].lstrip("+"): word for word in typed}
    ours = {
        "epochs": math.ceil(plan["epochs"]),
        "batch.per_device": plan["batch"],
        "precision": plan["precision"],
        "comm": plan["comm"],
        "comm.compression": plan["compression"],
        "comm.double_buffering": str(plan["double_buffering"]).lower(),
        "machine": price.provider,
        "machine.instance": price.instance,
        "machine.region": price.region,
        "machine.market": price.market,
        "machine.nodes": plan["nodes"],
        f"machine.{price.currency}_per_hour": f"{price.per_hour(price.currency):.10g}",
        "tracking": "none",
        "runs": f"{FOLDER}/runs",
        "resume": "auto",
    }
    if BACKENDS[plan["comm"]].needs_servers:
        ours["comm.servers"] = plan["nodes"]
    if config.data.image_size:  # else finetune and data=imagefolder choose one
        ours["data.image_size"] = config.data.image_size
    if hardware.instances().get(price.instance, {}).get("gpu"):  # else `auto` would train on the CPU without a driver
        ours["launch.device"] = "gpu"
    if _copies_root(config):
        ours["data.root"] = IMAGES
    kept = [word for key, word in words.items() if key not in ours and not within(key, OMITTED)]
    return [
        "/mxscale/docker/entrypoint",
        "mxscale",
        config.entry,
        *kept,
        *(f"{key}={value}" for key, value in ours.items()),
    ]
