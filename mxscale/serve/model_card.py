"""What belongs to a trained network besides its graph: class names, the input it expects, and where it comes from."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Mapping, Optional, Tuple

from mxscale.util.errors import ConfigError

# Of an exported network: its input, uint8 (n, side, side, 3), and its outputs, float32 (n, classes)
INPUT, PROBABILITIES, LOGITS = "images", "probabilities", "logits"


@dataclass(frozen=True)
class ModelCard:
    """Attributes that an exported file states as metadata, each as JSON.

    Attributes:
        network: Value of model.name.
        class_names: Names of the classes in the order of the outputs.
        image_size: Height and width of the input in pixels.
        resize: Shorter side of an image before its centre is cropped; None: an image is not resized if it is large
            enough.
        interpolation: Value of data.interpolation.
        mean: Mean of red, green and blue in training, on the scale 0-255.
        std: Their standard deviation.
        params_sha256: Digest of the weights (models/weights.py).
        run: The MLflow id of the run, or its directory; None: not of a run.
    """

    network: str
    class_names: Tuple[str, ...]
    image_size: int
    resize: Optional[int]
    interpolation: str
    mean: Tuple[float, ...]
    std: Tuple[float, ...]
    params_sha256: str
    run: Optional[str] = None


def to_metadata(card: ModelCard) -> Mapping[str, str]:
    """Return the card as texts for the metadata of a file."""
    return {name: json.dumps(value) for name, value in asdict(card).items()}


def from_metadata(metadata: Mapping[str, str], source: str) -> ModelCard:
    """Return the card in a file's metadata. Raises ConfigError if `mxscale export` did not write it."""
    try:
        values = {field.name: json.loads(metadata[field.name]) for field in fields(ModelCard)}
        lists = {name: tuple(values[name]) for name in ("class_names", "mean", "std")}
        return ModelCard(**{**values, **lists})
    except (KeyError, ValueError, TypeError):
        raise ConfigError(f"{source} has no metadata of mxscale: expected a file of `mxscale export`") from None
