"""Gluon's pretrained weights, in its cache."""

import mxnet as mx
import pytest
from mxnet.gluon.model_zoo import model_store
from refusals import contains, error_of

from mxscale.models import pretrained, weights, zoo
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

CPU = mx.cpu()
SMALL = "mobilenet0.25"


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Place random weights of one network in Gluon's cache; return the file."""
    weights.save(tmp_path / "w", weights.arrays(random_net()))
    sums = {SMALL: digest_of(tmp_path / "w", "sha1")}
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_store, "_model_sha1", sums)
    file = tmp_path / "home" / "models" / f"{SMALL}-{sums[SMALL][:8]}.params"
    file.parent.mkdir(parents=True)
    (tmp_path / "w").rename(file)
    return file


def random_net():
    net = zoo.build(SMALL, 1000)
    zoo.initialise(net, 5, CPU, False)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    return net


def test_weights_are_found_in_gluons_cache(cached):
    assert pretrained.gluon_file(SMALL) == str(cached)


def refused(*words):
    message = error_of(pretrained.gluon_file, SMALL)
    assert message.startswith("model.pretrained=zoo: ")
    contains(message, *words)


def test_a_missing_file_is_refused_with_its_path(cached):
    cached.unlink()
    refused(f"{cached}: No such file", "place it there")


def test_a_damaged_file_is_refused(cached):
    cached.open("ab").write(b"x")
    refused(f"{cached} is damaged", "remove it")
    cached.unlink()
    cached.mkdir()
    refused(f"{cached}: a folder, not a regular file", "place it there")


def test_network_without_weights_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"no weights of model.name=resnet50_v1b: did you mean resnet50_v1\?"):
        pretrained.gluon_file("resnet50_v1b")


def test_old_gluon_names_become_structural(tmp_path):
    net = random_net()
    old = {p.name[len(net.prefix) :]: p.data() for p in net.collect_params().values()}
    assert "conv0_weight" in old
    named = weights.structural(zoo.build(SMALL, 1000), old)
    assert {n: a.asnumpy().tobytes() for n, a in named.items()} == {
        n: a.tobytes() for n, a in weights.arrays(net).items()
    }


def test_input_of_the_zoo_is_that_of_imagenet(cached, tmp_path):
    found = pretrained.bring("zoo", SMALL, tmp_path, "replace")
    assert found.input["image_size"] == 224 and found.input["mean"] == [123.675, 116.28, 103.53]
    kept = weights.load(tmp_path / pretrained.WEIGHTS)
    assert all((kept[n].asnumpy() == a).all() for n, a in weights.arrays(random_net()).items() if n in kept)
