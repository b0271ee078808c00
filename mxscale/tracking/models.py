"""Logged models and registered versions in an MLflow store."""

import logging
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, Optional

from mxscale.tracking import store as stores
from mxscale.tracking.history import Store, one_line

CHAMPION = "champion"  # alias of the best version
METRIC = "best/val_top1"  # also the tag of a version
CHECKPOINT = "mxscale.checkpoint"  # tag of a logged model: run and checkpoint
NAME = "best"  # of a run's logged model, which is also runs:/RUN_ID/best
REQUIRED = ("onnxruntime", "numpy", "pandas", "pillow")  # besides MLflow, where a model is served


class Checkpoint(NamedTuple):
    """The best checkpoint of a run."""

    run_id: str
    path: str  # in the run directory
    metric: float  # top-1 on validation images in percent

    def __str__(self):
        return f"{self.run_id}/{self.path}"


class Contents(NamedTuple):
    """The parts of a model in MLflow's format."""

    code: Path  # file of the model's class
    imported: Path  # folder of the modules that it imports
    network: Path  # exported
    example: str  # an image in base64
    metadata: dict  # class names and other facts, which MLflow shows


class Registered(NamedTuple):
    """A version of a registered model."""

    version: str
    champion: str  # version with the alias
    champion_metric: float


class Models(Store):
    """A store to which models are logged. Every failure is a ConfigError of one line."""

    @one_line
    def logged(self, checkpoint: Checkpoint) -> Optional[str]:
        """Return the id of the model that was logged of a checkpoint; None if there is none."""
        experiment = self.client.get_run(checkpoint.run_id).info.experiment_id
        models = self.client.search_logged_models([experiment], f"tags.`{CHECKPOINT}` = '{checkpoint}'")
        return next((model.model_id for model in models if model.status == "READY"), None)

    @one_line
    def log(self, checkpoint: Checkpoint, folder: Path) -> str:
        """Log the model in a folder as an output of the checkpoint's run; return its id."""
        from mlflow.entities import LoggedModelOutput

        run_id, tags = checkpoint.run_id, {CHECKPOINT: str(checkpoint)}
        with stores.exclusive(self.uri):
            experiment = self.client.get_run(run_id).info.experiment_id
            model = self.client.create_logged_model(experiment, NAME, run_id, tags, model_type="classifier")
            self.client.log_model_artifacts(model.model_id, str(folder))
            self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
            self.client.log_metric(run_id, METRIC, checkpoint.metric, model_id=model.model_id)
            self.client.finalize_logged_model(model.model_id, "READY")
        return model.model_id

    @one_line
    def register(self, checkpoint: Checkpoint, name: str, model_id: str) -> Registered:
        """Make a logged model a version of `name`; it becomes the champion if no version has a metric as high."""
        import mlflow
        from mlflow.exceptions import MlflowException

        mlflow.set_tracking_uri(self.uri)  # where models:/ID is looked up
        tags = {METRIC: f"{checkpoint.metric:.6g}"}
        with stores.exclusive(self.uri):
            try:
                self.client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            made = self.client.create_model_version(
                name, f"models:/{model_id}", checkpoint.run_id, tags=tags, model_id=model_id
            )
            champion, metric = self.champion(name), float(tags[METRIC])  # rounded as the champion's is
            if champion is None or metric > champion.champion_metric:
                self.client.set_registered_model_alias(name, CHAMPION, made.version)
                return Registered(str(made.version), str(made.version), metric)
        return champion._replace(version=str(made.version))

    @one_line
    def champion(self, name: str) -> Optional[Registered]:
        """Return the version with the alias; None if there is none."""
        model = stores.or_none(self.client.get_model_version_by_alias, name, CHAMPION)
        return model and Registered(str(model.version), str(model.version), float(model.tags.get(METRIC, "-inf")))


def save(folder: Path, contents: Contents, timeout_s: float) -> None:
    """Write a model in MLflow's format to a new folder."""
    mlflow = stores.import_mlflow(timeout_s)
    import pandas
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema

    signature = ModelSignature(Schema([ColSpec("string", "image")]), params=ParamSchema([ParamSpec("top", "long", 5)]))
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.save_model(
            str(folder), python_model=str(contents.code), code_paths=[str(contents.imported)],
            artifacts={"network": str(contents.network)}, signature=signature,
            input_example=(pandas.DataFrame({"image": [contents.example]}), {"top": 5}),
            metadata=contents.metadata,
            # Ranks' images have only mlflow-skinny, the client, in the same version
            pip_requirements=[f"mlflow=={mlflow.__version__}", *(f"{name}=={version(name)}" for name in REQUIRED)],
        )  # fmt: skip
