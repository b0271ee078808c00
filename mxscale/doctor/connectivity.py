"""Checks that use the network: the hosts by ssh, and MLflow."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

from mxscale.config.schema import Config
from mxscale.doctor.checks import FAIL, OK, WARN, CheckResult
from mxscale.environment import hosts
from mxscale.environment.machine import existing
from mxscale.tracking import store, uris
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact_address

LATER = "runs are recorded in runs/ and can be sent later"  # a run neither waits for MLflow nor fails with it


def check_hosts(config: Config) -> List[CheckResult]:
    """Return a result for each host: ssh without a password, the runs folder, this Python."""
    try:
        nodes = hosts.find(config)
    except ConfigError as error:
        return [CheckResult("hosts", FAIL, str(error))]
    if not nodes:
        return [CheckResult("hosts", OK, "none: ranks run on this machine")]
    try:
        os.makedirs(config.runs, exist_ok=True)
        with ThreadPoolExecutor(min(32, len(nodes))) as threads:
            return list(threads.map(_check_host, nodes, [Path(config.runs).absolute()] * len(nodes)))
    except OSError as error:
        return [CheckResult("hosts", FAIL, f"runs={config.runs}: not writable ({error.strerror})", "set runs=DIR")]


def _check_host(host: hosts.Host, runs: Path) -> CheckResult:
    """Return the result for a host. Raises OSError if nothing can be written to the runs folder."""
    try:
        hosts.check([host], runs)
    except ConfigError as error:
        cause = str(error).replace("launch.hosts: ", "", 1)
        fix = f"'ssh {host.address} true' must answer without a password" if "by ssh" in cause else ""
        return CheckResult(f"host {host.name}", FAIL, cause, fix)
    return CheckResult(f"host {host.name}", OK, f"slots: {host.slots}; sees {runs}")


def check_mlflow(config: Config) -> CheckResult:
    """Return whether runs can be recorded; `fail` only for an invalid URI, which a run refuses."""
    if not config.tracking.enabled:
        return CheckResult("mlflow", OK, "off (tracking=none)")
    try:
        uri = uris.store_uri(config.tracking, config.runs)
    except ConfigError as error:
        return CheckResult("mlflow", FAIL, str(error))
    file = uris.sqlite_file(uri)
    if file is not None:
        return _check_sqlite(file)
    shown = redact_address(uri)
    if not uri.startswith(("http://", "https://")):
        return CheckResult("mlflow", OK, f"{shown}, not checked")
    failure = store.failure_of(uri)
    if failure is None:
        return CheckResult("mlflow", OK, shown)
    fix = "start it, or set tracking.uri"
    if failure.startswith(("401", "403")):
        fix = "set MLFLOW_TRACKING_USERNAME and _PASSWORD, or MLFLOW_TRACKING_TOKEN; see the server's --allowed-hosts"
    elif re.match(r"[45]\d\d", failure):
        fix = "check that it is the address of an MLflow server"
    return CheckResult("mlflow", WARN, f"{shown}: {failure}", f"{fix}; {LATER}")


def _check_sqlite(file: Path) -> CheckResult:
    present = existing(file)
    if file.is_dir() or not os.access(present, os.W_OK) or (present != file and not present.is_dir()):
        return CheckResult("mlflow", WARN, f"{file} is not writable", f"set tracking.uri or runs=DIR; {LATER}")
    return CheckResult("mlflow", OK, f"{file}{'' if file.exists() else ', created by the first run'}")
