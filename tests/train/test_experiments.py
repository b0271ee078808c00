"""Every file under conf/ composes with its entry; every experiment and debug config runs a step."""

import dataclasses
import os
import re
import shlex
import shutil
from pathlib import Path

import classic
import made_sets
import numpy as np
import pytest
from again import rerun_of, train
from composed import composed
from PIL import Image
from records import make_records
from repository import ROOT
from run_files import last

from mxscale.cli import main, settings
from mxscale.launcher import setup
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.rundir.status import FINISHED

CONF = ROOT / "conf"
ENTRIES = ("train", "finetune")
GROUPS = sorted(p.relative_to(CONF).with_suffix("") for p in CONF.glob("*/*.yaml") if p.parent.name != "recipe")

# Settings that a choice requires
FOLDER, RECORDS = ["data.root=/x"], ["data.train=/x.rec", "data.val=/y.rec"]
NEEDED = {
    "data/imagefolder": FOLDER,
    "data/recordio": RECORDS,
    "experiment/aws_horovod": RECORDS,
    "experiment/aws_parameter_server": RECORDS,
    "experiment/chainermn_double_buffering": RECORDS,
    "experiment/imagenet_goyal": RECORDS,
    "experiment/chainermn_in15": RECORDS,
    "experiment/cifar10_images": FOLDER,
}


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("choice", map(str, GROUPS))
def test_every_choice_composes_to_a_valid_config(choice, entry):
    group, name = choice.split("/")
    config = composed(entry, f"{group}={name}", *NEEDED.get(choice, []))
    assert config.entry == entry or group == "experiment"


def test_entries_differ_only_in_their_name():
    train, finetune = composed("train"), composed("finetune", "data=digits", "model=small", "model.pretrained=null")
    assert finetune == composed("train", "entry=finetune") != train


def test_fine_tuning_starts_from_weights_whatever_the_network():
    assert composed("finetune", "model=resnet18_v1b").model.pretrained == "latest"


@pytest.fixture
def given_files(tmp_path):
    """Return a folder with the small files that experiments need: images and records."""
    pixels = np.random.RandomState(0).randint(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    for n, image in enumerate(pixels):
        folder = tmp_path / "photos" / ("cat" if n % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{n}.png")
    for name, part in (("train", pixels[:6]), ("val", pixels[6:])):
        make_records(tmp_path, part, [0, 1, 2] * 2, name)
    return tmp_path


TINY = ["data.image_size=64", "data.pack_short_side=64", "batch.per_device=2"]


def caltech(folder):
    """Two classes of Caltech's archive, and a small network in the classic format; its own input would be 224."""
    prefix = classic.save(classic.resnet(), folder / "resnet")
    for name, content in made_sets.caltech256().items():
        (folder / name).write_bytes(content)
    words = [f"data.root={folder}", "data.checksum=first_use", "data.train_per_class=2"]
    return [*words, f"model.pretrained=symbol:{prefix}", "model.input=config", *TINY]


def imagenet(folder):
    """A folder of photographs in place of the archives."""
    return ["data=imagefolder", f"data.root={folder}/photos", "model=resnet18_v1b", *TINY]


def mnist(folder):
    """MNIST's idx files with a few digits."""
    for name, content in made_sets.mnist().items():
        (folder / name).write_bytes(content)
    return [f"data.root={folder}", "data.checksum=first_use", "batch.per_device=2", "comm.transport=gloo"]


def records(folder):
    return [f"data.train={folder}/train.rec", f"data.val={folder}/val.rec", *TINY]


CASES = {  # experiment -> (entry, overrides for a step within seconds)
    "adaltas_input": ("train", imagenet),
    "aws_mnist": ("train", mnist),
    "cifar10_images": ("train", lambda folder: [f"data.root={folder}/photos", "data.val_share=0.4", *TINY]),
    "digits": ("train", lambda folder: []),
    "large_batch_digits": ("train", lambda folder: []),
    "aws_horovod": ("train", lambda folder: [*records(folder), "precision=float32"]),  # amp takes a GPU
    "aws_parameter_server": ("train", lambda folder: [*records(folder), "precision=float32"]),
    "beeva_kvstore": ("finetune", caltech),
    "chainermn_double_buffering": ("train", records),
    "chainermn_in15": ("train", records),
    "imagenet_goyal": ("train", records),
    "beeva_caltech256": ("finetune", caltech),
}


COMPARISONS = {  # published comparison -> further overrides for two steps on two devices
    "aws_horovod": [],
    "aws_parameter_server": ["comm.servers=1"],
    "beeva_kvstore": ["epochs=2"],  # of a step
    "chainermn_double_buffering": [],
    "chainermn_in15": [],
}


def test_every_experiment_has_a_case():
    assert sorted(CASES) == sorted(p.stem for p in CONF.glob("experiment/*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - COMPARISONS.keys()))
def test_experiment_and_its_rerun_are_identical(name, given_files, data_cache):
    entry, own = CASES[name]
    overrides = [
        f"experiment={name}",
        "debug=one_step",
        *own(given_files),
        "launch.ranks=1",
        f"data.cache={data_cache}",
    ]
    run = ended_run(given_files / "run", composed(entry, *overrides), steps=1)
    assert last(run, "val/top1") >= 0
    again = rerun_of(run)
    assert (again["verdict"], again["differs"]) == ("identical", [])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMPARISONS))
def test_published_comparison_runs_with_its_back_end(name, given_files, cli):
    entry, own = CASES[name]
    two = ["debug=one_step", "max_steps=2", "launch.ranks=2", "launch.device=cpu"]
    ended = cli(entry, f"experiment={name}", *own(given_files), *two, *COMPARISONS[name], small=False)
    assert [line["step"] for line in ended.run.history() if "train/loss" in line["metrics"]] == [1, 2]
    assert ended.run.plan().sizes.ranks == 2 and last(ended.run, "val/top1") >= 0
    shipped, ran = composed(entry, f"experiment={name}", *NEEDED.get(f"experiment/{name}", [])), ended.run.config()
    wanted = dataclasses.replace(shipped.comm, servers=ran.comm.servers)
    assert ran.comm == wanted


def ended_run(path, config, steps):
    """Prepare and train in this process, which saves the imports; return the finished run."""
    path.mkdir()
    run = directory.RunDir(path)
    run.write_config(settings.resolve(config))
    run.save(Plan(pretrained=setup.pretrained_file(run.config())))
    status = train(run)
    assert (status.state, status.step) == (FINISHED, steps)
    return run


@pytest.mark.slow
def test_the_fast_debug_config_trains_two_epochs(tmp_path, data_cache):
    config = composed("train", "debug=fast", "launch.ranks=1", f"data.cache={data_cache}")
    ended_run(tmp_path / "run", config, steps=20)  # of 12 images of 120, twice


def test_every_debug_config_is_run_here():
    assert {p.stem for p in CONF.glob("debug/*.yaml")} == {"one_step", "fast"}


def commands():
    """Yield (entry, overrides) of each training command in README.md, docs/ and the headers of conf/.

    Of a sweep it is the first cell. Commands with an ellipsis are left out.
    """
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *CONF.glob("**/*.yaml")]
    texts = [path.read_text() for path in pages if path.exists()]
    complete = re.sub(r" *\\\n[# ]*", " ", "\n".join(texts))  # continued lines
    for entry, line in re.findall(r"^[# ]*(?:mxscale |python )(train|finetune)(?:\.py)?( .*)$", complete, re.MULTILINE):
        words = shlex.split(re.split(r" {3,}|\s#", line)[0])
        # tag(...) and hydra.* are Hydra's
        words = [main.canonical(word) for word in words if not word.startswith("hydra") and "=tag(" not in word]
        words = [word for word in words if word != "launch.hosts=hosts.txt"]  # a file of the user
        if "..." not in words:
            yield entry, tuple(word if "[" in word else word.split(",")[0] for word in words if "=" in word)


@pytest.mark.slow
@pytest.mark.parametrize("entry, overrides", sorted(set(commands())), ids=str)
def test_a_command_in_the_documents_composes(entry, overrides):
    composed(entry, *overrides)


@pytest.mark.slow
@pytest.mark.skipif("MNIST" not in os.environ, reason="the variable MNIST names no folder of the published files")
def test_published_digits_are_learnt_as_measured(cli, tmp_path):
    for file in Path(os.environ["MNIST"]).glob("*.gz"):
        shutil.copyfile(file, tmp_path / file.name)  # first_use writes checksums beside the files
    settings = ["experiment=aws_mnist", "claims=[]", "max_steps=100", "comm.transport=gloo", "tracking=none"]
    ended = cli("train", *settings, f"data.root={tmp_path}", "data.checksum=first_use", small=False)
    assert 91 < last(ended.run, "train/top1") < 96  # of batches 51 to 100; docs/published-works.md has five runs
