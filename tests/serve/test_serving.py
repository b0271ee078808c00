"""A registered model as `mlflow models serve` serves it, with real requests."""

import collections
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import exported
import pytest
from machine import free_port, until
from malformed import Requests

from mxscale.serve import register
from mxscale.tracking import models

MALFORMED = 1000
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """Return the port of a server of the small network."""
    folder, chosen = tmp_path_factory.mktemp("served"), free_port()
    exported.write(folder / "net.onnx")
    models.save(folder / "model", register.contents(folder, folder / "net.onnx", exported.SIDE, {}), 10)
    serve = ["mlflow", "models", "serve", "-m", "model", "--env-manager", "local", "-p", str(chosen)]
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *serve], env={**os.environ, "PATH": places}, cwd=folder, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: answers(chosen), 90, 0.5)
        yield chosen
        assert server.poll() is None, (folder / "log").read_text()[-3000:]
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


IMAGE = register.example_image(exported.SIDE)
VALID = json.dumps({"dataframe_records": [{"image": IMAGE}], "params": {"top": 2}}).encode()


def answers(port) -> bool:
    try:
        return request(port, "GET", "/ping")[0] == 200
    except OSError:
        return False


def request(port, method, path, body=None, content_type=None) -> tuple:
    """Return the status and the content of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": content_type} if content_type is not None else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_image_is_answered_with_its_most_likely_classes(port):
    status, content = request(port, "POST", "/invocations", VALID, "application/json")
    (answer,) = json.loads(content)["predictions"]
    assert status == 200 and answer["class"] in exported.CLASSES and len(answer["top"]) == 2


def test_malformed_requests_are_refused_with_a_reason(port):
    made, statuses = Requests(0, IMAGE), collections.Counter()
    for _ in range(MALFORMED):
        body, content_type = made()
        status, content = request(port, "POST", "/invocations", body, content_type)
        statuses[status] += 1
        reason = json.loads(content).get("message") if content.startswith("{") else content
        assert status == 200 or (status in (400, 415) and len(reason) > 15), (status, content, content_type, body[:500])
    assert statuses[400] > MALFORMED / 2 and statuses[415], statuses
    assert request(port, "POST", "/invocations", VALID, "application/json")[0] == 200
