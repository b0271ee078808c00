"""One judgement for every case: a right result or one line, in time, with nothing left behind and no secret shown."""

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np
import psutil

from .case import DONE, MARKER, REFUSED
from .damage import CANARY

ROOT = Path(__file__).resolve().parents[2]
SURFACE = ("onnx", "output", "answer", "packed", "name", "clock", "kill")
FORKED = ("clock", "kill")  # kinds that start commands by themselves
KINDS = {"image": "images", "tree": "trees", "weights": "weights", "run": "runs", "settings": "settings",
         "address": "addresses", **{kind: f"surface.{kind}" for kind in SURFACE}}  # fmt: skip
FAULTY = "faulty"  # a kind whose cases must be reported: the test of the judgement itself
COMMAND_S, LINGER_S = 90.0, 3.0
MEMORY = 3 * 2**30  # bytes
NOTES = re.compile(r"(imagefolder|digits|recordio): \d+ classes|skipping a run directory: |warning: |\S+: passed over")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PASSING = re.compile(r"/(alive|stop|lock|refused\.json|\d+\.(alive|images))$")  # of a refused resume
PLACES = ("input", "runs", "cache", "work", "home", "tmp")
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PASSWORD")


@dataclasses.dataclass
class Verdict:
    kind: str
    number: int
    command: bool
    what: str
    outcome: str  # passed, refused or failed
    violations: list
    seconds: float


def judge(kind: str, number: int, command: bool, given, shared: str) -> Verdict:
    """Make a case in a child process, give it to the product, and return what is wrong with the result."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what outlives the case becomes a child of this process
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{kind}-"))
    began, limit = time.monotonic(), COMMAND_S if command else given.limit
    child = os.fork()
    if not child:
        _case(kind, number, command, folder, shared)
    ended, usage = None, None
    while ended is None and time.monotonic() < began + limit:
        pid, status, used = os.wait4(child, os.WNOHANG)
        ended, usage = (status, used) if pid else (None, None)
        time.sleep(0.005)
    seconds = time.monotonic() - began
    left = _end_descendants(child if ended is None else None)
    record = folder / "case.json"
    case = json.loads(record.read_text()) if record.exists() else {"what": "not made"}
    violations = [f"took longer than {limit:.0f} s"] if ended is None else []
    if ended and os.waitstatus_to_exitcode(ended):
        violations.append(f"ended with {os.waitstatus_to_exitcode(ended)}")
    if usage and usage.ru_maxrss * 1024 > MEMORY:
        violations.append(f"used {usage.ru_maxrss / 2**20:.1f} GiB")
    if left and ended is not None:
        violations.append(f"left processes: {left}")
    if ended is not None:
        violations += _of_output(case, folder)
    violations += _of_files(case, folder)
    outcome = {0: DONE, 2: REFUSED}.get(case.get("status"), "failed")
    if given.keep:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return Verdict(kind, number, command, case["what"], outcome, violations, seconds)


# ---------------------------------------------------------------- the process of a case


def _case(kind: str, number: int, command: bool, folder: Path, shared: str) -> None:
    """Make the case, write case.json, run it, verify its result; does not return."""
    try:
        _isolate(folder, command)
        draw = np.random.default_rng([zlib.crc32(kind.encode()), number])
        module, _, function = KINDS.get(kind, kind).partition(".")
        case = getattr(import_module(f".{module}", __package__), function or "make")(
            draw, folder, command, *([Path(shared)] if shared else [])
        )
        record = {key: getattr(case, key) for key in ("what", "named", "expect", "failure", "stdout")}
        record["before"] = _snapshot(folder)
        (folder / "case.json").write_text(json.dumps(record))
        _redirect(case.stdout)
        record["status"] = _command(case.argv) if command and kind not in FORKED else _call(case)
        (folder / "case.json").write_text(json.dumps(record))
        if record["status"] == 0:
            case.verify()
    except AssertionError as error:
        record["wrong"] = str(error) or traceback.format_exc().splitlines()[-2]
        (folder / "case.json").write_text(json.dumps(record))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)


def _isolate(folder: Path, command: bool) -> None:
    os.setsid()
    for name in PLACES:
        (folder / name).mkdir()
    for handle, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), handle)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder / "work")
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "MXNET_", "HF_", "PYTEST_"))]:
        del os.environ[name]
    offline = {"HF_ENDPOINT": "http://127.0.0.1:1/"}
    places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
    os.environ.update(dict.fromkeys(SECRETS, MARKER), **offline, **places, OMP_NUM_THREADS="1", MXNET_HOME="/nowhere")
    tempfile.tempdir = None
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2)  # so that no case takes the machine's memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _redirect(stdout: str) -> None:
    """Put standard output at a place that takes nothing."""
    if stdout == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    elif stdout == "closed":
        os.close(1)
    elif stdout:
        os.dup2(os.open(stdout, os.O_WRONLY), 1)


def _command(argv) -> int:
    return subprocess.run([sys.executable, "-m", "mxscale", *argv], check=False).returncode


def _call(case) -> int:
    from .in_process import execute

    return execute(case)


# ---------------------------------------------------------------- judgement


def _of_output(case: dict, folder: Path) -> list:
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    found = [f"wrong result: {case['wrong']}"] if "wrong" in case else []
    if "Traceback (most recent" in out + err:
        found.append(f"traceback: {err.strip().splitlines()[-1][:200] if err.strip() else 'on stdout'}")
    if MARKER in out + err:
        found.append("the password is printed")
    status, expect = case.get("status"), case.get("expect")
    lines = [line for line in err.split("\n")[:-1] if not NOTES.match(line)]
    if status == 1 and case["failure"] and any(re.search(case["failure"], line) for line in lines):
        return found
    if status not in (0, 2):
        return [*found, f"exit status {status}: {' / '.join(lines[-2:])[:300]}"]
    if {0: DONE, 2: REFUSED}.get(status, expect) != (expect or {0: DONE, 2: REFUSED}.get(status)):
        found.append(f"exit status {status}, expected: {expect}: {' / '.join(lines)[:300]}")
    if status == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
        found.append(f"refused with {len(lines)} lines: {' / '.join(lines)[:300]}")
    elif status == 2 and not any(name in lines[0] for name in case["named"]):
        found.append(f"the error names none of {case['named']}: {lines[0][:300]}")
    if CONTROL.search("".join(lines)):
        found.append(f"control characters on stderr: {' / '.join(lines)[:200]!r}")
    return found


def _of_files(case: dict, folder: Path) -> list:
    """Return what is wrong with the files: input changed, a refused run changed, files left behind, a password."""
    if "before" not in case:
        return []
    before, after = case["before"], json.loads(json.dumps(_snapshot(folder)))
    changed = sorted(path for path in {**before, **after} if before.get(path) != after.get(path))
    if case.get("status") == 0 or (case.get("status") == 1 and case["failure"]):
        changed = [path for path in changed if not path.startswith("runs/")]
    spared = ("cache/", "home/.cache", "home/.horovod", "work/outputs")
    changed = [path for path in changed if not path.startswith(spared) and not PASSING.search(path)]
    found = [f"files changed or left: {', '.join(changed[:4])}"] if changed else []
    if f"work/{CANARY}" in after:
        found.append("a file's content was executed")
    for path in [folder / each for each in after if not each.startswith("input/")]:
        if (
            path.is_file()
            and not path.is_symlink()
            and path.stat().st_size < 2**26
            and MARKER.encode() in path.read_bytes()
        ):
            found.append(f"the password is in {path.relative_to(folder)}")
    return found


def _snapshot(folder: Path) -> dict:
    """Return path -> what lies there, of all files in PLACES."""
    found = {}
    for path in (path for name in PLACES for path in (folder / name).rglob("*")):
        info = path.lstat()
        content = (
            path.read_bytes() if path.is_file() and not path.is_symlink() and info.st_size < 2**22 else info.st_mtime_ns
        )
        if not path.is_dir():
            name = str(path.relative_to(folder)).encode(errors="backslashreplace").decode()
            found[name] = [info.st_mode, info.st_size, zlib.crc32(content) if isinstance(content, bytes) else content]
    return found


def _end_descendants(child) -> list:
    """Kill what outlives the case, after a moment; return its command lines."""
    own, deadline = psutil.Process(), time.monotonic() + (LINGER_S if child is None else 0)
    while (left := _alive(own)) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = []
    for process in left:
        try:
            names.append(" ".join(process.cmdline())[-120:])
            process.kill()
        except psutil.Error:
            pass
    psutil.wait_procs(left, timeout=5)
    while True:  # whatever became a child of this process
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                break
        except ChildProcessError:
            break
    return names


def _alive(own) -> list:
    alive = []
    for process in own.children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.Error:
            pass
    return alive
