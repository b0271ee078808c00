"""Hydra in, exit status out.  Entry scripts name a config and call here; every bad input is one line."""

import os
import re
import sys
from typing import Optional

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.config import Config, ConfigError, flatten, from_dict, nearest, to_dict, validate
from mxscale.run import job, rundir
from mxscale.run.rundir import REFUSED, RunDir

# Every key with its default; the YAML files of conf/ only choose other values.
ConfigStore.instance().store(name="defaults", node=to_dict(Config()))

_statuses = []  # of the runs of this process: one, or the cells of a sweep


def run(main) -> None:
    """Call a `@hydra.main` function; end the process with DESIGN's exit status."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, do not print and exit 1
    try:
        main()
    except (HydraException, OmegaConfBaseException) as error:
        refuse(explain(error))
    sys.exit(max(_statuses, default=REFUSED))


def train(composed) -> Optional[float]:
    """Run what Hydra composed.  Returns the best val/top1: a sweep's objective."""
    try:
        config, resumed = configure(OmegaConf.to_container(composed, resolve=True), HydraConfig.get().overrides.task)
        status = job.execute(config, resumed)
    except ConfigError as error:
        refuse(str(error))
        return None
    _statuses.append(status["exit"])
    return (status.get("summary") or {}).get("best/val_top1")


def refuse(line: str) -> None:
    print(f"error: {line}", file=sys.stderr, flush=True)
    _statuses.append(REFUSED)


# ---------------------------------------------------------------- the config of a run


def configure(values: dict, overrides) -> tuple:
    """(frozen Config, the RunDir to resume or None).  Raises ConfigError."""
    config = validate(from_dict(values))
    if config.resume is None:
        return settle(config), None
    if config.resume == "auto":
        found = unfinished_run_of(settle(config))
        return (settle(config), None) if found is None else (found.config(), found)
    found = RunDir(config.resume)
    saved = found.config()
    if (found.read("status.json") or {}).get("state") == rundir.FINISHED:
        raise ConfigError(f"resume={config.resume}: that run is finished; start a new one without resume=")
    return merge_for_resume(saved, values, overrides, config.resume), found


def settle(config: Config) -> Config:
    """Put in place what the words `latest` and a missing model.name stand for."""
    values = to_dict(config)
    if config.model.pretrained == "latest":
        values["model"]["pretrained"] = str(rundir.latest_trained(config.runs).path)
    source = values["model"]["pretrained"]
    if config.model.name is None:
        if not source or not os.path.isdir(source):
            raise ConfigError("model.name is missing: name the network that model.pretrained fits")
        values["model"]["name"] = RunDir(source).config().model.name
    return validate(from_dict(values))


# What a resume may set anew; anything else would make it another run.
RESUMABLE = ("launch", "tracking", "machine", "checkpoint", "comm", "log_every", "validate_every", "epochs", "max_steps",
             "target_top1", "resume")  # fmt: skip


def merge_for_resume(saved: Config, values: dict, overrides, resume: str) -> Config:
    """The saved config with what this command line sets; ConfigError where that makes another run."""
    merged, composed = flatten(to_dict(saved)), flatten(values)
    for override in overrides:
        key = override.split("=")[0].lstrip("+~")
        for name in [n for n in composed if n == key or n.startswith(key + ".")]:
            if key.split(".")[0] not in RESUMABLE and merged[name] != composed[name]:
                raise ConfigError(
                    f"{override} with resume={resume}: that run has {name}={merged[name]}; leave it out, or start a new run"
                )
            merged[name] = composed[name]
    return validate(from_dict(unflatten(merged)))


def unflatten(flat: dict) -> dict:
    values: dict = {}
    for key, value in flat.items():
        node = values
        *groups, last = key.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return values


def unfinished_run_of(config: Config) -> Optional[RunDir]:
    """The newest run of the same config that has not finished: what resume=auto goes on with."""
    wanted = {k: v for k, v in flatten(to_dict(config)).items() if k.split(".")[0] not in RESUMABLE}
    for found in rundir.runs_of(config.runs, config.entry):
        if (found.read("status.json") or {}).get("state") == rundir.FINISHED:
            continue
        saved = flatten(to_dict(found.config()))
        if all(saved.get(key, None) == value for key, value in wanted.items()):
            return found
    return None


# ---------------------------------------------------------------- Hydra's errors in one line


def explain(error: Exception) -> str:
    """What is wrong on the command line, with the nearest right name."""
    text = str(error).strip()
    known = list(flatten(to_dict(Config()))) + list(to_dict(Config()))
    unknown = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if unknown:
        return f"unknown key {unknown[1]}{nearest(unknown[1], known)}"
    missing = re.search(r"Could not find '([^']+)/([^'/]+)'", text)
    if missing:
        options = re.findall(r"^\s+(\S+)$", text.partition("Available options")[2], re.MULTILINE)
        return f"{missing[1]}={missing[2]}{nearest(missing[2], options)}"
    return " ".join(line.strip() for line in text.splitlines()[:2])
