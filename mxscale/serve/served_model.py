"""The model that MLflow logs, registers and serves: encoded images in, classes and probabilities out.

MLflow copies this file into the model, and beside it the modules of mxscale that it imports (register.py). It runs
where neither mxscale nor MXNet is installed.
"""

import base64
import binascii
import json

import mlflow
import numpy as np
import onnxruntime
import pandas
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel

from mxscale.data.central_crop import CentralCrop
from mxscale.data.images import BadImage, one_line

COLUMN = "image"  # of the input: JPEG, PNG, ... in base64


class Classifier(PythonModel):
    """An exported network with its preprocessing."""

    def load_context(self, context):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # requests are answered side by side
        providers = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(context.artifacts["network"], options, providers)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.names, *seen = (
            json.loads(metadata[key]) for key in ("class_names", "image_size", "resize", "interpolation")
        )
        self.crop = CentralCrop(*seen)

    def predict(self, context, model_input: pandas.DataFrame, params=None):
        """Return [{"class", "probability", "top": [{"class", "probability"}, ...]}] for the images of a data frame.

        Args:
            params: {"top": number of classes in "top"}.

        Raises:
            MlflowException: An image cannot be decoded; a server answers with status 400 and this message.
        """
        if COLUMN not in getattr(model_input, "columns", ()):
            raise _refusal(f"expected a column {COLUMN!r} with images in base64")
        top = (params or {}).get("top", 5)
        if top < 1:
            raise _refusal(f"top={top}: expected a number above 0")
        pixels = [self._pixels(number, text) for number, text in enumerate(model_input[COLUMN])]
        if not pixels:
            return []
        (probabilities,) = self.session.run(["probabilities"], {"images": np.stack(pixels)})
        return [self._described(row, top) for row in probabilities]

    def _described(self, probabilities: np.ndarray, top: int) -> dict:
        order = np.argsort(-probabilities, kind="stable")[:top]
        best = [{"class": self.names[place], "probability": float(probabilities[place])} for place in order]
        return {**best[0], "top": best}

    def _pixels(self, number: int, text) -> np.ndarray:
        """Return the network's input (side, side, 3) uint8 of an encoded image."""
        try:
            if not isinstance(text, str):  # MLflow passes on numbers and lists in a column of strings
                raise ValueError(f"expected base64, not {type(text).__name__}")
            return self.crop.of_file(base64.b64decode(text, validate=True))
        except binascii.Error:
            raise _refusal(f"image {number}: not in base64") from None
        except (BadImage, ValueError) as error:
            raise _refusal(f"image {number}: {one_line(error)}") from None


def _refusal(message: str) -> MlflowException:
    return MlflowException.invalid_parameter_value(message)


mlflow.models.set_model(Classifier())
