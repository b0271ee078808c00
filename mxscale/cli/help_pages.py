"""The texts of `mxscale --help` and `mxscale VERB --help`."""

import json
import re
import textwrap
from itertools import groupby
from typing import Any, Dict, List

from mxscale.cli import CONF
from mxscale.cli.verbs import Verb
from mxscale.config.schema import Config
from mxscale.config.setting import Description, describe

WIDTH = 118

USAGE = """usage: mxscale VERB KEY=VALUE ...

{verbs}

examples:
  mxscale train data=imagefolder data.root=photos model=resnet18_v1b    a folder of images, one folder per class
  mxscale predict latest photo.jpg                                      the class of an image, by the newest run
  mxscale train -m optimizer.lr=0.1,0.2 seed=1,2,3                      six runs, and a table that compares them

`mxscale VERB --help` lists the settings of a verb. Settings follow Hydra's grammar: KEY=VALUE, GROUP=CHOICE (a file of
conf/GROUP/, or model=NETWORK), lists in quotes ('plan.nodes=[1,2]'); `-m` sweeps over KEY=A,B with train and finetune;
`--cfg job` prints the composed settings.
Documentation: docs/README.md"""

# The settings of a training that most users give; the others are in --help=all.
USUAL = (
    "seed", "epochs", "max_steps", "precision", "target_top1", "patience", "resume", "runs", "batch.per_device",
    "data.root", "data.image_size", "model.pretrained", "optimizer.lr", "optimizer.weight_decay", "launch.ranks",
    "launch.hosts", "machine.instance", "budget.max_usd", "budget.dry_run", "tracking.uri",
)  # fmt: skip
FORMS = """forms:
  data=NAME model=NETWORK optimizer=NAME schedule=NAME comm=NAME augment=NAME machine=NAME experiment=NAME
  -m KEY=A,B                     a sweep
  --help=all                     all settings"""


def overview(verbs: Dict[str, Verb]) -> str:
    """Return the list of verbs by heading, one line each."""
    width = max(map(len, verbs))
    blocks = []
    for heading, listed in groupby(verbs.items(), key=lambda item: item[1].heading):
        blocks.append("\n".join([f"{heading}:", *(f"  {name:<{width}} {verb.summary}" for name, verb in listed)]))
    return USAGE.format(verbs="\n\n".join(blocks))


def page(name: str, verb: Verb, values: Dict[str, Any], complete: bool = False) -> str:
    """Return the help of a verb: its examples and its settings by group, with value, unit, meaning and valid values.

    Args:
        values: The composed settings by dotted key.
        complete: List all settings of a run that the verb uses, not the usual ones alone.
    """
    text = (CONF / f"{name}.yaml").read_text()
    about = "\n".join(line[2:] for line in re.match(r"(#.*\n)*", text)[0].splitlines())
    own_settings = sorted(describe(verb.settings) if verb.settings else (), key=lambda setting: not setting.group)
    settings = [setting for setting in describe(Config) if verb.groups is None or setting.group in verb.groups]
    brief = verb.groups is None and not complete
    if brief:
        settings = [setting for setting in settings if setting.key in USUAL]
    width = max((len(setting.key) for setting in [*own_settings, *settings]), default=0)
    blocks = [f"mxscale {name}: {verb.summary}", about]
    for title, part in ((name, own_settings), ("general", settings)):
        for group, listed in groupby(part, key=lambda setting, title=title: setting.group or title):
            lines = [line for setting in listed for line in _lines(setting, values.get(setting.key), width)]
            blocks.append("\n".join([f"{group}:", *lines]))
    return "\n\n".join([*blocks, *([FORMS] if brief else [])])


def _lines(setting: Description, value: Any, width: int) -> List[str]:
    rule = setting.rule
    details = "; ".join(filter(None, [rule.unit, rule.allowed]))
    shown = json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace('"', "")
    text = f"[{shown}] {rule.help}{f' ({details})' if details else ''}"
    indent = " " * (width + 4)
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=f"  {setting.key:<{width}}  ", subsequent_indent=indent, break_on_hyphens=False
    )
    for choice, meaning in zip(rule.choices, rule.meanings):
        lines += textwrap.wrap(
            f"{choice}: {meaning}", WIDTH, initial_indent=f"{indent}  ", subsequent_indent=f"{indent}    "
        )
    return lines
