"""Gluon's store of pretrained weights, served by a local mirror."""

import io
import zipfile

import mxnet as mx
import pytest
from machine import free_port
from mxnet.gluon.model_zoo import model_store
from refusals import contains, error_of

from mxscale.models import gluon_store, pretrained, weights, zoo
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

CPU = mx.cpu()
SMALL = "mobilenet0.25"


@pytest.fixture
def store(publisher, tmp_path, monkeypatch):
    """Serve a mirror of Gluon's store with random weights of one network: (publisher, file, SHA-1 by name)."""
    weights.save(tmp_path / "w", weights.arrays(random_net()))
    sums = {SMALL: digest_of(tmp_path / "w", "sha1")}
    name = f"{SMALL}-{sums[SMALL][:8]}"
    publisher.files[f"{name}.zip"] = zipped(f"{name}.params", (tmp_path / "w").read_bytes())
    monkeypatch.setenv("MXNET_GLUON_REPO", publisher.base)
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_store, "_model_sha1", sums)
    return publisher, f"{name}.zip", sums


def zipped(name, content) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return out.getvalue()


def random_net():
    net = zoo.build(SMALL, 1000)
    zoo.initialise(net, 5, CPU, False)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    return net


def left_in(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_weights_are_fetched_once_into_gluons_cache(store, tmp_path):
    publisher, _, sums = store
    path = gluon_store.fetch(SMALL)
    assert path == f"{tmp_path}/home/models/{SMALL}-{sums[SMALL][:8]}.params"
    assert digest_of(path, "sha1") == sums[SMALL] and left_in(tmp_path / "home") == [path.rpartition("/")[2]]
    assert gluon_store.fetch(SMALL) == path and len(publisher.asked) == 1


def refused_by_the_store(*words):
    message = error_of(gluon_store.fetch, SMALL)
    assert message.startswith("model.pretrained=zoo: ")
    contains(message, *words)


def test_invalid_download_is_refused_and_removed(store, tmp_path, monkeypatch):
    publisher, file, sums = store
    complete = publisher.files[file]
    advice = ("place the file at", f"{tmp_path}/home/models/", "MXNET_GLUON_REPO")
    for tenth in range(10):
        publisher.files[file] = complete[: len(complete) * tenth // 10]
        refused_by_the_store(*advice)
    publisher.files[file] = complete
    sums[SMALL] = sums[SMALL][:8] + "0" * 32
    refused_by_the_store("different hash", *advice)
    publisher.files[file] = zipped("../other.params", b"x")
    refused_by_the_store(*advice)
    del publisher.files[file]
    refused_by_the_store(*advice)
    monkeypatch.setenv("MXNET_GLUON_REPO", f"http://127.0.0.1:{free_port()}")
    refused_by_the_store("refused", *advice)
    assert left_in(tmp_path / "home") == []


def test_damaged_file_in_the_cache_is_refused(store, tmp_path):
    path = gluon_store.fetch(SMALL)
    open(path, "ab").write(b"x")
    refused_by_the_store(f"{path} is damaged", "remove it")


def test_network_without_weights_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"no weights of model.name=resnet50_v1b: did you mean resnet50_v1\?"):
        gluon_store.fetch("resnet50_v1b")


def test_old_gluon_names_become_structural(tmp_path):
    net = random_net()
    old = {p.name[len(net.prefix) :]: p.data() for p in net.collect_params().values()}
    assert "conv0_weight" in old
    named = weights.structural(zoo.build(SMALL, 1000), old)
    assert {n: a.asnumpy().tobytes() for n, a in named.items()} == {
        n: a.tobytes() for n, a in weights.arrays(net).items()
    }


def test_input_of_the_store_is_that_of_imagenet(store, tmp_path):
    found = pretrained.bring("zoo", SMALL, tmp_path, "replace")
    assert found.input["image_size"] == 224 and found.input["mean"] == [123.675, 116.28, 103.53]
    kept = weights.load(tmp_path / pretrained.WEIGHTS)
    assert all((kept[n].asnumpy() == a).all() for n, a in weights.arrays(random_net()).items() if n in kept)
