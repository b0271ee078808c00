"""Pretrained weights of a run: fetched into its directory, their input adopted."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Optional, Tuple

from mxscale.config.networks import network
from mxscale.config.schema import Config, origin_of
from mxscale.data.reader.transforms import INTERPOLATIONS
from mxscale.models import pretrained, weights
from mxscale.rundir import checkpoints
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import InputChange, Origin, Plan
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError

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
            plan = replace(plan, origin=origin, input=adopted_input(config, origin.input))
        if loaded:
            plan = replace(plan, pretrained=str(run.path / pretrained.WEIGHTS))
    plan = replace(plan, graph=str(graph) if graph.exists() else None)
    if network(config.model.name).from_weights and not plan.graph:
        raise ConfigError(f"model.name=symbol: {source} has no graph of a network; set model.name to its network")
    return replace(config, data=replace(config.data, **plan.input.taken)), plan


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


def adopted_input(config: Config, stated: Optional[dict]) -> InputChange:
    """Return the keys of config.data that the input of the weights changes, as far as model.input takes it.

    Sizes that depend on the image size keep their ratio to it.

    Args:
        stated: image_size, mean, std, interpolation, crop (the share of the shorter side that validation uses), as far
            as they are known.

    Raises ConfigError.
    """
    data, keys = config.data, ADOPTED[config.model.input]
    adopted = {key: value for key, value in (stated or {}).items() if value and key in keys}
    crop = adopted.pop("crop", None)
    if adopted.get("interpolation", "bilinear") not in INTERPOLATIONS:
        raise ConfigError(
            f"model.pretrained: its interpolation {adopted['interpolation']} is not supported "
            f"({', '.join(INTERPOLATIONS)}); set model.input=config"
        )
    side = adopted.get("image_size", data.image_size)
    if crop:
        adopted["eval_resize"] = round(side / crop)
    elif data.eval_resize:
        adopted["eval_resize"] = round(data.eval_resize * side / data.image_size)
    if data.short_side and (crop or side != data.image_size):
        adopted["pack_short_side"] = max(data.short_side, adopted.get("eval_resize", side))
    changed = {key: value for key, value in adopted.items() if value != getattr(data, key)}
    return InputChange(changed, {key: getattr(data, key) for key in changed})
