"""The examples of README and docs, as they are printed: command lines compose, code runs and computes what it shows."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import exported
import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from repository import PAGES, ROOT, name_of

from mxscale.cli import CONF, main
from mxscale.cli.verbs import VERBS, own_settings
from mxscale.config.schema import checked, from_dict
from mxscale.data.central_crop import CentralCrop

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )?(?:mxscale|python (?=train\.py|finetune\.py))\s*(.*)$", re.MULTILINE)
ENDS = {"|", "&", "&&", ";", ">", "<"}  # of a command, in a shell's grammar


def blocks(page: Path, language: str) -> list:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def commands(page: Path):
    """Yield the words after `mxscale` of each command line in the blocks of a page, without `...`."""
    for block in blocks(page, "") + blocks(page, "bash"):
        for line in COMMAND.findall(block.replace("\\\n", " ")):
            words = shlex.shlex(os.path.expandvars(line), posix=True, punctuation_chars=True)
            words.whitespace_split = True
            taken = []
            for word in words:
                if word in ENDS:
                    break
                taken.append(word.removesuffix(".py"))
            taken = [word for word in taken if word != "..."]
            if taken and taken[0] in VERBS:
                yield taken


GIVEN = [(page, words) for page in PAGES for words in commands(page)]


def test_the_pages_have_examples():
    assert len(GIVEN) > 60 and {words[0] for _, words in GIVEN} > {"train", "finetune", "plan", "predict", "evaluate"}


@pytest.mark.slow
@pytest.mark.parametrize("page, words", GIVEN, ids=[f"{name_of(page)}-{' '.join(words)}" for page, words in GIVEN])
def test_a_command_line_composes_as_printed(page, words):
    name, *arguments = words
    settings = main.overrides(VERBS[name], name, main.Options().parse_intermixed_args(arguments))
    swept = [each.input_line for each in OverridesParser.create().parse_overrides(settings) if each.is_sweep_override()]
    single = [each for each in settings if each not in swept and not each.startswith("hydra")]
    assert not swept or "-m" in arguments
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        values = OmegaConf.to_container(compose(name, single), resolve=True)
    own = own_settings(name)
    if own:
        checked({key: values.pop(key) for key in own}, VERBS[name].settings)
    from_dict(values)


def test_the_onnx_example_prints_the_classes_of_predict(tmp_path, monkeypatch, capsys):
    exported.write(tmp_path / "model.onnx", resize=36)
    (code,) = blocks(ROOT / "docs" / "use-a-model.md", "python")
    sizes = [(640, 480), (33, 90), (40, 32), (100, 100)]
    paths = [path for n, size in enumerate(sizes) for path in exported.photographs(tmp_path / str(n), 6, size, n)]
    monkeypatch.chdir(tmp_path)
    assert main.main(["predict", "model.onnx", *map(str, paths), "output=out.csv"]) == 0
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for path, row in zip(paths, rows, strict=True):
        path.rename("photo.jpg")
        names = {}
        exec(compile(code, "use-a-model.md", "exec"), names)
        assert capsys.readouterr().out.split() == [row["class_1"]]
        seen = CentralCrop(exported.SIDE, 36, "bilinear").of_file("photo.jpg")
        assert (np.asarray(names["image"]) == seen).all()


@pytest.mark.slow
def test_the_readmes_commands_use_a_trained_network(shared_cli):
    folder = shared_cli.folder.parent
    shared_cli("train", "launch.ranks=1")
    exported.photographs(folder / "new", 3)
    (block,) = [block for block in blocks(ROOT / "README.md", "") if "mxscale predict" in block]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(folder)}  # the folder of new/
    done = subprocess.run(["bash", "-ec", block], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "found.html").exists() and list(folder.glob("runs/train/*/model.onnx"))
