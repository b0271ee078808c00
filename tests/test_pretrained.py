"""model.pretrained: wherever it is from, a run has its own copy, says where that came from, and asks there no more."""

import hashlib
import shutil
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import classic
import made_sets
import mxnet as mx
import pytest
from composed import composed
from conftest import last, params
from mxnet.gluon.model_zoo import model_store

from mxscale.cli import settings
from mxscale.config.schema import Data, from_dict, origin_of
from mxscale.distributed.communicators import Local
from mxscale.environment import description
from mxscale.launcher import setup
from mxscale.models import gluon_store, pretrained, weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.plan import InputChange, Plan
from mxscale.train import prepare, pretrained_init
from mxscale.train.trainer import Trainer
from mxscale.util.errors import ConfigError

CPU = mx.cpu()
DIGITS = ["data.train_per_class=8", "batch.per_device=8", "launch.ranks=1", "tracking=none", "log_every=1"]


@pytest.fixture
def prepared(tmp_path, data_cache):
    """prepared(name, *overrides) -> the run, its preparation done in this process as the parent and its child do it."""

    def prepare_run(name, *overrides):
        words = [f"runs={tmp_path}/runs", f"data.cache={data_cache}", f"name={name}", *DIGITS, *overrides]
        config = settings.resolve(composed("finetune", *words))
        run = directory.create(config)
        again(run)
        return run

    return prepare_run


def again(run):
    """The preparation of one more attempt."""
    file = setup.pretrained_file(run.config(), run)
    run.write_plan(replace(run.plan(), pretrained=file))
    prepare.prepare(run, run.config())


def trained(run, attempt=1):
    return Trainer(run, run.config(), run.plan(), Local(), attempt).train()


def finished(run, ended):
    """What the parent writes of it."""
    run.write("status.json", {"state": directory.FINISHED, "exit": 0, "attempts": [], **ended})
    return run


@pytest.fixture
def prefix(tmp_path):
    (tmp_path / "models").mkdir()
    return classic.save(classic.resnet(), tmp_path / "models" / "resnet")


@pytest.mark.parametrize(
    "source, kind",
    [
        ("latest", ("latest", "")),
        ("zoo", ("zoo", "")),
        ("run:0a1b", ("run", "0a1b")),
        ("symbol:/x/resnet@3", ("symbol", "/x/resnet@3")),
        ("torch:a.pth", ("torch", "a.pth")),
        ("hf:timm/resnet50@main", ("hf", "timm/resnet50@main")),
        ("runs/train/x", ("path", "runs/train/x")),
        ("zoo/x.params", ("path", "zoo/x.params")),
        ("run:", ("path", "run:")),
    ],
)
def test_what_a_source_is(source, kind):
    assert origin_of(source) == kind


# ---------------------------------------------------------------- a symbol network, through a run and beyond


@pytest.mark.slow
def test_a_run_goes_on_and_is_fine_tuned_from_when_the_files_are_gone(prepared, prefix):
    words = [f"model.pretrained=symbol:{prefix}", "model.input=config", "epochs=2"]
    whole = prepared("whole", *words)
    wanted = trained(whole)["params_sha256"]

    run = prepared("cut", *words)
    run.ask_to_stop("test")
    assert trained(run)["state"] == "interrupted"
    shutil.rmtree(prefix.rpartition("/")[0])
    run.stop_file.unlink()
    again(run)
    assert run.plan().pretrained is None  # from its checkpoint
    ended = trained(run, attempt=2)
    assert (ended["state"], ended["params_sha256"]) == ("done", wanted)

    later = prepared("later", f"model.pretrained={finished(run, ended)}", "max_steps=1")
    assert later.config().model.name == "symbol"
    assert trained(later)["state"] == "done"


def test_an_attempt_without_a_checkpoint_uses_what_the_first_one_brought(prepared, prefix):
    run = prepared("run", f"model.pretrained=symbol:{prefix}", "model.input=config")
    before = run.plan()
    assert before.pretrained == f"{run}/pretrained.params"
    shutil.rmtree(prefix.rpartition("/")[0])
    again(run)
    assert run.plan() == before


def test_the_plan_says_what_the_weights_are(prepared, prefix):
    run = prepared("run", f"model.pretrained=symbol:{prefix}", "model.input=config")
    known = run.plan().origin
    sums = {f"{prefix}{end}": digest_of(f"{prefix}{end}") for end in ("-symbol.json", "-0000.params")}
    assert (known.kind, known.files) == ("symbol", sums)
    assert not [name for name in weights.load(run.path / "pretrained.params") if name.startswith("output.")]
    tags = description.pretrained_tags(run.plan())
    assert tags["pretrained.kind"] == "symbol" and set(tags["pretrained.sha256"].split()) == set(sums.values())
    assert tags["pretrained.input"] is None and description.pretrained_tags(Plan()) == {}


def digest_of(path, kind="sha256"):
    return hashlib.new(kind, open(path, "rb").read()).hexdigest()


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["model.pretrained=symbol:/x", "model.name=small"],
            "model.name=small: model.pretrained=symbol:/x contains its own network; set model.name=null",
        ),
        (["model.pretrained=zoo"], "model.name is missing"),
        (["model.pretrained=null", "model.name=symbol"], "give model.pretrained=symbol:PREFIX"),
    ],
)
def test_a_name_that_does_not_go_with_the_source_is_refused(words, message):
    with pytest.raises(ConfigError) as raised:
        settings.resolve(composed("finetune", *words))
    assert message in str(raised.value)


# ---------------------------------------------------------------- the input of the weights

OWN = {"image_size": 288, "mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0], "interpolation": "bicubic", "crop": 0.95}


def test_what_is_known_of_the_input_is_taken_over_and_what_it_replaces_is_kept():
    found = pretrained_init.adopted_input(Data(image_size=224, eval_resize=256, pack_short_side=256), OWN, "x")
    assert found.taken == {
        **{key: OWN[key] for key in ("image_size", "mean", "std", "interpolation")},
        "eval_resize": 303,  # 288 / 0.95
        "pack_short_side": 303,
    }
    assert found.instead == {
        "image_size": 224,
        "mean": Data().mean,
        "std": Data().std,
        "interpolation": "bilinear",
        "eval_resize": 256,
        "pack_short_side": 256,
    }


def test_sizes_that_follow_from_the_image_size_keep_their_ratio():
    data = Data(image_size=224, eval_resize=256, pack_short_side=480)
    assert pretrained_init.adopted_input(data, {"image_size": 448}, "x").taken == {
        "image_size": 448, "eval_resize": 512, "pack_short_side": 512}  # fmt: skip
    assert pretrained_init.adopted_input(data, {"image_size": 112}, "x").taken == {
        "image_size": 112,
        "eval_resize": 128,
    }
    small = Data(image_size=64, eval_resize=256, pack_short_side=64)
    assert pretrained_init.adopted_input(small, {}, "x") == InputChange()
    assert pretrained_init.adopted_input(small, {"mean": [0.0] * 3}, "x").taken == {"mean": [0.0] * 3}


@pytest.mark.parametrize(
    "wrong", [{"image_size": 0}, {"mean": [1.0]}, {"std": [0.0, 1, 1]}, {"crop": 2}, {"mean": [float("nan")] * 3}]
)
def test_an_input_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"^model.pretrained=x: its stated input is invalid .*model.input=config$"):
        pretrained.checked({**OWN, **wrong}, "x")


def test_an_interpolation_that_the_loader_has_not_is_refused():
    with pytest.raises(ConfigError, match=r"interpolation random is not supported \(bilinear, bicubic"):
        pretrained_init.adopted_input(Data(), {"interpolation": "random"}, "x")


def test_the_effective_config_is_what_ranks_read_and_resume_auto_still_finds_the_run(prepared, prefix, tmp_path):
    words = ["name=run", f"model.pretrained=symbol:{prefix}", "data.image_size=40"]
    run = prepared("run", *words)
    config = run.config()
    assert (config.data.image_size, config.data.mean, config.data.std) == (224, [0.0] * 3, [1.0] * 3)
    assert run.asked().data.image_size == 40 and run.asked().data.mean == [78.85] * 3
    assert run.plan().input.instead["image_size"] == 40
    assert settings.unfinished_run_of(run.asked()).path == run.path
    merged = settings.merge_for_resume(run, directory.to_dict(run.asked()), ["data.image_size=40", "epochs=20"])
    assert merged.data == config.data  # the same words again mean the same run
    with pytest.raises(ConfigError, match=r"that run has data\.image_size=40"):
        settings.merge_for_resume(run, {"data": {"image_size": 224}}, ["data.image_size=224"])


def test_a_runs_normalisation_is_taken_over_and_not_its_size(prepared, prefix):
    own = ["data.image_size=40", "data.mean=[9,9,9]", "model.input=config"]
    first = prepared("first", f"model.pretrained=symbol:{prefix}", "max_steps=1", *own)
    finished(first, trained(first))
    for words, mean in (([], 9), (["model.input=config"], 78.85)):
        later = prepared("later", f"model.pretrained={first}", *words)
        assert (later.config().data.mean, later.config().data.image_size) == ([mean] * 3, 32)


# ---------------------------------------------------------------- Gluon's zoo

SMALL = "mobilenet0.25"


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Serve a mirror of Gluon's store with random weights of one network: (folder, server, SHA-1 by name)."""
    served = tmp_path / "mirror" / "gluon" / "models"
    served.mkdir(parents=True)
    weights.save(tmp_path / "w", weights.arrays(random_net()))
    sums = {SMALL: digest_of(tmp_path / "w", "sha1")}
    file = f"{SMALL}-{sums[SMALL][:8]}"
    with zipfile.ZipFile(served / f"{file}.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.write(tmp_path / "w", f"{file}.params")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "mirror"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MXNET_GLUON_REPO", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(model_store, "_model_sha1", sums)
    yield served, server, sums
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def random_net():
    net = zoo.build(SMALL, 1000)
    zoo.initialise(net, 5, CPU, False)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    return net


def left_in(folder):
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_the_zoo_is_fetched_once_checked_and_kept_where_gluon_keeps_it(store, tmp_path):
    _, server, sums = store
    path = gluon_store.fetch(SMALL)
    assert path == f"{tmp_path}/home/models/{SMALL}-{sums[SMALL][:8]}.params"
    assert digest_of(path, "sha1") == sums[SMALL] and left_in(tmp_path / "home") == [path.rpartition("/")[2]]
    server.shutdown()
    server.server_close()
    assert gluon_store.fetch(SMALL) == path


def refused_by_the_store(*words):
    with pytest.raises(ConfigError) as raised:
        gluon_store.fetch(SMALL)
    assert len(str(raised.value).splitlines()) == 1 and str(raised.value).startswith("model.pretrained=zoo: ")
    assert not [word for word in words if word not in str(raised.value)], str(raised.value)


def test_a_store_that_gives_something_else_is_refused_and_nothing_stays(store, tmp_path):
    served, server, sums = store
    file = next(served.iterdir())
    whole = file.read_bytes()
    advice = ("place the file at", f"{tmp_path}/home/models/", "MXNET_GLUON_REPO")
    for tenth in range(10):
        file.write_bytes(whole[: len(whole) * tenth // 10])
        refused_by_the_store(*advice)
    file.write_bytes(whole)
    sums[SMALL] = sums[SMALL][:8] + "0" * 32
    refused_by_the_store("different hash", *advice)
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("../other.params", b"x")
    refused_by_the_store("Moving downloaded temp file", *advice)
    file.unlink()
    refused_by_the_store("Failed downloading", *advice)
    server.shutdown()
    server.server_close()
    refused_by_the_store("refused", *advice)
    assert left_in(tmp_path / "home") == []


def test_a_damaged_file_in_the_cache_is_named(store, tmp_path):
    path = gluon_store.fetch(SMALL)
    open(path, "ab").write(b"x")
    refused_by_the_store(f"{path} is damaged", "remove it")


def test_a_network_that_the_zoo_has_no_weights_of_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no weights of model.name=resnet50_v1b: did you mean resnet50_v1\?"):
        gluon_store.fetch("resnet50_v1b")


def test_names_of_gluons_first_years_become_structural(tmp_path):
    net = random_net()
    old = {p.name[len(net.prefix) :]: p.data() for p in net.collect_params().values()}
    assert "conv0_weight" in old
    named = weights.structural(zoo.build(SMALL, 1000), old)
    assert {n: a.asnumpy().tobytes() for n, a in named.items()} == {
        n: a.tobytes() for n, a in weights.arrays(net).items()
    }


def test_the_zoos_input_is_that_of_imagenet_in_gluon(store, tmp_path):
    found = pretrained.bring("zoo", SMALL, tmp_path, "replace")
    assert found.input["image_size"] == 224 and found.input["mean"] == [123.675, 116.28, 103.53]
    kept = weights.load(tmp_path / pretrained.WEIGHTS)
    assert all((kept[n].asnumpy() == a).all() for n, a in weights.arrays(random_net()).items() if n in kept)


# ---------------------------------------------------------------- freezing by stages


@pytest.mark.parametrize(
    "name, stage, frozen",
    [
        ("small", "stage2", ["features.0.", "features.1.", "features.3.", "features.4."]),
        ("resnet18_v2", "stage1", ["features.0.", "features.1.", "features.2.", "features.5."]),
    ],
)
def test_frozen_stages_of_networks_by_name_do_not_move(name, stage, frozen):
    net = zoo.build(name, 5)
    zoo.initialise(net, 1, CPU, False)
    zoo.finish(net, (1, 3, 32, 32), CPU)
    zoo.freeze(net, stage)
    net.hybridize(static_alloc=True, static_shape=True)
    before = weights.arrays(net)
    trainer = mx.gluon.Trainer(
        [p for p in weights.parameters(net).values() if p.grad_req != "null"], "sgd", {"wd": 0.1}, kvstore=None
    )
    for _ in range(2):
        with mx.autograd.record():
            loss = (net(mx.nd.random.normal(shape=(4, 3, 32, 32))) ** 2).sum()
        loss.backward()
        trainer.step(4)
    still = {n for n, v in weights.arrays(net).items() if (v == before[n]).all()}
    assert still >= {n for n in before if n.startswith(tuple(frozen))} and "output.weight" not in still
    later = {n for n in before if not n.startswith(tuple(frozen)) and n.endswith("running_mean")}
    assert later and not later & still


def test_a_network_without_stages_says_what_can_be_frozen():
    with pytest.raises(ConfigError, match=r"^model.freeze=stage1: expected one of none, features with this network$"):
        zoo.freeze(zoo.build("mobilenet0.25", 3), "stage1")
    with pytest.raises(ConfigError, match="stage4: expected one of none, features, stage1, stage2, stage3 with"):
        zoo.freeze(zoo.build("small", 3), "stage4")


def test_amp_which_would_not_reach_into_a_graph_is_refused():
    config = from_dict({"precision": "amp", "model": {"name": "symbol"}})
    with pytest.raises(ConfigError, match=r"^precision=amp: .*use precision=float16$"):
        prepare.check_settings(config, None)


# ---------------------------------------------------------------- the published fine-tuning


@pytest.mark.slow
def test_the_published_fine_tuning_runs_from_end_to_end(cli, tmp_path):
    """Its network with random weights, 58 M of them and 23 M in a head of 11,221 classes; a small archive."""
    prefix = classic.save(classic.resnet(classic.UNITS[152], classes=11221, width=64), tmp_path / "resnet-152")
    classes = ("001.ak47", "002.american-flag", "003.backpack", "256.toad", "257.clutter")
    for name, content in made_sets.caltech256(classes, per_class=2).items():
        (tmp_path / name).write_bytes(content)
    ended = cli("finetune", "experiment=beeva_caltech256", f"data.root={tmp_path}", "data.checksum=first_use",
                "data.train_per_class=1", f"model.pretrained=symbol:{prefix}", "batch.per_device=2", "epochs=1",
                "launch.ranks=2", "tracking=none", small=False)  # fmt: skip
    assert ended.status["state"] == "FINISHED" and last(ended.run, "val/top1") >= 0
    assert params(ended.run)["output.weight"].shape == (4, 2048)
    assert ended.run.config().data.image_size == 224 and ended.run.config().data.mean == [0.0] * 3
    assert "symbol from symbol:" in ended.out and "mean [0.0, 0.0, 0.0], std [1.0, 1.0, 1.0]" in ended.out
    assert ended.run.read("warnings.json") is None
