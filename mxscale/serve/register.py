"""`mxscale register`: the best checkpoint of a run as an MLflow model, and as a version of a registered one."""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.verb_settings import Register
from mxscale.rundir.directory import RunDir
from mxscale.serve import export, trained_models
from mxscale.serve.predict import in_base64
from mxscale.tracking import models
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

CODE = Path(__file__).with_name("served_model.py")
PACKAGE = CODE.parents[1]
IMPORTED = (  # by CODE, below PACKAGE
    "__init__.py", "data/__init__.py", "data/central_crop.py", "data/images.py", "data/missing_data.py",
    "util/__init__.py", "util/mxnet_import.py", "util/regular_files.py",
)  # fmt: skip


def main(config: Config, request: Register) -> None:
    """Log the best checkpoint of a run unless MLflow has it, and register it under a name. Raises ConfigError."""
    run = trained_models.find_run(request.source, config)
    if run is None:
        raise ConfigError(f"{request.source}: no such run directory; expected one, latest or run:ID")
    run.config()  # raises ConfigError for another folder
    best = run.read("best.json")
    if best is None:
        raise ConfigError(f"{run} has no best checkpoint")
    store = models.Models(config, "register", run)
    checkpoint = models.Checkpoint(store.id_of(run), best["checkpoint"], best["val/top1"])
    model_id = store.logged(checkpoint) or _log(run, store, checkpoint, config)
    of_model = f"{checkpoint.metric:.2f} % val top-1, model {model_id}"
    if request.registered is None:
        echo(f"{run}: {of_model}; register it with: mxscale register {request.source} NAME")
        return
    registered = store.register(checkpoint, request.registered, model_id)
    champion = f"champion: version {registered.champion} with {registered.champion_metric:.2f} %"
    echo(f"{request.registered} version {registered.version}: {of_model}; {champion}")


def _log(run: RunDir, store: models.Models, checkpoint: models.Checkpoint, config: Config) -> str:
    """Export the best checkpoint and log it as a model of the run; return the model's id."""
    trained = trained_models.load(run, config)
    metadata = json.loads(json.dumps(asdict(trained.card)))  # lists in place of tuples
    try:
        with tempfile.TemporaryDirectory(prefix="mxscale-model-") as folder:
            network, model = Path(folder) / "model.onnx", Path(folder) / "model"
            export.write_onnx(trained, str(network))
            parts = contents(Path(folder), network, trained.card.image_size, metadata)
            models.save(model, parts, config.tracking.timeout_s)
            return store.log(checkpoint, model)
    except OSError as error:
        raise ConfigError(f"{tempfile.gettempdir()}: cannot be written ({error.strerror or error})") from None


def contents(folder: Path, network: Path, side: int, metadata: dict) -> models.Contents:
    """Return what a model consists of; the modules that it imports are copied to a new package in `folder`."""
    package = folder / PACKAGE.name
    for name in IMPORTED:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PACKAGE / name, package / name)
    return models.Contents(CODE, package, network, example_image(side), metadata)


def example_image(side: int) -> str:
    """Return a grey image in base64, the model's input example."""
    return in_base64(np.full((side, side, 3), 127, "uint8"))
