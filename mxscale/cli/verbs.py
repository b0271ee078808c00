"""The verbs of `mxscale`: a row of VERBS, a function, and the verb's settings in conf/VERB.yaml."""

import json
from dataclasses import dataclass
from datetime import date
from typing import Callable, Dict, Optional, Tuple

from hydra.core.hydra_config import HydraConfig

from mxscale.cli.settings import resolve
from mxscale.config.networks import NAMES
from mxscale.config.schema import Config, from_dict
from mxscale.config.training_settings import MAX_PIXELS
from mxscale.config.validation import validate
from mxscale.cost import price_list, price_table, run_cost, spot_comparison
from mxscale.rundir.directory import RunDir
from mxscale.tracking import tracker
from mxscale.util.errors import ConfigError

MAX_CLASSES = 10**6  # of `mxscale layers`

# A function takes a run's settings and the verb's own settings as composed. It returns an exit status, None for 0, and
# raises ConfigError. It imports NumPy, MXNet and matplotlib only if its command line is valid.


def plan(values: dict, own: dict) -> None:
    from mxscale.planner import keys, planning

    planning.main(validate(from_dict(keys.without_data(values))), own["plan"], _flag(own, "json"))


def diagnose(values: dict, own: dict) -> int:
    from mxscale.diagnose import diagnosis

    return diagnosis.main(_resolved(values), own["diagnose"])


def find_lr(values: dict, own: dict) -> int:
    from mxscale.diagnose import find_lr as range_test

    return range_test.main(_resolved(values), own["find_lr"])


def report(values: dict, own: dict) -> None:
    from mxscale.report import report as reports

    reports.main(validate(from_dict(values)), own["report"])


def doctor(values: dict, own: dict) -> int:
    from mxscale.doctor import doctor as examination

    return examination.main(validate(from_dict(values)), _flag(own, "json"))


def prices(values: dict, own: dict) -> None:
    config = _resolved(values)
    if own["update"] is not None:
        given = {key: None if own[key] is None else str(own[key]) for key in ("as_of", "source")}
        print(price_list.update(config, _path(own, "update"), **given, today=date.today()))
    elif own["figure"] is not None:
        print(spot_comparison.figure(config.machine, price_table.path_of(config), _path(own, "figure")))
    elif own["minutes"] is not None:
        print(price_list.bill(config, own["minutes"], date.today()))
    else:
        print(price_list.listing(config))


def score(values: dict, own: dict) -> None:
    from mxscale.perfmodel.published import score as published

    validate(from_dict(values))
    if own["leave_out"] not in published.LABELS:
        raise ConfigError(f"leave_out={own['leave_out']}: expected {' or '.join(published.LABELS)}")
    as_json = _flag(own, "json")
    figure = own["figure"] and _path(own, "figure")
    if figure and not figure.endswith(".png"):
        raise ConfigError(f"figure={figure}: expected a name that ends in .png")
    found = published.score(_path(own, "points"), own["leave_out"])
    if figure:
        try:
            published.draw(found, figure)
        except OSError as error:
            raise ConfigError(f"figure={figure}: {error.strerror or error}") from error
    print(json.dumps(found) if as_json else published.show(found))


def test_io(values: dict, own: dict) -> int:
    from mxscale.diagnose import input_rates

    return input_rates.main(_resolved(values), own["io"])


def test_allreduce(values: dict, own: dict) -> int:
    from mxscale.diagnose import all_reduce

    return all_reduce.main(_resolved(values), own["allreduce"])


def replay(values: dict, own: dict) -> int:
    from mxscale.cli import replaying

    return replaying.main(values, own)


def sync(values: dict, own: dict) -> int:
    run, uri = RunDir(_path(own, "run")), validate(from_dict(values)).tracking.uri
    run.config()  # raises ConfigError for another folder
    return tracker.sync(run, uri, run_cost.cost_of(run))


def predict(values: dict, own: dict) -> int:
    from mxscale.serve import predict as prediction

    return prediction.main(validate(from_dict(values)), own)


def evaluate(values: dict, own: dict) -> None:
    from mxscale.serve import evaluate as evaluation

    typed = [override.lstrip("+~").partition("=")[0] for override in HydraConfig.get().overrides.task]
    data_given = any(key.split(".")[0] in ("data", "experiment") and key != "data.cache" for key in typed)
    evaluation.main(_resolved(values), data_given, own)


def export(values: dict, own: dict) -> None:
    from mxscale.serve import export as exporting

    exporting.main(validate(from_dict(values)), own)


def register(values: dict, own: dict) -> None:
    from mxscale.serve import register as registering

    registering.main(validate(from_dict(values)), own)


def layers(values: dict, own: dict) -> None:
    validate(from_dict(values))
    given, output = own["networks"], own["output"] and _path(own, "output")
    if given is not None and not (isinstance(given, list) and given and all(isinstance(name, str) for name in given)):
        raise ConfigError(f"networks={given}: expected a list such as '[resnet50_v1b,small]', or null for all")
    for key, least, most in (("image_size", 1, MAX_PIXELS), ("classes", 2, MAX_CLASSES)):
        if own[key] is not None and not (type(own[key]) is int and least <= own[key] <= most):
            raise ConfigError(f"{key}={own[key]}: expected a whole number from {least} to {most}, or null")
    from mxscale.models import layer_table as table

    rows = table.of_networks(given or NAMES, own["image_size"], own["classes"])
    print(table.write(rows, output) if output else table.text(rows))


def _resolved(values: dict) -> Config:
    return resolve(validate(from_dict(values)))


def _path(own: dict, key: str) -> str:
    if not isinstance(own[key], str):
        raise ConfigError(f"{key} is missing: {key}=PATH")
    return own[key]


def _flag(own: dict, key: str) -> bool:
    if not isinstance(own[key], bool):
        raise ConfigError(f"{key}={own[key]}: expected true or false")
    return own[key]


@dataclass(frozen=True)
class Verb:
    summary: str  # one line of `mxscale --help`
    execute: Optional[Callable[[dict, dict], Optional[int]]] = None  # None: a training job
    groups: Optional[Tuple[str, ...]] = None  # of a run's settings that --help lists; None: all
    positional: Tuple[str, ...] = ()  # the keys of arguments without KEY=
    rest: Optional[str] = None  # the key of a list of further ones


VERBS: Dict[str, Verb] = {
    "train": Verb("train a network from random or pretrained weights"),
    "finetune": Verb("replace the head of a trained network and train it on other classes"),
    "plan": Verb("estimate throughput, scaling efficiency and cost before renting machines", plan),
    "diagnose": Verb("measure where the time of a training step goes, and suggest settings", diagnose),
    "find-lr": Verb("suggest a learning rate by a short run whose rate rises until the loss diverges", find_lr),
    "report": Verb("write figures and tables of recorded runs; compare runs with published claims", report,
                   ("", "tracking")),
    "doctor": Verb("check this machine and its hosts for what would prevent a run", doctor),
    "prices": Verb("list known machine prices, compute a bill, or import a newer price list", prices, ("", "machine")),
    "score": Verb("compare the performance model with published throughputs", score, ()),
    "test-io": Verb("measure the input pipeline in images/s by reader and threads", test_io,
                    ("data", "data.augment", "tracking")),
    "test-allreduce": Verb("measure the time of an all-reduce by message size", test_allreduce,
                            ("comm", "launch", "tracking")),
    "replay": Verb("repeat a published figure or table beside its numbers: mxscale replay NAME", replay, None,
                   ("replay",)),
    "sync": Verb("send what MLflow lacks of a run: mxscale sync RUN_DIR", sync, ("tracking",), ("run",)),
    "predict": Verb("predict the classes of images: mxscale predict MODEL IMAGES", predict, ("model", "tracking"),
                    ("source",), "images"),
    "evaluate": Verb("evaluate a network on a labelled split: mxscale evaluate MODEL", evaluate, ("data", "tracking"),
                     ("source",)),
    "export": Verb("write a network as ONNX, as MXNet's symbol, or as safetensors: mxscale export MODEL", export,
                   ("model", "tracking"), ("source",)),
    "register": Verb("log a run's network as an MLflow model, and register it: mxscale register RUN [NAME]",
                     register, ("tracking",), ("source", "registered")),
    "layers": Verb("print the layers of networks with their parameters and FLOPs: mxscale layers NETWORK", layers, (),
                   rest="networks"),
}  # fmt: skip
