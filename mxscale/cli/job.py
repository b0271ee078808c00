"""One training run from the settings that Hydra composed."""

import sys
from typing import Sequence

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mxscale.cli.explain import explain, refuse
from mxscale.cli.settings import RESUMABLE, configure
from mxscale.config.typed import check_group
from mxscale.diagnose.record import Stopped
from mxscale.launcher import run as launcher
from mxscale.launcher.context import Hook
from mxscale.launcher.setup import started
from mxscale.records import claims
from mxscale.rerun.rerun import Rerun
from mxscale.rundir.status import FAILED, FAILURE, INTERRUPTED, KILLED, Status
from mxscale.rundir.sweep_directory import REFUSED_TRIAL
from mxscale.util.atomic_files import write_text
from mxscale.util.errors import ConfigError, RunFailed
from mxscale.util.redaction import redact, shown
from mxscale.util.terminal import echo


class RecordOverrides(Hook):
    """Record the command line of each attempt in overrides.yaml: {attempt: [KEY=VALUE, ...]}."""

    def __init__(self, overrides: Sequence[str]):
        self.typed = [redact(override) for override in overrides]

    def before_ranks(self, context, plan):
        path = context.run.path / "overrides.yaml"
        earlier = context.run.read_yaml(path.name) or {}
        write_text(path, yaml.safe_dump({**earlier, context.attempt: self.typed}, sort_keys=False))


def execute(composed, overrides, trial=None) -> Status:
    """Execute the run that Hydra composed, print its error if it is refused, and return its status.

    Args:
        overrides: The command line, for a resume and a rerun.
        trial: The trial of a sweep that the run is.
    """
    record = RecordOverrides(overrides)
    try:
        values = OmegaConf.to_container(composed, resolve=True)
        check_group("sweep", values["sweep"])
        if trial:
            values, overrides = trial.settings(RESUMABLE)
        elif values["sweep"]["resume"]:
            raise ConfigError("sweep.resume=true without -m: it resumes a sweep; resume one run with resume=RUN_DIR")
        config, run, recorded = configure(values, overrides)
        claims.check(config.claims)
        hooks = [Rerun(recorded), record, *([trial] if trial else [])]
        if config.epochs == "auto" and not config.budget.dry_run:
            from mxscale.diagnose import budget_fit  # NumPy

            config = budget_fit.fitted(config, started(hooks))
        return launcher.execute(config, run, hooks)
    except Stopped as stopped:
        echo(f"interrupted ({stopped}) before the training; nothing is recorded")
        return Status(KILLED, exit=INTERRUPTED, reason=str(stopped))
    except (ConfigError, OmegaConfBaseException) as error:
        line = shown(explain(error))
        return Status(REFUSED_TRIAL, exit=refuse(line), error=line)
    except RunFailed as error:
        echo(f"error: {error}", sys.stderr)
        return Status(FAILED, exit=FAILURE, error=str(error))
