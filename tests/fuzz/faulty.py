"""Cases of a product that does everything wrong, to test the judgement: each of them must be reported."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

from .case import DONE, MARKER, REFUSED, Case, choice, nothing
from .damage import _Canary


def make(draw, folder: Path, command: bool) -> Case:
    what, run = choice(draw, FAULTS.items())
    expect = {"accepted": REFUSED, "not accepted": DONE}.get(what)
    return Case(what, [], (str(folder),), lambda: run(folder), expect, _wrong if what == "wrong result" else nothing)


def refused(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


def _wrong() -> None:
    raise AssertionError("a pixel differs")


FAULTS = {
    "traceback": lambda folder: [].pop(),
    "hang": lambda folder: time.sleep(60),
    "crash": lambda folder: os.kill(os.getpid(), signal.SIGSEGV),
    "exit status": lambda folder: 7,
    "two lines": lambda folder: refused(f"error: {folder}\nmore"),
    "name missing": lambda folder: refused("error: something is wrong"),
    "control characters": lambda folder: refused(f"error: {folder} \x1b[31m"),
    "password": lambda folder: print(f"http://bob:{MARKER}@host"),
    "password in a file": lambda folder: (folder / "runs" / "config.yaml").write_text(MARKER) and 0,
    "input changed": lambda folder: (folder / "input" / "image.png").write_bytes(b"x") and 0,
    "file left": lambda folder: (folder / "tmp" / "left").write_bytes(b"x") and 0,
    "process left": lambda folder: subprocess.Popen(["sleep", "50"], start_new_session=True) and 0,
    "executed": lambda folder: pickle.loads(pickle.dumps(_Canary())),
    "accepted": lambda folder: 0,
    "not accepted": lambda folder: refused(f"error: {folder}"),
    "wrong result": lambda folder: 0,
}
