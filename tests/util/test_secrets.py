"""Passwords in addresses reach no terminal, file, log or store."""

import time
from types import SimpleNamespace

import pytest
from refusals import command_error, error_of
from tracked_runs import end, make_run

from mxscale.cli import job, main
from mxscale.cli.explain import refuse
from mxscale.config.schema import Tracking
from mxscale.models import downloads
from mxscale.tracking import sender, tracker, uris
from mxscale.util.redaction import redact, redact_address, shown
from mxscale.util.terminal import echo

SECRET = "Hunter2Xyz"
HTTP = [
    "http://bob:{}@127.0.0.1:1",
    "https://bob:{}@127.0.0.1:1/path",
    "http://bob:p@{}@127.0.0.1:1",
    "http://bob:{}@x@127.0.0.1:1",
    "http://bob:{}%40x@127.0.0.1:1",
    "http://bob:a/{}@127.0.0.1:1",
    "http://bob:my {}@127.0.0.1:1",
    "http://bob:{}?x@127.0.0.1:1",
    "http://bob:{}@[::1]:1",
    "http://:{}@127.0.0.1:1",
    "http://{}@127.0.0.1:1",
    "http://{}:@127.0.0.1:1",
]
FIELDS = [
    "http://127.0.0.1:1/?api_key={}",
    "http://127.0.0.1:1/?a=b&apikey={}&c=d",
    "http://127.0.0.1:1/?access_token={}",
    "http://127.0.0.1:1/?X-Amz-Signature={}",
    "http://127.0.0.1:1/?X-Amz-Security-Token={}",
    "http://127.0.0.1:1/?sv=1&sig={}",
    "http://127.0.0.1:1/?key={}",
    "http://127.0.0.1:1/?client_secret={}",
    "http://127.0.0.1:1/?passphrase={}",
]
DATABASES = [
    "postgresql:///{}:@x/a@b",
    "databricks://bob:{}@x",
    "sqlite://bob:{}@x/a.db",
    "postgresql:///bob:{}@127.0.0.1:1/db",
    "postgresql://bob:{}@127.0.0.1:1/db",
    "postgresql://bob:p@{}@127.0.0.1:1/db",
    "postgresql://bob:a/{}@127.0.0.1:1/db",
    "postgresql://127.0.0.1:1/db?sslpassword={}",
    "mysql+pymysql://bob:{}@127.0.0.1:1/db?charset=utf8",
    "mssql://127.0.0.1:1/db?user=a&Password={}&x=1",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BUID%3Dbob%3BPWD%3D{}%3B",
]
INVALID = [
    "/bob:{}@h",
    "bob:{}@h//x",
    "/bob:{}@h//x",
    "s3:///{}@h",
    "htp:///{}:@h/x",
    "///bob:p@{}@h",
    "bob:{}@127.0.0.1:1",
    "bob:a/{}@h",
    "http:/bob:{}@h",
    "http//bob:{}@h",
    "//bob:{}@h",
    "htp://bob:{}@h",
]
FORMS = [*HTTP, *FIELDS, *DATABASES, *INVALID]
PLAIN = [
    "http://host:5000/a@b",
    "http://host:5000 by me@x",
    "sqlite:////home/me@x/a:b@c.db",
    "hf:me/model@main",
    "mxscale:cpu@sha256:abc",
    "data.root=/data/a:b@c",
    "data.kind=config.yaml",
]


def holds_secret(folder) -> list:
    """Return the files below a folder that have the password, SQLite stores included."""
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("form", FORMS)
def test_password_reaches_neither_text_nor_address(form):
    address = form.format(SECRET)
    text = redact(f"failed: tracking.uri={address}: again; MLFLOW_TRACKING_URI='{address}'")
    assert SECRET not in redact_address(address) + text
    assert redact(redact_address(address)) == redact_address(address)


@pytest.mark.parametrize("text", PLAIN)
def test_text_without_password_is_unchanged(text):
    assert redact(text) == text


def test_the_rest_of_an_address_stays():
    assert redact("failed: http://me:p:w@host:1/x, again") == "failed: http://me:***@host:1/x, again"
    assert redact("https://token@host") == "https://***@host"
    assert redact("mssql://h/d?user=a&Password=pw&x=1") == "mssql://h/d?user=a&Password=***&x=1"
    assert redact("'http://h/?api_key=pw'") == "'http://h/?api_key=***'"


@pytest.mark.slow
@pytest.mark.parametrize("form", [HTTP[0], FIELDS[0], DATABASES[4], INVALID[0]])
def test_password_reaches_no_terminal_file_or_store(form, tmp_path, monkeypatch, capfd, caplog):
    address = form.format(SECRET)
    run = make_run(tmp_path, uri=address, timeout_s=1)
    end(run)
    context = SimpleNamespace(run=run, attempt=1)
    job.RecordOverrides([f"tracking.uri={address}"]).before_ranks(context, None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setattr(tracker, "BACKOFF_S", (0.0,))
    assert main.main(["sync", str(run)]) != 0  # nothing answers
    sender.Sender(run, f"sqlite:///{tmp_path}/mlflow.db", Tracking()).send("FINISHED")
    out, err = capfd.readouterr()
    assert "tracking" in out + err and SECRET not in out + err + caplog.text
    assert (tmp_path / "mlflow.db").is_file() and holds_secret(tmp_path) == []


@pytest.mark.slow
def test_run_and_sweep_with_a_password_record_none(cli, tmp_path):
    store = f"tracking.uri='http://bob:{SECRET}@127.0.0.1:1'"
    ended = cli("train", "seed=1", "max_steps=1", "launch.ranks=1", "tracking=mlflow", store, "-m")
    assert SECRET not in ended.out + ended.err
    assert "http://bob:***@127.0.0.1:1" in (ended.run.path / "config.yaml").read_text()
    assert holds_secret(tmp_path) == []


def test_resume_needs_the_password_again(monkeypatch):
    recorded = Tracking(uri="http://bob:***@host")
    assert "set tracking.uri or MLFLOW_TRACKING_URI again" in error_of(uris.store_uri, recorded, "r")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://bob:{SECRET}@host")
    assert uris.store_uri(recorded, "r") == f"http://bob:{SECRET}@host"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://bob:{SECRET}@other")
    assert error_of(uris.store_uri, recorded, "r").startswith("tracking.uri=http://bob:***@host: ")


@pytest.mark.parametrize("form", ["http://bob:a/{}@host", "postgresql://bob:p@{}@h/db"])
def test_password_that_clients_misread_is_refused(form):
    line = error_of(uris.store_uri, Tracking(uri=form.format(SECRET)), "r")
    assert SECRET not in line and "%40 and %2F" in line


@pytest.mark.parametrize("form", ["http://bob:{}@host/x", "http://host/x?token={}", "bob:{}@host"])
def test_mirror_with_a_password_is_refused(refused_here, form):
    line = refused_here("data=mnist", f"data.mirror='{form.format(SECRET)}'")
    assert SECRET not in line and "data.mirror=" in line and "***" in line


def test_value_of_a_secret_variable_is_not_printed(refused_here, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", SECRET)
    line = refused_here("schedule.kind=${oc.env:MY_TOKEN}")
    assert SECRET not in line and "schedule.kind=***" in line


@pytest.mark.parametrize("word", ["a-" * 10_000, "//a:" * 5_000, "uri=" * 5_000])
def test_a_long_word_is_refused_at_once(refused_here, capsys, word):
    refused_here(f"seed={word}")
    assert command_error(capsys, "predict", word, "photo.png").startswith("error: ")


def test_values_of_other_variables_and_short_ones_stay(monkeypatch):
    for name, value in {"PWD": "/work/photos", "SSH_AUTH_SOCK": "/tmp/agent.123", "PASSWORD": "digits"}.items():
        monkeypatch.setenv(name, value)
    text = "/work/photos: data=digits, /tmp/agent.123"
    assert redact(text) == text


def test_password_of_the_hub_is_not_printed(monkeypatch):
    monkeypatch.setattr(downloads.constants, "ENDPOINT", f"http://bob:{SECRET}@127.0.0.1:1")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the library's tries
    line = error_of(downloads.hub, "me/model")
    assert SECRET not in line and "http://bob:***@127.0.0.1:1" in line


def test_control_characters_are_written_as_escapes(capsys):
    assert shown("a\x1b[31mred\x07\u202e\n\tb") == "a\\x1b[31mred\\x07\\u202e\n\tb"
    echo("tensor \x1b]0;title\x07")
    refuse("tensor \x1b[2J")
    out, err = capsys.readouterr()
    assert out == "tensor \\x1b]0;title\\x07\n" and err == "error: tensor \\x1b[2J\n"
