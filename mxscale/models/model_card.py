"""What belongs to a trained network besides its graph: class names, the input it expects, and where it comes from."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Mapping, Optional, Tuple

from mxscale.config import typed
from mxscale.config.schema import RULES
from mxscale.config.setting import Rule
from mxscale.util.errors import ConfigError

# Of an exported network: its input, uint8 (n, side, side, 3), and its outputs, float32 (n, classes)
INPUT, PROBABILITIES, LOGITS = "images", "probabilities", "logits"


@dataclass(frozen=True)
class ModelCard:
    """What an exported file states as metadata, each as JSON."""

    network: str  # value of model.name
    class_names: Tuple[str, ...]  # in the order of the outputs
    image_size: int  # height and width of the input in pixels
    resize: Optional[int]  # shorter side before the centre is cropped; None: only images that are too small are resized
    interpolation: str  # value of data.interpolation
    mean: Tuple[float, ...]  # of red, green and blue in training, on the scale 0-255
    std: Tuple[float, ...]
    params_sha256: str  # digest of the weights (models/weights.py)
    run: Optional[str] = None  # its id in MLflow, or its directory; None: not of a run


# Attribute of an input -> its rule; that of `resize` also admits the side of large packed images
CHECKED = {name: RULES[f"data.{name}"] for name in ("image_size", "interpolation", "mean", "std")}
CHECKED.update(resize=Rule("", low=8, high=65_500), crop=Rule("", above=0, high=1))


def to_metadata(card: ModelCard) -> Mapping[str, str]:
    """Return the card as texts for the metadata of a file."""
    return {name: json.dumps(value) for name, value in asdict(card).items()}


def from_metadata(metadata: Mapping[str, str], source: str) -> Optional[ModelCard]:
    """Return the card in a file's metadata; None if another program wrote the file. Raises ConfigError."""
    names = [field.name for field in fields(ModelCard)]
    if not set(names) <= set(metadata):
        return None
    try:
        values = {name: json.loads(metadata[name]) for name in names}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: its metadata is damaged ({error}); export it again") from None
    return from_values(values, source)


def from_values(values: Mapping[str, Any], source: str) -> ModelCard:
    """Return the card with these values. Raises ConfigError if one is missing or invalid."""
    try:
        card = typed.instance(ModelCard, values, record=True)
        check_input({name: value for name, value in asdict(card).items() if name in CHECKED})
        if len(set(card.class_names)) < len(card.class_names):
            raise ConfigError("two classes have the same name")
        "".join((*card.class_names, card.network, card.run or "")).encode()  # \ud800 can't be written to a file
    except (ConfigError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source}: its metadata is invalid ({str(error)[:150]}); export it again") from None
    return card


def check_input(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if attributes of an input (keys of CHECKED) are out of range."""
    for name, value in values.items():
        CHECKED[name].check(name, list(value) if isinstance(value, tuple) else value)
