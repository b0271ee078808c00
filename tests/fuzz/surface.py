"""Exported networks, outputs, servers' answers, packed sets, names, clocks and kills: one function for each kind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from . import runs
from .case import DONE, REFUSED, Case, choice, nothing
from .damage import BYTES, NODES, damaged_bytes, damaged_value, place
from .in_process import SMALL, verb

QUIET = ("tracking=none", "tracking.timeout_s=0.5")
METADATA = ("class_names", "image_size", "resize", "interpolation")
VALUES = ("[" * 5000, "null", "-5", "100000", "36.5", '"x"', "[]", "[null]", "[[1]]", "NaN", "1e999", "\xff", "")
OUTPUTS = ("/dev/full", "closed pipe", "closed")
STATUSES = (200, 200, 201, 302, 400, 401, 403, 404, 429, 500, 503)
TEXTS = ("a-", "x", "<html>", "\n", "\x1b[31m", "\xe9", "{", "token=", "bob:x@", "%", "[[", "0")
NAMES = ("a", "a-", "\xe9", "\n", "../", "%s", "a/", "'", "$", "\x1b", ".", " ", "token=", "[", "{", "\U0001f600")
KEYS = ("name={}", "tracking.experiment={}", "runs=../runs/{}", "data.root={}", "model.pretrained={}", "resume={}",
        "{}={}", "rerun={}", "seed={}", "launch.hosts={}", "optimizer.name={}")  # fmt: skip
READERS = ("predict", "export", "evaluate", "report", "{}")
JUMPS = ("-3600", "-86400", "+30", "+3600", "+86400", "+31536000")  # seconds


def _settings(folder: Path, shared: Path) -> list:
    return [*SMALL, *QUIET, f"runs={folder}/runs", f"data.cache={shared}/cache"]


def _long(draw, alphabet, most: int) -> str:
    """Return a text of 1 to `most` bytes, short ones as often as long ones."""
    unit, size = choice(draw, alphabet), int(most ** draw.random())
    return (unit * (size // len(unit.encode()) + 1))[:size]


def onnx(draw, folder: Path, command: bool, shared: Path) -> Case:
    """An exported network with damaged metadata, structure or bytes."""
    import onnx as library

    path, how = folder / "input" / "net.onnx", choice(draw, ("metadata",) * 4 + ("tensor", "input", *BYTES, *NODES))
    content = (shared / "model.onnx").read_bytes()
    what = how
    if how in ("metadata", "tensor", "input"):
        model = library.load_from_string(content)
        tensor = choice(draw, model.graph.initializer)
        if how == "metadata":
            entry = choice(draw, [each for each in model.metadata_props if each.key in METADATA])
            value = (
                choice(draw, VALUES)
                if draw.random() < 0.5
                else json.dumps(damaged_value(draw, json.loads(entry.value))[0])
            )
            entry.value, what = value, f"{entry.key} = {value[:60]}"
        elif how == "tensor" and draw.random() < 0.5:
            tensor.dims[0] = choice(draw, (0, -1, 2**31, 2**62))
        elif how == "tensor":
            tensor.ClearField("raw_data")
            tensor.data_location = library.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=choice(draw, ("x", "/dev/zero", "../../case.json")))
        else:
            model.graph.input[0].type.tensor_type.elem_type = int(draw.integers(0, 20))
        content = model.SerializeToString()
    path.write_bytes(damaged_bytes(draw, content, how) if how in BYTES else content)
    if how in NODES:
        place(path, how)
    shutil.copy(shared / "image.png", folder / "input")
    argv = ["predict", str(path), str(folder / "input" / "image.png"), *QUIET]
    expect = REFUSED if how in ("cut", *NODES) else None
    return Case(what, argv, (str(path),), expect=expect)


def output(draw, folder: Path, command: bool, shared: Path) -> Case:
    """A standard output that takes nothing: never exit status 0 with the result lost."""
    how = choice(draw, OUTPUTS)
    (run,) = (shared / "runs" / "train").iterdir()
    argv = choice(draw, (["predict", str(shared / "model.onnx"), str(shared / "image.png")], ["--help"], ["--version"],
                         ["layers", "model=resnet18"], ["train", "--help"], ["train", "--cfg", "job"],
                         ["predict", str(run), str(shared / "image.png")], ["train", "seed=x"],
                         ["report", f"report.runs=[{folder}/runs]"]))  # fmt: skip
    return Case(f"{argv[0]} to {how}", argv, ("",), stdout=how, expect=None, failure="cannot be written|error")


def answer(draw, folder: Path, command: bool, shared: Path) -> Case:
    """Answers of a tracking server, which stop no training, and of a mirror, which are refused."""
    status, body = choice(draw, STATUSES), _long(draw, TEXTS, 10**6)
    if draw.random() < 0.4:
        fields = {"error_code": "BAD", "message": body}, {"experiment": {"experiment_id": body}}, {"runs": [body]}
        body = json.dumps(choice(draw, (*fields, {"run": {"info": {"run_id": body}}}, [body], body)))
    headers = choice(draw, ({}, {"Content-Type": "text/html"}, {"Retry-After": "99999"}, {"Retry-After": body[:50]},
                            {"Content-Length": str(10**12)}, {"Content-Encoding": "gzip"}))  # fmt: skip
    slow = choice(draw, (0, 0, 0, 0.3, 30))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            data = body.encode(errors="replace")
            given = {"Location": self.path, "Content-Length": str(len(data)), **headers}
            for key, value in given.items():
                self.send_header(key, value.encode("ascii", "replace").decode().replace("\n", " "))
            self.end_headers()
            try:
                self.wfile.write(data[: len(data) // 2])
                time.sleep(slow)
                self.wfile.write(data[len(data) // 2 :])
            except OSError:
                pass

        do_POST = do_HEAD = do_PATCH = do_PUT = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    what = f"{status}, {len(body)} bytes of {body[:12]!a}, {headers and next(iter(headers))}, slow {slow}"
    if draw.random() < 0.6:
        argv = ["train", *_settings(folder, shared), "tracking=mlflow", f"tracking.uri={url}"]
        return Case(f"tracking: {what}", argv, ("",), expect=DONE, verify=partial(runs.finished, folder))
    slow = min(slow, 0.3)  # a download waits for a slow mirror
    argv = ["train", "data=mnist", *SMALL, *QUIET, f"runs={folder}/runs", f"data.cache={folder}/cache",
            f"data.mirror={url}", f"data.root={folder}/cache/mnist"]  # fmt: skip
    return Case(f"mirror: {what}", argv, ("mnist", url), expect=REFUSED)


def packed(draw, folder: Path, command: bool, shared: Path) -> Case:
    """One damaged file of a packed set: the set is packed again, refused, or gives the same weights."""
    # The oldest: cases with other settings of data pack sets of their own
    first = min((shared / "cache").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    made = folder / "cache" / first.parent.name / first.name
    shutil.copytree(first.parent, made.parent)
    before = {each: each.stat().st_mtime_ns for each in made.parent.iterdir()}
    path = choice(draw, sorted(before))
    what = runs.damage(draw, path, choice(draw, ("value", *BYTES, *BYTES, *NODES)))
    for each, modified in before.items():  # damage that no time of change gives away
        if each.is_file() and not each.is_symlink():
            os.utime(each, ns=(modified, modified))
    argv = ["train", *SMALL, *QUIET, f"runs={folder}/runs", f"data.cache={folder}/cache"]
    return Case(
        f"{path.name}: {what}",
        argv,
        (str(folder / "cache"), "record", "data"),
        verify=partial(same, folder, shared),
        failure=f"rank 0: .*{folder}/cache/.*remove .*packed again",  # where the records are read
    )


def same(folder: Path, shared: Path, step: int = 2) -> None:
    """Assert that the run has finished with the weights of the undisturbed one."""
    runs.finished(folder)
    wanted, found = (
        next(each.glob(f"train/*/checkpoints/{step:09d}/params")).read_bytes()
        for each in (shared / ("runs" if step == 2 else "longer"), folder / "runs")
    )
    assert wanted == found, "the weights differ from those of the undisturbed run"


def name(draw, folder: Path, command: bool, shared: Path) -> Case:
    """Names of 1 byte to 64 kB in place of values, keys, files and verbs."""
    text = _long(draw, NAMES, 65536).replace("\0", "")
    reader, key = choice(draw, READERS), choice(draw, KEYS)
    if draw.random() < 0.5:
        argv = [reader.replace("{}", text), text, *QUIET]
        argv += [str(shared / "image.png")] if reader == "predict" else []
    else:
        argv = ["train", *_settings(folder, shared), key.replace("{}", text)]
    return Case(f"{argv[0][:20]} {argv[-1][:40]!a} {len(text)}", argv, ("",), failure="reports|no run")


def clock(draw, folder: Path, command: bool, shared: Path) -> Case:
    """A resume whose clock jumps in between, or by libfaketime is another from its start: the same weights."""
    (original,) = (shared / "runs" / "train").iterdir()
    run = folder / "runs" / "train" / original.name
    shutil.copytree(original, run)
    runs.interrupted(run)
    jump, after, steady = choice(draw, JUMPS), time.monotonic() + draw.uniform(0, 1.5), time.time
    argv, program = ["train", f"resume={run}", "max_steps=4", *QUIET], [sys.executable, "-m", "mxscale"]

    def jumping() -> int:
        time.time = lambda: steady() + (time.monotonic() > after) * float(jump)
        return verb(argv)

    def faked() -> int:
        return subprocess.run(["faketime", "-f", f"{jump}s", *program, *argv], check=False).returncode

    if command and not shutil.which("faketime"):
        return Case("skipped: no faketime", argv, ("",), nothing)
    call = faked if command else jumping
    return Case(f"{jump} s", argv, (str(run),), call, DONE, partial(same, folder, shared, 4))


def kill(draw, folder: Path, command: bool, shared: Path) -> Case:
    """A resume that is killed and resumed: the weights of the undisturbed run."""
    (original,) = (shared / "runs" / "train").iterdir()
    run = folder / "runs" / "train" / original.name
    shutil.copytree(original, run)
    runs.interrupted(run)
    argv, after = ["train", f"resume={run}", "max_steps=4", *QUIET], float(draw.uniform(0, 1.2))

    def killed() -> int:
        child = os.fork()
        if not child:
            os.setsid()
            os._exit(verb(argv))
        time.sleep(after)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ended = json.loads((run / "status.json").read_text())["state"] == "FINISHED"  # before it was killed
        return 0 if ended else verb(argv)

    return Case(f"after {after:.2f} s", argv, (str(run),), killed, DONE, partial(same, folder, shared, 4))
