"""Hydra's errors as one line that names the invalid argument and the nearest valid one."""

import os
import re
import sys
from typing import Iterable, Optional

from hydra.errors import OverrideParseException
from omegaconf.errors import InterpolationResolutionError
from yaml import YAMLError

from mxscale.cli import CONF
from mxscale.config import removed
from mxscale.config.backends import ALIASES
from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.validation import kvstore
from mxscale.rundir.status import REFUSED
from mxscale.util.errors import ConfigError, nearest, short
from mxscale.util.terminal import echo


def refuse(line: str) -> int:
    """Print an error as one line, and return the exit status of invalid input."""
    echo(f"error: {' '.join(line.splitlines())}", sys.stderr)
    return REFUSED


def explain(error: Exception, own: Optional[dict] = None, typed: Iterable[str] = ()) -> str:
    """Return an error of the command line as one line, with the nearest valid name or the expected form.

    Args:
        own: The settings of the verb in addition to those of a run, with their defaults.
        typed: The settings of the command line.
    """
    text = str(error).strip()
    if isinstance(error, ConfigError):
        return text
    defaults = {**to_dict(Config()), **(own or {})}
    if isinstance(error, OSError) and error.filename:  # Hydra writes multirun.yaml
        return f"runs: can't write {error.filename} ({error.strerror}); set runs=DIR"
    if isinstance(error, InterpolationResolutionError):  # such as "Environment variable 'X' not found"
        return f"{error.full_key}: {text.splitlines()[0].rpartition('interpolation: ')[2]}"
    if isinstance(error, YAMLError):
        return short(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: {_expected_form(error.override)}"
    return _of_composition(text, defaults, typed)


def _of_composition(text: str, defaults: dict, typed: Iterable[str]) -> str:
    """Return Hydra's message on composing the settings as one line."""
    if match := re.search(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        return f"{match[1]}={match[2]}: write a list as '{match[1]}=[{match[2]}]'; to sweep over the values, add -m"
    unknown = re.search(r"(?:Could not override|Key) '([^']+)'", text)
    if unknown and unknown[1] not in defaults:
        near = nearest(unknown[1], [*flatten(defaults), *defaults], listed=defaults)
        return removed.refusal(unknown[1]) or f"unknown key {unknown[1]}{near}"
    choiceless = [word for word in typed if _names_no_choice(word)]
    if choiceless and (unknown or re.search("Config group|is not iterable|resolving interpolation", text)):
        return f"{' '.join(choiceless)}: expected the name of a choice of the group, such as data=digits"
    if match := re.search(r"Error merging override (\w+)=(.*)", text):
        return f"{match[1]}={match[2]}: a group of settings: give {match[1]}.KEY=VALUE"
    if match := re.search(r"Could not find '((?:hydra/)?[^'/]+)/([^']*)'", text):
        group, choice = match.groups()
        if group == "comm" and choice in ALIASES:
            return kvstore(group, choice)
        listed = text.partition("Available options")[2].partition("Config search path")[0]
        options = re.findall(r"^[ \t]+(\S+)$", listed, re.MULTILINE)  # of hydra/launcher: the installed plugins
        return removed.refusal(f"{group}={choice}") or f"{group}={choice}{nearest(choice, options)}"
    return " ".join(line.strip() for line in text.splitlines()[:2])


def _names_no_choice(override: str) -> bool:
    """Return whether an override gives a group a value that can be no name of a file."""
    key, equals, value = override.lstrip("+").partition("=")
    is_group = equals and os.path.isdir(CONF / key.partition("@")[0])  # False also for a name that is too long
    return is_group and not re.fullmatch(r"(?!(?:null|true|false)\Z)[A-Za-z][\w.-]*|", value)


def _expected_form(override: str) -> str:
    """Return how to write an override that Hydra can't parse."""
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[+~]{0,2}\w[\w/@]*(\.\w+)*", key):
        return "expected KEY=VALUE, such as optimizer.lr=0.1"
    if value[:1] in "[{\"'":
        return f"unbalanced brackets or quotes; write a list as '{key}=[a,b]'"
    return f"quote such a value twice, for the shell and for Hydra: '{key}=\"{value}\"'"
