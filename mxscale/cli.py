"""Hydra in, exit status out.  Entry scripts name a config and call here; every bad input is one line."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.checks import KVSTORES, kvstore, validate
from mxscale.config import Config, ConfigError, flatten, from_dict, nearest, origin_of, to_dict
from mxscale.run import doctor as examination
from mxscale.run import job, opening, rundir, tracking
from mxscale.run.rundir import DONE, FAILURE, INTERRUPTED, REFUSED, RunDir

# Every key with its default; the YAML files of conf/ only choose other values.
DEFAULTS = OmegaConf.create(to_dict(Config()))
OmegaConf.set_struct(DEFAULTS.optimizer.params, False)  # takes any name; the optimizer knows which
ConfigStore.instance().store(name="defaults", node=DEFAULTS)

_statuses = []  # of the runs of this process: one, or the cells of a sweep


def run(main) -> None:
    """Call a `@hydra.main` function; end the process with the run's exit status, of a sweep the worst."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, do not print and exit 1
    argparse.ArgumentParser.error = _refuse_option  # it would print a page
    try:
        main()
    except KeyboardInterrupt:  # before a run took the signals over
        _statuses.append(INTERRUPTED)
    except Exception as error:
        if _statuses:  # a run has begun: not the command line's fault
            raise
        _statuses.append(refuse(explain(error)))
    sys.exit(max(_statuses, default=DONE))


def train(composed) -> Optional[float]:
    """Run what Hydra composed.  Returns the best val/top1: a sweep's objective."""
    if INTERRUPTED in _statuses:  # who stops a sweep means all of it
        return None
    _statuses.append(FAILURE)  # until it is known
    try:
        config, resumed = configure(OmegaConf.to_container(composed, resolve=True), HydraConfig.get().overrides.task)
        status = job.execute(config, resumed)
    except (ConfigError, OmegaConfBaseException) as error:
        _statuses[-1] = refuse(str(error) if isinstance(error, ConfigError) else explain(error))
        return None
    except opening.DiskFailed as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return None
    _statuses[-1] = status["exit"]
    return status["summary"].get("best/val_top1")


def doctor(composed) -> None:
    """Say what stands in the way of the run that Hydra composed."""
    _statuses.append(FAILURE)
    try:
        values = OmegaConf.to_container(composed, resolve=True)
        as_json = values.pop("json")
        if not isinstance(as_json, bool):
            raise ConfigError(f"json={as_json}: expected true or false")
        config = validate(from_dict(values))
    except (ConfigError, OmegaConfBaseException) as error:
        _statuses[-1] = refuse(str(error) if isinstance(error, ConfigError) else explain(error))
        return
    _statuses[-1] = examination.main(config, as_json)


# ---------------------------------------------------------------- small tools: python -m mxscale.cli NAME KEY=VALUE ...

CONF = Path(__file__).resolve().parents[1] / "conf"


def tool(argv: List[str]) -> int:
    """Do what `argv` names, with the settings of conf/NAME.yaml and its own beside them; returns the exit status."""
    name, *overrides = argv or [""]
    if name not in TOOLS:
        return refuse(f"python -m mxscale.cli {name}{nearest(name, TOOLS)}")
    its_own = [key for key in OmegaConf.load(CONF / f"{name}.yaml") if key not in (*DEFAULTS, "defaults", "hydra")]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            values = OmegaConf.to_container(compose(name, overrides), resolve=True)
    except Exception as error:  # of Hydra's grammar and its files: the command line's fault
        return refuse(explain(error, its_own))
    own = {key: values.pop(key) for key in its_own}
    try:
        TOOLS[name](settle(validate(from_dict(values))), own)
    except ConfigError as error:
        return refuse(str(error))
    return DONE


def logits(config: Config, own: dict) -> None:
    """What a pretrained network makes of the images in a file."""
    given, made = _path(own, "input"), _path(own, "output")
    if config.model.pretrained is None:
        raise ConfigError("model.pretrained is missing: name the weights to look at, such as torch:FILE")
    source = opening.pretrained_file(config) or config.model.pretrained
    from mxscale.nets import infer  # imports MXNet: not before the command line is known to be good

    infer.logits(config.model.name, source, given, made)


def export(config: Config, own: dict) -> None:
    """Write a run's network for PyTorch."""
    run, made = _path(own, "run"), _path(own, "output")
    found = rundir.latest_trained(config.runs) if run == "latest" else RunDir(run)
    best = found.read("best.json")
    if best is None:
        raise ConfigError(f"run={run} is no run directory with a best checkpoint")
    from mxscale.nets import infer

    infer.export(found.config().model.name, str(found.path / best["checkpoint"] / "params"), made, f"run={run}")


def test_io(config: Config, own: dict) -> None:
    """Images/s by decode threads, without a network."""
    io = own["io"] if isinstance(own["io"], dict) else {}
    from mxscale.data import rates

    rates.show(config, io.get("seconds"), io.get("threads"))


def _path(own: dict, key: str) -> str:
    if not isinstance(own[key], str):
        raise ConfigError(f"{key} is missing: {key}=PATH")
    return own[key]


# name -> what it does with the run's settings and those of its own in conf/NAME.yaml; raises ConfigError
TOOLS: Dict[str, Callable[[Config, dict], None]] = {"export": export, "logits": logits, "test_io": test_io}


def refuse(line: str) -> int:
    """Say what is wrong in one line; the exit status for it."""
    print(f"error: {' '.join(line.splitlines())}", file=sys.stderr, flush=True)
    return REFUSED


def _refuse_option(parser, message: str) -> None:
    sys.exit(
        refuse(f"{message}: settings are KEY=VALUE (epochs=3); options such as -m come before or after all of them")
    )


# ---------------------------------------------------------------- the config of a run


def configure(values: dict, overrides) -> tuple:
    """(frozen Config, the RunDir to resume or None).  Raises ConfigError."""
    config = validate(from_dict(values))
    if config.resume is None:
        return settle(config), None
    if config.resume == "auto":
        settled = settle(config)
        found = unfinished_run_of(settled)
        if found is None:
            return settled, None
        return merge_for_resume(found, to_dict(settled), overrides), found
    found = RunDir(config.resume)
    if not (found.path / "config.yaml").is_file():
        such = f"{config.runs}/{config.entry}/DATE_TIME_run"
        raise ConfigError(f"resume={config.resume} is no run directory: expected one such as {such}")
    found.config()  # raises where it is damaged
    if (found.read("status.json") or {}).get("state") == rundir.FINISHED:
        raise ConfigError(f"resume={config.resume}: that run is finished; start a new one without resume=")
    return merge_for_resume(found, values, overrides), found


def settle(config: Config) -> Config:
    """Put in place what the words `latest`, `run:` and a missing model.name stand for."""
    values = to_dict(config)
    kind, rest = origin_of(config.model.pretrained or "")
    if kind == "latest":
        values["model"]["pretrained"] = str(rundir.latest_trained(config.runs).path)
    if kind == "run":
        values["model"]["pretrained"] = str(tracking.find_run(config, rest))
    values["model"]["name"] = network_of(config.model.name, values["model"]["pretrained"])
    if config.launch.kind == "docker":  # another home and another folder in there
        values["runs"] = _absolute(values["runs"])
        values["model"]["pretrained"] = _absolute_source(values["model"]["pretrained"])
        for name in ("root", "train", "val", "test", "cache"):
            values["data"][name] = _absolute(values["data"][name])
    return validate(from_dict(values))


def network_of(name: Optional[str], source: Optional[str]) -> str:
    """The name of the network: a graph that comes with its weights, that of a run, or as it is given."""
    if source and origin_of(source)[0] == "symbol":
        if name not in (None, "symbol"):
            raise ConfigError(
                f"model.name={name}: model.pretrained={source} brings its own network; set model.name=null"
            )
        return "symbol"
    if source and os.path.isdir(source) and name in (None, "symbol"):
        known = RunDir(source).config().model.name
        if name == "symbol" != known:
            raise ConfigError(f"model.name=symbol: the network of {source} is {known}; set model.name=null")
        return known
    if name is None:
        raise ConfigError("model.name is missing: name the network that model.pretrained fits")
    if name == "symbol":
        raise ConfigError("model.name=symbol needs the network's graph: give model.pretrained=symbol:PREFIX")
    return name


def _absolute_source(source: Optional[str]) -> Optional[str]:
    kind, rest = origin_of(source or "")
    if kind in ("symbol", "torch"):
        return f"{kind}:{_absolute(rest)}"
    return _absolute(source) if kind == "path" else source


def _absolute(path: Optional[str]) -> Optional[str]:
    return path and os.path.abspath(os.path.expanduser(path))


# What a resume may set anew; anything else would make it another run.
# (The price of its first start holds for all of a run.)
RESUMABLE = ("launch", "tracking", "checkpoint", "comm", "log_every", "validate_every", "epochs",
             "max_steps", "target_top1", "resume")  # fmt: skip


def merge_for_resume(run: RunDir, values: dict, overrides) -> Config:
    """The run's config with what this command line sets; ConfigError where that makes another run."""
    merged, asked, composed = flatten(to_dict(run.config())), flatten(to_dict(run.asked())), flatten(values)
    for override in overrides:
        key = override.split("=")[0].lstrip("+~")
        if key in ("experiment", "debug"):
            raise ConfigError(f"{override} with resume={run}: set single keys, or start a new run")
        for name in [n for n in composed if n == key or n.startswith(key + ".")]:
            if name.split(".")[0] in RESUMABLE:
                merged[name] = composed[name]
            elif asked.get(name) != composed[name]:
                has = f"that run has {name}={asked.get(name)}"
                raise ConfigError(f"{override} with resume={run}: {has}; leave it out, or start a new run")
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
        try:
            saved = flatten(to_dict(found.asked()))
        except ConfigError:  # of another version
            continue
        if all(saved.get(key, None) == value for key, value in wanted.items()):
            return found
    return None


# ---------------------------------------------------------------- Hydra's errors in one line


def explain(error: Exception, its_own=()) -> str:
    """What is wrong on the command line, with the nearest right name, or how to write it.

    its_own: the keys of a tool, beside the run's.
    """
    text = str(error).strip()
    defaults = {**to_dict(Config()), **dict.fromkeys(its_own)}
    if isinstance(error, OSError) and error.filename:  # Hydra writes down what a sweep is
        return f"runs: can't write {error.filename} ({error.strerror}); set runs=DIR"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {_how_to_write(error.override)}"
    ambiguous = re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text)
    if ambiguous:
        key, value = ambiguous.groups()
        return f"{key}={value}: write a list as '{key}=[{value}]'; to sweep over the values, add -m"
    deleted = re.search(r"Could not delete from config. '([^']+)'", text)
    if deleted:
        return f"~{deleted[1]}: can't be deleted; to leave it out, set {deleted[1]}=null"
    unknown = re.search(r"Could not override '([^']+)'", text) or re.search(r"Key '([^']+)' is not in struct", text)
    if unknown and unknown[1] not in defaults:
        return f"unknown key {unknown[1]}{nearest(unknown[1], [*flatten(defaults), *defaults])}"
    if unknown or "Config group" in text or "resolving interpolation" in text:
        groups = [name for name, value in defaults.items() if isinstance(value, dict)]
        given = [word for word in sys.argv[1:] if word.lstrip("+~").partition("=")[0] in ["", *groups]]
        return f"{' '.join(given)}: a group takes the name of one of its choices, such as data=digits"
    missing = re.search(r"Could not find '([^'/]+)/([^']*)'", text)
    if missing:
        listed = text.partition("Available options")[2].partition("Config search path")[0]
        options = re.findall(r"^\s+(\S+)$", listed, re.MULTILINE)
        if missing[1] == "comm" and missing[2] in KVSTORES:
            return kvstore("comm", missing[2])
        return f"{missing[1]}={missing[2]}{nearest(missing[2], options)}"
    return " ".join(line.strip() for line in text.splitlines()[:2])


def _how_to_write(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[+~]{0,2}\w[\w/@]*(\.\w+)*", key):
        return "expected KEY=VALUE, such as optimizer.lr=0.1"
    if value[:1] in "[{\"'":
        return f"is not closed, or not quoted; a list is written '{key}=[a,b]'"
    return f"such a value is quoted twice, for the shell and for Hydra: '{key}=\"{value}\"'"


if __name__ == "__main__":
    sys.exit(tool(sys.argv[1:]))
