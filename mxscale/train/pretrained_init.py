"""Pretrained weights of a run: fetched into its directory, their input adopted, the first loss checked."""

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Optional, Tuple

from mxscale.config.networks import network
from mxscale.config.schema import Config, Data, origin_of
from mxscale.data.reader.transforms import INTERPOLATIONS
from mxscale.models import pretrained, weights
from mxscale.rundir import checkpoints
from mxscale.rundir.directory import WARNINGS, RunDir
from mxscale.rundir.plan import InputChange, Origin, Plan
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

# Nats. Weights of standard deviation 0.01 over 2,048 features of unit size move the loss by 0.01^2 x 2,048 / 2 = 0.1
FIRST_LOSS_TOLERANCE = 0.5

NORMALISATION = ("mean", "std", "interpolation")
# value of model.input -> what is taken of the input of the weights
ADOPTED = {"checkpoint": ("image_size", "crop", *NORMALISATION), "normalisation": NORMALISATION, "config": ()}


def obtain(run: RunDir, config: Config, plan: Plan) -> Tuple[Config, Plan]:
    """Return the config with the input of the pretrained weights, and the plan with their paths and origin.

    May download. A second call uses what the first one fetched.
    Raises ConfigError if the weights cannot be read or do not fit.
    """
    source, graph = config.model.pretrained, run.path / pretrained.GRAPH
    if source and not run.has_checkpoint():
        loaded = origin_of(source)[0] in pretrained.CONVERTED  # into the run's directory
        if not plan.origin:
            if loaded:
                origin = pretrained.bring(source, config.model.name, run.path, plan.head)
            else:
                origin = _of_path(source, plan.pretrained, graph)
            plan = replace(plan, origin=origin, input=stated_input(config, origin.input, source))
        if loaded:
            plan = replace(plan, pretrained=str(run.path / pretrained.WEIGHTS))
    plan = replace(plan, graph=str(graph) if graph.exists() else None)
    if network(config.model.name).from_weights and not plan.graph:
        raise ConfigError(f"model.name=symbol: {source} has no graph of a network; set model.name to its network")
    return replace(config, data=replace(config.data, **plan.input_taken)), plan


def _of_path(source: str, file: str, graph) -> Origin:
    """Return the origin of a weights file; of a run also its graph, if it has one, and its input."""
    files = {file: checkpoints.verified_weights(Path(file), os.path.isdir(source)) or digest_of(file)}
    weights.load(file)  # raises ConfigError if it is no weights file
    if not os.path.isdir(source):
        return Origin("file", files)
    earlier = RunDir(source)
    if (earlier.path / pretrained.GRAPH).exists():
        shutil.copyfile(earlier.path / pretrained.GRAPH, graph)
    data = earlier.config().data
    return Origin("run", files, input={key: getattr(data, key) for key in ("image_size", *NORMALISATION)})


def stated_input(config: Config, stated: Optional[dict], source: str) -> InputChange:
    """Return the keys of config.data that the stated input of the weights changes, as far as model.input takes it.

    Raises ConfigError.
    """
    taken = {key: value for key, value in (stated or {}).items() if key in ADOPTED[config.model.input]}
    return adopted_input(config.data, taken, source)


def adopted_input(data: Data, stated: dict, source: str) -> InputChange:
    """Return the keys of `data` that the input of the weights changes.

    Sizes that depend on the image size keep their ratio to it.

    Args:
        stated: image_size, mean, std, interpolation, crop (the share of the shorter side that validation uses), as far
            as they are known.
        source: model.pretrained, for the error.
    """
    adopted = {key: stated[key] for key in ("image_size", "mean", "std", "interpolation") if stated.get(key)}
    if adopted.get("interpolation", "bilinear") not in INTERPOLATIONS:
        supported = ", ".join(INTERPOLATIONS)
        raise ConfigError(
            f"model.pretrained={source}: interpolation {adopted['interpolation']} is not supported ({supported}); "
            "set model.input=config"
        )
    side = adopted.get("image_size", data.image_size)
    if stated.get("crop"):
        adopted["eval_resize"] = round(side / stated["crop"])
    elif data.eval_resize:
        adopted["eval_resize"] = round(data.eval_resize * side / data.image_size)
    if data.short_side and (stated.get("crop") or side != data.image_size):
        adopted["pack_short_side"] = max(data.short_side, adopted.get("eval_resize", side))
    changed = {key: value for key, value in adopted.items() if value != getattr(data, key)}
    return InputChange(changed, {key: getattr(data, key) for key in changed})


def check_first_loss(run: RunDir, config: Config, plan: Plan, comm, accumulator) -> None:
    """Record a warning if the loss of the first step is not that of a new classifier. A collective.

    Args:
        accumulator: It has the sums of the first step alone.
    """
    known = plan.pretrained and plan.head == "keep"  # the classifier is not new
    if known or plan.class_weights:  # or the loss depends on the classes in the batch
        return
    loss, images = comm.total(accumulator.peek())
    warning = first_loss_warning(loss / images, plan.classes, config)
    if warning and comm.rank == 0:
        print(f"warning: {warning}", flush=True)
        run.write(WARNINGS, {"first_loss": warning})


def first_loss_warning(loss: float, classes: int, config: Config) -> Optional[str]:
    """Return what is wrong with the first loss of a new classifier and the likely cause; None if it is as expected.

    With weights near 0 all classes are equally likely, so the expected loss is ln(classes).
    """
    expected = math.log(classes)
    if abs(loss - expected) <= FIRST_LOSS_TOLERANCE:
        return None
    observed = f"the first loss is {loss:.3g}, expected about ln({classes}) = {expected:.2f} of a new classifier: "
    if math.isnan(loss):
        return observed + "the network returns NaN; check the weights and data.mean, data.std"
    if loss < expected:
        return observed + "the classifier already knows these labels; check that it was replaced"
    if config.model.pretrained:
        return observed + (
            "the features are out of scale; most likely the input is not normalised as these weights expect "
            f"(data.mean={config.data.mean}, data.std={config.data.std}, model.input={config.model.input})"
        )
    return observed + f"the features are out of scale; check that data.std={config.data.std} is that of the images"
