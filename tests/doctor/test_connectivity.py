"""Checks of the doctor that use the network: real HTTP servers, and ssh."""

import http.server
import shutil
import socket
import threading
import time

import pytest
from machine import free_port

from mxscale.config.schema import from_dict
from mxscale.doctor import connectivity
from mxscale.tracking import store


def configured(runs, **groups):
    return from_dict({"runs": str(runs), **groups})


@pytest.fixture
def server():
    """Serve HTTP: answer with `server.status` and record the Authorization headers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.server.authorizations.append(self.headers.get("Authorization"))
            self.send_response(self.server.status)
            self.end_headers()
            self.wfile.write(b"{}" if self.server.status == 200 else b"no")

        do_GET = do_POST

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.status, running.authorizations = 200, []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.mark.parametrize(
    "status, state, cause",
    [(200, "ok", ""), (401, "warn", "MLFLOW_TRACKING_USERNAME"), (403, "warn", "--allowed-hosts"),
     (404, "warn", "404"), (500, "warn", "server error")],
)  # fmt: skip
def test_mlflow_status_becomes_a_result(tmp_path, server, status, state, cause):
    server.status = status
    uri = f"http://me:secret@127.0.0.1:{server.server_port}/"
    result = connectivity.check_mlflow(configured(tmp_path, tracking={"uri": uri}))
    assert result.state == state and cause in result.cause
    assert "secret" not in result.cause
    assert set(server.authorizations) == {"Basic bWU6c2VjcmV0"}


def test_mlflow_token_of_the_client_is_sent(tmp_path, server, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc")
    uri = f"http://127.0.0.1:{server.server_port}"
    assert connectivity.check_mlflow(configured(tmp_path, tracking={"uri": uri})).state == "ok"
    assert set(server.authorizations) == {"Bearer abc"}


def test_refused_connection_to_mlflow_is_a_warning(tmp_path):
    uri = f"http://127.0.0.1:{free_port()}"
    result = connectivity.check_mlflow(configured(tmp_path, tracking={"uri": uri}))
    assert result.state == "warn" and "connection refused" in result.cause and "sent later" in result.fix


def test_slow_mlflow_is_not_waited_for():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def drip():
            connection = listening.accept()[0]
            for byte in b"HTTP/1.0 200 OK\r\n":
                time.sleep(0.2)
                connection.sendall(bytes([byte]))

        threading.Thread(target=drip, daemon=True).start()
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert store.failure_of(uri, 0.5) == "no answer in 0.5 s"


@pytest.mark.parametrize(
    "tracking, state, cause",
    [
        ({"enabled": False}, "ok", "off"),
        ({"uri": "ftp://there"}, "fail", "expected http"),
        ({"uri": "postgresql://me:secret@db/mlflow"}, "ok", "me:***@db/mlflow, not checked"),
        ({"uri": "http://[::bad"}, "warn", "http://[::bad: "),
    ],
)
def test_mlflow_uri_becomes_a_result(tmp_path, tracking, state, cause):
    result = connectivity.check_mlflow(configured(tmp_path, tracking=tracking))
    assert (result.state, cause in result.cause) == (state, True), result


def test_mlflow_file_must_be_writable(tmp_path):
    cause = connectivity.check_mlflow(configured(tmp_path / "runs")).cause
    assert cause.endswith("mlflow.db, created by the first run")
    (tmp_path / "file").write_text("")
    assert connectivity.check_mlflow(configured(tmp_path / "file" / "runs")).state == "warn"
    (tmp_path / "runs" / "mlflow.db").mkdir(parents=True)
    assert connectivity.check_mlflow(configured(tmp_path / "runs")).state == "warn"


def test_local_run_needs_no_hosts(tmp_path):
    result = connectivity.check_hosts(configured(tmp_path))[0]
    assert (result.name, result.state) == ("hosts", "ok")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh client here")
def test_unreachable_hosts_fail(tmp_path):
    config = configured(tmp_path / "runs", launch={"hosts": ["no-such-host.invalid:4", "127.0.0.1"]})
    results = connectivity.check_hosts(config)
    assert (results[0].name, results[0].state) == ("host no-such-host.invalid", "fail")
    assert "by ssh" in results[0].cause and "without a password" in results[0].fix
    assert list((tmp_path / "runs").iterdir()) == []  # the doctor leaves no file


def test_hosts_that_see_the_runs_folder_pass(tmp_path, fake_ssh, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = connectivity.check_hosts(configured("runs", launch={"hosts": ["a:4", "b"]}))
    assert [(each.name, each.state, each.cause) for each in results] == [
        ("host a", "ok", f"slots: 4; sees {tmp_path}/runs"),
        ("host b", "ok", f"slots: 1; sees {tmp_path}/runs"),
    ]
