"""Weights from the hub, against a real server on localhost."""

import json
import os
import subprocess
import sys
import time

import pytest
from hub_server import Hub, serving, set_endpoint
from huggingface_hub import constants
from machine import free_port
from repository import ROOT

from mxscale.models import downloads
from mxscale.util.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = os.urandom(300_000)
SETTINGS = json.dumps({"architecture": "resnet18"}).encode()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    files = {"model.safetensors": WEIGHTS, "config.json": SETTINGS}
    with serving(Hub("timm/resnet18", COMMIT, files)) as hub:
        set_endpoint(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the library's tries: 24 s in all
        yield hub


def refused(reference, match):
    with pytest.raises(ConfigError, match=match) as error:
        downloads.hub(reference)
    assert str(error.value).startswith(f"model.pretrained=hf:{reference}") and "\n" not in str(error.value)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def gets(hub):
    return [path.rpartition("/")[2] for method, path, _ in hub.asked if method == "GET"]


def test_weights_settings_and_commit_are_fetched(hub):
    (path, config_path), revision = downloads.hub("timm/resnet18")
    assert content(path) == WEIGHTS and content(config_path) == SETTINGS
    assert os.path.dirname(path) == os.path.dirname(config_path)
    assert revision == COMMIT


def test_cached_files_are_not_fetched_again(hub):
    first = downloads.hub("timm/resnet18")
    assert downloads.hub("timm/resnet18") == first == downloads.hub(f"timm/resnet18@{COMMIT}")
    assert gets(hub) == ["model.safetensors", "config.json"]


def test_the_cache_is_used_if_the_hub_is_down(hub, monkeypatch):
    first = downloads.hub("timm/resnet18")
    set_endpoint(monkeypatch, f"http://127.0.0.1:{free_port()}")
    assert downloads.hub("timm/resnet18") == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert downloads.hub("timm/resnet18") == first


def test_a_model_without_settings_has_none(hub):
    del hub.files["config.json"]
    assert [os.path.basename(file) for file in downloads.hub("timm/resnet18")[0]] == ["model.safetensors"]


def test_an_interrupted_download_is_resumed(hub, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)  # 10 MB: what it writes at a time
    hub.cut_after = 100_000
    assert content(downloads.hub("timm/resnet18")[0][0]) == WEIGHTS
    assert [part for method, path, part in hub.asked if part] == ["bytes=100000-"]


@pytest.mark.parametrize(
    "reference, match",
    [
        ("timm/resnet19", "has no such model, or HF_TOKEN gives no access to it"),
        ("timm/resnet18@v9", "has no revision v9 of this model"),
        ("resnet18", "expected hf:OWNER/MODEL"),
        ("timm/resnet18@", "expected hf:OWNER/MODEL"),
        ("../../etc/passwd", "expected hf:OWNER/MODEL"),
        ("timm/..", "Repo id"),
    ],
)
def test_missing_models_and_revisions_are_one_line(hub, reference, match):
    refused(reference, match)


@pytest.mark.parametrize(
    "attribute, value, match",
    [
        ("files", {"config.json": SETTINGS}, "it has no model.safetensors"),
        ("gated", True, "requires its terms to be accepted"),
        ("spoil", True, "its SHA-256 differs from the hub's; remove it"),
    ],
)
def test_unusable_models_are_one_line(hub, attribute, value, match):
    setattr(hub, attribute, value)
    refused("timm/resnet18", match)


def test_too_large_files_are_not_fetched(hub, monkeypatch):
    monkeypatch.setattr(downloads, "MAX_BYTES", 1000)
    refused("timm/resnet18", "expected at most")
    assert gets(hub) == []


def test_an_unreachable_hub_is_one_line(hub, monkeypatch):
    set_endpoint(monkeypatch, f"http://127.0.0.1:{free_port()}")
    refused("timm/resnet18", f"{constants.ENDPOINT} does not answer, and it is not in the cache .*torch:FILE")


def fetch_in_a_process(**variables):
    code = "from mxscale.models import downloads; print(downloads.hub('timm/resnet18')[0][0])"
    env = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_the_librarys_variables_apply(hub, tmp_path):
    done = fetch_in_a_process(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
    assert done.stdout.startswith(str(tmp_path / "home" / "hub")), done.stderr
    done = fetch_in_a_process(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "home"))
    assert done.stdout.startswith(str(tmp_path / "home" / "hub")), done.stderr
    done = fetch_in_a_process(HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "other"))
    last = done.stderr.strip().splitlines()[-1]
    assert "model.pretrained=hf:timm/resnet18: HF_HUB_OFFLINE is set, and it is not in the cache" in last
