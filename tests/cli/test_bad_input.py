"""Invalid settings, weights and images end before the first step with exit 2, one line and no new run directory."""

import os
import re

import mxnet as mx
import pytest
from composed import composed
from image_trees import make_tree
from machine import mounted
from refusals import command_error, contains, error_of, folder_of

from mxscale.config.schema import Config, Launch
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Host, Plan
from mxscale.rundir.status import FINISHED, KILLED
from mxscale.train import prepare
from mxscale.util.errors import ConfigError


@pytest.mark.parametrize(
    "override, words",
    [
        ("optimzer=sgd", ["unknown key optimzer", "did you mean optimizer?"]),
        ("optimizer.lrr=1", ["unknown key optimizer.lrr", "did you mean optimizer.lr?"]),
        ("+foo=1", ["unknown key foo", "expected one of", "batch"]),
        ("++data.rot=1", ["unknown key data.rot", "did you mean data.root?"]),
        ("data=flower", ["data=flower", "expected one of", "digits", "imagefolder"]),
        pytest.param(f"data={'x' * 300}", ["error: data=xxx", "expected one of"], id="long"),
        ("comm=dist_sync", ["comm=dist_sync: that is MXNet's name of a kvstore; use comm=parameter_server"]),
        ("model=resnet50_v1x", ["did you mean resnet50_v1"]),
        ("experiment=nonsense", ["experiment=nonsense"]),
        ("debug=nonsense", ["debug=nonsense"]),
        ("name=${oc.env:NOSUCH}", ["name: ", "Environment variable 'NOSUCH' not found"]),
        ("name=${nosuch:x}", ["name: Unsupported interpolation type nosuch"]),
        ("optimizer=[1]", ["error: optimizer=[1]: expected the name of a choice of the group"]),
        ("budget=[1]", ["budget=[1]", "a group of settings"]),
        ("data=3", ["error: data=3: expected the name of a choice of the group"]),
        ("data@x=3", ["error: data@x=3: expected the name of a choice of the group"]),
        ("data={rot:/x}", ["data={rot:/x}", "expected the name of a choice of the group"]),
        ("batch=8", ["batch=8", "a group of settings"]),
        ("launch.hosts=a:4,b:4", ["'launch.hosts=[a:4,b:4]'"]),
        ("launch.ranks=1,2,4", ["'launch.ranks=[1,2,4]'", "-m"]),
        ("~/x", ["~/x", "KEY=VALUE"]),
        ("epochs", ["epochs", "KEY=VALUE"]),
        ("data.mean=[1,2", ["data.mean=[1,2", "'data.mean=[a,b]'"]),
        ("data.root=/a=b", ["""'data.root="/a=b"'"""]),
        ("~data.root", ["data.root=null"]),
        ("epochs=${oops}", ["oops"]),
        ("--epochs=3", ["--epochs=3", "KEY=VALUE"]),
        ("launch.ranks=${data.root}", ["launch.ranks"]),
    ],
)
def test_errors_of_hydra_are_one_line_with_a_suggestion(refused_here, override, words):
    contains(refused_here(override), *words)


@pytest.mark.parametrize(
    "override, words",
    [
        ("claims=[finetune-costs]", ["finetune-costs", "did you mean finetune-cost?"]),
        ("optimizer.lr=1e-320", ["optimizer.lr=1e-320", "1.2e-38"]),
        ("optimizer.clip_gradient=1e300", ["optimizer.clip_gradient=1e+300", "3.4e38"]),
        ("data.std=[1e-300,1,1]", ["data.std=1e-300", "1.2e-38"]),
        ("data.eval_resize=100000", ["data.eval_resize=100000", "from 8 to 4096"]),
        ("data.augment.pad=100000", ["data.augment.pad=100000", "from 0 to 4096"]),
        ("data.root=/photos", ["data.root=/photos: data=digits reads no files; add data=imagefolder or data=recordio"]),
        ("runs=''", ["runs=: expected a folder"]),
        ("runs=-x", ["runs=-x: expected a folder", "./-x"]),
        ("data.cache=''", ["data.cache=: expected a folder"]),
        ("hydra.run.dir=x", ["hydra.run.dir=x", "set runs=DIR"]),
        ("hydra.sweep.dir=x", ["hydra.sweep.dir=x", "set runs=DIR"]),
        ("machine=aws", ["machine.instance is missing", "p3.16xlarge"]),
        ("tracking.uri=/tmp/x", ["tracking.uri=/tmp/x", "sqlite:///FILE.db"]),
        ("model.pretrained=latest", ["model.pretrained=latest", "no finished training run"]),
        ("model.pretrained=/nowhere.params", ["model.pretrained=/nowhere.params", "no such file"]),
        ("resume=/nowhere", ["resume=/nowhere", "no run directory", "DATE_TIME"]),
    ],
)
def test_invalid_value_is_named_with_what_is_expected(refused_here, override, words):
    enabled = ["tracking=mlflow"] if "tracking" in override else []
    contains(refused_here(*enabled, override), *words)


def test_runs_folder_below_a_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("")
    contains(refused(f"runs={tmp_path}/file/x"), f"runs={tmp_path}/file/x", "set runs=DIR")
    contains(refused(f"runs={tmp_path}/file/x", "epochs=1,2", "-m"), f"{tmp_path}/file/x", "set runs=DIR")


def test_read_only_runs_folder_is_refused(refused, tmp_path):
    with mounted(tmp_path / "disk", "size=1m,ro") as folder:
        contains(refused(f"runs={folder}"), "can't write", "Read-only", "set runs=DIR")


def test_runs_folder_on_a_full_disk_is_refused(refused, tmp_path):
    with mounted(tmp_path / "disk", "size=64k") as folder:
        with pytest.raises(OSError):
            (folder / "full").write_bytes(bytes(2**20))
        contains(refused(f"runs={folder}"), "can't write", "No space left", "set runs=DIR")


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="there is a GPU")
@pytest.mark.parametrize(
    "override, words",
    [
        ("precision=amp", ["precision=amp needs a GPU", "precision=float32"]),
        ("launch.device=gpu", ["launch.device=gpu", "no GPU", "launch.device=cpu"]),
    ],
)
def test_settings_that_need_a_gpu_are_refused_without_one(unprepared, override, words):
    contains(unprepared(override), *words)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    assert prepare.choose_ranks(Config(launch=Launch(ranks=2))) == 2
    with pytest.raises(ConfigError, match=r"launch.ranks=3: 3 on this machine, which has 2 GPUs"):
        prepare.choose_ranks(Config(launch=Launch(ranks=3)))
    hosts = [Host("a", 3, "a", here=True), Host("b", 3, "b")]
    with pytest.raises(ConfigError, match=r"launch.ranks=auto: 3 on this machine, which has 2 GPUs"):
        prepare.choose_ranks(Config(), hosts)
    assert prepare.choose_ranks(Config(launch=Launch(ranks=2)), hosts) == 2


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["model.name=resnet51_v1b"], ["model.name=resnet51_v1b", "did you mean resnet50_v1b?"]),
        (["model.name=inceptionv3"], ["data.image_size=32", "at least 75"]),
        (["optimizer.name=sdg"], ["optimizer.name=sdg", "did you mean sgd?"]),
        (["optimizer.params.foo=1"], ["optimizer.name=nag", "foo"]),
        (["optimizer.name=adam"], ["momentum", "optimizer.momentum=null"]),
    ],
)
def test_invalid_network_or_optimizer_is_refused_before_packing(unprepared, tmp_path, overrides, words):
    contains(unprepared(*overrides, f"data.cache={tmp_path}/fresh"), *words)
    assert not (tmp_path / "fresh").exists()


def test_image_size_too_small_for_the_network_is_refused():
    config = composed("train", "model.name=squeezenet1.1", "data.image_size=24")
    with pytest.raises(ConfigError, match=r"^data.image_size=24 does not fit model.name=squeezenet1.1: .+") as error:
        prepare.check_network(config, Plan(classes=2, head="keep"))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_corrupt_weights_are_refused(refused, tmp_path):
    (tmp_path / "bad.params").write_bytes(b"\x12\x01" + bytes(100))
    contains(refused(f"model.pretrained={tmp_path}/bad.params"), "bad.params", "truncated or corrupt")


def test_weights_of_another_network_are_listed(unprepared, tmp_path):
    file = str(tmp_path / "other.params")
    mx.nd.save(file, {"features.0.weight": mx.nd.zeros((7, 3, 3, 3)), "strange": mx.nd.zeros((1,))})
    error = unprepared(f"model.pretrained={file}")
    contains(error, file, "features.0.weight (7, 3, 3, 3) in the file", "unexpected strange")


def test_missing_symbol_network_is_refused_before_packing(unprepared, tmp_path):
    words = ["model.name=symbol", f"model.pretrained=symbol:{tmp_path}/net", f"data.cache={tmp_path}/fresh"]
    error = unprepared(*words, entry="finetune")
    contains(error, f"{tmp_path}/net-symbol.json", "PREFIX-symbol.json and PREFIX-0000.params")
    assert not (tmp_path / "fresh").exists()


def test_folder_without_a_run_has_no_weights(refused, tmp_path):
    contains(refused(f"model.pretrained={tmp_path}", entry="finetune"), f"{tmp_path}", "no run directory")


@pytest.mark.slow
def test_unreadable_image_is_refused_with_its_path(refused, tmp_path):
    root = make_tree(tmp_path / "photos", {"cat": 6, "dog": 6})
    (root / "dog" / "003.png").write_bytes(b"no image")
    contains(refused(*folder_of(root)), os.path.join("dog", "003.png"), "data.on_bad=skip")


@pytest.fixture
def stopped(cli, tmp_path):
    """Return (run, root) of a run on a folder of images that stopped before its first checkpoint."""
    root = make_tree(tmp_path / "photos", {"cat": 12, "dog": 12})
    settings = folder_of(root, f"runs={cli.folder}", f"data.cache={cli.cache}", "launch.ranks=1", "batch.per_device=4")
    run = directory.create(composed("train", *settings))
    prepare.prepare(run, run.config())
    run.write("status.json", {"state": KILLED, "attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 1}]})
    run.write("ranks/0.json", {"attempt": 1, "state": "interrupted", "exit": 75})
    return run, root


def everything(run: RunDir):
    passing = ("alive", "stop", "lock", "refused.json")
    return {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name not in passing}


@pytest.mark.parametrize(
    "override, words",
    [
        ("model.name=resnet18_v1b", ["model.name=resnet18_v1b", "model.name=small", "start a new run"]),
        ("data=digits", ["data=digits", "start a new run"]),
        ("optimizer.lr=1", ["optimizer.lr=1", "leave it out"]),
        ("launch.ranks=1 machine=aws", ["machine=aws", "that run has machine.provider=local"]),
    ],
)
def test_resume_with_another_config_changes_nothing(refused_here, stopped, override, words):
    run, _ = stopped
    before = everything(run)
    contains(refused_here(f"resume={run}", *override.split()), *words)
    assert everything(run) == before


@pytest.mark.slow
def test_resume_with_changed_data_changes_nothing(refused, stopped):
    run, root = stopped
    (root / "cat" / "000.png").unlink()
    before = everything(run)
    contains(refused(f"resume={run}"), f"resume={run}", "the data differ", "start a new run")
    assert everything(run) == before
    assert run.read("status.json")["state"] == KILLED


def test_finished_run_is_not_resumed(refused_here, tmp_path):
    run = directory.create(Config(runs=str(tmp_path / "done")))
    run.write("status.json", {"state": FINISHED, "attempts": []})
    contains(refused_here(f"resume={run}"), "that run is finished")


@pytest.mark.parametrize("text", ["", "epochs: [", "epochs: many", "- 1"])
def test_run_with_damaged_config_is_not_resumed(refused_here, tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    assert re.search(r"no run directory|epochs|is damaged", refused_here(f"resume={tmp_path}"))


@pytest.mark.slow
def test_sweep_continues_after_a_refused_cell_and_skips_images(cli, tmp_path):
    root = make_tree(tmp_path / "photos", {"cat": 20, "dog": 20})
    (root / "dog" / "003.png").write_bytes(b"")
    ended = cli("train", *folder_of(root, "data.on_bad=skip"), "tracking=none", "max_steps=1", "launch.ranks=1",
                "batch.per_device=4", "optimizer.lr=-1,0.1", "-m", small=False, expect=2)  # fmt: skip
    errors = [line for line in ended.err.splitlines() if line.startswith("error")]
    assert errors == ["error: optimizer.lr=-1.0: expected at least 0"]
    assert (ended.run.config().optimizer.lr, ended.status["state"]) == (0.1, "FINISHED")
    plan = ended.run.plan()
    assert "1 bad images skipped" in ended.out and plan.skipped == 1
    assert sum(split.count for split in plan.splits.values()) == 39


@pytest.mark.parametrize("command", [["train"], ["train", "-m"], ["plan"], ["test-io"]])
@pytest.mark.parametrize("deleted", ["~sweep.resume", "~budget", "~rerun", "~experiment"])
def test_a_setting_is_not_deleted(capsys, command, deleted):
    expected = f"error: {deleted}: a setting can't be deleted; give KEY=VALUE, such as {deleted[1:]}=null"
    assert command_error(capsys, *command, deleted).startswith(expected)


@pytest.mark.slow
def test_unknown_choice_in_a_sweep_is_refused_before_cells(refused):
    contains(refused("data=digits,flower", "-m"), "data=flower", "expected one of", "digits")


def test_cfg_job_prints_the_settings(cli):
    assert "per_device: 32" in cli("train", "--cfg", "job", small=False).out


def test_loop_of_links_is_no_run_directory(refused_here, tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    contains(refused_here(f"resume={tmp_path / 'a'}"), "can't be read: too many levels of symbolic links")
    contains(refused_here(f"resume={tmp_path}/{'x' * 300}"), "can't be read: file name too long")


def test_unreadable_run_is_one_line(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        line = error_of(lambda: RunDir(folder).exists)
    finally:
        os.seteuid(user)
    contains(line, str(folder), "can't be read: permission denied")


@pytest.mark.parametrize("key", ["runs", "data.cache"])
def test_folder_that_files_can_not_name_is_refused(refused_here, key):
    contains(refused_here(f'{key}="/tmp/\udcff"'), f"{key}=/tmp/", "UTF-8")


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a [1]\nb: [*a, *a]\n"])
def test_an_alias_in_a_record_is_refused(tmp_path, text):
    (tmp_path / "overrides.yaml").write_text(text)
    line = error_of(lambda: RunDir(tmp_path).read_yaml("overrides.yaml"))
    contains(line, "overrides.yaml is damaged: it has an alias")
