"""Hydra's errors in one line: what is wrong on the command line, with the nearest right name."""

import re
import sys
from typing import Optional

from hydra.errors import OverrideParseException
from omegaconf.errors import InterpolationKeyError

from mxscale.config.backends import ALIASES
from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.validation import kvstore
from mxscale.rundir.directory import REFUSED
from mxscale.util.errors import ConfigError, nearest


def refuse(line: str) -> int:
    """Say what is wrong in one line; the exit status for it."""
    print(f"error: {' '.join(line.splitlines())}", file=sys.stderr, flush=True)
    return REFUSED


def explain(error: Exception, its_own: Optional[dict] = None) -> str:
    """What is wrong on the command line, with the nearest right name, or how to write it.

    its_own: the keys of a tool, beside the run's.
    """
    text = str(error).strip()
    if isinstance(error, ConfigError):  # says it itself
        return text
    defaults = {**to_dict(Config()), **(its_own or {})}
    if isinstance(error, OSError) and error.filename:  # Hydra writes down what a sweep is
        return f"runs: can't write {error.filename} ({error.strerror}); set runs=DIR"
    if isinstance(error, InterpolationKeyError):
        name = str(error.msg).partition("'")[2].partition("'")[0]
        return f"{error.full_key}: ${{{name}}} names no setting{nearest(name, flatten(defaults), listed=defaults)}"
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
        return f"unknown key {unknown[1]}{nearest(unknown[1], [*flatten(defaults), *defaults], listed=defaults)}"
    if unknown or "Config group" in text or "resolving interpolation" in text:
        groups = [name for name, value in defaults.items() if isinstance(value, dict)]
        given = [word for word in sys.argv[1:] if word.lstrip("+~").partition("=")[0] in ["", *groups]]
        return f"{' '.join(given)}: a group takes the name of one of its choices, such as data=digits"
    missing = re.search(r"Could not find '([^'/]+)/([^']*)'", text)
    if missing:
        listed = text.partition("Available options")[2].partition("Config search path")[0]
        options = re.findall(r"^\s+(\S+)$", listed, re.MULTILINE)
        if missing[1] == "comm" and missing[2] in ALIASES:
            return kvstore("comm", missing[2])
        if missing[1] == "hydra":  # its launchers and sweepers come with requirements/run.in alone
            group, _, choice = missing[2].rpartition("/")
            return (
                f"hydra/{group}={choice}: expected one of {', '.join(options)}; all but basic come with `make setup`, "
                "and are not in images"
            )
        return f"{missing[1]}={missing[2]}{nearest(missing[2], options)}"
    return " ".join(line.strip() for line in text.splitlines()[:2])


def _how_to_write(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[+~]{0,2}\w[\w/@]*(\.\w+)*", key):
        return "expected KEY=VALUE, such as optimizer.lr=0.1"
    if value[:1] in "[{\"'":
        return f"is not closed, or not quoted; a list is written '{key}=[a,b]'"
    return f"such a value is quoted twice, for the shell and for Hydra: '{key}=\"{value}\"'"
