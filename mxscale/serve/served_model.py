"""The model that MLflow logs, registers and serves: encoded images in, classes and probabilities out.

MLflow copies this file into the model and runs it where neither mxscale nor MXNet is installed, so it imports neither.
Its image processing is that of data/images.py (`_rgb`) and data/reader/transforms.py (`Evaluation`).
"""

import base64
import binascii
import contextlib
import io
import json
import sys
import warnings

import mlflow
import numpy as np
import onnxruntime
import pandas
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel
from PIL import Image, ImageOps, UnidentifiedImageError

COLUMN = "image"  # of the input: JPEG, PNG, ... in base64
MAX_PIXELS = 120_000_000
# Others are rare, and some start programs: EPS
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "area": Image.Resampling.BOX,
           "lanczos": Image.Resampling.LANCZOS}  # fmt: skip


class Classifier(PythonModel):
    """An exported network with its preprocessing."""

    def load_context(self, context):
        _answer_unreadable_requests()
        Image.init()
        self.formats = [name for name in FORMATS if name in Image.OPEN]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # requests are answered side by side
        providers = onnxruntime.get_available_providers()
        self.session = onnxruntime.InferenceSession(context.artifacts["network"], options, providers)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.names, self.side, self.resize, self.interpolation = (
            json.loads(metadata[key]) for key in ("class_names", "image_size", "resize", "interpolation")
        )

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
            content = base64.b64decode(text, validate=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = Image.open(io.BytesIO(content), formats=self.formats)
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"more than {MAX_PIXELS:,} pixels")
                return self._cropped(_rgb(image))
        except binascii.Error:
            raise _refusal(f"image {number}: not in base64") from None
        except UnidentifiedImageError:
            raise _refusal(f"image {number}: not an image") from None
        except Exception as error:  # decoders raise exceptions of many types for damaged files
            raise _refusal(f"image {number}: {' '.join(str(error).split())[:120] or type(error).__name__}") from None

    def _cropped(self, image: Image.Image) -> np.ndarray:
        width, height = image.size
        short = max(self.resize or min(width, height), self.side)
        long = int(short * max(width, height) / min(width, height))
        size = (width, height) if short == min(width, height) else (short, long) if width < height else (long, short)
        left, top = (round((length - self.side) / 2) for length in size)
        across, down = width / size[0], height / size[1]
        box = left * across, top * down, (left + self.side) * across, (top + self.side) * down
        return np.asarray(image.resize((self.side, self.side), FILTERS[self.interpolation], box=box))


def _rgb(image: Image.Image) -> Image.Image:
    """Return an image upright and in RGB: transparent pixels on white, 16 bits scaled to 8."""
    is_tiff = image.format == "TIFF"
    image.load()
    with contextlib.suppress(Exception):  # invalid EXIF: the pixels are valid
        image = ImageOps.exif_transpose(image)
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65_535:
            raise ValueError("32-bit values of unknown range")
        if not (is_tiff and image.mode == "I" and values.max() <= 255):
            values = (values.astype(np.int64) * 255 + 32_767) // 65_535
        image = Image.fromarray(values.astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating-point values of unknown range")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB")


def _answer_unreadable_requests() -> None:
    """Let MLflow's server, if this is its process, answer with status 400 and the reason to each unreadable request.

    MLflow 3.17 answers "Internal Server Error" to a request without Content-Type, to JSON that is nested too deeply for
    Python's parser, and to integers of more than 4,300 digits.
    """
    server = sys.modules.get("mlflow.pyfunc.scoring_server")
    answered = getattr(server, "invocations", None)

    def invocations(data, content_type, *rest):
        if content_type is None:
            raise _refusal("the request has no Content-Type; expected application/json")
        try:
            return answered(data, content_type, *rest)
        except (RecursionError, ValueError) as error:
            raise _refusal(f"the request is not readable: {error}") from None

    if answered:
        server.invocations = invocations


def _refusal(message: str) -> MlflowException:
    return MlflowException.invalid_parameter_value(message)


mlflow.models.set_model(Classifier())
