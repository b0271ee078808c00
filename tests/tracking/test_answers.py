"""Answers of a tracking server that are long, or made to be searched for a long time."""

import json
from http.server import BaseHTTPRequestHandler

import pytest
import requests
from publisher import address_of
from refusals import contains
from requests.exceptions import ContentDecodingError

from mxscale.tracking import bounded_answers, store

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


@pytest.fixture
def bounded(monkeypatch):
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", requests.adapters.HTTPAdapter.send)  # undone at the end
    monkeypatch.setattr(bounded_answers.HTTPResponse, "drain_conn", bounded_answers.HTTPResponse.drain_conn)
    bounded_answers.install()
    return bounded_answers


def test_an_error_is_cut_as_it_arrives(bounded):
    with address_of(answering(400, LONG.encode())) as address:
        found = requests.get(address)
        assert found.status_code == 400 and len(found.content) == bounded.MAX_ERROR_BYTES


def test_a_long_answer_is_refused_and_a_short_one_is_whole(bounded, monkeypatch):
    monkeypatch.setattr(bounded, "MAX_BYTES", 1 << 20)
    with address_of(answering(200, bytes(1 << 20))) as address:
        assert len(requests.get(address).content) == 1 << 20
    with address_of(answering(200, bytes((1 << 20) + 1))) as address, pytest.raises(ContentDecodingError):
        requests.get(address)


@pytest.mark.parametrize("stream", [False, True])
def test_the_text_of_a_redirect_is_cut(bounded, stream):
    class Handler(answering(302, LONG.encode())):
        def send_header(self, name, value):
            super().send_header(name, value)
            if name == "Content-Length":
                super().send_header("Location", "/again")

    with address_of(Handler) as address, pytest.raises(requests.TooManyRedirects) as refused:
        requests.get(address, stream=stream)
    assert len(refused.value.response.content) == bounded.MAX_ERROR_BYTES


@pytest.mark.parametrize("status", [200, 302, 400, 404, 429, 500, 503])
def test_the_reason_is_one_short_line(status):
    body = json.dumps({"error_code": "INVALID_PARAMETER_VALUE", "message": LONG}).encode()
    for content in (body, LONG.encode(), b"", b"<html>\n<body>"):
        with address_of(answering(status, content)) as address:
            reason = store.failure_of(address, 30)
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
