"""Logged models and registered versions in an MLflow store."""

import logging
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Optional

from mxscale.tracking import store as stores
from mxscale.tracking.history import Store

CHAMPION = "champion"  # alias of the best version
METRIC = "best/val_top1"  # also the tag of a version
REQUIRED = ("mlflow", "onnxruntime", "numpy", "pandas", "pillow")  # where a model is served


class Registered(NamedTuple):
    """A version of a registered model."""

    version: str
    champion: str  # version with the alias
    champion_metric: float


class Models(Store):
    """A store to which models are logged. Every failure is a ConfigError of one line."""

    def log(self, run_id: str, name: str, folder: Path, metric: float) -> str:
        """Log the model in a folder as an output of a run; return its id."""
        return self._request(lambda: self._log(run_id, name, folder, metric))

    def _log(self, run_id: str, name: str, folder: Path, metric: float) -> str:
        from mlflow.entities import LoggedModelOutput

        experiment = self.client.get_run(run_id).info.experiment_id
        model = self.client.create_logged_model(experiment, name, source_run_id=run_id, model_type="classifier")
        self.client.log_model_artifacts(model.model_id, str(folder))
        self.client.finalize_logged_model(model.model_id, "READY")
        self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        self.client.log_metric(run_id, METRIC, metric, model_id=model.model_id)
        return model.model_id

    def register(self, run_id: str, name: str, model_id: str, metric: float) -> Registered:
        """Make a logged model a version of `name`; it becomes the champion if no version has a metric as high."""
        return self._request(lambda: self._register(run_id, name, model_id, metric))

    def _register(self, run_id: str, name: str, model_id: str, metric: float) -> Registered:
        import mlflow
        from mlflow.exceptions import MlflowException

        mlflow.set_tracking_uri(self.uri)  # where models:/ID is looked up
        try:
            self.client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        tags = {METRIC: f"{metric:.6g}"}
        made = self.client.create_model_version(name, f"models:/{model_id}", run_id, tags=tags, model_id=model_id)
        before = self.champion(name)
        if before is None or metric > before.champion_metric:
            self.client.set_registered_model_alias(name, CHAMPION, made.version)
            return Registered(str(made.version), str(made.version), metric)
        return before._replace(version=str(made.version))

    def champion(self, name: str) -> Optional[Registered]:
        """Return the version with the alias; None if there is none."""
        from mlflow.exceptions import MlflowException

        try:
            found = self.client.get_model_version_by_alias(name, CHAMPION)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return None
        return Registered(str(found.version), str(found.version), float(found.tags.get(METRIC, "-inf")))


def save(folder: Path, code: Path, network: Path, example: str, timeout_s: float) -> None:
    """Write a model in MLflow's format.

    Args:
        folder: Created.
        code: File of the model's class.
        network: Exported network.
        example: An image in base64.
    """
    mlflow = stores.import_mlflow(timeout_s)
    import pandas
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(Schema([ColSpec("string", "image")]), params=ParamSchema([ParamSpec("top", "long", 5)]))
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.save_model(
            str(folder), python_model=str(code), artifacts={"network": str(network)}, signature=signature,
            input_example=(pandas.DataFrame({"image": [example]}), {"top": 5}),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIRED],
        )  # fmt: skip
