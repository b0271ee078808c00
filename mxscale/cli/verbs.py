"""The small tools, `python -m mxscale.cli.main NAME KEY=VALUE`: a function here and a YAML of its own keys in conf/."""

import json
from datetime import date
from typing import Callable, Dict

from mxscale.config.networks import NAMES
from mxscale.config.schema import Config
from mxscale.cost import price_list
from mxscale.launcher import setup
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.util.errors import ConfigError


def logits(config: Config, own: dict) -> None:
    """What a pretrained network makes of the images in a file."""
    given, made = _path(own, "input"), _path(own, "output")
    if config.model.pretrained is None:
        raise ConfigError("model.pretrained is missing: name the weights to look at, such as torch:FILE")
    source = setup.pretrained_file(config) or config.model.pretrained
    from mxscale.serve import infer  # imports MXNet: not before the command line is known to be good

    infer.logits(config.model.name, source, given, made)


def export(config: Config, own: dict) -> None:
    """Write a run's network for PyTorch."""
    run, made = _path(own, "run"), _path(own, "output")
    found = directory.latest_trained(config.runs) if run == "latest" else RunDir(run)
    best = found.read("best.json")
    if best is None:
        raise ConfigError(f"run={run} is no run directory with a best checkpoint")
    from mxscale.serve import infer

    infer.export(found.config().model.name, str(found.path / best["checkpoint"] / "params"), made, f"run={run}")


def test_io(config: Config, own: dict) -> None:
    """Images/s by decode threads, without a network."""
    io = own["io"] if isinstance(own["io"], dict) else {}
    from mxscale.data import test_io as rates

    rates.show(config, io.get("seconds"), io.get("threads"))


def prices(config: Config, own: dict) -> None:
    """What is known of a machine's price; a bill; newer prices."""
    if own["update"] is not None:
        given = {key: None if own[key] is None else str(own[key]) for key in ("as_of", "source")}
        print(price_list.update(config, _path(own, "update"), **given, today=date.today()))
    elif own["minutes"] is not None:
        print(price_list.bill(config, own["minutes"], date.today()))
    else:
        print(price_list.listing(config))


def layers(config: Config, own: dict) -> None:
    """The layers of the zoo's networks, as the table that plans are made from."""
    given, made = own["networks"], _path(own, "output")
    if given is not None and not (isinstance(given, list) and given and all(isinstance(name, str) for name in given)):
        raise ConfigError(f"networks={given}: expected a list such as '[resnet50_v1b,small]', or null for all")
    from mxscale.models import layer_table as table

    count = table.write(given or NAMES, made)
    print(f"{made}: {count:,} layers of {len(given or NAMES)} networks")


def score(config: Config, own: dict) -> None:
    """How well the model of a step predicts published throughputs."""
    from mxscale.perfmodel.published import score as published  # NumPy: not for every command
    from mxscale.perfmodel.published import score_figure

    if own["leave_out"] not in published.LABELS:
        raise ConfigError(f"leave_out={own['leave_out']}: expected {' or '.join(published.LABELS)}")
    if not isinstance(own["json"], bool):
        raise ConfigError(f"json={own['json']}: expected true or false")
    figure = own["figure"] and _path(own, "figure")
    if figure and not figure.endswith(".png"):
        raise ConfigError(f"figure={figure}: expected a name that ends in .png")
    found = published.score(_path(own, "points"), own["leave_out"])
    if figure:
        try:
            score_figure.draw(found, figure)
        except OSError as error:
            raise ConfigError(f"figure={figure}: {error.strerror or error}") from error
    print(json.dumps(found) if own["json"] else published.show(found))


def _path(own: dict, key: str) -> str:
    if not isinstance(own[key], str):
        raise ConfigError(f"{key} is missing: {key}=PATH")
    return own[key]


# name -> what it does with the run's settings and those of its own in conf/NAME.yaml; raises ConfigError
TOOLS: Dict[str, Callable[[Config, dict], None]] = {
    "export": export,
    "layers": layers,
    "logits": logits,
    "prices": prices,
    "score": score,
    "test_io": test_io,
}
