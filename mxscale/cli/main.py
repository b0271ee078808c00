"""The command line: `mxscale VERB KEY=VALUE ...`. Hydra composes the settings; invalid input is one line on stderr."""

import argparse
import os
import re
import sys
from contextlib import contextmanager
from typing import List, Optional, Tuple

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale import __version__
from mxscale.cli import CONF, help_pages, job, multirun, output
from mxscale.cli.explain import explain, refuse
from mxscale.cli.verbs import VERBS, Verb, own_settings
from mxscale.config.networks import NETWORKS
from mxscale.config.schema import Config, check_group, checked, filled, to_dict
from mxscale.config.training_settings import MAX_PIXELS
from mxscale.environment import variables
from mxscale.launcher.budget import REASON as BUDGET
from mxscale.launcher.progress import echo
from mxscale.rundir.directory import DONE, FAILURE, INTERRUPTED
from mxscale.util import yaml_aliases
from mxscale.util.errors import ConfigError, RunFailed, nearest, short
from mxscale.util.override_text import quoted

# Every key with its default; the YAML files of conf/ choose other values.
DEFAULTS = OmegaConf.create(to_dict(Config()))
OmegaConf.set_struct(DEFAULTS.optimizer.params, False)  # accepts any name; the optimizer validates them
ConfigStore.instance().store(name="defaults", node=DEFAULTS)
for name, verb in VERBS.items():  # the settings besides those of a run
    if verb.settings:
        ConfigStore.instance().store(name=f"{name}_settings", node=own_settings(name))
for network in NETWORKS:  # model=NAME without a file in conf/model
    ConfigStore.instance().store(group="model", name=network, node={"name": network})


def with_margin(side) -> Optional[int]:
    """Return the shorter side of an image whose centre of `side` pixels is cropped: 256 for 224."""
    return min(MAX_PIXELS, round(side * 8 / 7)) if isinstance(side, int) else None


OmegaConf.register_new_resolver("with_margin", with_margin, replace=True)  # for conf/data

# Hydra settings of verbs that create no run directory through Hydra: no log files, no output folder.
PLAIN = ["hydra/hydra_logging=disabled", "hydra/job_logging=disabled", "hydra.run.dir=.", "hydra.output_subdir=null",
         "hydra.sweep.dir=${runs}", "hydra.sweep.subdir=."]  # fmt: skip
# Hydra's settings of where it writes, which have no effect here
PLACES = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=", "hydra.output_subdir=")
HELP = {"-h", "--help", "--help=all"}
LOAD = OmegaConf.load
# Hydra's options that take a value
WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd",
              "--experimental-rerun")  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb.

    Args:
        argv: The command line without the name of the program; that of this process by default.

    Returns:
        The exit status: 0 done, 1 failed, 2 refused, 75 interrupted and resumable; of a sweep the highest.
    """
    open_closed_streams()
    with output.guarded() as printed:
        status = execute(*((sys.argv[1:] if argv is None else argv) or ["--help"]))
    if printed.error and not multirun.current_session().trains:
        echo(f"error: standard output cannot be written ({printed.error.strerror or printed.error})", sys.stderr)
        return max(status, FAILURE)
    return status


def execute(name: str, *arguments: str) -> int:
    """Execute a verb or one of the options in place of a verb, and return the exit status."""
    if name in ("-h", "--help"):
        return show(help_pages.overview(VERBS))
    if name == "--version":
        return show(f"mxscale {__version__}")
    if name in ("-sc", "--shell-completion"):
        return complete(arguments)
    try:
        variables.clean(os.environ)
        check_working_directory()
    except ConfigError as error:
        return refuse(str(error))
    if name not in VERBS:
        return refuse(f"mxscale {name}{nearest(name, VERBS, listed=list(VERBS))}")
    if asked := HELP & set(arguments):
        overrides = [canonical(argument) for argument in arguments if "=" in argument and argument not in HELP]
        return show_help(name, overrides, complete="--help=all" in asked)
    return run(VERBS[name], name, list(arguments))


def open_closed_streams() -> None:
    """Open the standard streams that the caller closed (`2>&-`): another file would get their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))


def check_working_directory() -> None:
    """Raise ConfigError if the working directory can't be the folder of run directories, whose files hold its name."""
    try:
        os.getcwd().encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the name of the working directory is not UTF-8: {os.getcwd()}; rename it") from None
    except OSError as error:
        raise ConfigError(
            f"the working directory can't be used ({error.strerror.lower()}); change to another"
        ) from None


def show(text: str) -> int:
    """Print a text that the reader may cut off, as `| head` does, and return the exit status."""
    echo(text)
    return DONE


def show_help(name: str, overrides: List[str], complete: bool) -> int:
    """Print the help of a verb with the values that the overrides give."""
    try:
        values = help_pages.composed(name, overrides)
    except Exception as error:  # invalid overrides
        return refuse(explain(error, own_settings(name)))
    return show(help_pages.page(name, VERBS[name], values, complete))


def run(verb: Verb, name: str, arguments: List[str]) -> int:
    """Compose the settings of a verb, execute it, and return the exit status."""
    invocation = multirun.begin_session()
    options, settings = separated(arguments)
    settings = keyed(verb, [canonical(setting) for setting in settings])
    unpickling = next((option for option in options if _unpickles(option)), None)
    if unpickling:
        return refuse(f"{unpickling}: it would execute a pickle of Hydra's; repeat a run with rerun=RUN_DIR")
    placed = next((setting for setting in settings if setting.lstrip("+~").startswith(PLACES)), None)
    if placed:
        return refuse(f"{placed}: run directories and sweeps are below runs; set runs=DIR")
    task = train
    if verb.execute:
        settings = [*PLAIN, *settings]

        def task(composed):
            invocation.statuses.append(FAILURE)  # until the verb has ended
            invocation.statuses[-1] = _perform(verb, name, composed)

    with _command_line([*settings, *options]):
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)()
        except KeyboardInterrupt:  # before a run handles the signals
            invocation.statuses.append(INTERRUPTED)
        except Exception as error:
            if invocation.sweep and invocation.sweep.begun():
                invocation.statuses.append(invocation.sweep.ended_early(error))
            elif invocation.statuses:  # a run has begun: not an error of the command line
                raise
            else:
                invocation.statuses.append(refuse(explain(error, own_settings(name))))
        finally:
            if invocation.sweep:
                invocation.statuses.extend(invocation.sweep.close())
    return max(invocation.statuses, default=DONE)


@contextmanager
def _command_line(arguments: List[str]):
    """Make Hydra read `arguments`, raise its errors instead of printing them, and refuse an option in one line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before = sys.argv, argparse.ArgumentParser.error, OmegaConf.load
    sys.argv, argparse.ArgumentParser.error = [sys.argv[0], *arguments], _refuse_option
    OmegaConf.load = _load_checked
    try:
        yield
    finally:
        sys.argv, argparse.ArgumentParser.error, OmegaConf.load = before


def canonical(argument: str) -> str:
    """Return `rerun=ID` as Hydra accepts it: `rerun` is a group, and an id of digits alone would be a number."""
    name, _, value = argument.partition("=")
    if name.lstrip("+") != "rerun":
        return argument
    return f"rerun.run={re.sub(r'(?<![^,])[0-9a-f]{32}(?![^,])', lambda found: repr(found[0]), value)}"


def separated(arguments: List[str]) -> Tuple[List[str], List[str]]:
    """Return Hydra's options, with their values, and the settings: argparse accepts settings side by side only."""
    options, settings = [], []
    for argument in arguments:
        last = options[-1] if options else ""
        optional = last in ("--info", "-i") and not re.search("^-|=", argument)
        if last in WITH_VALUE or optional:
            options[-1] += f"={argument}"
        else:
            (options if argument.startswith("-") else settings).append(argument)
    return options, settings


def _unpickles(option: str) -> bool:
    """Return whether Hydra would take an option for --experimental-rerun; argparse accepts it abbreviated."""
    name = option.partition("=")[0]
    return len(name) > 2 and "--experimental-rerun".startswith(name)


def keyed(verb: Verb, arguments: List[str]) -> List[str]:
    """Return the positional arguments of a verb as KEY='VALUE', and the others as they are."""
    keys, rest, found = list(verb.positional), [], []
    for argument in arguments:
        if not (keys or verb.rest) or re.match(r"[+~]*[\w.@]*=", argument):
            found.append(argument)
        elif keys:
            found.append(f"{keys.pop(0)}={quoted(argument)}")
        else:
            rest.append(quoted(argument))
    return [*found, f"{verb.rest}=[{','.join(rest)}]"] if rest else found


def complete(arguments: List[str]) -> int:
    """Print what Hydra's completion script of a shell asks for, and return the exit status.

    The verbs are completed here, the rest of a line by Hydra as for a script without verbs.
    """
    if not any(argument.startswith("query=") for argument in arguments):  # install=SHELL prints the script
        return run(VERBS["train"], "train", ["-sc", *arguments])
    line = os.environ.get("COMP_LINE", "")
    words = line.split(None, 2)
    if len(words) < 2 or words[1] not in VERBS or line.endswith(words[1]):
        return show(" ".join(VERBS))
    os.environ["COMP_LINE"] = f"mxscale {''.join(words[2:])}"
    return run(VERBS[words[1]], words[1], ["-sc", *arguments])


def train(composed):
    """Run what Hydra composed, and return the value of sweep.objective for a sweeper."""
    invocation = multirun.current_session()
    if invocation.stopped:  # a stop request holds for the whole sweep
        return None
    invocation.trains = True
    invocation.statuses.append(FAILURE)  # until the run has ended
    settings = HydraConfig.get()
    if settings.mode == RunMode.MULTIRUN:
        status, objective = multirun.run_cell(composed, settings, len(invocation.statuses) == 1, job.execute)
    else:
        status, objective = job.execute(composed, OmegaConf.to_container(settings.overrides.task)), None
    invocation.statuses[-1] = status.exit
    if status.exit == INTERRUPTED and status.reason != BUDGET:  # a budget is one run's
        invocation.stopped = True
    return objective


def _perform(verb: Verb, name: str, composed) -> int:
    """Execute a verb that trains nothing with what Hydra composed, and return its exit status."""
    try:
        defaults, usual = own_settings(name), to_dict(Config())
        values = OmegaConf.to_container(composed, resolve=True)
        values = filled(values, {**defaults, **{key: usual[key] for key in ("rerun", "tracking")}})
        own = checked({key: values.pop(key) for key in defaults}, verb.settings)
        check_group("rerun", values["rerun"])
        if values["rerun"]["run"] is not None:
            raise ConfigError(f"rerun={values['rerun']['run']}: only `train` and `finetune` run a run again")
        return verb.execute(values, own) or DONE
    except (ConfigError, OmegaConfBaseException) as error:
        return refuse(explain(error))
    except RunFailed as error:
        echo(f"error: {error}", sys.stderr)
        return FAILURE


def _load_checked(file):
    """Load a file of settings for Hydra. Raises ConfigError if its aliases stand for too many values."""
    try:
        yaml_aliases.check(file.read())
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{file.name}: {short(error)}") from None
    file.seek(0)
    return LOAD(file)


def _refuse_option(parser, message: str) -> None:
    raise ConfigError(f"{message}: settings are KEY=VALUE (epochs=3)")
