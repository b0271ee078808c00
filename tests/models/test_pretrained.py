"""model.pretrained: a run copies the weights into its directory, records their origin and adopts their input."""

import shutil
from dataclasses import replace

import classic
import made_sets
import mxnet as mx
import pytest
from composed import composed
from in_process import trained
from refusals import error_of
from run_files import last, params

from mxscale.cli import settings
from mxscale.config.schema import Config, Data, from_dict, origin_of, to_dict
from mxscale.environment import description
from mxscale.launcher import setup
from mxscale.models import pretrained, weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.plan import InputChange, Plan
from mxscale.rundir.status import FINISHED
from mxscale.train import prepare, pretrained_init
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

CPU = mx.cpu()
DIGITS = ["data.train_per_class=8", "batch.per_device=8", "launch.ranks=1", "tracking=none", "log_every=1"]


@pytest.fixture
def prepared(tmp_path, data_cache):
    """Return prepared(name, *overrides): create and prepare a run in this process."""

    def prepare_run(name, *overrides):
        words = [f"runs={tmp_path}/runs", f"data.cache={data_cache}", f"name={name}", *DIGITS, *overrides]
        config = settings.resolve(composed("finetune", *words))
        run = directory.create(config)
        again(run)
        return run

    return prepare_run


def again(run):
    """Prepare another attempt."""
    file = setup.pretrained_file(run.config(), run)
    run.save(replace(run.plan(), pretrained=file))
    prepare.prepare(run, run.config())


def finished(run, ended):
    """Write the status of a finished run."""
    run.write("status.json", {"state": FINISHED, "exit": 0, "attempts": [], **ended})
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
def test_kind_of_a_source(source, kind):
    assert origin_of(source) == kind


def test_gluons_zoo_names_its_files_instead():
    assert "zoo was removed: name its file, $HOME/.mxnet/models/vgg11-HASH" in error_of(pretrained.load, "zoo", "vgg11")


# ---------------------------------------------------------------- a symbol network


@pytest.mark.slow
def test_run_resumes_and_is_fine_tuned_without_its_source(prepared, prefix):
    words = [f"model.pretrained=symbol:{prefix}", "model.input=config", "epochs=2"]
    uninterrupted = prepared("uninterrupted", *words)
    wanted = trained(uninterrupted)["params_sha256"]

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


@pytest.mark.slow
def test_second_attempt_uses_the_copied_weights(prepared, prefix):
    run = prepared("run", f"model.pretrained=symbol:{prefix}", "model.input=config")
    before = run.plan()
    assert before.pretrained == f"{run}/pretrained.params"
    shutil.rmtree(prefix.rpartition("/")[0])
    again(run)
    assert run.plan() == before


@pytest.mark.slow
def test_plan_records_the_origin_of_the_weights(prepared, prefix):
    run = prepared("run", f"model.pretrained=symbol:{prefix}", "model.input=config")
    known = run.plan().origin
    sums = {f"{prefix}{end}": digest_of(f"{prefix}{end}") for end in ("-symbol.json", "-0000.params")}
    assert (known.kind, known.files) == ("symbol", sums)
    assert not [name for name in weights.load(run.path / "pretrained.params") if name.startswith("output.")]
    tags = description.pretrained_tags(run.plan())
    assert tags["pretrained.kind"] == "symbol" and set(tags["pretrained.sha256"].split()) == set(sums.values())
    assert tags["pretrained.input"] is None and description.pretrained_tags(Plan()) == {}


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["model.pretrained=symbol:/x", "model.name=small"],
            "model.name=small: model.pretrained=symbol:/x has the network symbol; set model.name=null",
        ),
        (["model.pretrained=zoo"], "model.name=null: name a network"),
        (["model.pretrained=null", "model.name=symbol"], "model.pretrained=symbol:PREFIX"),
    ],
)
def test_model_name_must_fit_the_source(words, message):
    assert message in error_of(lambda: settings.resolve(composed("finetune", *words)))


# ---------------------------------------------------------------- the input of the weights

OWN = {"image_size": 288, "mean": [1.0, 2.0, 3.0], "std": [4.0, 5.0, 6.0], "interpolation": "bicubic", "crop": 0.95}


def adopted(stated, **data):
    return pretrained_init.adopted_input(Config(data=Data(**data)), stated)


def test_input_of_the_weights_is_adopted_and_recorded():
    found = adopted(OWN, image_size=224, eval_resize=256, pack_short_side=256)
    assert found.taken == {
        **{key: OWN[key] for key in ("image_size", "mean", "std", "interpolation")},
        "eval_resize": 303,  # 288 / 0.95
        "pack_short_side": 303,
    }
    sizes = {"image_size": 224, "eval_resize": 256, "pack_short_side": 256}
    assert found.instead == {**sizes, "mean": Data().mean, "std": Data().std, "interpolation": "bilinear"}


def test_sizes_keep_their_ratio_to_the_image_size():
    data = {"image_size": 224, "eval_resize": 256, "pack_short_side": 480}
    larger = {"image_size": 448, "eval_resize": 512, "pack_short_side": 512}
    assert adopted({"image_size": 448}, **data).taken == larger
    assert adopted({"image_size": 112}, **data).taken == {"image_size": 112, "eval_resize": 128}
    small = {"image_size": 64, "eval_resize": 256, "pack_short_side": 64}
    assert adopted({}, **small) == InputChange()
    assert adopted({"mean": [0.0] * 3}, **small).taken == {"mean": [0.0] * 3}


def test_unsupported_interpolation_is_refused():
    with pytest.raises(ConfigError, match=r"interpolation random is not supported \(bilinear, bicubic"):
        adopted({"interpolation": "random"})


@pytest.mark.slow
def test_effective_config_keeps_resume_auto_working(prepared, prefix, tmp_path):
    words = ["name=run", f"model.pretrained=symbol:{prefix}", "data.image_size=40"]
    run = prepared("run", *words)
    config = run.config()
    assert (config.data.image_size, config.data.mean, config.data.std) == (224, [0.0] * 3, [1.0] * 3)
    assert run.requested_config().data.image_size == 40 and run.requested_config().data.mean == [78.85] * 3
    assert run.plan().input.instead["image_size"] == 40
    assert settings.unfinished_run_of(run.requested_config()).path == run.path
    merged = settings.merge_for_resume(
        run, directory.to_dict(run.requested_config()), ["data.image_size=40", "epochs=20"]
    )
    assert merged.data == config.data  # the same overrides again mean the same run
    with pytest.raises(ConfigError, match=r"that run has data\.image_size=40"):
        settings.merge_for_resume(run, {"data": {"image_size": 224}}, ["data.image_size=224"])


@pytest.mark.slow
def test_input_of_a_run_is_adopted(prepared, prefix):
    own = ["data.image_size=40", "data.mean=[9,9,9]", "model.input=config"]
    first = prepared("first", f"model.pretrained=symbol:{prefix}", "max_steps=1", *own)
    finished(first, trained(first))
    for way, mean, size in (("checkpoint", 9, 40), ("normalisation", 9, 32), ("config", 78.85, 32)):
        later = prepared("later", f"model.pretrained={first}", f"model.input={way}")
        assert (later.config().data.mean, later.config().data.image_size) == ([mean] * 3, size)


def test_a_typed_image_size_is_kept():
    values = to_dict(Config())
    for overrides, way in ((["data.image_size=32"], "normalisation"), (["data=digits"], "checkpoint")):
        config, _, _ = settings.configure(values, overrides)
        assert config.model.input == way


# ---------------------------------------------------------------- freezing by stages


@pytest.mark.parametrize(
    "name, stage, frozen",
    [
        ("small", "stage2", ["features.0.", "features.1.", "features.3.", "features.4."]),
        ("resnet18_v2", "stage1", ["features.0.", "features.1.", "features.2.", "features.5."]),
    ],
)
def test_frozen_stages_do_not_change(name, stage, frozen):
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


def test_network_without_stages_lists_what_can_be_frozen():
    with pytest.raises(ConfigError, match=r"^model.freeze=stage1: expected one of none, features with this network$"):
        zoo.freeze(zoo.build("mobilenet0.25", 3), "stage1")
    with pytest.raises(ConfigError, match="stage4: expected one of none, features, stage1, stage2, stage3 with"):
        zoo.freeze(zoo.build("small", 3), "stage4")


def test_amp_with_a_graph_is_refused():
    config = from_dict({"precision": "amp", "model": {"name": "symbol"}})
    with pytest.raises(ConfigError, match=r"^precision=amp: .*use precision=float32 or float16$"):
        prepare.check_settings(config, None)


# ---------------------------------------------------------------- the published fine-tuning


@pytest.mark.slow
def test_published_fine_tuning_runs_end_to_end(cli, tmp_path):
    """ResNet-50 in place of 152, with random weights and the published head of 11,221 classes, on a small archive."""
    prefix = classic.save(classic.resnet(classic.UNITS[50], classes=11221, width=64), tmp_path / "resnet-50")
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
