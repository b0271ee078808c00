"""The verbs of `mxscale`: a row of VERBS, a function, and the verb's own settings in config/verb_settings.py."""

import json
from dataclasses import dataclass
from datetime import date
from pkgutil import resolve_name
from typing import Any, Callable, Dict, Optional, Tuple

from hydra.core.hydra_config import HydraConfig

from mxscale.cli.settings import resolve, validated, with_choices, with_typed_size
from mxscale.config import verb_settings
from mxscale.config.networks import NAMES
from mxscale.config.schema import Config, from_dict, to_dict
from mxscale.config.validation import validate
from mxscale.config.verb_settings import grouped
from mxscale.cost import price_list, run_cost
from mxscale.rundir.directory import RunDir
from mxscale.tracking import tracker
from mxscale.util.terminal import echo

# A function takes a run's settings as composed, and the verb's own settings. It returns an exit status, None for 0, and
# raises ConfigError. It imports NumPy, MXNet and matplotlib only if its command line is valid.


def plan(values: dict, options: verb_settings.PlanVerb) -> None:
    from mxscale.planner import planning

    hydra = HydraConfig.get()
    chosen = [f"{group}={hydra.runtime.choices[group]}" for group in ("data", "model")]
    planning.main(planning.config_of(values), options.plan, options.json, [*hydra.overrides.task, *chosen])


def prices(values: dict, options: verb_settings.Prices) -> None:
    config = _resolved(values)
    if options.update is not None:
        echo(price_list.update(config, options.update, options.as_of, options.source, today=date.today()))
    elif options.minutes is not None:
        echo(price_list.bill(config, options.minutes, date.today()))
    else:
        echo(price_list.listing(config, date.today()))


def score(values: dict, options: verb_settings.Score) -> None:
    from mxscale.perfmodel.published import score as published

    _validated(values)
    scores = published.score(options.points)
    echo(json.dumps(scores) if options.json else published.show(scores))


def sync(values: dict, options: verb_settings.Sync) -> int:
    run, uri = RunDir(options.run), _validated(values).tracking.uri
    run.config()  # raises ConfigError for another folder
    return tracker.sync(run, uri, run_cost.cost_of(run))


def evaluate(values: dict, options: verb_settings.Evaluate) -> None:
    from mxscale.serve import evaluate as evaluation

    overrides = HydraConfig.get().overrides.task
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
    evaluation.main(resolve(validate(from_dict(with_typed_size(values, overrides)))), typed, options)


def layers(values: dict, options: verb_settings.Layers) -> None:
    _validated(values)
    from mxscale.models import layer_table as table

    rows = table.of_networks(options.networks or NAMES, options.image_size, options.classes)
    echo(table.write(rows, options.output) if options.output else table.text(rows))


def data(values: dict, options: verb_settings.DataPage) -> None:
    images, weights = {**values["data"], "root": options.root}, {**values["model"], "pretrained": "imagenet"}
    config = _as_a_run({**values, "entry": "finetune", "data": images, "model": weights})
    from mxscale.diagnose import data_page

    data_page.main(config, options.output or f"{config.runs}/data.html")


def _validated(values: dict) -> Config:
    return validated(values, HydraConfig.get().overrides.task)


def _resolved(values: dict) -> Config:
    return resolve(_validated(values))


def _as_a_run(values: dict) -> Config:
    return _resolved(with_choices(values, HydraConfig.get().overrides.task))


def _main(module: str, settings: Callable[[dict], Any], group: Optional[str] = None) -> Callable[[dict, Any], Any]:
    """Return a function that calls a module's `main` with a run's settings and the verb's own, or a group of them."""

    def execute(values: dict, options: Any) -> Optional[int]:
        config = settings(values)  # `dict` leaves them as composed
        return resolve_name(f"mxscale.{module}:main")(config, getattr(options, group) if group else options)

    return execute


@dataclass(frozen=True)
class Verb:
    heading: str  # of its group in `mxscale --help`
    summary: str  # one line of `mxscale --help`
    execute: Optional[Callable[[dict, Any], Optional[int]]] = None  # None: a training job
    settings: Optional[type] = None  # dataclass of the settings besides those of a run
    groups: Optional[Tuple[str, ...]] = None  # of a run's settings that --help lists; None: all
    positional: Tuple[str, ...] = ()  # the keys of arguments without KEY=
    listed: Optional[str] = None  # the key of a list of further ones


VERBS: Dict[str, Verb] = {
    "train": Verb("train", "train a network from random or pretrained weights"),
    "finetune": Verb("train", "replace the head of a trained network and train it on other classes"),
    "data": Verb("train", "write a page on a folder of images, as fine-tuning sees them: mxscale data ROOT",
        data, verb_settings.DataPage, ("data", "data.augment", "batch"), ("root",)),
    "predict": Verb("use", "predict the classes of images: mxscale predict MODEL IMAGES",
        _main("serve.predict", _validated), verb_settings.Predict, ("model", "tracking"), ("source",), "images"),
    "evaluate": Verb("use", "evaluate a network on a labelled split: mxscale evaluate MODEL",
        evaluate, verb_settings.Evaluate, ("data", "tracking"), ("source",)),
    "export": Verb("use", "write a network as ONNX, as MXNet's symbol, or as safetensors: mxscale export MODEL",
        _main("serve.export", _validated), verb_settings.Export, ("model", "tracking"), ("source",)),
    "register": Verb("use", "log a run's network as an MLflow model, and register it: mxscale register RUN [NAME]",
        _main("serve.register", _validated), verb_settings.Register, ("tracking",), ("source", "registered")),
    "layers": Verb("use", "print the layers of networks with their parameters and FLOPs: mxscale layers NETWORK",
        layers, verb_settings.Layers, (), listed="networks"),
    "diagnose": Verb("measure", "measure where the time of a training step goes, and suggest settings",
        _main("diagnose.diagnosis", _as_a_run, "diagnose"), grouped("diagnose", verb_settings.Diagnose)),
    "test-io": Verb("measure", "measure the input pipeline in images/s by reader and threads",
        _main("diagnose.input_rates", _resolved, "io"), grouped("io", verb_settings.InputRates),
        ("data", "data.augment", "tracking")),
    "test-allreduce": Verb("measure", "measure the time of an all-reduce by message size",
        _main("diagnose.all_reduce", _resolved, "allreduce"), grouped("allreduce", verb_settings.AllReduce),
        ("comm", "launch", "tracking")),
    "doctor": Verb("measure", "check this machine and its hosts for what would prevent a run",
        _main("doctor.doctor", _validated, "json"), verb_settings.Doctor),
    "plan": Verb("plan", "estimate throughput, scaling efficiency and cost before renting machines",
        plan, verb_settings.PlanVerb),
    "prices": Verb("plan", "list known machine prices, compute a bill, or import a newer price list",
        prices, verb_settings.Prices, ("", "machine")),
    "score": Verb("plan", "compare the performance model with published throughputs",
        score, verb_settings.Score, ()),
    "runs": Verb("reproduce", "list recorded runs, newest first: mxscale runs [WORDS], such as finished mnist",
        _main("records.listing", _validated), verb_settings.Runs, (), listed="words"),
    "report": Verb("reproduce", "write figures and tables of recorded runs; compare runs with published claims",
        _main("report.report", _validated, "report"), grouped("report", verb_settings.Report), ("", "tracking")),
    "sync": Verb("reproduce", "send what MLflow lacks of a run: mxscale sync RUN_DIR",
        sync, verb_settings.Sync, ("tracking",), ("run",)),
    "replay": Verb("reproduce", "repeat a published figure or table beside its numbers: mxscale replay NAME",
        _main("cli.replaying", dict), verb_settings.Replay, None, ("replay",)),
}  # fmt: skip


def own_settings(name: str) -> Dict[str, Any]:
    """Return the settings of a verb besides those of a run, with their defaults."""
    settings = VERBS[name].settings
    return to_dict(settings()) if settings else {}
