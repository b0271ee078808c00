"""The command line: `mxscale VERB KEY=VALUE ...`. Hydra composes the settings; invalid input is one line on stderr."""

import argparse
import os
import re
import sys
from typing import List, Optional

from hydra import initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale import __version__
from mxscale.cli import CONF, composition, help_pages, job, multirun
from mxscale.cli.explain import explain, refuse
from mxscale.cli.verbs import VERBS, Verb, own_settings
from mxscale.config import removed
from mxscale.config.schema import flatten
from mxscale.config.typed import check_group
from mxscale.environment import variables
from mxscale.rundir.status import DONE, FAILURE, INTERRUPTED
from mxscale.util.errors import ConfigError, RunFailed, nearest
from mxscale.util.override_text import quoted
from mxscale.util.terminal import LOST, echo

# Hydra's settings of where it writes, which have no effect here
PLACES = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=", "hydra.output_subdir=")
HELP = {"-h", "--help", "--help=all"}


class Options(argparse.ArgumentParser):
    """The options of a verb, before, between and after its settings."""

    def __init__(self):
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("settings", nargs="*")
        self.add_argument("--multirun", "-m", action="store_true")
        self.add_argument("--cfg", "-c", choices=["job"])

    def error(self, message: str):
        raise ConfigError(f"{message}: settings are KEY=VALUE (epochs=3), files of settings are below conf/")


def main(argv: Optional[List[str]] = None) -> int:
    """Run one verb.

    Args:
        argv: The command line without the name of the program; that of this process by default.

    Returns:
        The exit status: 0 done, 1 failed, 2 refused, 75 interrupted and resumable; of a sweep the highest.
    """
    open_closed_streams()
    LOST.clear()
    status = execute(*((sys.argv[1:] if argv is None else argv) or ["--help"]))
    if LOST and not multirun.current_session().trains:
        echo(f"error: standard output cannot be written ({LOST[0].strerror or LOST[0]})", sys.stderr)
        return max(status, FAILURE)
    return status


def execute(name: str, *arguments: str) -> int:
    """Execute a verb or one of the options in place of a verb, and return the exit status."""
    if name in ("-h", "--help"):
        echo(help_pages.overview(VERBS))
        return DONE
    if name == "--version":
        echo(f"mxscale {__version__}")
        return DONE
    try:
        variables.clean(os.environ)
        check_working_directory()
    except ConfigError as error:
        return refuse(str(error))
    if name not in VERBS:
        gone = removed.refusal(f"mxscale {name}")
        return refuse(gone or f"mxscale {name}{nearest(name, VERBS, listed=list(VERBS))}")
    try:
        with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
            return run(VERBS[name], name, list(arguments))
    except KeyboardInterrupt:  # before a run handles the signals
        return INTERRUPTED


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
    except (OSError, UnicodeEncodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) else "its name is not UTF-8"
        raise ConfigError(f"the working directory can't be used ({reason}); change to another") from None


def run(verb: Verb, name: str, arguments: List[str]) -> int:
    """Compose the settings of a verb, execute it or print its help, and return the exit status."""
    session, settings = multirun.begin_session(), []
    try:
        options = Options().parse_intermixed_args([argument for argument in arguments if argument not in HELP])
        settings = overrides(verb, name, options)
        config = composition.compose(name, settings, RunMode.MULTIRUN if options.multirun else RunMode.RUN)
        composed = composition.of_run(config)
        if flags := HELP & set(arguments):
            values = flatten(OmegaConf.to_container(composed, resolve=True))
            echo(help_pages.page(name, verb, values, complete="--help=all" in flags))
            return DONE
    except Exception as error:  # Hydra raises many types
        return refuse(explain(error, own_settings(name), settings))
    if options.cfg:
        echo(OmegaConf.to_yaml(composed).rstrip())
        return DONE
    if options.multirun:
        return multirun.run(config)
    HydraConfig.instance().set_config(config)
    if verb.execute:
        return _perform(verb, name, composed)
    session.trains = True
    return job.execute(composed, OmegaConf.to_container(config.hydra.overrides.task)).exit


def overrides(verb: Verb, name: str, options: argparse.Namespace) -> List[str]:
    """Return the settings of a command line as overrides in Hydra's grammar. Raises ConfigError."""
    settings = keyed(verb, [canonical(setting) for setting in options.settings])
    for setting in settings:
        key = setting.lstrip("+~")
        if setting.startswith("~"):
            raise ConfigError(f"{setting}: a setting can't be deleted; give KEY=VALUE, such as {key}=null")
        if key.startswith(PLACES):
            raise ConfigError(f"{setting}: run directories and sweeps are below runs; set runs=DIR")
        if re.match(r"hydra[./]", key) and not options.multirun:
            raise ConfigError(f"{setting} without -m: Hydra's settings are those of a sweep; leave it out")
    if options.multirun and verb.execute:
        raise ConfigError(f"mxscale {name} -m: only train and finetune sweep over values")
    return settings


def canonical(argument: str) -> str:
    """Return `rerun=ID` as Hydra accepts it: `rerun` is a group, and an id of digits alone would be a number."""
    name, _, value = argument.partition("=")
    if name.lstrip("+") != "rerun":
        return argument
    return f"rerun.run={re.sub(r'(?<![^,])[0-9a-f]{32}(?![^,])', lambda match: repr(match[0]), value)}"


def keyed(verb: Verb, arguments: List[str]) -> List[str]:
    """Return the positional arguments of a verb as KEY='VALUE', and the others as they are."""
    keys, listed, settings = list(verb.positional), [], []
    for argument in arguments:
        if not (keys or verb.listed) or re.match(r"[+~]*[\w.@]*=", argument):
            settings.append(argument)
        elif keys:
            settings.append(f"{keys.pop(0)}={quoted(argument)}")
        else:
            listed.append(quoted(argument))
    return [*settings, f"{verb.listed}=[{','.join(listed)}]"] if listed else settings


def _perform(verb: Verb, name: str, composed) -> int:
    """Execute a verb that trains nothing with what Hydra composed, and return its exit status."""
    try:
        values, options = composition.separated(composed, name)
        check_group("rerun", values["rerun"])
        if values["rerun"]["run"] is not None:
            raise ConfigError(f"rerun={values['rerun']['run']}: only `train` and `finetune` run a run again")
        return verb.execute(values, options) or DONE
    except (ConfigError, OmegaConfBaseException) as error:
        return refuse(explain(error))
    except RunFailed as error:
        echo(f"error: {error}", sys.stderr)
        return FAILURE
