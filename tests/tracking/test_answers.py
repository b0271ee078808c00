"""Answers of a tracking server that are long, or made to be searched for a long time."""

import json
from http.server import BaseHTTPRequestHandler

import pytest
from machine import free_port
from publisher import address_of
from refusals import contains

from mxscale.tracking import store

LONG = "a-" * 500_000


def answering(status: int, content: bytes):
    """Return a handler that gives this answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_GET

        def log_message(self, *_):
            pass

    return Handler


def failure_of(uri: str):
    """Return why the store at `uri` does not answer; None if it does."""
    try:
        store.open_store(uri, 30).search_experiments(max_results=1)
    except Exception as error:
        return store.why(error)


@pytest.mark.parametrize(
    "status, cause",
    [(401, "MLFLOW_TRACKING_USERNAME"), (403, "--allowed-hosts"), (404, "404"), (500, "server error")],
)
def test_a_status_has_a_cause(status, cause):
    with address_of(answering(status, b"no")) as address:
        reason = failure_of(address.replace("//", "//me:secret@"))
    assert cause in reason and "secret" not in reason


def test_a_refused_connection_has_a_cause():
    assert failure_of(f"http://127.0.0.1:{free_port()}") == "connection refused"
    assert failure_of("http://[::bad")


@pytest.mark.parametrize("status", [200, 302, 400, 404, 429, 500, 503])
def test_the_reason_is_one_short_line(status):
    body = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": LONG}).encode()
    for content in (body, LONG.encode(), b"", b"<html>\n<body>"):
        with address_of(answering(status, content)) as address:
            reason = failure_of(address)
            assert reason is None or (reason and len(reason) <= 200 and reason.isprintable())


def test_an_error_without_text_has_a_reason():
    from mlflow.exceptions import MlflowException

    assert store.why(MlflowException("")) == "MlflowException"


@pytest.mark.slow
def test_no_answer_stops_a_training(cli):
    body = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": LONG}).encode()
    with address_of(answering(400, body)) as address:
        ended = cli("train", "tracking=mlflow", f"tracking.uri={address}", "launch.ranks=2")
    contains(ended.out, "a-a-a-", "lines unsent")
    assert ended.run.state == "FINISHED" and max(map(len, ended.out.splitlines())) < 1000
