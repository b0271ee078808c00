"""The check that uses the network: the hosts by ssh."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List

from mxscale.config.schema import Config
from mxscale.doctor.checks import FAIL, OK, CheckResult
from mxscale.environment import hosts
from mxscale.util.errors import ConfigError


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
