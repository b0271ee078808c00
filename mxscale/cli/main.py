"""Hydra in, exit status out.  Entry scripts name a config and call here; every bad input is one line."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import List

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.cli import multirun
from mxscale.cli.explain import explain, refuse
from mxscale.cli.settings import RESUMABLE, configure, settle
from mxscale.cli.verbs import TOOLS
from mxscale.config.schema import Config, from_dict, to_dict
from mxscale.config.validation import validate
from mxscale.doctor import doctor as examination
from mxscale.launcher import run as job
from mxscale.launcher.budget import REASON as BUDGET
from mxscale.launcher.context import Hooks
from mxscale.records import claims
from mxscale.rerun.rerun import Rerun
from mxscale.rundir import guards
from mxscale.rundir.directory import DONE, FAILED, FAILURE, INTERRUPTED
from mxscale.rundir.status import Status
from mxscale.sweep.sweep import REFUSED_CELL
from mxscale.util.errors import ConfigError, nearest

# Every key with its default; the YAML files of conf/ only choose other values.
DEFAULTS = OmegaConf.create(to_dict(Config()))
OmegaConf.set_struct(DEFAULTS.optimizer.params, False)  # takes any name; the optimizer knows which
ConfigStore.instance().store(name="defaults", node=DEFAULTS)

_statuses = []  # of the runs of this process: one, or the cells of a sweep
_stopped = []  # something in it, once somebody stopped one


def run(main) -> None:
    """Call a `@hydra.main` function; end the process with the run's exit status, of a sweep the worst."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, do not print and exit 1
    argparse.ArgumentParser.error = _refuse_option  # it would print a page
    sys.argv[1:] = map(spelt_out, sys.argv[1:])
    try:
        main()
    except KeyboardInterrupt:  # before a run took the signals over
        _statuses.append(INTERRUPTED)
    except Exception as error:
        if multirun.begun():
            _statuses.append(multirun.broken_off(error))
        elif _statuses:  # a run has begun: not the command line's fault
            raise
        else:
            _statuses.append(refuse(explain(error, _own_keys(Path(sys.argv[0]).stem))))
    finally:
        _statuses.extend(multirun.close())
    sys.exit(max(_statuses, default=DONE))


def spelt_out(word: str) -> str:
    """rerun=ID as Hydra knows it: `rerun` is a group of settings, and an id of digits alone would be a number."""
    name, _, value = word.partition("=")
    if name.lstrip("+") != "rerun":
        return word
    return f"rerun.run={re.sub(r'(?<![^,])[0-9a-f]{32}(?![^,])', lambda found: repr(found[0]), value)}"


def train(composed):
    """Run what Hydra composed.  Returns what a sweeper is told of it: sweep.objective."""
    if _stopped:  # who stops a sweep means all of it
        return None
    _statuses.append(FAILURE)  # until it is known
    hydra = HydraConfig.get()
    if hydra.mode == RunMode.MULTIRUN:
        status, objective = multirun.run_cell(composed, hydra, len(_statuses) == 1, _execute)
    else:
        status, objective = _execute(composed, hydra.overrides.task), None
    _statuses[-1] = status.exit
    if status.exit == INTERRUPTED and status.reason != BUDGET:  # a budget is one run's
        _stopped.append(True)
    return objective


def _execute(composed, overrides, cell=None) -> Status:
    """The status of the run that Hydra composed; what was wrong with it has been said.  cell: that of a sweep."""
    try:
        values = OmegaConf.to_container(composed, resolve=True)
        check_groups({"sweep": values["sweep"]})
        if cell:
            values, overrides = cell.settings(RESUMABLE)
        elif values["sweep"]["resume"]:
            raise ConfigError("sweep.resume=true without -m: a sweep is gone on with; one run, with resume=RUN_DIR")
        config, run, recorded = configure(values, overrides)
        claims.check(config.claims)
        hooks = [cell] if cell else []
        return job.execute(config, run, Hooks(*hooks, Rerun(recorded), examination.RecordFindings()))
    except (ConfigError, OmegaConfBaseException) as error:
        line = explain(error)
        return Status(REFUSED_CELL, exit=refuse(line), error=line)
    except guards.DiskFailed as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return Status(FAILED, exit=FAILURE, error=str(error))


# ---------------------------------------------------------------- entry points that train nothing


def doctor(composed) -> None:
    """Say what stands in the way of the run that Hydra composed."""
    _look(composed, ["json"], lambda values, as_json: examination.main(validate(from_dict(values)), as_json))


def report(composed) -> None:
    """Write what Hydra composed asks of the recorded runs."""
    from mxscale.report import report as reports  # with NumPy, which the start of a run does without

    _look(composed, ["report"], lambda values, own: reports.main(validate(from_dict(values)), own))


def plan(composed) -> None:
    """Say what the training that Hydra composed would take on machines that are not rented yet."""
    from mxscale.planner import (
        keys,  # NumPy, as above
        planning,
    )

    def look(values, own, as_json):
        return planning.main(validate(from_dict(keys.without_data(values))), own, as_json)

    _look(composed, ["plan", "json"], look)


def diagnose(composed) -> None:
    """Say where the time of a step goes of the run that Hydra composed."""
    from mxscale.diagnose import diagnosis  # NumPy, as above

    _look(composed, ["diagnose"], lambda values, own: diagnosis.main(settle(validate(from_dict(values))), own))


def check_groups(groups: dict) -> None:
    """Raises ConfigError where a group of settings was given a value of its own."""
    for name, value in groups.items():
        if not isinstance(value, dict):
            given = "null" if value is None else value
            raise ConfigError(f"{name}={given}: a group of settings: give {name}.KEY=VALUE")


def _look(composed, own_keys: List[str], look) -> None:
    """Call look(a run's settings, the value of each own key); it may return an exit status, and raises ConfigError."""
    _statuses.append(FAILURE)
    try:
        values = OmegaConf.to_container(composed, resolve=True)
        own = [values.pop(key) for key in own_keys]
        check_groups({key: value for key, value in zip(own_keys, own) if key != "json"})
        check_groups({"rerun": values["rerun"]})
        if values["rerun"]["run"] is not None:
            raise ConfigError(f"rerun={values['rerun']['run']}: a rerun is of train.py or finetune.py")
        _statuses[-1] = look(values, *own) or DONE
    except (ConfigError, OmegaConfBaseException) as error:
        _statuses[-1] = refuse(explain(error))
    except guards.DiskFailed as error:
        print(f"error: {error}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- small tools

CONF = Path(__file__).resolve().parents[2] / "conf"


def tool(argv: List[str]) -> int:
    """Do what `argv` names, with the settings of conf/NAME.yaml and its own beside them; returns the exit status."""
    name, *overrides = argv or [""]
    if name not in TOOLS:
        return refuse(f"python -m mxscale.cli.main {name}{nearest(name, TOOLS)}")
    its_own = _own_keys(name)
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


def _own_keys(name: str) -> dict:
    """The keys of conf/NAME.yaml that are not a run's."""
    if not (CONF / f"{name}.yaml").exists():  # a test's own script
        return {}
    values = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    return {key: value for key, value in values.items() if key not in (*DEFAULTS, "defaults", "hydra")}


def _refuse_option(parser, message: str) -> None:
    sys.exit(
        refuse(f"{message}: settings are KEY=VALUE (epochs=3); options such as -m come before or after all of them")
    )


if __name__ == "__main__":
    sys.exit(tool(sys.argv[1:]))
