"""Bad input ends before the first step: exit 2, one line that says what, where and what to do, nothing left behind."""

import os
import re
import shutil
import subprocess
from functools import partial

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from PIL import Image
from records import make_records

from mxscale.config.schema import Config, Launch
from mxscale.launcher import setup
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan
from mxscale.train import prepare
from mxscale.util.errors import ConfigError

PACKED = re.compile(r"imagefolder: \d+ classes|digits: \d+ classes")  # news, no error


def refusal(cli, *overrides, entry="train"):
    """Run a command that must be refused; its one line on stderr."""
    there = run_directories(cli.folder)
    ended = cli(entry, "tracking=none", *overrides, expect=2, small=False, timeout=60)
    lines = [line for line in ended.err.splitlines() if not PACKED.match(line)]
    assert len(lines) == 1 and lines[0].startswith("error: "), ended.err
    assert run_directories(cli.folder) == there
    return lines[0]


@pytest.fixture
def refused(cli):
    return partial(refusal, cli)


@pytest.fixture
def unprepared(tmp_path, data_cache):
    """The same of the preparation alone, in this process: starting one costs two seconds."""

    def prepared(*overrides, entry="train"):
        config = composed(entry, f"runs={tmp_path}/runs", f"data.cache={data_cache}", *overrides)
        run = directory.create(config)
        run.write_plan(Plan(pretrained=setup.pretrained_file(config)))
        with pytest.raises(ConfigError) as raised:
            prepare.prepare(run, config)
        assert len(str(raised.value).splitlines()) == 1
        return str(raised.value)

    return prepared


def run_directories(folder):
    return sorted(folder.glob("*/*_*"))


def says(line, *words):
    missing = [word for word in words if word not in line]
    assert not missing, f"{line!r} lacks {missing}"


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "override, words",
    [
        ("optimzer=sgd", ["unknown key optimzer", "did you mean optimizer?"]),
        ("optimizer.lrr=1", ["unknown key optimizer.lrr", "did you mean optimizer.lr?"]),
        ("+foo=1", ["unknown key foo", "expected one of", "batch"]),
        ("++data.rot=1", ["unknown key data.rot", "did you mean data.root?"]),
        ("data=flower", ["data=flower", "expected one of", "digits", "imagefolder"]),
        ("comm=dist_sync", ["comm=dist_sync: that is MXNet's name of a kvstore; use comm=parameter_server"]),
        ("model=resnet50_v1x", ["did you mean resnet50_v1"]),
        ("experiment=nonsense", ["experiment=nonsense"]),
        ("debug=nonsense", ["debug=nonsense"]),
        ("data=3", ["data=3", "expected the name of a choice of the group"]),
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
def test_what_hydra_refuses_is_one_line_with_the_right_spelling(refused, override, words):
    says(refused(override), *words)


@pytest.mark.parametrize(
    "override, words",
    [
        ("optimizer.lr=-1", ["optimizer.lr=-1", "at least 0"]),
        ("optimizer.lr=nan", ["optimizer.lr=nan"]),
        ("optimizer.lr=fast", ["optimizer.lr=fast", "a number"]),
        ("batch.per_device=0", ["batch.per_device=0", "at least 1"]),
        ("launch.ranks=0", ["launch.ranks=0", "at least 1"]),
        ("launch.ranks=two", ["launch.ranks=two", "auto"]),
        ("epochs=-1", ["epochs=-1", "at least 1"]),
        ("epochs=1.5", ["epochs=1.5", "a whole number"]),
        ("precision=float8", ["precision=float8", "did you mean float"]),
        ("name=a/b", ["name=a/b"]),
        ("claims=[finetune-costs]", ["finetune-costs", "did you mean finetune-cost?"]),
        ("data=imagefolder", ["data.root is missing", "DIR/<class>/<image>.jpg"]),
        ("data=recordio", ["data.train", "FILE.rec"]),
        ("tracking.uri=/tmp/x", ["tracking.uri=/tmp/x", "sqlite:///FILE.db"]),
        ("model.pretrained=latest", ["model.pretrained=latest", "run train.py first"]),
        ("model.pretrained=/nowhere.params", ["model.pretrained=/nowhere.params", "no such file"]),
        ("resume=/nowhere", ["resume=/nowhere", "no run directory", "DATE_TIME"]),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(refused, override, words):
    enabled = ["tracking=mlflow"] if "tracking" in override else []
    says(refused(*enabled, override), *words)


@pytest.mark.parametrize(
    "override, words",
    [
        ("machine.instance=p3.15xlarge", ["machine.instance=p3.15xlarge", "did you mean"]),
        ("machine.region=mars", ["machine.region=mars", "eu-west-1"]),
        ("machine.as_of=2003-01-01", ["machine.as_of=2003-01-01", "2017-11-12"]),
        ("machine.as_of=yesterday", ["machine.as_of=yesterday", "such as 2017-11-12"]),
    ],
)
def test_an_unknown_price_is_refused_with_those_that_are_known(refused, override, words):
    says(refused("machine=aws", "machine.instance=p3.16xlarge", "machine.region=eu-west-1", override), *words)


# ---------------------------------------------------------------- where runs are written


def test_a_runs_folder_below_a_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("")
    says(refused(f"runs={tmp_path}/file/x"), f"runs={tmp_path}/file/x", "set runs=DIR")
    says(refused(f"runs={tmp_path}/file/x", "epochs=1,2", "-m"), f"{tmp_path}/file/x", "set runs=DIR")


@pytest.fixture
def mounted(tmp_path):
    """mounted(options) -> a small tmpfs."""
    folder = tmp_path / "mounted"
    folder.mkdir()

    def mount(options):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True).returncode:
            pytest.skip("mounting is not allowed here")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True)


def test_a_read_only_runs_folder_is_refused(refused, mounted):
    says(refused(f"runs={mounted('size=1m,ro')}"), "can't write", "Read-only", "set runs=DIR")


def test_a_full_runs_folder_is_refused(refused, mounted):
    folder = mounted("size=64k")
    with pytest.raises(OSError):
        (folder / "full").write_bytes(bytes(2**20))
    says(refused(f"runs={folder}"), "can't write", "No space left", "set runs=DIR")


# ---------------------------------------------------------------- the machine and the network


@pytest.mark.skipif(mx.context.num_gpus() > 0, reason="there is a GPU")
@pytest.mark.parametrize(
    "override, words",
    [
        ("precision=amp", ["precision=amp needs a GPU", "precision=float32"]),
        ("launch.device=gpu", ["launch.device=gpu", "no GPU", "launch.device=cpu"]),
    ],
)
def test_what_needs_a_gpu_says_so_without_one(unprepared, override, words):
    says(unprepared(override), *words)


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    assert prepare.choose_ranks(Config(launch=Launch(ranks=2))) == 2
    with pytest.raises(ConfigError, match=r"launch.ranks=3 is more than the 2 GPUs here"):
        prepare.choose_ranks(Config(launch=Launch(ranks=3)))


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
def test_a_network_or_optimizer_that_can_not_be_made_is_refused_before_any_packing(
    unprepared, tmp_path, overrides, words
):
    says(unprepared(*overrides, f"data.cache={tmp_path}/fresh"), *words)
    assert not (tmp_path / "fresh").exists()


def test_an_image_that_runs_out_within_the_network_is_refused_with_its_size():
    config = composed("train", "model.name=squeezenet1.1", "data.image_size=24")
    with pytest.raises(ConfigError, match=r"^data.image_size=24 does not fit model.name=squeezenet1.1: .+") as error:
        prepare.check_network(config, 2, Plan())
    assert "\n" not in str(error.value)


def test_a_batch_beyond_the_training_set_is_refused_with_the_largest_that_fits(refused):
    says(refused("batch.per_device=1000", "launch.ranks=2"), "2000", "541 training images", "at most 270")


# ---------------------------------------------------------------- pretrained weights


def test_a_corrupt_file_of_weights_is_refused(refused, tmp_path):
    (tmp_path / "bad.params").write_bytes(b"\x12\x01" + bytes(100))
    says(refused(f"model.pretrained={tmp_path}/bad.params"), "bad.params", "truncated or corrupt")


def test_weights_that_do_not_fit_are_refused_with_names_and_shapes(unprepared, tmp_path):
    file = str(tmp_path / "other.params")
    mx.nd.save(file, {"features.0.weight": mx.nd.zeros((7, 3, 3, 3)), "strange": mx.nd.zeros((1,))})
    says(unprepared(f"model.pretrained={file}"), file, "features.0.weight (7,3,3,3) in the file", "unexpected strange")


def test_a_symbol_network_that_is_not_there_is_refused_before_any_packing(unprepared, tmp_path):
    words = ["model.name=symbol", f"model.pretrained=symbol:{tmp_path}/net", f"data.cache={tmp_path}/fresh"]
    says(
        unprepared(*words, entry="finetune"), f"{tmp_path}/net-symbol.json", "PREFIX-symbol.json and PREFIX-0000.params"
    )
    assert not (tmp_path / "fresh").exists()


def test_a_folder_that_is_no_run_has_no_weights(refused, tmp_path):
    says(refused(f"model.pretrained={tmp_path}", entry="finetune"), f"{tmp_path}", "no run directory")


# ---------------------------------------------------------------- a folder of images


def photos_in(root, classes, side=16):
    """{"cat": 6, ...} -> root/<class>/<n>.png of side x side pixels; the root."""
    random = np.random.RandomState(0)
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for n in range(count):
            pixels = random.randint(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{n}.png")
    return root


@pytest.fixture
def photos(tmp_path):
    return partial(photos_in, tmp_path / "photos")


def folder_of(root, *overrides):
    return ["data=imagefolder", f"data.root={root}", "data.image_size=16", "data.pack_short_side=16", *overrides]


def test_a_root_that_is_missing_or_empty_is_refused(unprepared, tmp_path):
    says(unprepared(*folder_of(tmp_path / "nowhere")), f"data.root={tmp_path}/nowhere", "no such directory")
    (tmp_path / "empty").mkdir()
    says(unprepared(*folder_of(tmp_path / "empty")), "has no images", "<class>/<image>.jpg")


def test_a_class_without_images_is_refused(unprepared, photos):
    says(unprepared(*folder_of(photos({"cat": 6, "dog": 6, "owl": 0}))), "class owl has no images")


def test_train_and_val_with_different_classes_are_refused(unprepared, photos):
    root = photos({"train/cat": 3, "train/dog": 3, "val/cat": 3, "val/owl": 3})
    says(unprepared(*folder_of(root)), "different classes", "only in train/: dog", "only in val/: owl")


def test_an_unreadable_image_is_refused_by_its_path(refused, photos):
    root = photos({"cat": 6, "dog": 6})
    (root / "dog" / "3.png").write_bytes(b"no image")
    says(refused(*folder_of(root)), os.path.join("dog", "3.png"), "data.on_bad=skip")


def test_images_smaller_than_the_network_sees_are_refused(unprepared, photos):
    line = unprepared(*folder_of(photos({"cat": 6, "dog": 6}, side=12)))
    says(line, "cat/0.png", "12x12 pixels, smaller than 16", "data.min_side", "11 other images")


# ---------------------------------------------------------------- records


@pytest.fixture
def records(tmp_path):
    """train.rec and val.rec of six 16x16 images in two classes."""
    images = np.random.RandomState(0).randint(0, 256, (6, 16, 16, 3))
    for name, own in (("train", images), ("val", 255 - images)):
        make_records(tmp_path, own, [0, 1] * 3, name)
    return tmp_path


def recordio(folder, *overrides):
    return ["data=recordio", f"data.train={folder}/train.rec", f"data.val={folder}/val.rec", "data.image_size=16",
            *overrides]  # fmt: skip


def test_records_that_are_missing_empty_or_cut_off_are_refused(unprepared, records):
    whole = (records / "train.rec").read_bytes()
    for content, word in ((whole[:-7], "create it again with im2rec"), (b"", "no records"), (None, "no such file")):
        (records / "train.rec").unlink()
        if content is not None:
            (records / "train.rec").write_bytes(content)
        says(unprepared(*recordio(records)), f"data.train={records}/train.rec", word)


def test_the_index_of_other_records_is_refused(refused, records):
    make_records(records, np.zeros((4, 16, 16, 3)), [0, 1, 0, 1], "other")
    shutil.copy(records / "other.idx", records / "train.idx")
    says(refused(*recordio(records)), "train.idx is the index of another file", "remove it")


def test_labels_outside_the_classes_are_refused(unprepared, records):
    make_records(records, np.zeros((2, 16, 16, 3)), [0, 5], "val")
    says(unprepared(*recordio(records)), "val.rec", "label 5 is outside", "(0 to 1)")


# ---------------------------------------------------------------- resume


@pytest.fixture
def stopped(cli, photos):
    """A run on a folder of images that was stopped before its first checkpoint: (run, root)."""
    root = photos({"cat": 12, "dog": 12})
    settings = folder_of(root, f"runs={cli.folder}", f"data.cache={cli.cache}", "launch.ranks=1", "batch.per_device=4")
    run = directory.create(composed("train", *settings))
    prepare.prepare(run, run.config())
    run.write("status.json", {"state": directory.KILLED, "attempts": [{"attempt": 1, "started_ms": 0, "ended_ms": 1}]})
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
def test_a_resume_that_would_be_another_run_is_refused_and_changes_nothing(refused, stopped, override, words):
    run, _ = stopped
    before = everything(run)
    says(refused(f"resume={run}", *override.split()), *words)
    assert everything(run) == before


def test_a_resume_with_changed_data_is_refused_and_changes_nothing(refused, stopped):
    run, root = stopped
    (root / "cat" / "0.png").unlink()
    before = everything(run)
    says(refused(f"resume={run}"), f"resume={run}", "the data differ", "start a new run")
    assert everything(run) == before
    assert run.read("status.json")["state"] == directory.KILLED


def test_a_finished_run_is_not_resumed(refused, tmp_path):
    run = directory.create(Config(runs=str(tmp_path / "done")))
    run.write("status.json", {"state": directory.FINISHED, "attempts": []})
    says(refused(f"resume={run}"), "that run is finished")


@pytest.mark.parametrize("text", ["", "epochs: [", "epochs: many", "- 1"])
def test_a_run_whose_config_is_damaged_is_not_resumed(refused, tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    assert re.search(r"no run directory|epochs", refused(f"resume={tmp_path}"))


# ---------------------------------------------------------------- sweeps


@pytest.fixture(scope="module")
def swept(shared_cli, tmp_path_factory):
    """Two cells, the first refused, on a folder with an image that can't be read: (what was printed, the run)."""
    root = photos_in(tmp_path_factory.mktemp("swept"), {"cat": 20, "dog": 20})
    (root / "dog" / "3.png").write_bytes(b"")
    ended = shared_cli("train", *folder_of(root, "data.on_bad=skip"), "tracking=none", "max_steps=1", "launch.ranks=1",
                       "batch.per_device=4", "optimizer.lr=-1,0.1", "-m", small=False, expect=2)  # fmt: skip
    return ended


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_refused_cell_and_ends_with_the_worst_status(swept):
    errors = [line for line in swept.err.splitlines() if line.startswith("error")]
    assert errors == ["error: optimizer.lr=-1.0: expected at least 0"]
    assert swept.run.config().optimizer.lr == 0.1
    assert swept.status["state"] == "FINISHED"


@pytest.mark.slow
def test_skipped_images_are_counted_in_the_terminal_and_in_the_record(swept):
    plan = swept.run.plan()
    assert "1 bad images skipped" in swept.out
    assert plan.skipped == 1
    assert sum(split.count for split in plan.splits.values()) == 39


def test_an_unknown_choice_anywhere_in_a_sweep_is_refused_before_its_first_cell(refused):
    says(refused("data=digits,flower", "-m"), "data=flower", "expected one of", "digits")


def test_runs_of_one_second_get_a_directory_each(tmp_path):
    made = [directory.create(Config(runs=str(tmp_path)), now=0.0) for _ in range(3)]
    assert len({run.path for run in made}) == 3


def test_options_that_only_show_something_end_well(cli):
    assert "per_device: 32" in cli("train", "--cfg", "job", small=False).out
