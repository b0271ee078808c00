"""What the doctor has to ask others for: the hosts by ssh, MLflow, and the port that its UI takes."""

import base64
import os
import re
import shutil
import socket
import tempfile
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List
from urllib.parse import unquote, urlsplit

from mxscale.config.schema import Config
from mxscale.doctor.check_result import FAIL, OK, WARN, Finding
from mxscale.environment import hosts
from mxscale.environment.machine import existing
from mxscale.rundir.directory import RunDir
from mxscale.tracking import uris
from mxscale.util.errors import ConfigError

PATIENCE_S = 3.0  # for MLflow, from name to answer
UI_PORT = 5000  # of `make ui`
LATER = "runs are kept in runs/ and can be sent later"  # a run neither waits for MLflow nor fails with it


def look(config: Config, ui_port: int = UI_PORT) -> List[Finding]:
    """In a fixed order; takes as long as the slowest host."""
    return [*reach_hosts(config), mlflow(config), *ui(config, ui_port)]


# ---------------------------------------------------------------- hosts


def reach_hosts(config: Config) -> List[Finding]:
    """Each host answers ssh without a password, sees the runs folder, has this Python: what a run asks first."""
    try:
        nodes = hosts.find(config)
    except ConfigError as error:
        return [Finding("hosts", FAIL, str(error))]
    if not nodes:
        return [Finding("hosts", OK, "none: ranks run on this machine")]
    try:
        os.makedirs(config.runs, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=".doctor-", dir=config.runs)
    except OSError as error:
        return [Finding("hosts", FAIL, f"runs={config.runs}: can't write there ({error.strerror})", "set runs=DIR")]
    try:
        os.chmod(folder, 0o755)  # another user's processes must see it, as they see a run
        own = [Path(folder, str(number)) for number in range(len(nodes))]
        with ThreadPoolExecutor(min(32, len(nodes))) as threads:
            return list(threads.map(lambda host, seen: _reach(host, seen, gloo(config, nodes)), nodes, own))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def gloo(config: Config, nodes: List[hosts.Host]) -> bool:
    """Whether gradients go from host to host over Gloo."""
    return len(nodes) > 1 and config.comm.transport == "gloo"


def _reach(host: hosts.Host, folder: Path, named: bool) -> Finding:
    """named: whether the others have to reach it under the address that its own name stands for."""
    folder.mkdir()
    try:
        hosts.check([host], RunDir(folder))
    except ConfigError as error:
        said = str(error).replace("launch.hosts: ", "", 1)
        fix = f"'ssh {host.address} true' must answer without a password" if "by ssh" in said else ""
        return Finding(f"host {host.name}", FAIL, said, fix)
    address = hosts.of_own_name(host) if named else ""
    if address.startswith("127."):
        # horovod/common/gloo/gloo_context.cc takes that address, whatever it is told
        fix = "in its /etc/hosts give its name the address that the others reach, or set comm.transport=mpi"
        return Finding(f"host {host.name}", FAIL, f"its own name stands for {address}, where Gloo would send", fix)
    return Finding(
        f"host {host.name}", OK, f"{host.slots} rank{'' if host.slots == 1 else 's'}; sees {folder.parent.parent}"
    )


# ---------------------------------------------------------------- MLflow


def mlflow(config: Config) -> Finding:
    """Whether runs would be recorded: `fail` only where the address is none, which a run refuses."""
    if not config.tracking.enabled:
        return Finding("mlflow", OK, "off (tracking=none)")
    try:
        uri = uris.store_uri(config.tracking, Path(config.runs))
    except ConfigError as error:
        return Finding("mlflow", FAIL, str(error))
    file = uris.sqlite_file(uri)
    if file is not None:
        return _sqlite(file)
    if not uri.startswith(("http://", "https://")):
        return Finding("mlflow", OK, f"{uris.masked(uri)}, not asked")
    return _server(uri)


def _sqlite(file: Path) -> Finding:
    there = existing(file)
    if file.is_dir() or not os.access(there, os.W_OK) or (there != file and not there.is_dir()):
        return Finding("mlflow", WARN, f"can't write {file}", f"set tracking.uri or runs=DIR; {LATER}")
    return Finding("mlflow", OK, f"{file}{'' if file.exists() else ', made by the first run'}")


def _server(uri: str) -> Finding:
    shown, answer = uris.masked(uri), ask(uri)
    if answer == 200:
        return Finding("mlflow", OK, shown)
    fix = {
        401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        403: "it does not know the name that it is called by: start it with --allowed-hosts",
    }.get(answer, "see that it is MLflow's address" if isinstance(answer, int) else "start it, or set tracking.uri")
    said = f"answers {answer}" if isinstance(answer, int) else f"does not answer ({answer})"
    return Finding("mlflow", WARN, f"{shown} {said}", f"{fix}; {LATER}")


def ask(uri: str, patience_s: float = PATIENCE_S):
    """The HTTP status of MLflow's /health, or why there is none, as text; after `patience_s` in any case."""
    answers = []
    # A thread, because a timeout of urllib's is that of one packet, and names are looked up without one
    thread = threading.Thread(target=lambda: answers.append(_health(uri, patience_s)), daemon=True)
    thread.start()
    thread.join(patience_s)
    return answers[0] if answers else f"nothing in {patience_s:g} s"


def _health(uri: str, timeout_s: float):
    try:
        return urllib.request.urlopen(_request(uri), timeout=timeout_s).status
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError as error:
        return str(getattr(error.reason, "strerror", None) or error.reason)
    except (OSError, ValueError) as error:  # ValueError: what can't be an address
        return str(error) or type(error).__name__


def _request(uri: str) -> urllib.request.Request:
    """With the name and password that MLflow's client would send, which urllib wants in a header."""
    parts = urlsplit(uri)
    name = unquote(parts.username or "") or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    password = unquote(parts.password or "") or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    place = re.sub(r"^.*@", "", parts.netloc)
    request = urllib.request.Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}/health")
    if name:
        words = base64.b64encode(f"{name}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {words}")
    return request


def ui(config: Config, port: int = UI_PORT) -> List[Finding]:
    """Where records are a file: whether `make ui` could show them."""
    if not config.tracking.enabled or config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI"):
        return []
    name = f"port {port}"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if ask(f"http://127.0.0.1:{port}") == 200:
                return [Finding(name, OK, "MLflow's UI is there")]
            fix = "stop what has it; the UI alone needs it, no run does"
            return [Finding(name, WARN, f"make ui can't have it ({error.strerror})", fix)]
    return [Finding(name, OK, "free, for make ui")]
