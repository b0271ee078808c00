"""`mxscale doctor`: facts of the machine, the software and the network, and what they mean for a run.

The facts come from environment/description.py, environment/machine.py and, by a child process, train/build_facts.py.
Checks of the facts are in checks.py. The hosts are checked by ssh.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import List, Mapping, Optional

from mxscale.config.schema import Config
from mxscale.config.sizes import auto_ranks
from mxscale.doctor.checks import FAIL, OK, WARN, CheckResult, PlannedRun, examine
from mxscale.environment import description, hosts
from mxscale.util import text_table
from mxscale.util.errors import ConfigError, signal_name
from mxscale.util.terminal import echo

TIMEOUT_S = 120.0  # MXNet's import from a cold or remote disk is slow


def main(config: Config, as_json: bool) -> int:
    """Print the results and return the exit status: 1 if a check fails. Raises ConfigError."""
    facts = {**description.describe(config.runs), "mxnet": of_mxnet()}
    results = examine(facts, planned_run(config, facts))
    results += check_hosts(config)
    counts = {state: sum(result.state == state for result in results) for state in (OK, WARN, FAIL)}
    if as_json:
        echo(json.dumps({**counts, "findings": [asdict(result) for result in results], "environment": facts}, indent=1))
    else:
        rows = [[result.state, result.name, "; ".join(filter(None, (result.cause, result.fix)))] for result in results]
        echo("\n".join([*text_table.columns(rows), ", ".join(f"{count} {state}" for state, count in counts.items())]))
    return int(counts[FAIL] > 0)


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


def planned_run(config: Config, facts: dict) -> PlannedRun:
    """Return the run that `config` would start, its ranks chosen as the preparation does."""
    slots = [host.slots for host in hosts.listed(config)]
    gpus = 0 if config.launch.device == "cpu" else facts["mxnet"].get("gpus", 0)
    ranks = config.launch.ranks
    if ranks == "auto":
        ranks = auto_ranks(config, sum(slots), gpus, facts["machine"]["cores"])
    here, comm = min(ranks, max(slots, default=ranks)), config.comm
    return PlannedRun(config.launch.device, ranks, here, comm.transport, comm.entry.uses_horovod)


def of_mxnet(environ: Optional[Mapping[str, str]] = None) -> dict:
    """Return MXNet's part of the facts; {'error'} if it can't be imported.

    Args:
        environ: Environment variables of the child; None: those of this process.
    """
    environ = environ or {**os.environ, "PYTHONPATH": str(description.ROOT)}
    command = [sys.executable, "-m", "mxscale.train.build_facts"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"import mxnet, or an operation on a GPU, timed out after {TIMEOUT_S:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode < 0:
        return {"error": f"import mxnet was killed by {signal_name(-done.returncode)}"}
    return {"error": (done.stderr.strip().splitlines() or [f"import mxnet exited with {done.returncode}"])[-1]}
