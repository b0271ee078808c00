"""Latency and images/s of a served model beside bare ONNX Runtime, at 1, 8 and 32 requests at a time.

    python bench/serve.py [--quick] [--photographs DIR] [--network resnet18_v1b] [--workers 1]

A network with random weights is written as `mxscale register` logs it, and `mlflow models serve` serves it on
127.0.0.1. Each request is one JPEG (those of a folder in turn; without one, generated images of 500 x 375 pixels) in
base64 in JSON. Bare ONNX Runtime evaluates ready arrays of one image with as many threads and the same session options.
Both take turns. The client shares the machine's cores with the server.

The second table lists where the time of one request goes: its parts run alone, one after the other, in this process.
"""

import base64
import http.client
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import measure
import numpy as np
from input import photograph
from predict import SIDE, exported, random_network

from mxscale.serve import register
from mxscale.tracking import models
from mxscale.util import text_table

CONCURRENT = (1, 8, 32)
JSON = {"Content-Type": "application/json"}
START_S = 120  # limit of the server's start


def saved(folder: Path, name: str) -> Path:
    """Write the model with a network of random weights; return its folder."""
    network = folder / "model.onnx"
    network.write_bytes(exported(random_network(name, SIDE)).content)
    contents = register.contents(folder, network, SIDE, metadata={})
    models.save(folder / "model", contents, timeout_s=10)
    return folder / "model"


def bodies(photographs: str) -> list:
    """Return requests of one image each."""
    files = sorted(Path(photographs).rglob("*.[jJ][pP]*[gG]"))[:64] if photographs else []
    images = [file.read_bytes() for file in files] or [photograph(number) for number in range(64)]
    return [
        json.dumps({"dataframe_records": [{"image": base64.b64encode(image).decode()}]}).encode() for image in images
    ]


@contextmanager
def server(model: Path, workers: int):
    """Serve the model within the `with` block; yield the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--env-manager", "local", "--workers", str(workers), "-h", "127.0.0.1", "-p", str(port)]
    argv = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model), *options]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of uvicorn
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env={**os.environ, "PATH": path}, stdout=log, stderr=log, start_new_session=True
        )  # fmt: skip
        try:
            deadline = time.monotonic() + START_S
            while not answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read().decode()}")
                time.sleep(0.2)
            yield port
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False


def client(port: int, given: list):
    """Return a function that sends requests over one connection and returns the seconds of each."""

    def send(numbers) -> list:
        connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
        for number in numbers:
            start = time.perf_counter()
            connection.request("POST", "/invocations", given[number % len(given)], JSON)
            answer = connection.getresponse()
            content = answer.read()
            seconds.append(time.perf_counter() - start)
            if answer.status != 200:
                raise SystemExit(f"status {answer.status}: {content[:300]}")
        return seconds

    return send


def bare(network):
    """Return a function that evaluates ready images one by one and returns the seconds of each."""
    ready = np.random.RandomState(0).randint(0, 256, (1, SIDE, SIDE, 3)).astype("uint8")

    def evaluate(numbers) -> list:
        seconds = []
        for _ in numbers:
            start = time.perf_counter()
            network.run(["probabilities"], {"images": ready})
            seconds.append(time.perf_counter() - start)
        return seconds

    return evaluate


def at_a_time(work, concurrent: int, count: int) -> dict:
    """Let `concurrent` threads do `count` pieces of work in total; return images/s and the latencies in ms."""
    parts = [range(first, count, concurrent) for first in range(concurrent)]
    with ThreadPoolExecutor(concurrent) as pool:
        list(pool.map(work, [range(1)] * concurrent))  # connections and threads exist
        start = time.perf_counter()
        seconds = list(itertools.chain(*pool.map(work, parts)))
        rate = count / (time.perf_counter() - start)
    p50, p99 = 1000 * np.percentile(seconds, (50, 99))
    return {"images_per_s": rate, "p50_ms": p50, "p99_ms": p99}


def parts(model: Path, given: list, repetitions: int) -> dict:
    """Return the median milliseconds of the parts of a request, without a server."""
    import mlflow.pyfunc
    from mlflow.pyfunc import scoring_server

    loaded = mlflow.pyfunc.load_model(str(model))
    classifier, schema = loaded.unwrap_python_model(), loaded.metadata.get_input_schema()
    texts = [json.loads(body)["dataframe_records"][0]["image"] for body in given]
    one = np.zeros((1, SIDE, SIDE, 3), "uint8")
    steps = {
        "request without HTTP": lambda n: scoring_server.invocations(given[n], JSON["Content-Type"], loaded, schema),
        "base64, decoding, cropping": lambda n: classifier._pixels(0, texts[n]),
        "network": lambda n: classifier.session.run(["probabilities"], {"images": one}),
    }
    seconds = {name: [] for name in steps}
    for number in range(repetitions):
        for name, step in steps.items():
            start = time.perf_counter()
            step(number % len(given))
            seconds[name].append(time.perf_counter() - start)
    found = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    whole = found.pop("request without HTTP")
    return {**found, "JSON, pandas, schema": whole - sum(found.values())}


def session(network: Path):
    """Return a session with the options of the served model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(network), options)


def rows(port: int, network, given: list, count: int, rounds: int) -> dict:
    """Measure at each concurrency in turns; return {concurrency: {figure: spread}}."""
    found = {}
    send, evaluate = client(port, given), bare(network)
    for concurrent in CONCURRENT:
        served, ready = measure.in_turn(
            lambda c=concurrent: at_a_time(send, c, count),
            lambda c=concurrent: at_a_time(evaluate, c, count),
            turns=rounds,
        )
        share = [one["images_per_s"] / other["images_per_s"] for one, other in zip(served, ready)]
        found[concurrent] = {
            **{f"served_{key}": measure.spread([each[key] for each in served]) for key in served[0]},
            **{f"bare_{key}": measure.spread([each[key] for each in ready]) for key in ready[0]},
            "share": measure.spread(share),
        }
    return found


def table(found: dict) -> str:
    """Return the rates and latencies as a table of medians with the smallest and largest."""
    headings = ("at a time", "", "images/s", "p50 ms", "p99 ms", "of ONNX Runtime")
    lines = [headings]
    for concurrent, figures in found.items():
        for name, label in (("served", "served"), ("bare", "ONNX Runtime")):
            cells = [brief(figures[f"{name}_{key}"], ",.1f") for key in ("images_per_s", "p50_ms", "p99_ms")]
            share = brief(figures["share"], ".2f") if name == "served" else ""
            lines.append((str(concurrent), label, *cells, share))
    return "\n".join(text_table.columns(lines, right=range(2, 6), indent="  "))


def brief(value: dict, form: str) -> str:
    return "{} ({} to {})".format(*(format(value[key], form) for key in ("median", "min", "max")))


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        photographs=("", "folder of JPEGs"), network=("resnet18_v1b", "network"),
        workers=(1, "processes of the server"), requests=(400, "requests of a measurement"),
        rounds=(5, "measurements of each"),
    )  # fmt: skip
    count, rounds = (64, 2) if options.quick else (options.requests, options.rounds)
    given = bodies(options.photographs)
    with tempfile.TemporaryDirectory() as folder:
        model = saved(Path(folder), options.network)
        spent = parts(model, given, min(count, 100))
        with server(model, options.workers) as port:
            found = rows(port, session(Path(folder) / "model.onnx"), given, count, rounds)
    spent["HTTP and client"] = found[1]["served_p50_ms"]["median"] - sum(spent.values())
    size = statistics.median(map(len, given)) / 1000
    print(f"{options.network}, {SIDE} px, {count} requests of {size:.0f} KB, server of {options.workers} processes,")
    print(f"medians of {rounds} measurements (smallest to largest):\n{table(found)}")
    print("median milliseconds of the parts of one request:")
    print("\n".join(text_table.columns([(name, f"{ms:.1f}") for name, ms in spent.items()], right=(1,), indent="  ")))
    measure.finish({"network": options.network, "workers": options.workers, "rates": found, "parts_ms": spent})


if __name__ == "__main__":
    main()
