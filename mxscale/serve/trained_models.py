"""Trained networks by name: a run directory, `latest`, `run:ID`, or a file of weights."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Optional, Tuple, Union

from mxscale.config.datasets import DATASETS
from mxscale.config.networks import SYMBOL, network
from mxscale.config.schema import RULES, Config, origin_of
from mxscale.models.model_card import ModelCard
from mxscale.rundir import checkpoints
from mxscale.rundir.directory import RunDir, latest_trained
from mxscale.tracking import history
from mxscale.util.errors import ConfigError


class Network(NamedTuple):
    """A network in MXNet with its trained weights, in float32 on the CPU."""

    net: object  # gluon.HybridBlock
    card: ModelCard


class Exported(NamedTuple):
    """A network as ONNX (export.py)."""

    content: bytes
    card: ModelCard
    path: str = "the exported network"


def find_run(model: str, config: Config) -> Optional[RunDir]:
    """Return the run directory that `model` names; None if it names a file. Raises ConfigError."""
    kind, rest = origin_of(model)
    if kind == "latest":
        return latest_trained(config.runs, model, RULES["entry"].choices)
    if kind == "run":
        return history.find_run(config, rest, model)
    return RunDir(model) if os.path.isdir(model) else None


def load(model: Union[str, RunDir], config: Config) -> Network:
    """Return the network of a run, a name of a run, or weights as model.pretrained names them. Raises ConfigError."""
    run = model if isinstance(model, RunDir) else find_run(model, config)
    return _of_run(run) if run else _of_weights(model, config)


def _of_run(run: RunDir) -> Network:
    """Return the best checkpoint of a run."""
    best = run.read("best.json")
    if best is None:
        raise ConfigError(f"{run} is no run directory with a best checkpoint")
    config, plan = run.config(), run.plan()
    from mxscale.models import pretrained, weights

    checkpoint = run.path / best["checkpoint"]
    checkpoints.verify(checkpoint)
    arrays = weights.load(checkpoint / "params", "checkpoint")
    graph = run.path / pretrained.GRAPH  # plan.graph is where it was in training
    net = _built(config, len(plan.class_names), arrays, str(graph) if graph.exists() else None, str(run))
    return Network(net, _card(config, tuple(plan.class_names), net, mlflow_id(run) or str(run)))


def mlflow_id(run: RunDir) -> Optional[str]:
    """Return the id of a run in MLflow, None if no store has it."""
    return (run.read("tracking.json") or {}).get("run_id")


def _of_weights(source: str, config: Config) -> Network:
    """Return the network of a file of weights, or of a source such as torch:FILE, with its classifier."""
    from mxscale.models import pretrained
    from mxscale.train.pretrained_init import adopted_input

    kind, _ = origin_of(source)
    if kind == "symbol":
        config = replace(config, model=replace(config.model, name=SYMBOL))
    if kind == "path":
        if not os.path.isfile(source):
            raise ConfigError(f"{source}: no such run directory or file")
        checkpoints.verified_weights(Path(source), in_checkpoint=False)
    loaded, entry = pretrained.load(source, config.model.name), network(config.model.name)
    if entry.from_weights and loaded.graph is None:
        raise ConfigError(f"{source} has no graph: use symbol:PREFIX")
    heads = [array for name, array in loaded.arrays.items() if name.startswith("output.") and name.endswith(".weight")]
    if not heads:
        raise ConfigError(f"{source} has no classifier")
    names = tuple(loaded.class_names or map(str, range(len(heads[0]))))
    if len(names) != len(heads[0]):
        raise ConfigError(f"{source} states {len(names)} classes, and its classifier has {len(heads[0])}")
    data = config.data
    if config.model.input == "checkpoint":  # if none is stated: from 224 px on, the centre of 7/8 of a photograph
        resize = round(entry.side * 8 / 7) if entry.side >= 224 else entry.side
        data = replace(data, image_size=entry.side, eval_resize=resize)
    data = replace(data, **adopted_input(replace(config, data=data), loaded.input).taken)
    config = replace(config, data=data)
    net = _built(config, len(names), loaded.arrays, loaded.graph, source)
    card = _card(config, names, net, None)
    unresized = config.model.input == "checkpoint" and (loaded.input or {}).get("unresized")
    return Network(net, replace(card, resize=None) if unresized else card)


def _built(config: Config, classes: int, arrays, graph, source: str):
    """Build a network and load its weights. Raises ConfigError, which names `source`."""
    import mxnet as mx

    from mxscale.models import graph_trial, weights, zoo

    name, side = config.model.name, config.data.image_size
    if graph:
        graph_trial.check(graph, side, source)
    net = zoo.build(name, classes, graph)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    zoo.finish(net, (1, 3, side, side), mx.cpu())
    weights.fit(net, arrays, source, "keep")
    return net


def _card(config: Config, class_names: Tuple[str, ...], net, run: Optional[str]) -> ModelCard:
    from mxscale.models import weights

    data, entry = config.data, DATASETS[config.data.kind]
    packed = data.short_side or (data.image_size if entry.scans else None)  # packing enlarges scans
    resize = data.eval_resize or packed
    # Where packing resizes, validation does not: the network has seen images resized as repack.py does it
    by_packing = run is not None and (entry.reencoded or entry.scans) and resize is not None and resize == packed
    return ModelCard(
        network=config.model.name,
        class_names=class_names,
        image_size=data.image_size,
        resize=resize,
        interpolation="bicubic" if by_packing else data.interpolation,
        mean=tuple(data.mean),
        std=tuple(data.std),
        params_sha256=weights.params_sha256(weights.arrays(net)),
        run=run,
    )
