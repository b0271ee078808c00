"""`mxscale register`: the best checkpoint of a run as an MLflow model and as a version of a registered one."""

import base64
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from mxscale.config.schema import Config
from mxscale.config.validation import REGISTERED
from mxscale.data.repack import encode
from mxscale.launcher.progress import echo
from mxscale.rendering import page
from mxscale.serve import export, trained_models
from mxscale.tracking import models
from mxscale.util.errors import ConfigError

CODE = Path(__file__).with_name("served_model.py")


@dataclass(frozen=True)
class Request:
    """The own settings of conf/register.yaml. Raises ConfigError."""

    source: Optional[str]
    registered: Optional[str]

    def __post_init__(self):
        if not isinstance(self.source, str):
            raise ConfigError("source is missing: mxscale register RUN NAME, such as latest flowers")
        if not isinstance(self.registered, str) or not REGISTERED.fullmatch(self.registered):
            raise ConfigError(f"registered={self.registered}: expected a name without / and :, such as flowers")


def main(config: Config, settings: dict) -> None:
    """Log and register what `settings` names. Raises ConfigError."""
    request = Request(**settings)
    page.check_installed("register")
    run = trained_models.find_run(request.source, config)
    if run is None:
        raise ConfigError(f"{request.source}: no such run directory; expected one, latest or run:ID")
    run_id = trained_models.identity(run)
    if os.sep in run_id:
        raise ConfigError(f"{run} is not in MLflow; send it with: mxscale sync {run}")
    trained, best = trained_models.load(run, config), run.read("best.json")["val/top1"]
    store = models.Models(config, "register")
    with tempfile.TemporaryDirectory(prefix="mxscale-model-") as folder:
        network, whole = Path(folder) / "model.onnx", Path(folder) / "model"
        export.write_onnx(trained, str(network))
        models.save(whole, CODE, network, example_image(trained.card.image_size), config.tracking.timeout_s)
        model_id = store.log(run_id, request.registered, whole, best)
    made = store.register(run_id, request.registered, model_id, best)
    champion = f"champion: version {made.champion} with {made.champion_metric:.2f} %"
    echo(f"{request.registered} version {made.version}: {best:.2f} % val top-1, model {model_id}; {champion}")


def example_image(side: int) -> str:
    """Return a grey image in base64, the model's input example."""
    return base64.b64encode(encode(np.full((side, side, 3), 127, "uint8"), "jpeg", 95)).decode()
