"""A plan as a task of SkyPilot, which rents its machines and trains on them: `mxscale plan plan.task=sky.yaml`.

Each machine runs the task in a container of plan.image, as root. Its file system at FOLDER outlives the machines, so
that a run resumes on others after a preemption. SkyPilot sets the variables SKYPILOT_* (its page "Environment
variables").
"""

import math
import os
import re
import shlex
from datetime import date
from pathlib import Path
from typing import Dict, List, Sequence

import yaml

from mxscale.config.backends import BACKENDS
from mxscale.config.datasets import DATASETS
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Config
from mxscale.config.signature import within
from mxscale.config.verb_settings import Plan
from mxscale.cost import prices
from mxscale.perfmodel import hardware
from mxscale.planner import table
from mxscale.rundir.directory import INTERRUPTED
from mxscale.rundir.price import Price
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError

FOLDER, IMAGES = "/mnt/mxscale", "/mnt/images"  # of the storage, and of a copy of data.root
BUCKET, SHARE = re.compile(r"[a-z0-9]+://[^/].*"), re.compile(r"[\w.-]+:/(?!/).*")
UNUSED = "unused"  # data.root, data.train, data.val of a plan that names none

HEADER = """\
# {sentence}
# Modelled on {today}, not measured. {price}
#   sky jobs launch {file}     rents the machines, trains, and returns them; a preempted run resumes on new ones
# MLflow gets nothing from here: copy the run directory from {storage}, then `mxscale sync RUN_DIR`.
"""

MOUNT = """\
mountpoint -q $MXSCALE_FOLDER && exit 0
apt-get update && apt-get install -y nfs-common
mkdir -p $MXSCALE_FOLDER
mount -t nfs4 "$SHARE" $MXSCALE_FOLDER
"""

SCRIPT = Path(__file__).with_name("skypilot.sh")

# Settings whose values on the command line do not apply on the rented machines
NOT_TAKEN = ("plan", "json", "machine", "tracking", "launch.hosts", "launch.ranks", "runs", "resume",
             "comm.backend", "data.cache")  # fmt: skip


class Script(str):
    """A text that YAML shows as lines."""


yaml.SafeDumper.add_representer(
    Script, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
)


def write(config: Config, settings: Plan, plan: Dict, price: Price, typed: Sequence[str]) -> None:
    """Write plan.task.

    Args:
        plan: A row of scenarios.rows, with `hours_90`.
        price: Of one of its machines.
        typed: The settings of the command line, and the chosen files of the groups `data` and `model`.

    Raises:
        ConfigError: SkyPilot can't rent the plan, a setting is missing, or the file can't be written.
    """
    check(config, settings, plan, price)
    shared = SHARE.fullmatch(settings.storage)
    ranks = 1 if BACKENDS[plan["comm"]].drives_all_devices else plan["devices"] // plan["nodes"]
    variables, mounts = {"MXSCALE_FOLDER": FOLDER, "MXSCALE_RUNS": f"{FOLDER}/runs", "RANKS": str(ranks)}, {}
    if shared:
        variables["SHARE"] = settings.storage
    else:
        variables["MXSCALE_ROOT"] = "yes"  # to whom the files of a bucket belong
        mounts[FOLDER] = {"source": settings.storage, "mode": "MOUNT_CACHED"}
    if _is_here(config):
        mounts[IMAGES] = os.path.abspath(config.data.root)
    task = {
        "name": f"mxscale-{config.model.name}".replace("_", "-"),
        "num_nodes": plan["nodes"],
        "resources": {
            "infra": f"{price.provider}/{price.region}",
            "instance_type": price.instance,
            "use_spot": price.market == "spot",
            "image_id": f"docker:{settings.image}",
            "job_recovery": {"recover_on_exit_codes": [INTERRUPTED]},
        },
        "envs": variables,
        "file_mounts": mounts,
        "setup": Script(MOUNT if shared else ""),
        "run": Script(f'{SCRIPT.read_text()}{shlex.join(_command(config, plan, price, typed))} "${{where[@]}}"\n'),
    }
    task = {key: value for key, value in task.items() if value}
    head = HEADER.format(sentence=table.sentence(plan), price=prices.describe(price), today=date.today(),
                         file=settings.task, storage=settings.storage)  # fmt: skip
    try:
        write_text(settings.task, head + yaml.safe_dump(task, sort_keys=False, width=10_000))
    except OSError as error:
        raise ConfigError(f"plan.task={settings.task}: {error.strerror}") from None


def check(config: Config, settings: Plan, plan: Dict, price: Price) -> None:
    """Raise ConfigError if the plan can't become a task, naming the setting that is missing or wrong."""
    if not PRICE_SOURCES[price.provider].listed:
        raise ConfigError(f"plan.task with machine={price.provider}: SkyPilot rents listed instances: use machine=aws")
    if plan["servers"]:
        raise ConfigError("plan.task: all machines of a task are alike: use plan.comm=horovod, or plan.servers=0")
    if not settings.image:
        raise ConfigError(
            "plan.image is missing: an image of docs/containers.md in a registry, REGISTRY/mxscale:source"
        )
    # In a bucket, what one machine writes appears on the others too late
    forms = {"HOST:/PATH of an NFS share": SHARE, **({"s3://BUCKET": BUCKET} if plan["nodes"] == 1 else {})}
    if not any(form.fullmatch(settings.storage or "") for form in forms.values()):
        raise ConfigError(f"plan.storage={settings.storage}: expected {' or '.join(forms)}, where run directories stay")
    entry = DATASETS[config.data.kind]
    for name in entry.required:
        if getattr(config.data, name) == UNUSED:
            raise ConfigError(f"data.{name} is missing: the task trains, so it needs {entry.expected}")


def _is_here(config: Config) -> bool:
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
    if hardware.instances().get(price.instance, {}).get("gpu"):  # else `auto` would train on the CPU without a driver
        ours["launch.device"] = "gpu"
    if _is_here(config):
        ours["data.root"] = IMAGES
    kept = [word for key, word in words.items() if key not in ours and not within(key, NOT_TAKEN)]
    return [
        "/mxscale/docker/entrypoint",
        "mxscale",
        config.entry,
        *kept,
        *(f"{key}={value}" for key, value in ours.items()),
    ]
